"""A slow-down planted on purpose: the control that shows whether the gate would have seen one.

Both arms carry a spin, one a longer one: they differ by nothing but time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.clock import Clock, DeviceClock
from fuseproof.subjects import Subject

__all__ = ["Spun", "measure_plant"]


@dataclass(frozen=True)
class Spun:
    """A subject whose call is followed by a spin.

    Attributes:
        subject: what is called first.
        spin_ns: how long the device (a CPU: this thread) is kept busy after it.
        cycles_per_ns: the rate at which the GPU's spin counts; None on a CPU.

    """

    subject: Subject
    spin_ns: float
    cycles_per_ns: float | None = None

    def __call__(self) -> Any:
        """Call the subject and spin."""
        result = self.subject()
        if self.cycles_per_ns is not None:
            torch.cuda._sleep(round(self.spin_ns * self.cycles_per_ns))
        else:
            end_ns = time.perf_counter_ns() + self.spin_ns
            while time.perf_counter_ns() < end_ns:
                pass
        return result


def measure_plant(
    size_ln: float, subject: Subject, clock: Callable[[], Clock], rounds: int, own_ns: float, device: torch.device
) -> dict[str, float]:
    """Measure `subject` with a short and with a long spin; return both medians, ``base_ns`` and ``planted_ns``.

    The short spin is as long as the slow-down would be on the subject alone; the long one makes the whole slower by it.

    Args:
        size_ln: how much slower the second arm must be than the first: the logarithm of a ratio.
        subject: what it is planted on.
        clock: makes a clock of the kind that the benchmark was timed with.
        rounds: how many of each arm.
        own_ns: the subject's own time.
        device: where it runs.

    """
    cycles_per_ns = DeviceClock(device).cycles_per_ns if device.type == "cuda" else None

    def median_ns(spin_ns: float) -> float:
        arm, spun = clock(), Spun(subject, spin_ns, cycles_per_ns)
        arm.prepare(spun)
        for _ in range(rounds):
            arm.run(spun)
        return statistics.median(arm.rounds_ns)

    spin_ns = own_ns * math.expm1(size_ln)
    base_ns = median_ns(spin_ns)
    planted_ns = median_ns(spin_ns + base_ns * math.expm1(size_ln))
    return {"size_ln": size_ln, "base_ns": round(base_ns, 1), "planted_ns": round(planted_ns, 1)}
