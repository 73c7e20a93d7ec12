"""The process that forks, from its own side: it imports, and then asks one child after the other.

A child that has answered is asked again: a CUDA context of its own costs it half a second alone on a GPU, and two where
eight workers want theirs. It ends when CUDA is out of order in it, when it keeps much memory, when a check
says so, or when the next call is to run alone or in other surroundings.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
from typing import IO, Any

import torch

from fuseproof.candidates.extensions import load_extensions

__all__ = ["TIMED_OUT", "serve", "spend"]

TIMED_OUT = "timed out"
_LOOK_S = 0.1  # how often a child is looked after that has ended while a process of its own holds its pipe
# What checks import.
_PRELOADED = (
    "torch._dynamo",  # the first step of any optimizer imports it, for a second or two
    "fuseproof.parity.adam.apart",
    "fuseproof.parity.adam.gpu",
    "fuseproof.parity.adam.life",
    "fuseproof.parity.norm.apart",
)
_MOST_KEPT_BYTES = 2**30  # of GPU memory, for its next tensors: after those of many GiB others may need it
_OF_THE_TEST = "PYTEST_CURRENT_TEST"  # the one variable that differs from call to call
_spent = False


def spend() -> None:
    """Say, in a child, that it is not to be asked again: something may be out of order that no error shows."""
    global _spent
    _spent = True


def serve() -> None:
    """Import, then have a child call what is asked for, until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imported modules print is no answer
    for name in _PRELOADED:
        if select.select([0], [], [], 0)[0]:  # nothing is asked before it is ready: it is the end of the file
            os._exit(0)
        importlib.import_module(name)
    load_extensions()
    torch.set_num_threads(1)  # in every child: workers share the cores, and tensors are small
    probe = os.fork()
    if not probe:
        os._exit(torch.cuda._is_in_bad_fork())
    if os.waitpid(probe, 0)[1] or torch.cuda.is_initialized():
        raise RuntimeError("an import has touched CUDA: children could not use it")
    _answer(answers, "ready")
    with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer any more
        _answer_all(answers)
    os._exit(0)  # taking torch down properly takes seconds on a loaded machine, for which a session would wait


def _answer_all(answers: IO[str]) -> None:
    child: _Child | None = None
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        if child is not None and (request["alone"] or child.surroundings != _surroundings(request)):
            child.end()
            child = None
        child = child or _Child(_surroundings(request), answers)
        ended, calls = child.ask(line, request["longest_s"]), child.calls
        if child.ended:
            child = None
        _answer(answers, [ended, calls])
    if child is not None:
        child.end()


def _answer(answers: IO[str], what: object) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _surroundings(request: dict[str, Any]) -> tuple[object, ...]:
    """Return what a child that is asked again must have in common with the call: variables, import path, folder."""
    variables = {name: value for name, value in request["environ"].items() if name != _OF_THE_TEST}
    return variables, request["path"], request["folder"]


class _Child:
    """A fork, asked through pipes.

    Attributes:
        surroundings: of its first call.
        calls: how many it has answered before the last one.
        ended: whether it is there no more.

    Args:
        surroundings: of the first call.
        answers: this process's, which the child must not hold.

    """

    def __init__(self, surroundings: tuple[object, ...], answers: IO[str]) -> None:
        self.surroundings = surroundings
        self.calls = -1
        self.ended = False
        requests, self._requests = os.pipe()
        self._answers, of_child = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            for each in (self._requests, self._answers, answers.fileno()):
                os.close(each)
            _obey(requests, of_child)
        os.close(requests)
        os.close(of_child)

    def ask(self, line: bytes, longest_s: float) -> str | int:
        """Return how a call has ended: 0, 1 for an exception, its own exit status, or that it was ended for its time.

        It is ended as well when nobody waits for it any more.
        """
        self.calls += 1
        deadline = time.monotonic() + longest_s
        with contextlib.suppress(BrokenPipeError):  # it has ended: its status says how
            while line:
                line = line[os.write(self._requests, line) :]
        while True:
            left_s = min(_LOOK_S, deadline - time.monotonic())
            ready = select.select([self._answers, 0], [], [], max(left_s, 0))[0]
            if self._answers in ready:
                said = os.read(self._answers, 2)  # two letters are written at once
                if said:
                    return self._answered(said)
                return self._status(os.waitpid(self._pid, 0)[1])
            if 0 in ready or time.monotonic() > deadline:  # nothing is asked meanwhile: it is the end of the file
                os.kill(self._pid, signal.SIGKILL)
                self._status(os.waitpid(self._pid, 0)[1])
                return TIMED_OUT
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return self._status(status)

    def _answered(self, said: bytes) -> int:
        status, goes_on = int(said[:1]), said[1:] == b"+"
        if not goes_on:
            self.end()
        return status

    def _status(self, status: int) -> int:
        self.ended = True
        os.close(self._requests)
        os.close(self._answers)
        return os.waitstatus_to_exitcode(status)

    def end(self) -> None:
        """Let it end, and wait until what it held on a GPU is free; it may hang in there, with nothing left to say."""
        os.kill(self._pid, signal.SIGKILL)
        self._status(os.waitpid(self._pid, 0)[1])


def _obey(requests: int, answers: int) -> None:
    """Call what is asked for, in the child; it does not return."""
    try:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        with os.fdopen(requests, "rb") as lines:
            for line in lines:
                status = _call(json.loads(line))
                os.write(answers, f"{status}{'+' if _goes_on() else '-'}".encode())
    finally:
        os._exit(1)  # a spoiled CUDA context can make the interpreter's end hang or crash


def _call(request: dict[str, Any]) -> int:
    """Return 0, or 1 for an exception, whose traceback is written to the file for it."""
    said = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for target in (1, 2):
        os.dup2(said, target)
    os.close(said)
    os.environ.clear()
    os.environ.update(request["environ"])
    os.chdir(request["folder"])
    sys.path[:] = request["path"]
    try:
        getattr(importlib.import_module(request["module"]), request["function"])(**request["arguments"])
    except BaseException:  # noqa: BLE001  # whatever it is, the child says so and lives on
        import traceback

        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
    return 0


def _goes_on() -> bool:
    """Whether this process can be asked again: CUDA is in order, as far as it says, and little memory is kept."""
    if _spent or not torch.cuda.is_initialized():
        return not _spent
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return torch.cuda.memory_reserved() <= _MOST_KEPT_BYTES
