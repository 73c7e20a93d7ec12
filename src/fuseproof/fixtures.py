"""Fixtures for this repository's tests and anybody else's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuseproof.candidates import AdamCandidate
from fuseproof.measure import Measurements, Plan
from fuseproof.parity.cases import expect_defect, quiet_device

__all__ = ["MEASUREMENTS", "PLANTS", "RECORD_PROPERTY", "adam_case", "device", "measure"]

# Half a minute for every new set of shapes: a dozen cases of its own, and no others.
_COMPILED = frozenset({"test_compiled_update_matches_fp64"})
MEASUREMENTS = pytest.StashKey[Measurements]()
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
    measurements = stash.setdefault(MEASUREMENTS, Measurements(device, stash.get(PLANTS, {})))

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
    mode = request.node.callspec.params.get("mode")
    if reason := adam.unavailable(device):
        pytest.skip(reason)
    if mode is not None and mode not in adam.decay_modes:
        pytest.skip(f"{adam.name} has no {mode} weight decay")
    if adam.compiled != (request.node.originalname in _COMPILED):
        pytest.skip("compiled candidates have test_compiled_update_matches_fp64, the others all the other tests")
    if adam.compiled and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{adam.name} runs only with --full")
    expect_defect(request, adam.name, device, request.path.with_name("adam_defects.toml"))
    if adam.compiled:
        torch.compiler.reset()  # after a few sets of shapes the compiler gives up, and eager code runs in silence
    with quiet_device(device):
        yield
