"""What a user sees of a session: pytest is run for real on small projects, on a CPU."""

import gc
import itertools
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cpuinfo
import pytest
import torch

from fuseproof import machine, measure, roofline
from fuseproof.candidates import KERNEL_SETS
from fuseproof.counts import trace_host
from fuseproof.ladder import STAGES
from fuseproof.plans import ladder_plan
from fuseproof.workload import SIZES

pytest_plugins = ["pytester"]

TABLE = '[tool.fuseproof]\nhistory = "bench_history"\n'
PYTEST = """
[tool.pytest.ini_options]
addopts = ["--strict-markers", "--strict-config", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
filterwarnings = [
  "error",
  "ignore:Benchmarks are automatically disabled:pytest_benchmark.logger.PytestBenchmarkWarning",
]
"""
# It imports nothing of fuseproof at its top: pytest-benchmark's command imports it before it loads pytest's plugins.
CONFTEST = '''
import pytest


class Add:
    """Adds one to 64 ones."""

    def __init__(self):
        import torch

        self.x = torch.ones(64)

    def __call__(self):
        return self.x + 1

    def check(self):
        assert (self() == 2).all()


@pytest.fixture(scope="session")
def device():
    import torch

    return torch.device("cpu")


@pytest.fixture
def plan():
    from fuseproof.measure import Key, Plan

    def plan(candidate="mine", build=Add, rounds=3):
        return Plan(Key("add", candidate, "fp32", "64"), build, "kernel", rounds)

    return plan
'''
ONE = "def test_add(measure, plan):\n    measure(plan())\n"
MORE = "def test_more(measure, plan):\n    measure(plan('more'))\n"
LADDER = """
import dataclasses

from fuseproof.candidates import KERNEL_SETS
from fuseproof.ladder import STAGES
from fuseproof.plans import ladder_plan
from fuseproof.workload import SIZES


def test_stage(measure, device):
    plan = ladder_plan(STAGES["1_adam_fp32"], KERNEL_SETS["torch"], SIZES["tiny"], device)
    measure(dataclasses.replace(plan, rounds=3))
"""
USAGE_ERROR = pytest.ExitCode.USAGE_ERROR
REGRESSED = 20
CANNOT_ANSWER = 21


@dataclass(frozen=True)
class Project:
    """A small repository that is configured for fuseproof."""

    pytester: pytest.Pytester

    @property
    def root(self) -> Path:
        """Its folder, which is also the working directory."""
        return self.pytester.path

    @property
    def history(self) -> Path:
        """Where its runs are."""
        return self.root / "bench_history"

    @property
    def files(self) -> list[Path]:
        """Its run files, by number."""
        return sorted(self.history.glob("*/*.json"))

    def write(self, **sources: str) -> None:
        """Write Python files, by module name."""
        for name, source in sources.items():
            (self.root / f"{name}.py").write_text(source)

    def run(self, *args: str, status: int = 0) -> str:
        """Run pytest in this process and return what it printed, after the checks that hold for every session."""
        return checked(self.pytester.runpytest_inprocess(*args, no_reraise_ctrlc=True), status)

    def run_afresh(self, *args: str, status: int = 0) -> str:
        """Run pytest in a process of its own."""
        return checked(self.pytester.runpytest_subprocess(*args), status)

    def document(self) -> dict[str, Any]:
        """Return what the newest of its run files holds."""
        return json.loads(self.files[-1].read_text())  # type: ignore[no-any-return]

    def keys(self) -> list[str]:
        """Return the keys in the newest of its run files."""
        return [each["extra_info"]["fuseproof"]["key"] for each in self.document()["benchmarks"]]


def checked(result: pytest.RunResult, status: int) -> str:
    """Return everything a session printed; it ends with the status, and with sentences instead of a traceback."""
    text = f"{result.stdout.str()}\n{result.stderr.str()}"
    for word in ("Traceback", "INTERNALERROR"):
        assert word not in text
    assert result.ret == status, text
    return text


def line_with(text: str, *words: str) -> str:
    """Return the only line that holds all the words."""
    lines = [line for line in text.splitlines() if all(word in line for word in words)]
    assert len(lines) == 1, text
    return lines[0]


def header_and_summary(text: str) -> tuple[str, str]:
    """Return fuseproof's lines above and below the tests."""
    header, _, rest = text.partition("collected ")
    _, section, summary = rest.rpartition("- fuseproof -")
    assert section, text
    return header, summary


@pytest.fixture(scope="module")
def _warm() -> Iterator[roofline.Ceilings]:
    """Import what torch imports late, since a session in this process forgets its imports; heat and look once."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more wait for each other where other processes take the cores
    device = torch.device("cpu")
    plan = ladder_plan(STAGES["1_adam_fp32"], KERNEL_SETS["torch"], SIZES["tiny"], device)
    plan.build()()
    trace_host(plan.build, 1)
    found = roofline.measure_ceilings(device)
    gc.collect()
    gc.freeze()  # else each session inside looks through all of torch again
    yield found
    gc.unfreeze()
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _not_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session around a test may be a worker of pytest-xdist; the one inside is not."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, _warm: roofline.Ceilings) -> Project:
    """A project with one benchmark; the ceilings are looked up, since finding them takes a second."""
    monkeypatch.setattr(measure, "measure_ceilings", lambda _: _warm)
    pytester.makepyprojecttoml(TABLE + PYTEST)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=ONE)
    return Project(pytester)


def slug() -> str:
    """This machine's folder."""
    return machine.identify().slug


# --- saving and comparing ---------------------------------------------------------------------------------------------


def test_autosave_adds_one_file_to_this_machines_folder(project: Project) -> None:
    """One session, one file, in the folder of the machine, and the last lines say where."""
    text = project.run("--benchmark-autosave")
    assert [slug()] == [file.parent.name for file in project.files]
    assert f"saved as bench_history/{slug()}/{project.files[0].name}" in header_and_summary(text)[1]
    assert not (project.root / ".benchmarks").exists()


def test_save_keeps_the_name_that_the_user_gave(project: Project) -> None:
    """`--benchmark-save` is pytest-benchmark's own option and still names the file."""
    project.run("--benchmark-save=before upgrade")
    assert project.files[0].name.endswith("_before-upgrade.json")


def test_nothing_is_saved_unless_asked(project: Project) -> None:
    """A plain run leaves no file behind."""
    project.run()
    assert project.files == []


def test_bare_compare_takes_the_newest_run_and_says_which(project: Project) -> None:
    """The header names the run; pytest-benchmark's table shows the stored row beside this session's."""
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave")
    text = project.run("--benchmark-compare")
    newest = project.files[1].name
    header, summary = header_and_summary(text)
    for place in (header, summary):
        assert f"comparing with bench_history/{slug()}/{newest} (torch {torch.__version__}" in place
    assert "test_add (NOW)" in text
    assert f"test_add ({newest[:4]}" in text
    assert project.files[0].stem not in text


def test_a_number_names_an_older_run(project: Project) -> None:
    """`--benchmark-compare=1` compares with run 1 though there is a newer one."""
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave")
    text = project.run("--benchmark-compare=1")
    assert f"comparing with bench_history/{slug()}/{project.files[0].name}" in text
    assert project.files[1].stem not in text


def test_the_ladder_shows_the_stored_time_and_the_change(project: Project) -> None:
    """A stage's row ends with what is compared and by how much it changed."""
    project.write(test_one=LADDER)
    project.run("--benchmark-autosave")
    stored_ms = project.document()["benchmarks"][0]["extra_info"]["fuseproof"]["metrics"]["iteration_time_ns"] / 1e6
    text = project.run("--benchmark-compare")
    row = line_with(text, "1_adam_fp32 ").replace(" %", "%").split()
    assert line_with(text, "iteration ms", "tokens/s").split()[-4:] == ["compared", "change", "peak", "change"]
    row = [cell for cell in row if cell != "noisy"]
    assert f"{stored_ms:.2f}" == row[-3]
    assert row[-1] == "+0.00%"  # the peak
    now_ms, change = float(row[1]), float(row[-2].rstrip("%")) / 100
    assert change == pytest.approx(now_ms / stored_ms - 1, abs=0.02)  # both are printed with two decimals


def test_a_narrow_run_does_not_hide_the_older_one(project: Project) -> None:
    """A benchmark that the newest run lacks is compared with the newest run before it that has it."""
    project.write(test_two=MORE)
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave", "test_two.py")
    text = project.run("--benchmark-compare")
    assert "compared 2 of 2 benchmarks" in text
    assert "what it lacks with the newest run that has it" in text


def test_older_nights_are_read_only_for_what_newer_ones_lack(project: Project) -> None:
    """A long history costs a session no more than a short one: a spoilt old file is met when it is needed."""
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave")
    project.files[0].write_text("{", encoding="utf-8")
    kept = project.run("--benchmark-compare", "--fuseproof-gate=off")
    project.write(test_two=MORE)
    wanting = project.run("--benchmark-compare", "--fuseproof-gate=off")

    assert "set aside" not in kept
    assert project.files[0].name in line_with(wanting, "set aside: ")


@pytest.mark.parametrize("demand", ["--fuseproof-require=baseline", "--benchmark-compare-fail=median:1%"])
def test_a_demanded_baseline_that_holds_nothing_to_compare_is_an_error(project: Project, demand: str) -> None:
    """A readable run without any of these keys is no baseline: status 21, not a green gate."""
    project.write(test_two=MORE)
    project.run("--benchmark-autosave", "test_two.py")
    text = project.run("test_one.py", "--benchmark-compare", demand, status=21)
    assert "baseline required: no stored run holds any of these benchmarks" in text


# --- nothing to compare with ------------------------------------------------------------------------------------------


def test_an_empty_history_is_said_at_both_ends(project: Project) -> None:
    """Nothing to compare with is said in the header and the summary, with what to do."""
    for place in header_and_summary(project.run("--benchmark-compare")):
        assert f"nothing to compare with: no readable run of {slug()} in bench_history" in place
        assert "save one with --benchmark-autosave" in place
    for place in header_and_summary(project.run("--benchmark-compare", "--benchmark-autosave")):
        assert place.count("; this run is the first") == 1
        assert "save one" not in place


def test_foreign_hardware_is_refused_by_name(project: Project) -> None:
    """Runs of other machines are named and counted, never compared with."""
    project.run("--benchmark-autosave")
    project.files[0].parent.rename(project.history / "nvidia-h900")
    text = project.run("--benchmark-compare")
    for place in header_and_summary(text):
        assert "other hardware is not compared: nvidia-h900 (1 runs)" in place
    assert "(NOW)" not in text


@pytest.mark.parametrize(
    "spec", ["7", "0007_nope", "elsewhere/0001_x.json"], ids=["number", "name", "path-that-is-missing"]
)
def test_a_named_run_that_does_not_exist_is_a_usage_error(project: Project, spec: str) -> None:
    """A wrong name is not an empty comparison: status 4, and what is there."""
    project.run("--benchmark-autosave")
    text = project.run(f"--benchmark-compare={spec}", status=USAGE_ERROR)
    assert f"no run of this machine matches {spec!r}" in text
    assert project.files[0].name in text


# --- what is compared with what ---------------------------------------------------------------------------------------


def test_a_renamed_test_keeps_its_history(project: Project) -> None:
    """Runs are matched by key, not by the test's name or file."""
    project.run("--benchmark-autosave")
    (project.root / "test_one.py").unlink()
    project.write(test_two=ONE.replace("test_add", "test_renamed"))
    text = project.run("--benchmark-compare")
    assert "test_renamed (NOW)" in text
    assert "test_renamed (0001" in text


@pytest.mark.parametrize(
    "now",
    [ONE.replace("plan()", "plan(rounds=4)"), ONE.replace("plan()", "plan('other')")],
    ids=["other-rounds", "other-key"],
)
def test_numbers_that_mean_something_else_are_not_compared(project: Project, now: str) -> None:
    """Another method or another key under the same test name never meets the stored number."""
    project.run("--benchmark-autosave")
    project.write(test_one=now)
    assert "(NOW)" not in project.run("--benchmark-compare", "--fuseproof-gate=off")


def test_times_on_a_cpu_compare_only_within_one_number_of_threads(project: Project) -> None:
    """A kernel is as much faster as it has threads, and nobody has improved it."""
    project.run("--benchmark-autosave")
    document = project.document()
    assert document["fuseproof"]["settings"]["threads"] == 1
    document["fuseproof"]["settings"]["threads"] = 2
    project.files[0].write_text(json.dumps(document))
    assert "test_add (NOW)" not in project.run("--benchmark-compare", "--fuseproof-gate=off")


def test_iteration_times_compare_only_within_one_cpu_model(project: Project) -> None:
    """The host takes part in an iteration's time, not in a kernel's: only the latter outlives another CPU."""
    project.write(test_two=LADDER)
    project.run("--benchmark-autosave")
    text = project.run("--benchmark-compare")
    assert "test_stage (NOW)" in text
    document = project.document()
    document["fuseproof"]["cpu_model"] = "Z80"
    project.files[0].write_text(json.dumps(document))
    text = project.run("--benchmark-compare")
    assert "test_add (NOW)" in text
    assert "test_stage (NOW)" not in text
    assert line_with(text, "1_adam_fp32 ").split()[-1] == "-"


# --- spoiled history --------------------------------------------------------------------------------------------------


def _cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-200])


def _poison(file: Path) -> None:
    file.write_text(re.sub(r'"median":[^,]+', '"median":NaN', file.read_text(), count=1))


@pytest.mark.parametrize("spoil", [_cut, _poison], ids=["truncated", "poisoned"])
def test_a_spoiled_newest_file_is_named_and_an_older_one_compared(
    project: Project, spoil: Callable[[Path], None]
) -> None:
    """Fault 51: no silent fallback; header and summary say which file is set aside and why."""
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave")
    older, newest = project.files
    spoil(newest)
    for place in header_and_summary(project.run("--benchmark-compare")):
        assert newest.name in line_with(place, "set aside:")
        assert older.name in line_with(place, "comparing with")


def test_when_all_files_are_spoiled_nothing_is_compared(project: Project) -> None:
    """The only run is cut short: it is set aside, and there is nothing to compare with."""
    project.run("--benchmark-autosave")
    _cut(project.files[0])
    _, summary = header_and_summary(project.run("--benchmark-compare"))
    assert project.files[0].name in line_with(summary, "set aside:")
    assert "nothing to compare with" in summary


@pytest.mark.parametrize("spec", ["1", "bench_history/{machine}/{name}"], ids=["by-number", "by-path"])
def test_a_named_run_that_is_spoiled_is_a_usage_error(project: Project, spec: str) -> None:
    """Whoever names a run wants that one: status 4 and what is wrong with it, no comparison with nothing."""
    project.run("--benchmark-autosave")
    _cut(project.files[0])
    spec = spec.format(machine=slug(), name=project.files[0].name)
    text = project.run(f"--benchmark-compare={spec}", status=USAGE_ERROR)
    assert project.files[0].name in line_with(text, "ERROR:", "is not JSON, or cut short")


def test_a_file_that_is_no_run_is_a_usage_error(project: Project) -> None:
    """Any other JSON file, named by its path."""
    (project.root / "notes.json").write_text("{}")
    text = project.run("--benchmark-compare=notes.json", status=USAGE_ERROR)
    assert "its name is not a run's" in line_with(text, "ERROR:", "notes.json")


def test_a_named_run_of_foreign_hardware_is_a_usage_error(project: Project) -> None:
    """Fault 50: a path into another machine's folder is refused with both names."""
    project.run("--benchmark-autosave")
    project.files[0].parent.rename(project.history / "nvidia-h900")
    error = line_with(project.run(f"--benchmark-compare={project.files[0]}", status=USAGE_ERROR), "ERROR:")
    assert "foreign hardware is not compared" in error
    assert "nvidia-h900" in error
    assert slug() in error


# --- usage errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["tests", "test_one.py", "test_one.py::test_add"], ids=["folder", "file", "test-id"])
def test_a_path_after_compare_is_not_taken_for_a_run(project: Project, path: str) -> None:
    """pytest-benchmark takes the path as a run's name, runs everything, compares nothing and ends green."""
    (project.root / "tests").mkdir()
    text = project.run("--benchmark-compare", path, status=USAGE_ERROR)
    assert f"put the path first: pytest {path} --benchmark-compare" in text


def test_an_empty_name_of_a_run_is_a_usage_error(project: Project) -> None:
    """`--benchmark-compare=$RUN` with an unset variable must not quietly compare nothing."""
    assert "--benchmark-compare" in line_with(project.run("--benchmark-compare=", status=USAGE_ERROR), "ERROR:")


def test_a_very_long_name_of_a_run_is_a_usage_error(project: Project) -> None:
    """A name beyond what a file system takes is said not to match, as any other."""
    assert "no run of this machine matches" in project.run(f"--benchmark-compare={'x' * 5000}", status=USAGE_ERROR)


@pytest.mark.parametrize("asked", ["--benchmark-compare", "--benchmark-autosave", "--benchmark-save=x"])
@pytest.mark.parametrize(
    "untimed",
    [
        pytest.param(["-n", "2"], id="xdist"),
        pytest.param(["--benchmark-disable"], id="disabled"),
        pytest.param(["--benchmark-skip"], id="skipped"),
    ],
)
def test_what_cannot_be_answered_without_timing_is_refused(project: Project, untimed: list[str], asked: str) -> None:
    """Fault 53: a comparison or a save that would be empty is a usage error that says what to run without."""
    error = line_with(project.run(*untimed, asked, status=USAGE_ERROR), "ERROR:")
    assert asked.partition("=")[0] in error
    assert "nothing is timed" in error
    assert "run without" in error


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(["-n", "0"], id="no-workers"),
        pytest.param(["--benchmark-disable", "--benchmark-enable"], id="enabled-after-all"),
        pytest.param(["--benchmark-skip", "--benchmark-only"], id="only-benchmarks"),
    ],
)
def test_what_times_after_all_is_not_refused(project: Project, args: list[str]) -> None:
    """The options that win over the refused ones do so here as well."""
    project.run(*args, "--benchmark-autosave")
    assert project.keys() == ["add/mine/fp32/64"]


def test_a_storage_that_is_no_folder_is_refused(project: Project) -> None:
    """pytest-benchmark can store in elasticsearch; the history cannot."""
    text = project.run("--benchmark-storage=elasticsearch+http://localhost/x", status=USAGE_ERROR)
    assert "fuseproof keeps its history in files; give a folder" in text


@pytest.mark.parametrize("args", [[], ["--benchmark-compare", "--benchmark-autosave"]], ids=["plain", "gated"])
def test_a_history_that_leads_to_itself_is_refused(project: Project, args: list[str]) -> None:
    """A link in a circle: pytest-benchmark would end in a traceback where Python is older than 3.13."""
    (project.root / "bench_history").symlink_to("bench_history")
    status = 0 if not args and sys.version_info >= (3, 13) else USAGE_ERROR
    text = project.run(*args, status=status)
    assert status == 0 or "bench_history" in line_with(text, "ymlink loop" if sys.version_info < (3, 13) else "levels")


def test_another_storage_folder_is_used(project: Project) -> None:
    """`--benchmark-storage` still says where."""
    project.run("--benchmark-storage=elsewhere", "--benchmark-autosave")
    assert project.files == []
    assert len(list((project.root / "elsewhere" / slug()).glob("*.json"))) == 1


def test_without_pytest_benchmark_there_is_nothing_to_do(project: Project) -> None:
    """Blocking the plugin that everything here builds on is a usage error, not a crash."""
    text = project.run("-p", "no:benchmark", status=USAGE_ERROR)
    assert "fuseproof needs pytest-benchmark" in line_with(text, "ERROR:")


def test_timing_is_refused_where_it_is_spoiled(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under CUDA_LAUNCH_BLOCKING a session that would time anything ends with status 4 before it starts."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert "timing is refused: CUDA_LAUNCH_BLOCKING is set" in project.run(status=USAGE_ERROR)


@pytest.mark.parametrize(
    "args",
    [["--benchmark-disable"], ["--collect-only"], ["-k", "untimed"]],
    ids=["disabled", "only-collected", "no-benchmark-selected"],
)
def test_what_does_not_time_is_not_refused(project: Project, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    """CUDA_LAUNCH_BLOCKING is how one debugs a kernel: tests that time nothing run under it."""
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    project.write(test_two="def test_untimed():\n    pass\n")
    project.run(*args)


# --- what is required -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["cuda", "apex", "cuda,apex"])
def test_what_is_required_and_missing_ends_the_session(
    project: Project, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Status 21 and the sentence with the mend; no test runs, none is skipped."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    text = project.run_afresh(f"--fuseproof-require={what}", status=CANNOT_ANSWER)
    assert re.search(r"^Exit: .*(GPU|NVIDIA|CUDA)", text, re.MULTILINE)  # Apex has no kernel without one
    assert "test_one.py" not in text


def test_a_required_baseline_that_is_there_is_no_reason_to_stop(project: Project) -> None:
    """With a readable run of this machine the requirement is met."""
    project.run("--benchmark-autosave")
    assert "1 passed" in project.run("--fuseproof-require=baseline", "--benchmark-compare")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--benchmark-compare"], "nothing to compare with: no readable run"),
        ([], "it needs --benchmark-compare"),
    ],
    ids=["absent", "not-asked-for"],
)
def test_a_required_baseline_that_is_missing_ends_the_session(project: Project, args: list[str], sentence: str) -> None:
    """Status 21: the question could not be answered."""
    text = project.run("--fuseproof-require=baseline", *args, status=CANNOT_ANSWER)
    assert f"baseline required: {sentence}" in text


def test_an_unknown_requirement_is_a_usage_error(project: Project) -> None:
    """A typing error must not require nothing."""
    error = line_with(project.run("--fuseproof-require=cdua", status=USAGE_ERROR), "ERROR:")
    assert "known are apex, baseline, cuda" in error


# --- which tests run, and in what order -------------------------------------------------------------------------------

ORDER = """
import pytest


def test_parity():
    pass


@pytest.mark.fuseproof_profiled
def test_profiled(measure, plan):
    measure(plan("profiled"))


@pytest.mark.fuseproof_full
def test_full(measure, plan):
    measure(plan("full"))


def test_kernel(measure, plan):
    measure(plan("kernel"))


def test_plain(benchmark):
    benchmark(int)
"""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], ["test_kernel", "test_plain", "test_profiled", "test_parity"]),
        (["--fuseproof-full"], ["test_full", "test_kernel", "test_plain", "test_profiled", "test_parity"]),
    ],
    ids=["night", "full"],
)
def test_benchmarks_run_before_everything_that_slows_them(
    project: Project, args: list[str], expected: list[str]
) -> None:
    """Our clocks, then the profiler's, then parity; what only `--fuseproof-full` asks for is deselected."""
    project.write(test_one=ORDER)
    text = project.run("-v", *args)
    assert expected == re.findall(r"::(\w+) PASSED", text)
    assert ("1 deselected" in text) == (not args)


def test_under_xdist_each_benchmark_runs_once_untimed(project: Project) -> None:
    """`benchmark.stats` is None there and everything copes: bodies run once, green, nothing is shown or saved."""
    project.write(
        test_one="""
import os
import pathlib

import pytest


class Counted:
    def check(self):
        pass

    def __call__(self):
        with open("calls", "a") as file:
            file.write("x")


@pytest.mark.parametrize("case", range(4))
def test_counted(measure, plan, benchmark, case):
    measure(plan(f"mine{case}", Counted))
    assert benchmark.stats is None
"""
    )
    text = project.run_afresh("-n", "2")
    assert "4 passed" in text
    assert (project.root / "calls").read_text() == "xxxx"
    assert "Name (time" not in text
    assert project.files == []


def test_disabled_benchmarks_are_still_checked(project: Project) -> None:
    """`--benchmark-disable` leaves parity's part: a wrong kernel fails."""
    project.write(test_one=WRONG)
    assert "1 failed, 1 passed" in project.run("--benchmark-disable", status=1)


# --- failures ---------------------------------------------------------------------------------------------------------

GOOD = "\n\ndef test_good(measure, plan):\n    measure(plan('good'))\n"
WRONG = (
    """
import conftest


class Wrong(conftest.Add):
    def __call__(self):
        return self.x + 2


def test_bad(measure, plan):
    measure(plan("bad", Wrong))
"""
    + GOOD
)
FAILS_LATER = "def test_bad(measure, plan):\n    measure(plan('bad'))\n    assert False\n" + GOOD
FAILS_IN_TEARDOWN = (
    """
import pytest


@pytest.fixture
def leaky():
    yield
    assert False


def test_bad(leaky, measure, plan):
    measure(plan("bad"))
"""
    + GOOD
)
PROFILER_FAILS = (
    """
import conftest


class Once(conftest.Add):
    built = 0

    def __init__(self):
        Once.built += 1
        assert Once.built == 1, "cannot be built twice"
        super().__init__()


def test_bad(measure, plan):
    measure(plan("bad", Once))
"""
    + GOOD
)


@pytest.mark.parametrize(
    ("source", "outcome"),
    [
        (WRONG, "1 failed, 1 passed"),
        (FAILS_LATER, "1 failed, 1 passed"),
        (FAILS_IN_TEARDOWN, "2 passed, 1 error"),
        (PROFILER_FAILS, "2 passed, 1 error"),
    ],
    ids=["wrong-output", "fails-after-its-benchmark", "fails-in-teardown", "profiler-pass-fails"],
)
def test_a_failed_test_posts_no_time(project: Project, source: str, outcome: str) -> None:
    """It is in neither the file nor the table; the session goes on, ends with status 1 and saves the others."""
    project.write(test_one=source)
    text = project.run("--benchmark-autosave", "--benchmark-json=all.json", status=1)
    assert outcome in text
    assert project.keys() == ["add/good/fp32/64"]
    assert [each["name"] for each in json.loads((project.root / "all.json").read_text())["benchmarks"]] == ["test_good"]
    table = text.partition("benchmark 'add fp32 64'")[2].partition("Legend")[0]
    assert "test_good" in table
    assert "test_bad" not in table


@pytest.mark.parametrize("order", ["bad-first", "bad-last"])
def test_a_failed_profiler_pass_is_an_error_of_its_own_test(project: Project, order: str) -> None:
    """The pass runs after another test; terminal and JUnit blame the one whose benchmark it is, once, with a reason."""
    source = PROFILER_FAILS if order == "bad-first" else PROFILER_FAILS.replace("test_good", "test_a_good")
    project.write(test_one=source)
    text = project.run("--junitxml=junit.xml", "-rE", status=1)
    assert "ERROR test_one.py::test_bad" in text
    assert "the profiler pass failed: AssertionError: cannot be built twice" in text
    cases = re.findall(r'<testcase [^>]*name="(\w+)"[^>]*><error', (project.root / "junit.xml").read_text())
    assert cases == ["test_bad"]


def test_the_profiler_does_not_look_at_a_test_that_failed(project: Project) -> None:
    """One failure is reported once: no second error from a pass over what posts no time anyway."""
    project.write(test_one=PROFILER_FAILS.replace("Once))\n", "Once))\n    assert False\n"))
    assert "1 failed, 1 passed in" in project.run(status=1)


@pytest.mark.parametrize("where", ["__init__", "check", "__call__"])
def test_out_of_memory_says_so_and_frees_what_it_held(project: Project, where: str) -> None:
    """The message names the benchmark; no traceback keeps its tensors alive; the next benchmark runs."""
    project.write(
        test_one=f"""
import weakref

import torch

held = []


class Large:
    def __init__(self):
        x = torch.ones(1000)
        held.append(weakref.ref(x))
        self.x = x
        self.fail("__init__")

    def fail(self, where):
        y = self.x + 1
        held.append(weakref.ref(y))
        if where == {where!r}:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has 1.00 GiB free")

    def check(self):
        self.fail("check")

    def __call__(self):
        self.fail("__call__")


def test_large(measure, plan):
    measure(plan("large", Large))


def test_next(measure, plan):
    assert held
    assert not [each for each in held if each() is not None]
    measure(plan("next"))
"""
    )
    text = project.run("--benchmark-autosave", status=1)
    assert "1 failed, 1 passed" in text
    assert "MemoryError: add/large/fp32/64 does not fit: CUDA out of memory. Free the GPU or deselect" in text
    assert project.keys() == ["add/next/fp32/64"]


def test_a_finished_benchmark_keeps_no_tensor(project: Project) -> None:
    """What was measured is freed before the next benchmark, not at the session's end."""
    project.write(
        test_one="""
import weakref

import conftest

held = []


class Noted(conftest.Add):
    def __init__(self):
        super().__init__()
        held.append(weakref.ref(self.x))


def test_first(measure, plan):
    measure(plan("first", Noted))
    assert not [each for each in held if each() is not None]


def test_second(measure, plan):
    measure(plan("second"))
    assert not [each for each in held if each() is not None]
"""
    )
    assert "2 passed" in project.run()


def test_a_history_that_cannot_be_written_does_not_lose_the_run(project: Project) -> None:
    """The message says why, the status is not 0, and the run is kept in a file whose path is printed."""
    project.history.write_text("in the way")
    text = project.run("--benchmark-autosave", status=pytest.ExitCode.INTERNAL_ERROR)
    assert "1 passed" in text
    sentence = line_with(text, "nothing saved", "bench_history")
    kept = Path(re.search(r"The run is kept in (\S+)\.$", sentence)[1])  # type: ignore[index]
    assert [each["name"] for each in json.loads(kept.read_text())["benchmarks"]] == ["test_add"]
    kept.unlink()


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="Windows knows no other user to be")
def test_a_read_only_history_does_not_lose_the_run(project: Project) -> None:
    """The same for a folder without the right to write."""
    project.run("--benchmark-autosave")
    project.files[0].parent.chmod(0o555)
    project.pytester.makeconftest(
        CONFTEST
        + """

@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish():
    import os

    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # nobody: to root nothing is read-only
    try:
        return (yield)
    finally:
        os.seteuid(user)
"""
    )
    text = project.run("--benchmark-autosave", status=pytest.ExitCode.INTERNAL_ERROR)
    sentence = line_with(text, "Permission denied", slug())
    Path(re.search(r"The run is kept in (\S+)\.$", sentence)[1]).unlink()  # type: ignore[index]
    assert len(project.files) == 1


@pytest.mark.parametrize("when", ["conftest", "test"])
def test_each_worker_sees_one_gpu_of_the_inherited_list(
    project: Project, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under -n 2 worker n has the n-th entry alone, already when a conftest, which may touch CUDA, is imported."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aaaa, GPU-bbbb")
    look = "import os\nSEEN = os.environ['CUDA_VISIBLE_DEVICES']\n"
    project.write(
        conftest=f"{look}import pytest\n@pytest.fixture\ndef seen():\n    return SEEN\n",
        test_one="import os\nimport pathlib\nimport pytest\n\n\n"
        "@pytest.mark.parametrize('n', range(2))\n"
        "def test_pinned(n, seen, worker_id):\n"
        f"    gpu = seen if {when == 'conftest'} else os.environ['CUDA_VISIBLE_DEVICES']\n"
        "    assert gpu == {'gw0': 'GPU-aaaa', 'gw1': 'GPU-bbbb'}[worker_id]\n",
    )
    assert "2 passed" in project.run_afresh("-n", "2")


@pytest.mark.parametrize(
    "interrupt",
    [
        "def test_zz():\n    raise KeyboardInterrupt\n",
        """
class Interrupted:
    calls = 0

    def check(self):
        pass

    def __call__(self):
        Interrupted.calls += 1
        if Interrupted.calls > 4:
            raise KeyboardInterrupt


def test_zz(measure, plan):
    measure(plan("interrupted", Interrupted))
""",
        """
def interrupted():
    raise KeyboardInterrupt


def test_zz(measure, plan):
    measure(plan("interrupted", interrupted))
""",
    ],
    ids=["between-benchmarks", "inside-the-rounds", "before-the-rounds"],
)
def test_an_interrupted_session_saves_what_it_has_measured(project: Project, interrupt: str) -> None:
    """Ctrl-C ends with status 2; what was finished is saved, what was not is left out."""
    project.write(test_two=interrupt)
    text = project.run("--benchmark-autosave", "-W", "error", status=pytest.ExitCode.INTERRUPTED)
    assert "KeyboardInterrupt" in text
    assert "test_zz" not in text  # nor is it in the table
    assert f"saved as bench_history/{slug()}" in text
    assert project.keys() == ["add/mine/fp32/64"]


def test_nothing_measured_is_nothing_saved(project: Project) -> None:
    """An autosave without a benchmark says so instead of writing an empty run."""
    project.write(test_one="def test_untimed():\n    pass\n")
    assert "nothing saved: no benchmark ran to its end" in project.run("--benchmark-autosave")
    assert project.files == []


def test_a_plain_benchmark_is_shown_but_not_saved(project: Project) -> None:
    """A benchmark without a key can never be compared: it stays out of the history, and the summary says so."""
    project.write(test_two="def test_plain(benchmark):\n    benchmark(int)\n")
    text = project.run("--benchmark-autosave")
    assert "test_plain" in text.partition("Name (time")[2]
    assert project.keys() == ["add/mine/fp32/64"]
    assert "test_two.py::test_plain" in line_with(text, "not saved, since only what goes through `measure` has a key")


# --- compare-fail -----------------------------------------------------------------------------------------------------


def test_compare_fail_ends_with_a_status_and_no_traceback(project: Project) -> None:
    """pytest-benchmark raises through pytest.main here; its finding is printed, and the status says REGRESSED."""
    project.run("--benchmark-autosave")
    document = project.document()
    stats = document["benchmarks"][0]["stats"]
    stats.update({name: stats[name] / 1000 for name in ("min", "median", "mean")})
    project.files[0].write_text(json.dumps(document))
    text = project.run("--benchmark-compare", "--benchmark-compare-fail=min:5%", status=REGRESSED)
    assert "test_add" in line_with(text, "REGRESSED", "min")


def test_compare_fail_passes_what_is_not_slower(project: Project) -> None:
    """Within its limit it changes nothing."""
    project.run("--benchmark-autosave")
    assert "REGRESSED" not in project.run("--benchmark-compare", "--benchmark-compare-fail=min:1000000%")


def test_a_failed_test_outranks_a_regression(project: Project) -> None:
    """A wrong kernel is status 1, however slow another one is."""
    project.write(test_one=WRONG)
    project.run("--benchmark-autosave", status=1)
    text = project.run("--benchmark-compare", "--benchmark-compare-fail=min:0.000000001", status=1)
    assert "1 failed, 1 passed" in text


def test_compare_fail_with_nothing_to_compare_cannot_answer(project: Project) -> None:
    """Status 21 before anything runs, where pytest-benchmark ends in a traceback after everything ran."""
    text = project.run("--benchmark-compare", "--benchmark-compare-fail=min:5%", status=CANNOT_ANSWER)
    assert "baseline required: nothing to compare with" in text


def test_compare_fail_without_compare_is_a_usage_error(project: Project) -> None:
    """Asked to fail by a comparison that was not asked for: status 4 before anything runs."""
    text = project.run("--benchmark-compare-fail=min:5%", status=USAGE_ERROR)
    assert "--benchmark-compare-fail needs --benchmark-compare" in line_with(text, "ERROR:")


# --- projects that are not configured, or wrongly ---------------------------------------------------------------------


def test_a_project_without_the_table_is_left_alone(pytester: pytest.Pytester) -> None:
    """pytest-benchmark's own storage works there; no header line, no import of torch or of what needs it."""
    pytester.makepyprojecttoml(PYTEST)
    pytester.makepyfile(
        """
        import sys

        import pytest

        def test_add(benchmark):
            benchmark.pedantic(int, rounds=3)
            assert "fuseproof.plugin" in sys.modules
            assert not {"torch", "fuseproof.hooks", "fuseproof.fixtures"} & set(sys.modules)

        def test_no_fixture(request):
            with pytest.raises(pytest.FixtureLookupError):
                request.getfixturevalue("measure")
        """
    )
    checked(pytester.runpytest_subprocess("--benchmark-autosave"), 0)
    text = checked(pytester.runpytest_subprocess("--benchmark-compare"), 0)
    (file,) = (pytester.path / ".benchmarks").glob("*/*.json")
    assert "fuseproof" not in json.loads(file.read_text())
    assert "test_add (NOW)" in text
    assert not [line for line in text.splitlines() if line.startswith("fuseproof") or "- fuseproof -" in line]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('[tool.fuseproof]\nhistroy = "x"\n', "has no key 'histroy'; did you mean 'history'?"),
        ("[tool.fuseproof]\nhistory = 3\n", "history is 3; it takes a non-empty string"),
        ("[tool]\nfuseproof = true\n", "tool.fuseproof is True; it is a table"),
        ("[tool.fuseproof\n", "pyproject.toml: "),
    ],
    ids=["unknown-key", "wrong-type", "no-table", "broken-toml"],
)
def test_a_wrong_configuration_is_one_sentence(pytester: pytest.Pytester, table: str, sentence: str) -> None:
    """Status 4, the file, the key and the mend, before any test is looked at."""
    pytester.makepyprojecttoml(table)
    pytester.makepyfile("def test_one():\n    pass\n")
    error = line_with(checked(pytester.runpytest_inprocess(), USAGE_ERROR), "ERROR:")
    assert sentence in error
    assert "pyproject.toml" in error


# --- files and tools --------------------------------------------------------------------------------------------------

NAMED = """
import dataclasses

import pytest


@dataclasses.dataclass(frozen=True)
class Case:
    name: str


@pytest.mark.parametrize("case", [Case("small")], ids=["small"])
@pytest.mark.parametrize("rows", [8])
def test_named(measure, plan, case, rows):
    measure(plan(case.name))
"""


def test_json_holds_our_block_and_parameters_by_name(project: Project) -> None:
    """`--benchmark-json` is pytest-benchmark's document with what we know beside it; objects go by their names."""
    project.write(test_one=NAMED)
    project.run("--benchmark-json=out.json")
    document = json.loads((project.root / "out.json").read_text())
    assert slug() == document["fuseproof"]["machine"]
    assert str(torch.__version__) == document["fuseproof"]["software"]["torch"]
    (benchmark,) = document["benchmarks"]
    assert benchmark["params"] == {"case": "small", "rows": "8"}
    record = benchmark["extra_info"]["fuseproof"]
    assert {"device_time_ns", "peak_bytes"} == set(record["metrics"])
    assert "dispatcher_ops" in record["counts"]
    assert "UNSERIALIZABLE" not in json.dumps(document)


def test_json_and_autosave_agree(project: Project) -> None:
    """Both can be asked for at once and hold the same numbers."""
    project.run("--benchmark-json=out.json", "--benchmark-autosave")
    written, saved = json.loads((project.root / "out.json").read_text()), project.document()
    assert written["fuseproof"] == saved["fuseproof"]
    assert written["benchmarks"][0]["stats"].pop("data")
    assert written["benchmarks"] == saved["benchmarks"]


@pytest.mark.parametrize("folder", [Path(), Path(__file__).parents[2]], ids=["project", "this-repository"])
def test_pytest_benchmarks_own_command_reads_the_history(project: Project, folder: Path) -> None:
    """`pytest-benchmark list` and `compare` work on the saved files, also where warnings are errors."""
    project.run("--benchmark-autosave")
    project.run("--benchmark-autosave")
    command = [sys.executable, "-c", "from pytest_benchmark.cli import main; main()", f"--storage={project.history}"]
    for what in ("list", "compare"):
        ended = subprocess.run([*command, what], cwd=folder, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr
        for file in project.files:
            assert (file.name if what == "list" else f"test_add ({file.name[:4]}") in ended.stdout


def test_a_file_tells_neither_the_host_nor_a_path(project: Project) -> None:
    """A history may be public: the host is a hash, and no absolute path of the project is in the file."""
    project.write(test_one=NAMED, test_two=LADDER)
    project.run("--benchmark-autosave")
    document = project.document()
    assert machine.identify().host_id == document["machine_info"]["node"]
    text = project.files[0].read_text()
    for private in (str(project.root), str(Path.home()), sys.prefix):
        assert private not in text
    strings = {value for value in _leaves(document) if isinstance(value, str)}
    assert platform.node() not in strings


def test_describing_the_machine_starts_no_process(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """py-cpuinfo, which pytest-benchmark would ask, sleeps for a second in every process of a night."""
    monkeypatch.setattr(cpuinfo, "get_cpu_info", pytest.fail)
    project.run("--benchmark-autosave")
    assert project.document()["machine_info"]["cpu"]["brand_raw"] == machine.identify().cpu_model


def test_durations_tell_where_the_rest_of_the_time_goes(project: Project) -> None:
    """Under pytest's ``--durations`` the summary names phases that are no test; they add up to the process's age."""
    line = re.search(r"fuseproof: seconds of this process: (.+); together ([\d.]+)", project.run("--durations=3"))
    assert line is not None
    seconds = dict(part.rsplit(" ", 1) for part in line[1].split(", "))
    assert {"collection", "tests", "rounds"} <= seconds.keys()
    assert sum(map(float, seconds.values())) == pytest.approx(float(line[2]), abs=0.2)
    assert "seconds of this process" not in project.run()


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_leaves, value.values()))
    elif isinstance(value, list):
        yield from itertools.chain.from_iterable(map(_leaves, value))
    else:
        yield value


def test_pytest_main_returns_the_status(project: Project) -> None:
    """In a program that calls `pytest.main`, each ending is a return value, never an exception."""
    calls: list[list[str]] = [
        ["--benchmark-autosave"],
        ["--benchmark-compare=9"],
        ["--fuseproof-require=baseline"],
        ["--benchmark-compare", "--benchmark-autosave"],
    ]
    program = f"import pytest\nprint('returned', [int(pytest.main(each)) for each in {calls}])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "returned [0, 4, 21, 0]" in ended.stdout
    assert "Traceback" not in ended.stdout + ended.stderr
    assert ended.returncode == 0
