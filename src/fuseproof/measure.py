"""One benchmark from plan to record: memory, output check, timed rounds, and the profiler pass that comes later."""

from __future__ import annotations

import hashlib
import json
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

import torch
from pytest_benchmark.fixture import BenchmarkFixture

from fuseproof import counts, gpu, preflight
from fuseproof.channel import Channel, fastest_channel
from fuseproof.clock import Clock, DeviceClock, IterationClock, WallClock
from fuseproof.counts import Counts, ProfilerClock
from fuseproof.garbage import Garbage
from fuseproof.phases import PHASES
from fuseproof.placement import hold
from fuseproof.planting import measure_plant
from fuseproof.roofline import Ceilings, Work, measure_ceilings, refuse_reduced_precision
from fuseproof.subjects import Subject
from fuseproof.tracing import trace_rounds

__all__ = ["Key", "Measurements", "Plan"]

_PEAK_CALLS = 3  # the first may make optimizer state; the peak is there from the second on
_PROFILED_ROUNDS = 15
_PROFILED_ITERATIONS = 2
_SHOWN_KERNELS = 8
_SHOWN_NAME = 32


@dataclass(frozen=True)
class Key:
    """What identifies a benchmark for ever: ``op/candidate/dtype/shape``. Renaming a test keeps its history."""

    op: str
    candidate: str
    dtype: str
    shape: str

    def __str__(self) -> str:
        return f"{self.op}/{self.candidate}/{self.dtype}/{self.shape}"


@dataclass(frozen=True)
class Plan:
    """What to measure and how.

    Attributes:
        key: its identity.
        build: makes the subject with all its tensors from a seed; called again for the profiler pass.
        clock: "kernel" for the device clock (a CPU: wall time), "profiled" where the host cannot run ahead of the
            device, "iteration" for whole training iterations.
        rounds: how many; fixed, since it is part of the method.
        work: the least the call must do.
        method: what else must be equal for two numbers to be comparable: shapes, sizes, text.
        about: what reports show beside the numbers; stored, not judged.

    """

    key: Key
    build: Callable[[], Subject]
    clock: Literal["kernel", "profiled", "iteration"]
    rounds: int
    work: Work = field(default_factory=Work)
    method: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Pending:
    """A profiler pass that waits for the session's last timed round."""

    nodeid: str
    plan: Plan
    record: dict[str, Any]


@contextmanager
def _memory_released(key: Key) -> Iterator[None]:
    """Let no error keep tensors alive through the frames of its traceback, and explain running out of memory."""
    try:
        yield
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        if isinstance(error, torch.OutOfMemoryError):
            reason = str(error).split(". ", 1)[0]
            raise MemoryError(f"{key} does not fit: {reason}. Free the GPU or deselect this benchmark.") from None
        raise


class Measurements:
    """The benchmarks of one session.

    Args:
        device: where they run.
        plants: slow-downs to plant beside their results, by key: logarithms of ratios.
        placement: seed of what memory is held beside each benchmark; empty: none.

    """

    def __init__(self, device: torch.device, plants: Mapping[str, float] | None = None, placement: str = "") -> None:
        self.device = device
        self.plants = plants or {}
        self.placement = placement
        self.pending: list[_Pending] = []
        self.interval_constant_ns: float | None = None
        self.channel: Channel | None = None
        self._garbage = Garbage()

    @cached_property
    def ceilings(self) -> Ceilings:
        """The machine's ceilings, measured on first use; that is also the preheat."""
        with PHASES.phase("first products"):
            refuse_reduced_precision(self.device)
        preflight.examine()  # its child uses the GPU: let it end before anything is timed
        if self.device.type == "cuda":
            with PHASES.phase("choosing a stream"):
                self.channel = fastest_channel(self.device)
                torch.cuda.synchronize()
            torch.cuda.set_stream(self.channel.stream)  # for the session: building, checking and timing alike
        with PHASES.phase("ceilings"):
            return measure_ceilings(self.device)

    def to_json(self) -> dict[str, Any]:
        """Return what a run's file says of the machine as measured: ceilings, stream, the device clock's constant."""
        return {
            "ceilings": self.ceilings.to_json(),
            "channel": None if self.channel is None else self.channel.to_json(),
            "interval_constant_ns": self.interval_constant_ns,
        }

    def run(self, plan: Plan, benchmark: BenchmarkFixture) -> None:
        """Measure `plan` through pytest-benchmark's fixture and leave the record in its `extra_info`.

        With benchmarks disabled (xdist, ``--benchmark-disable``) the subject is checked and called once, untimed.

        Raises:
            AssertionError: the subject's output is wrong; no time is posted.
            MemoryError: it does not fit on the device.

        """
        __tracebackhide__ = True
        try:
            with _memory_released(plan.key):
                if benchmark.disabled:
                    _once(plan, benchmark)
                else:
                    self._measure(plan, benchmark)
        finally:
            self._settle()

    def _measure(self, plan: Plan, benchmark: BenchmarkFixture) -> None:
        __tracebackhide__ = True
        ceilings = self.ceilings
        with PHASES.phase("building"):
            beside = hold(self.placement, str(plan.key), self.device)
            subject, peak_bytes = self._peak(plan)
        clock = self._clock(plan)  # it waits for the device, which is still being heated while the first one is built
        with PHASES.phase("checking"):
            subject.check()
        with PHASES.phase("warming up"):
            clock.prepare(subject)
        before = gpu.snapshot()
        benchmark.group = f"{plan.key.op} {plan.key.dtype} {plan.key.shape}"
        benchmark._timer = clock
        with PHASES.phase("rounds"):
            benchmark.pedantic(clock.run, args=(subject,), rounds=plan.rounds, iterations=1)
        after = gpu.snapshot()
        own_ns = statistics.median(clock.rounds_ns)
        record: dict[str, Any] = {
            "key": str(plan.key),
            "method": _method_hash(plan, clock),
            "clock": clock.name,
            "metrics": {f"{clock.own_metric}_ns": round(own_ns, 1)},
            "rates": {name: round(rate, 4) for name, rate in ceilings.rates(plan.work, own_ns).items()},
            "gpu": _gpu_record(before, after, clock),
            "invalid": [*clock.invalid, *gpu.spoiled(before, after), *gpu.clock_moved(_sm_clocks_mhz(clock))],
        }
        if clock.discarded:
            record["discarded_rounds"] = clock.discarded
        if peak_bytes is not None:
            record["metrics"]["peak_bytes"] = peak_bytes
        if clock.host_ns:
            q1, median, q3 = statistics.quantiles(clock.host_ns, method="inclusive")
            record["metrics"]["host_time_ns"] = round(median, 1)
            record["host_time_quartiles_ns"] = [round(q1), round(q3)]
        if plan.work.moved_bytes is not None:
            record["moved_bytes"] = plan.work.moved_bytes
        if plan.work.flops is not None:
            record["flops"] = plan.work.flops
        if plan.about:
            record["about"] = dict(plan.about)
        if size_ln := self.plants.get(record["key"]):
            make_clock = partial(self._clock, plan)
            record["plant"] = measure_plant(size_ln, subject, make_clock, plan.rounds, own_ns, self.device)
        del beside  # until here it has kept the subject where it lies
        benchmark.extra_info["fuseproof"] = record
        if isinstance(clock, ProfilerClock):
            _add_counts(record, counts.count_rounds(clock.traces))
        else:
            self.pending.append(_Pending(benchmark.fullname, plan, record))

    def _clock(self, plan: Plan) -> Clock:
        if plan.clock == "iteration":
            return IterationClock(self.device)
        if self.device.type == "cpu":
            return WallClock()
        if plan.clock == "profiled":
            return ProfilerClock(plan.rounds)
        return DeviceClock(self.device)

    def _peak(self, plan: Plan) -> tuple[Subject, int | None]:
        """Build and call; return the subject and the peak of requested memory above what was there before.

        Requested, not allocated: the caching allocator hands out whole blocks, whose sizes depend on what ran before.
        """
        if self.device.type == "cpu":
            return plan.build(), None  # the profiler's pass reads it
        before = torch.cuda.memory_stats(self.device)["requested_bytes.all.current"]
        torch.cuda.reset_peak_memory_stats(self.device)
        subject = plan.build()
        for _ in range(_PEAK_CALLS):
            subject()
        torch.cuda.synchronize()
        return subject, torch.cuda.memory_stats(self.device)["requested_bytes.all.peak"] - before

    def _settle(self) -> None:
        with PHASES.phase("collecting garbage"):
            self._garbage.collect()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def profile_pending(self) -> Iterator[tuple[str, Exception | None]]:
        """Run the profiler passes of everything measured so far; yield each test's id and its error, if any.

        Profiling slows later host work: call it after the session's last timed round.
        """
        while self.pending:
            each = self.pending.pop(0)
            error: Exception | None = None
            try:
                with _memory_released(each.plan.key):
                    self._count(each.plan, each.record)
            except Exception as caught:  # noqa: BLE001  # whatever a subject raises is that test's failure, not ours
                error = caught.with_traceback(None)
            self._settle()
            yield each.nodeid, error
        if self.device.type == "cuda" and self.interval_constant_ns is None:
            self.interval_constant_ns = counts.interval_constant_ns(self.device)

    def _count(self, plan: Plan, record: dict[str, Any]) -> None:
        beside = hold(self.placement, record["key"], self.device)  # the device time of an iteration is read here
        if self.device.type == "cpu":
            seen = counts.trace_host(plan.build, _PEAK_CALLS)
            record["metrics"]["peak_bytes"] = seen.peak_bytes
            record["counts"] = {"dispatcher_ops": seen.dispatcher_ops}
            return
        clock = DeviceClock(self.device) if plan.clock == "kernel" else None
        subject = plan.build()
        for _ in range(_PEAK_CALLS - 1):
            subject()
        allocations = torch.cuda.memory_stats(self.device)["allocation.all.allocated"]
        subject()
        allocations = torch.cuda.memory_stats(self.device)["allocation.all.allocated"] - allocations
        if clock is not None:
            clock.prepare(subject)
        rounds = _PROFILED_ITERATIONS if clock is None else _PROFILED_ROUNDS
        seen_rounds = counts.count_rounds(trace_rounds(subject, rounds, clock))
        _add_counts(record, seen_rounds)
        record["counts"]["allocations"] = allocations
        if plan.clock == "iteration" and seen_rounds.union_ns is not None:
            record["metrics"]["device_time_ns"] = seen_rounds.union_ns
        del beside


def _gpu_record(before: gpu.GpuState | None, after: gpu.GpuState | None, clock: Clock) -> dict[str, Any] | None:
    """Return the GPU's state around the rounds, and the SM clock that the spins were measured at."""
    if before is None or after is None:
        return None
    record: dict[str, Any] = {
        "sm_clock_mhz": [before.sm_clock_mhz, after.sm_clock_mhz],
        "temperature_c": after.temperature_c,
        "power_w": after.power_w,
    }
    if throttled := sorted({*(before.throttle_reasons or ()), *(after.throttle_reasons or ())}):
        record["throttle_reasons"] = throttled
    if after.foreign_processes:  # process ids, or "not checked"
        record["foreign_processes"] = after.foreign_processes
    if clocks_mhz := _sm_clocks_mhz(clock):
        record["spin_sm_clock_mhz"] = round(statistics.median(clocks_mhz), 1)
    return record


def _sm_clocks_mhz(clock: Clock) -> list[float]:
    return clock.sm_clock_mhz if isinstance(clock, DeviceClock) else []


def _add_counts(record: dict[str, Any], seen: Counts) -> None:
    record["metrics"]["launches"] = seen.launches
    record["counts"] = {"dispatcher_ops": seen.dispatcher_ops, "synchronisations": seen.synchronisations}
    if not seen.stable:
        record["counts"]["unstable"] = True
    # Names are for reading, so the most frequent ones do; the hash of all full names is what can be judged.
    record["kernels"] = {name[:_SHOWN_NAME]: count for name, count in list(seen.kernels.items())[:_SHOWN_KERNELS]}
    record["kernels_hash"] = seen.kernels_hash
    record["profiler"] = {"span_ns": seen.span_ns, "union_ns": seen.union_ns}
    if seen.interval_ns is not None:
        record["profiler"]["interval_ns"] = round(seen.interval_ns, 1)


def _once(plan: Plan, benchmark: BenchmarkFixture) -> None:
    __tracebackhide__ = True
    subject = plan.build()
    subject.check()
    benchmark.pedantic(subject)


def _method_hash(plan: Plan, clock: Clock) -> str:
    method = {**clock.describe(), **plan.method, "rounds": plan.rounds}
    return hashlib.sha256(json.dumps(method, sort_keys=True).encode()).hexdigest()[:12]
