"""The nights of one machine as the gate needs them: runs, and what was said of them, in one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from fuseproof.gate.records import NightRecord, Recall, by_metric, mark_of_group, pairs_of
from fuseproof.history import History
from fuseproof.storage import HistoryError
from fuseproof.verdicts.controls import Unchanged
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.verdict import Mark, Pair

__all__ = ["Ledger"]


class Ledger:
    """What one machine's history says, and the way to add to it.

    A night whose verdicts cannot be read, or that was to be judged and never was, is no baseline for anything: all that
    it measured is INVALID.
    """

    def __init__(self, history: History, machine: str) -> None:
        self.history = history
        self.machine = machine

    def nights(self, before: str | None = None) -> list[Night]:
        """Return the nights that a verdict rests on, oldest first, with their marks.

        Args:
            before: a night's name; it and later ones are left out.

        """
        nights = self._nights
        names = [night.name for night in nights]
        return nights[: names.index(before)] if before in names else list(nights)

    @property
    def set_aside(self) -> tuple[str, ...]:
        """One sentence for each file that is not used."""
        return self.recall.set_aside

    @cached_property
    def recall(self) -> Recall:
        """What a session must know of the history besides its nights."""
        runs, aside = self._runs
        documents, lost = self._records
        unchanged = [
            Unchanged(**document["unchanged"])
            for entries in documents.values()
            for document in entries
            if "unchanged" in document
        ]
        unjudged = [
            f"night {name} was to be judged, and no verdicts of it are stored: it is no baseline; run the gate again"
            for name, found in runs.items()
            if _was_gated(found) and not any("verdicts" in document for document in documents.get(name, []))
        ]
        return Recall((*aside, *lost.values(), *unjudged), tuple(lost.values()), tuple(unchanged))

    def night(self, name: str, documents: Sequence[Mapping[str, Any]]) -> Night:
        """Return a night of run documents, without marks."""
        return night_of(name, documents)

    def mark(
        self,
        night: str,
        marks: Mapping[Pair, Mark],
        *,
        evidence: Evidence | None = None,
        unchanged: Unchanged | None = None,
    ) -> None:
        """Remember what was said of a night.

        Raises:
            HistoryError: it cannot be written; the message says why and what to do.

        """
        record = NightRecord(marks, evidence or Evidence(), unchanged)
        self.history.save_record(self.machine, record.document(), night)
        self._forget()

    def accept(self, night: str, pairs: Iterable[Pair], reason: str, who: str) -> None:
        """Remember that a night's level of these pairs is wanted; raises HistoryError as `mark` does."""
        document = {"accepted": by_metric(pairs), "reason": reason, "who": who}
        self.history.save_record(self.machine, document, night)
        self._forget()

    def _forget(self) -> None:
        for name in ("recall", "_nights", "_records"):
            self.__dict__.pop(name, None)

    @cached_property
    def _runs(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """The run documents of each night, oldest first, and what was set aside."""
        found: dict[str, list[dict[str, Any]]] = {}
        aside = [stray.reason for stray in self.history.unnamed(self.machine)]
        for name, files in self.history.nights(self.machine).items():
            for file in files:
                try:
                    found.setdefault(name, []).append(self.history.load(file).document)
                except HistoryError as error:
                    aside.append(str(error))
        return found, aside

    @cached_property
    def _records(self) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
        """What was said of each night, oldest first; by night, what of it cannot be read."""
        found: dict[str, list[dict[str, Any]]] = {}
        lost: dict[str, str] = {}
        for stray in self.history.unnamed_records(self.machine):
            lost[str(stray.path)] = stray.reason
        for file in self.history.records(self.machine):
            try:
                found.setdefault(file.night, []).append(self.history.load_record(file))
            except HistoryError as error:
                lost[file.night] = f"{error}; until then night {file.night} is no baseline"
        return found, lost

    @cached_property
    def _nights(self) -> list[Night]:
        documents, lost = self._records
        nights = []
        for name, runs in self._runs[0].items():
            night = _remembered(night_of(name, runs), documents.get(name, []))
            unjudged = _was_gated(runs) and not any("verdicts" in each for each in documents.get(name, []))
            if name in lost or unjudged:
                why = "its verdicts cannot be read" if name in lost else "it was to be judged and never was"
                keys = {pair.key for pair in night.pairs}
                night = replace(night, invalid={key: [*night.invalid.get(key, []), why] for key in keys})
            nights.append(night)
        return nights


def _was_gated(runs: Iterable[Mapping[str, Any]]) -> bool:
    return any(document["fuseproof"].get("gated") for document in runs)


def _remembered(night: Night, documents: Iterable[Mapping[str, Any]]) -> Night:
    """Return a night with what was said of it; of two verdicts on one pair, the later."""
    marks: dict[Pair, Mark] = {}
    accepted: set[Pair] = set()
    arms: dict[str, list[dict[Pair, Any]]] = {"confirming": [], "trusted": []}
    for document in documents:
        accepted |= set(pairs_of(document.get("accepted", {})))
        for group in document.get("verdicts", []):
            marks |= dict.fromkeys(pairs_of(group["pairs"]), mark_of_group(group))
        for name, arm in arms.items():
            arm += [
                {Pair(key, metric): value for key, metrics in process.items() for metric, value in metrics.items()}
                for process in document.get(name, [])
            ]
    return replace(
        night,
        marks=marks,
        accepted=frozenset(accepted),
        confirming=tuple(arms["confirming"]),
        trusted=tuple(arms["trusted"]),
    )
