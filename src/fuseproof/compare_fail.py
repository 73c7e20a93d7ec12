"""What ``--benchmark-compare-fail`` finds, as a status: pytest-benchmark itself raises it through ``pytest.main``."""

from __future__ import annotations

import pytest

from fuseproof.bookkeeping import Bookkeeper
from fuseproof.requirements import requirements
from fuseproof.statuses import REGRESSED, UNANSWERED

__all__ = ["compare_fail"]


def compare_fail(session: pytest.Session, book: Bookkeeper) -> None:
    """Note each regression beyond the thresholds, or that nothing could be compared, and set the status."""
    benchmarks = session.config._benchmarksession  # type: ignore[attr-defined]
    status = 0
    if benchmarks.performance_regressions:
        book.notes += [f"REGRESSED {name}: {finding}" for name, finding in benchmarks.performance_regressions]
        benchmarks.performance_regressions.clear()
        status = REGRESSED
    elif _compared_nothing_but_must(session.config):
        book.notes.append("baseline required: no stored run holds any of these benchmarks")
        benchmarks.compare_fail = []  # else pytest-benchmark raises a usage error
        status = UNANSWERED
    if session.exitstatus in (pytest.ExitCode.OK, UNANSWERED) and status:
        session.exitstatus = status


def _compared_nothing_but_must(config: pytest.Config) -> bool:
    benchmarks = config._benchmarksession  # type: ignore[attr-defined]
    demanded = "baseline" in requirements(config.option.fuseproof_require) or config.option.benchmark_compare_fail
    return bool(demanded and benchmarks.benchmarks and not any(benchmarks.compared_mapping.values()))
