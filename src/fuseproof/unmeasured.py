"""Tests that failed or were skipped in a child, written down for its parent: what was asked for must be known."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["Unmeasured", "UnmeasuredRecorder", "first_words", "read_unmeasured", "skip_reason"]

_NAME = "unmeasured.json"
_LONGEST = 4000  # characters: the longest of ours have some 700, and a stranger's may print a tensor


@dataclass(frozen=True)
class Unmeasured:
    """Tests of a session that have measured nothing, or nothing that counts.

    Attributes:
        failed: first words of those that failed, by their ids.
        skipped: reasons of those that were skipped; a file that was skipped whole has its path for an id.

    """

    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)


def first_words(report: pytest.TestReport) -> str:
    """Return the first line of what a failed phase of a test says, without the name of our own exception."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in str(crash.message if crash else report.longrepr).splitlines() if line.strip()]
    line = lines[0] if lines else "it gives no reason"
    said = line.partition("ParityError: ")[2] or line
    return said if len(said) <= _LONGEST else f"{said[:_LONGEST]}..."


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test or a file was skipped, or why its failure was expected."""
    if (expected := getattr(report, "wasxfail", None)) is not None:
        return f"expected to fail: {expected}" if expected else "expected to fail"
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else report.longrepr
    return str(reason).removeprefix("Skipped: ")


class UnmeasuredRecorder:
    """A plugin of pytest that writes which tests of a session failed or were skipped, and why, into a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._found = Unmeasured()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that was skipped whole, as by `pytest.importorskip`: its benchmarks are collected by nobody."""
        if report.skipped:
            self._found.skipped[report.nodeid] = skip_reason(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a phase that failed or was skipped; the first one of a test tells why."""
        if report.failed:
            self._found.failed.setdefault(report.nodeid, first_words(report))
        elif report.skipped:
            self._found.skipped.setdefault(report.nodeid, skip_reason(report))

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps(asdict(self._found)), encoding="utf-8")


def read_unmeasured(folder: Path) -> Unmeasured:
    """Return what a session has written there; raises OSError or ValueError without such a file."""
    found = json.loads((folder / _NAME).read_text(encoding="utf-8"))
    return Unmeasured(found["failed"], found["skipped"])
