"""Which stream a session measures on; streams and events are fakes, so that it can be told without a GPU."""

from contextlib import contextmanager

import pytest
import torch

from fuseproof import channel
from fuseproof.channel import fastest_channel

LAUNCHES = 20


class FakeCuda:
    """Streams with a launch time of their own, and events that read a clock which launches and spins advance."""

    def __init__(self, default_ns, others_ns):
        self.default = FakeStream(default_ns)
        self.waiting = [FakeStream(each) for each in others_ns]
        self.current = self.default
        self.now_ns = 0.0

    def launch(self):
        """Advance the clock by one launch on the current stream."""
        self.now_ns += self.current.launch_ns


class FakeStream:
    """A stream whose launches take a given time each, ns."""

    def __init__(self, launch_ns):
        self.launch_ns = launch_ns
        self.device = torch.device("cpu")


@pytest.fixture
def fake_cuda(monkeypatch):
    """Install a fake with the given launch times."""

    def install(default_ns, others_ns):
        cuda = FakeCuda(default_ns, others_ns)

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at_ns = cuda.now_ns

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return (end.at_ns - self.at_ns) * 1e-6

        class Target:
            def add_(self, _):
                cuda.launch()

        @contextmanager
        def on(stream):
            before, cuda.current = cuda.current, stream
            yield
            cuda.current = before

        def spin(cycles):
            cuda.now_ns += cycles

        monkeypatch.setattr(torch.cuda, "default_stream", lambda _: cuda.default)
        monkeypatch.setattr(torch.cuda, "Stream", lambda _: cuda.waiting.pop(0))
        monkeypatch.setattr(torch.cuda, "stream", on)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "_sleep", spin)
        monkeypatch.setattr(channel.torch, "zeros", lambda *_, **__: Target())
        return cuda

    return install


def test_the_stream_with_the_shortest_launches_is_chosen(fake_cuda):
    """Of both kinds of streams, wherever they stand, the fastest; its time and the others' are kept."""
    times = [1950.0] * 5 + [1820.0, 1800.0, 1810.0] + [1940.0] * 8
    cuda = fake_cuda(1930.0, times)
    streams = list(cuda.waiting)
    chosen = fastest_channel(torch.device("cpu"))

    assert streams.index(chosen.stream) == 6
    assert chosen.to_json() == {"launch_ns": 1800.0, "slowest_ns": 1950.0, "default_ns": 1930.0}


def test_a_slow_default_stream_counts_among_the_slowest(fake_cuda):
    """The spread that a run's file shows includes the stream that users run on."""
    chosen = fastest_channel_of(fake_cuda, 2100.0, [1800.0] * 16)

    assert chosen.slowest_ns == 2100.0


def fastest_channel_of(fake_cuda, default_ns, others_ns):
    """Choose among fakes."""
    fake_cuda(default_ns, others_ns)
    return fastest_channel(torch.device("cpu"))


def test_spins_are_not_in_the_interval(fake_cuda):
    """The stream is held busy before the start event, so the interval holds the launches alone."""
    assert fastest_channel_of(fake_cuda, 1800.0, [1800.0] * 16).launch_ns == 1800.0
