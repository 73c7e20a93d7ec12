"""Fixtures for this repository's tests and anybody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuseproof.candidates import AdamCandidate, NormCandidate
from fuseproof.measure import Measurements, Plan
from fuseproof.parity.cases import expect_defect, inapplicable, quiet_device
from fuseproof.parity.child import failure_expected
from fuseproof.parity.forks import fork_server
from fuseproof.parity.norm import NORM_DTYPES

__all__ = ["MEASUREMENTS", "PLACEMENT", "PLANTS", "RECORD_PROPERTY", "adam_case", "device", "measure", "norm_case"]

MEASUREMENTS = pytest.StashKey[Measurements]()
PLACEMENT = pytest.StashKey[str]()
PLANTS = pytest.StashKey[Mapping[str, float]]()
RECORD_PROPERTY = pytest.StashKey[Callable[[str, object], None]]()


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device under test: the first GPU that is visible, else the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(scope="session", autouse=True)
def _property_recorder(request: pytest.FixtureRequest) -> None:
    """Keep what records a property of JUnit's suite: the verdicts are known when no test can ask for it any more."""
    if getattr(request.config.option, "xmlpath", None):  # -p no:junitxml
        request.config.stash[RECORD_PROPERTY] = request.getfixturevalue("record_testsuite_property")


@pytest.fixture
def measure(
    benchmark: BenchmarkFixture, device: torch.device, request: pytest.FixtureRequest
) -> Callable[[Plan], None]:
    """Measure a plan: ``measure(plan)`` checks the output, times the rounds and records all metrics."""
    stash = request.config.stash
    if MEASUREMENTS not in stash:
        stash[MEASUREMENTS] = Measurements(device, stash.get(PLANTS, {}), stash.get(PLACEMENT, ""))
    measurements = stash[MEASUREMENTS]

    def run(plan: Plan) -> None:
        __tracebackhide__ = True  # a wrong kernel is told by its sentence, not by our frames
        try:
            measurements.run(plan, benchmark)
        except BaseException:
            benchmark.skipped = True  # on Ctrl-C before the rounds pytest-benchmark would warn that it was not used
            raise

    return run


@contextmanager
def _case(
    request: pytest.FixtureRequest,
    candidate: AdamCandidate | NormCandidate,
    name: str,
    device: torch.device,
    table: str,
) -> Iterator[None]:
    """Skip what takes too long for a night, expect the failures of the table beside the test."""
    full = request.config.option.fuseproof_full
    if candidate.compiled and not full:
        pytest.skip(f"{candidate.name} runs only with --fuseproof-full")
    if request.node.get_closest_marker("huge") and not full:
        pytest.skip("tensors of many GiB: only with --fuseproof-full")
    known = expect_defect(request, name, device, request.path.with_name(table))
    if candidate.compiled:
        torch.compiler.reset()  # after a few sets of shapes the compiler gives up, and eager code runs in silence
    if device.type == "cuda" and hasattr(request.config, "workerinput"):
        fork_server()  # a worker of a whole run will need it: its imports go on beside the cases before
    with quiet_device(device), failure_expected(known):
        yield


@pytest.fixture
def adam_case(request: pytest.FixtureRequest, adam: AdamCandidate, device: torch.device) -> Iterator[None]:
    """Skip what this Adam cannot do here, expect the failures that `adam_defects.toml` beside the test lists."""
    if reason := inapplicable(request.node) or adam.unavailable(device):
        pytest.skip(reason)
    with _case(request, adam, adam.name, device, "adam_defects.toml"):
        yield


@pytest.fixture
def norm_case(request: pytest.FixtureRequest, norm: NormCandidate, device: torch.device) -> Iterator[None]:
    """Skip what this norm cannot do here, expect the failures that `norm_defects.toml` beside the test lists."""
    dtype = NORM_DTYPES[request.node.callspec.params.get("dtype", "fp32")]
    if reason := inapplicable(request.node) or norm.unavailable(device, dtype):
        pytest.skip(reason)
    with _case(request, norm, norm.full_name, device, "norm_defects.toml"):
        yield
