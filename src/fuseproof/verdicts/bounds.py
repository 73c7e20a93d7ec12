"""What an effect must exceed to be looked at, to block, to be seen at all: the formulas of the gate, on arrays.

The error budget of a night is 1 % over the suite: 0.1 % for a shift of the suite, 0.7 % for tonight, 0.2 % for the
anchor; the last two are shared among the `tests` pairs judged. All values are logarithms of ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from fuseproof.verdicts.noise import (
    NORMAL_MAD,
    SUITE_BENCHMARKS,
    WINSOR_MADS,
    Floats,
    fisher,
    median,
    median_variance,
    student,
)

__all__ = [
    "AT_ONCE",
    "PAIR_COUNTS",
    "SUITE_BENCHMARKS",
    "UNPAIRED_PROCESSES",
    "Limits",
    "alarm_bound",
    "chosen",
    "clip_common",
    "creep_bound",
    "creep_effect",
    "is_cleared",
    "is_proven",
    "own_bound",
    "paired_limits",
    "predictive_sd",
    "unpaired_limits",
]

SCREEN_TAIL = 0.05
TONIGHT_TAIL = 0.007
ANCHOR_TAIL = 0.002
ALARM_TAIL = 0.001
MEDIAN_COST = np.pi / 2  # the variance of a median over that of a mean; written 1.57 in the specification
COMMON_CLIP_SDS = 2.0
UNPAIRED_PROCESSES = 5
PAIR_COUNTS = (5, 9, 15)
DISTURBED_TAIL = 0.001
OWN_TAIL = 0.01
AT_ONCE = 3.0  # this many bounds block on the first night
LEAST_DF = 4.0  # with fewer, two nights in a row prove nothing: the bound itself is a guess


@dataclass(frozen=True)
class Limits:
    """Limits of each pair tonight.

    Attributes:
        screen: S: a slow-down above it is suspect.
        block: B: a confirmed slow-down above it blocks.
        sd: standard deviation of the confirmed effect.
        mde: minimum detectable effect of screening and confirmation together.
        processes: confirming processes, or pairs of them, fixed beforehand.

    """

    screen: Floats
    block: Floats
    sd: Floats
    mde: Floats
    processes: npt.NDArray[np.int_]


def predictive_sd(variance_ln2: Floats, nights: float | Floats) -> Floats:
    """Return the standard deviation of tonight about the median of `nights` nights (section 2.7).

    It is a spread between nights: no number of processes of one night makes it smaller. The median of one or two
    nights is no worse than one night, hence the bound of 1.
    """
    return np.asarray(np.sqrt(variance_ln2 * (1 + np.minimum(1, MEDIAN_COST / np.asarray(nights)))))


def unpaired_limits(
    variance_ln2: Floats,
    nu: Floats,
    df: float | Floats,
    nights: float | Floats,
    tests: int,
    tolerance_ln: float | Floats,
) -> Limits:
    """Return the limits of tonight against the history (sections 3.3, 3.4 alone, 3.6).

    `df` are the benchmark's own degrees of freedom: with fewer than 4 only 3 B blocks, so only that is detectable.
    """
    sd = predictive_sd(variance_ln2, nights)
    screen = np.maximum(tolerance_ln / 2, student(SCREEN_TAIL, nu) * sd)
    block = np.maximum(tolerance_ln, student(TONIGHT_TAIL / tests, nu) * sd)
    needed = np.where(np.asarray(df) < LEAST_DF, AT_ONCE * block, block)
    mde = np.maximum(needed, screen) + 2 * sd
    return Limits(screen, block, sd, mde, np.full(block.shape, UNPAIRED_PROCESSES))


def paired_limits(
    screening: Limits, within_ln2: Floats, within_nu: Floats, tests: int, tolerance_ln: float | Floats
) -> Limits:
    """Return the limits of tonight against the trusted environment run beside it (sections 3.4 paired, 3.6).

    The number of pairs is the smallest with which the confirmation, B + 2 sd, is within twice the tolerance; where the
    screen is the weaker part, more pairs would not mend it.
    """
    tail = student(TONIGHT_TAIL / tests, within_nu)
    sds = [np.sqrt(within_ln2 * 2 * median_variance(pairs)) for pairs in PAIR_COUNTS]
    blocks = [np.maximum(tolerance_ln, tail * sd) for sd in sds]
    enough = [block + 2 * sd <= 2 * tolerance_ln for block, sd in zip(blocks, sds, strict=True)][:-1]
    block, sd = np.select(enough, blocks[:-1], blocks[-1]), np.select(enough, sds[:-1], sds[-1])
    processes = np.select(enough, PAIR_COUNTS[:-1], PAIR_COUNTS[-1])
    mde = np.maximum(block + 2 * sd, screening.screen + 2 * screening.sd)
    return Limits(screening.screen, block, sd, mde, processes)


def chosen(first: Sequence[bool], one: Limits, other: Limits) -> Limits:
    """Return the limits of `one` where `first` is true, of `other` elsewhere."""
    return Limits(*(np.where(first, getattr(one, part.name), getattr(other, part.name)) for part in fields(Limits)))


def clip_common(shifts_ln: Floats, sd_common_ln: Floats) -> tuple[Floats, Floats]:
    """Return (C, c): tonight's common shift, and the part that earlier common shifts explain (section 3.1).

    Only c is ever subtracted: a regression of half the suite must not be taken for weather.
    """
    common = median(shifts_ln, -1)[..., None]
    return common, np.clip(common, -COMMON_CLIP_SDS * sd_common_ln, COMMON_CLIP_SDS * sd_common_ln)


def alarm_bound(sd_common_ln: Floats, nights: float, tolerance_ln: float) -> Floats:
    """Return the common shift above which the suite as a whole is suspect (section 5)."""
    spread = student(ALARM_TAIL, nights + 3.0) * sd_common_ln * np.sqrt(1 + MEDIAN_COST / nights)
    return np.asarray(np.maximum(tolerance_ln, spread))


def creep_effect(last_nights_ln: Floats, anchor_ln: Floats) -> Floats:
    """Return A: the median of the last five nights (..., 5, benchmarks) over the anchor's (section 6): 3 of 5 nights.

    NaN where fewer than five nights are known.
    """
    missing = np.isnan(last_nights_ln).any(-2)
    return np.asarray(np.where(missing, np.nan, median(last_nights_ln, -2) - anchor_ln))


def creep_bound(
    variance_ln2: Floats, nu: Floats, anchor_nights: float | Floats, tests: int, tol_ln: float | Floats
) -> Floats:
    """Return what creep must exceed (section 6); the factors allow for nights that resemble the night before."""
    sd = np.sqrt(variance_ln2 * (0.5 + 4.4 / np.asarray(anchor_nights)))
    return np.asarray(np.maximum(tol_ln, student(ANCHOR_TAIL / tests, nu) * sd))


def own_bound(effects_ln: Floats, variance_ln2: Floats, nu: Floats, axis: int = -1) -> Floats:
    """Return what the median of a suspect's results must exceed because they scatter more than they ever did, else 0.

    B takes the history's spread of processes for granted. On a machine that is disturbed while it confirms, the
    results' own spread counts: t(0.99, n - 1) standard errors of their median. Whether it is disturbed: their
    variance is above what one night in 1,000 shows by chance.

    Args:
        effects_ln: results, along `axis`.
        variance_ln2: what the history says of one result.
        nu: its degrees of freedom.
        axis: of the results.

    """
    df = effects_ln.shape[axis] - 1
    if not df:
        return np.zeros(np.shape(variance_ln2))
    deviations = np.abs(effects_ln - np.median(effects_ln, axis=axis, keepdims=True))
    # Clipped as the history's own deviations are: one wild process is no disturbed machine.
    clip = WINSOR_MADS * NORMAL_MAD * np.median(deviations, axis=axis, keepdims=True)
    own = np.sum(np.minimum(deviations, clip) ** 2, axis=axis) / df
    disturbed = own > variance_ln2 * fisher(DISTURBED_TAIL, df, nu)
    return np.asarray(np.where(disturbed, student(OWN_TAIL, df) * np.sqrt(own * MEDIAN_COST / (df + 1)), 0.0))


def is_cleared(effects_ln: Sequence[float], block_ln: float, processes: int) -> bool:
    """Return whether the median of `processes` results can no longer exceed B (section 3.4)."""
    return sum(effect <= block_ln for effect in effects_ln) >= (processes + 1) // 2


def is_proven(effect_ln: Floats, block_ln: Floats, df: Floats | float, held: npt.NDArray[np.bool_] | bool) -> Floats:
    """Return 2 for blocked, 1 for held until the next night, 0 for neither: the unpaired rule of section 3.5.

    Far outside (3 B) blocks at once; above B blocks if the night before was held for it; with fewer than 4 degrees of
    freedom only the first counts.
    """
    at_once = effect_ln > AT_ONCE * block_ln
    above = (effect_ln > block_ln) & (np.asarray(df) >= LEAST_DF)
    return np.where(at_once | (above & held), 2.0, np.where(above, 1.0, 0.0))
