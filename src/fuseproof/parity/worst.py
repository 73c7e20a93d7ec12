"""The greatest error of the running test by quantity, noted where errors are judged and asked for when it is over.

Errors of checks that held and of checks that failed are kept apart: a failure that was expected, or of one of several
ways that are all right, says nothing of a test that passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

__all__ = ["ENDLESS", "Noted", "collect", "collecting", "drain", "forgive", "merged", "note", "note_all", "share"]

ENDLESS: Final = 1e99
"""What an error counts as that is not finite, or has no size, such as another shape: JSON has no infinity."""

Noted = tuple[dict[str, float], dict[str, float]]
"""By quantity, in units of budgets: the greatest errors that held, and the greatest that did not."""

_DIGITS = 3  # two runs of one case differ by more, wherever sums are taken in an order of chance
_held: dict[str, float] = {}
_failed: dict[str, float] = {}
_wanted = False


def collect(wanted: bool) -> None:
    """Begin to collect, or stop; what was noted before is forgotten. It costs a pass over the compared elements."""
    global _wanted
    _wanted = wanted
    drain()


def collecting() -> bool:
    """Whether anybody wants to know, so that what is only noted need not be computed."""
    return _wanted


def note(quantity: str, used: float, *, held: bool = True) -> None:
    """Note a check.

    Args:
        quantity: what was compared; one parameter of many counts with the others.
        used: its error in units of its budget, 0 to 1 if it held; more if it did not, `ENDLESS` at most, also for NaN.
        held: whether it did.

    """
    if _wanted:
        name = _name(quantity)
        greatest = _held if held else _failed
        used = used if used < ENDLESS else ENDLESS  # the other way round NaN would pass
        greatest[name] = max(greatest.get(name, 0.0), float(f"{used:.{_DIGITS}g}"))


def share(error: float, allowed: float) -> float:
    """Return an error in units of what is allowed, which may be nothing."""
    if error == 0:
        return 0.0
    return error / allowed if allowed else math.inf


def forgive(quantity: str) -> None:
    """Forget that a quantity failed: another of the ways that are right was met."""
    _failed.pop(_name(quantity), None)


def note_all(noted: Sequence[Mapping[str, float]]) -> None:
    """Note what a child has noted, as `drain` returns it."""
    for held, errors in zip((True, False), noted, strict=True):
        for quantity, used in errors.items():
            note(quantity, used, held=held)


def drain() -> Noted:
    """Return what was noted since the last time, by quantity, and forget it."""
    noted = dict(_held), dict(_failed)
    _held.clear()
    _failed.clear()
    return noted


def merged(noted: Noted, failed: bool) -> Mapping[str, float]:
    """Return the errors of a test: with those that did not hold if it failed."""
    held, beyond = noted
    return {**held, **beyond} if failed else held


def _name(quantity: str) -> str:
    return quantity.partition(" of parameter ")[0]
