"""Clocks that plug into pytest-benchmark: device, iteration and, on a CPU, wall time.

pytest-benchmark's ``pedantic`` reads its timer, calls the target, reads the timer again and subtracts. A clock here is
both: as the timer it returns the seconds it has measured so far, as the target's runner it measures one round and
advances by that round. So the library's tables and files hold what the clock measured, and a spoiled round can be
measured again without a trace in them.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

__all__ = ["Attempt", "Call", "Clock", "DeviceClock", "IterationClock", "WallClock", "device_allocations"]

Call = Callable[[], Any]

_REPEATS = 3  # of a spoiled round, each with the spin doubled


def device_allocations() -> int:
    """Return how many times the caching allocator has asked the driver for memory; 0 without CUDA."""
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0)) if torch.cuda.is_initialized() else 0


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Clock:
    """What a clock of any kind does: measure rounds, and count as pytest-benchmark's timer.

    Attributes:
        name: what the numbers were read from, with the version of the method, for example "device/2".
        own_metric: the metric pytest-benchmark's own number is: "device_time" or "iteration_time".
        rounds_ns: duration of each accepted round, ns.
        host_ns: time to enqueue the call in each accepted round, ns; empty where it is not told apart.
        discarded: rounds that were measured again.
        invalid: sentences why the result must not be judged.

    """

    name: str
    own_metric: str

    def __init__(self) -> None:
        # pytest-benchmark stores the timer by its __name__; an instance has none of its own.
        self.__name__ = f"fuseproof.{self.name}"
        self.rounds_ns: list[float] = []
        self.host_ns: list[float] = []
        self.discarded = 0
        self.invalid: list[str] = []
        self._elapsed_s = 0.0

    def __call__(self) -> float:
        """Return the seconds measured so far; pytest-benchmark subtracts two of these."""
        return self._elapsed_s

    def describe(self) -> dict[str, Any]:
        """Return what makes two numbers of this clock comparable; part of the method hash."""
        return {"clock": self.name}

    def prepare(self, call: Call) -> None:
        """Warm `call` up and learn from it what the rounds need."""
        raise NotImplementedError

    def run(self, call: Call) -> Any:
        """Measure one round of `call` and return its result."""
        raise NotImplementedError

    def _accept(self, round_ns: float, host_ns: float | None = None) -> None:
        self.rounds_ns.append(round_ns)
        if host_ns is not None:
            self.host_ns.append(host_ns)
        self._elapsed_s += round_ns * 1e-9

    def _repeats_left(self) -> range:
        """Count down the repeats of a round; none once the result is invalid: they cost time and mend nothing."""
        return range(0 if self.invalid else _REPEATS, -1, -1)

    def _spoil(self, reason: str) -> None:
        if reason not in self.invalid:
            self.invalid.append(reason)


class WallClock(Clock):
    """``time.perf_counter_ns`` around the call: device time of a CPU kernel, which runs before the call returns."""

    name = "perf_counter/1"
    own_metric = "device_time"
    _WARMUP_CALLS = 3

    def prepare(self, call: Call) -> None:
        """Call three times: threads, caches and lazily made buffers are there afterwards."""
        for _ in range(self._WARMUP_CALLS):
            call()

    def run(self, call: Call) -> Any:
        """Measure one call."""
        with _no_garbage_collection():
            start = time.perf_counter_ns()
            result = call()
            self._accept(time.perf_counter_ns() - start)
        return result


class IterationClock(Clock):
    """Wall time of one whole training iteration, synchronised at its ends."""

    name = "iteration/2"
    own_metric = "iteration_time"
    _WARMUP_CALLS = 1  # memory pass and check have trained before

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._on_gpu = device.type == "cuda"  # on a CPU nothing is enqueued: host time is the iteration's time

    def _synchronize(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()

    def prepare(self, call: Call) -> None:
        """Call once more: the caching allocator is steady afterwards."""
        for _ in range(self._WARMUP_CALLS):
            call()
        self._synchronize()

    def run(self, call: Call) -> Any:
        """Measure one iteration; one that asked the driver for memory is measured again."""
        for repeats_left in self._repeats_left():
            allocations = device_allocations()
            with _no_garbage_collection():
                self._synchronize()
                start = time.perf_counter_ns()
                result = call()
                host = time.perf_counter_ns()
                self._synchronize()
                end = time.perf_counter_ns()
            if device_allocations() == allocations:
                break
            self.discarded += repeats_left > 0
        else:
            self._spoil("every round asked the driver for memory (cudaMalloc)")
        self._accept(end - start, host - start if self._on_gpu else None)
        return result


@cache
def _flush_buffer(device: torch.device, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the buffer to flush with, and where its sum goes: pytest-benchmark keeps all clocks alive."""
    return (
        torch.zeros(size // 4, dtype=torch.float32, device=device),
        torch.zeros((), dtype=torch.float32, device=device),
    )


@dataclass(frozen=True)
class Attempt:
    """One try at a round of the device clock.

    Attributes:
        result: what the call returned.
        interval_ns: between the events around the call.
        host_ns: how long the host took to enqueue the call.
        ahead: the stream was still held when the call returned, so the interval holds device work only.
        sm_clock_mhz: the SM clock, from the cycles and the duration of the spin.

    """

    result: Any
    interval_ns: float
    host_ns: float
    ahead: bool
    sm_clock_mhz: float


class DeviceClock(Clock):
    """Device time between two CUDA events, with the stream held busy first.

    One round: write and read a buffer larger than the L2 cache, queue a spin longer than the call takes on the host,
    record, call, record, synchronise. The host runs ahead, so that the interval holds device work only. If the spin
    has ended before the call returned, the round is discarded and the spin doubled.

    The interval is stored raw: it carries a constant of its own (about 2 us on an H200) that `counts` calibrates.

    Args:
        device: a CUDA device.

    Attributes:
        cycles_per_ns: the rate at which the spin counts.

    """

    name = "device/2"
    own_metric = "device_time"
    flush_bytes = 256 * 2**20  # an H200 has 60 MB of L2; no current GPU has 256
    _WARMUP_CALLS = 3
    _HOST_PROBES = 5
    _SLACK_NS = 50_000  # the flush also runs while the host works ahead; this is for the host's jitter
    _LONGEST_SPIN_NS = 200_000_000

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._buffer, self._sink = _flush_buffer(device, self.flush_bytes)
        self._before, self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        self.cycles_per_ns = self._measure_spin()
        self._spin_ns = float(self._SLACK_NS)
        self.sm_clock_mhz: list[float] = []

    def describe(self) -> dict[str, Any]:
        """Return the clock's name and how much is flushed."""
        return {"clock": self.name, "flush_bytes": self.flush_bytes}

    def _measure_spin(self) -> float:
        short, long = 200_000, 2_000_000
        for _ in range(3):  # the first rounds raise the clock
            # An interval has 7 us of an H200 in it that are not the spin's: of 1 ms 0.7 %, and of the difference none.
            more_ns = self._spin_interval_ns(long) - self._spin_interval_ns(short)
        return (long - short) / more_ns

    def _spin_interval_ns(self, cycles: int) -> float:
        torch.cuda._sleep(200_000)  # the host runs ahead: a launch between the events takes 8 us of an H200
        self._start.record()
        torch.cuda._sleep(cycles)
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end) * 1e6)

    def prepare(self, call: Call) -> None:
        """Warm up, and make the spin half as long again as the slowest of five calls takes on the host."""
        for _ in range(self._WARMUP_CALLS):
            call()
        torch.cuda.synchronize()
        host = []
        for _ in range(self._HOST_PROBES):
            torch.cuda._sleep(int(self._SLACK_NS * self.cycles_per_ns))
            start = time.perf_counter_ns()
            call()
            host.append(time.perf_counter_ns() - start)
            torch.cuda.synchronize()
        self._spin_ns = min(1.5 * max(host) + self._SLACK_NS, self._LONGEST_SPIN_NS)

    def _hold(self) -> int:
        """Flush the L2 cache and queue the spin on the current stream; return the spin's length in cycles."""
        # Write, then read: the write evicts, the read leaves no dirty line whose write-back would fall into the round.
        self._buffer.fill_(1.0)
        torch.sum(self._buffer, dim=0, out=self._sink)
        cycles = int(self._spin_ns * self.cycles_per_ns)
        self._before.record()
        torch.cuda._sleep(cycles)
        return cycles

    def run(self, call: Call) -> Any:
        """Measure one round; see the class for what a round is."""
        for repeats_left in self._repeats_left():
            allocations = device_allocations()
            with _no_garbage_collection():
                attempt = self.attempt(call)
            if attempt.ahead and device_allocations() == allocations:
                break
            self.discarded += repeats_left > 0
            if repeats_left and not attempt.ahead:
                self.lengthen_spin()
        else:
            self._spoil(
                "every round asked the driver for memory (cudaMalloc)"
                if attempt.ahead
                else "host-bound: the host did not run ahead of the device, the interval holds host time"
            )
        self.sm_clock_mhz.append(attempt.sm_clock_mhz)
        self._accept(attempt.interval_ns, attempt.host_ns)
        return attempt.result

    def lengthen_spin(self) -> None:
        """Double the spin: the host has not stayed ahead."""
        self._spin_ns = min(2 * self._spin_ns, self._LONGEST_SPIN_NS)

    def attempt(self, call: Call, marker: Call | None = None) -> Attempt:
        """Hold the stream, call, wait; return what was seen, whether or not the host ran ahead.

        Args:
            call: what to measure.
            marker: enqueues something that shows in a profile, right before and right after the interval.

        """
        cycles = self._hold()
        if marker:
            marker()
        self._start.record()
        start_ns = time.perf_counter_ns()
        result = call()
        host_ns = time.perf_counter_ns() - start_ns
        ahead = not self._start.query()
        self._end.record()
        if marker:
            marker()
        self._end.synchronize()
        return Attempt(
            result=result,
            interval_ns=self._start.elapsed_time(self._end) * 1e6,
            host_ns=host_ns,
            ahead=ahead,
            sm_clock_mhz=cycles / (self._before.elapsed_time(self._start) * 1e3),
        )
