"""What holds for every suite: units and order do not matter, worse is never judged better, nothing is not slow."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseproof.verdicts import bounds, noise
from fuseproof.verdicts.looks import LOOKS, judge_looks, look, remaining
from fuseproof.verdicts.night import Kind, Night, Rule
from fuseproof.verdicts.nightly import Evidence, judge, screen
from fuseproof.verdicts.verdict import Outcome, Pair, Reason

RULES = (Rule("device_time_ns", Kind.STOCHASTIC, tolerance_ln=0.01),)
FLOOR = 1e-12
PERCENT = 0.01


def pair(benchmark):
    """Return the pair of a benchmark by its number."""
    return Pair(f"op/candidate/fp32/{benchmark:02d}", "device_time_ns")


def suite(seed, benchmarks=12, nights=7, shift=0.0):
    """Return (history, tonight, evidence) of a random suite; benchmark 0 is slower by `shift` tonight.

    Seven nights are too few for an anchor, so there is no creep.
    """
    rng = np.random.default_rng(seed)
    durations = np.exp(rng.uniform(10, 17, benchmarks))
    sigmas = rng.choice([0.1, 0.2, 0.4, 1.0], benchmarks) * PERCENT

    def process(name_shift=0.0):
        logs = sigmas * rng.standard_normal(benchmarks) + rng.normal(0, 0.1 * PERCENT)
        logs[0] += name_shift
        return {pair(b): float(value) for b, value in enumerate(durations * np.exp(logs))}

    history = [Night(f"night{k}", [process()], confirming=[process(), process(), process()]) for k in range(nights)]
    tonight = Night("tonight", [process(shift)])
    arms = [(process(shift), process()) for _ in range(15)]
    return history, tonight, Evidence(tuple(new for new, _ in arms), tuple(old for _, old in arms))


def verdicts(history, tonight, evidence, paired):
    """Return the verdicts by pair."""
    return {verdict.pair: verdict for verdict in judge(screen(history, tonight, rules=RULES, paired=paired), evidence)}


def mapped(change, history, tonight, evidence):
    """Apply a change to each process's values, tonight's and the history's."""

    def night(each):
        arms = ([change(values) for values in arm] for arm in (each.screening, each.confirming, each.trusted))
        return Night(each.name, *arms)

    arms = (tuple(change(values) for values in arm) for arm in (evidence.tonight, evidence.trusted))
    return [night(each) for each in history], night(tonight), Evidence(*arms)


def assert_same(expected, seen):
    """Same verdicts with the same numbers, up to rounding."""
    assert expected.keys() == seen.keys()
    for each, verdict in expected.items():
        assert verdict.label == seen[each].label
        for name in ("effect_ln", "bound_ln", "mde_ln", "nights", "nu"):
            assert getattr(verdict, name) == pytest.approx(getattr(seen[each], name), rel=1e-6, abs=1e-9)


SEEDS = st.integers(0, 2**32 - 1)
SHIFTS = st.sampled_from([0.0, 0.01, 0.02, 0.05])


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shift=SHIFTS, factor=st.floats(1e-3, 1e3), paired=st.booleans())
def test_times_in_another_unit_change_nothing(seed, shift, factor, paired):
    """Every time multiplied by the same number: same verdicts, same numbers."""
    night = suite(seed, shift=shift)
    scaled = mapped(lambda values: {each: value * factor for each, value in values.items()}, *night)

    assert_same(verdicts(*night, paired), verdicts(*scaled, paired))


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shift=SHIFTS, order=st.permutations(range(12)), paired=st.booleans())
def test_names_and_order_of_benchmarks_change_nothing(seed, shift, order, paired):
    """Benchmarks in another order, under other names: each keeps its verdict."""
    night = suite(seed, shift=shift)
    renamed = {pair(b): pair(order[b]) for b in range(12)}
    shuffled = mapped(lambda values: {renamed[each]: values[each] for each in reversed(values)}, *night)
    expected = {renamed[each]: verdict for each, verdict in verdicts(*night, paired).items()}

    assert_same(expected, verdicts(*shuffled, paired))


@settings(max_examples=25, deadline=None)
@given(seed=SEEDS, shift=SHIFTS, order=st.permutations(range(7)), paired=st.booleans())
def test_order_of_nights_changes_nothing(seed, shift, order, paired):
    """Without creep a baseline has no order."""
    history, tonight, evidence = suite(seed, shift=shift)

    assert_same(
        verdicts(history, tonight, evidence, paired), verdicts([history[k] for k in order], tonight, evidence, paired)
    )


def severity(verdict):
    """Rank a verdict by what it stops."""
    if verdict.outcome is Outcome.REGRESSED:
        return 3
    return 2 if Reason.HELD in verdict.reasons else int(Reason.NOT_PROVEN in verdict.reasons)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, shift=st.floats(0, 0.05), more=st.floats(0, 0.05), paired=st.booleans())
def test_slower_is_never_judged_better(seed, shift, more, paired):
    """Raising tonight and its confirmations never lowers the verdict."""
    low, high = (verdicts(*suite(seed, shift=each), paired)[pair(0)] for each in (shift, shift + more))

    assert severity(low) <= severity(high)


@settings(max_examples=40, deadline=None)
@given(
    seed=SEEDS,
    value=st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.none(), st.text(max_size=5), st.integers()),
    where=st.sampled_from(["history", "all of it", "tonight", "evidence"]),
    paired=st.booleans(),
)
def test_no_value_breaks_the_gate(seed, value, where, paired):
    """Whatever stands for a time, there is a verdict on every pair, and no number in it is NaN."""
    history, tonight, evidence = suite(seed, shift=0.05)
    spoil = lambda values: {**values, pair(0): value}  # noqa: E731
    if where == "history":
        history = [Night("poisoned", [spoil(history[0].screening[0])], confirming=[spoil({})]), *history[1:]]
    elif where == "all of it":
        history = [Night(night.name, [spoil(night.screening[0])], confirming=[spoil({})]) for night in history]
    elif where == "tonight":
        tonight = Night("tonight", [spoil(tonight.screening[0])])
    else:
        evidence = Evidence(tuple(map(spoil, evidence.tonight)), tuple(map(spoil, evidence.trusted)))
    seen = verdicts(history, tonight, evidence, paired)

    assert {pair(b) for b in range(12)} <= seen.keys()
    for verdict in seen.values():
        numbers = [verdict.effect_ln, verdict.bound_ln, verdict.mde_ln, verdict.nu, *(verdict.interval_ln or ())]
        assert not any(number is not None and math.isnan(number) for number in numbers)
        assert verdict.message


# --- the null: nothing has changed ---

SIGMAS = np.tile([0.1, 0.2, 0.4, 1.0], 75) * PERCENT


def contaminated(rng, shape):
    """Return normals of which 5 % lie four times as far out, as processes do."""
    return rng.standard_normal(shape) * np.where(rng.random(shape) < 0.05, 4, 1)


def null_nights(rng, suites, nights, sigma_night):
    """Return the effects of nights: common and own, each like the night before with correlation 0.5."""
    common, own = (sigma_night * rng.standard_normal((suites, nights, n)) for n in (1, len(SIGMAS)))
    for k in range(1, nights):
        for part in (common, own):
            part[:, k] = 0.5 * part[:, k - 1] + math.sqrt(0.75) * part[:, k]
    return common + own


def decide(rng, suites, nights=8, sigma_night=0.2 * PERCENT):
    """Return (blocking suites, share above the 5 % limit) of one unpaired night of 300 unchanged benchmarks."""
    effects = null_nights(rng, suites, nights + 1, sigma_night)
    sigma = SIGMAS * np.exp(0.3 * rng.standard_normal((suites, 1, len(SIGMAS))))
    x = effects[:, :nights] + sigma * contaminated(rng, (suites, nights, len(SIGMAS)))
    y = effects[:, nights] + sigma[:, 0] * contaminated(rng, (suites, len(SIGMAS)))
    z = effects[:, nights] + np.median(sigma * contaminated(rng, (suites, 5, len(SIGMAS))), axis=1)
    durations = np.log(SIGMAS)
    base = noise.between_nights(x)
    variance, nu = noise.shrunken(base.residuals_ln, nights - 1.0, durations, np.full(len(SIGMAS), FLOOR))
    limits = bounds.unpaired_limits(variance, nu, nights - 1.0, nights, len(SIGMAS), 0.01)
    shift = y - base.center_ln
    _, clipped = bounds.clip_common(shift, base.sd_common_ln)
    above = shift - clipped > noise.student(bounds.SCREEN_TAIL, nu) * limits.sd
    blocked = (shift - clipped > limits.screen) & (z - base.center_ln - clipped > limits.block)
    return blocked.any(1).sum(), above.mean()


def test_two_thousand_unchanged_suites():
    """Nothing has changed: at most 1 % of the suites block; 5 % +- 1 of the benchmarks pass the one-sided 5 % limit."""
    rng = np.random.default_rng(20261129)
    chunks = [decide(rng, 250) for _ in range(8)]

    assert sum(blocked for blocked, _ in chunks) <= 0.01 * 2000
    assert pytest.approx(np.mean([share for _, share in chunks]), abs=0.01) == 0.05


# --- upgrade ---


def differences(rng, shift, pairs=24, benchmarks=50):
    """Return pair differences by benchmark."""
    sigmas = np.resize([0.1, 0.2, 0.4], benchmarks) * PERCENT * math.sqrt(2)
    values = shift + sigmas * rng.standard_normal((pairs, benchmarks))
    return {pair(b): values[:, b].tolist() for b in range(benchmarks)}, {pair(b): 15.0 for b in range(benchmarks)}


@pytest.mark.parametrize(("percent", "outcome"), [(0.0, Outcome.PASS), (3.0, Outcome.REGRESSED)])
def test_upgrade_is_decided_by_the_last_look(percent, outcome):
    """No change is proven equal, 3 % is proven slower, each benchmark at its own look."""
    values, durations = differences(np.random.default_rng(1), percent * PERCENT)
    found = judge_looks(values, durations, tolerance_ln=0.01)

    assert {outcome} == {verdict.outcome for verdict in found}
    assert {verdict.processes for verdict in found} <= set(LOOKS)
    assert remaining(found) == ()


def test_upgrade_stops_the_decided_and_goes_on_with_the_others():
    """A verdict of an early look stands while the others get more pairs."""
    values, durations = differences(np.random.default_rng(2), 0.0)
    noisy = [(-1) ** k * 3 * PERCENT for k in range(24)]
    first = judge_looks({**{p: v[:4] for p, v in values.items()}, pair(60): noisy[:4]}, durations, tolerance_ln=0.01)
    left = remaining(first)
    later = {p: v if p in left else v[:4] for p, v in values.items()}
    second = judge_looks({**later, pair(60): noisy[:8]}, durations, tolerance_ln=0.01)

    assert pair(60) in left
    assert len(left) < 51
    kept = {v.pair: v for v in first if v.pair not in left}
    assert kept == {v.pair: v for v in second if v.pair in kept}


def test_upgrade_undecided_at_the_end_is_inconclusive():
    """A benchmark too noisy for 24 pairs is neither slower nor equal, and asks for no more."""
    values, durations = differences(np.random.default_rng(3), 0.0)
    values[pair(60)] = [(-1) ** k * 5 * PERCENT for k in range(24)]
    found = judge_looks(values, durations, tolerance_ln=0.01)

    assert next(v.label for v in found if v.pair == pair(60)) == "INCONCLUSIVE(UNDECIDED)"
    assert remaining(found) == ()


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "slow"], ids=str)
def test_upgrade_names_a_difference_that_is_none(value):
    """INVALID, not an exception."""
    values, durations = differences(np.random.default_rng(4), 0.0, benchmarks=10)
    values[pair(3)][2] = value
    found = judge_looks(values, durations, tolerance_ln=0.01)

    assert ("INVALID(BAD_VALUE)", pair(3)) == (found[0].label, found[0].pair)
    assert str(pair(3)) in found[0].message


def test_too_few_pairs_for_a_look():
    """Three pairs decide nothing."""
    values, durations = differences(np.random.default_rng(5), 0.05, pairs=3)

    assert {"INCONCLUSIVE(UNDECIDED)"} == {v.label for v in judge_looks(values, durations, tolerance_ln=0.01)}


def test_a_thousand_unchanged_upgrades():
    """Nothing has changed: over all five looks at most 1 % of the suites of 48 benchmarks call one slower."""
    rng = np.random.default_rng(6)
    sigmas = np.tile([0.1, 0.2, 0.4, 1.0], 12) * PERCENT * math.sqrt(2)
    values = sigmas * contaminated(rng, (1000, 24, 48))
    slower = [look(values[:, :n], np.log(sigmas), 48, 0.01, np.full(48, FLOOR)).slower.any(1) for n in LOOKS]

    assert np.any(slower, axis=0).mean() <= 0.01
