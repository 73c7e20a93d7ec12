"""A check in a process of its own: an error that spoils a CUDA context, or ends the process, stays in there."""

from __future__ import annotations

import importlib
import json
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import torch

from fuseproof.parity import worst
from fuseproof.parity.forks import ServerError, fork_server
from fuseproof.parity.measures import ParityError

__all__ = ["ChildError", "ProcessEndedError", "failure_expected", "run_in_child"]

_LONGEST_S = 300  # the slowest check takes seconds; a loaded machine may need 20 to make a CUDA context
_TOLD_LINES = 5  # of what a child that died wrote last
_RIGHT, _WRONG, _BROKEN = "right", "wrong", "broken"
_expected = ContextVar("expected", default=False)


class ProcessEndedError(ParityError):
    """The process ended before the check had answered: killed by a signal, or by an exit of its own."""


class ChildError(Exception):
    """The check itself cannot be run, or is at fault: this says nothing about what it was to judge."""


@contextmanager
def failure_expected(known: bool) -> Iterator[None]:
    """Say whether checks are known to fail: an answer that is not the expected one is asked for again."""
    token = _expected.set(known)
    try:
        yield
    finally:
        _expected.reset(token)


def run_in_child(
    check: str, *arguments: object, longest_s: float = _LONGEST_S, environ: Mapping[str, str] | None = None
) -> None:
    """Run a check in a fork of a process that has not touched CUDA, with this one's environment: on the same GPU.

    The child may have run checks before, after which CUDA was in order. An answer that is not the expected one is asked
    for once more, in a new child, and that answer counts. CUDA is synchronized after the check, so that an error of a
    kernel is met there.

    Args:
        check: ``module:function``; it raises `ParityError` where the answer is wrong.
        arguments: what it is called with: numbers, strings, lists and dictionaries, as JSON holds them.
        longest_s: a child that takes longer has hung.
        environ: variables in whose place others are in this process.

    Raises:
        ProcessEndedError: the child died before it had answered.
        ParityError: the check, torch or CUDA said that something is wrong, or the child hung.
        ChildError: there is no such check, or it failed by an error of its own.

    """
    failure, calls = _ask(check, arguments, longest_s, environ, alone=False)
    if calls and (failure is not None) != _expected.get():
        failure, _ = _ask(check, arguments, longest_s, environ, alone=True)
    if failure is not None:
        raise failure


def _ask(
    check: str, arguments: tuple[object, ...], longest_s: float, environ: Mapping[str, str] | None, alone: bool
) -> tuple[ParityError | None, int]:
    """Return what is wrong, and how many checks the child had run before."""
    with tempfile.TemporaryDirectory() as folder:
        answer, stderr = Path(folder) / "answer.json", Path(folder) / "stderr"
        request = {"answer": str(answer), "check": check, "arguments": arguments, "collecting": worst.collecting()}
        try:
            ended = fork_server().run(
                __name__, _main.__name__, request, str(stderr), longest_s, alone=alone, environ=environ
            )
        except ServerError as error:
            raise ChildError(f"{check}{arguments}: no child could be started: {error}") from None
        if ended.status is None:
            return ParityError(f"{check}{arguments}: no answer from its process after {longest_s:g} s"), ended.calls
        said = json.loads(answer.read_text(encoding="utf-8")) if answer.exists() else None
        heard = stderr.read_text(encoding="utf-8", errors="replace") if stderr.exists() else ""
    if said is None:
        said_last = f"{check}{arguments}: its process {_ending(ended.status)}: {_last(heard)}"
        return ProcessEndedError(said_last), ended.calls
    kind, message, *noted = said
    worst.note_all(noted)
    if kind == _BROKEN:
        raise ChildError(f"{check}{arguments}: {message}")
    return ParityError(message) if kind == _WRONG else None, ended.calls


def _ending(status: int) -> str:
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _last(stderr: str) -> str:
    return " | ".join(stderr.strip().splitlines()[-_TOLD_LINES:]) or "it said nothing"


def _main(answer: str, check: str, arguments: list[object], collecting: bool) -> None:
    """Run one check in this process, which is the child, and write what comes of it and the errors that it noted."""
    worst.collect(collecting)
    said = [*_outcome(check, arguments), *worst.drain()]
    Path(answer).write_text(json.dumps(said), encoding="utf-8")


def _outcome(check: str, arguments: list[object]) -> tuple[str, str]:
    module, _, name = check.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        return _BROKEN, f"there is no such check: {error}"
    try:
        function(*arguments)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except ParityError as error:
        return _WRONG, str(error)
    except (AssertionError, RuntimeError) as error:  # torch's and CUDA's errors are RuntimeErrors
        return _WRONG, f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001  # told to the parent, which raises
        return _BROKEN, f"{type(error).__name__}: {error}"
    return _RIGHT, ""
