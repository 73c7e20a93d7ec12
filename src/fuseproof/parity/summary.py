"""What a session says of parity at its end: cases, known defects, new failures, skips by reason; the coverage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from fuseproof.parity.cases import Place, place_of
from fuseproof.parity.coverage import Coverage
from fuseproof.parity.worst import drain, merged

__all__ = ["MENDED", "Tally", "annotate", "tally"]

MENDED = "mended upstream: remove it from the table"
_STRICT = "[XPASS(strict)] "


def annotate(report: pytest.TestReport, item: pytest.Item) -> None:
    """Note on a parity test's report where it stands, which survives the way from a worker; say what is mended."""
    noted = drain()  # after every test, so that what one has noted is not said of the next
    if not item.get_closest_marker("parity"):
        return
    place = place_of(item)
    text = report.longrepr if isinstance(report.longrepr, str) else ""
    mended = text.startswith(_STRICT)
    wrong = (report.failed and not mended) or hasattr(report, "wasxfail")
    report.fuseproof_errors = merged(noted, wrong)  # type: ignore[attr-defined]
    report.fuseproof_parity = [] if place is None else [place.fixture, place.candidate, place.faults, place.dtypes]  # type: ignore[attr-defined]
    if mended:
        report.longrepr = f"{_STRICT}{MENDED}: {text.removeprefix(_STRICT)}"


@dataclass
class Tally:
    """The parity cases of a session.

    Attributes:
        passed, defects, new, mended: how many passed, failed as known, failed otherwise, and passed where a failure is
            listed.
        skipped: reasons with their numbers.
        coverage: the cases in their matrix.

    """

    coverage: Coverage
    passed: int = 0
    defects: int = 0
    new: int = 0
    mended: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return the sentence for the summary, with a line for each reason to skip; nothing without parity cases."""
        skipped, ran = self.skipped.total(), self.passed + self.defects + self.new + self.mended
        if not skipped + ran:
            return []
        mended = f", {self.mended} {MENDED}" if self.mended else ""
        line = f"parity: {ran} cases, {self.defects} known defects, {self.new} new{mended}, {skipped} skipped"
        return [line, *(f"  {count:5} skipped: {reason}" for reason, count in self.skipped.most_common())]


def tally(
    stats: Mapping[str, Sequence[Any]], records: Mapping[str, Sequence[Any]], deselected: Iterable[Place] = ()
) -> Tally:
    """Count the parity cases among a terminal's reports.

    Args:
        stats: reports by category, as pytest's terminal keeps them; under xdist it has those of all workers.
        records: by fixture, the candidates of this session.
        deselected: where the cases stand that the command line leaves out.

    """
    found = Tally(Coverage(records))
    for left_out in deselected:
        found.coverage.leave_out(left_out)
    for category, report, place in _parity_reports(stats):
        reason = None
        if category == "skipped":
            reason = report.longrepr[2].removeprefix("Skipped: ")
            found.skipped[reason] += 1
        elif category == "xfailed":
            found.defects += 1
        elif category == "passed":
            found.passed += 1
        elif str(report.longrepr).startswith(f"{_STRICT}{MENDED}"):
            found.mended += 1
        else:
            found.new += 1
        if place:
            found.coverage.add(place, reason, category == "xfailed")
    return found


def _parity_reports(stats: Mapping[str, Sequence[Any]]) -> Iterator[tuple[str, Any, Place | None]]:
    for category in ("passed", "xfailed", "failed", "error", "skipped"):
        for report in stats.get(category, ()):
            noted = getattr(report, "fuseproof_parity", None)
            if noted is not None and (report.when != "teardown" or category == "error"):
                fixture, candidate, faults, dtypes = noted or ("", "", (), ())
                yield category, report, Place(fixture, candidate, tuple(faults), tuple(dtypes)) if noted else None
