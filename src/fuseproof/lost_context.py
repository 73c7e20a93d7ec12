"""A CUDA context that an error has made useless: every later call in the process would fail, blamed on the innocent."""

from __future__ import annotations

import os
import sys

import pytest
import torch

__all__ = ["end_worker", "is_lost"]

_WORKER_LOST = 70  # EX_SOFTWARE; xdist reports any end of a worker, and starts another


def is_lost(error: BaseException) -> bool:
    """Whether this error came from the device and the next call to it fails as well."""
    if not (isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)):
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def end_worker(item: pytest.Item, report: pytest.TestReport) -> None:
    """End the xdist worker, whose other tests go to a new one; without xdist end the session after this test."""
    sentence = f"the CUDA context is lost since {item.nodeid}; whatever runs in this process after it would fail too"
    if hasattr(item.config, "workerinput"):
        # The report would be sent, but never be the last word of this process; so it goes where xdist shows it.
        sys.stderr.write(f"{report.longreprtext}\nfuseproof: {sentence}\n")
        sys.stderr.flush()
        os._exit(_WORKER_LOST)
    item.session.shouldfail = f"{sentence}; run with -n 1 to go on in a new process after it"
