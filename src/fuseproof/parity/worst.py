"""The greatest error of the running test by quantity, noted where errors are judged and asked for when it is over."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["collect", "collecting", "drain", "note", "note_all"]

_DIGITS = 3  # two runs of one case differ by more, wherever sums are taken in an order of chance
_greatest: dict[str, float] = {}
_wanted = False


def collect(wanted: bool) -> None:
    """Begin to collect, or stop; what was noted before is forgotten. It costs a pass over the compared elements."""
    global _wanted
    _wanted = wanted
    _greatest.clear()


def collecting() -> bool:
    """Whether anybody wants to know, so that what is only noted need not be computed."""
    return _wanted


def note(quantity: str, used: float) -> None:
    """Note a check that held.

    Args:
        quantity: what was compared; one parameter of many counts with the others.
        used: its error in units of its budget, 0 to 1.

    """
    if _wanted:
        name = quantity.partition(" of parameter ")[0]
        _greatest[name] = max(_greatest.get(name, 0.0), float(f"{used:.{_DIGITS}g}"))


def note_all(noted: Mapping[str, float]) -> None:
    """Note what a child has noted."""
    for quantity, used in noted.items():
        note(quantity, used)


def drain() -> dict[str, float]:
    """Return what was noted since the last time, by quantity, and forget it."""
    noted = dict(_greatest)
    _greatest.clear()
    return noted
