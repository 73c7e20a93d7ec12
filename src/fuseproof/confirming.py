"""Fresh processes of pytest that measure some tests of a session once more, and hand back what they measured.

Rounds inside one process are no replicates. So whatever the gate must see again is measured in a child: the same
command line, the tests named by the parent, its results in a folder of its own. A child never gates, and never saves
into the history.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof import apex_probe
from fuseproof.history import History, HistoryError
from fuseproof.order import Order
from fuseproof.processes import ChildError, ending, last_words, run_process
from fuseproof.unmeasured import read_unmeasured

__all__ = ["Children", "Measured", "NothingPassedError"]

_LEAST_LIMIT_S = 600.0  # a process that compiles everything anew needs minutes; one that hangs must not hang the night


class NothingPassedError(ChildError):
    """A child has measured nothing, as a test that it ran has failed."""


@dataclass(frozen=True)
class Measured:
    """What a child has measured, and what it was asked to and has not.

    Attributes:
        document: its run.
        failed: first words of tests that failed in it, by their ids.
        skipped: reasons of tests that were skipped in it.

    """

    document: dict[str, Any]
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def failures(self, name: str) -> list[str]:
        """Return a sentence for each test that failed in this process, whose name is given."""
        return [f"{test} failed in {name}: {words}" for test, words in self.failed.items()]

    def lost(self, tests: Sequence[str]) -> dict[str, str]:
        """Return why it has no time of some of the tests with these ids, which have not failed in it."""
        there = {each["fullname"] for each in self.document["benchmarks"]} | self.failed.keys()
        return {test: self.skipped.get(test, "it gives no reason") for test in tests if test not in there}


@dataclass(frozen=True)
class Children:
    """Starts the children of one session, one at a time.

    Attributes:
        arguments: the session's command line.
        folder: where it was given.
        nodes: by test id: what to give to pytest to run this test alone.
        machine: the folder name of this machine in a history.
        session_s: how long the session has taken so far.
        vouched: by interpreter: the variable that spares later processes a look at Apex.

    """

    arguments: tuple[str, ...]
    folder: Path
    nodes: Mapping[str, str]
    machine: str
    session_s: float
    vouched: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, session: pytest.Session, machine: str, session_s: float) -> Children:
        """Return the children that a session may have."""
        invocation = session.config.invocation_params
        nodes = {
            item.nodeid: f"{item.path}{item.nodeid[len(item.nodeid.partition('::')[0]) :]}" for item in session.items
        }
        return cls(tuple(map(str, invocation.args)), invocation.dir, nodes, machine, session_s)

    def believe(self, document: Mapping[str, Any], python: str = sys.executable) -> None:
        """Let later processes with this interpreter believe what a run says of Apex."""
        self.vouched[python] = apex_probe.vouched_by(document)

    def measure(
        self,
        tests: Sequence[str],
        *,
        python: str = sys.executable,
        environ: Mapping[str, str] | None = None,
        plants: Mapping[str, float] | None = None,
        placement: str = "",
    ) -> Measured:
        """Run the tests with these ids in a fresh process and return what it brings back.

        Args:
            tests: ids of tests of this session.
            python: the interpreter; another one brings its own torch.
            environ: variables set for it besides this process's own.
            plants: slow-downs to plant beside their results, by key: logarithms of ratios.
            placement: seed of what memory is held beside each benchmark; empty: none.

        Raises:
            NothingPassedError: tests failed, and none has left a time.
            ChildError: it crashed, hung, measured nothing or does not say what failed, or there is no place for its
                results.

        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ChildError(f"no folder for its results: {error}; free some space or set TMPDIR") from None
        with folder as storage:
            order = Order(Path(storage), tuple(self.nodes[test] for test in tests), plants or {}, placement=placement)
            command = [python, "-m", "pytest", *self.arguments]
            limit_s = max(_LEAST_LIMIT_S, 10 * self.session_s)
            variables = {**(environ or {}), **self.vouched.get(python, {}), **order.given()}
            status, output = run_process(command, self.folder, variables, limit_s)
            try:
                runs, set_aside = History(Path(storage)).newest(self.machine)
            except HistoryError as error:
                raise ChildError(f"{ending(status)}: {error}") from None
            if runs and status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
                self.believe(runs[0].document, python)
                try:
                    left = read_unmeasured(Path(storage))
                except (OSError, ValueError, TypeError, LookupError) as error:
                    raise ChildError(f"it has not said which tests failed: {error}") from None
                return Measured(runs[0].document, left.failed, left.skipped)
            words = set_aside[0].reason if set_aside else last_words(output)
            failed = status == pytest.ExitCode.TESTS_FAILED and not set_aside
            raise (NothingPassedError if failed else ChildError)(f"{ending(status)}: {words}")
