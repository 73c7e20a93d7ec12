"""One gated night from beginning to end, without any reading, writing or running: what to run next, what it says."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

from fuseproof.gate.records import NightRecord, Recall
from fuseproof.gate.settings import GateSettings
from fuseproof.gate.waivers import unknown_waivers
from fuseproof.statuses import UNANSWERED
from fuseproof.verdicts.controls import (
    Plant,
    Planting,
    Unchanged,
    choose_plant,
    count_unchanged,
    judge_plant,
    judge_same_arm,
    judge_unchanged,
)
from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.nightly import ConfirmPlan, Evidence, confirm_plan, judge, screen
from fuseproof.verdicts.screening import Screening, reference_night
from fuseproof.verdicts.verdict import (
    Control,
    Mark,
    Outcome,
    Pair,
    Verdict,
    Waiver,
    apply_waivers,
    exit_status,
    marks_of,
    waiver_fault,
)

__all__ = ["GateSession"]

_NOT_JUDGED = {Outcome.NEW, Outcome.MISSING, Outcome.INVALID}


class GateSession:
    """One night against the history.

    session = GateSession(...)
    while plan := session.plan():
        session.add(...)  # one more confirming process, or pair of them
    session.verdicts, session.controls, session.status()

    Attributes:
        settings: how the repository is gated.
        selection: what was asked for, in the words of the command line; empty for everything.
        full_selection: whether the whole suite was asked for, so that what did not run is MISSING.
        recall: what the history says besides its nights.
        incomplete: what tonight lacks of the screening processes that were asked for, one sentence each.
        from_files: nothing is run: of a planted slow-down is known what the night's own session has left.
        screening: what tonight's own processes say.
        evidence: the confirming processes so far.

    """

    def __init__(
        self,
        settings: GateSettings,
        waivers: Sequence[Waiver],
        history: Sequence[Night],
        tonight: Night,
        *,
        paired: bool,
        full_selection: bool,
        today: datetime.date,
        selection: str = "",
        recall: Recall | None = None,
        alone: Collection[str] = (),
        incomplete: Sequence[str] = (),
        from_files: bool = False,
        planting: Planting | None = None,
    ) -> None:
        self.settings = settings
        self.selection = selection
        self.full_selection = full_selection
        self.from_files = from_files
        self.recall = recall or Recall()
        self.incomplete = tuple(incomplete)
        self.screening: Screening = screen(
            history, tonight, rules=settings.rules, paired=paired, full_selection=full_selection, alone=alone
        )
        self.evidence = Evidence()
        self._waivers = tuple(waivers)
        self._today = today
        self._planted: list[float] = []
        self._planting = planting

    def plan(self) -> ConfirmPlan | None:
        """Return what the next confirming process, or pair of processes, must run; None when enough is known."""
        return confirm_plan(self.screening, self.evidence)

    def add(self, tonight: Values, trusted: Values | None = None) -> None:
        """Take in one more confirming process; in a pair, with the one of the trusted environment beside it."""
        self.evidence = self.evidence.add(tonight, trusted)
        self._forget()

    @cached_property
    def plant(self) -> Plant | None:
        """The slow-down to be planted as a control; None where nothing is judged that has noise."""
        # Of a training iteration the device time comes from the profiler; what can be planted is read by its own clock.
        iterations = {pair.key for pair in self.screening.tonight.pairs if pair.metric == "iteration_time_ns"}
        plants = (
            choose_plant(each, iterations if each.family.rule.metric == "device_time_ns" else ())
            for each in self.screening.screened
        )
        return min((plant for plant in plants if plant is not None), key=lambda plant: plant.size_ln, default=None)

    @property
    def planting(self) -> Planting | None:
        """What became of the planted slow-down; None where a night judged from files has left nothing of it."""
        return self._planting if self.from_files else Planting(self.plant, tuple(self._planted))

    @property
    def planted(self) -> bool:
        """Whether a planted slow-down was looked for."""
        return bool(self._planted)

    def add_planted(self, effect_ln: float) -> None:
        """Take in one planted slow-down as it was seen: the logarithm of planted over plain."""
        self._planted.append(effect_ln)
        self._forget()

    def _forget(self) -> None:
        for name in ("_raw", "verdicts", "controls"):
            self.__dict__.pop(name, None)

    @cached_property
    def _raw(self) -> list[Verdict]:
        return judge(self.screening, self.evidence)

    @cached_property
    def verdicts(self) -> list[Verdict]:
        """All verdicts so far, worst first, waivers applied; a waiver that is at fault covers nothing."""
        sound = [each for each in self._waivers if waiver_fault(each, self._raw, self._today) is None]
        return apply_waivers(self._raw, sound, self._today)

    @property
    def marks(self) -> Mapping[Pair, Mark]:
        """What the history must remember of this night."""
        return marks_of(self._raw)

    @property
    def record(self) -> NightRecord:
        """All that the history must remember of this night."""
        return NightRecord(self.marks, self.evidence, self.unchanged, self.planting)

    @property
    def unchanged(self) -> Unchanged | None:
        """This night's decisions, if software and host are those of its baseline; else None."""
        counts = []
        for each in self.screening.screened:
            if not each.judged.any():
                continue
            reference, tonight = reference_night(self.screening, each), self.screening.tonight
            if (reference.host, reference.software) != (tonight.host, tonight.software):
                return None
            counts.append(count_unchanged(each, self._raw))
        return (
            Unchanged(*(sum(getattr(c, n) for c in counts) for n in ("decisions", "above", "blocks")))
            if counts
            else None
        )

    @cached_property
    def controls(self) -> list[Control]:
        """Whether the gate was awake, its waivers are sound, and its history is whole."""
        arms = (self.screening.tonight.screening, self.evidence.tonight, self.evidence.trusted)
        found = [
            Control(f"{control.name} {each.family.rule.metric}", control.passed, control.detail)
            for each in self.screening.screened
            if each.judged.any()
            for control in [judge_same_arm(each, arms)]
        ]
        planting = self.planting
        # A saved night whose session ended before it looked has shown nothing: that of a running one is not over yet.
        if planting is not None and planting.plant is not None and (planting.effects_ln or self.from_files):
            found.append(judge_plant(planting.plant, planting.effects_ln))
        own = [self.unchanged] if self.unchanged is not None else []
        if own or self.recall.unchanged:
            found.append(judge_unchanged([*self.recall.unchanged, *own]))
        found += [Control("screening", passed=False, detail=sentence) for sentence in self.incomplete]
        found += [Control("waivers", passed=False, detail=fault) for fault in self._waiver_faults()]
        found += [Control("history", passed=False, detail=sentence) for sentence in self.recall.lost]
        return found

    def _waiver_faults(self) -> Iterable[str]:
        faults = (waiver_fault(each, self._raw, self._today) for each in self._waivers)
        yield from (fault for fault in faults if fault is not None)
        if self.full_selection:
            yield from unknown_waivers(self._waivers, self.screening.known | self.screening.tonight.pairs)

    def status(self, required_gate: bool = False) -> int:
        """Return the exit status of a session whose tests passed; 0 in the modes "warn" and "off"."""
        if self.settings.mode != "fail":
            return 0
        status = exit_status(self.verdicts, self.controls, required_gate=required_gate)
        return UNANSWERED if status == 0 and required_gate and not self.judged[0] else status

    @property
    def judged(self) -> tuple[int, int]:
        """How many keys were judged, of how many that the history or tonight has."""
        known = {pair.key for pair in self.screening.known | self.screening.tonight.pairs}
        known |= self.screening.tonight.invalid.keys()
        kept = [verdict for verdict in self.verdicts if verdict.outcome not in _NOT_JUDGED]
        judged = {pair.key for verdict in kept for pair in (verdict.members or (verdict.pair,))}
        judged |= {verdict.pair.key for verdict in kept if verdict.pair.key in known}
        return len(judged), len(known)
