"""The implementations under test, as frozen records; the only importer of Apex.

A record says what the implementation is called, where it runs, why it is not available here, and the facts about its
arithmetic that an oracle must know. It builds the implementation with one signature for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from fuseproof import preflight

__all__ = [
    "ADAM",
    "KERNEL_SETS",
    "LAYER_NORM",
    "AdamCandidate",
    "AdamSettings",
    "KernelSet",
    "LayerNormCandidate",
    "PrimitiveLayerNorm",
    "default_kernel_set",
]


@dataclass(frozen=True)
class AdamSettings:
    """Hyper-parameters of Adam, under the names of ``torch.optim.Adam``; ``decoupled`` selects AdamW's weight decay."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True


_CUDA = frozenset({"cuda"})


def _always() -> None:
    return None


@dataclass(frozen=True)
class AdamCandidate:
    """One implementation of Adam.

    Attributes:
        name: its name in keys, ids and tables.
        build: parameters and settings to an optimizer.
        device_types: where it runs: "cuda", "cpu".
        hyper_dtype: the dtype in which update and moments take lr, betas, eps and decay.
        float32_bias_on: device types where the bias correction takes the betas in FP32.
        launches_per_tensor: it launches kernels tensor by tensor; the host cannot run ahead of the device.
        missing: why it is not available in this environment, or None.
    """

    name: str
    build: Callable[[Iterable[torch.Tensor], AdamSettings], torch.optim.Optimizer]
    device_types: frozenset[str] = frozenset({"cuda", "cpu"})
    hyper_dtype: torch.dtype = torch.float64
    float32_bias_on: frozenset[str] = frozenset()
    launches_per_tensor: bool = False
    missing: Callable[[], str | None] = _always

    def bias_dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype in which the bias correction takes the betas on `device`."""
        return torch.float32 if device.type in self.float32_bias_on else torch.float64

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this candidate cannot run on `device`, or None."""
        return _unavailable(self.name, self.device_types, self.missing, device)


@dataclass(frozen=True)
class LayerNormCandidate:
    """One implementation of LayerNorm.

    Attributes:
        name: its name in keys, ids and tables.
        build: normalized_shape and eps to a module with `weight` and `bias`.
        device_types: where it runs: "cuda", "cpu".
        dtypes: in which it is meant to be used.
        half_sums_on: device types where dgamma and dbeta of half-precision inputs are summed in that precision.
        missing: why it is not available in this environment, or None.
    """

    name: str
    build: Callable[[int, float], nn.Module]
    device_types: frozenset[str] = frozenset({"cuda", "cpu"})
    dtypes: frozenset[torch.dtype] = frozenset({torch.float32, torch.bfloat16, torch.float16})
    half_sums_on: frozenset[str] = frozenset()
    missing: Callable[[], str | None] = _always

    def unavailable(self, device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
        """Return why this candidate cannot run on `device` in `dtype`, or None."""
        if dtype not in self.dtypes:
            return f"{self.name} is not meant for {dtype}: it rounds after every operation"
        return _unavailable(self.name, self.device_types, self.missing, device)

    def sum_dtype(self, dtype: torch.dtype, device: torch.device) -> torch.dtype:
        """Return the dtype in which dgamma and dbeta are summed over the rows of an input of `dtype`."""
        return dtype if device.type in self.half_sums_on else torch.float32


def _unavailable(
    name: str, device_types: frozenset[str], missing: Callable[[], str | None], device: torch.device
) -> str | None:
    if device.type not in device_types:
        return f"{name} has no {device.type.upper()} kernel"
    return missing()


class PrimitiveLayerNorm(nn.Module):
    """LayerNorm from mean, variance, subtract, divide, scale and shift: what a fused kernel replaces.

    Args:
        normalized_shape: hidden size of the input ``(..., hidden)``.
        eps: added to the variance, under the root.
    """

    def __init__(self, normalized_shape: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(normalized_shape))
        self.bias = nn.Parameter(torch.zeros(normalized_shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize the last dimension of `x`, shape ``(..., hidden)``; dtype as `x`."""
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + self.eps) * self.weight + self.bias


def _torch_adam(**flags: Any) -> Callable[[Iterable[torch.Tensor], AdamSettings], torch.optim.Optimizer]:
    def build(params: Iterable[torch.Tensor], settings: AdamSettings) -> torch.optim.Optimizer:
        kind = torch.optim.AdamW if settings.decoupled else torch.optim.Adam
        return kind(
            params,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            **flags,
        )

    return build


def _apex_adam(params: Iterable[torch.Tensor], settings: AdamSettings) -> torch.optim.Optimizer:
    from apex.optimizers import FusedAdam

    optimizer: torch.optim.Optimizer = FusedAdam(
        list(params),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        adam_w_mode=settings.decoupled,
    )
    return optimizer


def _apex_layer_norm(normalized_shape: int, eps: float) -> nn.Module:
    from apex.normalization import FusedLayerNorm

    module: nn.Module = FusedLayerNorm(normalized_shape, eps=eps)
    return module


def _by_name(*records: Any) -> Mapping[str, Any]:
    return MappingProxyType({record.name: record for record in records})


ADAM: Mapping[str, AdamCandidate] = _by_name(
    AdamCandidate("torch_loop", _torch_adam(foreach=False, fused=False), launches_per_tensor=True),
    AdamCandidate("torch_default", _torch_adam()),
    AdamCandidate("torch_foreach", _torch_adam(foreach=True)),
    # Measured on torch 2.11: on CUDA the second step's update is 6.4e-6 too small for betas in FP64, right for FP32.
    AdamCandidate("torch_fused", _torch_adam(fused=True), float32_bias_on=_CUDA),
    AdamCandidate(
        "apex",
        _apex_adam,
        device_types=_CUDA,
        hyper_dtype=torch.float32,
        float32_bias_on=_CUDA,
        missing=preflight.apex_missing_reason,
    ),
)

LAYER_NORM: Mapping[str, LayerNormCandidate] = _by_name(
    # In half precision each of its operations rounds: several ulps off, so nobody should train with it.
    LayerNormCandidate("primitive", PrimitiveLayerNorm, dtypes=frozenset({torch.float32})),
    # Measured on torch 2.13: over 2,048 rows in BF16 the CPU's dgamma is off by several times its own size.
    LayerNormCandidate("torch", lambda shape, eps: nn.LayerNorm(shape, eps=eps), half_sums_on=frozenset({"cpu"})),
    LayerNormCandidate("apex", _apex_layer_norm, device_types=_CUDA, missing=preflight.apex_missing_reason),
)


@dataclass(frozen=True)
class KernelSet:
    """What "fused" means in the ladder: names of an Adam and a LayerNorm candidate. Part of every ladder key."""

    name: str
    adam: str
    layer_norm: str

    def unavailable(self, device: torch.device) -> str | None:
        """Return why this set cannot run on `device`, or None."""
        return ADAM[self.adam].unavailable(device) or LAYER_NORM[self.layer_norm].unavailable(device)


KERNEL_SETS: Mapping[str, KernelSet] = MappingProxyType(
    {
        "apex": KernelSet("apex", adam="apex", layer_norm="apex"),
        # nn.LayerNorm is torch's own fused kernel: with this set, stage 3 is the same program as stage 2.
        "torch": KernelSet("torch", adam="torch_fused", layer_norm="torch"),
    }
)


def default_kernel_set(device: torch.device) -> KernelSet:
    """Return Apex's kernels where they run, else torch's own."""
    return KERNEL_SETS["torch" if KERNEL_SETS["apex"].unavailable(device) else "apex"]
