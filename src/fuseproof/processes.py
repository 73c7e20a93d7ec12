"""Processes that take a while: started, watched, ended with their own children, and told in words."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fuseproof import orphan

__all__ = ["ChildError", "Progress", "Terminated", "ending", "last_words", "run_process", "side_by_side", "terminable"]

T = TypeVar("T")

_STOP_EVERY_S = 0.5  # a look every half second costs the measuring process nothing
_LONGEST_WORDS = 2000  # a refusal may list all candidates, with brought ones; a stranger's last line may be a tensor
_GRACE_S = 5.0  # pytest ends within a second of SIGTERM; a call into a driver may take longer


class ChildError(Exception):
    """A child has measured nothing; the message is one sentence: how it ended and its last words."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which is how a CI system cancels: it ends what runs as Ctrl-C does."""


@contextmanager
def terminable() -> Iterator[None]:
    """Raise `Terminated` at a SIGTERM that would end this process at once and leave its children to the GPU."""
    main = threading.current_thread() is threading.main_thread()  # no other one may set a handler
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def terminate(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@terminable()
def run_process(
    command: Sequence[str],
    folder: Path,
    environ: Mapping[str, str],
    limit_s: float,
    *,
    stderr: int = subprocess.STDOUT,
    stop: threading.Event | None = None,
) -> tuple[int | None, str]:
    """Run a command to its end; return its status and what it printed. Ctrl-C or SIGTERM here ends it too.

    A pytest that is configured for fuseproof also ends where this process is killed, or its calling thread ends.

    Args:
        command: what to run.
        folder: its working directory.
        environ: variables set for it besides this process's own.
        limit_s: when it is killed; its status is None then.
        stderr: where its errors go, as for `subprocess`; into the output if not given.
        stop: when this is set, which Ctrl-C does where processes run side by side in threads, it is ended.

    Raises:
        ChildError: it cannot be started, or was ended by `stop`.

    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **environ, **orphan.told()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its own children end with it
        )
    except OSError as error:
        raise ChildError(f"cannot start {command[0]}: {error.strerror or error}") from None
    try:
        output = _output(process, limit_s, stop)
    except subprocess.TimeoutExpired:
        output, _ = _end(process)
        return None, output
    except BaseException:
        _end(process)
        raise
    return process.returncode, output


def _output(process: subprocess.Popen[str], limit_s: float, stop: threading.Event | None) -> str:
    """Wait for a process and return what it printed."""
    end_s = time.monotonic() + limit_s
    while True:
        left_s = end_s - time.monotonic()
        try:
            return process.communicate(timeout=left_s if stop is None else min(left_s, _STOP_EVERY_S))[0]
        except subprocess.TimeoutExpired:
            if stop is not None and stop.is_set():
                raise ChildError("it was ended") from None
            if time.monotonic() >= end_s:
                raise


def _end(process: subprocess.Popen[str]) -> tuple[str, str | None]:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            return process.communicate(timeout=_GRACE_S)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return process.communicate()


@terminable()
def side_by_side(works: Sequence[Callable[[threading.Event], T]]) -> list[T]:
    """Do several things at once, each in a thread of its own; return what each returns, in their order.

    The first one that fails, Ctrl-C and SIGTERM end the others too, by the event that each of them is called with and
    hands to `run_process`; what the first one raised is raised.
    """
    stop = threading.Event()
    with ThreadPoolExecutor(len(works)) as pool:  # whose end waits for its threads
        try:
            futures = [pool.submit(work, stop) for work in works]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            failed = next((each for each in futures if each in done and each.exception()), None)
        finally:
            stop.set()  # they have returned, but for a failure or a signal
    return [each.result() for each in ([failed] if failed else futures)]


def ending(status: int | None) -> str:
    """Return how a process ended, in words."""
    if status is None:
        return "it did not end"
    if status < 0:
        return f"it was killed by {signal.Signals(-status).name}"
    return f"it ended with status {status}"


def last_words(output: str) -> str:
    """Return the line that says most: pytest's own errors, the last test that failed, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = ("FAILED ", "ERROR", "E  ", "Exit:", "INTERNALERROR>")
    marked = [line for line in lines if line.startswith(said) or ": error: " in line]
    line = (marked or lines or ["it said nothing"])[-1]
    return (line[1:].lstrip() if line.startswith("E  ") else line)[:_LONGEST_WORDS]


@dataclass
class Progress:
    """Says which process runs, of how many, and how long the rest will take.

    Attributes:
        say: prints a line.
        what: what they do: "screening", "confirming 3 benchmarks".
        steps_s: how long each took so far.
        side_by_side: how many run at a time.
        until: what the time is told to.

    """

    say: Callable[[str], None]
    what: str
    steps_s: list[float] = field(default_factory=list)
    side_by_side: int = 1
    until: str = "left"

    @contextmanager
    def step(self, number: int, of: int, unit: str = "process", place: str | None = None) -> Iterator[None]:
        """Say that a step begins, and time it; `place` says which one it is, if not "2 of 3"."""
        mean_s = sum(self.steps_s) / len(self.steps_s) if self.steps_s else None
        turns = math.ceil((of - number + 1) / self.side_by_side)
        left = "" if mean_s is None else f", about {mean_s * turns:.0f} s {self.until}"
        self.say(f"{self.what}: {unit} {place or f'{number} of {of}'}{left}")
        begun_s = time.monotonic()
        yield
        self.steps_s.append(time.monotonic() - begun_s)
