"""What the profiler sees of a call: kernels, launches, synchronisations, dispatcher operations, allocations.

Profiling slows later host work in the same process (pytorch#144455), so these passes run after the last timed round.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fuseproof.clock import Call, DeviceClock

__all__ = ["Counts", "HostPass", "RoundTrace", "count_rounds", "interval_constant_ns", "trace_host", "trace_rounds"]

_CALL = "fuseproof.call"
_MARKER = "spin_kernel"  # the kernel behind torch.cuda._sleep
_MEMORY = "[memory]"
_SYNCHRONISATIONS = frozenset({"cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize"})


@dataclass(frozen=True)
class RoundTrace:
    """The device work of one call, from the profiler.

    Attributes:
        kernels: (name, start_ns, end_ns) of every kernel, copy and fill, by start.
        synchronisations: calls in which the host waited for the device.
        dispatcher_ops: operators that went through torch's dispatcher.

    """

    kernels: tuple[tuple[str, int, int], ...]
    synchronisations: int
    dispatcher_ops: int

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
        stable: the profiled calls agreed in what they launched.

    """

    launches: int
    kernels: dict[str, int]
    kernels_hash: str
    synchronisations: int
    dispatcher_ops: int
    span_ns: float | None
    union_ns: float | None
    stable: bool


def short_kernel_name(name: str) -> str:
    """Return a demangled kernel name without return type, namespaces, template arguments and parameters."""
    name = name.split("(", 1)[0] if not name.startswith("(") else name
    name = re.sub(r"<.*", "", name.removeprefix("void "))
    return name.rsplit("::", 1)[-1].strip() or name


def _profile(activities: set[ProfilerActivity], memory: bool, body: Callable[[], None]) -> Any:
    with profile(activities=activities, profile_memory=memory, acc_events=True) as profiler:
        body()
    return profiler.profiler.kineto_results.events()


def _host_calls(events: Any) -> list[tuple[int, int]]:
    """Return (start_ns, end_ns) of every profiled call on the host."""
    return sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns())
        for event in events
        if event.name() == _CALL and event.device_type() == torch.autograd.DeviceType.CPU
    )


def _operators(events: Any, start: int, end: int) -> tuple[int, int]:
    """Return (dispatcher operators, synchronisations) that the host began between two instants."""
    operators = synchronisations = 0
    for event in events:
        if event.device_type() != torch.autograd.DeviceType.CPU or not start <= event.start_ns() < end:
            continue
        name = event.name()
        if name in _SYNCHRONISATIONS:
            synchronisations += 1
        elif "::" in name and not name.startswith(("autograd::", "cuda")):
            operators += 1
    return operators, synchronisations


def trace_rounds(call: Call, rounds: int, clock: DeviceClock | None) -> list[RoundTrace]:
    """Profile `rounds` calls on the GPU, each between two marker spins.

    Args:
        call: what to profile; warmed up.
        rounds: how many calls.
        clock: hold the stream busy before each call exactly as this clock's timed rounds do; None starts each call on
            an idle device.

    """

    def body() -> None:
        for _ in range(rounds):
            torch.cuda.synchronize()
            if clock is None:
                torch.cuda._sleep(1)
            else:
                clock.hold()
            with record_function(_CALL):
                call()
            torch.cuda._sleep(1)
        torch.cuda.synchronize()

    events = _profile({ProfilerActivity.CPU, ProfilerActivity.CUDA}, False, body)
    device = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in events
        if event.device_type() == torch.autograd.DeviceType.CUDA and event.name() != _CALL
    )
    markers = [i for i, (_, _, name) in enumerate(device) if _MARKER in name]
    hosts = _host_calls(events)
    if len(markers) != 2 * rounds or len(hosts) != rounds:
        raise RuntimeError(
            f"the profiler returned {len(markers)} of {2 * rounds} markers and {len(hosts)} of {rounds} calls: "
            "its buffer overflowed, or another profiler is attached to this process"
        )
    traces = []
    for round_, (start, end) in enumerate(hosts):
        opened, closed = markers[2 * round_ : 2 * round_ + 2]
        operators, synchronisations = _operators(events, start, end)
        kernels = tuple((name, begin, finish) for begin, finish, name in device[opened + 1 : closed])
        traces.append(RoundTrace(kernels, synchronisations, operators))
    return traces


def count_rounds(traces: list[RoundTrace]) -> Counts:
    """Condense profiled calls into counts; the last one speaks for all (the first may still allocate state)."""
    names = [Counter(name for name, _, _ in trace.kernels) for trace in traces]
    last = names[-1]
    short: Counter[str] = Counter()
    for name, count in last.items():
        short[short_kernel_name(name)] += count
    listing = "\n".join(f"{count} {name}" for name, count in sorted(last.items()))
    on_device = bool(last)
    return Counts(
        launches=last.total(),
        kernels=dict(short.most_common()),
        kernels_hash=hashlib.sha256(listing.encode()).hexdigest()[:12],
        synchronisations=traces[-1].synchronisations,
        dispatcher_ops=traces[-1].dispatcher_ops,
        span_ns=statistics.median(trace.span_ns for trace in traces) if on_device else None,
        union_ns=statistics.median(trace.union_ns for trace in traces) if on_device else None,
        stable=all(other == last for other in names),
    )


def interval_constant_ns(device: torch.device, rounds: int = 21) -> float:
    """Calibrate the constant in `DeviceClock`'s interval: its median for one minimal kernel minus the profiler's span.

    For display and for the comparison with the profiler only; stored times are raw.
    """
    cell = torch.zeros(1, device=device)
    clock = DeviceClock(device)

    def call() -> None:
        cell.add_(1.0)

    clock.prepare(call)
    for _ in range(rounds):
        clock.run(call)
    spans = [trace.span_ns for trace in trace_rounds(call, rounds, clock)]
    return statistics.median(clock.rounds_ns) - statistics.median(spans)


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

    events = _profile({ProfilerActivity.CPU}, True, body)
    live = peak = 0
    for _, _, size in sorted(
        (event.start_ns(), position, event.nbytes())
        for position, event in enumerate(events)
        if event.name() == _MEMORY and event.device_type() == torch.autograd.DeviceType.CPU
    ):
        live += size
        peak = max(peak, live)
    start, end = _host_calls(events)[-1]
    return HostPass(_operators(events, start, end)[0], peak)
