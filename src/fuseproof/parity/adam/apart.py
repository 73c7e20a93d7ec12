"""A check that could lead a kernel astray in memory, in a process of its own: a spoiled CUDA context stays there."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

import torch

from fuseproof.candidates import AdamCandidate, adam_candidate
from fuseproof.parity.child import run_in_child

__all__ = ["Check", "run_apart"]


class Check(Protocol):
    """A function of a candidate and a device; the rest of its arguments are such as JSON holds."""

    __module__: str
    __qualname__: str

    def __call__(self, candidate: AdamCandidate, device: torch.device, /, *arguments: Any) -> object:
        """Raise `ParityError` where the answer is wrong."""


def run_apart(
    check: Check,
    candidate: AdamCandidate,
    device: torch.device,
    *arguments: object,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run a check on a GPU in a child, on a CPU right here.

    Args:
        check: what is run.
        candidate, device, arguments: with what.
        environ: variables of the child in whose place others are in this process.

    Raises:
        ParityError: as `check` does; or the child died.

    """
    if device.type == "cpu":
        check(candidate, device, *arguments)
    else:
        where = f"{check.__module__}:{check.__qualname__}"
        run_in_child(f"{__name__}:_run", where, candidate.reference, str(device), *arguments, environ=environ)


def _run(where: str, reference: str, device: str, *arguments: object) -> None:
    module, _, function = where.partition(":")
    check: Check = getattr(importlib.import_module(module), function)
    check(adam_candidate(reference), torch.device(device), *arguments)
