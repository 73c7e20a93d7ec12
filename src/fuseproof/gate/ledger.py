"""The nights of one machine as the gate needs them: runs, and what was said of them, in one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from fuseproof.gate.choice import choose
from fuseproof.gate.records import NightRecord, Recall, by_metric
from fuseproof.gate.sheet import Row, Sheet
from fuseproof.history import VERDICTS, History
from fuseproof.index import Index, opened
from fuseproof.storage import HistoryError, shown
from fuseproof.verdicts.controls import Planting, Unchanged, judge_plant
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.recorded import assembled, night_of
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

__all__ = ["Ledger"]


class Ledger:
    """What one machine's history says, and the way to add to it.

    A night whose verdicts cannot be read, or that was to be judged and never was, is no baseline for anything: all that
    it measured is INVALID.

    Attributes:
        history: the runs of all machines.
        machine: this one's slug.

    """

    def __init__(self, history: History, machine: str, *, keep_index: bool = True) -> None:
        self.history = history
        self.machine = machine
        self._keep_index = keep_index
        self._loaded: dict[str | None, tuple[list[Night], Recall]] = {}

    def nights(self, before: str | None = None, *, everything: bool = False) -> list[Night]:
        """Return the nights that a verdict rests on, oldest first, with their marks.

        The newest 20 whole; of older ones the values and marks that the anchor or a segment needs.

        Args:
            before: a night's name; it and later ones are left out.
            everything: all nights whole, for looking at a history rather than judging by it.

        Raises:
            HistoryError: the folder cannot be listed.

        """
        if everything:
            return self._load(before, lambda _: True)[0]
        if before not in self._loaded:
            self._loaded[before] = self._load(before)
        return list(self._loaded[before][0])

    def named(self, names: Collection[str]) -> dict[str, Night]:
        """Return those of these nights that the history has, whole, by name."""
        return {night.name: night for night in self._load(None, names.__contains__)[0]}

    def recall(self, before: str | None = None) -> Recall:
        """Return what a session must know of the history besides its nights."""
        self.nights(before)
        return self._loaded[before][1]

    @property
    def set_aside(self) -> tuple[str, ...]:
        """One sentence for each file that is not used, as of the nights that were asked for last."""
        latest = next(reversed(self._loaded.values()), None)
        return self.recall().set_aside if latest is None else latest[1].set_aside

    def night(self, name: str, documents: Sequence[Mapping[str, Any]]) -> Night:
        """Return a night of run documents, without marks."""
        return night_of(name, documents)

    def said(self, night: str) -> NightRecord | None:
        """Return what a night's own session said of it and saw; None where no file says it.

        Raises:
            HistoryError: a file of verdicts on this night cannot be read.

        """
        files = [file for file in self.history.records(self.machine) if file.night == night]
        judged = [document for document in map(self.history.load_record, files) if "verdicts" in document]
        return NightRecord.read(judged) if judged else None

    def unseen_plants(self) -> dict[str, str]:
        """Return, by night, what its session saw of the slow-down that it planted, where that was not enough."""
        judged: dict[str, list[dict[str, Any]]] = {}
        for file in self.history.records(self.machine):
            with suppress(HistoryError):  # named among what is set aside
                if "verdicts" in (document := self.history.load_record(file)):
                    judged.setdefault(file.night, []).append(document)
        found: dict[str, str] = {}
        for night, documents in judged.items():
            planting = NightRecord.read(documents).planting
            if planting is not None and planting.plant is not None:
                control = judge_plant(planting.plant, planting.effects_ln)
                found |= {} if control.passed else {night: control.detail}
        return found

    def mark(
        self,
        night: str,
        marks: Mapping[Pair, Mark],
        *,
        evidence: Evidence | None = None,
        unchanged: Unchanged | None = None,
        planting: Planting | None = None,
    ) -> None:
        """Remember what was said of a night.

        Raises:
            HistoryError: it cannot be written; the message says why and what to do.

        """
        record = NightRecord(marks, evidence or Evidence(), unchanged, planting or Planting())
        self.history.save_record(self.machine, record.document(), night)
        self._loaded.clear()

    def accept(self, night: str, pairs: Iterable[Pair], reason: str, who: str) -> None:
        """Remember that a night's level of these pairs is wanted; raises HistoryError as `mark` does."""
        document = {"accepted": by_metric(pairs), "reason": reason, "who": who}
        self.history.save_record(self.machine, document, night)
        self._loaded.clear()

    def withdraw(
        self, nights: Mapping[str, Iterable[Pair]], since: Mapping[str, Iterable[Pair]], reason: str, who: str
    ) -> None:
        """Remember that levels are no longer wanted; raises HistoryError as `mark` does.

        Args:
            nights: by name, the pairs whose level was accepted with them.
            since: by name, the pairs that later nights have measured: they were judged by that level, so they are
                INVALID from now on.
            reason, who: for whoever asks later.

        """
        for night, pairs in since.items():  # first: whoever is killed in between can do it again
            self.mark(night, dict.fromkeys(pairs, Mark(Outcome.INVALID, (Reason.WITHDRAWN,))))
        for night, pairs in nights.items():
            document = {"withdrawn": by_metric(pairs), "reason": reason, "who": who}
            self.history.save_record(self.machine, document, night)
        self._loaded.clear()

    def _load(self, before: str | None, whole: Callable[[str], bool] | None = None) -> tuple[list[Night], Recall]:
        """Return nights and what else is to be known: the chosen ones, or all whose names ask for it, whole."""
        runs = self.history.nights(self.machine)
        names = list(runs)
        names = names[: names.index(before)] if before in runs else names
        records: dict[str, list[str]] = {}
        for file in self.history.records(self.machine):
            records.setdefault(file.night, []).append(f"{VERDICTS}/{file.path.name}")
        with opened(self.history, self.machine, stored=self._keep_index) as index:
            # What has been said of a night holds for its own files, not for copies of them in another.
            told = sorted(runs, key=lambda name: name not in records)
            copies = index.copies([file.path.name for name in told for file in runs[name]])
            files = {}
            for name in names:
                found = [file.path.name for file in runs[name] if file.path.name not in copies]
                files[name] = _Files(found, records.get(name, []))
            rows = [files[name].row(name, index) for name in names]
            sheet = Sheet([row for row in rows if row.runs], index.words)
            choice = choose(sheet)
            asked = [at for at, row in enumerate(sheet.rows) if whole is not None and whole(row.name)]
            positions = choice.positions if whole is None else asked
            nights, unchanged = [], []
            for position in positions:
                row = sheet.rows[position]
                entire = whole is not None or position in choice.whole
                values = None if entire else choice.values.get(position, frozenset())
                noted = choice.marks.get(position, frozenset())
                nights.append(_night(sheet, row, files[row.name], index, values, noted))
            for row in sheet.rows[choice.whole.start :]:
                rests = (index.read(name) for name in files[row.name].record_names)
                unchanged += [Unchanged(**rest["unchanged"]) for _, rest in filter(None, rests) if "unchanged" in rest]
            lost = [index.faults[name] for name in index.faults if name.startswith(VERDICTS)]
            lost += [stray.reason for stray in self.history.unnamed_records(self.machine)]
            aside = [index.faults[name] for name in index.faults if not name.startswith(VERDICTS)]
            aside += [stray.reason for stray in self.history.unnamed(self.machine)]
            folder = shown(self.history.folder(self.machine))
            aside += [f"{folder}/{copy}: is a copy of {first}; delete it" for copy, first in copies.items()]
            unjudged = [
                f"night {row.name} was to be judged and has no verdict, so it is no baseline; was its session killed?"
                for row in sheet.rows[choice.whole.start :]
                if sheet.unjudged(row)
            ]
        return nights, Recall((*aside, *lost, *unjudged), tuple(lost), tuple(unchanged))


@dataclass(frozen=True)
class _Files:
    """The files of one night, oldest first, by their names in the index."""

    run_names: Sequence[str]
    record_names: Sequence[str]

    def row(self, name: str, index: Index) -> Row:
        """Return the night as a row of the sheet."""
        runs = [index.ids[each] for each in self.run_names if each in index.ids]
        records = [index.ids[each] for each in self.record_names if each in index.ids]
        return Row(name, runs, records, lost=len(records) < len(self.record_names))


def _night(
    sheet: Sheet, row: Row, files: _Files, index: Index, only: Collection[Pair] | None, noted: Collection[Pair]
) -> Night:
    """Return a night with what was said of it; with `only`, of these pairs alone, and the marks of those `noted`."""
    if only is not None and not only:
        marks, accepted = sheet.marks(row, noted)
        return Night(row.name, [], methods=sheet.methods(row), marks=marks, accepted=accepted)
    processes = []
    for name in files.run_names:
        if name in index.ids and (found := index.read(name)) is not None:
            processes.append(sheet.process(index.ids[name], *found, only))
    night = assembled(row.name, processes)
    marks, accepted = sheet.marks(row, None if only is None else {*only, *noted})
    arms: dict[str, list[dict[Pair, Any]]] = {"confirming": [], "trusted": []}
    for name in files.record_names:
        rest = (index.read(name) or ({}, {}))[1]
        for arm, processes_of in arms.items():
            processes_of += [_values(process, only) for process in rest.get(arm, [])]
    if row.lost or sheet.unjudged(row):
        why = "its verdicts cannot be read" if row.lost else "it was to be judged and never was"
        keys = {pair.key for pair in night.pairs}
        night = replace(night, invalid={key: [*night.invalid.get(key, []), why] for key in keys})
    return replace(night, marks=marks, accepted=accepted, confirming=arms["confirming"], trusted=arms["trusted"])


def _values(process: Mapping[str, Mapping[str, Any]], only: Collection[Pair] | None) -> dict[Pair, Any]:
    found = {Pair(key, metric): value for key, metrics in process.items() for metric, value in metrics.items()}
    return found if only is None else {pair: value for pair, value in found.items() if pair in only}
