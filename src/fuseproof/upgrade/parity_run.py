"""The parity cases of one environment: run there in a child, read from the file that it leaves."""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fuseproof.processes import ChildError, ending, last_words, run_process
from fuseproof.upgrade.environment import WARNINGS, Examined, UpgradeError

__all__ = ["ABSENT", "ENDLESS", "OUTCOMES", "SCHEMA", "WRONG", "Case", "ParityRun", "measure_parity", "read_run"]

OUTCOMES: Final = ("failed", "mended", "known", "skipped", "passed")
"""What can come of a case: wrong; right although it is known to be wrong; wrong as is known; not asked; right."""

WRONG: Final = ("failed", "known")
"""Those of a case that is wrong."""

ENDLESS: Final = 1e99
"""What an error counts as that is not finite, or has no size, such as another shape."""

SCHEMA: Final = 2  # of `--fuseproof-parity-json`
_LIMIT_S = 3600.0  # 9,000 cases take 100 s with eight workers on an H200, twenty minutes with one
_RAN, _NOTHING = (0, 1), 5  # pytest's: all passed, some failed; no test at all
_KEYS = {"outcome", "why", "errors"}


@dataclass(frozen=True)
class Case:
    """What came of a parity case.

    Attributes:
        outcome: one of `OUTCOMES`.
        why: the first line of the failure, the id of the known defect, or the reason to skip; else empty.
        errors: by quantity, the greatest error, in units of its budget: 0 to 1, and more of a check that failed.

    """

    outcome: str
    why: str = ""
    errors: Mapping[str, float] = field(default_factory=dict)

    @property
    def ran(self) -> bool:
        """Whether it was asked and has answered."""
        return self.outcome not in ("skipped", ABSENT.outcome)


ABSENT: Final = Case("absent")
"""The case of a test that an environment does not have."""


@dataclass(frozen=True)
class ParityRun:
    """The parity cases of one environment.

    Attributes:
        cases: by test id.
        seconds: how long they took together.

    """

    cases: Mapping[str, Case]
    seconds: float

    @property
    def summary(self) -> str:
        """The counts in words: `420 cases, 10 known defects, 0 failed, 34 skipped`."""
        counts = Counter(case.outcome for case in self.cases.values())
        ran = len(self.cases) - counts["skipped"]
        mended = f", {counts['mended']} mended" if counts["mended"] else ""
        known = f"{counts['known']} known defects{mended}"
        return f"{ran} cases, {known}, {counts['failed']} failed, {counts['skipped']} skipped"


def measure_parity(
    examined: Examined,
    tests: Sequence[str],
    keyword: str,
    folder: Path,
    workers: int,
    say: Callable[[str], None],
    *,
    marks: str = "",
    arguments: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> ParityRun:
    """Run the parity cases of a test directory in an environment.

    Args:
        examined: where.
        tests: what to run, as arguments of pytest.
        keyword: ``-k``: which of them; all if empty.
        folder: the working directory.
        workers: processes that share the cases; 0 for pytest's own.
        say: prints a line of progress.
        marks: ``-m``: which of the parity cases; all if empty.
        arguments: more of pytest's: ``--fuseproof-adam=NAME=MODULE:ATTR``.
        variables: set besides the environment's own: which GPUs it may use.
        stop: as for `run_process`.

    Raises:
        UpgradeError: pytest crashed, hung, was refused or ended early: nothing is known of the rest.

    """
    name = examined.name
    say(f"parity: {name} environment, {workers or 'no'} worker{'s' * (workers != 1)}")
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True) as scratch:
        path = Path(scratch) / "parity.json"
        command = [
            *(examined.environment.python, "-m", "pytest", *tests, *WARNINGS, *arguments),
            *("-m", f"parity and ({marks})" if marks else "parity", *(("-k", keyword) if keyword else ())),
            *(
                "-n",
                str(workers),
                "--dist",
                "worksteal",
                "--benchmark-disable",
                "-p",
                "no:cacheprovider",
                "-q",
                "--tb=no",
            ),
            f"--fuseproof-parity-json={path}",
        ]
        try:
            status, output = run_process(
                command, folder, {**examined.environment.variables, **(variables or {})}, _LIMIT_S, stop=stop
            )
        except ChildError as error:
            raise UpgradeError(f"parity in {name}: {error}; mend that first.") from None
        seconds = time.monotonic() - begun_s
        if status not in (*_RAN, _NOTHING):
            again = " ".join(command[:-1])
            raise UpgradeError(f"parity in {name}: {ending(status)}: {last_words(output)}; to see it: {again}")
        run = replace(read_run(path, f"parity in {name}"), seconds=seconds)
    say(f"parity: {name} environment: {run.summary} in {seconds:.0f} s")
    return run


def read_run(path: Path, whose: str) -> ParityRun:
    """Return what a file of ``--fuseproof-parity-json`` holds; one that was kept may say how many `seconds` it took.

    Args:
        path: the file.
        whose: for messages: `parity in old`.

    Raises:
        UpgradeError: there is none, it is no such file, or its session ended before its last test.

    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UpgradeError(f"{whose}: pytest left no {path}: is fuseproof configured where its tests are?") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UpgradeError(
            f"{whose}: {path} is not JSON, or cut short ({error}); delete it and run it again."
        ) from None
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise UpgradeError(
            f"{whose}: {path} has schema {found!r}, this is {SCHEMA}; use the same fuseproof for both, and "
            "delete what another one has kept."
        )
    seconds = document.get("seconds", 0.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _LIMIT_S * 2:
        raise UpgradeError(f"{whose}: {path}: seconds is {seconds!r:.80}; delete it and run it again.")
    tests = document.get("tests")
    if not isinstance(tests, dict):
        raise UpgradeError(f"{whose}: {path} has no tests; delete it and run it again.")
    if document.get("finished") is not True:
        raise UpgradeError(
            f"{whose}: its session ended before its last test, of the rest nothing is known; run it again."
        )
    return ParityRun({test: _case(case, f"{whose}: {path}: {test}") for test, case in tests.items()}, seconds)


def _case(case: Any, where: str) -> Case:
    if not isinstance(case, dict) or case.keys() - _KEYS:
        raise UpgradeError(f"{where} is {case!r:.80}; it takes outcome, why and errors.")
    outcome, why, errors = case.get("outcome"), case.get("why", ""), case.get("errors", {})
    if outcome not in OUTCOMES:
        raise UpgradeError(f"{where}: outcome is {outcome!r:.80}; there are {', '.join(OUTCOMES)}.")
    if not isinstance(why, str) or not isinstance(errors, dict):
        raise UpgradeError(f"{where}: why is a text and errors a table by quantity.")
    for quantity, error in errors.items():
        most = ENDLESS if outcome in WRONG else 1
        if isinstance(error, bool) or not isinstance(error, int | float) or not 0 <= error <= most:
            raise UpgradeError(
                f"{where}: the error of {quantity} is {error!r:.80}; it is 0 to {most:g}, in units of its budget."
            )
    return Case(outcome, why, errors)
