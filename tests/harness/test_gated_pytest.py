"""The gate in a pytest session, run for real on a small project whose kernels take the time that a file says."""

import contextlib
import errno
import json
import math
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from fuseproof import machine
from fuseproof.confirming import Children, Measured
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.settings import GateSettings
from fuseproof.history import History
from fuseproof.processes import ChildError
from fuseproof.trusted import Trusted, find_trusted
from fuseproof.verdicts.verdict import Pair

pytest_plugins = ["pytester"]

REGRESSED, UNANSWERED = 20, 21
TIME = "device_time_ns"
SLUG = machine.identify().slug
GATED = ["--benchmark-compare", "--benchmark-autosave", "--fuseproof-gate-json=gate.json"]
TABLE = """
[tool.fuseproof]
history = "bench_history"

[tool.fuseproof.gate]
replicates = 1
"""
PYTEST = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--strict-config", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
filterwarnings = [
  "error",
  "ignore:Benchmarks are automatically disabled:pytest_benchmark.logger.PytestBenchmarkWarning",
]
"""
# `speeds.json` says how long each kernel takes, as a factor of its own time: one, or one for each process of the
# project and the last for all that follow. A process is off by the pattern's share of 0.1 %, so that what is measured
# varies, and every run of a test is the same.
CONFTEST = '''
import json
import math
import os
import pathlib
import signal
import time

import pytest

ROOT = pathlib.Path(__file__).parent
PATTERN = (-1.3, -0.7, -0.4, -0.1, 0.1, 0.4, 0.7, 1.3)
NAMES = "abcdefgh"


def said(what, name, process, default):
    """Return what speeds.json says of a kernel in a process."""
    found = json.loads((ROOT / "speeds.json").read_text()).get(what, {}).get(name, default)
    return found[min(process, len(found) - 1)] if isinstance(found, list) else found


def duration_ns(name, process):
    number = NAMES.index(name)
    noise = 0.001 * PATTERN[(process + number) % 8]
    return 1e6 * (1 + number) * said("factor", name, process, 1.0) * math.exp(noise)


class Timed:
    """A kernel that takes a time of its own."""

    def __init__(self, name, process):
        self.name, self.process = name, process
        self.duration_ns = duration_ns(name, process)
        self.bytes = said("bytes", name, process, 2**20)
        self.spoiled = said("spoiled", name, process, "")

    def __call__(self):
        if said("full", self.name, self.process, False):
            import torch

            raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. GPU 0 is full.")
        return 1

    def check(self):
        if seconds := said("sleep", self.name, self.process, 0):
            (ROOT / "sleeping").write_text(str(os.getpid()))
            time.sleep(seconds)
        assert self() == said("result", self.name, self.process, 1)


def pytest_configure(config):
    from fuseproof import clock, measure, roofline

    counter = ROOT / "processes"
    config.process = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(config.process + 1))

    def run(self, call):
        result = call()
        subject, spin_ns = getattr(call, "subject", call), getattr(call, "spin_ns", 0.0)
        self._accept(subject.duration_ns + spin_ns)
        if subject.spoiled:
            self._spoil(subject.spoiled)
        return result

    class Counted:
        dispatcher_ops = 1

        def __init__(self, build, calls):
            self.peak_bytes = build().bytes

    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    if said("kill", "save", config.process, False):
        patch.setattr(os, "link", lambda *paths: os.kill(os.getpid(), signal.SIGKILL))
    patch.setattr(clock.WallClock, "run", run)
    patch.setattr(measure, "measure_ceilings", lambda device: roofline.Ceilings(1.0, {}))
    patch.setattr(measure.counts, "trace_host", Counted)


@pytest.fixture(scope="session")
def device():
    import torch

    return torch.device("cpu")


@pytest.fixture
def timed(measure, pytestconfig):
    from fuseproof.measure import Key, Plan

    def timed(name):
        if reason := said("skip", name, pytestconfig.process, ""):
            pytest.skip(reason)
        measure(Plan(Key("op", name, "fp32", "64"), lambda: Timed(name, pytestconfig.process), "kernel", 3))

    return timed
'''
TESTS = """
import pytest


@pytest.mark.parametrize("name", list("abcdefgh"))
def test_op(timed, name):
    timed(name)
"""


@dataclass(frozen=True)
class Project:
    """A small repository with eight kernels, whose time, memory and result a file says."""

    pytester: pytest.Pytester
    placements: list[str] = field(default_factory=list)

    @property
    def root(self) -> Path:
        """Its folder."""
        return self.pytester.path

    @property
    def history(self) -> History:
        """Its history."""
        return History(self.root / "bench_history")

    @property
    def files(self) -> list[Path]:
        """Its run files, oldest first."""
        return [file.path for file in self.history.files(SLUG)]

    @property
    def kernels(self) -> dict[str, Any]:
        """What its conftest defines."""
        return runpy.run_path(str(self.root / "conftest.py"))

    @property
    def processes(self) -> int:
        """How many processes have measured since the last `say`."""
        return int((self.root / "processes").read_text())

    def say(self, **what: dict[str, Any]) -> None:
        """Say how long kernels take from now on, and what else happens to them; the next process is number 0."""
        (self.root / "speeds.json").write_text(json.dumps(what))
        (self.root / "processes").write_text("0")

    def run(self, *args: str, status: int = 0, gate: bool = True) -> str:
        """Run pytest, by default with the gate, saving the run; return what it printed."""
        return checked(self.pytester.runpytest_inprocess(*args, *GATED * gate, no_reraise_ctrlc=True), status)

    def check(self) -> tuple[int, str]:
        """Judge the newest night from its files; return the status and the last line that the table says."""
        files = self.history.nights(SLUG).popitem()[1]
        command = [sys.executable, "-m", "fuseproof", "check", "--json", *[str(file.path) for file in files]]
        ran = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        return ran.returncode, json.loads(ran.stdout)["summary"]

    def gate(self) -> dict[str, Any]:
        """Return the last gate's JSON file."""
        return json.loads((self.root / "gate.json").read_text())  # type: ignore[no-any-return]

    def outcomes(self) -> dict[str, str]:
        """Return the last gate's outcomes of times by the kernel's name, with the reasons."""
        return {
            each["key"].split("/")[1]: ", ".join([each["outcome"], *each["reasons"]])
            for each in self.gate()["verdicts"]
            if each["metric"] == TIME
        }

    def document(self, process: int, names: str, plants: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Return what a process of this project measures of some kernels, without starting it."""
        document = json.loads(json.dumps(first_document(self)))
        kernels = self.kernels
        kept = []
        for benchmark in document["benchmarks"]:
            record = benchmark["extra_info"]["fuseproof"]
            name = record["key"].split("/")[1]
            if name in names:
                own_ns = kernels["duration_ns"](name, process)
                record["metrics"] = {TIME: own_ns, "peak_bytes": kernels["said"]("bytes", name, process, 2**20)}
                record["invalid"] = [reason] if (reason := kernels["said"]("spoiled", name, process, "")) else []
                if size_ln := (plants or {}).get(record["key"]):
                    record["plant"] = {"size_ln": size_ln, "base_ns": own_ns, "planted_ns": own_ns * math.exp(size_ln)}
                kept.append(benchmark)
        return {**document, "benchmarks": kept}

    def remember(self, names: str = "abcdefgh", night: str = "night", **block: Any) -> None:
        """Fill the history with eight nights of one process each, which vary as the processes of this project do."""
        self.say()
        for number in range(8):
            document = self.document(number, names)
            document["fuseproof"] |= {"night": f"{night}{number}", **block}
            self.history.save(SLUG, document, f"{night}{number}")


_FIRST: list[dict[str, Any]] = []


def first_document(project: Project) -> dict[str, Any]:
    """Return what a session of the project measures, once for all tests."""
    if not _FIRST:
        project.run("--benchmark-autosave", gate=False)
        _FIRST.append(json.loads(project.files[0].read_text()))
        project.files[0].unlink()
        project.say()
    return _FIRST[0]


def checked(result: pytest.RunResult, status: int) -> str:
    """Return everything a session printed; it ends with the status, and with sentences instead of a traceback."""
    text = f"{result.stdout.str()}\n{result.stderr.str()}"
    for word in ("Traceback", "INTERNALERROR"):
        assert word not in text, text
    assert result.ret == status, text
    return text


def line_with(text: str, *words: str) -> str:
    """Return the only line that holds all the words."""
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, text
    return lines[0]


@pytest.fixture(autouse=True)
def _not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session around a test may be a worker of pytest-xdist; the one inside is not."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def fresh(pytester: pytest.Pytester) -> Project:
    """A project whose fresh processes are real ones: some seconds each."""
    pytester.makepyprojecttoml(TABLE + PYTEST)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_op=TESTS)
    project = Project(pytester)
    project.say()
    return project


@pytest.fixture
def project(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose fresh processes are played by this one."""

    def measure(
        children: Children,
        tests: list[str],
        *,
        python: str = sys.executable,
        environ: dict[str, str] | None = None,
        plants: Mapping[str, float] | None = None,
        placement: str = "",
    ) -> Measured:
        process = fresh.processes
        fresh.placements.append(placement)
        (fresh.root / "processes").write_text(str(process + 1))
        if reason := fresh.kernels["said"]("crash", python, process, ""):
            raise ChildError(reason)
        names = "".join(test[-2] for test in tests)  # test_op.py::test_op[a]
        return Measured(fresh.document(process, names, plants))

    monkeypatch.setattr(Children, "measure", measure)
    return fresh


# --- verdicts and status ----------------------------------------------------------------------------------------------


def test_nothing_has_changed(project: Project) -> None:
    """Eight kernels as they always were: all PASS, the controls pass, status 0, and the last lines say all of it."""
    project.remember()
    text = project.run()
    assert dict.fromkeys("abcdefgh", "PASS") == project.outcomes()
    assert "16 PASS; judged 8 of 8 keys (selection: everything); baseline: 8 nights a benchmark" in text
    controls = {control["name"]: control["passed"] for control in project.gate()["controls"]}
    assert {"plant", f"same arm {TIME}"} <= controls.keys()
    assert all(controls.values())


def test_a_kernel_that_is_30_percent_slower_blocks(project: Project) -> None:
    """Far outside on one night: REGRESSED, status 20, and its row says by how much."""
    project.remember()
    project.say(factor={"c": 1.3})
    text = project.run(status=REGRESSED)
    assert {**dict.fromkeys("abcdefgh", "PASS"), "c": "REGRESSED"} == project.outcomes()
    row = line_with(text, "op/c/fp32/64", "REGRESSED")
    assert "+30." in row
    assert "5 confirming" in row
    assert "confirming 1 benchmark(s): process 1 of 5" in text
    assert line_with(text, "process 3 of 5").endswith("s left")


def test_one_noisy_process_does_not_block(project: Project) -> None:
    """Fault 57: 27 % slower in one process, and fresh ones do not show it."""
    project.remember()
    project.say(factor={"c": [1.27, 1.0]})
    text = project.run()
    assert project.outcomes()["c"] == "PASS, NOT_CONFIRMED"
    assert "3 confirming" in line_with(text, "op/c/fp32/64", "NOT_CONFIRMED")


def test_a_small_slow_down_is_held_for_a_second_night(project: Project) -> None:
    """Above its bound and below three of them: status 21 on the first night, 20 on the second."""
    project.remember()
    project.say(factor={"c": 1.02})
    project.run(status=UNANSWERED)
    assert project.outcomes()["c"] == "INCONCLUSIVE, HELD"
    project.run(status=REGRESSED)
    assert project.outcomes()["c"] == "REGRESSED"


def test_a_held_night_that_is_not_saved_is_said_to_be_lost(project: Project) -> None:
    """Without --benchmark-autosave there will be no second night."""
    project.remember()
    project.say(factor={"c": 1.02})
    text = checked(project.pytester.runpytest_inprocess("--benchmark-compare"), UNANSWERED)
    assert "this one is not saved: run with --benchmark-autosave" in text
    assert len(project.files) == 8


def test_a_regressed_run_is_not_tomorrows_baseline(project: Project) -> None:
    """Fault 55: saved and marked; ten nights later the same level is still REGRESSED."""
    project.remember()
    project.say(factor={"c": 1.3})
    for _ in range(10):
        project.run(status=REGRESSED)
    assert len(project.files) == 18
    row = next(each for each in project.gate()["verdicts"] if each["key"] == "op/c/fp32/64" and each["metric"] == TIME)
    assert row["nights"] == 8


def test_ten_nights_of_a_third_of_a_percent_are_caught(project: Project) -> None:
    """Fault 56: each night is within the tolerance of the one before; against the anchor they add up."""
    project.remember()
    statuses = []
    for night in range(1, 11):
        project.say(factor={"c": math.exp(0.003 * night)})
        statuses.append(int(project.pytester.runpytest_inprocess(*GATED).ret))
    assert statuses[0] == 0
    assert REGRESSED in statuses


def test_memory_is_judged_exactly(project: Project) -> None:
    """2 MiB more in every process is REGRESSED; 0.5 MiB is within the margin."""
    project.remember()
    project.say(bytes={"a": 2**20 + 2**19, "b": 3 * 2**20})
    text = project.run(status=REGRESSED)
    assert "EXACT" in line_with(text, "op/b/fp32/64", "peak_bytes", "REGRESSED")
    assert "op/a/fp32/64  " not in text.rpartition("benchmark ")[2]


def test_a_failed_test_outranks_a_regression(project: Project) -> None:
    """A wrong kernel is status 1, whatever else is slower; the rest is judged all the same."""
    project.remember()
    project.say(factor={"c": 1.3}, result={"a": 2})
    text = project.run(status=1)
    assert "1 failed, 7 passed" in text
    assert project.outcomes()["c"] == "REGRESSED"
    assert project.gate()["status"] == 1


def test_out_of_memory_in_one_benchmark(project: Project) -> None:
    """Fault 60: that one fails, the session goes on, and the others are judged."""
    project.remember()
    project.say(full={"a": True})
    text = project.run(status=1)
    assert "does not fit: Tried to allocate 2.00 GiB" in text
    assert {"PASS"} == {outcome for name, outcome in project.outcomes().items() if name != "a"}


# --- what was asked for -----------------------------------------------------------------------------------------------


def test_a_vanished_benchmark_is_missing(project: Project) -> None:
    """Fault 54: the whole suite was asked for and one key is gone: status 21 until it is accepted."""
    project.remember()
    project.pytester.makepyfile(test_op=TESTS.replace("abcdefgh", "abcdefg"))
    text = project.run(status=UNANSWERED)
    assert project.outcomes()["h"] == "MISSING"
    assert "judged 7 of 8 keys (selection: everything)" in text


@pytest.mark.parametrize(
    "narrow",
    [["-k", "op[a] or op[b]"], ["--deselect=test_op.py::test_op[a]"], ["test_op.py::test_op[a]"], ["test_op.py"]],
    ids=["k", "deselect", "test", "file"],
)
def test_what_was_not_asked_for_is_not_missing(project: Project, narrow: list[str]) -> None:
    """A run narrowed by -k, --deselect or a path is judged on what it has, and says how much that is."""
    project.remember()
    project.pytester.makepyfile(test_op=TESTS.replace("abcdefgh", "abcdefg"))
    text = project.run(*narrow)
    assert "h" not in project.outcomes()
    assert " of 8 keys (selection: default " in text


def test_a_run_that_ended_early_misses_nothing(project: Project) -> None:
    """-x: what did not run after a failure is not missing; the failure is the status."""
    project.remember()
    project.say(result={"b": 2})
    project.run("-x", status=1)
    assert "MISSING" not in str(project.outcomes())


def test_the_same_narrow_command_expects_what_it_has_measured_before(project: Project) -> None:
    """Two nights of the same path: what the first had, the second must have."""
    project.remember(selection="default of test_op.py")
    project.pytester.makepyfile(test_op=TESTS.replace("abcdefgh", "abcdefg"))
    project.run("test_op.py", status=UNANSWERED)
    assert project.outcomes()["h"] == "MISSING"


def test_a_gate_selection_is_a_selection_of_its_own(project: Project) -> None:
    """-m fuseproof_gate asks for the marked ones: another that is gone is not missed, one of them is."""
    marked = TESTS.replace('"abcdefgh"', '"abcd"').replace("\n@pytest", "\n@pytest.mark.fuseproof_gate\n@pytest", 1)
    project.remember(names="abcde", selection="gate")
    project.remember(names="fgh", night="other")
    project.pytester.makepyfile(test_op=marked)
    text = project.run("-m", "fuseproof_gate", status=UNANSWERED)
    assert {**dict.fromkeys("abcd", "PASS"), "e": "MISSING"} == project.outcomes()
    assert "(selection: gate)" in text


def test_a_renamed_test_keeps_its_history(project: Project) -> None:
    """Keys are compared, not names of tests."""
    project.remember()
    (project.root / "test_op.py").unlink()
    project.pytester.makepyfile(test_renamed=TESTS)
    project.run()
    assert dict.fromkeys("abcdefgh", "PASS") == project.outcomes()


def test_skipped_benchmarks_are_missing(project: Project) -> None:
    """A skip is not an answer: what the history has and the whole suite does not measure is MISSING."""
    project.remember()
    project.say(skip={"a": "no kernel here"})
    project.run(status=UNANSWERED)
    assert project.outcomes()["a"] == "MISSING"


@pytest.mark.parametrize("way", ["skip", "xfail"])
def test_what_is_skipped_or_fails_as_expected_after_its_benchmark_is_missing(project: Project, way: str) -> None:
    """It says of itself that what it measured is not to be trusted."""
    project.remember()
    project.pytester.makepyfile(test_op=TESTS + f'    if name == "c":\n        pytest.{way}("of no use")\n')
    project.run(status=UNANSWERED)
    assert project.outcomes()["c"] == "MISSING"


def test_a_benchmark_by_another_method_is_not_new_in_silence(project: Project) -> None:
    """It can hide any slow-down, so the report names it beside the verdict."""
    project.remember()
    project.say(factor={"c": 1.5})
    conftest = project.root / "conftest.py"
    conftest.write_text(conftest.read_text().replace('"kernel", 3)', '"kernel", 3 + (name == "c"))'))
    text = project.run()
    assert project.outcomes()["c"] == "NEW, NO_BASELINE"
    line = line_with(text, "no baseline but nights by another method (clock, rounds, shapes)")
    assert line.endswith("which hide any change: op/c/fp32/64; compare by hand, or calibrate")


def test_a_suite_that_skips_all_of_it_is_missing(project: Project) -> None:
    """Nothing ran, nothing failed, and pytest says 0: the history knows better."""
    project.remember()
    project.say(skip=dict.fromkeys("abcdefgh", "no kernel here"))
    text = project.run(status=UNANSWERED)
    assert "16 MISSING; judged 0 of 8 keys" in text


def test_nothing_but_skips_is_no_answer_where_one_is_required(project: Project) -> None:
    """--require=gate with nothing measured: status 21, also where the history is empty."""
    project.say(skip=dict.fromkeys("abcdefgh", "no kernel here"))
    text = project.run("--fuseproof-require=gate", status=UNANSWERED)
    assert "gate: nothing judged; judged 0 of 0 keys" in text
    assert "gate: nothing judged; judged 0 of 0 keys" in project.run()


def test_a_brought_kernel_is_expected_only_if_it_is_brought(project: Project) -> None:
    """Keys of somebody's own candidate are not missing without its option."""
    project.remember(brought=["a"])
    project.pytester.makepyfile(test_op=TESTS.replace("abcdefgh", "bcdefgh"))
    project.run()
    assert "a" not in project.outcomes()


# --- nothing to judge by, or spoiled ----------------------------------------------------------------------------------


def test_the_first_night_is_new_and_says_what_to_do(project: Project) -> None:
    """Nothing to judge by is status 0, said and counted; where the gate is required it is 21."""
    text = project.run()
    assert dict.fromkeys("abcdefgh", "NEW, NO_BASELINE") == project.outcomes()
    assert "16 NEW; judged 0 of 8 keys" in text
    assert "fuseproof calibrate" in text
    project.run("--fuseproof-require=gate", status=UNANSWERED)
    assert project.processes == 2  # nothing was confirmed or planted


def test_a_required_baseline_that_is_missing_ends_the_session(project: Project) -> None:
    """Status 21 before anything runs."""
    assert "baseline required" in project.run("--fuseproof-require=baseline", status=UNANSWERED)


def test_foreign_hardware_is_named_and_not_compared(project: Project) -> None:
    """Fault 50: runs of another machine are no baseline."""
    project.remember()
    project.files[0].parent.rename(project.history.root / "nvidia-h900")
    text = project.run()
    assert "other hardware is not compared: nvidia-h900 (8 runs)" in text
    assert {"NEW, NO_BASELINE"} == set(project.outcomes().values())


@pytest.mark.parametrize("spoil", ["truncated", "poisoned"])
def test_a_spoiled_run_is_named_and_the_verdict_says_so(project: Project, spoil: str) -> None:
    """Faults 51, 52: the others are the baseline; the last line counts what was set aside."""
    project.remember()
    text = project.files[-1].read_text()
    project.files[-1].write_text(text[:-200] if spoil == "truncated" else text.replace('"min":', '"min":NaN,"x":', 1))
    said = project.run()
    assert project.files[-2].name in line_with(said.rpartition("- fuseproof -")[2], "set aside:")
    assert "baseline: 7 nights a benchmark" in line_with(said, "gate: ")
    assert "1 set aside" in line_with(said, "gate: ")


def test_runs_of_the_future_are_named(project: Project) -> None:
    """A clock that was set back would put tonight before them, and everything would be compared with them for ever."""
    project.remember()
    assert "dated ahead" not in project.run()
    newest = project.files[-2]
    newest.rename(newest.with_name(re.sub("_[0-9]{8}T", "_29990131T", newest.name)))
    text = project.run("--benchmark-compare", "--fuseproof-gate=off", gate=False)
    assert "1 run(s) are dated ahead of this machine's clock, the last 00" in text
    assert "set the clock, or move runs with a wrong date out of the history" in text


def test_lost_verdicts_are_no_clean_night(project: Project) -> None:
    """What was said of a night cannot be read: that night is no baseline, and the session is not answered."""
    project.remember()
    project.run()
    (record,) = (project.history.root / SLUG / "verdicts").glob("*.json")
    record.write_text(record.read_text()[:-50])
    text = project.run(status=UNANSWERED)
    assert "control failed: history" in text
    assert record.name in text


def test_a_night_that_was_never_judged_is_no_baseline(project: Project) -> None:
    """Killed between saving and judging: the run is there, and does not count."""
    project.remember()
    project.say(factor={"c": 1.02})
    project.run(status=UNANSWERED)
    for record in (project.history.root / SLUG / "verdicts").glob("*.json"):
        record.unlink()
    project.say()
    text = project.run()
    assert "was to be judged and has no verdict" in text
    assert "baseline: 8 nights" in text


def test_a_history_that_cannot_be_listed_does_not_lose_the_night(project: Project) -> None:
    """Something else lies where the verdicts belong: nothing is judged, and what was measured is there."""
    project.remember()
    verdicts = project.history.root / SLUG / "verdicts"
    verdicts.write_text("")
    text = project.run(status=pytest.ExitCode.INTERNAL_ERROR)
    assert "verdicts: cannot be listed (Not a directory)" in line_with(text, "gate: nothing judged")
    assert len(project.files) == 9
    verdicts.unlink()
    text = project.run()
    assert "was to be judged and has no verdict, so it is no baseline" in text
    assert "baseline: 8 nights a benchmark" in text


def test_a_full_disk_is_said_and_nothing_is_spoiled(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 59: status 3 and a sentence; the next run works."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    project.remember()
    with monkeypatch.context() as patch:
        patch.setattr("fuseproof.history.write_new", full)
        text = project.run(status=pytest.ExitCode.INTERNAL_ERROR)
    assert "No space left on device" in text
    assert "The run is kept in" in text
    assert len(project.files) == 8
    project.run()
    assert len(project.files) == 9


def test_killed_while_saving(fresh: Project) -> None:
    """Fault 59: the run is written and not yet named when the process is killed; the next run works and judges."""
    fresh.remember()
    fresh.say(kill={"save": [True, False]})
    assert fresh.pytester.runpytest_subprocess(*GATED).ret == -signal.SIGKILL
    assert len(fresh.files) == 8
    assert list((fresh.history.root / SLUG).glob("*.tmp"))
    fresh.run()
    assert dict.fromkeys("abcdefgh", "PASS") == fresh.outcomes()
    assert len(fresh.files) == 9


# --- fresh processes --------------------------------------------------------------------------------------------------


def test_replicates_are_one_night(project: Project) -> None:
    """--fuseproof-replicates=3 measures twice more, saves each process, and judges their median."""
    project.remember()
    project.say(factor={"c": [1.27, 1.0]})
    text = project.run("--fuseproof-replicates=3")
    assert project.outcomes()["c"] == "PASS"
    nights = project.history.nights(SLUG)
    assert [len(files) for files in nights.values()] == [1] * 8 + [3]
    assert "screening: process 2 of 3" in text
    assert line_with(text, "screening: process 3 of 3").endswith("s left")
    assert text.count("saved as ") == 3


def test_processes_of_one_night_can_be_started_one_by_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """FUSEPROOF_NIGHT joins them; the last one judges all."""
    project.remember()
    project.say(factor={"c": [1.27, 1.0]})
    monkeypatch.setenv("FUSEPROOF_NIGHT", "n1")
    for _ in range(2):
        project.run("--benchmark-autosave", gate=False)
    project.run()
    assert project.outcomes()["c"] == "PASS"
    assert len(project.history.nights(SLUG)["n1"]) == 3


def test_a_night_that_is_judged_takes_no_more_processes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name for every night: the fast processes of the nights before would outvote a slow one."""
    project.remember()
    project.say()
    monkeypatch.setenv("FUSEPROOF_NIGHT", "always")
    project.run()
    project.say(factor={"c": 1.27})
    text = project.run(status=pytest.ExitCode.USAGE_ERROR)
    assert "FUSEPROOF_NIGHT: the night 'always' is judged or accepted already, and takes no more processes" in text
    project.run("--benchmark-autosave", gate=False, status=pytest.ExitCode.USAGE_ERROR)
    assert len(project.history.nights(SLUG)["always"]) == 1
    project.run(gate=False)


def test_a_replicate_that_crashes_answers_nothing(project: Project) -> None:
    """The night is judged by the processes that did run, and is never green: a kernel may have killed the others."""
    project.remember()
    project.say(crash={sys.executable: ["", "it ended with status 3: no driver", ""]})
    text = project.run("--fuseproof-replicates=3", status=UNANSWERED)
    assert "screening process 2 of 3 measured nothing: it ended with status 3: no driver" in text
    assert "control failed: screening: 1 of 3 processes have run" in text
    assert {"PASS"} == set(project.outcomes().values())


def test_a_kernel_that_is_wrong_in_another_process_of_the_night_fails_the_session(fresh: Project) -> None:
    """Status 1, as if it had been wrong in this one; what each process has measured is kept."""
    fresh.say(result={"c": [1, 2, 1]})
    text = fresh.run("--fuseproof-replicates=3", status=pytest.ExitCode.TESTS_FAILED)
    assert "test_op.py::test_op[c] failed in screening process 2 of 3: AssertionError: assert 1 == 2" in text
    assert text.index("16 NEW") < text.index("status 1: tests failed in fresh processes of this night, as said above")
    assert [len(json.loads(path.read_text())["benchmarks"]) for path in fresh.files] == [8, 7, 8]
    assert any("test_op[c] failed in" in note for note in fresh.gate()["notes"])


def test_a_test_that_another_process_of_the_night_skips_is_not_answered(fresh: Project) -> None:
    """What has a time in one process of two has not been measured twice."""
    fresh.say(skip={"c": ["", "no kernel here"]})
    text = fresh.run("--fuseproof-replicates=2", status=UNANSWERED)
    lost = "screening process 2 of 2 has not measured test_op.py::test_op[c]: no kernel here"
    assert f"control failed: screening: {lost}" in text


@pytest.mark.parametrize(("slower", "wrong"), [("c", "c"), ("c", "a"), ("", "abcdefgh"), ("c", "abcdefgh")])
def test_a_kernel_that_is_wrong_in_a_confirming_process_fails_the_session(
    fresh: Project, slower: str, wrong: str
) -> None:
    """Whether it is the suspect or the control's, and others are right or none is."""
    fresh.remember()
    fresh.say(factor=dict.fromkeys(slower, 1.3), result={name: [1, 2] for name in wrong})
    text = fresh.run(status=pytest.ExitCode.TESTS_FAILED)
    assert re.search(r"test_op\.py::test_op\[\w\] .*AssertionError: assert 1 == 2", text)
    assert "status 1: tests failed in fresh processes" in text


def test_a_wrong_name_of_a_night_is_refused_before_anything_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under it nothing could be saved, so nobody waits for the end of the session to hear it."""
    monkeypatch.setenv("FUSEPROOF_NIGHT", "My Night")
    text = project.run(status=pytest.ExitCode.USAGE_ERROR)
    assert "FUSEPROOF_NIGHT: the night 'My Night' is not 1 to 32 of 0-9 and a-z." in text


@pytest.mark.parametrize("look", ["--collect-only", "--setup-plan"])
def test_a_session_that_only_looks_misses_nothing(project: Project, look: str) -> None:
    """Nobody wanted a benchmark measured, so none is MISSING; a required answer has not been given."""
    project.remember()
    assert "gate: nothing judged: no test was to be run" in project.run(look)
    assert project.gate()["verdicts"] == []
    project.run(look, "--fuseproof-require=gate", status=UNANSWERED)


def test_a_full_disk_for_temporary_files_is_one_sentence(fresh: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process can be started, so the night has one; what it has measured is saved and judged."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/fuseproof-x")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    text = fresh.run("--fuseproof-replicates=2", status=UNANSWERED)
    assert "screening process 2 of 2 measured nothing: no folder for its results: " in text
    assert "No space left on device" in text
    assert len(fresh.files) == 1


def test_a_confirming_process_that_crashes_leaves_its_suspect_invalid(project: Project) -> None:
    """One sentence and status 21; what has been measured by then is kept."""
    project.remember()
    project.say(factor={"c": 1.3}, crash={sys.executable: ["", "", "it was killed by SIGSEGV: no words"]})
    text = project.run(status=UNANSWERED)
    assert "confirming process 2 measured nothing: it was killed by SIGSEGV: no words" in text
    assert project.outcomes()["c"] == "INVALID, UNCONFIRMED"
    assert "1 of 5 confirming processes ran" in text


def test_ctrl_c_while_confirming_keeps_what_is_finished(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 2; the run is saved and its verdicts are: the suspect is INVALID, the others are judged."""
    project.remember()
    project.say(factor={"c": 1.3})
    measure = Children.measure

    def interrupted(*args: Any, **options: Any) -> Measured:
        if project.processes == 3:
            raise KeyboardInterrupt
        return measure(*args, **options)

    monkeypatch.setattr(Children, "measure", interrupted)
    text = project.run(status=pytest.ExitCode.INTERRUPTED)
    assert {**dict.fromkeys("abdefgh", "PASS"), "c": "INVALID, UNCONFIRMED"} == project.outcomes()
    assert "2 of 5 confirming processes ran" in text
    assert len(project.files) == 9
    monkeypatch.setattr(Children, "measure", measure)
    project.say()
    assert "baseline: 8 to 9 nights a benchmark" in project.run()


def test_ctrl_c_in_a_test_judges_nothing(project: Project) -> None:
    """The interrupted run is saved and never becomes a baseline."""
    project.remember()
    project.pytester.makepyfile(test_zz="def test_zz():\n    raise KeyboardInterrupt\n")
    text = project.run(status=pytest.ExitCode.INTERRUPTED)
    assert "gate: nothing judged: the session ended with status 2" in text
    assert len(project.files) == 9
    (project.root / "test_zz.py").unlink()
    assert "baseline: 8 nights a benchmark" in project.run()


# --- the state of the machine -----------------------------------------------------------------------------------------


def test_what_was_disturbed_once_is_measured_again(project: Project) -> None:
    """Fault 58: another process on the GPU spoils one benchmark; a second look without it counts."""
    project.remember()
    project.say(factor={"c": [1.3, 1.0]}, spoiled={"c": ["another process used the GPU (pid 7)", ""]})
    text = project.run()
    assert project.outcomes()["c"] == "PASS"
    assert "op/c/fp32/64: another process used the GPU (pid 7); measured again, sound" in text


def test_what_is_still_disturbed_is_invalid(project: Project) -> None:
    """Measured again once, then said: INVALID, status 21."""
    project.remember()
    project.say(spoiled={"c": "the GPU was throttled (hw_thermal_slowdown) at 90 °C"})
    text = project.run(status=UNANSWERED)
    assert project.outcomes()["c"] == "INVALID, MEASUREMENT"
    assert "op/c/fp32/64: the GPU was throttled (hw_thermal_slowdown) at 90 °C; measured again, still so" in text


def test_a_plant_that_is_not_seen_answers_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that sleeps says PASS to everything; its control does not."""
    measure = Children.measure

    def blind(*args: Any, plants: Mapping[str, float] | None = None, **options: Any) -> Measured:
        return measure(*args, plants=dict.fromkeys(plants or {}, 1e-9), **options)

    project.remember()
    monkeypatch.setattr(Children, "measure", blind)
    text = project.run(status=UNANSWERED)
    assert {"PASS"} == set(project.outcomes().values())
    closing = line_with(text, "gate: 16 PASS")
    assert "; control failed: plant (by itself status 21); if noise is the cause" in closing
    assert "set OMP_NUM_THREADS=1 and calibrate anew" in closing
    assert project.gate()["summary"] == closing
    assert project.check() == (UNANSWERED, closing)


def test_a_control_that_crashes_answers_nothing(project: Project) -> None:
    """What was to show that the gate is awake has not run: said, and status 21."""
    project.remember()
    project.say(crash={sys.executable: ["", "it ended with status 3: no driver"]})
    text = project.run(status=UNANSWERED)
    assert "a control measured nothing: it ended with status 3: no driver" in text
    assert "nothing seen" in line_with(text, "control failed: plant: ")
    assert project.check() == (UNANSWERED, line_with(text, "gate: 16 PASS"))


def test_processes_of_tonight_that_disagree_answer_nothing(project: Project) -> None:
    """An A/A stream of tonight's own processes: ten times as far apart as ever."""
    project.remember()
    wild = {name: [1.0, 1.004, 0.996] for name in "abcdefgh"}
    project.say(factor=wild)
    text = project.run("--fuseproof-replicates=3", status=UNANSWERED)
    assert "control failed: same arm" in text
    assert project.check()[0] == UNANSWERED


# --- pairs with the trusted environment -------------------------------------------------------------------------------


@pytest.fixture
def paired(project: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two environments; returns the arms in the order in which they ran."""
    order: list[str] = []
    measure = Children.measure

    def noted(*args: Any, python: str = sys.executable, **options: Any) -> Measured:
        order.append("A" if python == "old-python" else "B")
        return measure(*args, python=python, **options)

    project.remember()
    software = dict(first_document(project)["fuseproof"]["software"])
    del software["driver"]  # the host's, not an environment's
    monkeypatch.setattr("fuseproof.gating.find_trusted", lambda *_: Trusted("old-python", {}, software))
    monkeypatch.setattr(Children, "measure", noted)
    return order


def test_a_suspect_is_confirmed_in_pairs(project: Project, paired: list[str]) -> None:
    """Five pairs in the order AB BA: 2 % more than the trusted environment is REGRESSED on the first night."""
    project.say(factor={"c": [1.02] + [1.0, 1.02, 1.02, 1.0] * 3})
    text = project.run(status=REGRESSED)
    assert project.outcomes()["c"] == "REGRESSED"
    assert "".join(paired) == "ABBAABBAAB"
    assert "confirming 1 benchmark(s): pair 1 of 5" in text


def test_both_arms_of_a_pair_lie_in_the_same_place_and_no_two_pairs_do(project: Project, paired: list[str]) -> None:
    """What an environment allocates besides moves its kernels: it must not move them alike in all pairs."""
    project.say(factor={"c": [1.02] + [1.0, 1.02, 1.02, 1.0] * 3})
    project.run(status=REGRESSED)
    first, second = project.placements[::2], project.placements[1::2]
    assert len(paired) == len(project.placements) == 10
    assert first == second
    assert all(first)
    assert len(set(first)) == 5


def test_alone_a_benchmark_lies_where_it_did_in_the_history(project: Project) -> None:
    """Confirming processes without pairs are compared with nights that hold nothing beside."""
    project.remember()
    project.say(factor={"c": [1.02] * 20})
    project.run(status=UNANSWERED)
    assert project.outcomes()["c"] == "INCONCLUSIVE, HELD"
    assert set(project.placements) == {""}


def test_a_machine_that_is_slow_tonight_is_no_regression(project: Project, paired: list[str]) -> None:
    """Both environments are slower alike, and nothing on the host has changed: INVALID(MACHINE)."""
    project.say(factor={"c": 1.05})
    project.run(status=UNANSWERED)
    assert project.outcomes()["c"] == "INVALID, MACHINE"


def test_a_pair_at_different_clocks_is_not_used(
    project: Project, paired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault 58: a clock drop in one arm makes no pair; without pairs the suspect stays unconfirmed."""
    measure = Children.measure

    def dropping(*args: Any, python: str = sys.executable, **options: Any) -> Measured:
        measured = measure(*args, python=python, **options)
        for benchmark in measured.document["benchmarks"]:
            clock_mhz = 1980.0 if python == "old-python" else 1500.0
            benchmark["extra_info"]["fuseproof"]["gpu"] = {"spin_sm_clock_mhz": clock_mhz}
        return measured

    monkeypatch.setattr(Children, "measure", dropping)
    project.say(factor={"c": 1.05})
    text = project.run(status=UNANSWERED)
    assert "a pair is not used: its arms ran at different SM clocks (1980 MHz trusted, 1500 MHz tonight)" in text
    assert project.outcomes()["c"] == "INVALID, UNCONFIRMED"


def test_another_method_in_the_trusted_environment_is_no_pair(
    project: Project, paired: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same version of fuseproof, edited there: its numbers mean something else, and are not subtracted."""
    measure = Children.measure

    def edited(*args: Any, python: str = sys.executable, **options: Any) -> Measured:
        measured = measure(*args, python=python, **options)
        for benchmark in measured.document["benchmarks"] if python == "old-python" else ():
            benchmark["extra_info"]["fuseproof"]["method"] = "another"
        return measured

    monkeypatch.setattr(Children, "measure", edited)
    project.say(factor={"c": 1.05})
    text = project.run(status=UNANSWERED)
    assert "op/c/fp32/64: the trusted environment measures it by another method" in text
    assert project.outcomes()["c"] == "INVALID, UNCONFIRMED"


def test_another_environment_than_the_recorded_one_makes_no_pairs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segments began with another torch: refused by name, and confirmed alone."""
    project.remember()
    monkeypatch.setattr("fuseproof.gating.find_trusted", lambda *_: Trusted("old-python", {}, {"torch": "1.0"}))
    project.say(factor={"c": 1.3})
    text = project.run(status=REGRESSED)
    assert "8 of 8 benchmarks, whose segments did not begin in old-python" in text
    assert "torch 1.0, not 2." in text
    assert "confirming 1 benchmark(s): process 1 of 5" in text


def test_a_segment_that_began_elsewhere_is_confirmed_alone(project: Project, paired: list[str]) -> None:
    """An accepted level of another torch: pairs with the first one would call any loss of it nothing."""
    software = {**first_document(project)["fuseproof"]["software"], "torch": "9.0"}
    project.remember(night="later", software=software)
    Ledger(project.history, SLUG).accept("later0", [Pair("op/c/fp32/64", TIME)], "wanted", "me")
    project.say(factor={"c": 1.05, "d": [1.02] + [1.0, 1.02, 1.02, 1.0] * 3})
    text = project.run(status=REGRESSED)
    assert "1 of 8 benchmarks, whose segments did not begin in old-python (op/c/fp32/64: torch" in text
    assert project.outcomes()["c"] == "REGRESSED"  # in pairs it would be the machine's: both arms are slow
    assert project.outcomes()["d"] == "REGRESSED"
    assert "".join(paired).startswith("ABBAAB")
    assert set(project.placements) == {""}  # its nights hold nothing beside, and it shares the processes of the pairs


# --- options ----------------------------------------------------------------------------------------------------------


def test_warn_judges_and_changes_no_status(project: Project) -> None:
    """--fuseproof-gate=warn shows and remembers all verdicts; the status stays 0."""
    project.remember()
    project.say(factor={"c": 1.3})
    text = project.run("--fuseproof-gate=warn")
    assert project.outcomes()["c"] == "REGRESSED"
    assert 'mode "warn": the status stays 0' in text


def test_off_compares_and_judges_nothing(project: Project) -> None:
    """--fuseproof-gate=off is the comparison alone, without a fresh process."""
    project.remember()
    project.say(factor={"c": 1.3})
    text = project.run("--benchmark-compare", "--fuseproof-gate=off", gate=False)
    assert "gate:" not in text
    assert "+30." in line_with(text, "op/c/fp32/64")
    assert project.processes == 1


def test_the_configuration_says_the_mode(project: Project) -> None:
    """`mode` in [tool.fuseproof.gate] is the default of the option, which wins over it."""
    project.remember()
    project.pytester.makepyprojecttoml(f'{TABLE}mode = "off"\n{PYTEST}')
    assert "gate:" not in project.run("--benchmark-compare", gate=False)
    assert "gate:" in project.run("--fuseproof-gate=fail")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--fuseproof-gate-json=x.json"], "there are no verdicts without --benchmark-compare"),
        (["--benchmark-compare", "--fuseproof-gate-json=no/x.json"], "there is no folder"),
        (["--benchmark-compare", "--fuseproof-gate-json=."], "cannot be written (Is a directory); give another."),
        (["--benchmark-compare", "--fuseproof-replicates=0"], "a night has at least one process"),
        (["--benchmark-autosave", "--fuseproof-replicates=3"], "give --benchmark-compare too"),
        (["--benchmark-compare", "-n", "2"], "nothing is timed under pytest-xdist"),
        (["--benchmark-compare", "--benchmark-disable"], "nothing is timed with --benchmark-disable"),
        (["--benchmark-compare", "test_op.py"], "put the path first: pytest test_op.py --benchmark-compare"),
    ],
    ids=[
        "json-without-compare",
        "json-without-folder",
        "json-is-folder",
        "no-process",
        "no-judge",
        "xdist",
        "disabled",
        "path-as-run",
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(project: Project, args: list[str], sentence: str) -> None:
    """Status 4 and a sentence before anything runs: never a green gate that has judged nothing."""
    assert sentence in project.run(*args, gate=False, status=pytest.ExitCode.USAGE_ERROR)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [([], "it needs --benchmark-compare"), (["--benchmark-compare", "--fuseproof-gate=off"], "it is switched off")],
    ids=["not-asked-for", "off"],
)
def test_a_required_gate_that_is_not_there_ends_the_session(project: Project, args: list[str], sentence: str) -> None:
    """--require=gate without a gate is status 21."""
    text = project.run("--fuseproof-require=gate", *args, gate=False, status=UNANSWERED)
    assert f"gate required: {sentence}" in text


def test_a_broken_waiver_is_a_usage_error(project: Project) -> None:
    """Before anything runs, with the file and the entry."""
    (project.root / "waivers.toml").write_text('[[waiver]]\nkey = "op/c/fp32/64"\n')
    assert "waivers.toml: waiver 1: metric is None" in project.run(status=pytest.ExitCode.USAGE_ERROR)


def test_junit_and_json_have_all_verdicts(project: Project) -> None:
    """Both say every verdict with its causes, and the status that the session ends with."""
    project.remember()
    project.say(factor={"c": 1.3})
    project.run("--junitxml=junit.xml", status=REGRESSED)
    suite = ElementTree.parse(project.root / "junit.xml").getroot()[0]
    properties = {each.get("name"): each.get("value") for each in suite.findall("properties/property")}
    assert properties["fuseproof.status"] == "20"
    assert "1 REGRESSED" in str(properties["fuseproof.gate"])
    assert str(properties[f"fuseproof.op/c/fp32/64 {TIME}"]).startswith("REGRESSED op/c/fp32/64")
    assert len([name for name in properties if str(name).startswith("fuseproof.op/")]) == 16
    assert project.gate()["status"] == REGRESSED
    assert {each["message"] for each in project.gate()["verdicts"]} <= set(properties.values())
    cases = {
        str(case.get("name")): {each.get("name"): str(each.get("value")) for each in case.iter("property")}
        for case in suite.findall("testcase")
    }
    assert cases.keys() == {f"test_op[{name}]" for name in "abcdefgh"}
    for name, said in cases.items():
        assert said.keys() == {f"fuseproof.{TIME}", "fuseproof.peak_bytes"}
        assert said[f"fuseproof.{TIME}"] == properties[f"fuseproof.op/{name[8]}/fp32/64 {TIME}"]


def test_verdicts_of_another_night_are_not_left_as_tonights(project: Project) -> None:
    """A session that is killed, as by a kernel that calls exit(0), leaves no file that says 0."""
    (project.root / "gate.json").write_text('{"status": 0}')
    project.pytester.makepyfile(test_zz="import os\n\n\ndef test_zz():\n    os._exit(0)\n")
    ran = project.pytester.runpytest_subprocess(*GATED)
    assert ran.ret == 0
    assert not (project.root / "gate.json").exists()


def test_a_junit_file_that_somebody_takes_away_is_said(project: Project) -> None:
    """The verdicts stay where they are: no traceback, and the status is theirs."""
    project.remember()
    (project.root / "thief.py").write_text(
        "import pathlib, pytest\n\n"
        "@pytest.hookimpl(trylast=True)\ndef pytest_sessionfinish():\n    pathlib.Path('junit.xml').write_text('<')\n"
    )
    project.pytester.syspathinsert()
    text = project.run("--junitxml=junit.xml", "-p", "thief")
    assert "junit.xml: verdicts are properties of the suite alone: " in text


# --- real processes ---------------------------------------------------------------------------------------------------


def test_fresh_processes_find_nothing_where_nothing_is(fresh: Project) -> None:
    """The same through real children: two controls, an A/A stream and a plant that is seen, status 0."""
    fresh.remember()
    text = fresh.run()
    assert dict.fromkeys("abcdefgh", "PASS") == fresh.outcomes()
    assert fresh.processes == 3
    said = [line for line in text.splitlines() if "controls: a slow-down planted on op/" in line]
    assert said
    assert all(line.startswith("fuseproof: ") for line in said)  # each a line of its own
    (plant,) = (control for control in fresh.gate()["controls"] if control["name"] == "plant")
    assert plant["passed"]
    assert len(fresh.files) == 9  # children save nothing


def test_fresh_processes_confirm_a_regression(fresh: Project) -> None:
    """A planted 30 % goes through five real children and ends `pytest.main` with 20, without a traceback."""
    fresh.remember()
    fresh.say(factor={"c": 1.3})
    program = f"import pytest; print('returned', int(pytest.main({GATED})))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "returned 20" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert {**dict.fromkeys("abcdefgh", "PASS"), "c": "REGRESSED"} == fresh.outcomes()
    assert fresh.processes == 6


def test_ctrl_c_ends_the_child_too(fresh: Project) -> None:
    """A real SIGINT while a child sleeps: it is gone, status 2, and the verdicts are there."""
    fresh.remember()
    fresh.say(factor={"c": 1.3}, sleep={"c": [0, 0, 600]})
    # What starts the tests in the background may ignore SIGINT, and children inherit that.
    heeding = "signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"import signal, sys, pytest; {heeding}; sys.exit(pytest.main())"
    command = [sys.executable, "-c", program, *GATED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)  # else a session that does not end is waited for
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("process 2 of 5" in line for line in lines)
        deadline_s = time.monotonic() + 60
        while not (fresh.root / "sleeping").exists() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        sleeper = int((fresh.root / "sleeping").read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    assert fresh.outcomes()["c"] == "INVALID, UNCONFIRMED"
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper, 0)


def test_a_trusted_interpreter_that_is_not_there_is_said_at_the_start(project: Project) -> None:
    """Whoever mistypes it hears so on a quiet night, not on the first one with a suspect; without a gate nobody."""
    project.remember()
    project.pytester.makepyprojecttoml(f'{TABLE}trusted_python = "no/python"\n{PYTEST}')
    sentence = f"not in pairs: trusted_python: {project.root / 'no/python'} does not exist"
    head, _, tail = project.run().partition("\ncollected")
    assert f"fuseproof: {sentence}" in head
    assert sentence in tail
    assert sentence in project.gate()["notes"][0]
    assert sentence not in project.run("--benchmark-compare", "--fuseproof-gate=off", gate=False)


def test_the_trusted_interpreter_is_asked_what_it_has(fresh: Project) -> None:
    """This interpreter's own inventory is found; one that is not there, or has no fuseproof, is said to be so."""
    here = find_trusted(GateSettings(trusted_python=sys.executable), fresh.root)
    assert isinstance(here, Trusted)
    assert here.software == {name: part for name, part in machine.inventory().items() if name != "driver"}
    assert find_trusted(GateSettings(), fresh.root) is None
    absent = find_trusted(GateSettings(trusted_python="no/python"), fresh.root)
    assert f"trusted_python: {fresh.root / 'no/python'} does not exist" in str(absent)
    elsewhere = find_trusted(GateSettings(trusted_python="/bin/echo"), fresh.root)
    assert "trusted_python: /bin/echo does not answer as Python does" in str(elsewhere)
