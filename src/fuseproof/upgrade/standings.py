"""Processes that measured several candidates to who is faster where: pure, from documents alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseproof.statuses import UNANSWERED
from fuseproof.upgrade.bank import Trial, words_by_test
from fuseproof.upgrade.comparison import middle
from fuseproof.upgrade.skipped import skipped_everywhere
from fuseproof.verdicts.contest import Place, Standing, judge_contest
from fuseproof.verdicts.exact import compare
from fuseproof.verdicts.looks import LOOKS
from fuseproof.verdicts.night import fault_of
from fuseproof.verdicts.recorded import Process, process_of, tests_by_key
from fuseproof.verdicts.rules import Kind, Rule
from fuseproof.verdicts.verdict import Pair

__all__ = ["HOST", "Contestant", "Row", "Standings", "rank"]

HOST = "host_time_ns"
_TIMES = ("iteration_time_ns", "device_time_ns", HOST)
_METRICS = (*_TIMES, "peak_bytes", "launches")


@dataclass(frozen=True)
class Contestant:
    """A candidate in one benchmark, as its key says: `op/candidate/dtype/shape`, of a stage `iteration/stage@set/...`.

    Attributes:
        benchmark: what all contestants have in common.
        name: the candidate, or the kernel set.

    """

    benchmark: str
    name: str

    @classmethod
    def of(cls, key: str) -> Contestant:
        """Take a key apart."""
        op, candidate, dtype, shape = key.split("/", 3)
        stage, _, kernels = candidate.rpartition("@")
        return cls("/".join(filter(None, (op, stage, dtype, shape))), kernels)


@dataclass(frozen=True)
class Row:
    """One challenger beside the first-named candidate, in one metric of one benchmark.

    Attributes:
        benchmark, metric: which.
        first, challenger: names of the two.
        values: their medians as recorded: nanoseconds, bytes, a count.
        standing: of times: who is faster; None of what is compared exactly.
        more: of what is compared exactly: whether the challenger has more (1), less (-1) or the same (0), by the
            gate's rule, which gives memory a margin.

    """

    benchmark: str
    metric: str
    first: str
    challenger: str
    values: tuple[Any, Any]
    standing: Standing | None = None
    more: int = 0


@dataclass(frozen=True)
class Standings:
    """Who is faster where.

    Attributes:
        rows: by benchmark, metric and challenger.
        undecided: ids of the tests of all contestants of benchmarks that are not decided.
        failed: ids of the tests that failed in some process, so that their candidates are not, or not always, compared.
        notes: one sentence for each thing that a reader must know besides.

    """

    rows: Sequence[Row]
    undecided: frozenset[str]
    failed: frozenset[str]
    notes: Sequence[str]

    @property
    def status(self) -> int:
        """21 if nothing was compared, a test failed, or a time but the host's is undecided; else 0, whoever wins."""
        judged = [row.standing for row in self.rows if row.standing is not None and row.metric != HOST]
        unknown = not judged or bool(self.failed) or any(standing.place is Place.UNDECIDED for standing in judged)
        return UNANSWERED if unknown else 0


@dataclass
class _Duel:
    """Two contestants in one benchmark: their keys, and by metric what each process says."""

    first: str
    challenger: str
    ratios: dict[str, list[float]] = field(default_factory=dict)
    values: dict[str, tuple[list[Any], list[Any]]] = field(default_factory=dict)
    spoiled: Counter[str] = field(default_factory=Counter)


def rank(trials: Sequence[Trial], names: Sequence[str], rules: Sequence[Rule], tolerance_ln: float) -> Standings:
    """Return how the candidates stand; each is compared with the first of those that a benchmark has.

    Host time is told and never waited for: it varies several times as much.

    Args:
        trials: processes, each of which measured all candidates in an order of its own.
        names: of the candidates; the first is what the others are compared with.
        rules: for the steps of the clocks, and the margin of memory.
        tolerance_ln: the largest difference that is none.

    """
    documents = [document for trial in trials for document in trial.documents.values()]
    duels = _duels(documents, names)
    for process in map(process_of, documents):
        for duel in duels:
            _take(duel, process)
    timed = {Pair(duel.challenger, metric): duel for duel in duels for metric in duel.values if metric in _TIMES}
    standings: dict[Pair, Standing] = {}
    for metric in sorted({pair.metric for pair in timed}):
        own = {pair: duel for pair, duel in timed.items() if pair.metric == metric}
        judged = judge_contest(
            {pair: duel.ratios.get(metric, []) for pair, duel in own.items()},
            {p: math.log(middle(early)) for p, duel in own.items() if (early := _early(duel.values[metric][1]))},
            tolerance_ln=tolerance_ln,
            resolution_ns=max((rule.resolution_ns for rule in rules if rule.metric == metric), default=0.0),
            tests=len(timed),
        )
        standings |= {standing.pair: standing for standing in judged}
    exact = {rule.metric: rule for rule in rules if rule.kind in (Kind.MEMORY, Kind.EXACT)}
    rows = [_row(duel, metric, standings, exact.get(metric)) for duel in duels for metric in duel.values]
    tests = {key: test for document in documents for key, test in tests_by_key(document).items()}
    failures = words_by_test(trials, "failed_tests")
    waited_for = {
        key
        for pair, standing in standings.items()
        if pair.metric != HOST and standing.place is Place.UNDECIDED and standing.processes < LOOKS[-1]
        if not _hopeless(timed[pair])
        for key in (timed[pair].first, timed[pair].challenger)
    }
    order = {name: place for place, name in enumerate(names)}
    return Standings(
        sorted(rows, key=lambda row: (row.benchmark, _METRICS.index(row.metric), order[row.challenger])),
        frozenset(tests[key] for key in waited_for),
        frozenset(failures),
        [
            *(f"{test} fails: {words}" for test, by_arm in sorted(failures.items()) for words in by_arm.values()),
            *(sentence for duel in duels for sentence in _sentences(duel)),
            *map(str, skipped_everywhere(trials)),
        ],
    )


def _duels(documents: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[_Duel]:
    keys = {key for document in documents for key in tests_by_key(document)}
    found: dict[str, dict[str, str]] = {}
    for key in sorted(keys):
        contestant = Contestant.of(key)
        found.setdefault(contestant.benchmark, {})[contestant.name] = key
    duels = []
    for own in found.values():
        here = [own[name] for name in names if name in own]
        duels += [_Duel(here[0], challenger) for challenger in here[1:]]
    return duels


def _take(duel: _Duel, process: Process) -> None:
    """Take in what one process says of both."""
    spoiled = [*process.invalid.get(duel.first, ()), *process.invalid.get(duel.challenger, ())]
    for metric in _METRICS:
        pairs = (Pair(duel.first, metric), Pair(duel.challenger, metric))
        if not all(pair in process.values for pair in pairs):
            continue
        both = [process.values[pair] for pair in pairs]
        values = duel.values.setdefault(metric, ([], []))
        if metric in _TIMES:
            if spoiled or any(fault_of(value) for value in both):
                continue
            duel.ratios.setdefault(metric, []).append(math.log(both[1] / both[0]))
        for own, value in zip(values, both, strict=True):
            own.append(value)
    duel.spoiled.update(dict.fromkeys(spoiled, 1))


def _early(values: Sequence[Any]) -> list[float]:
    """Return those of the first look: a standing must not change with what is measured after it."""
    return [float(value) for value in values[: LOOKS[0]]]


def _hopeless(duel: _Duel) -> bool:
    return not duel.ratios and max(duel.spoiled.values(), default=0) >= LOOKS[0]


def _row(duel: _Duel, metric: str, standings: Mapping[Pair, Standing], rule: Rule | None) -> Row:
    first, challenger = Contestant.of(duel.first), Contestant.of(duel.challenger)
    old, new = duel.values[metric]
    standing = standings.get(Pair(duel.challenger, metric))
    values = middle(old), middle(new)
    more = compare(rule, values[:1], values[1]) if rule is not None else 0
    return Row(first.benchmark, metric, first.name, challenger.name, values, standing, more)


def _sentences(duel: _Duel) -> list[str]:
    return [
        f"{duel.challenger} beside {duel.first}: {count} process(es) not used: {reason}"
        for reason, count in sorted(duel.spoiled.items())
    ]
