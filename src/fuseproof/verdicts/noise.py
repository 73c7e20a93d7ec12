"""How much benchmarks vary: common part, winsorised sums of squares, shrunken variances (docs/verdicts.md, section 2).

Arrays hold logarithms, nights (or processes) along axis -2 and benchmarks along axis -1; axes before these are
independent suites, so that a simulation runs the code that ships. NaN stands for a value that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = [
    "Nights",
    "between_nights",
    "fisher",
    "median",
    "median_variance",
    "new_machine_variance",
    "resolution_variance",
    "shrink",
    "shrunken",
    "student",
    "trigamma_inverse",
    "winsorised_sum",
]

Flags = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]

SUITE_BENCHMARKS = 10  # with fewer, a median over benchmarks is no common part but one benchmark's own noise
SUITE_NIGHTS = 3
TREND_BENCHMARKS = 8  # with fewer, a slope over durations is chance
COMMON_FLOOR_LN = 1e-4  # 0.01 %: nights that agree better than that have agreed by luck
NEW_NIGHT_LN = 0.003  # a machine with fewer than 3 nights: a night may move everything by 0.3 %
NEW_NU = 4.0
SMALL_SUITE_PRIOR_DF = 4.0
PRIOR_SPREAD_FLOOR = 0.0404  # trigamma(25.25): no prior is worth more than 50 degrees of freedom
WINSOR_MADS = 3.0
NORMAL_MAD = 1.4826  # a normal's standard deviation over its median absolute deviation
LEAST_LN_DURATION = -100.0  # nothing is that short; its square must not overflow
LEAST_VARIANCE_LN2 = 1e-12  # 0.0001 %, far below every clock: its logarithm must exist
MEDIAN_VARIANCE = {1: 1.0, 2: 0.5, 3: 0.449, 4: 0.298, 5: 0.287, 9: 0.166, 15: 0.102}


def median(values: Floats, axis: int) -> Floats:
    """Return the median of what is not NaN, NaN where nothing is."""
    ordered = np.sort(values, axis=axis)  # NaN comes last
    count = np.expand_dims(np.sum(~np.isnan(ordered), axis=axis), axis)
    low = np.take_along_axis(ordered, np.maximum(count - 1, 0) // 2, axis)
    high = np.take_along_axis(ordered, np.minimum(count // 2, values.shape[axis] - 1), axis)
    middle = np.where(count > 0, (low + high) / 2, np.nan)
    return np.asarray(np.squeeze(middle, axis), dtype=np.float64)


def median_variance(count: int) -> float:
    """Return the variance of the median of `count` standard normals: exact where tabled, else pi / 2n."""
    return MEDIAN_VARIANCE.get(count, np.pi / 2 / count)


def student(tail: float | Floats, nu: float | Floats) -> Floats:
    """Return the value that Student's t with `nu` degrees of freedom exceeds with probability `tail`."""
    return np.asarray(-special.stdtrit(nu, tail), dtype=np.float64)


def fisher(tail: float, df: int, nu: float | Floats) -> Floats:
    """Return the value that Fisher's F with `df` and `nu` degrees of freedom exceeds with probability `tail`.

    `scipy.special` has it too, and is imported in a tenth of the time of `scipy.stats`, which every session would pay.
    """
    return np.asarray(special.fdtri(df, nu, 1 - tail), dtype=np.float64)


def resolution_variance(ln_duration: Floats, resolution_ns: float) -> Floats:
    """Return the variance that a clock's steps alone give (section 2.3): (resolution / duration)^2 / 12, in ln^2."""
    step = resolution_ns * np.exp(-np.maximum(ln_duration, LEAST_LN_DURATION))
    return np.asarray(np.maximum(step**2 / 12, LEAST_VARIANCE_LN2))


def on_trend(values: Floats, ln_duration: Floats) -> Floats:
    """Return the least-squares line of `values` over `ln_duration` at each benchmark; below 8 benchmarks, the mean."""
    mean = values.mean(-1, keepdims=True)
    if values.shape[-1] < TREND_BENCHMARKS:
        return np.asarray(np.broadcast_to(mean, values.shape))
    centred = ln_duration - ln_duration.mean(-1, keepdims=True)
    square = np.maximum((centred**2).sum(-1, keepdims=True), 1e-9)  # one duration for all: no slope
    return np.asarray(mean + (values * centred).sum(-1, keepdims=True) / square * centred)


def winsorised_sum(residuals_ln: Floats, ln_duration: Floats, floor_ln2: Floats) -> Floats:
    """Return each benchmark's sum of squares of residuals, clipped at 3 MADs (section 2.2).

    A benchmark's MAD counts as no less than the clock's resolution and as no less than the trend of the MADs: of few
    nights the MAD is too small by chance as often as not.
    """
    mad = NORMAL_MAD * median(np.abs(residuals_ln), -2)
    mad = np.maximum(mad, np.sqrt(floor_ln2))
    cap = WINSOR_MADS * np.maximum(mad, np.exp(on_trend(np.log(mad), ln_duration)))[..., None, :]
    return np.asarray(np.nansum(np.clip(residuals_ln, -cap, cap) ** 2, axis=-2))


def trigamma_inverse(value: float | Floats) -> Floats:
    """Return y with trigamma(y) = value > 0, by the Newton iteration of Smyth (2004), appendix."""
    target = np.asarray(value, dtype=np.float64)
    y = 0.5 + 1 / target
    for _ in range(50):
        t = special.polygamma(1, y)
        step = t * (1 - t / target) / special.polygamma(2, y)
        y = y + step
        if np.all(np.abs(step) <= 1e-12 * y):
            break
    return np.asarray(y)


def shrink(variance: Floats, df: float | Floats, ln_duration: Floats) -> tuple[Floats, Floats]:
    """Return variances drawn towards the suite's trend over durations, and their degrees of freedom (section 2.4).

    Empirical Bayes after Smyth (2004), "Linear models and empirical Bayes methods for assessing differential
    expression in microarray experiments": ln s^2 scatters about its prior as a known function of `df`; what it scatters
    beyond that is the prior's own spread. Trend over durations as limma's `trend=TRUE`. `df` may differ by benchmark.
    """
    half = np.asarray(df, dtype=np.float64) / 2
    z = np.log(variance) - special.digamma(half) + np.log(half)
    fit = on_trend(z, ln_duration)
    if variance.shape[-1] < TREND_BENCHMARKS:
        half_prior = np.asarray(SMALL_SUITE_PRIOR_DF / 2)
    else:
        spread = ((z - fit) ** 2).sum(-1, keepdims=True) / (variance.shape[-1] - 2)
        sampling = special.polygamma(1, half)
        sampling = np.mean(sampling, axis=-1, keepdims=True) if sampling.ndim else sampling
        half_prior = trigamma_inverse(np.maximum(spread - sampling, PRIOR_SPREAD_FLOOR))
    prior = np.exp(fit + special.digamma(half_prior) - np.log(half_prior))
    nu = 2 * half_prior + 2 * half
    return np.asarray((2 * half_prior * prior + 2 * half * variance) / nu), np.asarray(nu)


def shrunken(residuals_ln: Floats, df: float | Floats, ln_duration: Floats, floor_ln2: Floats) -> tuple[Floats, Floats]:
    """Return (variance, degrees of freedom) of residuals about their medians: sections 2.2 to 2.4 in one."""
    raw = winsorised_sum(residuals_ln, ln_duration, floor_ln2) / df
    return shrink(np.maximum(raw, floor_ln2), df, ln_duration)


def new_machine_variance(within_ln2: Floats, replicates: int) -> Floats:
    """Return a night's variance where no spread of nights is known (section 2.5): processes, and 0.3 % for the night.

    The median of three processes has 0.45 of the variance of one; 0.6 and 1.3 leave room for the estimate's own error.
    """
    return np.asarray((1.3 if replicates == 1 else 0.6) * within_ln2 + NEW_NIGHT_LN**2)


@dataclass(frozen=True)
class Nights:
    """Night values taken apart (section 2.1).

    Attributes:
        center_ln: (..., benchmarks) median of the newest segment, common part out.
        residuals_ln: (..., nights, benchmarks) about each segment's median, common part out.
        common_ln: (..., nights) what moved all benchmarks together.
        sd_common_ln: (..., 1) its standard deviation from night to night.
        df: (..., benchmarks) nights less one for each segment's median.
        count: (..., benchmarks) K, the nights of the newest segment.

    """

    center_ln: Floats
    residuals_ln: Floats
    common_ln: Floats
    sd_common_ln: Floats
    df: Floats
    count: Floats


def _about_segments(values_ln: Floats, segments: npt.NDArray[np.int_] | None) -> tuple[Floats, Floats, Floats, Floats]:
    """Return residuals about each segment's median, the newest median, its nights, and the degrees of freedom."""
    if segments is None:
        count = np.sum(~np.isnan(values_ln), axis=-2).astype(np.float64)
        center = median(values_ln, -2)
        return values_ln - center[..., None, :], center, count, np.maximum(count - 1, 0)
    residuals = np.full_like(values_ln, np.nan)
    df: Any = np.zeros(values_ln.shape[-1])
    center = count = np.full(values_ln.shape[-1], np.nan)
    for age in range(int(segments.max()), -1, -1):  # 0 is the newest
        member = np.where(segments == age, values_ln, np.nan)
        here, center, count, own_df = _about_segments(member, None)
        residuals = np.where(np.isnan(here), residuals, here)
        df = df + own_df
    return residuals, center, count, df


def between_nights(values_ln: Floats, segments: npt.NDArray[np.int_] | None = None) -> Nights:
    """Take night values (..., nights, benchmarks) apart; `segments` says how many segments ago each one is (0: newest).

    The common part needs 10 benchmarks and 3 nights; it is zero else, and its standard deviation that of a new machine.
    """
    residuals, center, count, df = _about_segments(values_ln, segments)
    many = np.sum(~np.isnan(residuals), axis=-1) >= SUITE_BENCHMARKS
    common = np.zeros(values_ln.shape[:-1])
    sd_common = np.full((*values_ln.shape[:-2], 1), NEW_NIGHT_LN if values_ln.shape[-1] >= SUITE_BENCHMARKS else 0.0)
    nights = np.sum(many, axis=-1, keepdims=True)
    if np.any(nights >= SUITE_NIGHTS):
        enough = many & (nights >= SUITE_NIGHTS)
        common = np.where(enough, np.nan_to_num(median(residuals, -1)), 0.0)
        variance = (common**2).sum(-1, keepdims=True) / np.maximum(nights - 1, 1) + COMMON_FLOOR_LN**2
        sd_common = np.where(nights >= SUITE_NIGHTS, np.sqrt(variance), sd_common)
        residuals, center, count, df = _about_segments(values_ln - common[..., None], segments)
    return Nights(center, residuals, common, sd_common, df, count)
