"""Other people's compiled kernels, loaded ahead of their use."""

from __future__ import annotations

import contextlib
import importlib

__all__ = ["load_extensions"]

_EXTENSIONS = ("amp_C", "fused_layer_norm_cuda", "apex.optimizers", "apex.normalization")


def load_extensions() -> None:
    """Import what candidates import when they are built, as far as it is there; none of it makes a CUDA context."""
    for name in _EXTENSIONS:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
