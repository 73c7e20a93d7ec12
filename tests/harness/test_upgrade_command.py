"""`fuseproof upgrade` and `fuseproof versus` as a person runs them, with real processes, on a clock that is made up."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuseproof.cli import main

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TABLE = '[tool.fuseproof]\nhistory = "bench_history"\n[tool.pytest.ini_options]\naddopts = ["-p", "no:cacheprovider"]\n'
# Real kernels and their checks; a call counts as 100 us, what it spins, and 0.1 % of noise between processes.
CONFTEST = """
import random


def pytest_configure(config):
    import cpuinfo
    import spun_kernels

    from fuseproof import clock, measure, roofline

    level, spun = random.gauss(1, 0.001), []

    def run(self, call):
        spun.clear()
        result = call()
        self._accept((1e5 + sum(spun)) * level)
        return result

    clock.WallClock.run = run
    spun_kernels._spin = lambda device, what: spun.append(spun_kernels.BASE_NS + spun_kernels.MORE_NS.get(what, 0.0))
    measure.measure_ceilings = lambda device: roofline.Ceilings(1.0, {})
    measure.counts.trace_host = lambda build, calls: type("Seen", (), {"peak_bytes": 8, "dispatcher_ops": 1})
    cpuinfo.get_cpu_info = lambda: {}
"""
TESTS = """
import os
import time

import pytest

from fuseproof.plans import norm_plan


@pytest.mark.fuseproof_gate
@pytest.mark.parametrize("rows", [8, 16])
def test_layer_norm(layer_norm, rows, device, measure):
    if layer_norm.name not in ("torch", "primitive", "spun"):
        pytest.skip("not here")
    if layer_norm.name == os.environ.get("LACKS"):
        pytest.skip("not in this environment")
    assert layer_norm.name != os.environ.get("SPOILS"), f"{layer_norm.name} is wrong"
    time.sleep(float(os.environ.get("SLEEPS_S", 0)))
    measure(norm_plan(layer_norm, rows, 64, "fp32", device, backward=False))
"""
SPUN = ("--layer-norm", "spun=spun_kernels:SpunLayerNorm")
# 3 % of 100 us and 5 us that both environments spin.
BOTH = ("--from", sys.executable, "--to", sys.executable)
ARGUMENTS = (*BOTH, "--to-env", "SPUN_MORE_NS=fp32/8x64:3150", *SPUN)
COMMON = ("--pairs", "8", "--no-parity")
SLOWER = "layer_norm_fwd/spun/fp32/8x64"


@pytest.fixture(scope="module")
def environ():
    """The variables of a person's shell, in which `spun_kernels` can be imported."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FUSEPROOF_"))}
    return kept | {"PYTHONPATH": os.pathsep.join(filter(None, [str(EXAMPLES), *sys.path]))}


def make_project(folder):
    """Make a repository with four benchmarks, or six with a brought kernel."""
    (folder / "pyproject.toml").write_text(TABLE)
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_norm.py").write_text(TESTS)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A repository for the course below."""
    return make_project(tmp_path_factory.mktemp("project"))


class Command:
    """One run of the command, as a process."""

    def __init__(self, project, environ, *arguments):
        self.project = project
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fuseproof", *arguments],
            cwd=project,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""

    def until(self, words):
        """Read lines until one has these words."""
        for line in self.process.stdout:
            self.said += line
            if words in line:
                return
        raise AssertionError(f"it ended without {words!r}:\n{self.said}")

    def end(self, number=None):
        """Send a signal, if one is given; return the exit status."""
        if number is not None:
            self.process.send_signal(number)
        try:
            self.said += self.process.communicate(timeout=300)[0]
        finally:
            self.process.kill()
        return self.process.returncode


def children_of(project):
    """Return the processes of pytest that run in a project."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [path] if f"--rootdir={project}" in path.read_text(errors="replace") else []
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def course(project, environ):
    """Started, ended by SIGTERM in the second pair, started again, ended by Ctrl-C, started again to its end."""
    notes = {}
    for name, number in (("terminated", signal.SIGTERM), ("interrupted", signal.SIGINT)):
        command = Command(project, environ, "upgrade", *ARGUMENTS, *COMMON)
        command.until("pair 2 (look at 4, at most 8)")
        time.sleep(1)  # well into the process
        notes[name] = (command.end(number), command.said, children_of(project), kept(project))
    files = [f"--{kind}={project / f'answer.{kind}'}" for kind in ("json", "markdown", "html")]
    command = Command(project, environ, "upgrade", *ARGUMENTS, *COMMON, *files)
    notes["finished"] = (command.end(), command.said, children_of(project), kept(project))
    return notes


def kept(project):
    """Return the finished processes with the time at which each was written."""
    return {p.name: p.stat().st_mtime_ns for p in sorted((project / "fuseproof-upgrade").glob("0*.json"))}


@pytest.mark.parametrize("how", ["terminated", "interrupted"])
def test_what_ends_it_ends_its_child_and_keeps_finished_pairs(course, how):
    """Status 130; no process is left; the pair that was finished is there, and the answer so far is told."""
    status, said, children, files = course[how]
    assert (status, children) == (130, []), said
    assert list(files) == ["0000-new.json", "0000-old.json"]
    assert "Not decided" in said
    assert "the same command goes on" in said


def test_finished_pairs_are_used_again(course):
    """The first pair's files are those that the first run wrote, and the last run says so."""
    _, said, _, files = course["finished"]
    first = course["terminated"][3]
    assert first == {name: files[name] for name in first}
    assert len(files) == 16
    assert "finished before and used: 1; to measure anew, delete fuseproof-upgrade" in said


def test_a_slower_kernel_is_found_and_nothing_else(course, project):
    """The brought kernel spins longer at one shape: REGRESSED there, by its size, PASS everywhere else; status 20."""
    status, said, _, _ = course["finished"]
    answer = json.loads((project / "answer.json").read_text())
    times = {each["key"]: each for each in answer["verdicts"] if each["metric"] == "device_time_ns"}
    assert (status, answer["status"]) == (20, 20), said
    assert {key: each["outcome"] for key, each in times.items()} == {
        **{
            f"layer_norm_fwd/{name}/fp32/{rows}x64": "PASS"
            for name in ("torch", "primitive", "spun")
            for rows in (8, 16)
        },
        SLOWER: "REGRESSED",
    }
    assert times[SLOWER]["effect_ln"] == pytest.approx(0.0296, abs=0.003)
    assert said.splitlines().count(answer["sentence"]) == 1


def test_a_pair_shares_its_order(course, project):
    """Both processes of a pair run the same benchmarks in the same order, and another pair in another one."""
    orders = []
    for number in range(4):
        paths = [project / "fuseproof-upgrade" / f"{number:04d}-{arm}.json" for arm in ("old", "new")]
        old, new = ([each["fullname"] for each in json.loads(path.read_text())["benchmarks"]] for path in paths)
        assert old == new
        orders.append(old)
    assert {6} == set(map(len, orders))
    assert len(set(map(tuple, orders))) > 1


def test_all_files_are_written(course, project):
    """Markdown and HTML say what is slower."""
    for kind in ("markdown", "html"):
        text = (project / f"answer.{kind}").read_text()
        assert "Do not switch: 1 of 6 benchmarks slower than 1 %" in text
        assert "REGRESSED" in text


def test_nothing_is_left_to_measure(course, project, environ):
    """The same command once more starts no process, and says the same."""
    command = Command(project, environ, "upgrade", *ARGUMENTS, *COMMON)
    assert command.end() == 20, command.said
    assert "finished before and used: 8" in command.said
    assert "pair 1" not in command.said
    assert course["finished"][3] == kept(project)


def test_another_question_does_not_use_these_pairs(course, project, environ):
    """One sentence says what differs; nothing is touched."""
    command = Command(project, environ, "upgrade", *ARGUMENTS, *COMMON, "-k", "torch")
    assert command.end() == 2, command.said
    assert "fuseproof-upgrade: was begun for something else (keyword was nothing and is 'torch'); give" in command.said
    assert course["finished"][3] == kept(project)


def test_what_was_there_and_what_was_found(course, project, environ):
    """The tool beside the kernels knows the true size of the slow-down, and finds it within 0.3 %."""

    def tool(*arguments):
        command = [sys.executable, str(EXAMPLES / "spun_kernels.py"), *arguments]
        return subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=True).stdout

    seen = re.finditer(r"^(\S+) .*error ([+-].*)%$", tool("found", "fuseproof-upgrade"), re.M)
    errors = {match[1]: float(match[2]) for match in seen}
    assert errors.keys() == {SLOWER, SLOWER.replace("8x64", "16x64")}
    assert max(map(abs, errors.values())) < 0.3
    sizes = dict(word.rsplit(":", 1) for word in tool("more", "fuseproof-upgrade", "5").split())
    assert {name: pytest.approx(5250, rel=0.01) for name in ("fp32/8x64", "fp32/16x64")} == {
        name: float(size) for name, size in sizes.items()
    }


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a signal for it")
@pytest.mark.parametrize("after_s", [0.0, 4.0], ids=["before_it_has_heard", "while_it_measures"])
def test_a_killed_command_leaves_no_child(project, environ, after_s):
    """SIGKILL gives it no time to end its child, which ends all the same: it would disturb whoever measures next."""
    sleeps = ("--from-env", "SLEEPS_S=300", "--to-env", "SLEEPS_S=300")
    command = Command(project, environ, "upgrade", *BOTH, *sleeps, "--folder", "killed", *COMMON)
    command.until("pair 1 (look at 4, at most 8)")
    await_(lambda: children_of(project))
    time.sleep(after_s)
    assert children_of(project)
    command.end(signal.SIGKILL)
    await_(lambda: not children_of(project))


def await_(condition):
    """Wait until it holds."""
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


# --- one environment twice, and one that lacks something --------------------------------------------------------------

# The command's own process, in which nothing of these can be imported.
WITHOUT = """if True:
    import sys

    class Blocker:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in {"torch", "pytest", "pytest_benchmark"}:
                raise ImportError(f"{name} is blocked")

    sys.meta_path.insert(0, Blocker())
    from fuseproof.cli import main
    sys.exit(main())
"""


def test_the_same_environment_twice(project, environ):
    """Every benchmark passes, status 0; the process that starts the others has neither torch nor pytest."""
    command = [sys.executable, "-c", WITHOUT, "upgrade", *BOTH, "--folder", "same", *COMMON]
    done = subprocess.run(command, cwd=project, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    said = re.search(r"Switch: 0 of 4 benchmarks slower than 1 % \(95 %\), (\d+) skipped in both", done.stdout)
    assert f"Benchmarks skipped in both ({said[1]})" in done.stdout
    assert re.search(r" tests/test_norm.py::test_layer_norm\[\w+-16\] +not here$", done.stdout, re.M)


def test_one_pair_and_a_benchmark_of_one_environment_only(project, environ):
    """One pair always runs, then the budget is over; what NEW does not measure is MISSING: not decided, status 21."""
    arguments = (*BOTH, "--to-env", "LACKS=primitive", "--folder", "lacks", "--budget", "0.001")
    command = Command(project, environ, "upgrade", *arguments, *COMMON)
    assert command.end() == 21, command.said
    assert "Not decided" in command.said
    said = r"layer_norm_fwd/primitive/fp32/8x64 .*MISSING .*old measures it, new does not: its test is skipped in new"
    assert re.search(said, command.said)
    assert "the budget is over: the same command goes on with the pairs in lacks" in command.said
    assert "INCONCLUSIVE" in command.said


def test_all_that_was_asked_for_is_skipped_in_both(project, environ):
    """Nothing was compared, and the reason is in the first sentence: not decided, status 21, and no second pair."""
    lacks = ("--from-env", "LACKS=primitive", "--to-env", "LACKS=primitive")
    arguments = (*BOTH, *lacks, "--folder", "skips", "-k", "primitive", "--json", "skips.json")
    command = Command(project, environ, "upgrade", *arguments, *COMMON)
    assert command.end() == 21, command.said
    answer = json.loads((project / "skips.json").read_text())
    said = "Not decided: no benchmark was compared, all 2 skipped in both (not in this environment), peak memory"
    assert answer["sentence"].startswith(said)
    tests = [f"tests/test_norm.py::test_layer_norm[primitive-{rows}]" for rows in (16, 8)]
    assert answer["skipped"] == [{"reason": "not in this environment", "tests": tests}]
    assert "pair 2" not in command.said


def test_a_benchmark_that_fails_in_both_is_no_success(project, environ):
    """Nothing is slower, and one benchmark was measured nowhere: status 21, with the test and its words."""
    spoils = ("--from-env", "SPOILS=primitive", "--to-env", "SPOILS=primitive")
    arguments = (*BOTH, *spoils, "--folder", "spoils", "-k", "16 and (torch or primitive)", "--json", "spoils.json")
    command = Command(project, environ, "upgrade", *arguments, *COMMON)
    assert command.end() == 21, command.said
    answer = json.loads((project / "spoils.json").read_text())
    said = "Not decided: 0 of 2 benchmarks slower than 1 % (95 %), 1 not compared, since its test fails, 1 skipped"
    assert answer["sentence"].startswith(said)
    (failed,) = (each for each in answer["verdicts"] if each["metric"] == "test")
    assert (failed["key"], failed["outcome"]) == ("tests/test_norm.py::test_layer_norm[primitive-16]", "INVALID")
    assert failed["detail"].startswith("its test fails in old and new: AssertionError: primitive is wrong")


# --- used wrongly -----------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path, monkeypatch, environ):
    """A repository of its own, which is the working directory."""
    monkeypatch.setenv("PYTHONPATH", environ["PYTHONPATH"])
    make_project(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*BOTH, "nowhere"), "nowhere: there are no tests"),
        ((*BOTH, "--pairs", "5"), "--pairs 5: looks are taken after 4, 8, 12, 16, 24 pairs"),
        ((*BOTH, "--pairs", "3", "--no-early-stop"), "--pairs 3"),
        ((*BOTH, "--tolerance", "much"), "--tolerance much: give a percentage"),
        ((*BOTH, "--tolerance", "1 MiB"), "--tolerance 1 MiB"),
        ((*BOTH, "--budget", "0"), "--budget 0: give minutes"),
        ((*BOTH, "--budget", "nan"), "--budget nan: give minutes"),
        ((*BOTH, "--from-env", "X"), "--from-env X: write it as NAME=VALUE"),
        ((*BOTH, "--to-env", "CUDA_VISIBLE_DEVICES=1"), "both arms of a pair run on one GPU"),
        ((*BOTH, "--pytest", "'"), "--pytest '"),
        ((*BOTH, "--workers", "x"), "--workers x"),
        ((*BOTH, "--gpus", "many"), "--gpus many"),
        ((*BOTH, "--json", "no/such/file"), "--json no/such/file: there is no folder no/such"),
        ((*BOTH, "--html", "tests"), "--html tests: is a folder; name a file"),
        (("--from", "no-such-python", "--to", sys.executable), "no-such-python"),
    ],
)
def test_used_wrongly(here, capfd, arguments, said):
    """Status 2 and one sentence; nothing is measured."""
    assert main(["upgrade", *arguments]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert error.startswith("fuseproof upgrade: ")
    assert len(error.splitlines()) == 1
    assert not list(here.glob("fuseproof-upgrade/0*"))


def test_a_full_disk_is_one_sentence(here, monkeypatch, capfd):
    """Wherever it is met: here where the answer of an environment should lie."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/fuseproof-x")

    monkeypatch.setattr("tempfile.TemporaryDirectory", full)
    assert main(["upgrade", *BOTH, *COMMON]) == 2
    said = "fuseproof upgrade: /tmp/fuseproof-x: No space left on device; mend that, and run it again\n"
    assert capfd.readouterr().err == said


def test_an_answer_that_nobody_can_hear_is_one_sentence(here, environ):
    """The terminal's file is full: no traceback, and Python does not complain once more at its end."""
    command = [sys.executable, "-m", "fuseproof", "upgrade", *BOTH, *COMMON]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, cwd=here, env=environ, stdout=full, stderr=subprocess.PIPE, check=False)
    said = b"fuseproof upgrade: No space left on device; mend that, and run it again\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_without_tests(tmp_path, monkeypatch, capfd):
    """Where there is no ./tests, the sentence says what to give."""
    monkeypatch.chdir(tmp_path)
    assert main(["upgrade", *BOTH]) == 2
    assert "tests: there are no tests; give the folder of the benchmarks" in capfd.readouterr().err


def test_without_a_configuration(tmp_path, monkeypatch, capfd):
    """Tests of a repository that has nothing to do with fuseproof would measure nothing."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    assert main(["upgrade", *BOTH]) == 2
    assert "no pyproject.toml above it has a [tool.fuseproof] table" in capfd.readouterr().err


def test_a_keyword_that_selects_nothing(here, capfd):
    """pytest collects nothing: that is no answer but a mistake, and the sentence names the selection."""
    assert main(["upgrade", *BOTH, *COMMON, "-k", "no_such_benchmark"]) == 2
    assert "no benchmark is selected by tests -m 'fuseproof_gate' -k 'no_such_benchmark'" in capfd.readouterr().err


def test_a_keyword_that_selects_nothing_is_told_before_parity(here, capfd):
    """Parity of thousands of cases would be minutes in vain."""
    assert main(["upgrade", *BOTH, "--pairs", "4", "-k", "no_such_benchmark"]) == 2
    told = capfd.readouterr()
    assert "no benchmark is selected by tests -m 'fuseproof_gate' -k 'no_such_benchmark'\n" in told.err
    assert "parity" not in told.out


def test_a_keyword_of_benchmarks_without_parity_ends_before_the_pairs(here, capfd):
    """The benchmarks are there, and no case of parity: nothing is measured, and the sentence says what to give."""
    assert main(["upgrade", *BOTH, "--pairs", "4", "--workers", "0", "-k", "primitive"]) == 2
    told = capfd.readouterr()
    assert "no parity case fits tests -k 'primitive': widen it, or give --no-parity" in told.err
    assert "pair 1" not in told.out


# --- versus -----------------------------------------------------------------------------------------------------------


def test_candidates_against_each_other(project, environ):
    """Eight processes of both; the spun one is slower by its 5 %, the other one equal; who is faster is in the file."""
    arguments = (
        "torch",
        "primitive",
        "spun",
        *SPUN,
        "--pairs",
        "8",
        "--markdown",
        "versus.md",
        "--json",
        "versus.json",
    )
    command = Command(project, environ, "versus", *arguments)
    assert command.end() == 0, command.said
    rows = json.loads((project / "versus.json").read_text())["rows"]
    answers = {(row["benchmark"], row["challenger"]): row["standing"] for row in rows if row["standing"]}
    assert {key: each["place"] for key, each in answers.items()} == {
        (f"layer_norm_fwd/fp32/{rows}x64", name): place
        for rows in (8, 16)
        for name, place in (("primitive", "equal"), ("spun", "slower"))
    }
    assert answers["layer_norm_fwd/fp32/8x64", "spun"]["effect_ln"] == pytest.approx(0.0488, abs=1e-4)
    assert "torch is faster" in (project / "versus.md").read_text()
    assert "equal within 1 %" in command.said


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("torch",), "torch: name at least two candidates"),
        (("torch", "torch"), "torch: name at least two candidates"),
        (("torch", "torhc"), "here: pytest refuses: there is no candidate 'torhc'; did you mean 'torch'?"),
        (("torch", "torhc"), "; kernels: apex, torch."),
        (("torch_loop", "primitive"), "no two of torch_loop, primitive are of one kind; adam: "),
        (("torch_loop", "primitive"), "; kernels: apex, torch."),
    ],
)
def test_candidates_that_cannot_be_compared(here, capfd, names, said):
    """One sentence, status 2."""
    assert main(["versus", *names]) == 2
    error = capfd.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
