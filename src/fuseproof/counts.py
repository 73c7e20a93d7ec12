"""What the profiler sees of a call: kernels, launches, synchronisations, dispatcher operations, allocations.

Profiling slows later host work in the same process (pytorch#144455), so these passes run after the last timed round.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, record_function

from fuseproof.clock import Call, Clock, DeviceClock
from fuseproof.tracing import CALL, RoundTrace, profiled, take_apart, trace_rounds

__all__ = [
    "Counts",
    "HostPass",
    "ProfilerClock",
    "count_rounds",
    "interval_constant_ns",
    "short_kernel_name",
    "trace_host",
]

_MEMORY = "[memory]"


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
            with record_function(CALL):
                call()

    events = profiled([ProfilerActivity.CPU], body, memory=True)
    live = peak = 0
    for _, _, size in sorted(
        (event.start_ns(), position, event.nbytes())
        for position, event in enumerate(events)
        if event.name() == _MEMORY and event.device_type() == DeviceType.CPU
    ):
        live += size
        peak = max(peak, live)
    trace = take_apart(events)
    return HostPass(trace.operators(trace.calls[-1:])[0][0], peak)
