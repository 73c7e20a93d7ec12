"""What is measured: each builds its tensors from a seed, is called once a round and checks itself in FP64."""

from __future__ import annotations

from typing import Any, Protocol

from fuseproof.subjects.adam import PARAMETER_SETS, AdamStep, adam_settings, parameter_shapes
from fuseproof.subjects.norm import NormForward, NormForwardBackward

__all__ = [
    "PARAMETER_SETS",
    "AdamStep",
    "NormForward",
    "NormForwardBackward",
    "Subject",
    "adam_settings",
    "parameter_shapes",
]


class Subject(Protocol):
    """Something to measure: call it once a round; `check` raises when what it computes is wrong."""

    def __call__(self) -> Any:
        """Do the measured work once."""

    def check(self) -> None:
        """Raise `AssertionError` when the result is not right."""
