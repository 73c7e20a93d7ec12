"""Who measures ends with the process that waits for it; that of real commands is in `test_upgrade_command.py`."""

import os
import signal
import subprocess
import sys

import pytest

from fuseproof import orphan

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a signal for it")

HERE = orphan.told()["FUSEPROOF_PARENT_PID"].partition(" ")[2]
# As `fuseproof.plugin` calls it; then what there would be to do.
CHILD = "import os, sys\nfrom fuseproof import orphan\norphan.end_with_parent(os.environ)\nprint(sorted(os.environ))"


@pytest.fixture
def child():
    """Return a function that starts a process with this environment, and returns its status and what it printed."""

    def run(*command, parent=None, namespace=HERE):
        environ = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PATH": os.environ["PATH"]}
        if parent is not None:
            environ["FUSEPROOF_PARENT_PID"] = f"{parent} {namespace}"
        done = subprocess.run([*command, sys.executable, "-c", CHILD], env=environ, capture_output=True, text=True)
        return done.returncode, done.stdout

    return run


def test_a_child_whose_parent_lives_goes_on(child):
    """And its own children are not told of that parent."""
    status, said = child(parent=os.getpid())
    assert (status, "FUSEPROOF_PARENT_PID" in said) == (0, False)


def test_a_child_that_nobody_has_told_goes_on(child):
    """A pytest that a person has started ends when that person says so."""
    assert child()[0] == 0


def test_a_child_whose_parent_has_died_before_it_hears_of_it_ends(child):
    """The kernel tells of deaths from then on only; here of the next process that has come and gone."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert child(parent=gone.pid) == (-signal.SIGTERM, "")


def test_an_interpreter_that_is_a_script_is_no_death(child):
    """It stands between the two, and its parent lives."""
    assert child("sh", "-c", '"$@"; exit $?', "sh", parent=os.getpid())[0] == 0


@pytest.mark.parametrize(
    ("parent", "namespace"),
    [("4194303", "pid:[1]"), ("4194303", ""), ("no number", "pid:[1]"), ("", ""), ("-1", "x")],
    ids=["a-container", "no-namespace", "garbage", "empty", "negative"],
)
def test_what_says_nothing_of_a_parent_ends_nobody(child, parent, namespace):
    """Process ids of another namespace, and whatever else is in the variable: no death, no traceback."""
    assert child(parent=parent, namespace=namespace)[0] == 0
