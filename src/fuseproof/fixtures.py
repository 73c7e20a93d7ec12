"""Fixtures for this repository's tests and anybody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuseproof.candidates import AdamCandidate
from fuseproof.measure import Measurements, Plan
from fuseproof.parity.cases import expect_defect, inapplicable, quiet_device

__all__ = ["MEASUREMENTS", "adam_case", "device", "measure"]

MEASUREMENTS = pytest.StashKey[Measurements]()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test: the first GPU that is visible, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture
def measure(
    benchmark: BenchmarkFixture, device: torch.device, request: pytest.FixtureRequest
) -> Callable[[Plan], None]:
    """Measure a plan: ``measure(plan)`` checks the output, times the rounds and records all metrics."""
    stash = request.config.stash
    measurements = stash.setdefault(MEASUREMENTS, Measurements(device))

    def run(plan: Plan) -> None:
        __tracebackhide__ = True  # a wrong kernel is told by its sentence, not by our frames
        try:
            measurements.run(plan, benchmark)
        except BaseException:
            benchmark.skipped = True  # on Ctrl-C before the rounds pytest-benchmark would warn that it was not used
            raise

    return run


@pytest.fixture
def adam_case(
    request: pytest.FixtureRequest, adam: AdamCandidate, device: torch.device, pytestconfig: pytest.Config
) -> Iterator[None]:
    """Skip what this Adam cannot do here, expect the failures that `adam_defects.toml` beside the test lists."""
    if reason := inapplicable(request.node) or adam.unavailable(device):
        pytest.skip(reason)
    full = pytestconfig.option.fuseproof_full
    if adam.compiled and not full:
        pytest.skip(f"{adam.name} runs only with --full")
    if request.node.get_closest_marker("huge") and not full:
        pytest.skip("tensors of many GiB: only with --full")
    expect_defect(request, adam.name, device, request.path.with_name("adam_defects.toml"))
    if adam.compiled:
        torch.compiler.reset()  # after a few sets of shapes the compiler gives up, and eager code runs in silence
    with quiet_device(device):
        yield
