"""Where pairs run: one GPU each, side by side, with an equal share of the cores; one after the other without a GPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuseproof import gpu
from fuseproof.tables import ConfigError

__all__ = ["Lane", "lanes", "shares_of_the_cores"]

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Lane:
    """Where one pair at a time runs.

    Attributes:
        number: from 0.
        variables: what makes a child see its GPU and no other.
        cores: that its children may use; empty for all.

    """

    number: int
    variables: Mapping[str, str] = field(default_factory=dict)
    cores: frozenset[int] = frozenset()

    def pin(self) -> None:
        """Keep the calling thread, and the children that it starts, on this lane's cores."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)  # of a thread, where Linux calls it


def lanes(asked: str, visible: str | None) -> list[Lane]:
    """Return the lanes that a command line asks for.

    Args:
        asked: "all", or how many GPUs.
        visible: CUDA_VISIBLE_DEVICES as it is set here.

    Raises:
        ConfigError: no such number of GPUs is here.

    """
    devices = gpu.visible_devices(visible)
    if asked != "all" and (not asked.isascii() or not asked.isdecimal() or not 0 < int(asked) < 1000):
        raise ConfigError(f"--gpus {asked}: give a number of at least 1, or all")
    count = len(devices) if asked == "all" else int(asked)
    if asked != "all" and count > max(1, len(devices)):
        raise ConfigError(f"--gpus {asked}: {len(devices)} are visible here; give fewer, or all")
    if not devices:
        return [Lane(0)]
    if count == 1:
        return [Lane(0, {VISIBLE: devices[0]})]
    return [Lane(number, {VISIBLE: devices[number]}, cores) for number, cores in enumerate(shares_of_the_cores(count))]


def shares_of_the_cores(count: int) -> list[frozenset[int]]:
    """Return this process's cores in `count` equal shares: empty ones where they cannot be told or are too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    share = len(cores) // count
    return [frozenset(cores[number * share : (number + 1) * share]) for number in range(count)]
