"""One gated night as it runs: screening processes, confirming ones, controls, and what the history must remember.

What is to be run, and what it means, is decided by `gate.session`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fuseproof.confirming import Children, NothingPassedError
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.processes import ChildError, Progress
from fuseproof.replicates import Replicates
from fuseproof.selection import Selection
from fuseproof.trusted import Trusted
from fuseproof.verdicts.confirmation import SUITE_PROCESSES
from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.nightly import ConfirmPlan
from fuseproof.verdicts.recorded import night_of, tests_by_key
from fuseproof.verdicts.verdict import Waiver

__all__ = ["Tonight"]

_OF_ONE_ARM = 2  # processes that show whether processes of one arm agree as they always did
_CONTROLLED = 8  # benchmarks of theirs, the quietest: a fraction of a second each
# A kernel bound by arithmetic is as much slower as the SM clock is: arms twice a tolerance of 1 % apart are no pair.
_CLOCKS_APART_LN = math.log(1.02)


@dataclass
class Tonight:
    """A night that is being gated.

    Attributes:
        ledger: what the history says.
        settings: how the repository is gated.
        waivers: leave for known regressions.
        selection: what was asked for.
        children: what starts fresh processes.
        replicates: the screening processes.
        find_trusted: looks for the trusted environment: it, why it cannot be used, or None.
        say: prints a line of progress.
        notes: what a reader must know besides the verdicts, one sentence each.
        failed: a test of this session has failed in a fresh process of the same environment.

    """

    ledger: Ledger
    settings: GateSettings
    waivers: Sequence[Waiver]
    selection: Selection
    children: Children
    replicates: Replicates
    find_trusted: Callable[[], Trusted | str | None]
    say: Callable[[str], None]
    notes: list[str] = field(default_factory=list)
    failed: bool = False

    def run(self, name: str, own: dict[str, Any] | None, count: int) -> tuple[GateSession, bool]:
        """Screen, confirm and control; return the judged session, and whether it was interrupted.

        Args:
            name: the night's.
            own: what this process has measured; None for nothing.
            count: screening processes.

        Raises:
            HistoryError: the history cannot be read.

        """
        # Before tonight's files are among them: an unjudged night is named there, and this one is not judged yet.
        history, recall = self.ledger.nights(before=name), self.ledger.recall(before=name)
        interrupted = False
        try:
            self.replicates.run(own, count)
        except KeyboardInterrupt:
            interrupted = True
        self.notes += self.replicates.notes
        self.failed |= self.replicates.failed
        tonight = replace(
            self.ledger.night(name, self.replicates.documents),
            selection=str(self.selection),
            brought=frozenset(self.selection.brought),
        )

        def begin(*, paired: bool, alone: Collection[str] = ()) -> GateSession:
            return GateSession(
                self.settings,
                self.waivers,
                history,
                tonight,
                paired=paired,
                full_selection=not self.selection.narrowed,
                today=datetime.date.today(),
                selection=str(self.selection),
                recall=recall,
                alone=alone,
                incomplete=self.replicates.incomplete,
            )

        session = begin(paired=False)
        if interrupted:
            return session, True
        try:
            trusted, alone = self._trusted(session)
            if trusted is not None:
                session = begin(paired=True, alone=alone)
            self._confirm(name, session, tests_by_key(own) if own else {}, trusted)
        except KeyboardInterrupt:
            interrupted = True
        return session, interrupted

    def _trusted(self, session: GateSession) -> tuple[Trusted | None, Collection[str]]:
        """Return the environment to pair with, if there is one and anything to run in it, and keys not to pair."""
        if session.plan() is None:
            return None, ()
        found = self.find_trusted()
        if not isinstance(found, Trusted):
            self.notes += [found] if found is not None else []
            return None, ()
        strangers = found.strangers(session)
        screened = session.screening.screened
        judged = {e.family.pairs[column].key for e in screened for column in np.flatnonzero(e.judged)}
        if strangers:
            key, difference = min(strangers.items())
            self.notes.append(
                f"confirmed alone, not in pairs: {len(strangers)} of {len(judged)} benchmarks, whose segments did not "
                f"begin in {found.python} ({key}: {difference}); accept tonight's level and trust its environment, or "
                "set trusted_python to theirs"
            )
        return (found, strangers) if judged - strangers.keys() else (None, ())

    def _confirm(self, name: str, session: GateSession, tests: Mapping[str, str], trusted: Trusted | None) -> None:
        suspects = len({pair.key for pair in session.screening.suspects})
        progress = Progress(self.say, f"confirming {suspects} benchmark(s)")
        planted = 0
        # What is confirmed alone is compared with the history's nights, which lie where they came to lie.
        placed = trusted is not None and not session.screening.alone
        while plan := session.plan():
            wanted = [tests[key] for key in _keys(plan, tests) if key in tests]
            if not wanted:
                self.notes.append("suspects were measured by another process of this night and cannot be measured here")
                break
            number = len(session.evidence.tonight) + 1
            with progress.step(number, max(number, _processes(session)), "pair" if trusted else "process"):
                arms, placement = {}, f"{name}-{number}" if placed else ""
                try:
                    for arm in plan.order:
                        if arm == "A" and trusted is not None:
                            measured = self.children.measure(
                                wanted, python=trusted.python, environ=trusted.environ, placement=placement
                            )
                            self.notes += measured.failures("the trusted environment")
                            arms[arm] = measured.document
                        else:
                            arms[arm] = self._measure_tonight(session, wanted, tests, placement)
                except ChildError as error:
                    self.notes.append(f"confirming process {number} measured nothing: {error}")
                    break
                planted += self._add(session, arms)
        self._control(session, tests, planted)

    def _measure_tonight(
        self, session: GateSession, wanted: Sequence[str], tests: Mapping[str, str], placement: str = ""
    ) -> dict[str, Any]:
        """Run tests in tonight's environment, with the plant on its own test."""
        plant, plants = session.plant, {}
        if plant is not None and plant.pair.key in tests:
            wanted = list(dict.fromkeys([*wanted, tests[plant.pair.key]]))
            plants = {plant.pair.key: plant.size_ln}
        try:
            measured = self.children.measure(wanted, plants=plants, placement=placement)
        except NothingPassedError:
            self.failed = True
            raise
        self.notes += measured.failures("a fresh process")
        self.failed |= bool(measured.failed)
        return measured.document

    def _add(self, session: GateSession, arms: Mapping[str, dict[str, Any]], but: Collection[str] = ()) -> int:
        """Take in one confirming process or pair, but not what it says of some keys; return its planted effects."""
        nights = {arm: night_of(arm, [document]) for arm, document in arms.items()}
        values = {arm: self._sound(session, night, but) for arm, night in nights.items()}
        if (old := nights.get("A")) and old.sm_clock_mhz and nights["B"].sm_clock_mhz:
            apart_ln = math.log(old.sm_clock_mhz / nights["B"].sm_clock_mhz)
            if abs(apart_ln) > _CLOCKS_APART_LN:
                clocks = f"{old.sm_clock_mhz:.0f} MHz trusted, {nights['B'].sm_clock_mhz:.0f} MHz tonight"
                self.notes.append(f"a pair is not used: its arms ran at different SM clocks ({clocks})")
                values = {arm: {} for arm in values}
        session.add(values["B"], values.get("A"))
        effects = list(_planted(arms["B"]))
        for effect_ln in effects:
            session.add_planted(effect_ln)
        return len(effects)

    def _sound(self, session: GateSession, night: Night, but: Collection[str]) -> Values:
        """Return a process's values without those that must not be judged or mean something else than tonight's."""
        methods = session.screening.tonight.methods
        left_out = {key for key, method in night.methods.items() if methods.get(key) != method} | {*night.invalid, *but}
        kept = {pair: value for pair, value in night.screening[0].items() if pair.key not in left_out}
        for key, reasons in night.invalid.items():
            self.notes.append(f"{key}: a confirming process is not used: {'; '.join(reasons)}")
        for key in {k for k, method in night.methods.items() if methods.get(k, method) != method}:
            self.notes.append(f"{key}: the trusted environment measures it by another method")
        return kept

    def _control(self, session: GateSession, tests: Mapping[str, str], planted: int) -> None:
        """Run the controls that the processes so far do not hold: two of one arm, and a planted slow-down."""
        plant = session.plant
        if plant is None:
            return
        confirming = len(session.evidence.tonight)
        missing = _OF_ONE_ARM - confirming if max(confirming, self.replicates.count) < _OF_ONE_ARM else 0
        missing = max(missing, int(not planted)) * (plant.pair.key in tests)
        progress = Progress(self.say, f"controls: a slow-down planted on {plant.pair.key}")
        quietest = [tests[key] for key in _quietest(session) if key in tests][:_CONTROLLED]
        try:
            for number in range(1, missing + 1):
                with progress.step(number, missing):
                    document = self._measure_tonight(session, quietest, tests)
                planted += self._add(session, {"B": document}, but={pair.key for pair in session.screening.suspects})
        except ChildError as error:
            self.notes.append(f"a control measured nothing: {error}")
        if not planted:
            session.add_planted(math.nan)


def _keys(plan: ConfirmPlan, tests: Mapping[str, str]) -> list[str]:
    return list(tests) if plan.whole_suite else sorted({pair.key for pair in plan.pairs})


def _processes(session: GateSession) -> int:
    """Return how many confirming processes, or pairs of them, the night will need at most."""
    most = 0
    for each in session.screening.screened:
        flagged = each.slower | each.faster | each.creeping
        most = max(most, *each.limits.processes[flagged].tolist(), SUITE_PROCESSES * each.alarmed)
    return max(most, int(any(check.suspect for check in session.screening.checks)))


def _quietest(session: GateSession) -> list[str]:
    """Return the keys that are judged and not suspect, those first of which the smallest change would be seen."""
    found = {}
    for each in session.screening.screened:
        for column in np.flatnonzero(each.judged & ~(each.slower | each.faster | each.creeping)).tolist():
            found[each.family.pairs[column].key] = float(each.limits.mde[column])
    return sorted(found, key=lambda key: found[key])


def _planted(document: Mapping[str, Any]) -> Iterator[float]:
    """Yield the planted effects that a process has seen."""
    for benchmark in document["benchmarks"]:
        if arms := benchmark["extra_info"]["fuseproof"].get("plant"):
            yield math.log(arms["planted_ns"] / arms["base_ns"])
