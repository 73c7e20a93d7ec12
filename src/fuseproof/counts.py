"""What the profiler sees of a call: kernels, launches, synchronisations, dispatcher operations, allocations.

Profiling slows later host work in the same process (pytorch#144455), so these passes run after the last timed round.
"""

from __future__ import annotations

import hashlib
import re
import statistics
import time
import warnings
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, record_function

from fuseproof.clock import Call, Clock, DeviceClock
from fuseproof.phases import PHASES

__all__ = [
    "Counts",
    "HostPass",
    "ProfilerClock",
    "RoundTrace",
    "count_rounds",
    "interval_constant_ns",
    "short_kernel_name",
    "trace_host",
    "trace_rounds",
]

_CALL = "fuseproof.call"
_SPIN = "spin_kernel"  # the kernel behind torch.cuda._sleep
_MEMORY = "[memory]"
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
class Counts:
    """Exact counts of one call and the kernel times of the profiled rounds.

    Attributes:
        launches: kernels, copies and fills.
        kernels: short kernel name to launches.
        kernels_hash: hash of the full names with their counts.
        synchronisations, dispatcher_ops: see `RoundTrace`.
        span_ns, union_ns: medians over the rounds; None without device work.
        interval_ns: median of what the device clock read in the profiled rounds; None where it did not.
        stable: the profiled calls agreed in what they launched.

    """

    launches: int
    kernels: dict[str, int]
    kernels_hash: str
    synchronisations: int
    dispatcher_ops: int
    span_ns: float | None
    union_ns: float | None
    interval_ns: float | None
    stable: bool


def short_kernel_name(name: str) -> str:
    """Return a demangled kernel name without return type, namespaces, template arguments and parameters."""
    bare = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    while (outer := re.sub(r"<[^<>]*>", "", bare)) != bare:  # inside out; a return type may have template arguments too
        bare = outer
    return bare.split("(", 1)[0].rsplit("::", 1)[-1].strip() or name


@dataclass(frozen=True)
class _Trace:
    """One profile, taken apart: what ran on the host and on the device, each by start."""

    host: list[tuple[int, int, str]]
    device: list[tuple[int, int, str]]

    @property
    def calls(self) -> list[tuple[int, int]]:
        """(start_ns, end_ns) of every profiled call on the host."""
        return [(start, end) for start, end, name in self.host if name == _CALL]

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


def _profile(activities: list[ProfilerActivity], body: Callable[[], None], memory: bool = False) -> Any:
    with warnings.catch_warnings():
        # torch 2.11 says at every profile after the first that it forgets the events of the one before.
        warnings.filterwarnings("ignore", message="Warning: Profiler clears events", category=UserWarning)
        with PHASES.phase("starting and stopping the profiler"):
            with profile(activities=activities, profile_memory=memory) as profiler, PHASES.phase("profiled rounds"):
                body()
            return profiler.profiler.kineto_results.events()


@PHASES.phase("reading profiles")
def _take_apart(events: Any) -> _Trace:
    host: list[tuple[int, int, str]] = []
    device: list[tuple[int, int, str]] = []
    for event in events:
        start = event.start_ns()
        entry = (start, start + event.duration_ns(), event.name())
        (host if event.device_type() == DeviceType.CPU else device).append(entry)
    # An annotation (record_function, an optimizer's step) shows on both sides under one name; no kernel does.
    annotations = {name for _, _, name in host}
    return _Trace(sorted(host), sorted(entry for entry in device if entry[2] not in annotations))


def trace_rounds(call: Call, rounds: int, clock: DeviceClock | None) -> list[RoundTrace]:
    """Profile `rounds` calls on the GPU, each between two marker spins.

    Args:
        call: what to profile; warmed up.
        rounds: how many calls.
        clock: hold the stream busy before each call exactly as this clock's timed rounds do; None starts each call on
            an idle device.

    """

    intervals: list[float | None] = []

    def marked() -> None:
        with record_function(_CALL):
            call()

    def body() -> None:
        # Starting the profiler leaves the GPU idle for long enough to lower its clock: heat it again first. The host is
        # slower under the profiler, so that it may need a longer spin to stay ahead.
        deadline = time.perf_counter() + _REHEAT_S
        while clock is not None and time.perf_counter() < deadline:
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

    trace = _take_apart(_profile([ProfilerActivity.CPU, ProfilerActivity.CUDA], body))
    calls = trace.calls[-rounds:]
    each = 2 if clock is None else 3  # the clock's own spin comes before the two markers
    spins = [i for i, (_, _, name) in enumerate(trace.device) if _SPIN in name][-each * rounds :]
    if len(spins) != each * rounds or len(calls) != rounds:
        raise RuntimeError(
            f"the profiler returned {len(spins)} of {each * rounds} markers and {len(calls)} of {rounds} calls: "
            "its buffer overflowed, or another profiler is attached to this process"
        )
    traces = []
    for round_, (operators, synchronisations) in enumerate(trace.operators(calls)):
        opened, closed = spins[each * round_ : each * (round_ + 1)][-2:]
        kernels = tuple((name, start, end) for start, end, name in trace.device[opened + 1 : closed])
        traces.append(RoundTrace(kernels, synchronisations, operators, intervals[round_]))
    return traces


def _mark() -> None:
    torch.cuda._sleep(1)


class ProfilerClock(Clock):
    """Device time of profiled rounds: the union of the kernels' intervals.

    For calls that launch so much that the host cannot run ahead (about 1,000 pending launches block it) or that
    synchronise inside.

    Args:
        rounds: how many rounds to record.

    """

    name = "profiled_union/2"
    own_metric = "device_time"
    _WARMUP_CALLS = 2

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self._rounds = rounds
        self._unread: Iterator[RoundTrace] = iter(())
        self.traces: list[RoundTrace] = []

    def prepare(self, call: Call) -> None:
        """Warm up, then run all rounds under one profiler: its start-up cost is paid once."""
        for _ in range(self._WARMUP_CALLS):
            call()
        self.traces = trace_rounds(call, self._rounds, None)
        self._unread = iter(self.traces)

    def run(self, call: Call) -> None:  # noqa: ARG002  # the rounds ran in `prepare`
        """Advance by the next recorded round."""
        self._accept(next(self._unread).union_ns)


def count_rounds(traces: list[RoundTrace]) -> Counts:
    """Condense profiled calls into counts; the last one speaks for all (the first may still allocate state)."""
    names = [Counter(name for name, _, _ in trace.kernels) for trace in traces]
    last = names[-1]
    short: Counter[str] = Counter()
    for name, count in last.items():
        short[short_kernel_name(name)] += count
    listing = "\n".join(f"{count} {name}" for name, count in sorted(last.items()))
    on_device = bool(last)
    intervals = [trace.interval_ns for trace in traces if trace.interval_ns is not None]
    return Counts(
        launches=last.total(),
        kernels=dict(short.most_common()),
        kernels_hash=hashlib.sha256(listing.encode()).hexdigest()[:12],
        synchronisations=traces[-1].synchronisations,
        dispatcher_ops=traces[-1].dispatcher_ops,
        span_ns=statistics.median(trace.span_ns for trace in traces) if on_device else None,
        union_ns=statistics.median(trace.union_ns for trace in traces) if on_device else None,
        interval_ns=statistics.median(intervals) if intervals else None,
        stable=all(other == last for other in names),
    )


def interval_constant_ns(device: torch.device, rounds: int = 21) -> float:
    """Calibrate the constant in `DeviceClock`'s interval: for one minimal kernel, interval minus the profiler's span.

    For display and for the comparison with the profiler only; stored times are raw.
    """
    cell = torch.zeros(1, device=device)
    clock = DeviceClock(device)

    def call() -> None:
        cell.add_(1.0)

    clock.prepare(call)
    traces = trace_rounds(call, rounds, clock)
    return statistics.median(trace.interval_ns - trace.span_ns for trace in traces if trace.interval_ns is not None)


@dataclass(frozen=True)
class HostPass:
    """What the profiler saw on a machine without GPU.

    Attributes:
        dispatcher_ops: operators that one call sent through torch's dispatcher.
        peak_bytes: greatest sum of live tensor memory, from before the build.

    """

    dispatcher_ops: int
    peak_bytes: int


def trace_host(build: Callable[[], Call], calls: int) -> HostPass:
    """Build and call under the CPU profiler: operators of the last call, peak of the CPU allocator since the build.

    Args:
        build: makes the call and all its tensors.
        calls: how many times to call.

    """

    def body() -> None:
        call = build()
        for _ in range(calls):
            with record_function(_CALL):
                call()

    events = _profile([ProfilerActivity.CPU], body, memory=True)
    live = peak = 0
    for _, _, size in sorted(
        (event.start_ns(), position, event.nbytes())
        for position, event in enumerate(events)
        if event.name() == _MEMORY and event.device_type() == DeviceType.CPU
    ):
        live += size
        peak = max(peak, live)
    trace = _take_apart(events)
    return HostPass(trace.operators(trace.calls[-1:])[0][0], peak)
