"""Tonight's own processes against the history: what is decided at once, and what is suspect (section 3)."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fuseproof.verdicts import bounds, exact
from fuseproof.verdicts.baseline import Family, build_family
from fuseproof.verdicts.bounds import Limits
from fuseproof.verdicts.exact import Check
from fuseproof.verdicts.night import Night, Segments, Values, fault_of, value_ln
from fuseproof.verdicts.noise import Flags, Floats
from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule, rules_by_pair
from fuseproof.verdicts.verdict import SUITE, Outcome, Pair, Reason, Verdict

__all__ = ["WHOLE", "Screened", "Screening", "expected", "held_since", "reference_night", "screen"]

WHOLE = ("gate", "", "full")
"""Whole selections of a suite, each with all of the one before: a night's share, the suite, what no night affords."""


@dataclass(frozen=True)
class Screened:
    """Tonight's values of one stochastic metric beside their limits: arrays over the family's pairs.

    Attributes:
        family: the baseline.
        tests: m, the pairs judged tonight over all metrics.
        judged: ran tonight, soundly, and has a baseline with known noise.
        shift_ln: d, tonight over the baseline; NaN where not judged.
        common_ln: C, the common shift (0 with fewer than 10 benchmarks).
        clipped_ln: c, as much of it as earlier nights explain.
        alarm_ln: the bound of C; infinite with fewer than 10 benchmarks.
        unpaired: limits against the history.
        limits: limits of tonight's way of confirming.
        creep_ln: A, the last five nights over the anchor; NaN where unknown.
        creep_bound_ln: what A must exceed.
        slower: suspect.
        faster: suspect of an improvement.
        creeping: above the anchor.

    """

    family: Family
    tests: int
    judged: Flags
    shift_ln: Floats
    common_ln: float
    clipped_ln: float
    alarm_ln: float
    unpaired: Limits
    limits: Limits
    creep_ln: Floats
    creep_bound_ln: Floats
    slower: Flags
    faster: Flags
    creeping: Flags

    @property
    def alarmed(self) -> bool:
        """Whether the suite as a whole is suspect."""
        return self.common_ln > self.alarm_ln

    @property
    def excess_ln(self) -> Floats:
        """d - c: the shift that earlier common shifts do not explain."""
        return self.shift_ln - self.clipped_ln


@dataclass(frozen=True)
class Screening:
    """What tonight's screening processes say.

    Attributes:
        history: earlier nights, comparable with tonight's.
        tonight: this night.
        paired: whether the trusted environment runs here.
        alone: keys that it says nothing of, since their segment began in another environment: confirmed alone.
        screened: one entry per stochastic metric.
        checks: exact metrics, suspect or not.
        verdicts: what is decided already: INVALID, MISSING, NEW.
        known: pairs with a clean night in their segment: what a whole suite is expected to measure.
        set_aside: values of the history that are not sound, named.

    """

    history: tuple[Night, ...]
    tonight: Night
    paired: bool
    screened: tuple[Screened, ...]
    checks: tuple[Check, ...]
    verdicts: tuple[Verdict, ...]
    known: frozenset[Pair]
    set_aside: tuple[str, ...] = ()
    alone: frozenset[str] = frozenset()

    def in_pairs(self, pair: Pair) -> bool:
        """Return whether a pair is confirmed against the trusted environment."""
        return self.paired and pair.key not in self.alone

    @property
    def suspects(self) -> tuple[Pair, ...]:
        """All pairs that ask for confirmation."""
        found = {check.pair for check in self.checks if check.suspect}
        for each in self.screened:
            flagged = each.slower | each.faster | each.creeping
            found |= {pair for pair, flag in zip(each.family.pairs, flagged, strict=True) if flag}
        return tuple(sorted(found))


def screen(
    history: Sequence[Night],
    tonight: Night,
    *,
    rules: Sequence[Rule] = DEFAULT_RULES,
    paired: bool = False,
    full_selection: bool = True,
    alone: Collection[str] = (),
) -> Screening:
    """Compare tonight with the history, pair by pair.

    Args:
        history: the newest 20 nights and the anchor's, oldest first.
        tonight: the night to judge; its confirming processes are not looked at.
        rules: how metrics are gated, the last that fits a pair wins; what none fits is not judged.
        paired: whether the segment's trusted environment runs here.
        full_selection: whether the whole suite was asked for; else a pair that did not run was not asked for.
        alone: keys whose segment did not begin in the trusted environment.

    """
    past = tuple(_comparable(night, tonight) for night in history)
    judged_by = rules_by_pair(rules, {pair for night in (*past, tonight) for pair in night.pairs})
    unsound = dict(_unsound(tonight, judged_by))
    replicates = max(1, len(tonight.screening))
    firsts = {rule.metric: rule for rule in reversed(rules)}
    parts = Segments(past)
    metrics = dict.fromkeys(rule.metric for rule in rules)
    built = (build_family(past, firsts[metric], replicates, judged_by, parts, tonight.boards) for metric in metrics)
    families = [family for family in built if family is not None]
    checks = exact.checks(past, tonight, judged_by, parts)
    checks = tuple(check for check in checks if check.pair not in unsound)

    rows = []
    for family in families:
        values = [math.nan if pair in unsound else value_ln(tonight, pair) for pair in family.pairs]
        shift = np.asarray(values, dtype=np.float64) - family.center_ln
        rows.append(np.where(np.isnan(family.variance_ln2), np.nan, shift))
    tests = max(1, sum(int(np.sum(~np.isnan(shift))) for shift in rows))
    screened = tuple(
        _screened(family, shift, tests, paired, frozenset(alone)) for family, shift in zip(families, rows, strict=True)
    )
    judged = {p for each in screened for p, flag in zip(each.family.pairs, each.judged, strict=True) if flag}
    judged |= {check.pair for check in checks}
    known = {pair for family in families for pair in family.pairs}
    known |= exact.expected(parts, judged_by)
    verdicts = list(unsound.values())
    for pair in sorted(tonight.pairs & judged_by.keys()):
        if pair not in judged and pair not in unsound:
            reason = Reason.NO_NOISE if pair in known else Reason.NO_BASELINE
            verdicts.append(Verdict(pair, Outcome.NEW, (reason,), detail="calibrate, or wait for more nights"))
    wanted = expected(past, tonight) if full_selection else set()
    for pair in sorted(known - tonight.pairs):
        if pair.key in tonight.invalid:
            detail = "; ".join(tonight.invalid[pair.key])
            verdicts.append(Verdict(pair, Outcome.INVALID, (Reason.MEASUREMENT,), detail=detail))
        elif pair in wanted:
            verdicts.append(Verdict(pair, Outcome.MISSING, detail="in the history and not measured tonight"))
    for key in sorted(tonight.invalid.keys() - {verdict.pair.key for verdict in verdicts}):  # never measured before
        reasons = "; ".join(tonight.invalid[key])
        verdicts.append(Verdict(Pair(key, "any metric"), Outcome.INVALID, (Reason.MEASUREMENT,), detail=reasons))
    aside = tuple(_set_aside(past, judged_by))
    return Screening(
        past, tonight, paired, screened, checks, tuple(verdicts), frozenset(known), aside, frozenset(alone)
    )


def expected(history: Sequence[Night], tonight: Night) -> set[Pair]:
    """Return what tonight's selection has measured before, and whole ones within it; brought candidates if brought."""
    asked = tonight.selection
    whole = {asked, *(WHOLE[: WHOLE.index(asked)] if asked in WHOLE else ())}
    seen = {pair for night in history if night.selection in whole for pair in night.pairs}
    absent = {name for night in history for name in night.brought} - tonight.brought
    return {pair for pair in seen if absent.isdisjoint(_candidates(pair))}


def _candidates(pair: Pair) -> set[str]:
    """Return the names that a key gives its candidate: `op/candidate/...`, or `iteration/stage@candidate/...`."""
    name = pair.key.split("/")[1] if "/" in pair.key else ""
    return {name, name.rpartition("@")[2]}


def _screened(family: Family, shift: Floats, tests: int, paired: bool, alone: frozenset[str]) -> Screened:
    tolerance = family.tolerance_ln
    judged = ~np.isnan(shift)
    sd_common = family.sd_common_ln
    common = clipped = 0.0
    alarm = math.inf
    if np.sum(judged) >= bounds.SUITE_BENCHMARKS:
        both = bounds.clip_common(shift, sd_common)
        common, clipped = float(both[0][0]), float(both[1][0])
        nights = float(np.median(family.nights[judged]))
        alarm = float(bounds.alarm_bound(sd_common, nights, float(np.median(tolerance[judged])))[0])
    unpaired = bounds.unpaired_limits(family.variance_ln2, family.nu, family.df, family.nights, tests, tolerance)
    limits = unpaired
    if paired:
        beside = bounds.paired_limits(unpaired, family.within_ln2, family.within_nu, tests, tolerance)
        limits = bounds.chosen([pair.key in alone for pair in family.pairs], unpaired, beside)
    excess = shift - clipped
    anchor_excess = family.center_ln + excess - family.anchor_ln
    last_nights = np.vstack([family.recent_ln, (family.center_ln + excess)[None]])
    creep = bounds.creep_effect(last_nights, family.anchor_ln)
    creep_bound = bounds.creep_bound(
        family.anchor_variance_ln2, family.anchor_nu, np.maximum(family.anchor_nights, 1), tests, tolerance
    )
    # Nights that were high and are over, because somebody has mended it, are no creep.
    creeping = (creep > creep_bound) & (anchor_excess > tolerance / 2)
    return Screened(
        family,
        tests,
        judged,
        shift,
        common,
        clipped,
        alarm,
        unpaired,
        limits,
        creep,
        creep_bound,
        slower=excess > unpaired.screen,
        faster=excess < -unpaired.screen,
        creeping=creeping,
    )


def _comparable(night: Night, tonight: Night) -> Night:
    """Return the night without what was measured by another method than tonight's, and what was said of that."""
    other = {key for key, method in night.methods.items() if tonight.methods.get(key, method) != method}
    if not other:
        return night
    silent = other | ({SUITE} if other == night.methods.keys() else set())

    def kept(arm: Sequence[Values]) -> list[Values]:
        return [{pair: value for pair, value in values.items() if pair.key not in other} for values in arm]

    arms = (kept(night.screening), kept(night.confirming), kept(night.trusted))
    marks = {pair: mark for pair, mark in night.marks.items() if pair.key not in silent}
    accepted = frozenset(pair for pair in night.accepted if pair.key not in silent)
    return replace(night, screening=arms[0], confirming=arms[1], trusted=arms[2], marks=marks, accepted=accepted)


def _unsound(tonight: Night, judged_by: Mapping[Pair, Rule]) -> Iterator[tuple[Pair, Verdict]]:
    """Yield the INVALID verdicts of what must not be judged: a spoiled measurement, a value that is none."""
    for pair in sorted(tonight.pairs & judged_by.keys()):
        fault = exact.fault_of if judged_by[pair].kind is Kind.EXACT else fault_of
        faults = [found for values in tonight.screening if pair in values and (found := fault(values[pair]))]
        if pair.key in tonight.invalid:
            detail = "; ".join(tonight.invalid[pair.key])
            yield pair, Verdict(pair, Outcome.INVALID, (Reason.MEASUREMENT,), detail=detail)
        elif faults:
            yield pair, Verdict(pair, Outcome.INVALID, (Reason.BAD_VALUE,), detail=f"{pair}: {faults[0]}")


def _set_aside(history: Sequence[Night], judged_by: Mapping[Pair, Rule]) -> Iterator[str]:
    for night in history:
        found: dict[Pair, str] = {}
        for values in night.screening:
            for pair, value in values.items():
                if type(value) in (float, int) and 0 < value < sys.float_info.max:
                    continue  # nearly all of a long history
                rule = judged_by.get(pair)
                fault = exact.fault_of if rule is not None and rule.kind is Kind.EXACT else fault_of
                if rule is not None and (wrong := fault(value)) is not None:
                    found.setdefault(pair, wrong)
        for pair, wrong in sorted(found.items()):
            yield f"night {night.name}: {pair}: {wrong}; this value is not used"


def held_since(history: Sequence[Night], pair: Pair, reason: Reason) -> str | None:
    """Return the first night of what the night before was held for, None where it was not held for `reason`.

    A regression that nobody has mended or accepted goes on: it need not be held again.
    """
    for night in reversed(history):
        mark = night.marks.get(pair)
        if mark is None and pair.key == SUITE and _is_quiet(night, pair.metric):
            return None
        if mark is not None and mark.outcome is not Outcome.INVALID:
            lasting = reason is Reason.HELD and mark.outcome is Outcome.REGRESSED
            held = (lasting or reason in mark.reasons) and not _is_accepted(night, pair)
            return (mark.since or night.name) if held else None
    return None


def _is_quiet(night: Night, metric: str) -> bool:
    """Return whether a night judged enough to say that the suite moves: it has a verdict only where it does."""
    judged = [p for p, mark in night.marks.items() if p.metric == metric and mark.outcome is not Outcome.INVALID]
    return len(judged) >= bounds.SUITE_BENCHMARKS


def _is_accepted(night: Night, pair: Pair) -> bool:
    """Return whether a night's level is wanted: that of the suite with more than half of its benchmarks."""
    if pair.key != SUITE:
        return pair in night.accepted
    measured = {each for each in night.pairs if each.metric == pair.metric}
    return 2 * len(measured & night.accepted) > len(measured)


def reference_night(screening: Screening, each: Screened, column: int | None = None) -> Night:
    """Return the newest clean night of a pair or of the family's middle pair, to compare inventories with."""
    references = sorted(each.family.reference) if column is None else [each.family.reference[column]]
    return screening.history[references[len(references) // 2]]
