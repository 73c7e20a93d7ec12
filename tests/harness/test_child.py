"""A check in a process of its own: what it says, and what its end says where it cannot speak any more."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuseproof.parity import ParityError
from fuseproof.parity.child import ChildError, ProcessEndedError, failure_expected, run_in_child
from fuseproof.parity.forks import ForkServer, fork_server

CHECKS = """
import os, signal, time
from fuseproof.parity import ParityError

def right(*arguments):
    assert arguments == (1, "two", [3.5], {"four": None}), arguments

def wrong(quantity):
    raise ParityError(f"{quantity}: off")

def refused():
    raise RuntimeError("CUDA error: invalid configuration argument")

def mistaken():
    return {}["key"]

def killed():
    os.kill(os.getpid(), signal.SIGSEGV)

def gone():
    os.write(2, b"first\\nterminate called\\n")
    os._exit(3)

def hanging(notes=None):
    if notes:
        with open(notes + ".new", "w") as note:
            note.write(str(os.getpid()))
        os.rename(notes + ".new", notes)
    time.sleep(60)

def untouched(preloaded):
    import sys, torch
    assert preloaded in sys.modules
    assert not torch.cuda.is_initialized()
    assert not torch.cuda._is_in_bad_fork()

def here(pid, name, value):
    assert os.getpid() != pid
    assert os.environ[name] == value

def noted(path, ending=None):
    # The process is noted; the first that is asked ends as said.
    first = not os.path.exists(path)
    with open(path, "a") as notes:
        print(os.getpid(), file=notes)
    if ending == "spent":
        from fuseproof.parity.server import spend
        spend()
    elif ending and first:
        wrong("dx") if ending == "wrong" else killed()
"""


@pytest.fixture(autouse=True)
def checks(tmp_path, monkeypatch):
    """A module with checks on the import path of this process."""
    (tmp_path / "checks_for_child.py").write_text(CHECKS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_right_answer_is_silent():
    """The arguments arrive as they were given."""
    run_in_child("checks_for_child:right", 1, "two", [3.5], {"four": None})


def test_it_is_another_process_with_this_environment(monkeypatch):
    """The GPU that a worker was given is a variable of its environment: the child has it too."""
    monkeypatch.setenv("FOR_THE_CHILD", "its value")
    run_in_child("checks_for_child:here", os.getpid(), "FOR_THE_CHILD", "its value")


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        pytest.param("wrong", ("dx",), r"^dx: off$", id="its-own-sentence"),
        pytest.param("right", (), r"AssertionError: \(\)", id="assertion"),
        pytest.param("refused", (), r"RuntimeError: CUDA error: invalid configuration argument", id="cuda-error"),
        pytest.param("killed", (), r"killed\(\): its process was ended by SIGSEGV: ", id="killed"),
        pytest.param("gone", (), r"ended with status 3: first \| terminate called$", id="gone"),
    ],
)
def test_a_wrong_answer_is_a_parity_error(check, arguments, message):
    """What the check says comes back word for word; a process that died is a wrong answer too."""
    with pytest.raises(ParityError, match=message) as caught:
        run_in_child(f"checks_for_child:{check}", *arguments)
    assert isinstance(caught.value, ProcessEndedError) == (check in ("killed", "gone"))


def test_a_child_that_is_in_order_is_asked_again(tmp_path, monkeypatch):
    """A CUDA context of its own for every check would cost more than the checks; variables of the call are new."""
    notes = tmp_path / "notes"
    for number in range(3):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"test {number}")
        run_in_child("checks_for_child:here", os.getpid(), "PYTEST_CURRENT_TEST", f"test {number}")
        run_in_child("checks_for_child:noted", str(notes))

    assert len(set(notes.read_text().split())) == 1


@pytest.mark.parametrize("reason", ["surroundings", "spent", "another_environment"])
def test_a_new_child_where_the_last_one_does_not_do(reason, tmp_path, monkeypatch):
    """Other variables may mean another GPU, and a check can say that its process is out of order."""
    notes = tmp_path / "notes"
    for number in range(2):
        if reason == "surroundings":
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(number))
        environ = {"CUDA_VISIBLE_DEVICES": str(number)} if reason == "another_environment" else None
        run_in_child("checks_for_child:noted", str(notes), reason == "spent" and "spent", environ=environ)

    assert len(set(notes.read_text().split())) == 2


@pytest.mark.parametrize("ending", ["wrong", "killed"])
@pytest.mark.parametrize("expected", [False, True], ids=["unexpected", "expected"])
def test_what_is_unexpected_counts_only_in_a_new_child(ending, expected, tmp_path):
    """What checks before may have left in their process is not blamed on the next one; a known failure is believed."""
    notes = tmp_path / "notes"
    run_in_child("checks_for_child:right", 1, "two", [3.5], {"four": None})
    with failure_expected(expected):
        if expected:
            with pytest.raises(ParityError):
                run_in_child("checks_for_child:noted", str(notes), ending)
        else:
            run_in_child("checks_for_child:noted", str(notes), ending)

    assert len(set(notes.read_text().split())) == (1 if expected else 2)


def test_a_pass_that_is_unexpected_counts_only_in_a_new_child(tmp_path):
    """A known defect that does not show in a used process is not mended yet."""
    notes = tmp_path / "notes"
    run_in_child("checks_for_child:right", 1, "two", [3.5], {"four": None})
    with failure_expected(True):
        run_in_child("checks_for_child:noted", str(notes))

    assert len(set(notes.read_text().split())) == 2


def test_a_child_that_hangs_is_ended():
    """Waiting for ever would stop the session."""
    with pytest.raises(ParityError, match=r"hanging\(\): no answer from its process after 2 s"):
        run_in_child("checks_for_child:hanging", longest_s=2)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        pytest.param("checks_for_child:mistaken", "KeyError: 'key'", id="mistake"),
        pytest.param("checks_for_child:absent", "there is no such check: module 'checks_for_child'", id="no-function"),
        pytest.param("no_such_module:right", "there is no such check: No module named 'no_such", id="no-module"),
    ],
)
def test_a_broken_check_is_no_verdict(check, message):
    """An expected failure must not hide a mistake in the check: it is no ParityError."""
    with pytest.raises(ChildError, match=message):
        run_in_child(check)


def test_what_children_need_is_imported_before_they_are_there():
    """And nothing of it has touched CUDA, which no child could use then."""
    run_in_child("checks_for_child:untouched", "fuseproof.parity.adam.gpu")


def test_a_server_is_not_waited_for_before_it_is_asked():
    """Its imports take seconds, which go by beside other work; one that nobody asks ends at once."""
    began = time.monotonic()
    server = ForkServer()
    server.close()

    assert time.monotonic() - began < 0.5
    assert not server.alive()


def test_a_server_that_has_ended_is_replaced():
    """One lost process does not lose the session."""
    first = fork_server()
    os.kill(first.process_id, signal.SIGKILL)
    while first.alive():
        time.sleep(0.01)
    run_in_child("checks_for_child:right", 1, "two", [3.5], {"four": None})

    assert fork_server() is not first


@pytest.mark.parametrize("killed", ["at_once", "in_a_check"])
def test_nothing_outlives_the_process_that_asks(killed, tmp_path):
    """A session that is killed leaves neither the server behind nor the child that was running."""
    notes = tmp_path / "notes"
    session = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from fuseproof.parity.child import run_in_child\n"
            "from fuseproof.parity.forks import fork_server\n"
            "print(fork_server().process_id, flush=True)\n"
            f"run_in_child('checks_for_child:hanging', {str(notes)!r})",
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    server = int(session.stdout.readline())
    while killed == "in_a_check" and not notes.exists():
        time.sleep(0.05)
    session.kill()
    session.wait()
    session.stdout.close()
    child = [notes.read_text()] if notes.exists() else []
    deadline = time.monotonic() + (10 if child else 60)  # imports that have begun take long on a loaded machine
    while alive := [each for each in (server, *child) if Path(f"/proc/{each}/stat").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)
