"""What the profiler passes make of a trace: kernels of one call, their times, exact counts and exact peaks."""

import gc
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._autograd import DeviceType

from fuseproof import counts, tracing
from fuseproof.candidates import KERNEL_SETS
from fuseproof.clock import Attempt
from fuseproof.counts import Counts, HostPass, ProfilerClock, count_rounds, short_kernel_name, trace_host
from fuseproof.ladder import STAGES
from fuseproof.tracing import RoundTrace, trace_rounds
from fuseproof.training import Training
from fuseproof.workload import SIZES

CPU = torch.device("cpu")
SPIN = "at::cuda::(anonymous namespace)::spin_kernel(long)"


# --- names ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>"
            "(int, float, float const*, float const*, float const*, float*, float*, float*)",
            "vectorized_layer_norm_kernel",
            id="torch-layer-norm",
        ),
        pytest.param(
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>, float, float, float,"
            " int, adamMode_t, float>(long, int volatile*, TensorListMetadata<4>, AdamFunctor<float, float, int>)",
            "multi_tensor_apply_kernel",
            id="apex-adam",
        ),
        pytest.param(
            "void (anonymous namespace)::cuApplyLayerNorm<float, float, float>(float*, float*, float const*, int)",
            "cuApplyLayerNorm",
            id="apex-layer-norm",
        ),
        pytest.param(
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)"
            "::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}, "
            "std::array<char*, 2ul>, 4, TrivialOffsetCalculator<1, unsigned int> >(int, std::array<char*, 2ul>)",
            "unrolled_elementwise_kernel",
            id="lambda-as-template-argument",
        ),
        pytest.param(
            "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, false, true, 7,"
            " false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<float const> > >(cublasGemvParamsEx<int>)",
            "kernel",
            id="cublas-gemv-with-a-templated-return-type",
        ),
        pytest.param(
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x",
            "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1_execute_segment_k_off_kernel__5x",
            id="gemm-of-a-library",
        ),
        pytest.param("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", id="sgemm"),
        pytest.param("triton_poi_fused_add_0", "triton_poi_fused_add_0", id="triton"),
        pytest.param("Memset (Device)", "Memset", id="fill"),
        pytest.param("Memcpy DtoD (Device -> Device)", "Memcpy DtoD", id="copy"),
        pytest.param(SPIN, "spin_kernel", id="spin"),
        pytest.param("<unnamed>", "<unnamed>", id="never-empty"),
    ],
)
def test_short_name(name, expected):
    """A table shows the function's name: no return type, namespaces, template arguments or parameters."""
    assert expected == short_kernel_name(name)


# --- intervals ---


def round_trace(*intervals, synchronisations=0, dispatcher_ops=0):
    """Return the trace of one call whose kernels, "k0" and on, ran in the given (start, end)."""
    kernels = tuple((f"k{number}", start, end) for number, (start, end) in enumerate(intervals))
    return RoundTrace(kernels, synchronisations, dispatcher_ops)


@pytest.mark.parametrize(
    ("intervals", "span_ns", "union_ns"),
    [
        pytest.param([], 0, 0, id="nothing"),
        pytest.param([(100, 130)], 30, 30, id="one"),
        pytest.param([(100, 130), (150, 160)], 60, 40, id="a-gap-is-in-the-span-only"),
        pytest.param([(100, 130), (120, 160)], 60, 60, id="overlap-counts-once"),
        pytest.param([(100, 200), (120, 130)], 100, 100, id="nested-counts-once"),
        pytest.param([(100, 200), (120, 130), (190, 210)], 110, 110, id="overlap-with-the-longest-so-far"),
        pytest.param([(100, 130), (130, 150)], 50, 50, id="touching"),
        pytest.param([(100, 130), (100, 130)], 30, 30, id="at-once"),
    ],
)
def test_span_and_union(intervals, span_ns, union_ns):
    """The span is first start to last end; the union is the time in which anything ran."""
    trace = round_trace(*intervals)

    assert (span_ns, union_ns) == (trace.span_ns, trace.union_ns)


@settings(derandomize=True, database=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=12))
def test_union_is_the_number_of_busy_nanoseconds(pieces):
    """Counting the covered nanoseconds one by one gives the same."""
    intervals = sorted((start, start + length) for start, length in pieces)
    busy = {nanosecond for start, end in intervals for nanosecond in range(start, end)}
    trace = round_trace(*intervals)

    assert len(busy) == trace.union_ns
    assert trace.union_ns <= trace.span_ns


# --- counts of several rounds ---


def named(*names):
    """Return the trace of one call that ran kernels of these names, one after another."""
    return RoundTrace(tuple((name, 10 * i, 10 * i + 5) for i, name in enumerate(names)), 1, 7)


def test_counts_of_equal_rounds():
    """Launches are kernels, copies and fills; short names collect their launches, the most frequent first."""
    trace = named("Memset (Device)", "void f<int>(int)", "void f<float>(float)", "g()")
    seen = count_rounds([trace, trace])

    assert seen == Counts(
        launches=4,
        kernels={"f": 2, "Memset": 1, "g": 1},
        kernels_hash=seen.kernels_hash,
        synchronisations=1,
        dispatcher_ops=7,
        span_ns=35,
        union_ns=20,
        interval_ns=None,
        stable=True,
    )
    assert next(iter(seen.kernels)) == "f"


def test_times_are_medians_over_the_rounds():
    """One slow round of three does not move span or union."""
    seen = count_rounds(
        [round_trace((0, 10), (20, 30)), round_trace((0, 900), (910, 990)), round_trace((0, 11), (21, 31))]
    )

    assert (seen.span_ns, seen.union_ns) == (31, 21)


def test_intervals_are_those_of_the_rounds_that_have_one():
    """Rounds in which the host fell behind have no interval; the others' median stands beside span and union."""
    traces = [RoundTrace((("f", 0, 5),), 0, 0, interval_ns) for interval_ns in (7.0, None, 8.0, 20.0)]

    assert count_rounds(traces).interval_ns == 8.0
    assert count_rounds(traces[1:2]).interval_ns is None


def test_a_call_without_device_work_has_no_times():
    """Nothing ran: zero launches, and no time rather than a time of zero."""
    seen = count_rounds([round_trace(), round_trace()])

    assert (seen.launches, seen.kernels, seen.span_ns, seen.union_ns) == (0, {}, None, None)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(["f()", "f()", "g()"], id="another-count"),
        pytest.param(["f()", "h()"], id="another-kernel"),
        pytest.param(["f()"], id="one-less"),
    ],
)
def test_rounds_that_disagree_are_unstable(other):
    """A round that launched something else is seen, and the last round speaks."""
    assert not count_rounds([named(*other), named("f()", "g()")]).stable
    assert count_rounds([named(*other), named("f()", "g()")]).launches == 2


def test_order_of_launches_is_no_instability():
    """Two streams may finish in either order: the same kernels are the same program."""
    first, second = count_rounds([named("f()", "g()")]), count_rounds([named("f()", "g()"), named("g()", "f()")])

    assert second.stable
    assert first.kernels_hash == second.kernels_hash


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(["f<int>()", "g()", "g()"], id="another-count"),
        pytest.param(["f<float>()", "g()"], id="another-template-argument"),
        pytest.param(["f<int>()"], id="one-less"),
    ],
)
def test_hash_tells_programs_apart(other):
    """Full names and counts are hashed: another template argument is another kernel, under the same short name."""
    assert count_rounds([named("f<int>()", "g()")]).kernels_hash != count_rounds([named(*other)]).kernels_hash


# --- taking a trace apart ---


@dataclass
class _Event:
    """As much of kineto's event as is read."""

    label: str
    start: int
    length: int = 1
    device: DeviceType = DeviceType.CPU
    size: int = 0

    def name(self):
        return self.label

    def start_ns(self):
        return self.start

    def duration_ns(self):
        return self.length

    def device_type(self):
        return self.device

    def nbytes(self):
        return self.size


def host(name, start, length=1):
    """Return a host event."""
    return _Event(name, start, length)


def kernel(name, start, length=1):
    """Return a device event."""
    return _Event(name, start, length, DeviceType.CUDA)


def test_annotations_are_no_kernels():
    """A record_function and an optimizer's step show on the device too, under the name they have on the host."""
    trace = tracing.take_apart(
        [
            host("fuseproof.call", 0, 100),
            host("Optimizer.step#Adam.step", 5, 50),
            kernel("fuseproof.call", 200, 100),
            kernel("Optimizer.step#Adam.step", 205, 50),
            kernel("adam()", 210, 40),
        ]
    )

    assert trace.device == [(210, 250, "adam()")]


def test_both_sides_are_ordered_by_start():
    """Kineto's order is not the order of time."""
    trace = tracing.take_apart([kernel("b", 20), kernel("a", 10), host("aten::b", 2), host("aten::a", 1)])

    assert [name for _, _, name in trace.device] == ["a", "b"]
    assert [name for _, _, name in trace.host] == ["aten::a", "aten::b"]


def test_operators_are_counted_call_by_call():
    """What the host begins between a call's start and its end is the call's; the rest is nobody's."""
    trace = tracing.take_apart(
        [
            host("aten::before", 0),
            host("fuseproof.call", 10, 10),
            host("aten::add", 10),
            host("aten::mul", 15),
            host("cudaStreamSynchronize", 19),
            host("aten::between", 20),
            host("fuseproof.call", 30, 10),
            host("aten::add", 31),
            host("aten::after", 40),
        ]
    )

    assert trace.calls == [(10, 20), (30, 40)]
    assert trace.operators(trace.calls) == [(2, 1), (1, 0)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("aten::add", (1, 0), id="aten"),
        pytest.param("apex::fused", (1, 0), id="an-extension's"),
        pytest.param("autograd::engine::evaluate_function: AddBackward0", (0, 0), id="autograd-engine"),
        pytest.param("AddBackward0", (0, 0), id="backward-node"),
        pytest.param("Optimizer.step#Adam.step", (0, 0), id="annotation"),
        pytest.param("cudaLaunchKernel", (0, 0), id="launch"),
        pytest.param("cudaDeviceSynchronize", (0, 1), id="device-synchronisation"),
        pytest.param("cudaStreamSynchronize", (0, 1), id="stream-synchronisation"),
        pytest.param("cudaEventSynchronize", (0, 1), id="event-synchronisation"),
        pytest.param("[memory]", (0, 0), id="memory"),
    ],
)
def test_what_counts_as_operator_and_as_synchronisation(name, expected):
    """Operators went through the dispatcher; synchronisations made the host wait."""
    trace = tracing.take_apart([host("fuseproof.call", 0, 10), host(name, 5)])

    assert [expected] == trace.operators(trace.calls)


@pytest.fixture
def profiled(monkeypatch):
    """Lets the profiler return the given events; what is to be profiled runs, but for torch.cuda and the heating."""

    def profile(*events):
        def run(activities, body):
            body()
            return list(events)

        monkeypatch.setattr(tracing, "profiled", run)
        monkeypatch.setattr(tracing, "_REHEAT_S", 0.0)
        for name in ("synchronize", "_sleep"):
            monkeypatch.setattr(torch.cuda, name, lambda *_: None)

    return profile


class Holding:
    """A device clock that falls behind in every second round; the others read 40 ns, 140 ns and so on."""

    def __init__(self):
        self.attempts = 0

    def attempt(self, call, marker=None):
        """Run the call, between two markers if there are any."""
        if marker is not None:
            marker()
        call()
        if marker is not None:
            marker()
        self.attempts += 1
        return Attempt(None, 100 * self.attempts - 60, 10, self.attempts % 2 == 1, 1900)

    def lengthen_spin(self):
        """It falls behind on purpose."""


def nothing():
    """Be called."""


def heating_events(start, *kernels):
    """Return the events of one call that heats the device: held as a round is, and not marked."""
    device = [kernel(name, start + 20 + 10 * i, 5) for i, name in enumerate(kernels)]
    return [host("fuseproof.call", start, 8), kernel("flush()", start + 2, 2), kernel(SPIN, start + 5, 2), *device]


def round_events(start, *kernels, held=False):
    """Return the events of one profiled round: a call on the host, and its kernels between two marks."""
    hold = [kernel("flush()", start + 2, 2), kernel(SPIN, start + 5, 2)] if held else []
    device = [kernel(name, start + 20 + 10 * i, 5) for i, name in enumerate(kernels)]
    return [
        host("fuseproof.call", start, 8),
        host("aten::add", start + 1),
        *hold,
        kernel(SPIN, start + 10, 2),
        *device,
        kernel(SPIN, start + 90, 2),
    ]


def test_kernels_between_the_markers_are_the_call_s(profiled):
    """What runs between the rounds is nobody's, and rounds do not share kernels."""
    profiled(*round_events(0, "f()", "g()"), kernel("other()", 95), *round_events(100, "h()"))
    first, second = trace_rounds(nothing, 2, None)

    assert first.kernels == (("f()", 20, 25), ("g()", 30, 35))
    assert second.kernels == (("h()", 120, 125),)
    assert (first.dispatcher_ops, second.dispatcher_ops) == (1, 1)
    assert first.interval_ns is second.interval_ns is None


def test_flush_and_hold_are_not_the_call_s(profiled):
    """Held by a device clock, a round has three spins: the clock's own, which holds the stream, and the two markers."""
    profiled(*round_events(0, "f()", held=True), *round_events(100, "g()", "h()", held=True))
    first, second = trace_rounds(nothing, 2, Holding())

    assert first.kernels == (("f()", 20, 25),)
    assert [name for name, _, _ in second.kernels] == ["g()", "h()"]


def test_a_profiled_round_keeps_what_the_clock_read_in_it(profiled):
    """Interval and span of one round can be compared; a round in which the host fell behind has no interval."""
    profiled(*round_events(0, "f()", held=True), *round_events(100, "f()", held=True))

    assert [trace.interval_ns for trace in trace_rounds(nothing, 2, Holding())] == [40, None]


@pytest.fixture
def heat(monkeypatch):
    """Lets the device be heated by two calls before the profiled rounds."""

    def heat():
        monkeypatch.setattr(tracing, "_REHEAT_S", 0.5)
        times = iter((0.0, 0.1, 0.2, 0.7))
        monkeypatch.setattr(tracing.time, "perf_counter", lambda: next(times))

    return heat


def test_spins_of_the_reheating_are_not_markers(profiled, heat):
    """The device is heated before the rounds with the same spin: the last ones are the rounds'."""
    profiled(*heating_events(-200, "heat()"), *heating_events(-100, "heat()"), *round_events(0, "f()", held=True))
    heat()

    assert trace_rounds(nothing, 1, Holding())[0].kernels == (("f()", 20, 25),)


@pytest.mark.parametrize("held", [False, True], ids=["idle", "held"])
def test_a_call_may_spin_itself(profiled, heat, held):
    """A planted slow-down, or a kernel that waits: its spins are its own work, and the markers are still found."""
    kernels = ["f()", SPIN, "g()", SPIN]
    heating = [*heating_events(-200, *kernels), *heating_events(-100, *kernels)] if held else []
    profiled(*heating, *round_events(0, *kernels, held=held), *round_events(100, *kernels, held=held))
    if held:
        heat()
    for trace in trace_rounds(nothing, 2, Holding() if held else None):
        assert [name for name, _, _ in trace.kernels] == kernels


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        pytest.param(SPIN, "the profiler returned 3 of 4 markers and 2 of 2 calls", id="marker"),
        pytest.param("fuseproof.call", "the profiler returned 4 of 4 markers and 1 of 2 calls", id="call"),
    ],
)
def test_lost_markers_are_an_error(profiled, lost, sentence):
    """An overflowing buffer drops events: better no counts than those of another call."""
    events = [*round_events(0, "f()"), *round_events(100, "f()")]
    events.remove(next(event for event in events if event.label == lost))
    profiled(*events)

    with pytest.raises(RuntimeError, match=sentence):
        trace_rounds(nothing, 2, None)


def test_profiler_clock_replays_the_union_of_each_round(monkeypatch):
    """All rounds run under one profiler in `prepare`; each `run` advances the clock by one of them."""
    traces = [round_trace((0, 10), (20, 30)), round_trace((0, 40))]
    monkeypatch.setattr(counts, "trace_rounds", lambda _, rounds, clock: traces[:rounds] if clock is None else [])
    calls = []
    clock = ProfilerClock(2)
    clock.prepare(lambda: calls.append(None))
    before = clock()
    clock.run(None)
    clock.run(None)

    assert len(calls) == 2
    assert clock.rounds_ns == [20, 40]
    assert clock() - before == pytest.approx(60e-9)
    assert clock.traces is not traces
    assert clock.traces == traces


def test_interval_constant_is_the_interval_minus_the_span(monkeypatch):
    """The constant is what the clock reads for one kernel beyond the profiler's span of it in the same round."""

    class Clock:
        def __init__(self, device):
            pass

        def prepare(self, call):
            call()

    readings = [5300.0, 9000.0, None, 5400.0]
    traces = [RoundTrace((("add", 100, 3100),), 0, 0, reading) for reading in readings]
    monkeypatch.setattr(counts, "DeviceClock", Clock)
    monkeypatch.setattr(counts, "trace_rounds", lambda *_: traces)

    assert counts.interval_constant_ns(CPU) == 2400.0


# --- the pass on a CPU ---


def thousand():
    """Return 4,000 bytes."""
    return torch.empty(1000)


def test_peak_is_the_sum_of_what_lives_at_once():
    """x of 4,000 bytes lives; y and z come and go inside the call: 12,000 at once, whatever the call returns."""

    def build():
        x = thousand()

        def call():
            y = x + x
            z = y + y
            del y, z
            return thousand() + x

        return call

    assert trace_host(build, 3).peak_bytes == 12_000


def test_peak_counts_the_build():
    """What the build needs for a moment is part of the peak, though no call needs it."""

    def build():
        thousands = [thousand() for _ in range(5)]
        thousands.clear()
        return thousand

    assert trace_host(build, 3).peak_bytes == 20_000


def test_peak_of_a_state_made_by_the_first_call():
    """An optimizer's state comes with the first call and stays: it is there beside the later calls' temporaries."""

    def build():
        state = []

        def call():
            if not state:
                state.append(thousand())
            return thousand() + thousand()

        return call

    assert trace_host(build, 3).peak_bytes == 16_000


def test_what_lived_before_is_not_counted():
    """The peak starts from before the build."""
    before = torch.empty(10**6)

    assert trace_host(lambda: lambda: torch.empty_like(before[:1000]), 1).peak_bytes == 4000


def test_operators_of_the_last_call():
    """The first call may make state; the operators counted are those of the last one."""

    def build():
        x = thousand()
        calls = iter(range(3))

        def call():
            for _ in range(7 if next(calls) == 0 else 2):
                x.add_(x)

        return call

    assert HostPass(dispatcher_ops=2, peak_bytes=4000) == trace_host(build, 3)


def tiny_training():
    """Build a training iteration of the smallest size."""
    return Training(STAGES["1_adam_fp32"], KERNEL_SETS["torch"], SIZES["tiny"], CPU)


def test_counts_of_a_training_iteration_are_exact():
    """Alone in a fresh process, after other work, and once more: the same operators and the same bytes."""
    code = """if True:
        import torch
        from fuseproof.candidates import KERNEL_SETS
        from fuseproof.counts import trace_host
        from fuseproof.ladder import STAGES
        from fuseproof.training import Training
        from fuseproof.workload import SIZES
        kernels, size, cpu = KERNEL_SETS["torch"], SIZES["tiny"], torch.device("cpu")
        print(trace_host(lambda: Training(STAGES["1_adam_fp32"], kernels, size, cpu), 3))
    """
    environ = {**os.environ, "KINETO_LOG_LEVEL": "99", "PYTHONPATH": os.pathsep.join(sys.path)}
    alone = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    kept = torch.randn(300, 300) @ torch.randn(300, 300)
    gc.collect()
    here = [trace_host(tiny_training, 3) for _ in range(2)]

    assert alone.stdout.splitlines()[-1] == str(here[0]) == str(here[1])
    assert kept.shape == (300, 300)
    parameter_bytes = 4 * sum(parameter.numel() for parameter in tiny_training().model.parameters())
    assert here[0].peak_bytes > 4 * parameter_bytes  # parameters, gradients and two moments live at once
