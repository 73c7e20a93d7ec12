"""One fresh process of pytest in one environment: it measures benchmarks and hands back its document."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuseproof import apex_probe
from fuseproof.history import History
from fuseproof.order import Order
from fuseproof.processes import ChildError, ending, last_words, run_process
from fuseproof.statuses import NO_TESTS, TESTS_RAN, USED_WRONGLY
from fuseproof.tables import ConfigError
from fuseproof.unmeasured import Unmeasured, read_unmeasured
from fuseproof.upgrade.environment import WARNINGS, Environment
from fuseproof.upgrade.plan import UpgradePlan

__all__ = ["Child"]

_FIRST_LIMIT_S = 3600.0  # the largest suites take minutes, and compiling everything anew some more
_LEAST_LIMIT_S = 600.0
_LIMIT_TIMES = 10  # as long as the longest before: one that hangs must not hold the others up for ever


@dataclass
class Child:
    """Starts the processes of one plan.

    Attributes:
        plan: what they measure.
        root: the repository, whose pyproject.toml configures fuseproof; ids of tests start there.
        folder: where they run: the user's working directory, where their kernels are imported from.
        more: arguments of pytest besides the plan's.
        longest_s: how long the longest has taken.
        vouched: by environment: the variable that spares later processes a look at Apex.

    """

    plan: UpgradePlan
    root: Path
    folder: Path
    more: tuple[str, ...] = ()
    longest_s: float | None = None
    vouched: dict[str, dict[str, str]] = field(default_factory=dict)

    def measure(
        self,
        environment: Environment,
        tests: Sequence[str],
        seed: str,
        variables: Mapping[str, str],
        stop: threading.Event,
    ) -> dict[str, Any]:
        """Run one process to its end and return its document, with what it took as `upgrade`.

        Args:
            environment: the interpreter and its variables.
            tests: ids; empty for whatever the plan's options choose.
            seed: of the order of the benchmarks, and of the memory that is held beside each.
            variables: which GPU, besides those of the environment.
            stop: ends it when it is set.

        Raises:
            ChildError: it crashed or hung.
            ConfigError: pytest refuses the command line, or nothing is selected.

        """
        try:
            folder = tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True)
        except OSError as error:
            raise ChildError(f"no folder for its results: {error}; free some space or set TMPDIR") from None
        limit_s = _FIRST_LIMIT_S if self.longest_s is None else max(_LEAST_LIMIT_S, _LIMIT_TIMES * self.longest_s)
        with folder as storage:
            nodes = tuple(f"{self.root / path}{''.join(rest)}" for path, *rest in (t.partition("::") for t in tests))
            order = Order(Path(storage), nodes, seed=seed, candidates=self.plan.candidates, placement=seed)
            variables = {
                **environment.variables,
                **self.vouched.get(environment.name, {}),
                **variables,
                **order.given(),
            }
            begun_s = time.monotonic()
            status, output = run_process(
                [environment.python, *self._arguments()], self.folder, variables, limit_s, stop=stop
            )
            seconds = time.monotonic() - begun_s
            document = self._document(environment.name, status, output, Path(storage))
            unmeasured = self._unmeasured(environment.name, Path(storage))
        self.longest_s = max(seconds, self.longest_s or 0.0)
        self.vouched[environment.name] = apex_probe.vouched_by(document)
        block: dict[str, Any] = {"seconds": round(seconds, 2), "failed": status != 0}
        block |= {"failed_tests": unmeasured.failed, "skipped_tests": unmeasured.skipped}
        if status or not document["benchmarks"]:
            block["nothing" if not document["benchmarks"] else "failures"] = last_words(output)
        return {**document, "upgrade": block}

    @staticmethod
    def _unmeasured(arm: str, storage: Path) -> Unmeasured:
        try:
            return read_unmeasured(storage)
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ChildError(f"{arm}: it has not said which tests failed: {error}") from None

    def _arguments(self) -> list[str]:
        plan = self.plan
        paths = [str(self.root / path) for path in plan.tests]
        options = [f"--rootdir={self.root}", "-n0", "-p", "no:cacheprovider", *WARNINGS]
        for name, value in (("-m", plan.mark), ("-k", plan.keyword)):
            options += [name, value] if value else []
        return ["-m", "pytest", *paths, *options, *plan.arguments, *self.more]

    def _document(self, arm: str, status: int | None, output: str, storage: Path) -> dict[str, Any]:
        words = last_words(output)
        if status == USED_WRONGLY:
            raise ConfigError(f"{arm}: pytest refuses: {words.removeprefix('ERROR: ')}")
        if status == NO_TESTS:
            skipped = {}
            with suppress(ChildError):
                skipped = self._unmeasured(arm, storage).skipped
            why = "".join(f"; {test} is skipped: {reason}" for test, reason in skipped.items())
            raise ConfigError(f"{arm}: no benchmark is selected by {self.plan.selection}{why}")
        if status not in TESTS_RAN:
            raise ChildError(f"{arm}: {ending(status)}: {words}")
        history = History(storage)
        machines = history.machines()
        runs, set_aside = history.newest(next(iter(machines))) if machines else ([], [])
        if set_aside:
            raise ChildError(f"{arm}: {set_aside[0].reason}")
        if not runs:
            return {"benchmarks": []}
        if runs[0].machine != self.plan.machine:
            raise ChildError(f"{arm}: it ran on {runs[0].machine} and not on {self.plan.machine}")
        return runs[0].document
