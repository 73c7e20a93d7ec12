"""The hooks of a session that fuseproof is configured for; what they do is done elsewhere."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fuseproof import lost_context, machine, preflight, report
from fuseproof.bookkeeping import Bookkeeper
from fuseproof.candidates import ADAM, KERNEL_SETS, LAYER_NORM, RMS_NORM, brought_kernel_set
from fuseproof.candidates.brought import BroughtError, bring_adam, bring_layer_norm
from fuseproof.candidates.chosen import ChoiceError, chosen, contested
from fuseproof.compare_fail import compare_fail
from fuseproof.confirming import Children
from fuseproof.fixtures import MEASUREMENTS, RECORD_PROPERTY
from fuseproof.gating import Gate
from fuseproof.history import HistoryError
from fuseproof.order import Order
from fuseproof.parity import summary
from fuseproof.parity.deselected import DESELECTED
from fuseproof.phases import PHASES
from fuseproof.requirements import requirements
from fuseproof.selection import is_timed
from fuseproof.statuses import UNANSWERED
from fuseproof.terminal import end_dots, say

BOOKKEEPER = pytest.StashKey[Bookkeeper]()
GATE = pytest.StashKey[Gate]()
ORDER = pytest.StashKey[Order]()
_BEGUN_S = pytest.StashKey[float]()
CANDIDATES = pytest.StashKey[Mapping[str, Mapping[str, Any]]]()


def gather_candidates(config: pytest.Config) -> Mapping[str, Mapping[str, Any]]:
    """Return, by the name of the fixture that asks for them, the candidates known and brought, by their ids.

    Raises:
        pytest.UsageError: one cannot be brought, or is chosen and not known.

    """
    gathered: dict[str, dict[str, Any]] = {"rms_norm": dict(RMS_NORM), "kernels": dict(KERNEL_SETS)}
    for fixture, known, bring in (("adam", ADAM, bring_adam), ("layer_norm", LAYER_NORM, bring_layer_norm)):
        gathered[fixture] = dict(known)
        for spec in getattr(config.option, f"fuseproof_{fixture}") or []:
            try:
                record = bring(f"--fuseproof-{fixture.replace('_', '-')}", spec, gathered[fixture])
            except BroughtError as error:
                raise pytest.UsageError(str(error)) from None
            gathered[fixture][record.name] = record
            kernel_set = brought_kernel_set(record)
            gathered["kernels"][kernel_set.name] = kernel_set
    gathered["other_adam"] = gathered["adam"]
    norms = [*gathered["layer_norm"].values(), *gathered["rms_norm"].values()]
    gathered["norm"] = {norm.full_name: norm for norm in norms}
    order = config.stash.get(ORDER, None)
    if order is None or not order.candidates:
        return gathered
    try:
        return chosen(gathered, order.candidates)
    except ChoiceError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with each candidate of the kind that it asks for, brought ones too.

    Kinds are `adam`, `layer_norm`, `rms_norm`, `norm`, which is both, and `kernels`.
    """
    for fixture, records in metafunc.config.stash[CANDIDATES].items():
        if fixture in metafunc.fixturenames:
            metafunc.parametrize(
                fixture,
                [
                    pytest.param(
                        each,
                        id=name,
                        marks=pytest.mark.fuseproof_profiled if getattr(each, "launches_per_tensor", False) else (),
                    )
                    for name, each in records.items()
                ],
            )


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.hookimpl(tryfirst=True)  # the header shows what is found here
def pytest_sessionstart(session: pytest.Session) -> None:
    """Find what to compare with, and refuse to start without what is required."""
    config = session.config
    if _is_worker(config):
        return
    config.stash[_BEGUN_S] = time.monotonic()
    book = config.stash[BOOKKEEPER]
    with PHASES.phase("history"):
        book.require_open_night()
        book.find_baselines()
    required = requirements(config.option.fuseproof_require)
    if config.option.benchmark_compare_fail and "baseline" not in required:
        required.append("baseline")  # without one pytest-benchmark would run everything and end in a traceback
    if sentences := book.unmet(required):
        pytest.exit("\n".join(sentences), returncode=UNANSWERED)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what machine and software this is, and what it is compared with."""
    notes = [*config.stash[BOOKKEEPER].notes, *config.stash[GATE].notes]
    return [preflight.examine().header_line(), *(f"fuseproof: {note}" for note in notes)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Time the collection."""
    with PHASES.phase("collection"):
        return (yield)


def _turn(item: pytest.Item) -> int:
    """Parity and the profiler slow later host work down, so: our clocks, then the profiler's, then everything else."""
    if not is_timed(item):
        return 2
    return int(item.get_closest_marker("fuseproof_profiled") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only ``--fuseproof-full`` asks for, and put benchmarks first, in a child in its order."""
    if not config.option.fuseproof_full:
        left_out = [item for item in items if item.get_closest_marker("fuseproof_full")]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if not item.get_closest_marker("fuseproof_full")]
    order = config.stash.get(ORDER, None)
    if order is not None and order.seed:
        items[:] = sorted(filter(is_timed, items), key=lambda item: order.turn(item.nodeid))
    if order is not None and order.candidates:
        kinds = contested(config.stash[CANDIDATES], order.candidates)
        items[:] = [item for item in items if not kinds.isdisjoint(item.fixturenames)]  # type: ignore[attr-defined]
    items.sort(key=_turn)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note which benchmarks the command line leaves out: what was not asked for is not missing."""
    if items:
        items[0].config.stash[BOOKKEEPER].selection.leave_out(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Refuse to time where it is spoiled, if anything that is still selected would be timed.

    Raises:
        pytest.UsageError: it is, and something would.

    """
    benchmarks = session.config._benchmarksession  # type: ignore[attr-defined]
    timing = not (benchmarks.disabled or benchmarks.skip or session.config.option.collectonly)
    if timing and any(map(is_timed, session.items)) and (refusals := machine.timing_refusals()):
        raise pytest.UsageError("timing is refused: " + " ".join(refusals))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """After the last timed test, run the profiler passes; one that fails is an error of its own test."""
    try:
        result = yield
    except BaseException:  # Ctrl-C, pytest.exit: a test that has not finished posts no time
        _forget(item.config, item.nodeid)
        raise
    measurements = item.config.stash.get(MEASUREMENTS, None)
    if measurements is not None and measurements.pending and not is_timed(nextitem):
        say(item.config, f"profiling {len(measurements.pending)} benchmarks once more for their counts")
        with PHASES.phase("profiler passes"):
            for nodeid, error in measurements.profile_pending():
                if error is not None:
                    reason = f"the profiler pass failed: {type(error).__name__}: {error}"
                    failed = pytest.TestReport(nodeid, item.location, {}, "failed", reason, "teardown")
                    item.ihook.pytest_runtest_logreport(report=failed)
                    _forget(item.config, nodeid)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails or is skipped after its benchmark posts no time; a lost CUDA context ends its process."""
    outcome = yield
    if call.excinfo is not None and lost_context.is_lost(call.excinfo.value):
        lost_context.end_worker(item, outcome)
    summary.annotate(outcome, item)
    if not outcome.passed:
        _forget(item.config, item.nodeid)
    if outcome.failed and (fixture := getattr(item, "funcargs", {}).get("benchmark")):
        fixture.skipped = True  # else pytest-benchmark warns that it was not used
    return outcome


def _parity(config: pytest.Config) -> summary.Tally:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    records = {fixture: list(each.values()) for fixture, each in config.stash[CANDIDATES].items()}
    deselected = config.stash.get(DESELECTED, set())
    return summary.tally(reporter.stats if reporter else {}, records, deselected)


def _forget(config: pytest.Config, nodeid: str) -> None:
    benchmarks = config._benchmarksession.benchmarks  # type: ignore[attr-defined]
    benchmarks[:] = [benchmark for benchmark in benchmarks if benchmark.fullname != nodeid]
    if measurements := config.stash.get(MEASUREMENTS, None):
        measurements.pending[:] = [each for each in measurements.pending if each.nodeid != nodeid]


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Match this session's benchmarks with the stored ones by key, before pytest-benchmark builds its table."""
    try:
        with PHASES.phase("tests"):
            return (yield)
    finally:
        benchmarks = session.config._benchmarksession  # type: ignore[attr-defined]
        benchmarks.compared_mapping = session.config.stash[BOOKKEEPER].compared_mapping(benchmarks.benchmarks)


def pytest_benchmark_generate_machine_info() -> dict[str, Any]:
    """Describe the machine; pytest-benchmark would start two processes that sleep a second to measure a clock."""
    return machine.described()


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add the `fuseproof` block, and store parameters by their names instead of as unserializable objects."""
    measurements = config.stash.get(MEASUREMENTS, None)
    if measurements is None:
        return
    output_json["fuseproof"] = config.stash[BOOKKEEPER].block(measurements.to_json())
    for benchmark in output_json["benchmarks"]:
        params = benchmark["params"] or {}
        benchmark["params"] = {name: str(getattr(value, "name", value)) for name, value in params.items()}
        for name, value in benchmark["stats"].items():
            if isinstance(value, float):
                benchmark["stats"][name] = float(f"{value:.7g}")  # more digits say nothing and make files larger


@pytest.hookimpl(wrapper=True, trylast=True)  # around JUnit's file, and before the summary and the exit status
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, object, object]:
    """Judge and save this run, if asked, turn what was found into a status, and tell JUnit."""
    config = session.config
    if _is_worker(config):
        return (yield)
    if config.option.fuseproof_coverage and (holes := _parity(config).coverage.holes()):
        config.stash[BOOKKEEPER].notes += holes
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    with PHASES.phase("judging and saving"):
        _judge_and_save(session)
    result = yield
    gate, path = config.stash[GATE], getattr(config.option, "xmlpath", None)  # -p no:junitxml
    if path and gate.document:
        gate.annotate(config.invocation_params.dir / Path(os.path.expandvars(path)).expanduser())
    return result


def _judge_and_save(session: pytest.Session) -> None:
    config = session.config
    book, gate = config.stash[BOOKKEEPER], config.stash[GATE]
    if session.shouldstop or session.shouldfail:
        book.selection.narrowed.append("ended early")
    if book.gated:
        children = Children.of(session, machine.identify().slug, time.monotonic() - config.stash[_BEGUN_S])
        end_dots(config)
        gate.finish(session, children, partial(say, config))
    elif book.asked.label is not None:
        try:
            book.save(book.document(config))
        except HistoryError as error:
            book.notes.append(str(error))
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    compare_fail(session, book)
    if book.gated:
        gate.tell(session, config.stash.get(RECORD_PROPERTY, None))


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's table
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the ladder, what is invalid, what was set aside and where the run is saved."""
    book = config.stash[BOOKKEEPER]
    measured = [
        {"extra_info": benchmark.extra_info, "stats": benchmark.stats.as_dict()}
        for benchmark in config._benchmarksession.benchmarks  # type: ignore[attr-defined]
        if "fuseproof" in benchmark.extra_info
    ]
    comparable = book.newest_comparable(measured)
    lines = report.kernel_table(measured, comparable) + report.ladder_tables(measured, comparable)
    lines += report.invalid_lines(measured)
    if book.baselines and measured:
        new = [key for each in measured if (key := each["extra_info"]["fuseproof"]["key"]) not in comparable]
        lines.append(report.compared_line(len(comparable), len(measured), new))
    parity = _parity(config)
    lines += parity.lines()
    if config.option.fuseproof_coverage:
        lines += ["", *parity.coverage.markdown().splitlines()]
    verdicts = config.stash[GATE].lines
    notes = [note for note in book.notes if note not in verdicts]
    lines += ["", *verdicts] if verdicts else []
    if lines or notes:
        terminalreporter.section("fuseproof", sep="-")
    for line in [*lines, *([""] if lines else []), *notes]:
        terminalreporter.write_line(line)
    if config.option.durations is not None:
        terminalreporter.write_line(PHASES.line())
