"""The implementations of LayerNorm and RMSNorm that the suite knows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from fuseproof import preflight
from fuseproof.candidates.record import CUDA, NormCandidate, by_name, compiler_missing_reason

__all__ = ["LAYER_NORM", "RMS_NORM", "PrimitiveLayerNorm"]


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


def _apex(name: str, **flags: Any) -> Callable[[int, float], nn.Module]:
    def build(normalized_shape: int, eps: float) -> nn.Module:
        from apex import normalization

        module: nn.Module = getattr(normalization, name)(normalized_shape, eps=eps, **flags)
        return module

    return build


def _liger(name: str) -> Callable[[int, float], nn.Module]:
    def build(normalized_shape: int, eps: float) -> nn.Module:
        from liger_kernel import transformers

        module: nn.Module = getattr(transformers, name)(normalized_shape, eps=eps)
        return module

    return build


def _liger_missing_reason() -> str | None:
    if importlib.util.find_spec("liger_kernel") is None:
        return "Liger is not installed (pip install liger-kernel)"
    return None


def _compiled(build: Callable[[int, float], nn.Module]) -> Callable[[int, float], nn.Module]:
    def build_compiled(normalized_shape: int, eps: float) -> nn.Module:
        module = build(normalized_shape, eps)
        module.compile()
        return module

    return build_compiled


def _torch_layer_norm(normalized_shape: int, eps: float) -> nn.Module:
    return nn.LayerNorm(normalized_shape, eps=eps)


def _torch_rms_norm(normalized_shape: int, eps: float) -> nn.Module:
    return nn.RMSNorm(normalized_shape, eps=eps)


_CPU = frozenset({"cpu"})

LAYER_NORM: Mapping[str, NormCandidate] = by_name(
    # In half precision each of its operations rounds: several ulps off, so nobody should train with it.
    NormCandidate("primitive", PrimitiveLayerNorm, dtypes=frozenset({torch.float32})),
    # Measured on torch 2.13: over 2,048 rows in BF16 the CPU's dgamma is off by several times its own size.
    NormCandidate("torch", _torch_layer_norm, half_sums_on=_CPU),
    NormCandidate(
        "torch_compiled",
        _compiled(_torch_layer_norm),
        half_sums_on=_CPU,
        nightly=False,
        compiled=True,
        missing=compiler_missing_reason,
    ),
    NormCandidate(
        "apex", _apex("FusedLayerNorm"), half_affine=True, device_types=CUDA, missing=preflight.apex_missing_reason
    ),
    NormCandidate(
        "apex_memory_efficient",
        _apex("FusedLayerNorm", memory_efficient=True),
        half_affine=True,
        x_hat_from_output=True,
        device_types=CUDA,
        nightly=False,
        missing=preflight.apex_missing_reason,
    ),
    NormCandidate(
        "apex_mixed",
        _apex("MixedFusedLayerNorm"),
        half_affine=True,
        device_types=CUDA,
        nightly=False,
        missing=preflight.apex_missing_reason,
    ),
    NormCandidate("liger", _liger("LigerLayerNorm"), device_types=CUDA, nightly=False, missing=_liger_missing_reason),
)

RMS_NORM: Mapping[str, NormCandidate] = by_name(
    NormCandidate("torch", _torch_rms_norm, kind="rms_norm", half_sums_on=_CPU),
    NormCandidate(
        "apex",
        _apex("FusedRMSNorm"),
        half_affine=True,
        kind="rms_norm",
        device_types=CUDA,
        missing=preflight.apex_missing_reason,
    ),
    NormCandidate(
        "apex_mixed",
        _apex("MixedFusedRMSNorm"),
        half_affine=True,
        kind="rms_norm",
        device_types=CUDA,
        missing=preflight.apex_missing_reason,
    ),
    NormCandidate("liger", _liger("LigerRMSNorm"), kind="rms_norm", device_types=CUDA, missing=_liger_missing_reason),
)
