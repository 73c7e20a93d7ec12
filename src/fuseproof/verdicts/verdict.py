"""The words of the gate: outcomes, reasons, one verdict, waivers and the exit status. Pure; imports nothing of ours.

How a verdict comes about is in `nightly` (and `looks` for an upgrade); what each means and what to do about it is in
`docs/verdicts.md`. Effects are natural logarithms of ratios (`_ln`), positive for slower or more; percent are for
messages only.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from fuseproof.statuses import REGRESSED, UNANSWERED

__all__ = [
    "SUITE",
    "Control",
    "Mark",
    "Outcome",
    "Pair",
    "Reason",
    "Verdict",
    "Waiver",
    "WaiverError",
    "apply_waivers",
    "closing_line",
    "exit_status",
    "in_percent",
    "marks_of",
    "waiver_fault",
]

SUITE = "*"
"""The key of a verdict on all benchmarks of a metric together."""


class Outcome(StrEnum):
    """What is said of one benchmark and metric; worst first, which is also the order of reports."""

    INVALID = "INVALID"
    MISSING = "MISSING"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    UNGATEABLE = "UNGATEABLE"
    NEW = "NEW"
    IMPROVED = "IMPROVED"
    PASS = "PASS"


_ORDER = {outcome: index for index, outcome in enumerate(Outcome)}


class Reason(StrEnum):
    """Why: the code beside an outcome. `docs/verdicts.md` has one line on each."""

    BAD_VALUE = "BAD_VALUE"
    MEASUREMENT = "MEASUREMENT"
    UNCONFIRMED = "UNCONFIRMED"
    MACHINE = "MACHINE"
    CLOCKS = "CLOCKS"
    HOST = "HOST"
    SUITE_SHIFT = "SUITE_SHIFT"
    CREEP = "CREEP"
    MACHINE_DRIFT = "MACHINE_DRIFT"
    BOARD = "BOARD"
    EXACT = "EXACT"
    UNSTABLE = "UNSTABLE"
    HELD = "HELD"
    NOT_PROVEN = "NOT_PROVEN"
    NOT_CONFIRMED = "NOT_CONFIRMED"
    FASTER = "FASTER"
    NO_BASELINE = "NO_BASELINE"
    NO_NOISE = "NO_NOISE"
    UNDECIDED = "UNDECIDED"
    FAILED = "FAILED"
    WITHDRAWN = "WITHDRAWN"


class Pair(NamedTuple):
    """A benchmark's key and one of its metrics: the unit that is judged."""

    key: str
    metric: str

    def __str__(self) -> str:
        return f"{'the whole suite' if self.key == SUITE else self.key} {self.metric}"


@dataclass(frozen=True)
class Mark:
    """What the history remembers of a pair's verdict on one night; `since` names the first night of the change."""

    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    since: str | None = None

    def is_invalid(self, *, accepted: bool) -> bool:
        """Return whether the night has no sound value of the pair: what another board measured is one once accepted."""
        return self.outcome is Outcome.INVALID and not (accepted and Reason.BOARD in self.reasons)


@dataclass(frozen=True)
class Verdict:
    """One verdict with the numbers that it rests on.

    Attributes:
        pair: what is judged; the key `*` stands for all benchmarks of the metric.
        outcome: the verdict.
        reasons: codes, the deciding one first.
        effect_ln: D, the estimated slow-down.
        interval_ln: its 95 % confidence interval.
        bound_ln: B, what the effect must exceed to block.
        mde_ln: minimum detectable effect: found in at least 95 % of nights.
        nights: K, the nights of the baseline.
        nu: degrees of freedom of the noise.
        processes: confirming processes (or pairs of them) that the verdict used.
        members: of a suite verdict: the pairs that it speaks for, each without a verdict of its own.
        since: the night with which the change began.
        detail: half a sentence for a reader: values, names, what was missing.
        waived: a regression that somebody has accepted for some time, with a waiver.

    """

    pair: Pair
    outcome: Outcome
    reasons: tuple[Reason, ...] = ()
    effect_ln: float | None = None
    interval_ln: tuple[float, float] | None = None
    bound_ln: float | None = None
    mde_ln: float | None = None
    nights: int | None = None
    nu: float | None = None
    processes: int = 0
    members: tuple[Pair, ...] = ()
    since: str | None = None
    detail: str = ""
    waived: bool = False

    @property
    def label(self) -> str:
        """The outcome with its reasons: `INCONCLUSIVE(HELD, HOST)`."""
        return f"{self.outcome}({', '.join(self.reasons)})" if self.reasons else str(self.outcome)

    @property
    def order(self) -> tuple[int, Pair]:
        """Sorts verdicts worst first."""
        return _ORDER[self.outcome], self.pair

    @property
    def message(self) -> str:
        """One line for a terminal: verdict, pair and all numbers, in percent."""
        numbers = []
        if self.effect_ln is not None:
            interval = "" if self.interval_ln is None else " ({} to {})".format(*map(in_percent, self.interval_ln))
            numbers.append(f"{in_percent(self.effect_ln)}{interval}")
        if self.bound_ln is not None:
            numbers.append(f"bound {in_percent(self.bound_ln)}")
        if self.mde_ln is not None:
            numbers.append(f"detectable {in_percent(self.mde_ln)}")
        if self.nights is not None:
            numbers.append(f"K {self.nights}")
        if self.nu is not None:
            numbers.append(f"nu {self.nu:.1f}")
        if self.processes:
            numbers.append(f"{self.processes} confirming")
        if self.members:
            numbers.append(f"{len(self.members)} benchmark(s)")
        if self.since is not None:
            numbers.append(f"since {self.since}")
        if self.detail:
            numbers.append(self.detail)
        return f"{self.label}{' waived' if self.waived else ''} {self.pair}: {', '.join(numbers) or 'no numbers'}"


# As far as a percentage says something, and as far as a factor does: what is beyond was hardly measured.
_PERCENT_LN, _FACTOR_LN = math.log(10), math.log(1000)


def in_percent(ratio_ln: float) -> str:
    """Return a logarithm of a ratio as the percentage it stands for; beyond ten times as a factor: `x 12`, `x 0.08`."""
    if not abs(ratio_ln) > _PERCENT_LN:
        return f"{math.expm1(ratio_ln) * 100:+.2f} %"
    if abs(ratio_ln) > _FACTOR_LN:
        return "> x 1000" if ratio_ln > 0 else "< x 0.001"
    return f"x {math.exp(ratio_ln):.{0 if ratio_ln > 0 else 3}f}"


@dataclass(frozen=True)
class Control:
    """Whether the gate was shown to work tonight (docs/verdicts.md, section 8)."""

    name: str
    passed: bool
    detail: str = ""


@dataclass(frozen=True)
class Waiver:
    """Somebody's leave for one pair to be slower by at most `limit_ln` until the end of a day."""

    pair: Pair
    limit_ln: float
    reason: str
    owner: str
    expires: datetime.date


class WaiverError(Exception):
    """A waiver that must be removed or renewed; the message says which."""


def waiver_fault(waiver: Waiver, verdicts: Sequence[Verdict], today: datetime.date) -> str | None:
    """Return a sentence on a waiver that has expired, or whose pair was judged and needs it no longer; else None."""
    name = f"the waiver of {waiver.pair} ({waiver.reason}, {waiver.owner})"
    if waiver.expires < today:
        return f"{name} expired on {waiver.expires}: renew it or remove it"
    about = [verdict.outcome for verdict in verdicts if waiver.pair in (verdict.pair, *verdict.members)]
    if Outcome.REGRESSED not in about and about and about[-1] in (Outcome.PASS, Outcome.IMPROVED):
        return f"{name} is not needed: the verdict is {about[-1]}; remove it"
    return None


def apply_waivers(verdicts: Iterable[Verdict], waivers: Sequence[Waiver], today: datetime.date) -> list[Verdict]:
    """Return the verdicts with those regressions marked that a waiver covers.

    A suite verdict is waived when each of its members is, by the suite's effect.

    Raises:
        WaiverError: a waiver has expired, or its pair was judged and needs it no longer.

    """
    verdicts = list(verdicts)
    for waiver in waivers:
        if fault := waiver_fault(waiver, verdicts, today):
            raise WaiverError(fault)
    limits_ln = {waiver.pair: waiver.limit_ln for waiver in waivers}

    def applied(verdict: Verdict) -> Verdict:
        if verdict.outcome is not Outcome.REGRESSED or verdict.effect_ln is None:
            return verdict
        own = limits_ln.get(verdict.pair)
        limits = [limits_ln.get(pair) for pair in verdict.members] if own is None and verdict.members else [own]
        if all(limit is not None and verdict.effect_ln <= limit for limit in limits):
            return replace(verdict, waived=True)
        if own is None:
            return verdict
        above = f"above its waiver's {in_percent(own)}"
        return replace(verdict, detail=f"{verdict.detail}; {above}" if verdict.detail else above)

    return [applied(verdict) for verdict in verdicts]


def exit_status(verdicts: Iterable[Verdict], controls: Iterable[Control] = (), *, required_gate: bool = False) -> int:
    """Return what the session exits with if its tests passed (docs/verdicts.md, section 4).

    20 for a regression that no waiver covers; else 21 where the question could not be answered: INVALID, MISSING, held
    for a second night, a failed control and, with the gate required, NEW, INCONCLUSIVE and UNGATEABLE too; else 0.
    """
    verdicts = list(verdicts)
    if any(each.outcome is Outcome.REGRESSED and not each.waived for each in verdicts):
        return REGRESSED
    unanswered = {Outcome.INVALID, Outcome.MISSING}
    if required_gate:
        unanswered |= {Outcome.NEW, Outcome.INCONCLUSIVE, Outcome.UNGATEABLE}
    if any(each.outcome in unanswered or Reason.HELD in each.reasons for each in verdicts):
        return UNANSWERED
    return 0 if all(control.passed for control in controls) else UNANSWERED


def closing_line(verdicts: Iterable[Verdict]) -> str:
    """Return the counts of all outcomes that occur, worst first: nothing is green in silence."""
    counts = Counter(each.outcome for each in verdicts for _ in range(max(1, len(each.members))))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]) or "nothing judged"


def marks_of(verdicts: Iterable[Verdict]) -> dict[Pair, Mark]:
    """Return what the history must remember of a night: a suite verdict marks itself and all of its members."""
    marks: dict[Pair, Mark] = {}
    for verdict in sorted(verdicts, key=lambda each: each.pair.key != SUITE):  # a pair's own verdict comes last
        mark = Mark(verdict.outcome, verdict.reasons, verdict.since)
        marks |= dict.fromkeys((verdict.pair, *verdict.members), mark)
    return marks
