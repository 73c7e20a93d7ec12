"""What came of each parity case of a session, as a file: `--fuseproof-parity-json FILE`.

One JSON object: `schema` 2; `finished`, false where the session ended before its last test; `tests`, by test id:

- `outcome`: `passed`; `failed`; `known`, failed as the table of defects says; `mended`, passed although the table says
  that it fails; `skipped`.
- `why`, but for `passed`: the first line of the failure, the defect's id, or the reason to skip.
- `errors`: by quantity, the greatest error in units of its budget; of a case that failed also of the check that did
  not hold, there 1 or more, and 1e99 for what is not finite or has another shape. In them is what
  `fuseproof.parity.measures` compares, the bias of an update, and the way of half-precision parameters beside a
  trusted one, in children too; not what is compared bit by bit or counted.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from fuseproof.parity import worst
from fuseproof.parity.defects import id_in
from fuseproof.parity.summary import MENDED
from fuseproof.unmeasured import first_words, skip_reason

__all__ = ["SCHEMA", "record"]

SCHEMA: Final = 2
_OPTION = "--fuseproof-parity-json"
_RANK = {outcome: rank for rank, outcome in enumerate(("failed", "mended", "known", "skipped", "passed"))}


def record(config: pytest.Config) -> None:
    """Record a session's parity cases, if its command line asks; a worker of xdist notes errors and writes nothing.

    Raises:
        pytest.UsageError: the file cannot be written.

    """
    asked = config.option.fuseproof_parity_json
    if not asked:
        return
    config.add_cleanup(partial(worst.collect, worst.collecting()))
    worst.collect(True)
    if hasattr(config, "workerinput"):
        return
    path = config.invocation_params.dir / asked
    if not path.parent.is_dir():
        raise pytest.UsageError(f"{_OPTION}={asked}: there is no folder {path.parent}; make it.")
    try:
        path.unlink(missing_ok=True)  # an old one must not be taken for what a session that crashes has found
    except OSError as error:
        raise pytest.UsageError(f"{_OPTION}={asked}: {error.strerror}; name a file that can be written.") from None
    config.pluginmanager.register(_Recorder(path), "fuseproof-parity-json")


class _Recorder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take a phase of a test, from a worker too; the worst of its phases is what came of it."""
        # Of a test at which a worker died there is no phase, and nothing was noted.
        if not hasattr(report, "fuseproof_parity") and report.when in ("setup", "call", "teardown"):
            return
        outcome, why = _came_of(report)
        test = self._tests.setdefault(report.nodeid, {"outcome": "passed"})
        if _RANK[outcome] < _RANK[test["outcome"]]:
            test |= {"outcome": outcome, "why": why}
        if errors := getattr(report, "fuseproof_errors", {}):
            test["errors"] = {**test.get("errors", {}), **errors}

    @pytest.hookimpl(trylast=True)  # whatever may still end the session early has had its say
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the file, whole or not at all."""
        ended = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        finished = session.exitstatus in ended and not (session.shouldstop or session.shouldfail)
        document = {"schema": SCHEMA, "finished": finished, "tests": self._tests}
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        part.replace(self._path)


def _came_of(report: pytest.TestReport) -> tuple[str, str]:
    known = getattr(report, "wasxfail", None)
    if report.failed:
        text = str(report.longrepr)
        return ("mended", id_in(text) or text) if MENDED in text and known is None else ("failed", first_words(report))
    if report.skipped:
        return ("skipped", skip_reason(report)) if known is None else ("known", id_in(known) or known)
    return "passed", ""
