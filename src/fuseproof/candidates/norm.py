"""The implementations of LayerNorm and RMSNorm that the suite knows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import nn

from fuseproof import preflight
from fuseproof.candidates.record import ALL_DTYPES, CUDA, NormCandidate, by_name, compiler_missing_reason

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


_Shape = int | tuple[int, ...]
_Build = Callable[..., nn.Module]


def _apex(name: str, **flags: Any) -> _Build:
    def build(normalized_shape: _Shape, eps: float, **left_out: bool) -> nn.Module:
        from apex import normalization

        module: nn.Module = getattr(normalization, name)(normalized_shape, eps=eps, **flags, **left_out)
        return module

    return build


def _liger(name: str) -> _Build:
    def build(normalized_shape: _Shape, eps: float) -> nn.Module:
        from liger_kernel import transformers

        (hidden,) = torch.Size([normalized_shape] if isinstance(normalized_shape, int) else normalized_shape)
        module: nn.Module = getattr(transformers, name)(hidden, eps=eps)
        return module

    return build


def _liger_missing_reason() -> str | None:
    if importlib.util.find_spec("liger_kernel") is None:
        return "Liger is not installed (pip install liger-kernel)"
    return None


def _compiled(build: _Build) -> _Build:
    def build_compiled(normalized_shape: _Shape, eps: float, **left_out: bool) -> nn.Module:
        module = build(normalized_shape, eps, **left_out)
        module.compile()
        return module

    return build_compiled


def _torch(kind: type[nn.Module]) -> _Build:
    def build(normalized_shape: _Shape, eps: float, **left_out: bool) -> nn.Module:
        return kind(normalized_shape, eps=eps, **left_out)

    return build


def _torch_statistics(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return y.grad_fn._saved_result1, y.grad_fn._saved_result2  # type: ignore[union-attr]  # of native_layer_norm


def _last_saved(y: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
    mean, rstd = y.grad_fn.saved_tensors[-2:]  # type: ignore[union-attr]  # of an autograd function written in Python
    return mean, rstd


def _last_saved_rstd(y: torch.Tensor) -> tuple[None, torch.Tensor]:
    return None, y.grad_fn.saved_tensors[-1]  # type: ignore[union-attr]


_CPU = frozenset({"cpu"})
_DOUBLE = ALL_DTYPES | {torch.float64}
_Omittable = frozenset[Literal["elementwise_affine", "bias"]]
_ALL_OR_NONE: _Omittable = frozenset({"elementwise_affine"})
_ANY: _Omittable = frozenset({"elementwise_affine", "bias"})
# Fills are the gradients of mean and rstd, which nobody asks for.
_APEX_KERNELS = (
    "cuApplyLayerNorm|cuApplyRMSNorm|cuComputePartGradGammaBeta|cuComputeGradGammaBeta|cuComputeGradInput"
    "|vectorized_elementwise_kernel"
)
# reduce_kernel: beyond 65,536 rows parts of them are summed by GammaBetaBackward, and the parts by torch's sum.
_TORCH_KERNELS = (
    "(vectorized_layer_norm|layer_norm_grad_input|LayerNormForward|RowwiseMoments|GammaBetaBackward|cuComputeGrad"
    "|reduce_kernel).*"
)


def _apex_candidate(name: str, built: str, memory_efficient: bool = False, **facts: Any) -> NormCandidate:
    return NormCandidate(
        name,
        _apex(built, memory_efficient=memory_efficient),
        device_types=CUDA,
        half_affine=True,
        x_hat_from_output=memory_efficient,
        leaves_out=frozenset() if built.startswith("Mixed") else _ALL_OR_NONE,
        statistics=_last_saved_rstd if facts.get("kind") == "rms_norm" else _last_saved,
        kernels=_APEX_KERNELS,
        missing=preflight.apex_missing_reason,
        **facts,
    )


LAYER_NORM: Mapping[str, NormCandidate] = by_name(
    # In half precision each of its operations rounds: several ulps off, so nobody should train with it.
    # Its means are torch's sums, which cut a row in other parts when it is alone.
    NormCandidate(
        "primitive",
        PrimitiveLayerNorm,
        dtypes=frozenset({torch.float32, torch.float64}),
        normalized_dims=1,
        batch_dependent_on=CUDA,
    ),
    # Measured on torch 2.13: over 2,048 rows in BF16 the CPU's dgamma is off by several times its own size.
    NormCandidate(
        "torch",
        _torch(nn.LayerNorm),
        dtypes=_DOUBLE,
        leaves_out=_ANY,
        half_backward_on=_CPU,
        half_partials_on=CUDA,
        statistics=_torch_statistics,
        kernels=_TORCH_KERNELS,
    ),
    NormCandidate(
        "torch_compiled",
        _compiled(_torch(nn.LayerNorm)),
        leaves_out=_ANY,
        half_backward_on=_CPU,
        half_partials_on=CUDA,
        nightly=False,
        compiled=True,
        missing=compiler_missing_reason,
    ),
    _apex_candidate("apex", "FusedLayerNorm"),
    _apex_candidate("apex_memory_efficient", "FusedLayerNorm", memory_efficient=True, nightly=False),
    _apex_candidate("apex_mixed", "MixedFusedLayerNorm", nightly=False),
    NormCandidate(
        "liger",
        _liger("LigerLayerNorm"),
        device_types=CUDA,
        normalized_dims=1,
        statistics=_last_saved,
        nightly=False,
        missing=_liger_missing_reason,
    ),
)

RMS_NORM: Mapping[str, NormCandidate] = by_name(
    NormCandidate(
        "torch",
        _torch(nn.RMSNorm),
        kind="rms_norm",
        dtypes=_DOUBLE,
        leaves_out=_ALL_OR_NONE,
        half_partials_on=CUDA,
        kernels=_TORCH_KERNELS,
    ),
    _apex_candidate("apex", "FusedRMSNorm", kind="rms_norm", dtypes=_DOUBLE),
    _apex_candidate("apex_mixed", "MixedFusedRMSNorm", kind="rms_norm", dtypes=_DOUBLE),
    NormCandidate(
        "liger",
        _liger("LigerRMSNorm"),
        kind="rms_norm",
        device_types=CUDA,
        normalized_dims=1,
        statistics=_last_saved_rstd,
        missing=_liger_missing_reason,
    ),
)
