"""A process that measures ends with the one that waits for it, by SIGKILL too: else two would measure on one GPU."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

from fuseproof import gpu

__all__ = ["end_with_parent", "told"]

_PARENT: Final = "FUSEPROOF_PARENT_PID"
_PR_SET_PDEATHSIG: Final = 1  # of linux/prctl.h


def told() -> dict[str, str]:
    """Return the variable by which a child knows whom it ends with: this process, whose calling thread waits for it."""
    return {_PARENT: f"{os.getpid()} {_namespace()}"}


def end_with_parent(environ: MutableMapping[str, str]) -> None:
    """Have the kernel send SIGTERM to this process when its parent dies, however; where nobody has told it: nothing.

    The variable is taken out: descendants have other parents. Only Linux has a signal for this. Where an interpreter is
    a script that starts another one and waits, that is the parent. In a container with process ids of its own the
    parent's says nothing, and neither does a variable that `told` has not written.
    """
    parent, _, namespace = environ.pop(_PARENT, "").partition(" ")
    if not parent.isdecimal() or namespace != _namespace() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if int(parent) not in (os.getppid(), *gpu.lineage(os.getppid())):  # it has died before that
        os.kill(os.getpid(), signal.SIGTERM)


def _namespace() -> str:
    """Return which process ids this process sees; empty where the system does not say."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""
