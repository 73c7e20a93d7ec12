"""The training ladder: its stages as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from fuseproof.candidates import ADAM, LAYER_NORM, AdamCandidate, KernelSet, NormCandidate

__all__ = ["FUSED", "STAGES", "Stage"]

FUSED = "fused"  # stands for the kernel set's candidate


@dataclass(frozen=True)
class Stage:
    """One step of the ladder.

    Attributes:
        name: as in keys and tables; starts with its number.
        base: the stage that this one differs from by one thing; None for the first two.
        adam, layer_norm: a candidate's name, or `FUSED` for the kernel set's.
        autocast: dtype of ``torch.autocast`` around the forward pass; None trains in FP32.
        tf32: FP32 matrix products may use TF32.
        compiled: the model goes through ``torch.compile``.
        graph: the whole iteration is captured in a CUDA graph and replayed.
        checkpointing: each block's activations are computed again in the backward pass.
        micro_batches: the batch is split into so many, whose gradients accumulate.

    """

    name: str
    base: str | None
    adam: str = FUSED
    layer_norm: str = FUSED
    autocast: torch.dtype | None = None
    tf32: bool = False
    compiled: bool = False
    graph: bool = False
    checkpointing: bool = False
    micro_batches: int = 1

    @property
    def full(self) -> bool:
        """Whether it runs only with ``--fuseproof-full``: the first five are the ladder, the others lie beyond it."""
        return int(self.name.split("_")[0]) > 4

    @property
    def precision(self) -> str:
        """The dtype's short name in keys: fp32, bf16, fp16."""
        return {None: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[self.autocast]

    @property
    def ceiling(self) -> str:
        """Which matrix ceiling its products stand under: fp32, tf32 or bf16; FP16 runs on the same units as BF16."""
        if self.autocast is not None:
            return "bf16"
        return "tf32" if self.tf32 else "fp32"

    def adam_candidate(self, kernels: KernelSet) -> AdamCandidate | None:
        """Return the Adam that this stage trains with; None if the kernels have none that a CUDA graph may capture."""
        if self.adam != FUSED:
            return ADAM[self.adam]
        return kernels.capturable_adam if self.graph else kernels.adam

    def layer_norm_candidate(self, kernels: KernelSet) -> NormCandidate:
        """Return the LayerNorm that this stage trains with."""
        return kernels.layer_norm if self.layer_norm == FUSED else LAYER_NORM[self.layer_norm]

    def unavailable(self, kernels: KernelSet, device: torch.device) -> str | None:
        """Return why this stage cannot run with these kernels on `device`, or None."""
        if device.type == "cpu" and (self.graph or self.tf32 or self.autocast is torch.float16):
            what = "a CUDA graph" if self.graph else "TF32" if self.tf32 else "FP16 with a GradScaler"
            return f"{what} needs a GPU"
        adam = self.adam_candidate(kernels)
        if adam is None:
            return f"{kernels.adam.name} has no form that a CUDA graph may capture"
        return kernels.unavailable(device) or adam.unavailable(device)


_BF16 = torch.bfloat16

STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage("0_textbook", None, adam="torch_loop", layer_norm="primitive"),
            Stage("1_adam_fp32", None, adam="torch_default", layer_norm="torch"),
            Stage("2_fused_adam", "1_adam_fp32", layer_norm="torch"),
            Stage("3_fused_layer_norm", "2_fused_adam"),
            Stage("4_amp_bf16", "3_fused_layer_norm", autocast=_BF16),
            Stage("5_amp_fp16", "3_fused_layer_norm", autocast=torch.float16),
            Stage("5_tf32", "3_fused_layer_norm", tf32=True),
            Stage("5_compile", "4_amp_bf16", autocast=_BF16, compiled=True),
            Stage("5_cuda_graph", "4_amp_bf16", autocast=_BF16, graph=True),
            Stage("5_checkpointing", "4_amp_bf16", autocast=_BF16, checkpointing=True),
            Stage("5_accumulation", "4_amp_bf16", autocast=_BF16, micro_batches=4),
        )
    }
)
