"""A slow-down planted on purpose: the control that shows whether the gate would have seen one.

Both arms carry a spin, one a longer one: they differ by nothing but time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.clock import Clock, DeviceClock
from fuseproof.subjects import Subject

__all__ = ["Spun", "measure_plant"]

_FIRST_ROUNDS = 15  # to know the planted spin: off by 1 % it is off by 1 % of the slow-down


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
    Rounds of both take turns: a GPU that works harder than before clocks down meanwhile (FP32 products on an H200: by
    0.4 % within sixty rounds), and one arm after the other would show that as a slow-down, or hide one.

    Args:
        size_ln: how much slower the second arm must be than the first: the logarithm of a ratio.
        subject: what it is planted on.
        clock: makes a clock of the kind that the benchmark was timed with.
        rounds: how many of each arm.
        own_ns: the subject's own time.
        device: where it runs.

    """

    def medians_ns(spins_ns: Sequence[float], count: int) -> list[float]:
        cycles_per_ns = DeviceClock(device).cycles_per_ns if device.type == "cuda" else None
        arms = [(clock(), Spun(subject, spin_ns, cycles_per_ns)) for spin_ns in spins_ns]
        for arm, spun in arms:
            arm.prepare(spun)
        for _ in range(count):
            for arm, spun in arms:
                arm.run(spun)
        return [statistics.median(arm.rounds_ns) for arm, _ in arms]

    spin_ns = own_ns * math.expm1(size_ln)
    # How long the whole is with the short spin, and the GPU as warm as it will be.
    (whole_ns,) = medians_ns([spin_ns], min(rounds, _FIRST_ROUNDS))
    base_ns, planted_ns = medians_ns([spin_ns, spin_ns + whole_ns * math.expm1(size_ln)], rounds)
    return {"size_ln": size_ln, "base_ns": round(base_ns, 1), "planted_ns": round(planted_ns, 1)}
