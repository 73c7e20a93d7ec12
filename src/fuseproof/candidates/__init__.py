"""The implementations under test, as frozen records; this package alone imports Apex and Liger.

A record says what the implementation is called, where it runs, why it is not available here, and the facts about its
arithmetic that an oracle must know. It builds the implementation with one signature for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuseproof.candidates.adam import ADAM
from fuseproof.candidates.norm import LAYER_NORM, RMS_NORM
from fuseproof.candidates.record import AdamCandidate, AdamSettings, Arithmetic, NormCandidate, by_name

__all__ = [
    "ADAM",
    "KERNEL_SETS",
    "LAYER_NORM",
    "RMS_NORM",
    "AdamCandidate",
    "AdamSettings",
    "Arithmetic",
    "KernelSet",
    "NormCandidate",
    "default_kernel_set",
]


@dataclass(frozen=True)
class KernelSet:
    """What "fused" means in the ladder: names of an Adam and a LayerNorm candidate. Part of every ladder key.

    Attributes:
        name: as in keys.
        adam, layer_norm: the candidates.
        capturable_adam: the same Adam in the form that a CUDA graph may capture.

    """

    name: str
    adam: str
    layer_norm: str
    capturable_adam: str

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this set cannot run on `device`, or None."""
        return ADAM[self.adam].unavailable(device) or LAYER_NORM[self.layer_norm].unavailable(device)


KERNEL_SETS: Mapping[str, KernelSet] = by_name(
    KernelSet("apex", adam="apex", layer_norm="apex", capturable_adam="apex_capturable"),
    # nn.LayerNorm is torch's own fused kernel: with this set, stage 3 is the same program as stage 2.
    KernelSet("torch", adam="torch_fused", layer_norm="torch", capturable_adam="torch_fused_capturable"),
)


def default_kernel_set(device: torch.device) -> KernelSet:
    """Return Apex's kernels where they run, else torch's own."""
    return KERNEL_SETS["torch" if KERNEL_SETS["apex"].unavailable(device) else "apex"]
