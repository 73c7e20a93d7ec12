"""From screening and evidence to verdicts (docs/verdicts.md, sections 3.5, 3.6, 5 and 6).

screening = screen(history, tonight, paired=True)
evidence = Evidence()
while plan := confirm_plan(screening, evidence):
    evidence = evidence.add(...)  # one more process, or pair of them
verdicts = judge(screening, evidence)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fuseproof.verdicts.boards import BOARDS_APART_LN, OTHER_BOARD, OTHER_BOARD_AND_HOST
from fuseproof.verdicts.bounds import AT_ONCE, is_proven, own_bound
from fuseproof.verdicts.confirmation import (
    ConfirmPlan,
    Evidence,
    confirm_plan,
    covered_columns,
    effects_ln,
    host_changed,
    is_settled,
    judge_suite,
    trusted_shift_ln,
)
from fuseproof.verdicts.exact import judge_check
from fuseproof.verdicts.night import is_valid, value_ln
from fuseproof.verdicts.noise import student
from fuseproof.verdicts.screening import Screened, Screening, held_since, screen
from fuseproof.verdicts.verdict import Outcome, Reason, Verdict, in_percent

__all__ = ["ConfirmPlan", "Evidence", "Screening", "confirm_plan", "judge", "screen"]

INTERVAL_TAIL = 0.025


def judge(screening: Screening, evidence: Evidence | None = None) -> list[Verdict]:
    """Return tonight's verdicts, worst first: one for each pair that was judged or should have been.

    A verdict on the whole suite speaks for its members, which have none of their own.
    """
    evidence = evidence or Evidence()
    verdicts = [*screening.verdicts, *(judge_check(check, evidence.tonight) for check in screening.checks)]
    for each in screening.screened:
        verdicts += _family(screening, each, evidence)
    return sorted(verdicts, key=lambda verdict: verdict.order)


def _family(screening: Screening, each: Screened, evidence: Evidence) -> list[Verdict]:
    suite = judge_suite(screening, each, evidence)
    covered = covered_columns(screening, each, suite)
    from_pairs = suite is not None and screening.paired and Reason.HOST not in suite.reasons
    own, members = [], []
    for column in np.flatnonzero(each.judged).tolist():
        verdict = None if column in covered else _judge_column(screening, each, column, evidence)
        if verdict is None or (suite is not None and _is_folded(suite, verdict, from_pairs=from_pairs)):
            members.append(each.family.pairs[column])
        else:
            own.append(verdict)
    return own if suite is None else [replace(suite, members=tuple(members)), *own]


def _is_folded(suite: Verdict, verdict: Verdict, *, from_pairs: bool) -> bool:
    """Return whether a suite verdict speaks for a benchmark: its pairs' proof, or an INVALID night."""
    regressed = verdict.outcome is Outcome.REGRESSED
    if suite.outcome is Outcome.INVALID:
        return not regressed and Reason.HELD not in verdict.reasons
    return from_pairs and regressed and Reason.CREEP not in verdict.reasons


def _judge_column(screening: Screening, each: Screened, column: int, evidence: Evidence) -> Verdict:
    if each.creeping[column] and not screening.in_pairs(each.family.pairs[column]):
        tonight = _slower(screening, each, column, evidence) if each.slower[column] else None
        if tonight is not None and tonight.outcome is Outcome.REGRESSED:
            return tonight
        if each.family.moved[column] and each.creep_ln[column] <= BOARDS_APART_LN:
            if tonight is not None and Reason.HELD in tonight.reasons:
                return tonight  # by nights of this board: were it INVALID, no second night would follow it
            return replace(_crept(screening, each, column, Outcome.INVALID, Reason.BOARD), detail=OTHER_BOARD)
        return _crept(screening, each, column, Outcome.REGRESSED, Reason.CREEP)
    if each.slower[column] or each.creeping[column]:
        return _slower(screening, each, column, evidence)
    if each.faster[column]:
        return _faster(screening, each, column, evidence)
    return _quiet(screening, each, column)


def _verdict(
    screening: Screening,
    each: Screened,
    column: int,
    outcome: Outcome,
    reasons: Iterable[Reason] = (),
    *,
    effects: list[float] | None = None,
    in_pairs: bool | None = None,
    since: str | None = None,
) -> Verdict:
    """Return a verdict with its numbers: of the confirmation where `effects` are given, of the screening else."""
    in_pairs = screening.in_pairs(each.family.pairs[column]) if in_pairs is None else in_pairs
    family, limits = each.family, each.limits if in_pairs else each.unpaired
    effect = float(np.median(effects)) if effects else float(each.excess_ln[column])
    confirmed_in_pairs = bool(effects) and in_pairs
    nu = float((family.within_nu if confirmed_in_pairs else family.nu)[column])
    sd = float((limits if confirmed_in_pairs else each.unpaired).sd[column])
    half = float(student(INTERVAL_TAIL, nu)) * sd
    return Verdict(
        family.pairs[column],
        outcome,
        tuple(reasons),
        effect_ln=effect,
        interval_ln=(effect - half, effect + half),
        bound_ln=_block(each, column, effects or (), in_pairs=in_pairs),
        mde_ln=float(limits.mde[column]),
        nights=int(family.nights[column]),
        nu=nu,
        processes=len(effects or ()),
        since=since,
    )


def _block(each: Screened, column: int, effects: Sequence[float], *, in_pairs: bool) -> float:
    """Return B, or what results that scatter more than they ever did ask for (section 3.5)."""
    block = float((each.limits if in_pairs else each.unpaired).block[column])
    if not effects:
        return block
    variance = each.family.within_ln2[column] * (1 + in_pairs)  # a difference has two processes
    return max(block, float(own_bound(np.asarray(effects), variance, each.family.within_nu[column])))


def _quiet(screening: Screening, each: Screened, column: int, reasons: Iterable[Reason] = ()) -> Verdict:
    """Not suspect: PASS where twice the tolerance would have been seen, else UNGATEABLE (section 3.6)."""
    seen = each.limits.mde[column] <= 2 * each.family.tolerance_ln[column]
    return _verdict(screening, each, column, Outcome.PASS if seen else Outcome.UNGATEABLE, reasons)


def _unconfirmed(screening: Screening, each: Screened, column: int, evidence: Evidence) -> Verdict | None:
    """INVALID for a suspect whose confirmation is unsound or is not there."""
    pair = each.family.pairs[column]
    if fault := evidence.fault(pair):
        verdict = _verdict(screening, each, column, Outcome.INVALID, (Reason.BAD_VALUE,))
        return replace(verdict, detail=f"{pair}: confirming process: {fault}")
    if is_settled(screening, each, column, evidence):
        return None
    in_pairs = screening.in_pairs(pair)
    done = len(effects_ln(each, column, evidence, in_pairs=in_pairs))
    what = "pairs of processes" if in_pairs else "processes"
    verdict = _verdict(screening, each, column, Outcome.INVALID, (Reason.UNCONFIRMED,))
    return replace(verdict, detail=f"{done} of {int(each.limits.processes[column])} confirming {what} ran")


def _slower(screening: Screening, each: Screened, column: int, evidence: Evidence) -> Verdict:
    if broken := _unconfirmed(screening, each, column, evidence):
        return broken
    if not screening.in_pairs(each.family.pairs[column]):
        return _by_nights(screening, each, column, evidence)
    effects = effects_ln(each, column, evidence, in_pairs=True)
    effect, block = float(np.median(effects)), _block(each, column, effects, in_pairs=True)
    creeping = bool(each.creeping[column])
    if effect > block:
        reasons = (Reason.CREEP,) if creeping else ()
        since = _located(screening, each, column) if creeping else None
        return _verdict(screening, each, column, Outcome.REGRESSED, reasons, effects=effects, since=since)
    trusted_ln = trusted_shift_ln(each, column, evidence) if each.slower[column] else 0.0
    if trusted_ln > float(each.unpaired.block[column]):
        if host_changed(screening, each, column):
            return _by_nights(screening, each, column, evidence, Reason.HOST)
        if not (each.family.foreign[column] and trusted_ln <= BOARDS_APART_LN):  # another board slows both arms
            return _verdict(screening, each, column, Outcome.INVALID, (Reason.MACHINE,), effects=effects)
    if creeping:
        return _crept(screening, each, column, Outcome.INCONCLUSIVE, Reason.MACHINE_DRIFT)
    return _not_blocked(screening, each, column, effects)


def _not_blocked(
    screening: Screening,
    each: Screened,
    column: int,
    effects: list[float],
    causes: tuple[Reason, ...] = (),
    *,
    in_pairs: bool | None = None,
) -> Verdict:
    outcome, reason = Outcome.PASS, Reason.NOT_CONFIRMED
    if float(np.median(effects)) > each.family.tolerance_ln[column]:
        outcome, reason = Outcome.INCONCLUSIVE, Reason.NOT_PROVEN
    return _verdict(screening, each, column, outcome, (reason, *causes), effects=effects, in_pairs=in_pairs)


def _by_nights(screening: Screening, each: Screened, column: int, evidence: Evidence, *causes: Reason) -> Verdict:
    """The unpaired rule: far outside at once, outside on two nights in a row (section 3.5)."""
    effects = effects_ln(each, column, evidence, in_pairs=False)
    since = held_since(screening.history, each.family.pairs[column], Reason.HELD)
    block = np.asarray(_block(each, column, effects, in_pairs=False))
    proof = is_proven(np.asarray(np.median(effects)), block, each.family.df[column], since is not None)
    if proof and each.family.foreign[column] and np.median(effects) <= BOARDS_APART_LN:
        reasons = (Reason.BOARD, *causes)
        verdict = _verdict(screening, each, column, Outcome.INVALID, reasons, effects=effects, in_pairs=False)
        return replace(verdict, detail=OTHER_BOARD_AND_HOST if causes else OTHER_BOARD)
    if proof == 2:
        return _verdict(
            screening, each, column, Outcome.REGRESSED, causes, effects=effects, in_pairs=False, since=since
        )
    if proof == 1:
        reasons = (Reason.HELD, *causes)
        return _verdict(screening, each, column, Outcome.INCONCLUSIVE, reasons, effects=effects, in_pairs=False)
    verdict = _not_blocked(screening, each, column, effects, causes, in_pairs=False)
    if np.median(effects) <= block:
        return verdict
    needed = in_percent(float(AT_ONCE * block))
    return replace(verdict, detail=f"so few nights prove only what is above {needed}: calibrate, or run in pairs")


def _faster(screening: Screening, each: Screened, column: int, evidence: Evidence) -> Verdict:
    """The mirror of a slow-down, on two nights always (section 6); what is not confirmed is judged as not suspect."""
    in_pairs = screening.in_pairs(each.family.pairs[column])
    if _unconfirmed(screening, each, column, evidence) or (each.family.foreign[column] and not in_pairs):
        return _quiet(screening, each, column)
    effects = effects_ln(each, column, evidence, in_pairs=in_pairs)
    if float(np.median(effects)) >= -float(each.limits.block[column]):
        return _quiet(screening, each, column)
    since = held_since(screening.history, each.family.pairs[column], Reason.FASTER)
    if since is None:
        return _verdict(screening, each, column, Outcome.PASS, (Reason.FASTER,), effects=effects)
    return _verdict(screening, each, column, Outcome.IMPROVED, effects=effects, since=since)


def _crept(screening: Screening, each: Screened, column: int, outcome: Outcome, reason: Reason) -> Verdict:
    """A verdict against the anchor: its effect, bound, nights and degrees of freedom are the anchor's."""
    family = each.family
    effect, bound = float(each.creep_ln[column]), float(each.creep_bound_ln[column])
    nu, nights = float(family.anchor_nu[column]), float(family.anchor_nights[column])
    half = float(student(INTERVAL_TAIL, nu)) * float(np.sqrt(family.anchor_variance_ln2[column] * (0.5 + 4.4 / nights)))
    return replace(
        _verdict(screening, each, column, outcome, (reason,)),
        effect_ln=effect,
        interval_ln=(effect - half, effect + half),
        bound_ln=bound,
        nights=int(nights),
        nu=nu,
        since=_located(screening, each, column),
    )


def _located(screening: Screening, each: Screened, column: int) -> str | None:
    """Return the night with which the level rose: the split of the segment into two levels with least squares.

    It locates what something else has proven; it never blocks. None where tonight alone is the second level.
    """
    pair = each.family.pairs[column]
    nights = screening.history[each.family.first[column] :]
    known = [(night.name, value) for night in nights if is_valid(night, pair, value := value_ln(night, pair))]
    tonight = float(each.family.center_ln[column] + each.excess_ln[column])
    values = np.array([*(value for _, value in known), tonight])
    splits = range(1, len(values))
    gains = [s * (len(values) - s) * max(0.0, float(values[s:].mean() - values[:s].mean())) ** 2 for s in splits]
    best = 1 + int(np.argmax(gains)) if gains else len(known)
    return known[best][0] if best < len(known) else None
