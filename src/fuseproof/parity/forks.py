"""A process that has imported torch and forks: children are there at once, and make a CUDA context of their own.

It never touches CUDA itself, since a context does not survive a fork. One serves a whole session, or a worker of one.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import IO, Any

import torch

from fuseproof.candidates.extensions import load_extensions

__all__ = ["ForkServer", "ServerError", "fork_server"]

_START = "from fuseproof.parity.forks import _serve; _serve()"
_WITHOUT_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # whether there is a GPU can be asked without touching it
_TIMED_OUT = "timed out"
_POLL_S = 0.005
# What checks import.
_PRELOADED = (
    "torch._dynamo",  # the first step of any optimizer imports it, for a second or two
    "fuseproof.parity.adam.apart",
    "fuseproof.parity.adam.gpu",
    "fuseproof.parity.adam.life",
    "fuseproof.parity.norm.apart",
)


class ServerError(Exception):
    """The process that forks has ended, or could not start."""


class ForkServer:
    """Starts a process that forks, and asks it for one child after the other.

    It does not wait for it to start: that takes seconds, which are over when the first child is asked for.
    """

    def __init__(self) -> None:
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # it is closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env={**os.environ, **_WITHOUT_CUDA, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the session, whose end this process sees
        )
        self._ready = False
        atexit.register(self.close)

    def run(
        self, module: str, function: str, arguments: Mapping[str, object], stderr: str, longest_s: float
    ) -> int | None:
        """Call a function in a child with this process's environment, import path and folder.

        Args:
            module, function: what is called.
            arguments: by keyword, as JSON holds them.
            stderr: path of the file that the child writes what it says to.
            longest_s: when it is ended.

        Returns:
            The child's exit status, negative for a signal; None if it was ended for its time.

        Raises:
            ServerError: the process that forks has ended.

        """
        request = {
            "module": module,
            "function": function,
            "arguments": arguments,
            "stderr": stderr,
            "longest_s": longest_s,
            "environ": dict(os.environ),
            "path": sys.path,
            "folder": os.getcwd(),  # noqa: PTH109  # JSON holds strings
        }
        assert self._process.stdin is not None
        if not self._ready:
            self._read()
            self._ready = True
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ServerError(self._last_words()) from None
        ended = self._read()
        return None if ended == _TIMED_OUT else int(ended)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerError(self._last_words())
        return json.loads(line)

    def _last_words(self) -> str:
        self._stderr.seek(0)
        return " | ".join(self._stderr.read().decode(errors="replace").strip().splitlines()[-5:]) or "it said nothing"

    @property
    def process_id(self) -> int:
        """Its number among this machine's processes."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        atexit.unregister(self.close)
        if not self._ready:  # nobody has asked: it need not come to the end of its imports
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()


_servers: list[ForkServer] = []


def fork_server() -> ForkServer:
    """Return this process's server; a new one, which is on its way, if there is none or it has ended."""
    if _servers and not _servers[0].alive():
        _servers.pop().close()
    if not _servers:
        _servers.append(ForkServer())
    return _servers[0]


def _serve() -> None:
    """Import, then fork for every line that is asked, until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what imported modules print is no answer
    for name in _PRELOADED:
        importlib.import_module(name)
    load_extensions()
    torch.set_num_threads(1)  # in every child: workers share the cores, and tensors are small
    probe = os.fork()
    if not probe:
        os._exit(torch.cuda._is_in_bad_fork())
    if os.waitpid(probe, 0)[1] or torch.cuda.is_initialized():
        raise RuntimeError("an import has touched CUDA: children could not use it")
    _answer(answers, "ready")
    while line := sys.stdin.buffer.readline():
        _answer(answers, _wait(_fork(json.loads(line)), json.loads(line)["longest_s"]))


def _answer(answers: IO[str], what: str | int) -> None:
    answers.write(json.dumps(what) + "\n")
    answers.flush()


def _fork(request: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        said = os.open(request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(request["environ"])
        os.chdir(request["folder"])
        sys.path[:] = request["path"]
        getattr(importlib.import_module(request["module"]), request["function"])(**request["arguments"])
        status = 0
    except BaseException:  # noqa: BLE001  # the child ends here, whatever it is
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(status)  # a spoiled CUDA context can make the interpreter's end hang or crash


def _wait(child: int, longest_s: float) -> str | int:
    """Return how a child has ended; end it when its time is over, or when nobody waits for it any more."""
    deadline = time.monotonic() + longest_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        gone = bool(select.select([0], [], [], _POLL_S)[0])  # nothing is asked meanwhile: it is the end of the file
        if gone or time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return _TIMED_OUT
