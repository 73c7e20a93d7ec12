"""Nights as recorded, and which of them are clean for a pair.

A night holds one mapping from pairs to values for each fresh process. Values are as recorded: nanoseconds, bytes,
counts, names. Nothing is stored that follows from them and from the marks of earlier verdicts.
"""

from __future__ import annotations

import itertools
import math
import statistics
import sys
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

__all__ = [
    "DEFAULT_RULES",
    "Kind",
    "Night",
    "Rule",
    "Segments",
    "Values",
    "accept",
    "clean_parts",
    "fault_of",
    "is_part",
    "is_share",
    "is_valid",
    "segments",
    "value_ln",
    "values_ln",
]

Values = Mapping[Pair, Any]

NOT_RECORDED = "not recorded"
NARROWED = "without some"
"""In a selection's words: benchmarks that belong to it were left out, by -k for example."""


@dataclass(frozen=True)
class Night:
    """The processes of one session, and what was said of them.

    Attributes:
        name: unique and constant; marks refer to it.
        screening: one mapping per process that ran the suite; a calibration is one night with many.
        confirming: the confirming processes of the environment under test; they never enter a night's value.
        trusted: the processes of the trusted environment that ran in pairs with `confirming`, in the same order.
        invalid: by key: why a measurement must not be judged.
        methods: by key: hash of the method; values of different methods are not comparable.
        software: inventory of all that is installed (an upgrade changes it).
        host: driver, firmware: what a pair of environments on one host shares.
        boards: which GPUs of the machine's model measured it; empty where that is not known, as on a CPU.
        sm_clock_mhz: the clock that the spin probe saw.
        marks: earlier verdicts, from `verdict.marks_of`.
        accepted: pairs whose new level was accepted with this night; without a value: retired.
        selection: what was asked for: "" for the whole suite, "full" for it with what a night cannot afford, "gate" for
            a night's share; else a part of them, in any words.
        brought: names of candidates that were brought from outside; without their option they are not asked for.
        day: when it ran, as 2027-01-31, for a reader; empty where nobody has said.

    """

    name: str
    screening: Sequence[Values]
    confirming: Sequence[Values] = ()
    trusted: Sequence[Values] = ()
    invalid: Mapping[str, Sequence[str]] = field(default_factory=dict)
    methods: Mapping[str, str] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    host: Mapping[str, str] = field(default_factory=dict)
    boards: frozenset[str] = frozenset()
    sm_clock_mhz: float | None = None
    marks: Mapping[Pair, Mark] = field(default_factory=dict)
    accepted: frozenset[Pair] = frozenset()
    selection: str = ""
    brought: frozenset[str] = frozenset()
    day: str = ""

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """All pairs that a screening process has a value of."""
        return frozenset(pair for values in self.screening for pair in values)


def is_part(selection: str) -> bool:
    """Return whether a selection leaves out what another of the same words might have, or is not known."""
    return selection == NOT_RECORDED or NARROWED in selection


def is_share(selection: str) -> bool:
    """Return whether a night's share of the suite was asked for: most of the suite is not in it, and is not missed."""
    return selection.partition(" ")[0] == "gate"


def accept(night: Night, pairs: Iterable[Pair]) -> Night:
    """Return the night as the first of a new segment of these pairs (section 6); their noise carries over."""
    return replace(night, accepted=night.accepted | frozenset(pairs))


def fault_of(value: object) -> str | None:
    """Say what is wrong with a time or a count of bytes, None for a finite number above 0."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer | np.floating):
        return f"{value!r:.60} is not a number"
    try:
        return None if 0 < float(value) < math.inf else f"{value!r:.60} is not a finite number above 0"
    except OverflowError:
        return "a number too large"


def values_ln(processes: Iterable[Values], pair: Pair) -> list[float]:
    """Return the logarithms of a pair's sound values, process by process; unsound and absent ones are left out."""
    found = []
    for values in processes:
        value: Any = values.get(pair)
        plain = type(value) is float and 0 < value < sys.float_info.max  # nearly all of a long history
        if plain or (value is not None and fault_of(value) is None):
            found.append(math.log(value))
    return found


def value_ln(night: Night, pair: Pair) -> float:
    """Return a night's value: the median over its screening processes; NaN without a sound one (section 1)."""
    values = values_ln(night.screening, pair)
    return statistics.median(values) if values else math.nan


def clean_parts(
    count: int,
    measured: Iterable[int],
    marks: Mapping[int, Mark],
    accepted: Collection[int],
    position_of: Mapping[str, int],
) -> list[list[int]]:
    """Return the positions of a pair's clean nights, segment by segment, the newest segment first (sections 1, 6).

    Clean: has a value, is not INVALID, not REGRESSED, not since the night a regression is located at, and not the
    newest night while that is held for a second one. A suspect that was cleared stays in.

    Args:
        count: nights in all.
        measured: positions of those with a value that is not INVALID, ascending.
        marks: what was said of the pair, by position.
        accepted: positions of the nights whose level was accepted.
        position_of: by the name of a night.

    """
    measured = list(measured)
    starts = {0}
    unclean: set[int] = set()
    for position in sorted({*marks, *accepted}):
        mark = marks.get(position)
        since = position if mark is None or mark.since is None else min(position_of.get(mark.since, position), position)
        if mark is not None and mark.outcome is Outcome.REGRESSED:
            # What began before the level that it was judged by is another regression, which somebody has accepted.
            unclean.update(range(since if since >= max(starts) else position, position + 1))
        if position in accepted:
            starts.add(position)
        if mark is not None and mark.outcome is Outcome.IMPROVED:
            starts.add(since)
    invalid = {position for position, mark in marks.items() if mark.is_invalid(accepted=position in accepted)}
    unclean = (unclean - set(accepted)) | invalid
    newest = next((position for position in reversed(measured) if position not in invalid), None)
    if newest is not None and newest in marks and {Reason.HELD, Reason.FASTER} & set(marks[newest].reasons):
        unclean |= {newest} - starts
    clean = [position for position in measured if position not in unclean]
    bounds = [*sorted(starts), count]
    cuts = [bisect_left(clean, bound) for bound in bounds]
    return [clean[low:high] for low, high in itertools.pairwise(cuts)][::-1]


class Segments:
    """The clean nights of each pair of a history, in segments."""

    def __init__(self, history: Sequence[Night]) -> None:
        self._count = len(history)
        self._position_of = {night.name: position for position, night in enumerate(history)}
        self._measured: dict[Pair, list[int]] = {}
        self._marks: dict[Pair, dict[int, Mark]] = {}
        self._accepted: dict[Pair, set[int]] = {}
        self._parts: dict[Pair, list[list[int]]] = {}
        for position, night in enumerate(history):
            for pair in night.pairs:
                if pair.key not in night.invalid:
                    self._measured.setdefault(pair, []).append(position)
            for pair, mark in night.marks.items():
                self._marks.setdefault(pair, {})[position] = mark
            for pair in night.accepted:
                self._accepted.setdefault(pair, set()).add(position)

    def of(self, pair: Pair) -> list[list[int]]:
        """Return the positions of a pair's clean nights, segment by segment, the newest segment first."""
        if pair not in self._parts:
            measured, marks = self._measured.get(pair, ()), self._marks.get(pair, {})
            accepted = self._accepted.get(pair, ())
            self._parts[pair] = clean_parts(self._count, measured, marks, accepted, self._position_of)
        return self._parts[pair]


def segments(history: Sequence[Night], pair: Pair) -> list[list[int]]:
    """Return the positions of one pair's clean nights; see `clean_parts`."""
    return Segments(history).of(pair)


def is_valid(night: Night, pair: Pair, value: float) -> bool:
    """Return whether a night's value was measured properly, whatever was said of it."""
    mark = night.marks.get(pair)
    marked = mark is not None and mark.is_invalid(accepted=pair in night.accepted)
    return not math.isnan(value) and pair.key not in night.invalid and not marked
