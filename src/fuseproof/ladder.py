"""The training ladder: its stages as frozen data, and one training iteration as a user writes it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from fuseproof.candidates import ADAM, LAYER_NORM, AdamSettings, KernelSet
from fuseproof.workload import INIT_STD, Size, Transformer, batches

__all__ = ["FUSED", "STAGES", "Stage", "Training"]

FUSED = "fused"  # stands for the kernel set's candidate
_SEED = 20261129
_SETTINGS = AdamSettings(lr=3e-4)


@dataclass(frozen=True)
class Stage:
    """One step of the ladder.

    Attributes:
        name: as in keys and tables; starts with its number.
        adam, layer_norm: a candidate's name, or `FUSED` for the kernel set's.
        autocast: dtype of ``torch.autocast`` around the forward pass; None trains in FP32.

    """

    name: str
    adam: str
    layer_norm: str
    autocast: torch.dtype | None = None

    @property
    def precision(self) -> str:
        """The dtype's short name in keys: fp32, bf16."""
        return "fp32" if self.autocast is None else "bf16"

    def adam_name(self, kernels: KernelSet) -> str:
        """Return the Adam candidate that this stage trains with."""
        return kernels.adam if self.adam == FUSED else self.adam

    def layer_norm_name(self, kernels: KernelSet) -> str:
        """Return the LayerNorm candidate that this stage trains with."""
        return kernels.layer_norm if self.layer_norm == FUSED else self.layer_norm


STAGES: Mapping[str, Stage] = MappingProxyType(
    {
        stage.name: stage
        for stage in (
            Stage("0_textbook", adam="torch_loop", layer_norm="primitive"),
            Stage("1_adam_fp32", adam="torch_default", layer_norm="torch"),
            Stage("2_fused_adam", adam=FUSED, layer_norm="torch"),
            Stage("3_fused_layer_norm", adam=FUSED, layer_norm=FUSED),
            Stage("4_amp_bf16", adam=FUSED, layer_norm=FUSED, autocast=torch.bfloat16),
        )
    }
)


class Training:
    """A model, an optimizer and a stream of text; calling it is one training iteration.

    Args:
        stage: what differs between the steps of the ladder.
        kernels: what "fused" means.
        size: the transformer's dimensions.
        device: where it trains.

    """

    def __init__(self, stage: Stage, kernels: KernelSet, size: Size, device: torch.device) -> None:
        self.stage = stage
        self.device = device
        with device:
            self.model = Transformer(size, LAYER_NORM[stage.layer_norm_name(kernels)].build).to(device)
        self.model.initialize(_SEED)
        self.optimizer = ADAM[stage.adam_name(kernels)].build(self.model.parameters(), _SETTINGS)
        self.batches = batches(size, _SEED, device)
        self.size = size
        self.first_loss: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        """Run one training iteration and return its loss, a 0-d tensor still on the device."""
        inputs, targets = next(self.batches)
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, dtype=self.stage.autocast, enabled=self.stage.autocast is not None):
            loss: torch.Tensor = self.model(inputs, targets)
        loss.backward()
        self.optimizer.step()
        if self.first_loss is None:
            self.first_loss = loss.detach()
        return loss

    def check(self) -> None:
        """Raise unless training starts at the loss of a uniform guess and has come down since.

        That all stages train alike is shown by the loss curves in ``tests/e2e``.
        """
        for _ in range(3):  # the first steps bring it down by more than batches differ
            last = self().item()
        assert self.first_loss is not None
        # Normalized features times weights of N(0, s^2) are logits of variance width * s^2; the mean of exp(logit) over
        # the vocabulary raises the loss of a uniform guess, ln vocab, by half of that.
        first, expected = self.first_loss.item(), math.log(self.size.vocab) + self.size.width * INIT_STD**2 / 2
        assert abs(first - expected) < 0.1, f"{self.stage.name}: first loss {first:.4f}, expected {expected:.4f}"
        assert last < first, f"{self.stage.name}: loss {last:.4f} is not below the first, {first:.4f}"
