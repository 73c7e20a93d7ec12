"""What is run to confirm a suspect, and when it is enough (docs/verdicts.md, sections 3.4 and 5).

One process runs all remaining suspects. In pairs with the trusted environment where that runs here, alone else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from fuseproof.verdicts import bounds
from fuseproof.verdicts.boards import BOARDS_APART_LN, OTHER_BOARD, OTHER_BOARD_AND_HOST
from fuseproof.verdicts.night import Values, fault_of, values_ln
from fuseproof.verdicts.screening import Screened, Screening, held_since, reference_night
from fuseproof.verdicts.verdict import SUITE, Outcome, Pair, Reason, Verdict

__all__ = ["ConfirmPlan", "Evidence", "confirm_plan", "judge_suite"]

SUITE_PROCESSES = 3


@dataclass(frozen=True)
class Evidence:
    """What the confirming processes have measured so far, in the order in which they ran.

    Attributes:
        tonight: the environment under test.
        trusted: the trusted environment; entry i ran in a pair with entry i of `tonight`.

    """

    tonight: tuple[Values, ...] = ()
    trusted: tuple[Values, ...] = ()

    def add(self, tonight: Values, trusted: Values | None = None) -> Evidence:
        """Return the evidence with one more process, or pair of processes."""
        return replace(
            self,
            tonight=(*self.tonight, tonight),
            trusted=self.trusted if trusted is None else (*self.trusted, trusted),
        )

    def differences_ln(self, pair: Pair) -> list[float]:
        """Return tonight over trusted for each pair of processes that measured it soundly."""
        arms = zip(self.tonight, self.trusted, strict=False)
        both = [(values_ln([new], pair), values_ln([old], pair)) for new, old in arms]
        return [new[0] - old[0] for new, old in both if new and old]

    def fault(self, pair: Pair) -> str | None:
        """Return what is wrong with the first unsound value of a pair."""
        found = (fault_of(values[pair]) for values in (*self.tonight, *self.trusted) if pair in values)
        return next((fault for fault in found if fault is not None), None)


@dataclass(frozen=True)
class ConfirmPlan:
    """The next confirming process.

    Attributes:
        pairs: what it must measure; empty means everything.
        order: the arms in the order in which they run: A trusted, B tonight; "B" alone without a trusted environment.

    """

    pairs: tuple[Pair, ...]
    order: Literal["AB", "BA", "B"]

    @property
    def whole_suite(self) -> bool:
        """Whether the process runs everything."""
        return not self.pairs


def effects_ln(each: Screened, column: int, evidence: Evidence, *, in_pairs: bool) -> list[float]:
    """Return a suspect's confirmed effects, one per process: pair differences, or z - m - c."""
    pair = each.family.pairs[column]
    if in_pairs:
        return evidence.differences_ln(pair)
    center = float(each.family.center_ln[column]) + each.clipped_ln
    return [value - center for value in values_ln(evidence.tonight, pair)]


def trusted_shift_ln(each: Screened, column: int, evidence: Evidence) -> float:
    """Return how far the trusted arm itself lies above the baseline tonight."""
    center = float(each.family.center_ln[column]) + each.clipped_ln
    return float(np.median(values_ln(evidence.trusted, each.family.pairs[column]))) - center


def host_changed(screening: Screening, each: Screened, column: int | None = None) -> bool:
    """Return whether driver or firmware differ from those of the baseline's newest night."""
    return reference_night(screening, each, column).host != screening.tonight.host


def is_settled(screening: Screening, each: Screened, column: int, evidence: Evidence) -> bool:
    """Return whether a suspect needs no further process: all have run, or the median can no longer exceed B."""
    in_pairs = screening.in_pairs(each.family.pairs[column])
    effects = effects_ln(each, column, evidence, in_pairs=in_pairs)
    processes, block = int(each.limits.processes[column]), float(each.limits.block[column])
    if len(effects) >= processes:
        return True
    slower = bool(each.slower[column] or each.creeping[column])
    cleared = bounds.is_cleared(effects if slower else [-effect for effect in effects], block, processes)
    if cleared and slower and in_pairs and host_changed(screening, each, column):
        # A change of the host slows both arms: pairs do not clear it, and before blocking all must have run.
        return trusted_shift_ln(each, column, evidence) <= float(each.unpaired.block[column])
    return cleared


def confirm_plan(screening: Screening, evidence: Evidence | None = None) -> ConfirmPlan | None:
    """Return what to run next, None when the evidence is enough: call it after each process."""
    evidence = evidence or Evidence()
    done = len(evidence.tonight)
    order: Literal["AB", "BA", "B"] = "B" if not screening.paired else "BA" if done % 2 else "AB"
    if done < SUITE_PROCESSES and any(each.alarmed for each in screening.screened):
        return ConfirmPlan((), order)
    # A suspect that crashes in each process is not waited for: it stays unconfirmed.
    wanted = []
    if done < SUITE_PROCESSES:
        wanted = [check.pair for check in screening.checks if check.suspect and not _ran(check.pair, evidence)]
    for each in screening.screened:
        suite = judge_suite(screening, each, evidence)
        covered = covered_columns(screening, each, suite)
        for column in np.flatnonzero(each.slower | each.faster | each.creeping):
            in_pairs = screening.in_pairs(each.family.pairs[column])
            if not in_pairs and not (each.slower[column] or each.faster[column]):
                continue  # creep: five nights have said it
            if done >= each.limits.processes[column] + SUITE_PROCESSES or evidence.fault(each.family.pairs[column]):
                continue
            if column not in covered and not is_settled(screening, each, int(column), evidence):
                wanted.append(each.family.pairs[column])
    return ConfirmPlan(tuple(sorted(wanted)), order) if wanted else None


def _ran(pair: Pair, evidence: Evidence) -> bool:
    return any(pair in values for values in evidence.tonight)


def covered_columns(screening: Screening, each: Screened, suite: Verdict | None) -> set[int]:
    """Return the suspects that a suite verdict from the history speaks for: no further out than the suite by B.

    They are never cleared by that, only named there. Under a suite verdict from pairs each suspect has its own pairs.
    """
    if suite is None or (screening.paired and Reason.HOST not in suite.reasons):
        return set()
    within = each.shift_ln - each.common_ln <= each.unpaired.block
    return set(np.flatnonzero(each.slower & within).tolist())


def judge_suite(screening: Screening, each: Screened, evidence: Evidence) -> Verdict | None:
    """Return the verdict on a shift of the whole suite (section 5), None where there is none.

    The alarm must be seen again in three more full processes. Pairs then say whether the environment or the machine did
    it; without them, or where the host has changed under both arms, recorded evidence does. Never PASS.
    """
    if not each.alarmed or len(evidence.tonight) < SUITE_PROCESSES:
        return None
    again = [_full(each, evidence.tonight, column) for column in np.flatnonzero(each.judged).tolist()]
    if float(np.median([shift for shift in again if shift is not None] or [0.0])) <= each.alarm_ln:
        return None
    pair = Pair(SUITE, each.family.rule.metric)
    tolerance = float(np.median(each.family.tolerance_ln[each.judged]))
    nights = int(np.median(each.family.nights[each.judged]))

    def verdict(
        outcome: Outcome, *reasons: Reason, effect_ln: float = each.common_ln, since: str | None = None
    ) -> Verdict:
        return Verdict(
            pair,
            outcome,
            reasons,
            effect_ln,
            bound_ln=each.alarm_ln,
            nights=nights,
            processes=SUITE_PROCESSES,
            since=since,
        )

    cause: tuple[Reason, ...] = ()
    if screening.paired:
        first = Evidence(evidence.tonight[:SUITE_PROCESSES], evidence.trusted[:SUITE_PROCESSES])
        judged = [each.family.pairs[column] for column in np.flatnonzero(each.judged)]
        columns = [first.differences_ln(pair) for pair in judged if screening.in_pairs(pair)]
        paired_ln = float(np.median([float(np.median(column)) for column in columns if column] or [0.0]))
        if paired_ln > tolerance:
            return verdict(Outcome.REGRESSED, Reason.SUITE_SHIFT, effect_ln=paired_ln)
        if paired_ln > tolerance / 2:
            return None
        if not host_changed(screening, each):
            if _is_board(each):
                return None  # it slows both arms, and pairs say of each suspect whether anything else does
            return verdict(Outcome.INVALID, Reason.MACHINE, effect_ln=paired_ln)
        cause = (Reason.HOST,)
    reference, tonight = reference_night(screening, each), screening.tonight
    if reference.sm_clock_mhz and tonight.sm_clock_mhz:
        explained_ln = float(np.log(reference.sm_clock_mhz / tonight.sm_clock_mhz))
        if abs(each.common_ln - explained_ln) <= tolerance / 2:
            return verdict(Outcome.INVALID, Reason.CLOCKS)
    if _is_board(each):
        detail = OTHER_BOARD_AND_HOST if cause else OTHER_BOARD
        return replace(verdict(Outcome.INVALID, Reason.BOARD, *cause), detail=detail)
    if (reference.host, reference.software) == (tonight.host, tonight.software):
        return verdict(Outcome.INVALID, Reason.MACHINE)
    since = held_since(screening.history, pair, Reason.HELD)
    if since is None:
        return verdict(Outcome.INCONCLUSIVE, Reason.HELD, Reason.SUITE_SHIFT, *cause)
    return verdict(Outcome.REGRESSED, Reason.SUITE_SHIFT, *cause, since=since)


def _is_board(each: Screened) -> bool:
    """Return whether a shift of the suite may be another board's: it is small, and most baselines are of others."""
    foreign = each.family.foreign[each.judged]
    return bool(2 * np.sum(foreign) > foreign.size) and each.common_ln <= BOARDS_APART_LN


def _full(each: Screened, processes: Sequence[Values], column: int) -> float | None:
    values = values_ln(processes[:SUITE_PROCESSES], each.family.pairs[column])
    return float(np.median(values)) - float(each.family.center_ln[column]) if values else None
