"""The implementations of Adam that the suite knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fuseproof import preflight
from fuseproof.candidates.record import (
    CUDA,
    AdamCandidate,
    AdamSettings,
    Arithmetic,
    Kernel,
    by_name,
    compiler_missing_reason,
)

__all__ = ["ADAM"]

_Build = Callable[[Iterable[torch.Tensor], AdamSettings], torch.optim.Optimizer]


def _torch(**flags: Any) -> _Build:
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


def _torch_compiled(params: Iterable[torch.Tensor], settings: AdamSettings) -> torch.optim.Optimizer:
    optimizer = _torch()(params, settings)
    # A method is replaced on purpose: the optimizer stays what it is, with a compiled step.
    setattr(optimizer, "step", torch.compile(optimizer.step, fullgraph=False))  # noqa: B010
    return optimizer


def _apex(**flags: Any) -> _Build:
    def build(params: Iterable[torch.Tensor], settings: AdamSettings) -> torch.optim.Optimizer:
        from apex.optimizers import FusedAdam

        optimizer: torch.optim.Optimizer = FusedAdam(
            list(params),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            adam_w_mode=settings.decoupled,
            bias_correction=settings.bias_correction,
            **flags,
        )
        return optimizer

    return build


_F32 = torch.float32
# The step count is a float32 tensor, so the power is FP32 too; lr and the other betas are Python floats.
_FLOAT32_STEP = Arithmetic(bias_betas=_F32, power_ulps=2)
# Measured on torch 2.11: with FP64 betas in the oracle, exp_avg_sq is 6.5e-6 and the update 6.9e-6 too small.
_TORCH_FUSED_CUDA = Arithmetic(hyper=_F32, bias_betas=_F32, power_ulps=2)
# The host computes the power of FP32 betas in FP64 ...
_APEX = Arithmetic(hyper=_F32, bias_betas=_F32)
# ... and the capturable kernels on the device, under --use_fast_math: through approximate log2 and exp2.
_APEX_CAPTURABLE = Arithmetic(hyper=_F32, bias_betas=_F32, power_ulps=8)


def _apex_candidate(name: str, **facts: Any) -> AdamCandidate:
    flags = {flag: True for flag in ("capturable", "master_weights") if facts.get(flag)}
    return AdamCandidate(
        name,
        _apex(**flags),
        device_types=CUDA,
        arithmetic_on={"cuda": _APEX_CAPTURABLE if flags else _APEX},
        moments="float32",
        step_count="group",
        switches_correction=True,
        own_kernels=True,
        missing=preflight.apex_missing_reason,
        **facts,
    )


# One operator on a CPU; on CUDA a functor that many instantiations of one kernel name in their template arguments.
_TORCH_FUSED_KERNELS = {"cuda": Kernel(r"FusedAdamMathFunctor"), "cpu": Kernel(r"aten::_fused_adamw?_$")}
_TORCH_FOREACH_KERNELS = {"cuda": Kernel(r"multi_tensor_apply_kernel", launches=None)}

ADAM: Mapping[str, AdamCandidate] = by_name(
    AdamCandidate("torch_loop", _torch(foreach=False, fused=False), launches_per_tensor=True),
    AdamCandidate("torch_default", _torch(), kernels=_TORCH_FOREACH_KERNELS),
    AdamCandidate("torch_foreach", _torch(foreach=True), kernels=_TORCH_FOREACH_KERNELS),
    # With a GradScaler it writes the unscaled gradients back.
    AdamCandidate(
        "torch_fused",
        _torch(fused=True),
        arithmetic_on={"cuda": _TORCH_FUSED_CUDA},
        kernels=_TORCH_FUSED_KERNELS,
        writes=frozenset({"grad"}),
    ),
    AdamCandidate(
        "torch_fused_capturable",
        _torch(fused=True, capturable=True),
        arithmetic_on={"cuda": _TORCH_FUSED_CUDA},
        kernels=_TORCH_FUSED_KERNELS,
        capturable=True,
        writes=frozenset({"grad"}),
        nightly=False,
    ),
    # Its loop and foreach forms assert on a CPU.
    AdamCandidate(
        "torch_capturable",
        _torch(foreach=True, capturable=True),
        device_types=CUDA,
        arithmetic_on={"cuda": _FLOAT32_STEP},
        kernels=_TORCH_FOREACH_KERNELS,
        capturable=True,
        nightly=False,
    ),
    AdamCandidate(
        "torch_compiled",
        _torch_compiled,
        arithmetic_on={"cuda": _FLOAT32_STEP, "cpu": _FLOAT32_STEP},
        compiled=True,
        kernels={"cuda": Kernel(r"^triton_", launches=None)},
        nightly=False,
        missing=compiler_missing_reason,
    ),
    _apex_candidate("apex", kernels={"cuda": Kernel(r"\bAdamFunctor<")}),
    # With a GradScaler it writes the unscaled gradients back.
    _apex_candidate(
        "apex_capturable",
        kernels={"cuda": Kernel(r"\bAdamCapturableFunctor<")},
        capturable=True,
        nightly=False,
        writes=frozenset({"grad"}),
    ),
    _apex_candidate(
        "apex_master",
        kernels={"cuda": Kernel(r"\bAdamCapturableMasterFunctor<")},
        capturable=True,
        nightly=False,
        master_weights=True,
        writes=frozenset({"grad"}),
    ),
)
