"""What the history says of a stochastic metric: baseline, noise between and within nights, anchor, the last nights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuseproof.verdicts import noise
from fuseproof.verdicts.boards import has_moved, is_foreign
from fuseproof.verdicts.night import Night, Segments, is_valid, value_ln, values_ln
from fuseproof.verdicts.noise import Flags, Floats
from fuseproof.verdicts.rules import Kind, Rule
from fuseproof.verdicts.verdict import Pair

__all__ = ["Family", "build_family"]

BASELINE_NIGHTS = 20
ANCHOR_NIGHTS = (8, 20)
RECENT_NIGHTS = 4  # with tonight, the five nights that creep is judged by
LEAST_FIT_DF = 2.0


@dataclass(frozen=True)
class Family:
    """The baseline of one stochastic metric: arrays over its pairs, whether they ran tonight or not.

    Attributes:
        rule: the metric, and the step of its clock.
        pairs: the benchmarks.
        tolerance_ln: the largest slow-down of each that never blocks by itself.
        center_ln: baseline.
        nights: K.
        df: degrees of freedom of the pair's own nights, over all segments.
        variance_ln2: between nights, shrunken; NaN where nothing is known.
        nu: its degrees of freedom.
        within_ln2: between the processes of one night, shrunken.
        within_nu: its degrees of freedom.
        sd_common_ln: (1,) of common shifts.
        anchor_ln: median of the anchor; NaN with fewer than 8 nights.
        anchor_variance_ln2: its nights' variance.
        anchor_nu: its degrees of freedom.
        anchor_nights: its nights.
        recent_ln: (4, pairs) the last valid nights' values, common part out.
        foreign: most of its nights ran on other boards than tonight.
        moved: the anchor's nights ran on other boards than the last ones and tonight.
        first: index of the segment's first clean night.
        reference: index of its newest one.

    """

    rule: Rule
    pairs: tuple[Pair, ...]
    tolerance_ln: Floats
    center_ln: Floats
    nights: Floats
    df: Floats
    variance_ln2: Floats
    nu: Floats
    within_ln2: Floats
    within_nu: Floats
    sd_common_ln: Floats
    anchor_ln: Floats
    anchor_variance_ln2: Floats
    anchor_nu: Floats
    anchor_nights: Floats
    recent_ln: Floats
    foreign: Flags
    moved: Flags
    first: tuple[int, ...]
    reference: tuple[int, ...]


def build_family(
    history: Sequence[Night],
    rule: Rule,
    replicates: int,
    judged_by: Mapping[Pair, Rule] | None = None,
    parts: Segments | None = None,
    boards: frozenset[str] = frozenset(),
) -> Family | None:
    """Return the baseline of a metric, None where there is none; pairs without a clean night are not in it.

    Args:
        history: the newest nights, oldest first, with the anchor's.
        rule: how the metric is gated.
        replicates: screening processes tonight.
        judged_by: the rule of each pair that is judged; without it `rule` is that of all.
        parts: the history's segments, where they are known already.
        boards: which measured tonight; empty where that is not known.

    """
    if judged_by is None:
        judged_by = {pair: rule for night in history for pair in night.pairs if pair.metric == rule.metric}
    gated = (pair for pair, own in judged_by.items() if pair.metric == rule.metric and own.kind is Kind.STOCHASTIC)
    stochastic = sorted(gated)
    parts = parts or Segments(history)
    parts_of = {pair: own for pair in stochastic if (own := parts.of(pair))[0]}
    pairs = tuple(parts_of)
    if not pairs:
        return None
    values = np.array([[value_ln(night, pair) for pair in pairs] for night in history])
    ages = np.zeros(values.shape, dtype=int)
    window = np.full(values.shape, np.nan)
    anchor = np.full(values.shape, np.nan)
    for column, ages_of in enumerate(parts_of.values()):
        room = BASELINE_NIGHTS  # of earlier segments, for their noise alone
        for age, nights in enumerate(ages_of):
            rows = [row for row in nights if not math.isnan(values[row, column])]
            kept = rows[-BASELINE_NIGHTS:] if age == 0 else rows[max(0, len(rows) - room) :]
            room -= len(kept) if age else 0
            window[kept, column], ages[kept, column] = values[kept, column], age
            if age == 0:
                anchor[rows[: ANCHOR_NIGHTS[1]], column] = values[rows[: ANCHOR_NIGHTS[1]], column]
    sound = ~np.isnan(np.where(ages == 0, window, np.nan)).all(0)
    if not sound.any():
        return None
    if not sound.all():  # nights whose only values are unsound
        keep = set(np.flatnonzero(sound).tolist())
        pairs = tuple(pair for column, pair in enumerate(pairs) if column in keep)
        values, window, anchor, ages = (each[:, sound] for each in (values, window, anchor, ages))
    tolerance = np.array([judged_by[pair].tolerance_ln for pair in pairs])
    return _measured(history, rule, replicates, (pairs, tolerance), values, (window, ages), anchor, boards)


def _measured(
    history: Sequence[Night],
    rule: Rule,
    replicates: int,
    gated: tuple[tuple[Pair, ...], Floats],
    values: Floats,
    window: tuple[Floats, Any],
    anchor: Floats,
    boards: frozenset[str],
) -> Family:
    pairs, tolerance = gated
    nights = noise.between_nights(*window)
    ln_duration = nights.center_ln
    floor = noise.resolution_variance(ln_duration, rule.resolution_ns)
    within, within_df = _within(history, pairs)
    within_ln2, within_nu = _fitted(within, within_df, 1.0, ln_duration, floor)
    variance, nu = _fitted(nights.residuals_ln, nights.df, LEAST_FIT_DF, ln_duration, floor)
    young = np.isnan(variance)
    variance = np.where(young, noise.new_machine_variance(within_ln2, replicates), variance)
    nu = np.where(young, noise.NEW_NU, nu)
    # No spread of processes is known: it is part of the spread of nights, so that bounds it from above.
    share = noise.median_variance(replicates)
    within_nu = np.where(np.isnan(within_ln2), nu, within_nu)
    within_ln2 = np.where(np.isnan(within_ln2), variance / share, within_ln2)

    early = noise.between_nights(anchor)
    anchored = early.count >= ANCHOR_NIGHTS[0]
    anchor_variance, anchor_nu = _fitted(
        np.where(anchored, early.residuals_ln, np.nan),
        np.where(anchored, early.df, 0),
        LEAST_FIT_DF,
        ln_duration,
        floor,
    )
    level = values - nights.common_ln[:, None]
    recent = np.full((RECENT_NIGHTS, len(pairs)), np.nan)
    first = tuple(int(np.flatnonzero(~np.isnan(column))[0]) for column in anchor.T)
    current = ~np.isnan(np.where(window[1] == 0, window[0], np.nan))
    foreign, moved = np.zeros(len(pairs), dtype=bool), np.zeros(len(pairs), dtype=bool)
    for column, pair in enumerate(pairs):
        rows = range(first[column], len(history))
        kept = [row for row in rows if is_valid(history[row], pair, values[row, column])][-RECENT_NIGHTS:]
        recent[RECENT_NIGHTS - len(kept) :, column] = level[kept, column]
        foreign[column] = is_foreign(history, np.flatnonzero(current[:, column]).tolist(), boards)
        moved[column] = has_moved(history, np.flatnonzero(~np.isnan(anchor[:, column])).tolist(), kept, boards)
    return Family(
        rule,
        pairs,
        tolerance,
        nights.center_ln,
        nights.count,
        nights.df,
        variance,
        nu,
        within_ln2,
        within_nu,
        nights.sd_common_ln,
        np.where(anchored, early.center_ln, np.nan),
        anchor_variance,
        anchor_nu,
        early.count,
        recent,
        foreign,
        moved,
        first,
        tuple(int(np.flatnonzero(column)[-1]) for column in current.T),
    )


def _within(history: Sequence[Night], pairs: Sequence[Pair]) -> tuple[Floats, Floats]:
    """Return residuals of processes about the median of their night and arm (section 2.6), and degrees of freedom."""
    columns: list[list[float]] = []
    df = np.zeros(len(pairs))
    for column, pair in enumerate(pairs):
        residuals: list[float] = []
        for night in history:
            if not is_valid(night, pair, 0.0):
                continue
            for arm in (night.screening, night.confirming, night.trusted):
                values = values_ln(arm, pair)
                if len(values) > 1:
                    middle = statistics.median(values)
                    residuals += [value - middle for value in values]
                    df[column] += len(values) - 1
        columns.append(residuals)
    table = np.full((max([1, *map(len, columns)]), len(pairs)), np.nan)
    for column, residuals in enumerate(columns):
        table[: len(residuals), column] = residuals
    return table, df


def _fitted(
    residuals_ln: Floats, df: Floats, least_df: float, ln_duration: Floats, floor: Floats
) -> tuple[Floats, Floats]:
    """Return shrunken variances and degrees of freedom of the pairs with enough of them, NaN for the others."""
    fit = df >= least_df
    variance, nu = np.full(df.shape, np.nan), np.full(df.shape, np.nan)
    if fit.any():
        variance[fit], nu[fit] = noise.shrunken(residuals_ln[:, fit], df[fit], ln_duration[fit], floor[fit])
    return variance, nu
