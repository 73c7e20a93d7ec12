"""Processes side by side: all end with the first that fails, and with Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from fuseproof.processes import ChildError, last_words, run_process, side_by_side


def python(code, folder, stop):
    """Run a line of Python in a child."""
    return run_process([sys.executable, "-c", code], folder, {}, 60.0, stop=stop)


def ask(folder, *codes):
    """Run lines of Python in children, side by side."""
    return side_by_side([partial(python, code, folder) for code in codes])


SLEEPER = "import os, pathlib, time; pathlib.Path('pid').write_text(str(os.getpid())); time.sleep(50)"
MEET = "import pathlib, time; pathlib.Path('{}').touch()\nwhile not pathlib.Path('{}').exists(): time.sleep(0.01)"


def gone(folder):
    """Wait for the sleeper's number, and return whether it has ended."""
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "pid").read_text()), 0)


def test_they_run_at_once_and_answer_in_their_order(tmp_path):
    """Each waits for the other's file, so one after the other would never end."""
    first, second = MEET.format("a", "b") + "\nprint(1)", MEET.format("b", "a") + "\nprint(2)"

    assert ask(tmp_path, first, second) == [(0, "1\n"), (0, "2\n")]


def test_the_first_that_fails_ends_the_others(tmp_path):
    """What it raised is raised, not that the others were ended."""

    def fail(stop):
        pid = tmp_path / "pid"
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.01)
        raise ChildError("it has failed")

    begun_s = time.monotonic()
    with pytest.raises(ChildError, match=r"^it has failed$"):
        side_by_side([partial(python, SLEEPER, tmp_path), fail])

    assert time.monotonic() - begun_s < 30
    gone(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_them_all(number, tmp_path):
    """No child measures for nobody."""
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a session in the background ignores it
sys.path[:] = {[str(Path(__file__).parent), *sys.path]!r}
from pathlib import Path
from test_processes import SLEEPER, ask
ask(Path({str(tmp_path)!r}), SLEEPER, "import time; time.sleep(50)")
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + 60
    pid = tmp_path / "pid"
    while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    parent.send_signal(number)
    _, errors = parent.communicate(timeout=30)

    assert errors.rstrip().splitlines()[-1].startswith(("KeyboardInterrupt", "fuseproof.processes.Terminated"))
    gone(tmp_path)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "E   AssertionError\nE    +  where 1 = f()\n= summary =\nFAILED t.py::a - wrong\n= 1 failed =",
            "t.py::a - wrong",
        ),
        ("ImportError while loading conftest\nE   RuntimeError: it is broken\n", "RuntimeError: it is broken"),
        ("collected 0 items\n= no tests ran =\n", "= no tests ran ="),
        ("", "it said nothing"),
    ],
    ids=["a-failed-test", "a-conftest", "nothing", "silence"],
)
def test_last_words_say_what_went_wrong(output: str, words: str) -> None:
    """The test and its own words, not the last line of what it compared; no letter that pytest puts before them."""
    assert last_words(output).removeprefix("FAILED ") == words
