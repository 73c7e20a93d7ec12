"""Was the gate awake tonight? A planted slow-down, processes of one arm among themselves, nights without a change.

docs/verdicts.md, section 8. A session whose controls fail is answered by nobody: status 21.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fuseproof.verdicts.bounds import SCREEN_TAIL
from fuseproof.verdicts.night import Values, values_ln
from fuseproof.verdicts.noise import WINSOR_MADS, fisher, student
from fuseproof.verdicts.screening import Screened
from fuseproof.verdicts.verdict import Control, Outcome, Pair, Reason, Verdict, in_percent

__all__ = [
    "Plant",
    "Planting",
    "Unchanged",
    "choose_plant",
    "count_unchanged",
    "judge_plant",
    "judge_same_arm",
    "judge_unchanged",
]

SAME_ARM_LIMIT = 4.0  # times the history's variance: twice its standard deviation
SAME_ARM_TAIL = 0.001
GREATEST_PLANT_LN = math.log(4)  # it takes its time, and a gate that does not see that sees nothing
SHARE_BAND = (0.03, 0.07)
LEAST_DECISIONS = (
    1000  # of which 5 % has a standard deviation of 0.7 %; one night of 300 would leave the band by chance
)


@dataclass(frozen=True)
class Plant:
    """A slow-down to be planted: where, how much, and the bound that it must exceed."""

    pair: Pair
    size_ln: float
    block_ln: float


@dataclass(frozen=True)
class Planting:
    """What became of a session's planted slow-down.

    Attributes:
        plant: None where nothing was judged that has noise.
        effects_ln: each time that it was looked for, as it was seen; NaN for a process that measured nothing.

    """

    plant: Plant | None = None
    effects_ln: tuple[float, ...] = ()


def choose_plant(each: Screened, beside: Collection[str] = ()) -> Plant | None:
    """Return +max(3 tolerances, 2 detectable effects), at most 300 %, on the quietest; None where nothing is judged.

    Args:
        each: benchmarks of one metric.
        beside: keys of which this metric is not the own one: a slow-down is planted where the benchmark's clock looks.

    """
    own = np.array([pair.key not in beside for pair in each.family.pairs], dtype=np.bool_)
    if not (each.judged & own).any():
        return None
    column = int(np.argmin(np.where(each.judged & own, each.limits.mde, np.inf)))
    size = max(3 * float(each.family.tolerance_ln[column]), 2 * float(each.limits.mde[column]))
    size = min(size, GREATEST_PLANT_LN)
    return Plant(each.family.pairs[column], size, float(each.limits.block[column]))


def judge_plant(plant: Plant, effects_ln: Sequence[float]) -> Control:
    """Return whether the planted slow-down was seen: the median of its confirmations exceeds B."""
    seen = float(np.median(effects_ln)) if effects_ln else math.nan
    shown = "nothing" if math.isnan(seen) else in_percent(seen)
    detail = f"{in_percent(plant.size_ln)} planted on {plant.pair}, {shown} seen, bound {in_percent(plant.block_ln)}"
    return Control("plant", bool(seen > plant.block_ln), detail)


def judge_same_arm(each: Screened, arms: Iterable[Sequence[Values]]) -> Control:
    """Return whether tonight's processes of one arm agree as they always did: pooled w^2 is at most 4 times history's.

    Few processes of few benchmarks differ by more by chance: then the limit is what one night in 1,000 exceeds.
    Each benchmark counts by its own variance, so the noisiest does not decide for all; and what lies further out than 3
    standard deviations counts as 3, as in the history's own variance, so that one wild process does not either.
    """
    ratio, df = 0.0, 0
    for arm in arms:
        for column in np.flatnonzero(each.judged).tolist():
            values = values_ln(arm, each.family.pairs[column])
            if len(values) > 1:
                residuals = (np.asarray(values) - np.median(values)) / np.sqrt(each.family.within_ln2[column])
                ratio += float(np.sum(np.clip(residuals, -WINSOR_MADS, WINSOR_MADS) ** 2))
                df += len(values) - 1
    if not df:
        return Control("same arm", passed=True, detail="no two processes of one arm ran")
    usual_df = float(np.median(each.family.within_nu[each.judged]))
    limit = max(SAME_ARM_LIMIT, float(fisher(SAME_ARM_TAIL, df, usual_df)))
    detail = f"{ratio / df:.2f} times the usual variance, limit {limit:.2f}"
    return Control("same arm", ratio / df <= limit, detail)


@dataclass(frozen=True)
class Unchanged:
    """What a night said whose inventory equals its baseline's: decisions, how many d - c > t(0.95) s, and blocks."""

    decisions: int
    above: int
    blocks: int


def count_unchanged(each: Screened, verdicts: Iterable[Verdict]) -> Unchanged:
    """Count the decisions of a night without any change of software or host: all that it blocks is false."""
    limit = student(SCREEN_TAIL, each.family.nu) * each.unpaired.sd
    above = int(np.sum(each.judged & (each.excess_ln > limit)))
    metric = each.family.rule.metric
    blocking = [v for v in verdicts if v.pair.metric == metric and (v.outcome is Outcome.REGRESSED or _held(v))]
    return Unchanged(int(np.sum(each.judged)), above, len(blocking))


def _held(verdict: Verdict) -> bool:
    return Reason.HELD in verdict.reasons


def judge_unchanged(nights: Iterable[Unchanged]) -> Control:
    """Return whether 5 % +- 2 lie above the one-sided 5 % limit over nights, once 1,000 decisions are known."""
    nights = list(nights)
    decisions, above, blocks = (sum(getattr(n, name) for n in nights) for name in ("decisions", "above", "blocks"))
    share = above / decisions if decisions else math.nan
    passed = decisions < LEAST_DECISIONS or SHARE_BAND[0] <= share <= SHARE_BAND[1]
    few = f"; fewer than {LEAST_DECISIONS:,} decisions say nothing" if decisions < LEAST_DECISIONS else ""
    return Control("unchanged nights", passed, f"{above} of {decisions} above the 5 % limit, {blocks} blocks{few}")
