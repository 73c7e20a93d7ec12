"""What a folder of measured pairs was measured for: two commands with one plan go on with each other's pairs."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fuseproof import __version__
from fuseproof.run_schema import shown
from fuseproof.storage import HistoryError

__all__ = ["SEED_BYTES", "UpgradePlan"]

SEED_BYTES = 4  # enough that no two folders have one order; short enough to be typed again
_SCHEMA = 1
_SHOWN_PARTS = 3


@dataclass(frozen=True)
class UpgradePlan:
    """What is measured, where, and with what.

    Attributes:
        kind: "upgrade" or "versus".
        machine: the folder name of this machine in a history.
        arms: by name, what is compared: `python`, `variables`, `inventory`.
        tests: folders or files of tests, from the repository's root.
        keyword, mark: `-k` and `-m` of pytest.
        arguments: more arguments of pytest.
        candidates: of `versus`: who is compared.
        tolerance: as the command line gives it; empty for the configuration's.
        fuseproof: its version, which is the same in all arms.
        seed: random orders follow from it; two plans that differ by it only are the same.

    """

    kind: str
    machine: str
    arms: Mapping[str, Mapping[str, Any]]
    tests: tuple[str, ...]
    keyword: str = ""
    mark: str = ""
    arguments: tuple[str, ...] = ()
    candidates: tuple[str, ...] = ()
    tolerance: str = ""
    fuseproof: str = __version__
    seed: str = field(default_factory=lambda: secrets.token_hex(SEED_BYTES))

    @property
    def selection(self) -> str:
        """What was asked for, in words."""
        options = [f"{name} {value!r}" for name, value in (("-m", self.mark), ("-k", self.keyword)) if value]
        return " ".join([*self.tests, *options, *self.arguments])

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {"schema": _SCHEMA, **asdict(self)}

    @classmethod
    def read(cls, document: Any, where: str) -> UpgradePlan:
        """Return the plan that a document holds; `where` names its file.

        Raises:
            HistoryError: it is none, or that of a newer fuseproof.

        """
        mend = "give another folder, or delete this one"
        if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
            schema = shown(document.get("schema") if isinstance(document, dict) else document)
            raise HistoryError(f"{where}: schema is {schema}, not {_SCHEMA}; {mend}")
        values = {name: value for name, value in document.items() if name != "schema"}
        kinds = {each.name: tuple if each.type.startswith("tuple") else str for each in fields(cls)} | {"arms": dict}
        for name, kind in kinds.items():
            if not isinstance(values.get(name), list if kind is tuple else kind):
                raise HistoryError(f"{where}: {name} is {shown(values.get(name))}; {mend}")
            if kind is tuple and not all(isinstance(each, str) for each in values[name]):
                raise HistoryError(f"{where}: {name} is not a list of texts; {mend}")
        for arm, about in values["arms"].items():
            if not isinstance(about, dict):
                raise HistoryError(f"{where}: arms.{arm} is {shown(about)}, not an object; {mend}")
        if unknown := sorted(values.keys() - kinds.keys()):
            raise HistoryError(f"{where}: {unknown[0]} is not known; {mend}")
        read: dict[str, Any] = {
            name: tuple(values[name]) if kind is tuple else values[name] for name, kind in kinds.items()
        }
        return cls(**read)

    def difference(self, begun: UpgradePlan) -> str | None:
        """Return how this plan differs from the one that a folder was begun with; None where it does not."""
        then, now = _flat(begun), _flat(self)
        names = [name for name in dict.fromkeys([*then, *now]) if then.get(name) != now.get(name)]
        if not names:
            return None
        parts = [f"{name} was {_said(then.get(name))} and is {_said(now.get(name))}" for name in names[:_SHOWN_PARTS]]
        return "; ".join(parts + [f"and {len(names) - _SHOWN_PARTS} more"] * (len(names) > _SHOWN_PARTS))


def _flat(plan: UpgradePlan) -> dict[str, Any]:
    """Return what must be equal, under the names that a reader knows."""
    flat = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in ("arms", "seed")}
    flat["arms"] = tuple(plan.arms)
    for arm, about in plan.arms.items():
        for part, value in about.items():
            inner = value if isinstance(value, Mapping) else {"": value}
            flat |= {" ".join(filter(None, (arm, part, name))): each for name, each in inner.items()}
    return flat


def _said(value: Any) -> str:
    text = " ".join(value) if isinstance(value, tuple) else value
    return "nothing" if text in (None, "") else shown(text)
