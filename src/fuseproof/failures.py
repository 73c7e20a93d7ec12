"""Tests that failed in a child, written down for its parent: what was asked for and not measured must be known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

__all__ = ["FailureRecorder", "first_words", "read_failures"]

_NAME = "failed.json"
_LONGEST = 300  # characters: a message of ours names quantity, error and budget well before


def first_words(report: pytest.TestReport) -> str:
    """Return the first line of what a failed phase of a test says, without the name of our own exception."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = [line.strip() for line in str(crash.message if crash else report.longrepr).splitlines() if line.strip()]
    line = lines[0] if lines else "it gives no reason"
    return line.partition("ParityError: ")[2][:_LONGEST] or line[:_LONGEST]


class FailureRecorder:
    """A plugin of pytest that writes which tests of a session failed, with their first words, into a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a phase that failed; the first one of a test tells why."""
        if report.failed:
            self._failed.setdefault(report.nodeid, first_words(report))

    def pytest_sessionfinish(self) -> None:
        """Write the file."""
        self._path.write_text(json.dumps(self._failed), encoding="utf-8")


def read_failures(folder: Path) -> dict[str, str]:
    """Return the first words of each test that failed, by its id; raises OSError or ValueError without such a file."""
    failed: dict[str, str] = json.loads((folder / _NAME).read_text(encoding="utf-8"))
    return failed
