"""A case of a parity test: whether it runs here, which failure is known, and what is done around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
import torch

from fuseproof.parity.defects import find_defect, load_defects

__all__ = ["expect_defect", "quiet_device"]

_defects = cache(load_defects)


def expect_defect(request: pytest.FixtureRequest, candidate: str, device: torch.device, table: Path) -> None:
    """Mark the requesting test as a strict xfail if the table lists it for this candidate and type of device."""
    known = find_defect(_defects(table), candidate, device.type, request.node.originalname, request.node.callspec.id)
    if known:
        request.applymarker(pytest.mark.xfail(reason=known.reason(), strict=True, raises=AssertionError))


@contextmanager
def quiet_device(device: torch.device) -> Iterator[None]:
    """On a CPU use one thread, since workers share the cores; on CUDA blame an error on the test that caused it."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
