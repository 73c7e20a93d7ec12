"""Which GPU of a model measured a night: two boards differ, and alone that is not to be told from a slow-down.

Of five H200 boards one takes longer for 28 of 38 kernels, by up to 2.7 %, and copies 1 % slower; the other four agree
within some 0.5 % (docs/verdicts.md, section 12). Pairs need none of this: both arms run on one board.
"""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.verdicts.night import Night

__all__ = ["BOARDS_APART_LN", "OTHER_BOARD", "are_others", "has_moved", "is_foreign"]

BOARDS_APART_LN = 0.04  # a night on one board over those on others: at most 3.7 % was measured where nothing changed

OTHER_BOARD = "another GPU of this model measured its baseline: confirm in pairs, or accept the level of this one"


def are_others(earlier: frozenset[str], boards: frozenset[str]) -> bool:
    """Return whether some of the boards, which are known, are not among the earlier ones, which are known too."""
    return bool(earlier and boards) and not boards <= earlier


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
