"""Which night measured what and what was said of it, in the words of an index: all nights, and none of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fuseproof.digest import ACCEPTED, read_word
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

__all__ = ["Row", "Sheet"]

Flags = npt.NDArray[np.bool_]
Numbers = Sequence[int]

_TELLING = {Outcome.REGRESSED, Outcome.IMPROVED, Outcome.INVALID}
_TELLING_REASONS = {Reason.HELD, Reason.FASTER}


@dataclass(frozen=True)
class Row:
    """One night.

    Attributes:
        name: its name.
        runs: for each of its runs the numbers of its words.
        records: for each file of verdicts on it the numbers of its words, oldest first.
        lost: whether a file of verdicts on it cannot be read.

    """

    name: str
    runs: Sequence[Numbers]
    records: Sequence[Numbers]
    lost: bool


@dataclass(frozen=True)
class Sheet:
    """All nights of a machine, oldest first, in the words of an index (see `digest`)."""

    rows: Sequence[Row]
    words: Mapping[int, str]
    _read: dict[int, Any] = field(default_factory=dict)

    def word(self, number: int) -> Any:
        """Return what a word says."""
        if number not in self._read:
            self._read[number] = read_word(self.words[number])
        return self._read[number]

    def pair(self, number: int) -> Pair:
        """Return the pair that a word of a record names."""
        return Pair(*self.word(number))

    def mark(self, number: int) -> Mark | None:
        """Return the mark that a word of a record stands for; None for an accepted level."""
        said = self.word(number)
        return None if said == ACCEPTED else Mark(Outcome(said[0]), tuple(map(Reason, said[1])), said[2])

    def said(self, row: Row, *, telling_only: bool = False) -> tuple[dict[Pair, Mark], set[Pair]]:
        """Return a night's marks, of two on one pair the later, and its accepted pairs.

        With `telling_only` without marks that leave a night clean and a segment whole.
        """
        last: dict[int, int] = {}
        accepted: set[int] = set()
        for numbers in row.records:
            labels = numbers[1::2]
            if telling_only and len(row.records) == 1:
                found = np.flatnonzero(self._telling[np.asarray(labels, dtype=np.int64)]).tolist()
                entries = [(numbers[2 * at], labels[at]) for at in found]
            else:
                entries = list(zip(numbers[::2], labels, strict=True))
            for pair, label in entries:
                if self.word(label) == ACCEPTED:
                    accepted.add(pair)
                else:
                    last[pair] = label
        marks = {label: self.mark(label) for label in set(last.values())}
        kept = {self.pair(pair): mark for pair, label in last.items() if (mark := marks[label]) is not None}
        if telling_only:
            kept = {pair: mark for pair, mark in kept.items() if _tells(mark)}
        return kept, {self.pair(pair) for pair in accepted}

    @cached_property
    def _telling(self) -> Flags:
        """By the number of a word, whether it is an accepted level or a mark that tells."""
        labels = {label for row in self.rows for numbers in row.records for label in set(numbers[1::2])}
        flags = np.zeros(max(self.words, default=0) + 1, dtype=np.bool_)
        flags[[label for label in labels if (mark := self.mark(label)) is None or _tells(mark)]] = True
        return flags

    def unjudged(self, row: Row) -> bool:
        """Return whether a night was to be judged and has no verdict: its session was killed, or its file is gone."""
        judged = any(self.mark(label) is not None for numbers in row.records for label in numbers[1:2])
        return not judged and not row.lost and any(self.word(number)[5] for run in row.runs for number in run[:1])


def _tells(mark: Mark) -> bool:
    return mark.outcome in _TELLING or bool(_TELLING_REASONS & set(mark.reasons))
