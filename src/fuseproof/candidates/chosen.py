"""The candidates that somebody has named, out of all that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fuseproof.candidates import KernelSet
from fuseproof.tables import nearest

__all__ = ["ChoiceError", "chosen", "contested"]


_KINDS = ("adam", "layer_norm", "rms_norm", "kernels")


class ChoiceError(Exception):
    """These names cannot be compared; the message is one sentence."""


def contested(gathered: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> set[str]:
    """Return the kinds of candidates of which at least two are named; arguments as of `chosen`."""
    return {kind for kind, records in gathered.items() if sum(name in records for name in names) > 1}


def chosen(gathered: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return, of each kind of candidates of which at least two are named, those alone; the other kinds as they are.

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
            raise ChoiceError(f"there is no candidate {name!r}; {nearest(name, known, _listed(gathered))}")
    kinds = contested(gathered, names)
    if not kinds:
        raise ChoiceError(f"no two of {', '.join(names)} are of one kind; {_listed(gathered)}.")
    return {
        kind: {name: _asked_for(records[name]) for name in names if name in records} if kind in kinds else records
        for kind, records in gathered.items()
    }


def _listed(gathered: Mapping[str, Mapping[str, Any]]) -> str:
    """Return all names by their kinds; those of kinds that repeat others' are left out."""
    return "; ".join(f"{kind}: {', '.join(gathered[kind])}" for kind in _KINDS if kind in gathered)


def _asked_for(record: Any) -> Any:
    return replace(record, **{"brought" if isinstance(record, KernelSet) else "nightly": True})
