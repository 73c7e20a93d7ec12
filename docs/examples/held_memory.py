"""A plugin for pytest that holds some of a GPU's memory, as another version of a library might.

It changes no kernel, only where the tensors of all benchmarks lie. What `fuseproof upgrade` says of it, with
PYTHONPATH=docs/examples:

    fuseproof upgrade --from python --to python --to-env 'HELD_MIB=37 5' --pytest='-p held_memory' --no-parity \
        --pairs 6 --no-early-stop -k 'fwd_bwd and bf16 and (65536x256 or 8192x4096)'

HELD_MIB says how many MiB each piece has; without it nothing is held.
"""

from __future__ import annotations

import os

import pytest
import torch

HELD = pytest.StashKey[list[torch.Tensor]]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hold it from the first test to the end of the session."""
    if HELD not in item.config.stash and torch.cuda.is_available():
        sizes = [int(mib) * 2**20 + 512 for mib in os.environ.get("HELD_MIB", "").split()]
        item.config.stash[HELD] = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
