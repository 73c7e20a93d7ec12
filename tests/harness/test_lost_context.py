"""A lost CUDA context ends the process that lost it, and no other test is blamed. The device's answers are fakes."""

import pytest
import torch

from fuseproof.lost_context import is_lost

pytest_plugins = ["pytester"]

PROJECT = """
[tool.fuseproof]

[tool.pytest.ini_options]
addopts = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
"""
# The context is lost at the second test and stays so in this process.
TESTS = """
import pytest
import torch


@pytest.mark.parametrize("number", range(6))
def test_kernel(number, monkeypatch):
    def synchronize():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    if number == 1:
        torch.cuda.synchronize = synchronize
    if torch.cuda.synchronize.__name__ == synchronize.__name__ and "test_kernels" in torch.cuda.synchronize.__module__:
        torch.cuda.synchronize()
"""


def answering(monkeypatch, error=None):
    """Let the next call to the device succeed, or fail with `error`."""

    def synchronize():
        if error is not None:
            raise error

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)


def test_an_error_that_stays_is_a_lost_context(monkeypatch):
    """An illegal access fails once more at the next call."""
    answering(monkeypatch, RuntimeError("CUDA error: an illegal memory access was encountered"))

    assert is_lost(torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.parametrize(
    "error",
    [torch.AcceleratorError("CUDA error: invalid configuration argument"), RuntimeError("CUDA error: out of memory")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_that_passes_is_none(monkeypatch, error):
    """A launch that was refused leaves the context as it was."""
    answering(monkeypatch)

    assert not is_lost(error)


def test_errors_of_others_do_not_ask_the_device(monkeypatch):
    """A failing assertion has nothing to do with it."""
    answering(monkeypatch, RuntimeError("CUDA error: never asked"))

    assert not is_lost(AssertionError("y is wrong"))


def test_a_session_ends_after_the_test_that_lost_the_context(pytester):
    """The others are not run, and the reason says which test it was and how to go on."""
    pytester.makepyprojecttoml(PROJECT)
    pytester.makepyfile(test_kernels=TESTS)
    result = pytester.runpytest_subprocess()

    result.assert_outcomes(passed=1, failed=1)
    assert "the CUDA context is lost since test_kernels.py::test_kernel[1]" in result.stdout.str()
    assert "-n 1" in result.stdout.str()


def test_a_worker_ends_and_the_session_goes_on(pytester):
    """Under xdist the test that lost the context is the one that failed; a new worker runs the rest."""
    pytester.makepyprojecttoml(PROJECT)
    pytester.makepyfile(test_kernels=TESTS)
    result = pytester.runpytest_subprocess("-n", "1")

    result.assert_outcomes(passed=5, failed=1)
    assert "test_kernels.py::test_kernel[1]" in [line.split()[1] for line in result.outlines if "FAILED" in line]
