"""The implementations under test, as frozen records; this package and `apex_probe`'s child import Apex and Liger.

A record says what the implementation is called, where it runs, why it is not available here, and the facts about its
arithmetic that an oracle must know. It builds the implementation with one signature for all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuseproof.candidates.adam import ADAM
from fuseproof.candidates.brought import bring_adam, bring_layer_norm
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
    "adam_candidate",
    "brought_kernel_set",
    "default_kernel_set",
    "norm_candidate",
]


@dataclass(frozen=True)
class KernelSet:
    """What "fused" means in the ladder. Its name is part of every ladder key.

    Attributes:
        name: as in keys.
        adam, layer_norm: the candidates.
        capturable_adam: the same Adam in the form that a CUDA graph may capture; None if it has none.
        brought: the user asked for it by an option, so it always runs.

    """

    name: str
    adam: AdamCandidate
    layer_norm: NormCandidate
    capturable_adam: AdamCandidate | None = None
    brought: bool = False

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this set cannot run on `device`, or None."""
        return self.adam.unavailable(device) or self.layer_norm.unavailable(device)


KERNEL_SETS: Mapping[str, KernelSet] = by_name(
    KernelSet("apex", ADAM["apex"], LAYER_NORM["apex"], ADAM["apex_capturable"]),
    # nn.LayerNorm is torch's own fused kernel: with this set, stage 3 is the same program as stage 2.
    KernelSet("torch", ADAM["torch_fused"], LAYER_NORM["torch"], ADAM["torch_fused_capturable"]),
)


def default_kernel_set(device: torch.device) -> KernelSet:
    """Return Apex's kernels where they run, else torch's own."""
    return KERNEL_SETS["torch" if KERNEL_SETS["apex"].unavailable(device) else "apex"]


def brought_kernel_set(candidate: AdamCandidate | NormCandidate) -> KernelSet:
    """Return torch's kernel set with a brought candidate in its place, under the candidate's name."""
    torch_set = KERNEL_SETS["torch"]
    if isinstance(candidate, AdamCandidate):
        return KernelSet(candidate.name, candidate, torch_set.layer_norm, brought=True)
    return KernelSet(candidate.name, torch_set.adam, candidate, torch_set.capturable_adam, brought=True)


def adam_candidate(reference: str) -> AdamCandidate:
    """Return the Adam that has this `reference`: in another process, where records cannot go."""
    return bring_adam("--fuseproof-adam", reference, ADAM) if "=" in reference else ADAM[reference]


def norm_candidate(kind: str, reference: str) -> NormCandidate:
    """Return the norm of that kind that has this `reference`: in another process, where records cannot go."""
    known = LAYER_NORM if kind == "layer_norm" else RMS_NORM
    return bring_layer_norm("--fuseproof-layer-norm", reference, known) if "=" in reference else known[reference]
