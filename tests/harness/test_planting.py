"""A planted slow-down is as long as it is said to be, on whatever clock reads it."""

import math
import time

import pytest
import torch

from fuseproof.clock import DeviceClock, WallClock
from fuseproof.planting import Spun, measure_plant

GPU = torch.device("cuda")


class Waiting:
    """A subject that takes half a millisecond of a CPU."""

    def __call__(self):
        """Wait."""
        end_ns = time.perf_counter_ns() + 500_000
        while time.perf_counter_ns() < end_ns:
            pass
        return "done"

    def check(self):
        """Nothing to check."""


class Product:
    """A subject that takes some tens of microseconds of a GPU."""

    def __init__(self):
        self.x = torch.randn(2048, 2048, device=GPU)

    def __call__(self):
        """Multiply."""
        return self.x @ self.x

    def check(self):
        """Nothing to check."""


def test_a_spun_subject_returns_its_result_later():
    """The call's result is kept; the spin comes on top of its time."""
    start_ns = time.perf_counter_ns()
    result = Spun(Waiting(), 1_500_000)()

    assert result == "done"
    assert time.perf_counter_ns() - start_ns >= 2_000_000


@pytest.mark.parametrize("size", [0.05, 0.3])
def test_plant_on_a_cpu(size):
    """The second arm takes exp(size) times as long as the first, and the first the size longer than the subject."""
    seen = measure_plant(size, Waiting(), WallClock, 15, 500_000.0, torch.device("cpu"))

    assert math.log(seen["planted_ns"] / seen["base_ns"]) == pytest.approx(size, abs=0.01)
    assert seen["base_ns"] == pytest.approx(500_000 * math.exp(size), rel=0.02)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda._sleep needs a GPU")
@pytest.mark.parametrize("size", [0.03, 0.3])
def test_plant_on_a_gpu(size):
    """The spin counts cycles of the SM clock, whose rate is measured in the same process."""
    seen = measure_plant(size, Product(), lambda: DeviceClock(GPU), 30, 60_000.0, GPU)

    assert math.log(seen["planted_ns"] / seen["base_ns"]) == pytest.approx(size, abs=0.01)
