"""Which night measured what and what was said of it, in the words of an index: all nights, and none of their values."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from fuseproof.digest import ACCEPTED, WITHDRAWN, RunWord, read_word
from fuseproof.verdicts.recorded import Process
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

__all__ = ["Row", "Sheet"]

Numbers = Sequence[int]

_TELLING = {Outcome.REGRESSED, Outcome.IMPROVED, Outcome.INVALID}
_TELLING_REASONS = {Reason.HELD, Reason.FASTER}


class Row(NamedTuple):
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


class _Layout(NamedTuple):
    """How the numbers of a run are laid out: the same for hundreds of runs.

    Attributes:
        pairs: of each number.
        whole: positions of the integers.
        names: values that are none: hashes of kernels' names.
        methods: by key.

    """

    pairs: list[Pair]
    whole: list[int]
    names: dict[Pair, str]
    methods: dict[str, str]


class Sheet:
    """All nights of a machine, oldest first, in the words of an index (see `digest`).

    Attributes:
        rows: the nights.

    """

    def __init__(self, rows: Sequence[Row], words: Mapping[int, str]) -> None:
        self.rows = rows
        self._words = words
        # A word is the same in hundreds of nights.
        self.run_word: Callable[[int], RunWord] = cache(lambda number: RunWord(*read_word(words[number])))
        self.named_method: Callable[[int], tuple[str, str]] = cache(self._named_method)
        self.pairs: Callable[[int], list[Pair]] = cache(self._pairs)
        self._layout: Callable[[tuple[int, ...]], _Layout] = cache(self._laid_out)
        self.pair: Callable[[int], Pair] = cache(lambda number: Pair(*read_word(words[number])))
        self.mark: Callable[[int], Mark | None] = cache(self._mark)

    def _pairs(self, number: int) -> list[Pair]:
        word = self.run_word(number)
        return [Pair(word.key, metric) for metric in word.metrics]

    def _named_method(self, number: int) -> tuple[str, str]:
        """Return the key of a benchmark of a run, and how and on what it was measured, as a night names it."""
        word = self.run_word(number)
        return word.key, f"{word.method} {word.host}"

    def _mark(self, number: int) -> Mark | None:
        """Return the mark that a word of a record stands for; None for a level that is accepted or withdrawn."""
        said = read_word(self._words[number])
        return None if said in (ACCEPTED, WITHDRAWN) else Mark(Outcome(said[0]), tuple(map(Reason, said[1])), said[2])

    def measured(self, number: int) -> list[Pair]:
        """Return the pairs that a benchmark of a run has values of, its kernels' names too."""
        word = self.run_word(number)
        return self.pairs(number) + ([Pair(word.key, "kernels_hash")] if word.kernels_hash else [])

    def methods(self, row: Row) -> dict[str, str]:
        """Return a night's methods by key, those of its last process."""
        return dict(self.named_method(number) for run in row.runs for number in run)

    def process(
        self, run: Numbers, numbers: array[float], rest: Mapping[str, Any], only: Collection[Pair] | None
    ) -> Process:
        """Return the process of a run; with `only` no other values than these."""
        layout = self._layout(tuple(run))
        values: dict[Pair, Any] = dict(zip(layout.pairs, numbers, strict=True))
        for at in layout.whole:
            values[layout.pairs[at]] = int(numbers[at])
        values |= layout.names
        if only is not None:
            values = {pair: values[pair] for pair in only if pair in values}
        return Process(values, layout.methods, rest["invalid"], rest["fuseproof"], rest["clocks_mhz"], rest["datetime"])

    def _laid_out(self, run: tuple[int, ...]) -> _Layout:
        words = [self.run_word(number) for number in run]
        whole = [is_whole for word in words for is_whole in word.whole]
        return _Layout(
            [pair for number in run for pair in self.pairs(number)],
            [at for at, is_whole in enumerate(whole) if is_whole],
            {Pair(word.key, "kernels_hash"): word.kernels_hash for word in words if word.kernels_hash},
            {word.key: word.method for word in words},
        )

    def said(self, row: Row) -> tuple[dict[int, int], set[int]]:
        """Return, by the numbers of words, the last mark of each pair and the accepted pairs of a night."""
        last: dict[int, int] = {}
        accepted: set[int] = set()
        for numbers in row.records:
            if numbers and self.mark(numbers[1]) is None:
                withdrawn = read_word(self._words[numbers[1]]) == WITHDRAWN
                (accepted.difference_update if withdrawn else accepted.update)(numbers[::2])
            else:
                last.update(zip(numbers[::2], numbers[1::2], strict=True))
        return last, accepted

    def marks(self, row: Row, only: Collection[Pair] | None = None) -> tuple[dict[Pair, Mark], frozenset[Pair]]:
        """Return a night's marks, of two on one pair the later, and its accepted pairs; with `only` no others."""
        last, accepted = self.said(row)
        found = {self.pair(pair): self.mark(label) for pair, label in last.items()}
        marks = {p: mark for p, mark in found.items() if mark is not None and (only is None or p in only)}
        return marks, frozenset(map(self.pair, accepted))

    def telling(self) -> Iterable[tuple[dict[Pair, Mark], set[Pair]]]:
        """Yield each night's marks that make it unclean, hold it or start a segment, and its accepted pairs."""
        labels = {label for row in self.rows for numbers in row.records for label in set(numbers[1::2])}
        marks = {label: mark for label in labels if (mark := self.mark(label)) is not None and _tells(mark)}
        for row in self.rows:
            last, accepted = self.said(row)
            found = {self.pair(pair): marks[label] for pair, label in last.items() if label in marks}
            yield found, set(map(self.pair, accepted))

    def unjudged(self, row: Row) -> bool:
        """Return whether a night was to be judged and has no verdict: its session was killed, or its file is gone."""
        judged = any(numbers and self.mark(numbers[1]) is not None for numbers in row.records)
        return not judged and not row.lost and any(self.run_word(run[0]).gated for run in row.runs)


def _tells(mark: Mark) -> bool:
    return mark.outcome in _TELLING or bool(_TELLING_REASONS & set(mark.reasons))
