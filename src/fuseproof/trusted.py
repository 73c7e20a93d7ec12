"""The trusted environment: the interpreter with which a segment of the history began, to run beside tonight's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.upgrade.environment import UpgradeError, examine, resolve
from fuseproof.verdicts.recorded import HOST_PARTS

__all__ = ["Trusted", "find_trusted", "trusted_fault"]

_FIRST_PARTS = ("torch", "apex", "cuda")  # of an inventory: what a reader looks for
_SHOWN_PARTS = 3
_NO_PAIRS = "not in pairs: {}"


@dataclass(frozen=True)
class Trusted:
    """The trusted environment, as it can be started.

    Attributes:
        python: its interpreter.
        environ: the variables that it needs.
        software: its inventory, without what belongs to the host.

    """

    python: str
    environ: Mapping[str, str]
    software: Mapping[str, str]

    def strangers(self, session: GateSession) -> dict[str, str]:
        """Return the judged keys whose segment began in another environment, and how that differs.

        A pair with this one would compare them with a level that has been left, for better or on purpose.
        """
        history = session.screening.history
        found = {}
        for each in session.screening.screened:
            for column in np.flatnonzero(each.judged).tolist():
                software = history[each.family.first[column]].software
                if software != self.software:
                    found[each.family.pairs[column].key] = _difference(self.software, software)
        return found


def trusted_fault(settings: GateSettings, root: Path) -> str | None:
    """Return why the configured interpreter cannot be there, without starting it; None for nothing to say."""
    if settings.trusted_python is None:
        return None
    try:
        resolve("trusted_python", settings.trusted_python, settings.trusted_env, root)
    except UpgradeError as error:
        return _NO_PAIRS.format(error)
    return None


def find_trusted(settings: GateSettings, root: Path) -> Trusted | str | None:
    """Return the configured trusted environment, why it cannot be used, or None where none is configured."""
    if settings.trusted_python is None:
        return None
    try:
        trusted = resolve("trusted_python", settings.trusted_python, settings.trusted_env, root)
        software = examine(trusted, root).inventory
    except UpgradeError as error:
        return _NO_PAIRS.format(error)
    return Trusted(trusted.python, trusted.variables, {k: v for k, v in software.items() if k not in HOST_PARTS})


def _difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    names = [name for name in dict.fromkeys([*_FIRST_PARTS, *here, *there]) if here.get(name) != there.get(name)]
    shown = [f"{name} {here.get(name, 'absent')}, not {there.get(name, 'absent')}" for name in names[:_SHOWN_PARTS]]
    return "; ".join(shown + [f"and {len(names) - _SHOWN_PARTS} more"] * (len(names) > _SHOWN_PARTS))
