"""Load Apex's extensions and run each once, in a child process: a broken extension may kill it.

The child takes as long as importing torch and starting CUDA; `start` lets it run while the parent does the same. Where
many processes measure one after the other, those after the first need none: `vouch`.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

__all__ = ["VOUCHED", "abandon", "outcome", "probe", "start", "vouch"]

VOUCHED: Final = "FUSEPROOF_VOUCHED"
"""The environment variable with fingerprints (`machine.fingerprint`) of processes in which Apex has loaded and run."""

# The first import of torch from a cold network disk takes a minute.
_TIMEOUT_S: Final = 180
_EVENT: Final = "fuseproof-probe:"

_started: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}


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


def start(names: Sequence[str]) -> None:
    """Begin to probe these extensions; `outcome` of the same names waits for the result."""
    _started[tuple(names)] = _spawn(names)


def vouch(document: Mapping[str, Any]) -> None:
    """Let the processes that this one starts from now on believe a run in which Apex has loaded and run.

    They do if hardware and software are the same, down to the bytes of Apex's extensions.
    """
    if fingerprint := document["fuseproof"].get("vouches"):
        known = os.environ.get(VOUCHED, "").split(",")
        os.environ[VOUCHED] = ",".join(dict.fromkeys(filter(None, [*known, fingerprint])))


def abandon() -> None:
    """End children whose outcome nobody asked for."""
    while _started:
        _, child = _started.popitem()
        with child:
            child.kill()


def _spawn(names: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start `probe` in a child that finds modules where this process does."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    command = [sys.executable, "-P", "-c", f"from fuseproof.apex_probe import probe; probe({list(names)})"]
    return subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def outcome(names: Sequence[str]) -> tuple[dict[str, list[str]], str]:
    """Return what `probe` told of these extensions, and why it got no further."""
    with _started.pop(tuple(names), None) or _spawn(names) as child:
        timed_out = False
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
