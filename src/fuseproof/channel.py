"""The CUDA stream that a session measures on.

Streams are backed by hardware channels, and channels are not alike: on an H200 the same twenty empty launches take
36 us on some of a process's streams and 39 us on others, and each stream keeps its number for the life of the process.
Which kind the default stream gets is decided anew in every process, so calls of many small kernels would vary by 2 to
3 % between processes. Measuring on the fastest of several streams takes that toss out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

__all__ = ["Channel", "fastest_channel", "launch_ns"]

_STREAMS = 16  # streams of one kind come in runs of about five, so sixteen hold both kinds
_LAUNCHES = 20
_ROUNDS = 8
_SPIN_CYCLES = 2_000_000  # about 1 ms, several times as long as the host takes to enqueue the launches


@dataclass(frozen=True)
class Channel:
    """The stream chosen, and how much the others differ.

    Attributes:
        stream: the one with the shortest launches.
        launch_ns: one of twenty launches in a row on it, ns.
        slowest_ns: the same on the slowest of the streams looked at.
        default_ns: the same on the default stream.

    """

    stream: torch.cuda.Stream
    launch_ns: float
    slowest_ns: float
    default_ns: float

    def to_json(self) -> dict[str, float]:
        """Return plain data for a run's file."""
        return {"launch_ns": self.launch_ns, "slowest_ns": self.slowest_ns, "default_ns": self.default_ns}


def launch_ns(stream: torch.cuda.Stream) -> float:
    """Return the device time of one of twenty launches of an almost empty kernel on `stream`, ns, median of rounds."""
    with torch.cuda.stream(stream):
        target = torch.zeros(1, device=stream.device)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        samples: list[float] = []
        for _ in range(_ROUNDS):
            torch.cuda._sleep(_SPIN_CYCLES)
            start.record()
            for _ in range(_LAUNCHES):
                target.add_(1)
            end.record()
            end.synchronize()
            samples.append(start.elapsed_time(end) * 1e6 / _LAUNCHES)
    return round(statistics.median(samples), 1)


def fastest_channel(device: torch.device) -> Channel:
    """Look at several streams of a CUDA device, each after the other; return the one with the shortest launches."""
    default = torch.cuda.default_stream(device)
    launch_ns(default)  # the kernel is loaded and the clocks are up afterwards
    default_ns = launch_ns(default)
    found = {stream: launch_ns(stream) for stream in (torch.cuda.Stream(device) for _ in range(_STREAMS))}
    best = min(found, key=found.__getitem__)
    return Channel(best, found[best], max(*found.values(), default_ns), default_ns)
