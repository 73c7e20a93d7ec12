"""What starts pytest: `fuseproof nightly` and `fuseproof calibrate`, and the night's share of this suite."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fuseproof
from fuseproof import calibrate, machine, nightly
from fuseproof.cli import main
from fuseproof.history import History
from fuseproof.nightly import joined_status

ROOT = Path(__file__).parents[2]
TABLE = '[tool.fuseproof]\nhistory = "bench_history"\n[tool.pytest.ini_options]\naddopts = ["-p", "no:cacheprovider"]\n'
# A kernel that takes a time of its own, in milliseconds, and nothing that needs a second to be found.
CONFTEST = """
import pytest


class Kernel:
    duration_ns = 1e6

    def __call__(self):
        return 1

    def check(self):
        pass


def pytest_configure(config):
    from fuseproof import clock, measure, roofline

    def run(self, call):
        result = call()
        self._accept(getattr(call, "subject", call).duration_ns + getattr(call, "spin_ns", 0.0))
        return result

    clock.WallClock.run = run
    measure.measure_ceilings = lambda device: roofline.Ceilings(1.0, {})
    measure.counts.trace_host = lambda build, calls: type("Seen", (), {"peak_bytes": 8, "dispatcher_ops": 1})


@pytest.fixture
def kernel(measure):
    from fuseproof.measure import Key, Plan

    measure(Plan(Key("op", "a", "fp32", "64"), Kernel, "kernel", 3))
"""
TEST = "def test_op(kernel):\n    pass\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one quick benchmark, which is the working directory."""
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(TABLE)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_op.py").write_text(TEST)
    return tmp_path


# --- nightly ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "joined"),
    [
        ([0, 0, 0], 0),
        ([0, 1, 20], 1),
        ([0, 0, 20], 20),
        ([21, 0, 20], 20),
        ([21, 0, 0], 21),
        ([0, 3, 20], 3),
        ([0, 1, 4], 4),
        ([0, 0, 5], 5),
        ([0, -11, 20], 3),
    ],
)
def test_one_status_for_all_parts(parts: list[int], joined: int) -> None:
    """A crash wins, as it does in one session; else parity, slower, not answered."""
    assert joined == joined_status(parts)


def test_a_crash_in_one_part_hides_no_other(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each part runs whatever the ones before it said, and the last line names all of them."""
    commands = {
        name: [sys.executable, "-c", f"print('ran {name}'); raise SystemExit({status})"]
        for name, status in {"doctor": 21, "parity": 3, "gate": 20}.items()
    }
    monkeypatch.setattr(nightly, "_parts", lambda *_: commands)
    assert main(["nightly"]) == 3
    said = capfd.readouterr().out
    assert all(f"ran {name}" in said for name in commands)
    assert said.splitlines()[-1] == "nightly: doctor 21, parity 3, gate 20; status 3"


def test_a_gate_that_ends_without_a_verdict_has_crashed(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A kernel that calls exit(0) ends pytest with status 0, and last night's verdicts are not tonight's."""
    (project / "out").mkdir()
    (project / "out" / "gate.json").write_text('{"status": 0}')
    monkeypatch.setattr(nightly, "_parts", lambda *_: {"gate": [sys.executable, "-c", "raise SystemExit(0)"]})
    assert main(["nightly", "--reports=out"]) == 3
    assert "gate ended before it had judged anything" in capfd.readouterr().out
    assert list((project / "out").iterdir()) == []


def test_a_night_whose_gate_is_off_says_so(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It compares, in one process, and leaves no verdicts."""
    (project / "pyproject.toml").write_text(f'{TABLE}[tool.fuseproof.gate]\nmode = "off"\n')
    assert main(["nightly", "--workers=1", "--reports=out", "--select=", "test_op.py"]) == 0
    said = capfd.readouterr().out
    assert '[tool.fuseproof.gate] mode is "off": nothing is judged' in said
    assert {"parity.xml", "gate.xml"} == {path.name for path in (project / "out").iterdir()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--replicates", "0"], "--replicates 0: a night has at least one process"),
        (["--require=cuda,cdua"], "--require=cdua: known are apex, baseline, cuda, gate"),
        (["--reports", "test_op.py"], "--reports test_op.py: is no folder and cannot be made one (File exists)"),
    ],
    ids=["no-process", "no-requirement", "no-folder"],
)
def test_a_night_that_cannot_be_is_not_begun(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Before doctor and parity have run, in one sentence."""
    assert main(["nightly", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"fuseproof nightly: {said}")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_night_of_real_parts(project: Path, capfd: pytest.CaptureFixture[str], workers: int) -> None:
    """Doctor, parity on workers, then the gate on processes of its own: three are saved, and the reports are there."""
    (project / "test_op.py").write_text(
        f"import pytest\n\n@pytest.mark.fuseproof_gate\n{TEST}\ndef test_parity():\n    pass\n"
    )
    assert main(["nightly", f"--workers={workers}", "--reports=out", "test_op.py"]) == 0
    said = capfd.readouterr().out
    assert "2 passed" in said
    assert ["Legend:" in part for part in said.split("nightly: gate: ")] == [False, True]  # parity times nothing
    assert "1 passed, 1 deselected" in said
    assert "(selection: gate of test_op.py)" in said
    assert said.splitlines()[-1] == "nightly: doctor 0, parity 0, gate 0; status 0"
    assert {"parity.xml", "gate.xml", "gate.json"} == {path.name for path in (project / "out").iterdir()}
    assert json.loads((project / "out" / "gate.json").read_text())["status"] == 0
    assert [len(files) for files in History(project / "bench_history").nights(machine.identify().slug).values()] == [3]


# What a test puts in the place of pytest: it says who it is and waits.
WAITING = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(60)"
STARTERS = {
    "nightly": f"nightly._parts = lambda *_: {{'parity': [sys.executable, '-c', {WAITING!r}]}}",
    "calibrate": "real = calibrate.run_process; "
    f"calibrate.run_process = lambda _, *rest: real([sys.executable, '-c', {WAITING!r}], *rest)",
}


@pytest.mark.parametrize("command", ["nightly", "calibrate"])
def test_sigterm_leaves_no_process_behind(project: Path, command: str) -> None:
    """A cancelled night gives the GPU back: what it had started ends with it."""
    code = (
        f"import sys\nfrom fuseproof import calibrate, cli, nightly\n{STARTERS[command]}\nraise SystemExit(cli.main())"
    )
    environ = {**os.environ, "PYTHONPATH": str(Path(fuseproof.__file__).parent.parent)}
    with subprocess.Popen([sys.executable, "-c", code, command], env=environ, stdout=subprocess.DEVNULL) as starter:
        try:
            pid = int(waited_for(lambda: (project / "pid").exists() and (project / "pid").read_text()))
            starter.terminate()
            assert starter.wait(timeout=30) == 130
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        finally:
            starter.kill()


def waited_for(what: Callable[[], str | bool]) -> str:
    """Return what there is as soon as it is there; a minute is long for a process to start."""
    deadline_s = time.monotonic() + 60
    while not (found := what()):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return str(found)


@pytest.mark.parametrize("command", ["nightly", "calibrate"])
def test_outside_a_repository_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 2 and where to run it."""
    monkeypatch.chdir(tmp_path)
    assert main([command]) == 2
    assert "no pyproject.toml with a [tool.fuseproof] table" in capsys.readouterr().err


def test_doctor_says_what_is_required_and_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--require turns what is missing into status 21; an unknown word is a usage error."""
    found = ["No NVIDIA driver is here."]
    monkeypatch.setattr("fuseproof.preflight.unmet", lambda required: found if "cuda" in required else [])
    assert main(["doctor", "--require=cuda"]) == 21
    assert "required: No NVIDIA driver is here." in capsys.readouterr().err
    assert main(["doctor", "--require=cdua"]) == 2


# --- calibrate --------------------------------------------------------------------------------------------------------


def test_calibrate_measures_a_night_and_says_what_can_be_seen(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Two processes are one night; --night goes on with it, and each benchmark has its noise and what would be seen."""
    assert main(["calibrate", "-n", "2", "test_op.py"]) == 0
    ((night, files),) = History(project / "bench_history").nights(machine.identify().slug).items()
    assert len(files) == 2
    said = capfd.readouterr().out
    assert f"calibrating night {night}: process 2 of 2, about" in said
    row = next(line for line in said.splitlines() if line.startswith("op/a/fp32/64"))
    assert row.split()[1:3] == ["device_time_ns", "1"]
    assert row.endswith("in pairs")
    assert "gateable: 0 yes, 1 in pairs, 0 UNGATEABLE of 1" in said

    assert main(["calibrate", "-n", "3", "--night", night, "test_op.py"]) == 0
    assert "process 3 of 3" in capfd.readouterr().out
    assert len(History(project / "bench_history").nights(machine.identify().slug)[night]) == 3


def test_a_calibration_of_nothing_says_what_pytest_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Benchmarks that are all skipped end well and measure nothing."""
    (project / "test_op.py").write_text("import pytest\n\ndef test_op(benchmark):\n    pytest.skip('not here')\n")
    assert main(["calibrate", "-n", "2", "test_op.py"]) == 21
    assert "it ran to its end and saved nothing: ===" in (said := capsys.readouterr().err)
    assert "1 skipped" in said


def test_a_calibration_that_selects_nothing_does_not_say_to_go_on(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command would select nothing again."""
    assert main(["calibrate", "-n", "2", "test_op.py", "-k", "nosuch"]) == 21
    said = capsys.readouterr()
    assert "fuseproof calibrate: nothing was selected by test_op.py -k nosuch: " in said.err
    assert "to go on" not in said.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["test_op.py", "-n", "2"], "-n: give -n before what is to be run"),
        (["test_op.py", "-n2"], "-n2: give -n before"),
        (["test_op.py", "--numprocesses=2"], "--numprocesses=2: processes measure one after the other"),
        (["test_op.py", "--night=x"], "--night=x: give --night before"),
        (["test_op.py", "--benchmark-storage=x"], "--benchmark-storage=x: the processes of a night are counted where"),
        (["nowhere.py"], "pytest refuses: file or directory not found: nowhere.py"),
        (["test_op.py", "--nosuch"], "pytest refuses: "),
    ],
)
def test_a_calibration_that_pytest_would_misunderstand_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """The same command would fail again: one sentence, status 2, and no word of going on."""
    assert main(["calibrate", *arguments]) == 2
    out, error = capsys.readouterr()
    assert error.startswith(f"fuseproof calibrate: {said}")
    assert "to go on" not in out


def test_a_calibration_where_torch_is_broken_is_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which machine this is knows torch; who can say more is named."""

    def broken() -> None:
        raise ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr("fuseproof.machine.identify", broken)
    assert main(["calibrate", "test_op.py"]) == 2
    said = "libcudart.so.13: cannot open shared object file; `fuseproof doctor` says what to do"
    assert capsys.readouterr().err == f"fuseproof calibrate: {said}\n"


def test_options_without_a_path_follow_two_dashes(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The dashes end the options of calibrate and are not given to pytest; going on takes them again."""
    commands: list[list[str]] = []

    def crashing(command: list[str], *_: object, **__: object) -> tuple[int, str]:
        commands.append(command)
        return 3, "no"

    monkeypatch.setattr(calibrate, "run_process", crashing)
    assert main(["calibrate", "-n", "2", "--night", "n1", "--", "-k", "op"]) == 21
    assert commands[0][3:5] == ["-k", "op"]
    assert "to go on: fuseproof calibrate -n 2 --night n1 -- -k op" in capsys.readouterr().out


def test_a_night_with_a_wrong_name_is_not_begun(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first process, not after it: nothing of it could be saved."""
    monkeypatch.setattr(calibrate, "run_process", None)
    assert main(["calibrate", "--night", "My Night"]) == 2
    assert "--night: the night 'My Night' is not 1 to 32 of 0-9 and a-z" in capsys.readouterr().err


def test_a_judged_night_is_not_calibrated_on(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its verdict was on the processes that it had."""
    said = {"accepted": {"device_time_ns": ["op/a/fp32/1"]}, "reason": "why", "who": "kim"}
    History(project / "bench_history").save_record(machine.identify().slug, said, "n1")
    monkeypatch.setattr(calibrate, "run_process", None)
    assert main(["calibrate", "--night", "n1"]) == 2
    assert "--night: the night 'n1' is judged or accepted already, and takes no more" in capsys.readouterr().err


def test_ctrl_c_keeps_what_is_calibrated(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last line says how to go on."""

    def interrupted(*_: object, **__: object) -> tuple[int, str]:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "run_process", interrupted)
    assert main(["calibrate", "-n", "8", "--night", "n1", "tests", "-m", "fuseproof_gate"]) == 130
    said = capsys.readouterr().out
    assert "0 of 8 processes are kept; to go on: fuseproof calibrate -n 8 --night n1 tests -m fuseproof_gate" in said


def test_a_calibrating_process_that_crashes_is_one_sentence(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 21, with the process's last words."""
    monkeypatch.setattr(calibrate, "run_process", lambda *_, **__: (-11, "loading\nSegmentation fault\n"))
    assert main(["calibrate", "-n", "2"]) == 21
    assert "process 1 measured nothing: it was killed by SIGSEGV: Segmentation fault" in capsys.readouterr().err


# --- the night's share of this suite ----------------------------------------------------------------------------------


def test_a_night_judges_43_benchmarks_of_an_h200() -> None:
    """-m fuseproof_gate: five stages, six steps of Adam, 32 LayerNorms."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/e2e",
        "tests/kernels",
        "-m",
        "fuseproof_gate",
        "--collect-only",
        "-q",
    ]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    ids = [line for line in said.splitlines() if "::" in line]
    elsewhere = ("[torch-tiny", "[torch-launch", "[torch-gpt2", "[apex-tiny", "-10m]", "2048x1024")
    on_gpu = [each.partition("::")[2].partition("[")[0] for each in ids if not any(part in each for part in elsewhere)]
    assert {name: on_gpu.count(name) for name in set(on_gpu)} == {
        "test_training_iteration": 5,
        "test_adam_step": 6,
        "test_layer_norm": 32,
    }


def test_a_brought_candidate_is_part_of_a_night() -> None:
    """-m fuseproof_gate chooses it as it chooses the suite's own; its training iterations would cost as much again.

    This one is that of `docs/two_nights.py`.
    """
    paths, brought = ("tests/e2e", "tests/kernels"), "--layer-norm=spun_norm=spun_kernels:SpunLayerNorm"
    command = [sys.executable, "-m", "pytest", *paths, "-m", "fuseproof_gate", brought, "--collect-only", "-q"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "docs" / "examples"), *sys.path])}
    said = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False).stdout
    chosen = [line for line in said.splitlines() if "[spun_norm-" in line]
    assert sum("test_layer_norm[spun_norm-" in line for line in chosen) == 20  # with a CPU's shape
    assert not [line for line in chosen if "test_training_iteration" in line]
