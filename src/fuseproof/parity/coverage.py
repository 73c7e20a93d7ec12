"""The matrix of faults, candidates and dtypes: how many cases look, and why none does where none does."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseproof.parity.cases import ELSEWHERE, Place
from fuseproof.parity.faults import FAULTS, Fault
from fuseproof.parity.measures import DTYPES

__all__ = ["Cell", "Coverage"]

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass
class Cell:
    """What was asked of one candidate in one dtype about one fault.

    Attributes:
        asked: how many cases looked for it.
        defects: how many of them found a known defect.
        reasons: why others did not look, with their number.

    """

    asked: int = 0
    defects: int = 0
    reasons: Counter[str] = field(default_factory=Counter)


class Coverage:
    """Cases, sorted into the matrix.

    Args:
        records: by fixture, the candidates that its tests run with.

    """

    def __init__(self, records: Mapping[str, Sequence[Any]]) -> None:
        self._records = records
        self._cells: dict[tuple[int, str, str, str], Cell] = defaultdict(Cell)
        self._deselected: set[tuple[int, str, str, str]] = set()

    def add(self, place: Place, reason: str | None = None, defect: bool = False) -> None:
        """Add a case: one that looked, or one that did not for a reason."""
        for key in _keys(place):
            cell = self._cells[key]
            if reason is None:
                cell.asked += 1
                cell.defects += defect
            else:
                cell.reasons[reason] += 1

    def leave_out(self, place: Place) -> None:
        """Note a case that the command line deselects: a cell that has no other is empty for that reason."""
        self._deselected.update(_keys(place))

    def _demanded(self) -> Iterator[tuple[Fault, str]]:
        """Yield the faults of all that is tested here, with each fixture whose candidates can have them."""
        tested = {fixture for _, fixture, _, _ in self._cells}
        for fault in FAULTS.values():
            for fixture in fault.fixtures:
                if fixture in tested and self._records.get(fixture):
                    yield fault, fixture

    def _cell(self, fault: Fault, fixture: str, record: Any, dtype: str) -> tuple[Cell, str | None]:
        """Return a cell, and the reason why it is empty if it is empty and there is one."""
        key = (fault.number, fixture, record.full_name, dtype)
        cell = self._cells.get(key, Cell())
        if cell.asked:
            return cell, None
        reason = fault.absent(record, dtype)
        if reason is None and DTYPES[dtype] not in record.dtypes:
            reason = f"not meant for {dtype}"
        if reason is None and cell.reasons:
            telling = Counter({each: count for each, count in cell.reasons.items() if each != ELSEWHERE})
            ((said, _),) = (telling or cell.reasons).most_common(1)
            reason = said.removeprefix(f"{record.name}: ").removeprefix(f"{record.name} ")
        if reason is None and key in self._deselected:
            reason = "deselected by the command line"
        return cell, reason

    def holes(self) -> list[str]:
        """Return a sentence for every cell that is empty without a reason."""
        return [
            f"fault {fault.number} ({fault.title}): no case asks {record.full_name} in {dtype}, and no reason is named"
            for fault, fixture in self._demanded()
            for record in self._records[fixture]
            for dtype in DTYPES
            if (found := self._cell(fault, fixture, record, dtype)) and not found[0].asked and found[1] is None
        ]

    def markdown(self) -> str:
        """Return a table for each fixture, with the reasons below it."""
        parts = []
        for fixture in dict.fromkeys(fixture for _, fixture in self._demanded()):
            reasons: dict[str, str] = {}
            records = self._records[fixture]
            lines = [
                f"| fault | {' | '.join(record.full_name for record in records)} |",
                f"|---|{'---|' * len(records)}",
            ]
            for fault, asked in self._demanded():
                if asked == fixture:
                    cells = [self._shown(fault, fixture, record, reasons) for record in records]
                    lines.append(f"| {fault.number} {fault.title} | {' | '.join(cells)} |")
            notes = [f"{letter}: {reason}" for reason, letter in reasons.items()]
            parts.append("\n".join([f"`{fixture}`, {' / '.join(DTYPES)}", "", *lines, "", *_paragraphs(notes)]))
        return "\n\n".join(parts)

    def _shown(self, fault: Fault, fixture: str, record: Any, reasons: dict[str, str]) -> str:
        shown = []
        for dtype in DTYPES:
            cell, reason = self._cell(fault, fixture, record, dtype)
            if cell.asked:
                shown.append(f"{cell.asked}" + (f" ({cell.defects})" if cell.defects else ""))
            elif reason is None:
                shown.append("**?**")
            else:
                shown.append(reasons.setdefault(reason, _letter(len(reasons))))
        return shown[0] if len(set(shown)) == 1 else " / ".join(shown)


def _keys(place: Place) -> list[tuple[int, str, str, str]]:
    return [(fault, place.fixture, place.candidate, dtype) for fault in place.faults for dtype in place.dtypes]


def _letter(position: int) -> str:
    return (_LETTERS[position // 26 - 1] if position >= 26 else "") + _LETTERS[position % 26]


def _paragraphs(notes: list[str]) -> list[str]:
    return [each for note in notes for each in (note, "")][:-1]
