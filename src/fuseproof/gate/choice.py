"""Which nights a verdict rests on, in a history of any length.

For each benchmark and metric: the newest 20 nights that have it, the newest 20 clean ones, and the anchor. Of a
thousand nights that is a few dozen, found without reading the values of the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuseproof.gate.sheet import Sheet
from fuseproof.verdicts.baseline import ANCHOR_NIGHTS, BASELINE_NIGHTS
from fuseproof.verdicts.night import clean_parts
from fuseproof.verdicts.verdict import Mark, Outcome, Pair

__all__ = ["Choice", "choose"]

Flags = npt.NDArray[np.bool_]

WINDOW_NIGHTS = BASELINE_NIGHTS


@dataclass(frozen=True)
class Choice:
    """The nights that a verdict rests on.

    Attributes:
        whole: positions of the newest nights, of which everything is needed.
        values: by position, the pairs whose values are needed of an older night.
        marks: by position, the pairs whose marks are needed of a night besides.

    """

    whole: range
    values: Mapping[int, frozenset[Pair]]
    marks: Mapping[int, frozenset[Pair]]

    @property
    def positions(self) -> list[int]:
        """All nights that are needed, oldest first."""
        return sorted({*self.whole, *self.values, *self.marks})


@dataclass(frozen=True)
class _Measured:
    """Who measured what: nights by columns, a column for each pair and method.

    Attributes:
        columns: pair and method of each.
        flags: whether a night has a value of it that is not INVALID.
        methods: of each key that has several, that of each night.

    """

    columns: Sequence[tuple[Pair, str]]
    flags: Flags
    methods: Mapping[str, Sequence[str | None]]

    def concerns(self, column: int, position: int) -> bool:
        """Return whether what was said of the column's pair on a night was said of its method."""
        pair, method = self.columns[column]
        return pair.key not in self.methods or self.methods[pair.key][position] in (None, method)


def choose(sheet: Sheet) -> Choice:
    """Choose the newest 20 nights whole; of older ones what the baseline, the anchor and the noise need."""
    count = len(sheet.rows)
    if not count:
        return Choice(range(0), {}, {})
    measured = _measured(sheet)
    rank = measured.flags.cumsum(axis=0)
    newest = measured.flags & (rank > rank[-1:] - WINDOW_NIGHTS)
    wanted = newest | (measured.flags & (rank <= ANCHOR_NIGHTS[1]))
    noted = np.zeros_like(wanted)
    marks, accepted = _courses(sheet)
    position_of = {row.name: position for position, row in enumerate(sheet.rows)}
    for column, (pair, _) in enumerate(measured.columns):
        own = {at: mark for at, mark in marks.get(pair, {}).items() if measured.concerns(column, at)}
        starts = {at for at in accepted.get(pair, ()) if measured.concerns(column, at)}
        if not own and not starts:
            continue
        nights = np.flatnonzero(measured.flags[:, column]).tolist()
        clean, *earlier = clean_parts(count, nights, own, starts, position_of)
        noise = [position for part in reversed(earlier) for position in part][-WINDOW_NIGHTS:]
        wanted[:, column] = newest[:, column]
        wanted[[*clean[: ANCHOR_NIGHTS[1]], *clean[-WINDOW_NIGHTS:], *noise], column] = True
        # What starts a segment, or makes other nights unclean too, must be there with the night that it speaks of.
        reaching = [mark for mark in own.items() if mark[1].outcome is Outcome.IMPROVED or mark[1].since is not None]
        since = [position_of[mark.since] for _, mark in reaching if mark.since in position_of]
        noted[[*starts, *(position for position, _ in reaching), *since], column] = True
    whole = range(max(0, count - WINDOW_NIGHTS), count)
    return Choice(whole, _by_night(wanted, measured, whole), _by_night(noted & ~wanted, measured, whole))


def _by_night(flags: Flags, measured: _Measured, whole: range) -> dict[int, frozenset[Pair]]:
    pairs = [pair for pair, _ in measured.columns]
    rows = np.flatnonzero(flags[: whole.start].any(axis=1)).tolist()
    return {row: frozenset(pairs[column] for column in np.flatnonzero(flags[row]).tolist()) for row in rows}


def _courses(sheet: Sheet) -> tuple[dict[Pair, dict[int, Mark]], dict[Pair, set[int]]]:
    """Return each pair's marks that make a night unclean or start a segment, by position, and where it was accepted."""
    marks: dict[Pair, dict[int, Mark]] = {}
    accepted: dict[Pair, set[int]] = {}
    for position, (said, wanted) in enumerate(sheet.telling()):
        for pair, mark in said.items():
            marks.setdefault(pair, {})[position] = mark
        for pair in wanted:
            accepted.setdefault(pair, set()).add(position)
    return marks, accepted


def _measured(sheet: Sheet) -> _Measured:
    """Return which night has a value of which pair that is not INVALID, by method; methods of long ago are left out."""
    columns: dict[tuple[Pair, str], int] = {}
    columns_of: dict[int, list[int]] = {}
    invalid: dict[int, str] = {}
    for number in {number for row in sheet.rows for run in row.runs for number in run}:
        word = sheet.run_word(number)
        if word.invalid:
            invalid[number] = word.key
        else:
            names = [(pair, sheet.named_method(number)[1]) for pair in sheet.measured(number)]
            columns_of[number] = [columns.setdefault(name, len(columns)) for name in names]
    # Words to their columns, filled up with one that is dropped in the end.
    width = max(map(len, columns_of.values()), default=0)
    table = np.full((max([0, *columns_of, *invalid]) + 1, width), len(columns))
    for number, own in columns_of.items():
        table[number, : len(own)] = own
    flags = np.zeros((len(sheet.rows), len(columns) + 1), dtype=np.bool_)
    for position, row in enumerate(sheet.rows):
        if row.lost or sheet.unjudged(row):
            continue
        numbers = {number for run in row.runs for number in run}
        if spoilt := {invalid[number] for number in numbers & invalid.keys()}:
            numbers = {number for number in numbers if sheet.run_word(number).key not in spoilt}
        flags[position, table[np.fromiter(numbers, dtype=np.int64)].ravel()] = True
    flags = flags[:, :-1]
    methods: dict[Pair, list[int]] = {}
    for column, (pair, _) in enumerate(columns):
        methods.setdefault(pair, []).append(column)
    for own in methods.values():
        if len(own) > 1:
            newest = np.flatnonzero(flags[:, own].any(axis=1))[-WINDOW_NIGHTS:]
            flags[:, [column for column in own if not flags[newest, column].any()]] = False
    return _Measured(list(columns), flags, _methods(sheet))


def _methods(sheet: Sheet) -> dict[str, list[str | None]]:
    """Return, of each key that was measured by several methods, that of each night."""
    known = {sheet.named_method(number) for row in sheet.rows for run in row.runs for number in run}
    several = [key for key, count in Counter(key for key, _ in known).items() if count > 1]
    found: dict[str, list[str | None]] = {key: [] for key in several}
    for row in sheet.rows if several else ():
        methods = sheet.methods(row)
        for key, own in found.items():
            own.append(methods.get(key))
    return found
