"""A process that has imported torch and forks: children are there at once, and make a CUDA context of their own.

It never touches CUDA itself, since a context does not survive a fork. One serves a whole session, or a worker of one.
What it does is in `fuseproof.parity.server`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from fuseproof.parity.server import TIMED_OUT

__all__ = ["Ended", "ForkServer", "ServerError", "fork_server"]

_START = "from fuseproof.parity.server import serve; serve()"
_WITHOUT_CUDA = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # whether there is a GPU can be asked without touching it


class ServerError(Exception):
    """The process that forks has ended, or could not start."""


@dataclass(frozen=True)
class Ended:
    """How a call in a child has ended.

    Attributes:
        status: 0; 1 for an exception; the child's exit status if it has ended, negative for a signal; None if it was
            ended for its time.
        calls: how many calls the child had answered before.

    """

    status: int | None
    calls: int


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
        self,
        module: str,
        function: str,
        arguments: Mapping[str, object],
        stderr: str,
        longest_s: float,
        *,
        alone: bool = False,
        environ: Mapping[str, str] | None = None,
    ) -> Ended:
        """Call a function in a child with this process's environment, import path and folder.

        Args:
            module, function: what is called.
            arguments: by keyword, as JSON holds them.
            stderr: path of the file that the child writes what it says to.
            longest_s: when it is ended.
            alone: in a new child; else in one that may have answered before and was in order after it.
            environ: variables in whose place others are in this process; such a child is a new one.

        Raises:
            ServerError: the process that forks has ended.

        """
        request = {
            "module": module,
            "function": function,
            "arguments": arguments,
            "stderr": stderr,
            "longest_s": longest_s,
            "alone": alone,
            "environ": {**os.environ, **(environ or {})},
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
        status, calls = self._read()
        return Ended(None if status == TIMED_OUT else int(status), calls)

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
