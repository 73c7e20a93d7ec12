"""Where the time of a session goes besides its tests: shown under pytest's own ``--durations``.

Standard library only: the first thing that it times is the import of torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PHASES", "Phases"]


@dataclass
class Phases:
    """Seconds of each phase without those of the phases inside it, in the order in which they began.

    Attributes:
        began_s: when the first one did, on the clock of ``time.monotonic``.
        seconds: by phase; what no phase claims is "rest".

    """

    began_s: float = field(default_factory=lambda: _process_began_s())
    seconds: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=lambda: ["start"])
    _since_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._since_s = self.began_s

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens inside to this phase, but for what happens in phases of its own."""
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def started(self) -> None:
        """End the first phase, the start of the interpreter and of pytest."""
        self._charge()
        self._open[0] = "rest"

    def line(self) -> str:
        """Return one line: all phases in seconds, and their sum, the age of this process."""
        self._charge()
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self.seconds.items() if seconds >= 0.005)
        return f"fuseproof: seconds of this process: {parts}; together {sum(self.seconds.values()):.2f}"

    def _charge(self) -> None:
        now_s = time.monotonic()
        name = self._open[-1]
        self.seconds[name] = self.seconds.get(name, 0.0) + now_s - self._since_s
        self._since_s = now_s


def _process_began_s() -> float:
    """Return when this process began, as ``time.monotonic`` counts; now, where /proc does not tell."""
    now_s = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text(errors="replace").rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), since the boot
        return now_s - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    except (OSError, ValueError, IndexError, AttributeError):
        return now_s


PHASES = Phases()
