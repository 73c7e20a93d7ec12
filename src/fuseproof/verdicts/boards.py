"""Which GPU of a model measured a night: two boards differ, and alone that is not to be told from a slow-down.

One H200 takes longer for 25 of 32 kernels of 20 us and more than the GPUs of two earlier visits, by up to 2.7 %, and
copies 1 % slower; those agree within 0.4 % in the median, at most 1.5 % (docs/verdicts.md, section 12). Pairs need none
of this: both arms run on one board.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.verdicts.night import Night

__all__ = ["BOARDS_APART_LN", "OTHER_BOARD", "OTHER_BOARD_AND_HOST", "has_moved", "is_foreign"]

BOARDS_APART_LN = 0.04  # a night on one board over those on others: at most 3.7 % was measured where nothing changed

OTHER_BOARD = "another GPU of this model measured its baseline: confirm in pairs, or accept the level of this one"

OTHER_BOARD_AND_HOST = (
    "another GPU of this model measured its baseline, with another driver, which slows both arms of a pair: accept the "
    "level of this one"
)


def is_foreign(history: Sequence[Night], rows: Sequence[int], boards: frozenset[str]) -> bool:
    """Return whether more than half of some nights ran on other boards than tonight, as far as all that is known."""
    if not boards or not all(history[row].boards for row in rows):
        return False
    return 2 * sum(history[row].boards <= boards for row in rows) < len(rows)


def has_moved(history: Sequence[Night], anchor: Sequence[int], recent: Sequence[int], boards: frozenset[str]) -> bool:
    """Return whether the anchor's nights and the last ones, with tonight's boards, ran on different sets of boards."""
    if not boards or not all(history[row].boards for row in (*anchor, *recent)):
        return False
    before = frozenset[str]().union(*(history[row].boards for row in anchor))
    return before != boards.union(*(history[row].boards for row in recent))
