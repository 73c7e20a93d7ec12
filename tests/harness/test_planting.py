"""A planted slow-down is as long as it is said to be, on whatever clock reads it."""

import math
import statistics
import time

import pytest
import torch

from fuseproof import gpu
from fuseproof.clock import DeviceClock, IterationClock, WallClock
from fuseproof.counts import ProfilerClock, count_rounds
from fuseproof.planting import Spun, measure_plant
from fuseproof.tracing import trace_rounds

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


# --- on a GPU ---

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda._sleep needs a GPU")


class Normalize:
    """A subject that is bound by memory: 90 us of an H200, in one kernel."""

    def __init__(self):
        self.x = torch.randn(8192, 4096, device=GPU)

    def __call__(self):
        """Normalize."""
        return torch.nn.functional.layer_norm(self.x, (4096,))

    def check(self):
        """Nothing to check."""


class Products:
    """A subject that is bound by arithmetic, and long: milliseconds, as a training iteration is."""

    def __init__(self):
        self.x = torch.randn(4096, 4096, device=GPU) / 64

    def __call__(self):
        """Multiply."""
        y = self.x
        for _ in range(4):
            y = y @ self.x
        return y

    def check(self):
        """Nothing to check."""


def timed_ns(subject, clock, rounds=30):
    """Return the median time of a subject on a clock, ns."""
    clock.prepare(subject)
    for _ in range(rounds):
        clock.run(subject)
    assert clock.invalid == []
    return statistics.median(clock.rounds_ns)


@on_a_gpu
@pytest.mark.parametrize("size", [0.01, 0.02, 0.03, 0.3])
@pytest.mark.parametrize("make", [Product, Normalize], ids=["arithmetic", "memory"])
def test_plant_on_a_gpu(make, size):
    """The spin counts cycles of the SM clock, whose rate is measured in the same process: off by less than 0.3 %."""
    subject = make()
    own_ns = timed_ns(subject, DeviceClock(GPU))
    # Medians of 60 rounds, as many as a benchmark has, are off by 0.3 % of 90 us once in fifteen times.
    seen = measure_plant(size, subject, lambda: DeviceClock(GPU), 400, own_ns, GPU)

    assert math.log(seen["planted_ns"] / seen["base_ns"]) == pytest.approx(size, abs=0.003)
    assert seen["base_ns"] >= own_ns * math.exp(size) * 0.97


@on_a_gpu
@pytest.mark.parametrize("size", [0.02, 0.1])
def test_plant_on_an_iteration(size):
    """Wall time of work that the device is bound by: the spin comes after it, and is waited for."""
    subject = Products()
    own_ns = timed_ns(subject, IterationClock(GPU))
    seen = measure_plant(size, subject, lambda: IterationClock(GPU), 30, own_ns, GPU)

    assert math.log(seen["planted_ns"] / seen["base_ns"]) == pytest.approx(size, abs=0.005)


@on_a_gpu
def test_plant_on_the_profilers_clock():
    """The spin is a kernel of the call, not one of the profiler's markers."""
    seen = measure_plant(0.1, Products(), lambda: ProfilerClock(5), 5, 10e6, GPU)

    assert math.log(seen["planted_ns"] / seen["base_ns"]) == pytest.approx(0.1, abs=0.01)


@on_a_gpu
@pytest.mark.parametrize("held", [False, True], ids=["idle", "held"])
def test_a_spun_call_has_one_kernel_more(held):
    """Counts of a call that spins are exact: its own kernels and the spin, the same in each round."""
    subject = Normalize()
    spun = Spun(subject, 20_000.0, DeviceClock(GPU).cycles_per_ns)
    found = {}
    for name, call in (("plain", subject), ("spun", spun)):
        clock = DeviceClock(GPU) if held else None
        for _ in range(3):
            call()
        if clock is not None:
            clock.prepare(call)
        found[name] = count_rounds(trace_rounds(call, 5, clock))

    assert found["plain"].stable
    assert found["spun"].stable
    assert found["spun"].launches == found["plain"].launches + 1
    assert found["spun"].kernels == {**found["plain"].kernels, "spin_kernel": 1}


@on_a_gpu
def test_the_spin_reads_the_sm_clock():
    """What each round's spin says of the clock is what NVML says under the same load, and it does not move."""
    clock = DeviceClock(GPU)
    timed_ns(Normalize(), clock, 60)
    read_mhz = statistics.median(clock.sm_clock_mhz)
    spin_ns = clock._spin_ns * clock.cycles_per_ns / read_mhz * 1e3
    state = gpu.snapshot()
    events_ns = statistics.median(clock.attempt(lambda: None).interval_ns for _ in range(50))

    assert gpu.clock_moved(clock.sm_clock_mhz) == []
    assert state is not None
    if state.sm_clock_mhz is not None:
        # The reading has the events' own time in it: 4 us of the 80 us between them.
        assert read_mhz * spin_ns / (spin_ns - events_ns) == pytest.approx(state.sm_clock_mhz, rel=0.02)


@on_a_gpu
def test_a_longer_spin_is_longer_by_what_it_counts():
    """Cycles over rate: the difference of two spins, by which a planted kernel is slower, from 0.2 us on."""
    timed_ns(Normalize(), DeviceClock(GPU), 60)  # the clocks are up
    clock = DeviceClock(GPU)

    def interval_ns(nanoseconds):
        cycles = round(nanoseconds * clock.cycles_per_ns)
        return clock.attempt(lambda: torch.cuda._sleep(cycles)).interval_ns

    bases_ns = [5_000.0 + 2.0 * step for step in range(1000)]  # of many lengths: the events' clock counts in steps
    for more_ns in (200.0, 1_000.0, 10_000.0):
        differences_ns = [interval_ns(base_ns + more_ns) - interval_ns(base_ns) for base_ns in bases_ns]
        assert statistics.fmean(sorted(differences_ns)[100:-100]) == pytest.approx(more_ns, abs=50.0, rel=0.005)
