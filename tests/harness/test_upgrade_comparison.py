"""Pairs of documents to verdicts of an upgrade, and processes to standings of candidates: from documents alone."""

import gzip
import json
import math
import random
import runpy
from pathlib import Path

import pytest

from fuseproof.gate.settings import GateSettings
from fuseproof.upgrade.absent import absent
from fuseproof.upgrade.bank import Trial
from fuseproof.upgrade.comparison import compare
from fuseproof.upgrade.standings import rank
from fuseproof.verdicts.contest import Place, judge_contest
from fuseproof.verdicts.verdict import Outcome, Pair

RULES = GateSettings().rules
DEVICE = "device_time_ns"
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def trial(book):
    """Return a maker of finished pairs of documents: metrics by key, old and new."""

    def make(number, old, new, *, gpu=0, spoiled=None, method=None, failures=None, failed=None, skipped=None):
        documents = {}
        for arm, metrics in (("old", old), ("new", new)):
            options = {"invalid": spoiled} if arm == "new" and spoiled else {}
            options |= {"method": method} if arm == "new" and method else {}
            document = book.document(metrics, **options)
            about = {"pair": number, "arm": arm, "gpu": gpu, "first": arm == "old", "seconds": 2.0, "failed": False}
            if arm == "new" and failures:
                about |= {"failed": True, "failures": failures}
            if arm in (failed or {}):
                about |= {"failed": True, "failed_tests": failed[arm]}
            if arm in (skipped or {}):
                about |= {"skipped_tests": skipped[arm]}
            documents[arm] = {**document, "upgrade": about}
        return Trial(number, gpu, "old", documents)

    return make


@pytest.fixture
def pairs(trial):
    """Return a maker of pairs in which the new environment's times are as much slower as is said of each key."""

    def make(count, slower, *, sigma=0.001, old=None, new=None, skip=()):
        walk = random.Random(1)
        found = []
        for number in range(count):
            drift = walk.gauss(1, 0.05)  # of both arms: a pair takes it out
            arms = []
            for others, factors in ((old, dict.fromkeys(slower, 1.0)), (new, slower)):
                kept = {key: factor for key, factor in factors.items() if number < 4 or key not in skip}
                arms.append(
                    {
                        key: {DEVICE: 1e5 * factor * drift * walk.gauss(1, sigma), **(others or {})}
                        for key, factor in kept.items()
                    }
                )
            found.append(trial(number, *arms))
        return found

    return make


def outcomes(comparison, metric=DEVICE):
    """Return the outcome of each key in one metric."""
    return {verdict.pair.key: verdict.label for verdict in comparison.verdicts if verdict.pair.metric == metric}


KEYS = [f"op/a/fp32/{number}" for number in range(10)]


def test_exactly_what_is_slower_is_regressed(pairs):
    """Two of ten by 3 %: these two, by their size, and nothing is left to run."""
    slower = dict.fromkeys(KEYS, 1.0) | {KEYS[3]: 1.03, KEYS[7]: 1.03}
    found = compare(pairs(8, slower), RULES)
    assert {KEYS[3]: "REGRESSED", KEYS[7]: "REGRESSED"} == {k: v for k, v in outcomes(found).items() if v != "PASS"}
    sizes = [verdict.effect_ln for verdict in found.verdicts if verdict.outcome is Outcome.REGRESSED]
    assert [math.log(1.03)] * 2 == pytest.approx(sizes, abs=0.003)
    assert not found.undecided


@pytest.mark.parametrize("factor", [1.06, 0.94], ids=["slower", "faster"])
def test_four_pairs_may_be_two_levels(pairs, factor):
    """A kernel on either of two levels shows 6 % in four pairs once in 256 times: they go on, and eight decide."""
    factors = dict.fromkeys(KEYS, 1.0) | {KEYS[3]: factor}
    four, eight = (compare(pairs(count, factors), RULES) for count in (4, 8))
    (doubtful,) = [each for each in four.verdicts if each.pair == Pair(KEYS[3], DEVICE)]
    said = "that may be two levels of one benchmark, which 4 pairs do not tell apart: 8 do"
    assert (doubtful.label, doubtful.detail) == ("INCONCLUSIVE(UNDECIDED)", said)
    assert {test for test in four.undecided if KEYS[3] in test} == four.undecided != frozenset()
    assert outcomes(eight)[KEYS[3]] == ("REGRESSED" if factor > 1 else "IMPROVED(FASTER)")


def test_no_two_levels_are_as_far_apart_as_that(pairs):
    """Slower by a third after four pairs is slower."""
    assert outcomes(compare(pairs(4, dict.fromkeys(KEYS, 1.0) | {KEYS[3]: 1.33}), RULES))[KEYS[3]] == "REGRESSED"


def test_faster_is_proven_as_slower_is(pairs):
    """Three percent faster is IMPROVED(FASTER); half a percent is within the tolerance, and PASS."""
    found = outcomes(compare(pairs(8, dict.fromkeys(KEYS, 1.0) | {KEYS[0]: 0.97, KEYS[1]: 0.995}), RULES))
    assert (found[KEYS[0]], found[KEYS[1]]) == ("IMPROVED(FASTER)", "PASS")


def test_the_noisy_go_on(pairs, trial):
    """Noise of 10 % decides nothing in four pairs: its test runs again, and that of no other benchmark."""
    calm = pairs(4, dict.fromkeys(KEYS, 1.0))
    walk = random.Random(2)
    wild = "op/a/fp32/wild"
    trials = []
    for each in calm:
        documents = [
            {record["key"]: record["metrics"] for record in map(record_of, each.documents[arm]["benchmarks"])}
            | {wild: {DEVICE: 1e5 * walk.gauss(1, 0.1)}}
            for arm in ("old", "new")
        ]
        trials.append(trial(each.number, *documents))
    found = compare(trials, RULES)
    assert outcomes(found)[wild] == "INCONCLUSIVE(UNDECIDED)"
    assert {f"t.py::test[{wild}]"} == found.undecided


def record_of(benchmark):
    """Return fuseproof's record of a benchmark."""
    return benchmark["extra_info"]["fuseproof"]


def test_a_verdict_does_not_change_with_later_pairs_of_others(pairs):
    """What was decided at the first look and not run again says the same after eight pairs."""
    slower = dict.fromkeys(KEYS, 1.0) | {KEYS[0]: 1.03}
    early, late = (compare(pairs(count, slower, skip=KEYS[:5]), RULES) for count in (4, 8))

    def said(comparison):
        return [v for v in comparison.verdicts if v.pair.key in KEYS[:5] and v.pair.metric == DEVICE]

    assert said(early) == said(late)


def test_the_error_is_shared_by_all_metrics(pairs):
    """A second metric of each benchmark makes the bound of the first one wider."""
    one = compare(pairs(4, dict.fromkeys(KEYS, 1.0), sigma=0.01), RULES)
    two = compare(
        pairs(4, dict.fromkeys(KEYS, 1.0), sigma=0.01, old={"iteration_time_ns": 5.0}, new={"iteration_time_ns": 5.0}),
        RULES,
    )
    bounds = [{v.pair: v.bound_ln for v in found.verdicts if v.pair.metric == DEVICE} for found in (one, two)]
    assert all(bounds[1][pair] > bounds[0][pair] for pair in bounds[0])


# --- what has no noise ------------------------------------------------------------------------------------------------

MiB = 2**20


@pytest.mark.parametrize(
    ("old", "new", "label"),
    [
        ({"launches": 4}, {"launches": 5}, "REGRESSED(EXACT)"),
        ({"launches": 5}, {"launches": 4}, "IMPROVED(EXACT)"),
        ({"launches": 5}, {"launches": 5}, "PASS"),
        ({"peak_bytes": 100 * MiB}, {"peak_bytes": 102 * MiB}, "REGRESSED(EXACT)"),
        ({"peak_bytes": 100 * MiB}, {"peak_bytes": 101 * MiB}, "PASS"),
        ({"peak_bytes": 100 * MiB}, {"peak_bytes": 90 * MiB}, "IMPROVED(EXACT)"),
        ({"kernels_hash": "aa"}, {"kernels_hash": "bb"}, "PASS(EXACT)"),
        ({"kernels_hash": "aa"}, {"kernels_hash": "aa"}, "PASS"),
    ],
)
def test_exact_metrics(pairs, old, new, label):
    """Launches exactly, memory beyond its margin; other kernels are told and neither worse nor better."""
    found = compare(pairs(4, {KEYS[0]: 1.0}, old=old, new=new), RULES)
    assert {KEYS[0]: label} == outcomes(found, next(iter(old)))


def test_a_difference_in_some_processes_only(pairs, trial):
    """Launches that vary from process to process are not known."""
    trials = [trial(n, {KEYS[0]: {"launches": 4}}, {KEYS[0]: {"launches": 4 + n % 2}}) for n in range(4)]
    assert {KEYS[0]: "INCONCLUSIVE(UNSTABLE)"} == outcomes(compare(trials, RULES), "launches")


def test_other_kernels_are_named(pairs):
    """The detail says which are gone and which have come, with their counts."""
    trials = pairs(4, {KEYS[0]: 1.0}, old={"kernels_hash": "aa"}, new={"kernels_hash": "bb"})
    for each in trials:
        for arm, names in (("old", {"add": 2, "mul": 1}), ("new", {"fused": 1, "mul": 1})):
            record_of(each.documents[arm]["benchmarks"][0])["kernels"] = names
    (verdict,) = (v for v in compare(trials, RULES).verdicts if v.pair.metric == "kernels_hash")
    assert verdict.detail == "other kernels: no longer add (2); now fused (1)"


# --- what cannot be compared ------------------------------------------------------------------------------------------


def test_a_benchmark_of_one_environment_only(trial):
    """Gone in the new one: MISSING. Only there: NEW. Neither runs again."""
    both = {DEVICE: 1e5}
    trials = [
        trial(n, {KEYS[0]: both, "op/gone/fp32/1": both}, {KEYS[0]: both, "op/come/fp32/1": both}) for n in range(4)
    ]
    found = compare(trials, RULES)
    assert {KEYS[0]: "PASS", "op/gone/fp32/1": "MISSING", "op/come/fp32/1": "NEW(NO_BASELINE)"} == outcomes(found)
    assert found.durations[Pair("op/gone/fp32/1", DEVICE)] == (1e5, None)
    assert not found.undecided


def test_what_must_not_be_judged_is_left_out(trial):
    """One spoiled pair of four: it is not used, and told; four of four: INVALID with the reason, and not run again."""
    metrics = {KEYS[0]: {DEVICE: 1e5}, KEYS[1]: {DEVICE: 1e5}}
    hot = {KEYS[1]: ["the GPU was throttled"]}
    once = compare([trial(n, metrics, metrics, spoiled=hot if n == 2 else None) for n in range(4)], RULES)
    assert {KEYS[0]: "PASS", KEYS[1]: "INCONCLUSIVE(UNDECIDED)"} == outcomes(once)
    assert [f"{KEYS[1]}: 1 pair(s) not used: the GPU was throttled"] == once.notes
    assert {f"t.py::test[{KEYS[1]}]"} == once.undecided
    always = compare([trial(n, metrics, metrics, spoiled=hot) for n in range(4)], RULES)
    assert {KEYS[0]: "PASS", KEYS[1]: "INVALID(MEASUREMENT)"} == outcomes(always)
    assert not always.undecided


def test_another_method_is_not_compared(trial):
    """Another clock or round count in the new environment: INVALID, whatever the times."""
    metrics = {KEYS[0]: {DEVICE: 1e5}}
    found = compare([trial(n, metrics, metrics, method="ffff") for n in range(4)], RULES)
    assert {KEYS[0]: "INVALID(MEASUREMENT)"} == outcomes(found)


def test_a_value_of_zero_is_invalid(trial):
    """A time of nothing has no logarithm."""
    found = compare([trial(n, {KEYS[0]: {DEVICE: 1e5}}, {KEYS[0]: {DEVICE: 0.0}}) for n in range(4)], RULES)
    assert {KEYS[0]: "INVALID(BAD_VALUE)"} == outcomes(found)


def test_failed_tests_are_told(trial):
    """The arm, the pairs, and the first test with its words; pytest's last words where no test is known."""
    metrics = {KEYS[0]: {DEVICE: 1e5}}
    trials = [trial(n, metrics, metrics, failures="1 failed" if n < 2 else None) for n in range(4)]
    assert compare(trials, RULES).notes == ["new, pair 1, 2: a test failed: 1 failed"]
    named = {"new": {"t.py::b": "E + where", "t.py::a": "it is wrong"}}
    trials = [trial(n, metrics, metrics, failures="E + where", failed=named if n < 2 else None) for n in range(2)]
    assert compare(trials, RULES).notes == ["new, pair 1, 2: t.py::a and 1 more failed: it is wrong"]


GONE = "t.py::test[op/gone/fp32/1]"


@pytest.mark.parametrize(
    ("failed", "detail"),
    [
        ({"old": {GONE: "off by 5"}, "new": {GONE: "off by 500"}}, "its test fails in old and new: off by 500"),
        ({"old": {GONE: "off by 5"}}, "its test fails in old: off by 5"),
        ({"new": {GONE: "off by 500"}}, "its test fails in new: off by 500"),
    ],
    ids=["both", "old_and_skipped", "new_and_skipped"],
)
@pytest.mark.parametrize("times", [4, 1], ids=["always", "once"])
def test_a_benchmark_that_fails_and_is_measured_nowhere_is_not_left_out(trial, failed, detail, times):
    """It was asked for: INVALID with the test and what it says, and no other pair is run for it."""
    metrics = {KEYS[0]: {DEVICE: 1e5}}
    found = compare([trial(n, metrics, metrics, failed=failed if n < times else None) for n in range(4)], RULES)
    assert outcomes(found, "test") == {GONE: "INVALID(FAILED)"}
    assert (found.verdicts[0].detail, outcomes(found)) == (detail, {KEYS[0]: "PASS"})
    assert not found.undecided


def test_failures_that_other_verdicts_tell(trial):
    """Gone in the new one: MISSING with the reason. Only right there, or failing at times in the old one: nothing."""
    one, two = {KEYS[0]: {DEVICE: 1e5}}, {KEYS[0]: {DEVICE: 1e5}, "op/gone/fp32/1": {DEVICE: 1e5}}
    gone = compare([trial(n, two, one, failed={"new": {GONE: "off"}}) for n in range(4)], RULES)
    come = compare([trial(n, one, two, failed={"old": {GONE: "off"}}) for n in range(4)], RULES)
    once = compare(
        [trial(n, two if n else one, two, failed={"old": {GONE: "off"}} if not n else None) for n in range(5)], RULES
    )
    assert (outcomes(gone)["op/gone/fp32/1"], outcomes(come)["op/gone/fp32/1"]) == ("MISSING", "NEW(NO_BASELINE)")
    assert gone.verdicts[0].detail == "old measures it, new does not: its test fails in new: off"
    assert [outcomes(each, "test") for each in (gone, come, once)] == [{}] * 3


def test_a_test_that_fails_at_times_in_the_new_one(trial):
    """Its times may be equal: what fails there now and then and did not before is no PASS."""
    one, two = {KEYS[0]: {DEVICE: 1e5}}, {KEYS[0]: {DEVICE: 1e5}, "op/gone/fp32/1": {DEVICE: 1e5}}
    trials = [trial(n, two, two if n else one, failed=None if n else {"new": {GONE: "off"}}) for n in range(5)]
    assert outcomes(compare(trials, RULES), "test") == {GONE: "INVALID(FAILED)"}


@pytest.mark.parametrize(
    ("skipped", "reason"),
    [
        ({"old": {GONE: "no Apex"}, "new": {GONE: "no Apex"}}, "no Apex"),
        ({"old": {GONE: "no Apex"}, "new": {GONE: "2 GiB are free"}}, "old: no Apex; new: 2 GiB are free"),
        ({"new": {GONE: "no Apex"}}, "old: no such test; new: no Apex"),
        ({"old": {"u.py": "no Apex"}, "new": {"u.py": "no Apex"}}, "no Apex"),
    ],
    ids=["both", "for_other_reasons", "and_not_there", "a_whole_file"],
)
def test_what_is_skipped_in_both_is_told(trial, skipped, reason):
    """Asked for and compared by nobody: its test and the first pair's reason; no verdict, and no other pair for it."""
    metrics = {KEYS[0]: {DEVICE: 1e5}}
    found = compare([trial(n, metrics, metrics, skipped=None if n else skipped) for n in range(4)], RULES)
    (group,) = found.skipped
    assert (group.reason, group.tests) == (reason, tuple(next(iter(skipped.values()))))
    assert outcomes(found) == {KEYS[0]: "PASS"}
    assert not found.undecided


def test_reasons_to_skip_are_counted(trial):
    """One group for each reason, the most frequent one first."""
    metrics, skipped = {KEYS[0]: {DEVICE: 1e5}}, {"a": "no Apex", "b": "too small", "c": "too small"}
    found = compare([trial(0, metrics, metrics, skipped={"old": skipped, "new": skipped})], RULES)
    assert [(each.reason, each.tests) for each in found.skipped] == [("too small", ("b", "c")), ("no Apex", ("a",))]


@pytest.mark.parametrize("place", [GONE, "t.py"], ids=["test", "whole_file"])
def test_what_is_skipped_in_one_and_measured_in_the_other(trial, place):
    """Gone in the new one: MISSING. Come: NEW. Both with the reason, and neither counts as skipped in both."""
    one, two = {}, {"op/gone/fp32/1": {DEVICE: 1e5}}
    gone = compare([trial(n, two, one, skipped={"new": {place: "no Apex"}}) for n in range(4)], RULES)
    come = compare([trial(n, one, two, skipped={"old": {place: "no Apex"}}) for n in range(4)], RULES)
    said = [(each.verdicts[0].label, each.verdicts[0].detail) for each in (gone, come)]
    assert said == [
        ("MISSING", "old measures it, new does not: its test is skipped in new: no Apex"),
        ("NEW(NO_BASELINE)", "only new measures it: its test is skipped in old: no Apex"),
    ]
    assert not [*gone.skipped, *come.skipped]


def test_what_fails_or_is_measured_somewhere_is_not_skipped(trial):
    """Skipped in one pair and measured in the next, or skipped here and failing there: other words tell it."""
    one, two = {KEYS[0]: {DEVICE: 1e5}}, {KEYS[0]: {DEVICE: 1e5}, "op/gone/fp32/1": {DEVICE: 1e5}}
    both = {"old": {GONE: "busy"}, "new": {GONE: "busy"}}
    later = compare([trial(n, *[two if n else one] * 2, skipped=None if n else both) for n in range(5)], RULES)
    fails = compare([trial(0, one, one, skipped={"old": {GONE: "busy"}}, failed={"new": {GONE: "off"}})], RULES)
    assert not [*later.skipped, *fails.skipped]
    assert outcomes(fails, "test") == {GONE: "INVALID(FAILED)"}


def test_nothing_measured_is_no_crash():
    """No pair at all: nothing said, nothing to run."""
    found = compare([], RULES)
    assert ([], frozenset()) == (list(found.verdicts), found.undecided)


# --- dealt anew -------------------------------------------------------------------------------------------------------


def test_a_bank_of_one_environment_in_other_pairs(pairs, trial):
    """Every process is in exactly one pair, of one GPU; other ways are other pairs; all of them pass."""
    tool = runpy.run_path(str(DOCS / "upgrade_bank.py"))
    trials = [
        Trial(each.number, each.number % 2, each.first, each.documents) for each in pairs(10, dict.fromkeys(KEYS, 1.0))
    ]
    dealt = tool["dealt"](trials, 1)

    def processes(some, gpu=None):
        return sorted(id(d) for each in some if gpu in (None, each.gpu) for d in each.documents.values())

    assert processes(trials) == processes(dealt)
    assert processes(trials, 1) == processes(dealt, 1)
    assert [d.documents for d in dealt] == [d.documents for d in tool["dealt"](trials, 1)]
    assert [d.documents for d in dealt] != [d.documents for d in tool["dealt"](trials, 2)]


def test_banks_of_an_unchanged_environment_pass(trial):
    """Eight ways to deal twenty processes: nothing is REGRESSED."""
    walk = random.Random(3)

    def metrics():
        return {key: {DEVICE: 1e5 * walk.gauss(1, 0.001)} for key in KEYS}

    bank = [trial(number, metrics(), metrics()) for number in range(10)]
    tool = runpy.run_path(str(DOCS / "upgrade_bank.py"))
    said = dict(tool["judged"](bank, 8))
    assert len(said) == 9
    assert {"PASS"} == {label for comparison in said.values() for label in outcomes(comparison).values()}
    line = "REGRESSED 0, PASS 10 of 10 gateable, undecided 0 of 10 times; the rest: nothing judged"
    assert {line} == {tool["counted"](comparison, 10) for comparison in said.values()}


def test_gateable_is_said_of_all_pairs(trial):
    """Noise of 1 %: of so few pairs nobody could find 2 %, whoever passes by luck; of quiet ones already four can."""
    tool = runpy.run_path(str(DOCS / "upgrade_bank.py"))
    walk = random.Random(6)
    bank = [trial(n, *({key: {DEVICE: 1e5 * walk.gauss(1, 0.01)} for key in KEYS} for _ in "ab")) for n in range(8)]
    assert "0 of 0 gateable" in tool["counted"](compare(bank, RULES), 8)
    decided = compare(bank[:4], RULES).verdicts[0]
    assert tool["mde_ln"](decided, 24, 0.00995) < tool["mde_ln"](decided, 8, 0.00995) < decided.mde_ln


@pytest.mark.parametrize("visit", ["one", "two"])
def test_an_h200_beside_itself_is_never_slower(visit):
    """Sixteen processes of one environment on two GPUs, as they ran and dealt anew eight times: none is REGRESSED."""
    with gzip.open(DOCS / "data" / "gate-h200-20261129.jsonl.gz", "rt", encoding="utf-8") as lines:
        measured = dict(map(json.loads, lines))
    arms = {"A": "old", "B": "new"}
    found = {}
    for name, document in measured.items():
        about = document["process"]
        for benchmark in document["benchmarks"]:
            benchmark["fullname"] = record_of(benchmark)["key"]
        if name.startswith("aa-") and about["visit"] == visit:
            arm = {arms[about["copy"]]: {**document, "upgrade": {"failed": False, "seconds": about["seconds"]}}}
            found.setdefault((name[:-1], int(about["gpu"])), {}).update(arm)
    trials = [Trial(number, gpu, "old", arm) for number, ((_, gpu), arm) in enumerate(sorted(found.items()))]
    assert len(trials) == 8
    tool = runpy.run_path(str(DOCS / "upgrade_bank.py"))
    for way, comparison in tool["judged"](trials, 8):
        outcomes = {verdict.outcome for verdict in comparison.verdicts}
        assert Outcome.PASS in outcomes, way
        assert Outcome.REGRESSED not in outcomes, way


# --- standings --------------------------------------------------------------------------------------------------------


@pytest.fixture
def races(book):
    """Return a maker of processes that measured candidates; times by candidate, in microseconds, by metric."""

    def make(count, times, *, sigma=0.0005, op="adam_step", more=None, spoiled=None):
        walk = random.Random(4)
        trials = []
        for number in range(count):
            drift = walk.gauss(1, 0.1)
            metrics = {}
            for name, us in times.items():
                for shape in range(10):
                    own = {m: 1000 * v * drift * walk.gauss(1, sigma) for m, v in us.items()}
                    metrics[f"{op}/{name}/fp32/{shape}"] = own | (more or {}).get(name, {})
            document = book.document(metrics, invalid=spoiled)
            about = {"pair": number, "arm": "here", "gpu": 0, "first": True, "seconds": 1.0, "failed": False}
            trials.append(Trial(number, 0, "here", {"here": {**document, "upgrade": about}}))
        return trials

    return make


def places(standings, metric=DEVICE):
    """Return the set of answers to each challenger."""
    found = {}
    for row in standings.rows:
        if row.metric == metric:
            found.setdefault(row.challenger, set()).add(row.standing.place)
    return found


ONE_PERCENT = math.log(1.01)


def test_who_is_faster_slower_equal(races):
    """Against the first that is named: 10 % faster, 5 % slower, 0.2 % apart; the process's drift does not matter."""
    times = {"a": 100, "fast": 90, "slow": 105, "even": 100.2}
    found = rank(races(8, {name: {DEVICE: us} for name, us in times.items()}), list(times), RULES, ONE_PERCENT)
    assert {"fast": {Place.FASTER}, "slow": {Place.SLOWER}, "even": {Place.EQUAL}} == places(found)
    assert (0, frozenset()) == (found.status, found.undecided)


def test_the_undecided_run_again_with_whom_they_are_compared(races):
    """Half a percent under 1 % of noise: both tests are run again, and the status says that it is not known."""
    found = rank(races(4, {"a": {DEVICE: 100}, "b": {DEVICE: 100.5}}, sigma=0.01), ["a", "b"], RULES, ONE_PERCENT)
    assert {Place.UNDECIDED} == places(found)["b"]
    assert {f"t.py::test[adam_step/{name}/fp32/{shape}]" for name in "ab" for shape in range(10)} == found.undecided
    assert found.status == 21


def test_a_candidate_that_fails_is_no_silence(races):
    """Its benchmark is not measured: which test, and what it says; who is faster among the others is not the answer."""
    trials = races(8, {"a": {DEVICE: 100}, "b": {DEVICE: 90}})
    for each in trials:
        each.documents["here"]["upgrade"] |= {"failed": True, "failed_tests": {GONE: "off by 5"}}
    found = rank(trials, ["a", "b"], RULES, ONE_PERCENT)
    assert (found.status, found.notes) == (21, [f"{GONE} fails: off by 5"])
    assert {"b": {Place.FASTER}} == places(found)


def test_a_benchmark_that_is_skipped_is_told(races):
    """A shape at which nobody was measured has no row: how many there are, and why."""
    trials = races(8, {"a": {DEVICE: 100}, "b": {DEVICE: 90}})
    for each in trials:
        each.documents["here"]["upgrade"] |= {"skipped_tests": {GONE: "no Apex"}}
    found = rank(trials, ["a", "b"], RULES, ONE_PERCENT)
    assert (found.status, found.notes) == (0, ["1 skipped: no Apex"])


def test_host_time_is_told_and_not_waited_for(races):
    """It has a row of its own, and its noise keeps nothing going."""
    walk = random.Random(5)
    trials = races(8, {"a": {DEVICE: 100}, "b": {DEVICE: 110}})
    for each in trials:
        for benchmark in each.documents["here"]["benchmarks"]:
            record_of(benchmark)["metrics"]["host_time_ns"] = 1e4 * walk.lognormvariate(0, 0.3)
    found = rank(trials, ["a", "b"], RULES, ONE_PERCENT)
    assert {Place.UNDECIDED} == places(found, "host_time_ns")["b"]
    assert (0, frozenset()) == (found.status, found.undecided)


def test_memory_stands_beside(races):
    """Peak memory and launches are shown, with no standing."""
    more = {"a": {"peak_bytes": 100, "launches": 1}, "b": {"peak_bytes": 200, "launches": 2}}
    found = rank(races(4, {"a": {DEVICE: 100}, "b": {DEVICE: 90}}, more=more), ["a", "b"], RULES, ONE_PERCENT)
    rows = {row.metric: row.values for row in found.rows if row.benchmark == "adam_step/fp32/0"}
    assert (rows["peak_bytes"], rows["launches"]) == ((100, 200), (1, 2))


@pytest.mark.parametrize(
    ("mib", "more"),
    [pytest.param(100.9, 0, id="within-the-margin"), pytest.param(102, 1, id="more"), pytest.param(98, -1, id="less")],
)
def test_memory_is_compared_by_the_gates_margin(races, mib, more):
    """Under 1 MiB and 0.5 % apart is the same: some bytes of padding win nothing."""
    values = {"a": {"peak_bytes": 100 * 2**20}, "b": {"peak_bytes": int(mib * 2**20)}}
    found = rank(races(4, {"a": {DEVICE: 100}, "b": {DEVICE: 90}}, more=values), ["a", "b"], RULES, ONE_PERCENT)
    assert {more} == {row.more for row in found.rows if row.metric == "peak_bytes"}


def test_stages_are_compared_between_kernel_sets(races):
    """The key of a stage is `iteration/stage@set/...`: its set is the contestant."""
    times = {"4_amp@a": {"iteration_time_ns": 1000}, "4_amp@b": {"iteration_time_ns": 900}}
    found = rank(races(8, times, op="iteration"), ["a", "b"], RULES, ONE_PERCENT)
    assert {"b": {Place.FASTER}} == places(found, "iteration_time_ns")
    assert {f"iteration/4_amp/fp32/{shape}" for shape in range(10)} == {row.benchmark for row in found.rows}


def test_invalid_processes_are_left_out(races):
    """Always invalid: told, not waited for, and not known."""
    spoiled = {f"adam_step/b/fp32/{shape}": ["host-bound"] for shape in range(10)}
    found = rank(races(4, {"a": {DEVICE: 100}, "b": {DEVICE: 90}}, spoiled=spoiled), ["a", "b"], RULES, ONE_PERCENT)
    assert (21, frozenset()) == (found.status, found.undecided)
    assert {"b": {Place.UNDECIDED}} == places(found)
    assert "adam_step/b/fp32/0 beside adam_step/a/fp32/0: 4 process(es) not used: host-bound" in found.notes


# --- the contest's error rates ----------------------------------------------------------------------------------------


def contest(ratios, tests=None):
    """Return the place of each challenger, by its number."""
    named = {Pair(f"op/b/fp32/{number:03d}", DEVICE): values for number, values in enumerate(ratios)}
    durations = dict.fromkeys(named, math.log(1e5))
    return [
        standing.place
        for standing in judge_contest(
            named, durations, tolerance_ln=ONE_PERCENT, resolution_ns=0.0, tests=tests or len(named)
        )
    ]


def normals(seed, suites, level=0.0, sigma=0.01, count=24, width=40):
    """Return ratios of suites in which nothing differs but by chance."""
    walk = random.Random(seed)
    return [[[walk.gauss(level, sigma) for _ in range(count)] for _ in range(width)] for _ in range(suites)]


def test_no_winner_among_equals():
    """All looks, 150 suites of 40 races between equals under 1 % of noise: in at most 3 % of suites somebody wins."""
    wins = [any(place in (Place.FASTER, Place.SLOWER) for place in contest(suite)) for suite in normals(1, 150)]
    assert sum(wins) <= 0.03 * len(wins)  # 1 % is promised; 3 % of 150 is exceeded by chance once in 50 such tests


def test_equal_is_a_proof():
    """A candidate that is slower by exactly the tolerance is called equal in at most 5 % of races."""
    places_found = [place for suite in normals(2, 25, level=ONE_PERCENT, sigma=0.004) for place in contest(suite)]
    assert places_found.count(Place.EQUAL) <= 0.05 * len(places_found)


def test_both_directions_are_alike():
    """Exchanging the two turns every faster into slower, and leaves the rest."""
    swap = {Place.FASTER: Place.SLOWER, Place.SLOWER: Place.FASTER}
    suite = [values for level in (-0.03, 0.0, 0.008, 0.02) for values in normals(3, 1, level=level, width=10)[0]]
    here, there = contest(suite), contest([[-value for value in values] for values in suite])
    assert [swap.get(place, place) for place in here] == there
    assert {Place.FASTER, Place.SLOWER, Place.EQUAL} <= set(here)


def test_a_standing_stays():
    """What four processes have decided is not taken back, whatever the next ones say."""
    calm = [[0.0, 0.001, -0.001, 0.0] for _ in range(8)]
    far = [0.35, 0.351, 0.349, 0.35]
    assert contest([far, *calm]) == contest([[*far, *[0.0] * 20], *calm]) == [Place.SLOWER, *[Place.EQUAL] * 8]


def test_four_processes_may_be_two_levels():
    """A ratio of 5 % needs eight."""
    calm = [[0.0, 0.001, -0.001, 0.0] for _ in range(8)]
    near = [0.05, 0.051, 0.049, 0.05]
    assert contest([near, *calm]) == [Place.UNDECIDED, *[Place.EQUAL] * 8]
    assert contest([near * 2, *calm]) == [Place.SLOWER, *[Place.EQUAL] * 8]


def test_a_ratio_that_is_no_number_decides_nothing():
    """It is undecided, and the others are judged."""
    calm = [[0.0, 0.001, -0.001, 0.0] for _ in range(8)]
    assert contest([[math.nan] * 4, *calm]) == [Place.UNDECIDED, *[Place.EQUAL] * 8]


def test_why_a_named_candidate_has_no_benchmark(trial):
    """Its record's own reason; none of a candidate that was measured; of no process nobody knows."""
    ran = trial(0, *[{"adam_step/torch_fused/fp32/tiny": {DEVICE: 1e5}}] * 2)
    (apex,) = absent([ran], ("apex_master", "torch_fused"), "cpu")
    (loop,) = absent([ran], ("torch_loop", "torch_fused"), "cpu")

    assert apex.startswith("apex_master has no benchmark here: apex_master has no CPU kernel")
    assert "torch_loop has no benchmark here: none of its benchmarks is selected" in loop
    assert not absent([], ("apex_master",), "cpu")
