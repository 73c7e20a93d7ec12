"""A check that could lead a kernel astray in memory, in a process of its own: a spoiled CUDA context stays there."""

from __future__ import annotations

import importlib
from typing import Any, Protocol

import torch

from fuseproof.candidates import ADAM, AdamCandidate
from fuseproof.candidates.brought import bring_adam
from fuseproof.parity.child import run_in_child

__all__ = ["Check", "found", "run_apart"]


class Check(Protocol):
    """A function of a candidate and a device; the rest of its arguments are such as JSON holds."""

    __module__: str
    __qualname__: str

    def __call__(self, candidate: AdamCandidate, device: torch.device, /, *arguments: Any) -> object:
        """Raise `ParityError` where the answer is wrong."""


def run_apart(check: Check, candidate: AdamCandidate, device: torch.device, *arguments: object) -> None:
    """Run a check on a GPU in a child, on a CPU right here.

    Raises:
        ParityError: as `check` does; or the child died.

    """
    if device.type == "cpu":
        check(candidate, device, *arguments)
    else:
        where = f"{check.__module__}:{check.__qualname__}"
        whose = candidate.name, candidate.brought_as
        run_in_child("fuseproof.parity.adam.apart:_run", where, *whose, str(device), *arguments)


def found(name: str, brought_as: str) -> AdamCandidate:
    """Return the candidate of that name, in a process that has not read the command line."""
    return bring_adam("--adam", brought_as, {}) if brought_as else ADAM[name]


def _run(where: str, name: str, brought_as: str, device: str, *arguments: object) -> None:
    module, _, function = where.partition(":")
    check: Check = getattr(importlib.import_module(module), function)
    check(found(name, brought_as), torch.device(device), *arguments)
