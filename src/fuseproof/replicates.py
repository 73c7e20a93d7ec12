"""Tonight's screening processes: this session's own, and fresh ones that measure the same benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fuseproof.bookkeeping import Bookkeeper
from fuseproof.confirming import Children, Measured, NothingPassedError
from fuseproof.history import HistoryError
from fuseproof.processes import ChildError, Progress
from fuseproof.verdicts.recorded import tests_by_key

__all__ = ["Replicates"]


def _record(benchmark: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = benchmark["extra_info"]["fuseproof"]
    return record


@dataclass
class Replicates:
    """The screening processes of one night, each saved as it ends if the command line asks for that.

    Attributes:
        book: the stored side of the session.
        children: what starts fresh processes.
        say: prints a line of progress.
        documents: what each process measured.
        notes: what went wrong, one sentence each.
        failed: a test that this process has passed has failed in another one of this night.
        incomplete: what the night lacks of the processes that were asked for, one sentence each.
        unsaved: a document could not be saved.

    """

    book: Bookkeeper
    children: Children
    say: Callable[[str], None]
    documents: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failed: bool = False
    incomplete: list[str] = field(default_factory=list)
    unsaved: bool = False

    @property
    def count(self) -> int:
        """How many there are so far."""
        return len(self.documents)

    def run(self, own: dict[str, Any] | None, count: int) -> None:
        """Take in what this process measured, then start fresh ones until there are `count` of this night."""
        self.documents += self.book.earlier_tonight()
        if own is None:
            return
        self._add(own)
        tests = list(tests_by_key(own).values())
        progress = Progress(self.say, "screening")
        while self.count < count:
            number = self.count + 1
            with progress.step(number, count):
                name = f"screening process {number} of {count}"
                try:
                    measured = self.children.measure(tests)
                except ChildError as error:
                    self.notes.append(f"{name} measured nothing: {error}")
                    self.failed |= isinstance(error, NothingPassedError)
                    self.incomplete.append(f"{self.count} of {count} processes have run")
                    return
                self._tell_failures(name, measured)
                lost = measured.lost(tests)
                self.incomplete += [f"{name} has not measured {test}: {why}" for test, why in lost.items()]
            self._add(measured.document)

    def _tell_failures(self, name: str, measured: Measured) -> None:
        self.notes += measured.failures(name)
        self.failed |= bool(measured.failed)

    def _add(self, document: dict[str, Any]) -> None:
        try:
            document = self._again(document)
        finally:  # an interrupted second look leaves the first as it is
            document = {**document, "fuseproof": {**document["fuseproof"], **self.book.stamp()}}
            self.documents.append(document)
            if self.book.asked.label is not None:
                try:
                    self.book.save(document)
                except HistoryError as error:
                    self.unsaved = True
                    self.notes.append(str(error))

    def _again(self, document: dict[str, Any]) -> dict[str, Any]:
        """Measure what must not be judged once more: whoever disturbed it may have gone."""
        spoiled = {_record(each)["key"]: each for each in document["benchmarks"] if _record(each)["invalid"]}
        if not spoiled:
            return document
        self.say(f"measuring {len(spoiled)} benchmark(s) again that must not be judged")
        try:
            again = self.children.measure([each["fullname"] for each in spoiled.values()])
        except ChildError as error:
            self.notes.append(
                f"{len(spoiled)} benchmark(s) must not be judged and could not be measured again: {error}"
            )
            self.failed |= isinstance(error, NothingPassedError)
            return document
        self._tell_failures("a process that measured it again", again)
        second = {_record(each)["key"]: each for each in again.document["benchmarks"]}
        for key, first in spoiled.items():
            reasons = "; ".join(_record(first)["invalid"])
            if key not in second:
                self.notes.append(f"{key}: {reasons}; measured again, it has no time")
            elif _record(second[key])["invalid"]:
                self.notes.append(f"{key}: {reasons}; measured again, still so")
            else:
                self.notes.append(f"{key}: {reasons}; measured again, sound")
                _record(second[key])["measured_again"] = reasons
        kept = [second.get(_record(each)["key"], each) for each in document["benchmarks"]]
        return {**document, "benchmarks": kept}
