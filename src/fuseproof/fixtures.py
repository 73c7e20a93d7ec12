"""Fixtures for this repository's tests and anybody else's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuseproof.measure import Measurements, Plan

__all__ = ["MEASUREMENTS", "device", "measure"]

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
