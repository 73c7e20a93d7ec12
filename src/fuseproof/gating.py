"""The gate of a pytest session: what becomes of a night's verdicts.

The history's marks, lines for the terminal, properties for JUnit, a JSON file, the exit status.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fuseproof import junit, machine
from fuseproof.bookkeeping import Bookkeeper
from fuseproof.confirming import Children
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.present import table_lines, to_json
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.gate.waivers import load_waivers
from fuseproof.history import HistoryError
from fuseproof.replicates import Replicates
from fuseproof.requirements import requirements
from fuseproof.statuses import TESTS_FAILED, UNANSWERED
from fuseproof.tonight import Tonight
from fuseproof.trusted import find_trusted, trusted_fault
from fuseproof.verdicts.recorded import tests_by_key, values_of
from fuseproof.verdicts.verdict import Mark, Outcome, Reason, Waiver

__all__ = ["Gate"]


@dataclass
class Gate:
    """The gate of one session.

    Attributes:
        settings: the configuration, with the mode that the command line asks for.
        waivers: leave for known regressions.
        book: the stored side of the session.
        root: the repository.
        notes: what can be told before anything runs: why nothing will be confirmed in pairs.
        replicates: screening processes tonight.
        json_path: where the verdicts are written as JSON; None for nowhere.
        required: NEW, INCONCLUSIVE and UNGATEABLE are no answer either (``--fuseproof-require=gate``).
        lines: for the terminal's summary.
        document: all verdicts, as JSON holds them.
        tests: by key, the test of this session that has measured it.

    """

    settings: GateSettings
    waivers: list[Waiver]
    book: Bookkeeper
    root: Path
    replicates: int
    json_path: Path | None
    required: bool
    notes: Sequence[str] = ()
    lines: list[str] = field(default_factory=list)
    document: dict[str, Any] = field(default_factory=dict)
    tests: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, config: pytest.Config, settings: GateSettings, book: Bookkeeper) -> Gate:
        """Return the gate that a command line asks for.

        Raises:
            ConfigError: the waivers cannot be used.
            pytest.UsageError: an option cannot.

        """
        option = config.option
        settings = dataclasses.replace(settings, mode=option.fuseproof_gate or settings.mode)
        book.gated = settings.mode != "off" and book.asked.compare is not None
        path = config.invocation_params.dir / option.fuseproof_gate_json if option.fuseproof_gate_json else None
        if option.fuseproof_replicates > 1 and not book.gated:
            raise pytest.UsageError("--fuseproof-replicates: they are a night to judge; give --benchmark-compare too.")
        if option.fuseproof_replicates < 1:
            raise pytest.UsageError("--fuseproof-replicates: a night has at least one process.")
        if path is not None and not book.gated:
            raise pytest.UsageError("--fuseproof-gate-json: there are no verdicts without --benchmark-compare.")
        if path is not None and not path.parent.is_dir():
            raise pytest.UsageError(f"--fuseproof-gate-json={path}: there is no folder {path.parent}.")
        if path is not None:
            try:
                path.unlink(missing_ok=True)  # of another night: whoever ends this session early leaves no verdicts
            except OSError as error:
                raise pytest.UsageError(
                    f"--fuseproof-gate-json={path}: cannot be written ({error.strerror}); give another."
                ) from None
        fault = trusted_fault(settings, config.rootpath) if book.gated else None
        return cls(
            settings,
            load_waivers(config.rootpath, settings) if book.gated else [],
            book,
            config.rootpath,
            option.fuseproof_replicates,
            path,
            "gate" in requirements(option.fuseproof_require),
            [fault] if fault is not None else [],
        )

    def finish(self, session: pytest.Session, children: Children, say: Callable[[str], None]) -> None:
        """Screen, confirm, judge, remember and tell; sets the session's exit status.

        Args:
            session: whose tests have run.
            children: what starts fresh processes.
            say: prints a line of progress.

        """
        own = self.book.document(session.config)
        if own is not None:
            self.tests = tests_by_key(own)
            children.believe(own)
        ledger = Ledger(self.book.history, machine.identify().slug)
        try:
            if session.config.option.collectonly or session.config.option.setuponly:
                self._nothing_run(session)
            elif session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                self._judge(session, own, ledger, children, say)
            else:
                self._not_judged(session, own, ledger)
        except HistoryError as error:
            self._conclude([f"gate: nothing judged: {error}"], {"verdicts": [], "controls": []}, [])
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR

    def _judge(
        self,
        session: pytest.Session,
        own: dict[str, Any] | None,
        ledger: Ledger,
        children: Children,
        say: Callable[[str], None],
    ) -> None:
        if own is None and self.book.asked.label is not None:
            self.book.save(own)
        replicates = Replicates(self.book, children, say)
        tonight = Tonight(
            ledger,
            self.settings,
            self.waivers,
            self.book.selection,
            children,
            replicates,
            lambda: find_trusted(self.settings, self.root),
            say,
        )
        try:
            judged, interrupted = tonight.run(self.book.night, own, self.replicates)
        except HistoryError:  # without a verdict the night is no baseline, and what it measured is not lost
            if self.book.asked.label is not None and own is not None and not replicates.documents:
                self.book.save(own)
            raise
        notes = list(dict.fromkeys([*self.notes, *tonight.notes]))
        unsaved = replicates.unsaved or not self._remember(ledger, judged, notes)
        if interrupted:
            notes.append("interrupted: suspects that had not been confirmed by then are INVALID")
            session.exitstatus = pytest.ExitCode.INTERRUPTED
        elif unsaved:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        elif session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = TESTS_FAILED if tonight.failed else judged.status(self.required)
        self._conclude(table_lines(judged), to_json(judged), notes)
        if tonight.failed and session.exitstatus == TESTS_FAILED:  # though all tests of this process may have passed
            self.lines.append("status 1: tests failed in fresh processes of this night, as said above")

    def _remember(self, ledger: Ledger, judged: GateSession, notes: list[str]) -> bool:
        """Store what was said of a saved night; False where that cannot be written."""
        if not judged.screening.tonight.screening:
            return True
        if self.book.asked.label is None:
            if any(Reason.HELD in verdict.reasons for verdict in judged.verdicts):
                notes.append("held for a second night, but this one is not saved: run with --benchmark-autosave")
            return True
        try:
            ledger.mark(
                self.book.night,
                judged.marks,
                evidence=judged.evidence,
                unchanged=judged.unchanged,
                planting=judged.planting,
            )
        except HistoryError as error:
            notes.append(str(error))
            return False
        return True

    def _nothing_run(self, session: pytest.Session) -> None:
        """Say that nothing was to be run: what nobody has tried to measure is not missing."""
        if self.required and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = UNANSWERED
        self._conclude(["gate: nothing judged: no test was to be run"], {"verdicts": [], "controls": []}, [])

    def _not_judged(self, session: pytest.Session, own: dict[str, Any] | None, ledger: Ledger) -> None:
        """Save a session that was to be judged and cannot be, so that it never becomes a baseline."""
        if self.book.asked.label is not None:
            self.book.save(own)
            if own is not None:
                spoiled = Mark(Outcome.INVALID, (Reason.MEASUREMENT,))
                ledger.mark(self.book.night, dict.fromkeys(values_of(own), spoiled))
        why = f"the session ended with status {int(session.exitstatus)}"
        self._conclude([f"gate: nothing judged: {why}"], {"verdicts": [], "controls": []}, [])

    def _conclude(self, lines: list[str], document: dict[str, Any], notes: list[str]) -> None:
        self.lines += [*notes, *lines]
        self.document = {"summary": lines[-1], **document, "notes": notes}

    def tell(self, session: pytest.Session, record_property: Callable[[str, object], None] | None) -> None:
        """Write the JSON file, and JUnit's properties of the suite: what was said, and the status it ends with."""
        status = int(session.exitstatus)
        if self.json_path is not None:
            block = {"status": status, "mode": self.settings.mode, "night": self.book.night}
            try:
                text = json.dumps({**block, **self.document}, indent=1, allow_nan=False)
                self.json_path.write_text(f"{text}\n", encoding="utf-8")
            except (OSError, ValueError) as error:
                self.lines.append(f"{self.json_path}: the verdicts cannot be written: {error}")
                session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
        if record_property is not None:
            record_property("fuseproof.status", status)
            record_property("fuseproof.gate", self.document["summary"])
            for note in self.document["notes"]:
                record_property("fuseproof.note", note)
            for verdict in self.document["verdicts"]:
                record_property(f"fuseproof.{verdict['key']} {verdict['metric']}", verdict["message"])

    def annotate(self, path: Path) -> None:
        """Put each verdict on its test case in the JUnit file that pytest has written."""
        said: dict[str, dict[str, str]] = {}
        for verdict in self.document["verdicts"]:
            if test := self.tests.get(verdict["key"]):
                said.setdefault(test, {})[f"fuseproof.{verdict['metric']}"] = verdict["message"]
        try:
            junit.annotate(path, said)
        except (OSError, ElementTree.ParseError) as error:
            self.lines.append(f"{path}: verdicts are properties of the suite alone: {error}")
