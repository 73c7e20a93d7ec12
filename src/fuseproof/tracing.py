"""The profiler's view of calls on the GPU: kernels, synchronisations and operators, round by round.

Profiling slows later host work in the same process (pytorch#144455), so these passes run after the last timed round.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from fuseproof.clock import Call, DeviceClock
from fuseproof.phases import PHASES

__all__ = ["CALL", "RoundTrace", "Trace", "profiled", "take_apart", "trace_rounds"]

CALL = "fuseproof.call"
"""What each profiled call is marked by on the host."""

_SPIN = "spin_kernel"  # the kernel behind torch.cuda._sleep
_REHEAT_S = 0.02
_SYNCHRONISATIONS = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"})


@dataclass(frozen=True)
class RoundTrace:
    """The device work of one call, from the profiler.

    Attributes:
        kernels: (name, start_ns, end_ns) of every kernel, copy and fill, by start.
        synchronisations: calls in which the host waited for the device.
        dispatcher_ops: operators that went through torch's dispatcher.
        interval_ns: what the device clock read in this very round; None where it did not or the host fell behind.

    """

    kernels: tuple[tuple[str, int, int], ...]
    synchronisations: int
    dispatcher_ops: int
    interval_ns: float | None = None

    @property
    def span_ns(self) -> float:
        """From the first kernel's start to the last one's end."""
        return max(end for _, _, end in self.kernels) - self.kernels[0][1] if self.kernels else 0.0

    @property
    def union_ns(self) -> float:
        """Time in which at least one kernel ran."""
        total, reached = 0, 0
        for _, start, end in self.kernels:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        return float(total)


@dataclass(frozen=True)
class Trace:
    """One profile, taken apart: what ran on the host and on the device, each by start."""

    host: list[tuple[int, int, str]]
    device: list[tuple[int, int, str]]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(start_ns, end_ns) of every profiled call on the host."""
        return [(start, end) for start, end, name in self.host if name == CALL]

    def operators(self, calls: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return (dispatcher operators, synchronisations) that the host began during each of the calls."""
        starts = [start for start, _, _ in self.host]
        counted = []
        for start, end in calls:
            names = [name for _, _, name in self.host[bisect_left(starts, start) : bisect_left(starts, end)]]
            counted.append((sum(map(_is_operator, names)), sum(name in _SYNCHRONISATIONS for name in names)))
        return counted


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(("autograd::", "cuda"))


def profiled(activities: list[ProfilerActivity], body: Callable[[], None], memory: bool = False) -> Any:
    """Run `body` under the profiler; return what it saw."""
    with warnings.catch_warnings():
        # torch 2.11 says at every profile after the first that it forgets the events of the one before.
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events", category=UserWarning)
        with PHASES.phase("starting and stopping the profiler"):
            with profile(activities=activities, profile_memory=memory) as profiler, PHASES.phase("profiled rounds"):
                body()
            return profiler.profiler.kineto_results.events()


@PHASES.phase("reading profiles")
def take_apart(events: Any) -> Trace:
    """Return the events of a profile by side, each by start."""
    host: list[tuple[int, int, str]] = []
    device: list[tuple[int, int, str]] = []
    for event in events:
        start = event.start_ns()
        entry = (start, start + event.duration_ns(), event.name())
        (host if event.device_type() == DeviceType.CPU else device).append(entry)
    # An annotation (record_function, an optimizer's step) shows on both sides under one name; no kernel does.
    annotations = {name for _, _, name in host}
    return Trace(sorted(host), sorted(entry for entry in device if entry[2] not in annotations))


def trace_rounds(call: Call, rounds: int, clock: DeviceClock | None) -> list[RoundTrace]:
    """Profile `rounds` calls on the GPU, each between two marker spins.

    Args:
        call: what to profile; warmed up. It may spin itself, as often in each call.
        rounds: how many calls.
        clock: hold the stream busy before each call exactly as this clock's timed rounds do; None starts each call on
            an idle device.

    Raises:
        RuntimeError: the profiler has lost events.

    """

    intervals: list[float | None] = []
    heated = 0

    def marked() -> None:
        with record_function(CALL):
            call()

    def body() -> None:
        # Starting the profiler leaves the GPU idle for long enough to lower its clock: heat it again first. The host is
        # slower under the profiler, so that it may need a longer spin to stay ahead.
        nonlocal heated
        deadline = time.perf_counter() + _REHEAT_S
        while clock is not None and time.perf_counter() < deadline:
            heated += 1
            if not clock.attempt(marked).ahead:
                clock.lengthen_spin()
        for _ in range(rounds):
            torch.cuda.synchronize()
            if clock is None:
                _mark()
                marked()
                _mark()
                intervals.append(None)
            else:
                attempt = clock.attempt(marked, _mark)
                intervals.append(attempt.interval_ns if attempt.ahead else None)
        torch.cuda.synchronize()

    trace = take_apart(profiled([ProfilerActivity.CPU, ProfilerActivity.CUDA], body))
    calls = trace.calls[-rounds:]
    spins = [i for i, (_, _, name) in enumerate(trace.device) if _SPIN in name]
    held = int(clock is not None)  # the clock's own spin comes before the two markers
    markers = heated * held + rounds * (held + 2)
    own, lost = divmod(len(spins) - markers, heated + rounds)  # spins of the call's
    if lost or own < 0 or len(calls) != rounds:
        raise RuntimeError(
            f"the profiler returned {len(spins)} of {markers} markers and {len(calls)} of {rounds} calls: "
            "its buffer overflowed, or another profiler is attached to this process"
        )
    each = held + 2 + own
    traces = []
    for round_, (operators, synchronisations) in enumerate(trace.operators(calls)):
        of_round = spins[len(spins) - each * (rounds - round_) :][:each]
        kernels = tuple((name, start, end) for start, end, name in trace.device[of_round[held] + 1 : of_round[-1]])
        traces.append(RoundTrace(kernels, synchronisations, operators, intervals[round_]))
    return traces


def _mark() -> None:
    torch.cuda._sleep(1)
