"""An upgrade judged in pairs, look after look (docs/verdicts.md, section 7): slower, equal, or not yet known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuseproof.verdicts import noise
from fuseproof.verdicts.noise import Floats, student
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

__all__ = ["LOOKS", "Look", "Sample", "is_settled", "is_sound", "judge_looks", "look", "remaining", "samples"]

LOOKS = (4, 8, 12, 16, 24)
"""Pairs of processes, whole ABBA blocks, at which is looked; the error is shared among the looks."""

SLOWER_TAIL = 0.01  # over all looks and pairs: the chance that an equal environment is called slower
EQUAL_TAIL = 0.05  # over all looks, for each pair: the chance that one slower by twice the tolerance is called equal
INTERVAL_TAIL = 0.025

SETTLED_PAIRS = 8
"""As many pairs as a difference needs that two levels of one benchmark might be: four pairs all fall on the same side
of two levels once in 256 times, each of the four as like the others as if nothing varied; eight once in 65,536."""

LEVELS_LN = math.log(1.25)
"""Kernels of an H200 were seen on levels up to 12 % apart in processes of one environment (docs/verdicts.md, 12)."""


@dataclass(frozen=True)
class Look:
    """One look at pair differences: arrays over benchmarks.

    Attributes:
        effect_ln: D, the median difference.
        se_ln: its standard error.
        nu: degrees of freedom.
        slower: D above the tolerance, proven above 0, and settled.
        equal: D within the tolerance, and proven below twice the tolerance; if it is proven to be faster, settled too.
        unsettled: proven slower or faster, and by no more than what the levels of one benchmark may be apart.

    """

    effect_ln: Floats
    se_ln: Floats
    nu: Floats
    slower: npt.NDArray[np.bool_]
    equal: npt.NDArray[np.bool_]
    unsettled: npt.NDArray[np.bool_]


def is_settled(count: npt.ArrayLike, effect_ln: Floats) -> npt.NDArray[np.bool_]:
    """Return whether so many pairs, or an effect as large as that, cannot well be two levels of one benchmark."""
    return np.asarray((np.asarray(count) >= SETTLED_PAIRS) | (np.abs(effect_ln) > LEVELS_LN))


def look(
    differences_ln: Floats, ln_duration: Floats, tests: int, tolerance_ln: float | Floats, floor_ln2: Floats
) -> Look:
    """Look at differences (..., pairs, benchmarks) of tonight over the old environment; NaN where a pair did not run.

    Slower is asked first: whoever is proven slower is not equal, however little. All benchmarks, decided ones too,
    teach how much differences vary.
    """
    count = np.sum(~np.isnan(differences_ln), axis=-2)
    effect = noise.median(differences_ln, -2)
    residuals = differences_ln - effect[..., None, :]
    df = count - 1.0
    if df.ndim == 1 or np.ptp(df) == 0:
        df = df if np.ptp(df) else np.asarray(df.flat[0])
    variance, nu = noise.shrunken(residuals, df, ln_duration, floor_ln2)
    se = np.sqrt(variance * np.pi / 2 / count)
    apart = np.abs(effect) > np.maximum(tolerance_ln, student(SLOWER_TAIL / len(LOOKS) / tests, nu) * se)
    unsettled = apart & ~is_settled(count, effect)
    equal = (effect <= tolerance_ln) & (effect + student(EQUAL_TAIL / len(LOOKS), nu) * se < 2 * tolerance_ln)
    return Look(
        effect,
        np.asarray(se),
        np.broadcast_to(nu, effect.shape),
        slower=apart & (effect > 0) & ~unsettled,
        equal=equal & ~unsettled,
        unsettled=unsettled,
    )


@dataclass(frozen=True)
class Sample:
    """What is known at one look.

    Attributes:
        count: pairs of processes.
        pairs: who has been seen at a first look; they all teach how much differences vary.
        ready: those that have `count` differences.
        differences_ln: (count, pairs); NaN where one did not run.
        ln_duration: (pairs), as given.
        floor_ln2: (pairs) the variance that the clock's steps alone give a difference.

    """

    count: int
    pairs: Sequence[Pair]
    ready: Sequence[Pair]
    differences_ln: Floats
    ln_duration: Floats
    floor_ln2: Floats


def samples(
    differences_ln: Mapping[Pair, Sequence[float]], ln_durations: Mapping[Pair, float], resolution_ns: float
) -> Iterator[Sample]:
    """Yield what is known at each look; arguments as of `judge_looks`, and all finite."""
    known = sorted(pair for pair, values in differences_ln.items() if len(values) >= LOOKS[0])
    durations = np.array([ln_durations.get(pair, 0.0) for pair in known])
    floor = 2 * noise.resolution_variance(durations, resolution_ns)  # two readings
    for count in LOOKS:
        ready = [pair for pair in known if len(differences_ln[pair]) >= count]
        if not ready:
            return
        table = np.full((count, len(known)), np.nan)
        for column, pair in enumerate(known):
            kept = differences_ln[pair][:count]
            table[: len(kept), column] = kept
        yield Sample(count, known, ready, table, durations, floor)


def is_sound(values: Sequence[float]) -> bool:
    """Return whether all differences are finite numbers."""
    numbers = (isinstance(v, int | float | np.floating) and not isinstance(v, bool) for v in values)
    return all(numbers) and bool(np.all(np.isfinite(np.asarray(values, dtype=np.float64))))


def judge_looks(
    differences_ln: Mapping[Pair, Sequence[float]],
    ln_durations: Mapping[Pair, float],
    *,
    tolerance_ln: float | Mapping[Pair, float],
    resolution_ns: float = 0.0,
    tests: int | None = None,
) -> list[Verdict]:
    """Return the verdicts that all looks so far allow: REGRESSED, PASS, or INCONCLUSIVE(UNDECIDED), worst first.

    A verdict of an earlier look stands. Call it after each block; what is UNDECIDED after the last look stays so.

    Args:
        differences_ln: by pair, new over old for each pair of processes, in the order in which they ran.
        ln_durations: by pair, the logarithm of its duration in nanoseconds, for the trend of the noise.
        tolerance_ln: the largest slow-down that is none, of all or by pair.
        resolution_ns: the step of the clock.
        tests: m, how many pairs share the error; those of `differences_ln` where no other metric is judged besides.

    """
    sound = {pair: [float(v) for v in values] for pair, values in differences_ln.items() if is_sound(values)}
    verdicts = {
        pair: Verdict(pair, Outcome.INVALID, (Reason.BAD_VALUE,), detail=f"{pair}: a difference is not a finite number")
        for pair in differences_ln.keys() - sound.keys()
    }
    tests = max(1, len(differences_ln)) if tests is None else tests
    tolerances = {p: tolerance_ln if isinstance(tolerance_ln, float) else tolerance_ln[p] for p in sound}
    for sample in samples(sound, ln_durations, resolution_ns):
        undecided = [p for p in sample.ready if p not in verdicts or Reason.UNDECIDED in verdicts[p].reasons]
        if not undecided:
            continue
        limits = np.array([tolerances[pair] for pair in sample.pairs])
        seen = look(sample.differences_ln, sample.ln_duration, tests, limits, sample.floor_ln2)
        for pair in undecided:
            column = sample.pairs.index(pair)
            verdicts[pair] = _verdict(seen, column, pair, sample.count, tests, tolerances[pair])
    for pair in sound.keys() - verdicts.keys():
        verdicts[pair] = Verdict(pair, Outcome.INCONCLUSIVE, (Reason.UNDECIDED,), detail=f"fewer than {LOOKS[0]} pairs")
    return sorted(verdicts.values(), key=lambda verdict: verdict.order)


def remaining(verdicts: Sequence[Verdict]) -> tuple[Pair, ...]:
    """Return the pairs that the next block of processes must run."""
    undecided = (v for v in verdicts if Reason.UNDECIDED in v.reasons and v.processes < LOOKS[-1])
    return tuple(sorted(verdict.pair for verdict in undecided))


def _verdict(seen: Look, column: int, pair: Pair, count: int, tests: int, tolerance_ln: float) -> Verdict:
    effect, se, nu = float(seen.effect_ln[column]), float(seen.se_ln[column]), float(seen.nu[column])
    block = max(tolerance_ln, float(student(SLOWER_TAIL / len(LOOKS) / tests, nu)) * se)
    half = float(student(INTERVAL_TAIL, nu)) * se
    outcome = Outcome.INCONCLUSIVE
    reasons: tuple[Reason, ...] = (Reason.UNDECIDED,)
    if seen.slower[column] or seen.equal[column]:
        outcome, reasons = (Outcome.REGRESSED if seen.slower[column] else Outcome.PASS), ()
    levels = f"that may be two levels of one benchmark, which {count} pairs do not tell apart: {SETTLED_PAIRS} do"
    return Verdict(
        pair,
        outcome,
        reasons,
        effect_ln=effect,
        interval_ln=(effect - half, effect + half),
        bound_ln=block,
        mde_ln=block + 2 * se,
        nu=nu,
        processes=count,
        detail=levels if seen.unsettled[column] else "",
    )
