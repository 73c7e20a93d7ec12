"""The candidates that somebody has named, out of all that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuseproof.candidates import KernelSet
from fuseproof.tables import nearest

__all__ = ["ChoiceError", "chosen"]


class ChoiceError(Exception):
    """These names cannot be compared; the message is one sentence."""


def chosen(gathered: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return, of each kind of candidates of which at least two are named, those; of the others none.

    Who is named takes part, also where a night cannot afford it.

    Args:
        gathered: by kind, records by their names.
        names: of at least two candidates.

    Raises:
        ChoiceError: an unknown name, or no two names of one kind.

    """
    known = {name for records in gathered.values() for name in records}
    for name in names:
        if name not in known:
            raise ChoiceError(f"there is no candidate {name!r}; {nearest(name, known)}")
    found = {kind: [name for name in names if name in records] for kind, records in gathered.items()}
    if all(len(own) < 2 for own in found.values()):
        kinds = "; ".join(f"{kind}: {', '.join(gathered[kind])}" for kind in ("adam", "layer_norm"))
        raise ChoiceError(f"no two of {', '.join(names)} are of one kind; {kinds}")
    return {
        kind: {name: _asked_for(gathered[kind][name]) for name in own} if len(own) > 1 else {}
        for kind, own in found.items()
    }


def _asked_for(record: Any) -> Any:
    return replace(record, **{"brought" if isinstance(record, KernelSet) else "nightly": True})
