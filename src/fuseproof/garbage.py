"""Python's garbage between benchmarks: it may hold tensors, and torch need not be looked through for it."""

from __future__ import annotations

import gc
import sys

__all__ = ["Garbage"]


class Garbage:
    """Collects, and after imports lets what lives on stay out of later collections.

    What torch, pytest and the first optimizer (which imports torch._dynamo) bring takes 0.1 to 0.2 s to look through,
    and there are two collections for each benchmark.
    """

    def __init__(self) -> None:
        self._modules = 0

    def collect(self) -> None:
        """Free what nothing refers to; call it when no tensor of a benchmark is alive any more."""
        gc.collect()
        if len(sys.modules) > self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
