"""Load Apex's extensions and run each once, in a child process: a broken extension may kill it.

The child takes as long as importing torch and starting CUDA, some seconds; `start` lets it run while the parent does
the same. One child is enough for all workers of a session (`SHARED`), and for all processes that measure one after the
other in one environment (`vouched_by`).
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["SHARED", "VOUCHED", "abandon", "join", "outcome", "probe", "start", "vouched_by"]

VOUCHED: Final = "FUSEPROOF_VOUCHED"
"""The environment variable with the fingerprint (`machine.fingerprint`) of a process in which Apex has run."""

SHARED: Final = "FUSEPROOF_APEX_PROBE"
"""The environment variable by which workers of pytest-xdist find the file that their controller's child is told in."""

# The first import of torch from a cold network disk takes a minute.
_TIMEOUT_S: Final = 180
_LOOK_S: Final = 0.02  # between two looks for the controller's file
_EVENT: Final = "fuseproof-probe:"

Told = tuple[dict[str, list[str]], str]

_started: dict[tuple[str, ...], _Child] = {}
_shared: list[Path] = []  # where the controller of this worker tells, once


def probe(names: Sequence[str]) -> None:
    """Load each extension and run it once on the GPU, if there is one. For a child process: it may not survive this."""
    sys.excepthook = lambda kind, error, _: _tell("error", f"{kind.__name__}: {error}")
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.ones(1, device="cuda").item()
    _tell("torch", "runs on the GPU" if on_gpu else "loads")
    for name in names:
        importlib.import_module(name)
        _tell("loaded", name)
        if on_gpu:
            _TINY_CALLS[name]()
        _tell("done", name)


def _tell(event: str, value: str) -> None:
    print(f"\n{_EVENT}{json.dumps([event, value])}", flush=True)  # a process that is killed writes no buffers


def _tiny_adam() -> None:
    import torch

    weight = torch.nn.Parameter(torch.ones(1, device="cuda"))
    weight.grad = torch.ones(1, device="cuda")
    importlib.import_module("apex.optimizers").FusedAdam([weight], lr=0.5).step()
    if abs(weight.item() - 0.5) > 1e-3:  # Adam's first step is lr in the direction of the gradient
        raise ArithmeticError(f"a step from 1 with gradient 1 and lr 0.5 gives {weight.item()}, not 0.5")


def _tiny_layer_norm() -> None:
    import torch

    layer = importlib.import_module("apex.normalization").FusedLayerNorm(8).cuda()
    last = layer(torch.arange(8.0, device="cuda").view(1, 8)).tolist()[0][-1]
    if not abs(last - 1.5275) < 1e-3:  # (7 - 3.5) / sqrt(5.25); so written, NaN fails as well
        raise ArithmeticError(f"the last of 0..7 is normalised to {last}, not to 1.5275")


_TINY_CALLS: Final = {"amp_C": _tiny_adam, "fused_layer_norm_cuda": _tiny_layer_norm}


class _Child:
    """A child that probes, and the thread that waits for it.

    Args:
        names: the extensions.
        shared: file to write the outcome to, for others; None for nobody.

    """

    def __init__(self, names: Sequence[str], shared: Path | None = None) -> None:
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)  # it finds modules where this one does
        command = [sys.executable, "-P", "-c", f"from fuseproof.apex_probe import probe; probe({list(names)})"]
        self._process = subprocess.Popen(
            command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self._told: Future[Told] = Future()
        self._thread = threading.Thread(target=self._wait, args=(list(names), shared), daemon=True)
        self._thread.start()

    def told(self) -> Told:
        """Wait for the outcome."""
        return self._told.result()

    def end(self) -> None:
        """End it: nobody asks any more."""
        self._process.kill()
        self._thread.join()

    def _wait(self, names: list[str], shared: Path | None) -> None:
        told = _read(self._process)
        self._told.set_result(told)
        if shared is not None:
            with suppress(OSError):  # a worker that finds no file asks a child of its own
                temporary = shared.with_suffix(".tmp")
                temporary.write_text(json.dumps([names, *told]), encoding="utf-8")
                temporary.rename(shared)


def start(names: Sequence[str], shared: Path | None = None) -> None:
    """Begin to probe these extensions; `outcome` of the same names waits for the result.

    Args:
        names: the extensions.
        shared: file in which the outcome is told to workers that are started from now on.

    """
    if shared is not None:
        os.environ[SHARED] = str(shared)
    _started[tuple(names)] = _Child(names, shared)


def join(environ: MutableMapping[str, str]) -> bool:
    """Take the file that a controller tells in out of a worker's environment: what it starts is no worker."""
    if path := environ.pop(SHARED, None):
        _shared[:] = [Path(path)]
    return bool(path)


def vouched_by(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the variable that lets a later process of the same environment believe this run, in which Apex has run.

    It does if hardware and software are the same, down to the bytes of Apex's extensions.
    """
    fingerprint = document.get("fuseproof", {}).get("vouches")
    return {VOUCHED: fingerprint} if fingerprint else {}


def abandon() -> None:
    """End children whose outcome nobody asked for."""
    os.environ.pop(SHARED, None)
    while _started:
        _started.popitem()[1].end()


def outcome(names: Sequence[str]) -> Told:
    """Return what `probe` told of these extensions, and why it got no further."""
    return _from_controller(names) or (_started.pop(tuple(names), None) or _Child(names)).told()


def _from_controller(names: Sequence[str]) -> Told | None:
    """Wait for what the controller's child told of these extensions; None where it tells nothing, or of others."""
    if not _shared:
        return None
    path = _shared.pop()
    end_s = time.monotonic() + _TIMEOUT_S
    while not path.exists() and path.parent.exists() and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    try:
        asked, told, failure = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return (told, failure) if asked == list(names) else None


def _read(child: subprocess.Popen[bytes]) -> Told:
    """Wait for a child and return what it told, and why it got no further."""
    timed_out = False
    with child:
        try:
            out, err = child.communicate(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            timed_out = True
            child.kill()
            out, err = child.communicate()
    told: dict[str, list[str]] = {"torch": [], "loaded": [], "done": [], "error": []}
    for line in out.decode(errors="replace").splitlines():
        if line.startswith(_EVENT):
            event, value = json.loads(line.removeprefix(_EVENT))
            told[event].append(value)
    if timed_out:
        return told, f"no answer within {_TIMEOUT_S} s"
    if child.returncode < 0:
        return told, f"its process died of {signal.Signals(-child.returncode).name}"
    said = (told["error"] or err.decode(errors="replace").strip().splitlines()[-1:] or ["no message"])[0]
    return told, said.strip().splitlines()[0].rstrip(".")
