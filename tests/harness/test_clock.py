"""What a clock counts as a round, what it throws away, and how it looks to pytest-benchmark."""

import gc
import json
from itertools import cycle
from types import SimpleNamespace

import pytest
import torch

from fuseproof import clock
from fuseproof.clock import DeviceClock, IterationClock, WallClock

pytest_plugins = ["pytester"]

CPU = torch.device("cpu")
GPU = torch.device("cuda")  # only named: no test here touches one


class _Machine:
    """A host and a GPU in virtual time: the host enqueues in no time, the device works in order, a spin takes cycles.

    It stands where `fuseproof.clock` has torch and time.

    Attributes:
        now_ns: the host's time.
        busy_ns: when the device will have done all that is queued.
        log: what was asked of it, in order.
        allocations: how often the allocator has asked the driver for memory.

    """

    cycles_per_ns = 1.9

    def __init__(self) -> None:
        self.now_ns = 1_000_000
        self.busy_ns = 0
        self.log: list[str] = []
        self.allocations = 0
        self.events = cycle(("before", "start", "end"))
        self.slow_down = 1.0

    def perf_counter_ns(self) -> int:
        return self.now_ns

    def enqueue(self, device_ns: float) -> None:
        self.busy_ns = max(self.now_ns, self.busy_ns) + round(device_ns)

    def work(self, host_ns: float, device_ns: float) -> None:
        """Do what a kernel launch does: it costs host time, then device time."""
        self.now_ns += round(host_ns)
        self.enqueue(device_ns)

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.now_ns = max(self.now_ns, self.busy_ns)

    def _sleep(self, cycles: int) -> None:
        assert isinstance(cycles, int)
        self.log.append(f"spin {cycles}")
        self.enqueue(cycles / self.cycles_per_ns * self.slow_down)

    def Event(self, enable_timing: bool) -> "_Event":  # torch's name
        assert enable_timing
        return _Event(self, next(self.events))

    def is_initialized(self) -> bool:
        return True

    def memory_stats(self) -> dict[str, int]:
        return {"num_device_alloc": self.allocations}

    def zeros(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(fill_=lambda _: self.log.append("flush write"))

    def sum(self, *_: object, **__: object) -> None:
        self.log.append("flush read")

    @property
    def cuda(self) -> "_Machine":
        return self

    float32 = torch.float32


class _Event:
    """A CUDA event of a `_Machine`: done when the device has done what was queued before it."""

    def __init__(self, machine: _Machine, name: str) -> None:
        self.machine, self.name, self.at_ns = machine, name, 0

    def record(self) -> None:
        self.machine.log.append(self.name)
        self.at_ns = max(self.machine.now_ns, self.machine.busy_ns)

    def query(self) -> bool:
        self.machine.log.append(f"query {self.name}")
        return self.machine.now_ns >= self.at_ns

    def synchronize(self) -> None:
        self.machine.log.append(f"synchronize {self.name}")
        self.machine.now_ns = max(self.machine.now_ns, self.at_ns)

    def elapsed_time(self, end: "_Event") -> float:
        return (end.at_ns - self.at_ns) * 1e-6


@pytest.fixture
def machine(monkeypatch):
    """A machine in virtual time, in the place of the real one."""
    machine = _Machine()
    monkeypatch.setattr(clock, "torch", machine)
    monkeypatch.setattr(clock, "time", machine)
    clock._flush_buffer.cache_clear()
    yield machine
    clock._flush_buffer.cache_clear()


@pytest.fixture
def device_clock(machine):
    """A device clock of that machine; its log starts after the clock was made."""
    made = DeviceClock(GPU)
    machine.log.clear()
    return made


@pytest.fixture
def allocating(monkeypatch):
    """Lets the allocator's counter go up by one in each of the given rounds (numbered from 0)."""

    def in_rounds(*numbers):
        reads = iter(range(1000))
        total = 0

        def count():
            nonlocal total
            read = next(reads)  # once before and once after each round
            total += read % 2 == 1 and read // 2 in numbers
            return total

        monkeypatch.setattr(clock, "device_allocations", count)

    return in_rounds


class _Host:
    """A call whose runs take the given host times, the last one for ever after; its device work is constant."""

    def __init__(self, machine: _Machine, *host_ns: float, device_ns: float = 20_000) -> None:
        self.machine, self.host_ns, self.device_ns = machine, list(host_ns), device_ns
        self.calls = 0

    def __call__(self) -> str:
        self.machine.log.append("call")
        self.machine.work(self.host_ns[min(self.calls, len(self.host_ns) - 1)], self.device_ns)
        self.calls += 1
        return f"result {self.calls}"


def spins(machine):
    """Return the spins that were queued, in cycles."""
    return [int(entry.split()[1]) for entry in machine.log if entry.startswith("spin")]


# --- as pytest-benchmark's timer ---


@pytest.mark.parametrize("made", [WallClock(), IterationClock(CPU)], ids=["wall", "iteration"])
def test_timer_has_a_name_and_subtracts_to_a_float(made):
    """Anything but a float kills pytest-benchmark's save, and a timer without a name is stored by its address."""
    before = made()
    made.run(lambda: None)
    duration = made() - before

    assert type(duration) is float
    assert duration > 0
    assert f"fuseproof.{made.name}" == made.__name__


def test_pytest_benchmark_stores_what_the_clock_measured(pytester, monkeypatch):
    """Tables and files of pytest-benchmark hold the clock's rounds, not the time around them."""
    pytester.makepyfile(
        """
        import json, pathlib, time
        import pytest, torch
        from fuseproof.clock import IterationClock, WallClock

        @pytest.mark.parametrize("clock", [WallClock(), IterationClock(torch.device("cpu"))], ids=["wall", "iteration"])
        def test_call(clock, benchmark, request):
            def call():
                clock.discarded += 0

            def round_():
                time.sleep(0.002)  # overhead of a round outside its measured part, such as a discarded one
                return clock.run(call)

            benchmark._timer = clock
            benchmark.pedantic(round_, rounds=5, iterations=1)
            pathlib.Path(f"{request.node.callspec.id}.json").write_text(json.dumps([clock.__name__, clock.rounds_ns]))
        """
    )
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark would not time in a worker
    result = pytester.runpytest_inprocess("--benchmark-json=out.json", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")

    result.assert_outcomes(passed=2)
    stored = json.loads((pytester.path / "out.json").read_text())["benchmarks"]
    assert len(stored) == 2
    for benchmark in stored:
        name, rounds_ns = json.loads((pytester.path / f"{benchmark['param']}.json").read_text())
        assert benchmark["options"]["timer"] == name
        assert benchmark["stats"]["data"] == pytest.approx([each * 1e-9 for each in rounds_ns], rel=1e-6)
        assert benchmark["stats"]["min"] < 0.001


def test_result_of_the_call_is_returned(machine, device_clock):
    """`run` returns what the call returned, so that its output can be looked at."""
    assert WallClock().run(lambda: "result") == "result"
    assert IterationClock(CPU).run(lambda: "result") == "result"
    assert device_clock.run(_Host(machine, 1000)) == "result 1"


def test_warm_up_is_not_measured(any_clock):
    """`prepare` calls at least once, and leaves the clock at zero."""
    calls = []
    any_clock.prepare(lambda: calls.append(None))

    assert len(calls) >= 1
    assert (any_clock(), any_clock.rounds_ns, any_clock.host_ns) == (0.0, [], [])


# --- garbage collection ---


@pytest.fixture(params=["wall", "iteration", "device"])
def any_clock(request, machine):
    """Each kind of clock, on the virtual machine."""
    return {
        "wall": WallClock,
        "iteration": lambda: IterationClock(GPU),
        "device": lambda: DeviceClock(GPU),
    }[request.param]()


def test_no_garbage_collection_inside_a_round(any_clock):
    """A collection takes longer than a kernel: it is off during the call and on again after it."""
    seen = []
    assert gc.isenabled()
    any_clock.run(lambda: seen.append(gc.isenabled()))

    assert seen == [False]
    assert gc.isenabled()


def test_garbage_collection_is_back_after_an_error(any_clock):
    """A call that raises leaves collection on, and no round behind."""

    def fail():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        any_clock.run(fail)

    assert gc.isenabled()
    assert any_clock.rounds_ns == []
    assert any_clock() == 0.0


def test_garbage_collection_that_was_off_stays_off(any_clock):
    """A user who has switched collection off does not get it back from a clock."""
    gc.disable()
    try:
        any_clock.run(lambda: None)

        assert not gc.isenabled()
    finally:
        gc.enable()


# --- rounds that are measured again ---


def test_round_that_allocates_is_measured_again(machine, allocating):
    """A cudaMalloc inside a round discards it: it leaves a count and no trace in time."""
    allocating(0, 1)
    made = IterationClock(GPU)
    result = made.run(_Host(machine, 9_000_000, 9_000_000, 1000))

    assert result == "result 3"
    assert made.rounds_ns == [21_000]  # 1 us on the host, then 20 us on the device
    assert made() == pytest.approx(21e-6)
    assert (made.discarded, made.invalid) == (2, [])


def test_four_rounds_that_allocate_are_invalid(machine, allocating):
    """After four attempts the last one stands, with a sentence that says why it must not be judged."""
    allocating(0, 1, 2, 3)
    made = IterationClock(GPU)
    call = _Host(machine, 1000)
    made.run(call)

    assert call.calls == 4
    assert len(made.rounds_ns) == 1
    assert made.discarded == 3
    assert made.invalid == ["every round asked the driver for memory (cudaMalloc)"]


def test_a_reason_is_given_once(machine, allocating):
    """A benchmark whose every round is bad says so in one sentence, and measures none of them again after the first."""
    allocating(*range(100))
    made = IterationClock(GPU)
    call = _Host(machine, 1000)
    for _ in range(5):
        made.run(call)

    assert len(made.invalid) == 1
    assert len(made.rounds_ns) == 5
    assert call.calls == 4 + 4


def test_device_round_that_allocates_keeps_its_spin(machine, device_clock, allocating):
    """An allocation says nothing about the spin: the round is measured again, as long as before."""
    allocating(0)
    device_clock.run(_Host(machine, 1000))

    assert device_clock.discarded == 1
    assert device_clock.rounds_ns == [20_000]
    assert len(set(spins(machine))) == 1


def test_device_rounds_that_allocate_are_invalid(machine, device_clock, allocating):
    """The sentence names the allocations, not the host, which did run ahead."""
    allocating(0, 1, 2, 3)
    device_clock.run(_Host(machine, 1000))

    assert device_clock.invalid == ["every round asked the driver for memory (cudaMalloc)"]


def test_no_allocations_without_cuda():
    """Counting allocations does not initialise CUDA, and is 0 without it."""
    assert clock.device_allocations() == 0


# --- iteration ---


def test_iteration_ends_with_the_device(machine):
    """An iteration's time reaches to the end of its device work; the time to enqueue it is told apart."""
    made = IterationClock(GPU)
    machine.enqueue(5_000_000)  # left over from before: not this iteration's
    made.run(_Host(machine, 1000, device_ns=70_000))

    assert made.rounds_ns == [71_000]
    assert made.host_ns == [1000]


def test_iteration_on_a_cpu_has_no_host_time():
    """Where nothing is enqueued, host time is the iteration's time and not told apart."""
    made = IterationClock(CPU)
    made.run(lambda: None)

    assert made.host_ns == []


# --- device ---


def test_interval_holds_device_work_only(machine, device_clock):
    """The host takes five times as long as the kernel, and the interval does not hold it."""
    call = _Host(machine, 100_000, device_ns=20_000)
    device_clock.prepare(call)
    device_clock.run(call)

    assert device_clock.rounds_ns == pytest.approx([20_000])
    assert device_clock.host_ns == [100_000]
    assert device_clock() == pytest.approx(20e-6)
    assert (device_clock.discarded, device_clock.invalid) == (0, [])


def test_order_of_a_round(machine, device_clock):
    """The flush is over before the spin starts, and nothing but the call stands between the two events."""
    device_clock.run(_Host(machine, 1000))

    assert [entry.split(" ")[0] if entry.startswith("spin") else entry for entry in machine.log] == [
        "flush write",
        "flush read",
        "before",
        "spin",
        "start",
        "call",
        "query start",
        "end",
        "synchronize end",
    ]


def test_markers_stand_right_around_the_interval(machine, device_clock):
    """A profile finds the call's kernels between two marks, which are outside the interval and after the hold."""
    attempt = device_clock.attempt(_Host(machine, 1000), lambda: machine.log.append("mark"))
    order = [entry for entry in machine.log if entry in ("before", "mark", "start", "call", "end", "synchronize end")]

    assert order == ["before", "mark", "start", "call", "end", "mark", "synchronize end"]
    assert (attempt.result, attempt.host_ns, attempt.ahead) == ("result 1", 1000, True)
    assert attempt.interval_ns == pytest.approx(20_000)


def test_an_attempt_alone_is_no_round(machine, device_clock):
    """Profiled rounds are seen, not counted: the clock does not advance, whether or not the host ran ahead."""
    behind = device_clock.attempt(_Host(machine, 10_000_000))

    assert not behind.ahead
    assert (device_clock(), device_clock.rounds_ns, device_clock.discarded, device_clock.invalid) == (0.0, [], 0, [])


def test_host_time_ends_before_the_pending_start_is_queried(machine, device_clock, monkeypatch):
    """Host time is the time to enqueue the call: neither the query nor the synchronisation is in it."""
    query = _Event.query

    def slow_query(event):
        machine.now_ns += 7000
        return query(event)

    monkeypatch.setattr(_Event, "query", slow_query)
    device_clock.run(_Host(machine, 1000))

    assert device_clock.host_ns == [1000]


def test_clock_rate_comes_from_a_timed_spin(machine):
    """Cycles per ns are a known number of cycles by the time that the events saw."""
    assert DeviceClock(GPU).cycles_per_ns == pytest.approx(machine.cycles_per_ns, rel=1e-5)


def test_clock_rate_holds_no_launch(machine, monkeypatch):
    """A launch takes the host 8 us: where the device waits for it, the spin seems longer, and its rate lower."""
    sleep = machine._sleep

    def launched(cycles):
        machine.now_ns += 8_000
        sleep(cycles)

    monkeypatch.setattr(machine, "_sleep", launched)
    assert DeviceClock(GPU).cycles_per_ns == pytest.approx(machine.cycles_per_ns, rel=1e-5)


def test_clock_rate_holds_no_start_of_a_kernel(machine, monkeypatch):
    """Between the events the device takes 7 us for more than the spin: with a long one alone the rate is 0.7 % low."""
    sleep = machine._sleep

    def started(cycles):
        machine.enqueue(7_000)
        sleep(cycles)

    monkeypatch.setattr(machine, "_sleep", started)
    assert DeviceClock(GPU).cycles_per_ns == pytest.approx(machine.cycles_per_ns, rel=1e-5)


def test_sm_clock_of_each_round_comes_from_its_spin(machine, device_clock):
    """The spin is a probe of the SM clock: 1.9 cycles a ns are 1900 MHz, and half of it under a slow-down."""
    call = _Host(machine, 1000)
    device_clock.run(call)
    machine.slow_down = 2.0
    device_clock.run(call)

    assert device_clock.sm_clock_mhz == pytest.approx([1900, 950], rel=1e-3)


def test_spin_is_longer_than_the_slowest_probe(machine, device_clock):
    """One slow call in five sets the spin: half as long again as the host took then, and 50 us on top."""
    device_clock.prepare(_Host(machine, 10_000, 10_000, 10_000, 10_000, 80_000, 10_000))
    machine.log.clear()
    device_clock.run(_Host(machine, 10_000))

    assert spins(machine) == [pytest.approx((1.5 * 80_000 + 50_000) * machine.cycles_per_ns, rel=1e-4)]


def test_warm_up_calls_do_not_set_the_spin(machine, device_clock):
    """The first three calls may compile or allocate for seconds; only the five after them are probes."""
    device_clock.prepare(_Host(machine, 150_000_000, 150_000_000, 150_000_000, 10_000))
    machine.log.clear()
    device_clock.run(_Host(machine, 10_000))

    assert spins(machine) == [pytest.approx(65_000 * machine.cycles_per_ns, rel=1e-4)]


def test_spin_is_at_most_200_ms(machine, device_clock):
    """A call of seconds does not make the device spin for seconds."""
    device_clock.prepare(_Host(machine, 3_000_000_000))
    machine.log.clear()
    device_clock.run(_Host(machine, 10_000))

    assert spins(machine) == [pytest.approx(200e6 * machine.cycles_per_ns, rel=1e-4)]


def test_host_that_fell_behind_discards_the_round(machine, device_clock):
    """The start event was reached before the call returned: that interval held host time. It goes, the spin doubles."""
    call = _Host(machine, *[10_000] * 8, 90_000, 10_000)
    device_clock.prepare(call)
    machine.log.clear()
    result = device_clock.run(call)

    assert result == "result 10"
    assert device_clock.rounds_ns == pytest.approx([20_000])
    assert device_clock() == pytest.approx(20e-6)
    assert device_clock.host_ns == [10_000]
    assert (device_clock.discarded, device_clock.invalid) == (1, [])
    first, second = spins(machine)
    assert second == pytest.approx(2 * first, rel=1e-4)
    assert len(device_clock.sm_clock_mhz) == 1


def test_spin_stays_doubled(machine, device_clock):
    """What one round has learnt about the host, the next one starts with."""
    call = _Host(machine, *[10_000] * 8, 90_000, 10_000)
    device_clock.prepare(call)
    machine.log.clear()
    device_clock.run(call)
    device_clock.run(call)

    _, second, third = spins(machine)
    assert second == third


def test_host_bound_after_three_doublings(machine, device_clock):
    """A host that never runs ahead makes the benchmark INVALID after four attempts, and says what the number is."""
    call = _Host(machine, 10_000_000)
    device_clock.run(call)

    assert call.calls == 4
    assert [each / spins(machine)[0] for each in spins(machine)] == pytest.approx([1, 2, 4, 8], rel=1e-4)
    assert device_clock.discarded == 3
    assert device_clock.invalid == [
        "host-bound: the host did not run ahead of the device, the interval holds host time"
    ]


def test_call_that_synchronises_is_host_bound(machine, device_clock):
    """A call that waits for the device inside waits for the spin too, however long that is."""

    def call():
        machine.work(1000, 1000)
        machine.synchronize()

    device_clock.prepare(call)
    device_clock.run(call)

    assert "host-bound" in device_clock.invalid[0]


def test_spin_of_an_invalid_clock_grows_no_further(machine, device_clock):
    """After three doublings the verdict is there: a longer spin would only cost a night 200 ms a round."""
    call = _Host(machine, 10_000_000)
    for _ in range(4):
        device_clock.run(call)

    assert max(spins(machine)) == pytest.approx(8 * spins(machine)[0], rel=1e-4)
    assert len(device_clock.rounds_ns) == 4


def test_clocks_share_the_flush_buffer(machine):
    """pytest-benchmark keeps every clock of a session alive: 256 MB for each would fill a GPU."""
    assert DeviceClock(GPU)._buffer is DeviceClock(GPU)._buffer


def test_description_tells_methods_apart(device_clock):
    """Clock, version and flush are part of what makes two numbers comparable."""
    assert device_clock.describe() == {"clock": "device/2", "flush_bytes": 2**28}
    assert WallClock().describe() == {"clock": "perf_counter/1"}
    assert IterationClock(CPU).describe() == {"clock": "iteration/2"}
