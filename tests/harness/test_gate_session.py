"""One gated night without I/O: simulated histories, waivers, overrides, what was asked for, and the status."""

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from fuseproof.gate.records import Recall
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.verdicts.controls import Unchanged
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason, Waiver

TODAY = datetime.date(2027, 1, 31)
SUITE = 30
SIGMA = 0.15  # %, between processes and between nights: kernels of 20 us and more on an H200


def pair(number: int, metric: str = "device_time_ns") -> Pair:
    """Return the pair of a benchmark by its number."""
    return Pair(f"op/mine/fp32/{number:02d}", metric)


def process(percent: Sequence[float]) -> dict[Pair, float]:
    """Return the device times of one process from logarithms times 100 about 100 us."""
    return {pair(number): 1e5 * math.exp(value / 100) for number, value in enumerate(percent)}


def night(name: str, *runs: Sequence[float], **options: Any) -> Night:
    """Return a night of these processes."""
    return Night(name, [process(run) for run in runs], **options)


def session(history: Sequence[Night], tonight: Night, **options: Any) -> GateSession:
    """Begin to judge a night."""
    defaults = {"paired": False, "full_selection": True, "today": TODAY}
    settings, waivers = options.pop("settings", GateSettings()), options.pop("waivers", ())
    return GateSession(settings, waivers, history, tonight, **(defaults | options))


def label(found: GateSession, number: int = 0) -> str:
    """Return what is said of a benchmark's device time."""
    return next(verdict.label for verdict in found.verdicts if pair(number) in (verdict.pair, *verdict.members))


def flat(count: int = 8) -> list[Night]:
    """Return nights of 12 benchmarks that vary by 0.1 % in a fixed pattern."""
    return [
        night(f"n{at}", *([0.1 * math.sin(at * 7 + run * 3 + number) for number in range(12)] for run in range(3)))
        for at in range(count)
    ]


LEVEL = [0.0] * 12


def moved(by: float, count: int = 1) -> list[float]:
    """Return a process in which the first benchmarks are slower by so many %."""
    return [by] * count + LEVEL[count:]


# --- simulated histories ---


@dataclass(frozen=True)
class Noise:
    """How nights vary: standard deviation in %, correlation with the night before, share of wild processes."""

    name: str
    sigma: float = SIGMA
    rho: float = 0.0
    wild: float = 0.0

    def __str__(self) -> str:
        return self.name

    def nights(self, seed: np.random.Generator, replicates: int = 3) -> Iterator[tuple[Any, Any]]:
        """Yield the level of one night after another, and its processes; without end."""
        level = seed.normal(0, self.sigma, SUITE)
        while True:
            yield level, [self.run(seed, level) for _ in range(replicates)]
            fresh = seed.normal(0, self.sigma, SUITE)
            level = self.rho * level + math.sqrt(1 - self.rho**2) * fresh

    def run(self, seed: np.random.Generator, level: Any) -> Any:
        """Return one process of a night."""
        factor = np.where(seed.random(SUITE) < self.wild, 4.0, 1.0)
        return level + seed.normal(0, self.sigma, SUITE) * factor


IID = Noise("independent")
AR1 = Noise("resembling-the-night-before", rho=0.5)
SPIKES = Noise("spikes", wild=0.05)
NOISES = [IID, AR1, SPIKES]


@dataclass
class Machine:
    """A machine with its history, judged night after night as a nightly CI would.

    Attributes:
        noise: how it varies.
        seed: of the whole life.
        history: the nights so far, with their marks.
        paired: whether the trusted environment runs there.

    """

    noise: Noise
    seed: np.random.Generator
    paired: bool = False
    history: list[Night] | None = None

    def __post_init__(self) -> None:
        self.history = self.history or []
        self._nights = self.noise.nights(self.seed)

    def night(self, shift: Any = 0.0, *, replicates: int = 3) -> GateSession:
        """Run one night with a shift in % against the trusted environment, and remember what was said."""
        assert self.history is not None
        level, runs = next(self._nights)
        tonight = night(f"night{len(self.history)}", *(run + shift for run in runs[:replicates]))
        found = session(self.history, tonight, paired=self.paired)
        while found.plan():
            again = process(self.noise.run(self.seed, level) + shift)
            found.add(again, process(self.noise.run(self.seed, level)) if self.paired else None)
        evidence = {"confirming": found.evidence.tonight, "trusted": found.evidence.trusted}
        self.history.append(replace(tonight, marks=found.marks, **evidence))
        return found


@pytest.mark.parametrize("paired", [False, True], ids=["alone", "in-pairs"])
@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_a_quiet_machine_is_left_alone(noise: Noise, paired: bool) -> None:
    """Three machines of 30 benchmarks, 25 nights in which nothing changes: nobody is blocked, nearly all is judged."""
    nights = 0
    for number in range(3):
        machine = Machine(noise, np.random.default_rng(number), paired)
        found = [machine.night() for _ in range(25)]
        assert not [verdict for each in found for verdict in each.verdicts if verdict.outcome is Outcome.REGRESSED]
        nights += sum(each.status() != 0 for each in found)
        assert all(each.judged == (SUITE, SUITE) for each in found[3:])

    assert nights <= 2  # of 75: a night may be held for a second, and a control may fail


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_a_step_is_found(noise: Noise) -> None:
    """+2.2 % from one night on: alone it is held at first and blocks the next night; in pairs it blocks at once."""
    shift = np.array([2.2] + [0.0] * (SUITE - 1))
    for number in range(5):
        alone, paired = (Machine(noise, np.random.default_rng(number), way) for way in (False, True))
        for _ in range(10):
            alone.night(), paired.night()

        assert [label(alone.night(shift)) for _ in range(2)] == ["INCONCLUSIVE(HELD)", "REGRESSED"]
        assert label(paired.night(shift)) == "REGRESSED"


def test_a_step_that_is_mended_is_over() -> None:
    """The nights of a regression are no baseline, and the night after it passes."""
    machine = Machine(IID, np.random.default_rng(3))
    for _ in range(10):
        machine.night()
    for _ in range(4):
        machine.night(np.array([4.0] + [0.0] * (SUITE - 1)))
    found = machine.night()
    verdict = next(verdict for verdict in found.verdicts if verdict.pair == pair(0))

    assert (verdict.label, verdict.nights, found.status()) == ("PASS", 10, 0)


@pytest.mark.parametrize("paired", [False, True], ids=["alone", "in-pairs"])
def test_a_creep_is_found_against_the_anchor(paired: bool) -> None:
    """+0.1 % a night is below every night's bound; over some weeks it is REGRESSED, and nothing else is blocked."""
    machine = Machine(Noise("quiet", sigma=0.05), np.random.default_rng(1), paired)
    for _ in range(12):
        machine.night()
    found = [machine.night(np.array([0.1 * at] + [0.0] * (SUITE - 1))) for at in range(1, 26)]
    first = next(at for at, each in enumerate(found) if label(each).startswith("REGRESSED"))

    assert {"PASS", "PASS(NOT_CONFIRMED)", "UNGATEABLE", "INCONCLUSIVE(NOT_PROVEN)"} >= {
        label(each) for each in found[:first]
    }
    assert 10 <= first + 1 <= 25
    assert [pair(0)] == [v.pair for v in found[first].verdicts if v.outcome is Outcome.REGRESSED]


def test_few_nights() -> None:
    """Nothing to judge by is NEW and green; with the gate required it is 21. One night of one process is not enough."""
    machine = Machine(IID, np.random.default_rng(5))
    found = [machine.night(replicates=1) for _ in range(4)]

    assert {"NEW(NO_BASELINE)"} == {verdict.label for verdict in found[0].verdicts}
    assert {"NEW(NO_NOISE)"} == {verdict.label for verdict in found[1].verdicts}
    assert [(each.status(), each.status(required_gate=True)) for each in found[:2]] == [(0, 21)] * 2
    assert found[1].judged == (0, SUITE)
    assert found[3].judged == (SUITE, SUITE)


def test_a_noisy_benchmark_is_ungateable_and_armed() -> None:
    """It can neither pass nor hide: +12 % in pairs blocks."""
    noisy = np.array([1.2 / SIGMA] + [1.0] * (SUITE - 1))
    seed = np.random.default_rng(2)
    history = [night(f"n{at}", *(noisy * seed.normal(0, SIGMA, SUITE) for _ in range(3))) for at in range(12)]
    quiet = session(history, night("tonight", *[[0.0] * SUITE] * 3), paired=True)
    slow = session(history, night("tonight", *[[12.0] + [0.0] * (SUITE - 1)] * 3), paired=True)
    while slow.plan():
        slow.add(process([12.0] + [0.0] * (SUITE - 1)), process([0.0] * SUITE))

    assert (label(quiet), quiet.status(), quiet.status(required_gate=True)) == ("UNGATEABLE", 0, 21)
    assert (label(slow), slow.status()) == ("REGRESSED", 20)


# --- what was asked is what is judged ---


def test_vanished_benchmarks_are_missing_from_a_whole_suite_only() -> None:
    """A run that was narrowed was not asked for the others."""
    tonight = night("tonight", *[LEVEL[:10]] * 3)
    whole, part = session(flat(), tonight), session(flat(), tonight, full_selection=False)

    assert {pair(10), pair(11)} == {v.pair for v in whole.verdicts if v.outcome is Outcome.MISSING}
    assert (whole.status(), whole.judged) == (21, (10, 12))
    assert (part.status(), part.judged) == (0, (10, 12))


def test_a_renamed_benchmark_is_missing_and_new() -> None:
    """Its history does not follow a new key, and neither half of that is silent."""
    runs = [{Pair(f"{p.key}{'x' * (p == pair(0))}", p.metric): v for p, v in process(LEVEL).items()}] * 3
    found = session(flat(), Night("tonight", runs))
    said = {verdict.pair.key: verdict.label for verdict in found.verdicts if verdict.label != "PASS"}

    assert said == {"op/mine/fp32/00": "MISSING", "op/mine/fp32/00x": "NEW(NO_BASELINE)"}
    assert (found.status(), found.judged) == (21, (11, 13))


def test_what_only_a_full_suite_measures_is_missing_from_a_full_suite_only() -> None:
    """A default night is not blamed for what it cannot afford; a night that nobody has recorded proves nothing."""
    full = [replace(each, selection="full") for each in flat()]
    part = night("part", *[LEVEL[:8]] * 3)
    default = [replace(each, screening=part.screening, selection="") for each in flat()]
    history = [*full[:4], *default[4:]]
    unknown = [replace(each, selection="not recorded") for each in full[:4]] + default[4:]
    tonight = night("tonight", *[LEVEL[:8]] * 3)

    def missing(nights: list[Night], asked: str) -> int:
        found = session(nights, replace(tonight, selection=asked))
        return sum(verdict.outcome is Outcome.MISSING for verdict in found.verdicts)

    assert [missing(nights, asked) for nights in (history, unknown) for asked in ("", "full")] == [0, 4, 0, 0]


@pytest.mark.parametrize("key", ["adam_step/mine/fp32/small", "iteration/4_amp@mine/bf16/small"])
def test_a_brought_candidate_is_missing_only_if_it_is_brought(key: str) -> None:
    """Without --adam mine=... its benchmarks are not asked for."""
    others = {Pair(f"adam_step/apex/fp32/{number}", "launches"): 3 for number in range(3)}
    history = [Night(f"n{at}", [{**others, Pair(key, "launches"): 3}], brought=frozenset({"mine"})) for at in range(3)]
    tonight = Night("tonight", [others])

    assert session(history, tonight).status() == 0
    assert session(history, replace(tonight, brought=frozenset({"mine"}))).status() == 21


def test_a_session_that_measured_nothing_is_no_green_gate() -> None:
    """With the gate required, no verdict at all is no answer."""
    found = session(flat(), Night("tonight", []), full_selection=False)

    assert (found.status(), found.status(required_gate=True), found.judged) == (0, 21, (0, 12))


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 0.0, "12", None, True, 10**400], ids=repr)
def test_a_value_that_is_none_is_invalid(value: object) -> None:
    """Named with its pair; tonight's or the history's, it never becomes a verdict."""
    tonight = night("tonight", *[LEVEL] * 3)
    spoilt = [{**run, pair(0): value} for run in tonight.screening]
    poisoned = flat()
    poisoned[3] = replace(poisoned[3], screening=[{**run, pair(0): value} for run in poisoned[3].screening])
    now, before = session(flat(), replace(tonight, screening=spoilt)), session(poisoned, tonight)

    assert (label(now), now.status()) == ("INVALID(BAD_VALUE)", 21)
    assert (label(before), before.status()) == ("PASS", 0)
    assert "night n3: op/mine/fp32/00 device_time_ns" in before.screening.set_aside[0]


# --- settings ---


def test_an_override_loosens_one_benchmark() -> None:
    """+2.5 % of two benchmarks: the one with a tolerance of 5 % passes, the other is held; each has its bound."""
    loose = Rule("device_time_ns", Kind.STOCHASTIC, math.log(1.05), 32.0, keys="*/00")
    tonight = night("tonight", *[moved(2.5, 2)] * 3)
    found = session(flat(), tonight, settings=GateSettings(rules=(*DEFAULT_RULES, loose)))
    while found.plan():
        found.add(process(moved(2.5, 2)))
    bounds = {verdict.pair: verdict.bound_ln for verdict in found.verdicts}

    assert [label(found, number) for number in range(2)] == ["PASS(NOT_CONFIRMED)", "INCONCLUSIVE(HELD)"]
    assert [math.log(1.05), math.log(1.01)] == pytest.approx([bounds[pair(number)] for number in range(2)])


def test_a_metric_that_is_reported_is_not_judged() -> None:
    """For one benchmark or for all: it has no verdict, and is not MISSING either."""
    quiet = Rule("device_time_ns", Kind.REPORTED, keys="*/00")
    found = session(flat(), night("tonight", *[moved(50.0)] * 3), settings=GateSettings(rules=(*DEFAULT_RULES, quiet)))
    gone = session(
        flat(),
        replace(found.screening.tonight, screening=[{p: v for p, v in process(LEVEL).items() if p != pair(0)}] * 3),
        settings=GateSettings(rules=(*DEFAULT_RULES, quiet)),
    )

    assert pair(0) not in {verdict.pair for each in (found, gone) for verdict in each.verdicts}
    assert [each.status() for each in (found, gone)] == [0, 0]


def test_host_time_can_be_gated() -> None:
    """Its tolerance is the user's; by default it is recorded and not judged."""

    def host(percent: float) -> dict[Pair, float]:
        return {pair(0, "host_time_ns"): 5e4 * math.exp(percent / 100)}

    history = [Night(f"n{at}", [host(5 * math.sin(at * 3 + run)) for run in range(3)]) for at in range(10)]
    tonight = Night("tonight", [host(90.0)] * 3)
    gated = GateSettings(rules=(*DEFAULT_RULES[:-1], Rule("host_time_ns", Kind.STOCHASTIC, math.log(1.3), 1.0)))
    found = session(history, tonight, settings=gated)
    while found.plan():
        found.add(host(90.0))

    assert session(history, tonight).verdicts == []
    assert [verdict.label for verdict in found.verdicts] == ["REGRESSED"]


def test_modes() -> None:
    """ "warn" says all and blocks nothing; "off" neither."""
    found = {
        mode: session(flat(), night("tonight", *[LEVEL[:10]] * 3), settings=GateSettings(mode=mode))
        for mode in ("fail", "warn", "off")
    }

    assert {mode: each.status() for mode, each in found.items()} == {"fail": 21, "warn": 0, "off": 0}
    assert found["fail"].verdicts == found["warn"].verdicts


# --- waivers ---


def waiver(number: int = 0, percent: float = 4.0, expires: datetime.date = TODAY) -> Waiver:
    """Return a waiver of a benchmark's device time."""
    return Waiver(pair(number), math.log1p(percent / 100), "new attention", "kim", expires)


def regressed(by: float = 2.5, **options: Any) -> GateSession:
    """Return a session in which the first benchmark is slower for the second night."""
    history = flat()
    history.append(night("held", *[moved(by)] * 3, marks={pair(0): Mark(Outcome.INCONCLUSIVE, (Reason.HELD,))}))
    found = session(history, night("tonight", *[moved(by)] * 3), **options)
    while found.plan():
        found.add(process(moved(by)))
    assert label(found) == "REGRESSED"
    return found


def faults(found: GateSession) -> list[str]:
    """Return what the controls say of waivers."""
    return [control.detail for control in found.controls if control.name == "waivers" and not control.passed]


def test_a_waiver_covers_a_regression_within_its_limit() -> None:
    """Until the end of its last day."""
    found = regressed(waivers=[waiver()])

    assert (
        found.status(),
        faults(found),
        [verdict.waived for verdict in found.verdicts if verdict.outcome is Outcome.REGRESSED],
    ) == (0, [], [True])


def test_a_waived_night_is_no_baseline() -> None:
    """Leave to be slower is no acceptance of the level: the history remembers REGRESSED."""
    assert Outcome.REGRESSED is regressed(waivers=[waiver()]).marks[pair(0)].outcome


def test_a_regression_beyond_its_waiver_blocks_and_says_so() -> None:
    """The limit is a limit."""
    found = regressed(5.0, waivers=[waiver()])
    verdict = next(verdict for verdict in found.verdicts if verdict.outcome is Outcome.REGRESSED)

    assert (found.status(), verdict.detail) == (20, "above its waiver's +4.00 %")


def test_an_expired_waiver_covers_nothing_and_is_named() -> None:
    """The day after its last one."""
    found = regressed(waivers=[waiver(expires=TODAY - datetime.timedelta(days=1))])
    (sentence,) = faults(found)

    assert "the waiver of op/mine/fp32/00 device_time_ns (new attention, kim) expired on 2027-01-30" in sentence
    assert found.status() == 20


def test_a_waiver_that_is_not_needed_is_an_error() -> None:
    """It would cover the next regression, which nobody has looked at."""
    found = session(flat(), night("tonight", *[LEVEL] * 3), waivers=[waiver()])
    (sentence,) = faults(found)

    assert "is not needed: the verdict is PASS; remove it" in sentence
    assert found.status() == 21


def test_a_waiver_of_nothing_is_an_error_of_a_whole_suite_only() -> None:
    """A part of the suite cannot know."""
    tonight = night("tonight", *[LEVEL] * 3)
    whole, part = (session(flat(), tonight, waivers=[waiver(77)], full_selection=each) for each in (True, False))

    assert "is for what neither the history nor this run has" in faults(whole)[0]
    assert [whole.status(), part.status()] == [21, 0]


# --- controls ---


def test_a_plant_that_is_not_seen_fails_the_session() -> None:
    """A gate that is asleep has not answered."""
    awake, asleep = (session(flat(), night("tonight", *[LEVEL] * 3)) for _ in range(2))
    assert awake.plant is not None
    for _ in range(5):
        awake.add_planted(awake.plant.size_ln)
        asleep.add_planted(0.0)

    assert [awake.status(), asleep.status()] == [0, 21]


def test_a_plant_is_where_the_benchmarks_own_clock_looks() -> None:
    """An iteration's device time is the profiler's, and quiet; a plant there is read on a wall clock, which is not."""
    tonight = night("tonight", *[LEVEL] * 3)
    quietest = session(flat(), tonight).plant
    assert quietest is not None
    wall = Pair(quietest.pair.key, "iteration_time_ns")

    def with_iteration(seen: Night, percent: float) -> Night:
        """Make the quietest benchmark a training iteration, whose wall time jumps beside its device time."""
        times = [1e6 * math.exp(percent / 100 * (run - 1)) for run in range(len(seen.screening))]
        return replace(
            seen, screening=[{**values, wall: time} for values, time in zip(seen.screening, times, strict=True)]
        )

    history = [with_iteration(each, 10 * (-1) ** at) for at, each in enumerate(flat())]
    beside = session(history, with_iteration(tonight, 10))
    assert beside.plant is not None
    assert (beside.plant.pair.metric, beside.plant.pair.key == wall.key) == ("device_time_ns", False)

    alone = [replace(each, screening=[{wall: 1e6, quietest.pair: 1e5}] * 3) for each in flat()]
    lonely = session(alone, alone[0]).plant
    assert lonely is not None
    assert lonely.pair == wall


def test_processes_that_disagree_fail_the_session() -> None:
    """Ten times the usual spread within a night: the machine is not the one that the history knows."""
    seed = np.random.default_rng(0)
    wild = [seed.normal(0, 1.0, 12).tolist() for _ in range(3)]
    found = session(flat(), night("tonight", *wild))

    assert [control.name for control in found.controls if not control.passed] == ["same arm device_time_ns"]


def test_one_wild_process_does_not_fail_the_session() -> None:
    """Of one benchmark, 14 % out: the history's own spread leaves such processes out as well."""
    found = session(flat(), night("tonight", moved(-14.0), LEVEL, LEVEL))

    assert [control.name for control in found.controls if not control.passed] == []


def test_unchanged_nights_are_counted() -> None:
    """Same software, same host: what such nights block is false, and pooled over nights a wrong bound shows."""
    quiet = session(flat(), night("tonight", *[LEVEL] * 3))
    changed = session(flat(), night("tonight", *[LEVEL] * 3, software={"torch": "2.12"}))
    bad = session(flat(), night("tonight", *[LEVEL] * 3), recall=Recall(unchanged=(Unchanged(2000, 400, 3),)))

    assert (Unchanged(12, 0, 0), None) == (quiet.unchanged, changed.unchanged)
    assert (quiet.status(), bad.status()) == (0, 21)


def test_the_record_of_a_night_holds_what_was_said() -> None:
    """Marks before waivers, the confirming processes, and the count."""
    found = regressed(waivers=[waiver()])

    assert (found.marks, found.evidence, found.unchanged) == (
        found.record.marks,
        found.record.evidence,
        found.record.unchanged,
    )
    assert len(found.record.evidence.tonight) == 5


def test_more_evidence_changes_the_verdict() -> None:
    """What was said before the last process is not kept."""
    found = session(flat(), night("tonight", *[moved(2.5)] * 3))
    seen: list[Mapping[Pair, Mark] | str] = [label(found)]
    while found.plan():
        found.add(process(moved(2.5)))
    seen.append(label(found))

    assert seen == ["INVALID(UNCONFIRMED)", "INCONCLUSIVE(HELD)"]
