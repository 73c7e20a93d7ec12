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
    BiasCorrection,
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
            **flags,
        )
        return optimizer

    return build


_FLOAT32_BETAS = BiasCorrection(torch.float32)
# The step count is a float32 tensor, and so is the power.
_FLOAT32 = BiasCorrection(torch.float32, power_ulps=2)
# --use_fast_math: the power goes through approximate log2 and exp2.
_FAST_FLOAT32 = BiasCorrection(torch.float32, power_ulps=8)


def _apex_candidate(name: str, **facts: Any) -> AdamCandidate:
    flags = {flag: True for flag in ("capturable", "master_weights") if facts.get(flag)}
    return AdamCandidate(
        name,
        _apex(**flags),
        device_types=CUDA,
        hyper_dtype=torch.float32,
        bias_on={"cuda": _FAST_FLOAT32 if flags else _FLOAT32_BETAS},
        moments="float32",
        step_count="group",
        missing=preflight.apex_missing_reason,
        **facts,
    )


ADAM: Mapping[str, AdamCandidate] = by_name(
    AdamCandidate("torch_loop", _torch(foreach=False, fused=False), launches_per_tensor=True),
    AdamCandidate("torch_default", _torch()),
    AdamCandidate("torch_foreach", _torch(foreach=True)),
    # Measured on torch 2.11: on CUDA the second step's update is 6.4e-6 too small for betas in FP64, right for FP32.
    AdamCandidate("torch_fused", _torch(fused=True), bias_on={"cuda": _FLOAT32_BETAS}),
    AdamCandidate(
        "torch_fused_capturable",
        _torch(fused=True, capturable=True),
        bias_on={"cuda": _FLOAT32_BETAS},
        capturable=True,
        nightly=False,
    ),
    # Its loop and foreach forms assert on a CPU.
    AdamCandidate(
        "torch_capturable",
        _torch(foreach=True, capturable=True),
        device_types=CUDA,
        bias_on={"cuda": _FLOAT32},
        capturable=True,
        nightly=False,
    ),
    AdamCandidate(
        "torch_compiled",
        _torch_compiled,
        bias_on={"cuda": _FLOAT32, "cpu": _FLOAT32},
        most_tensors=40,
        nightly=False,
        missing=compiler_missing_reason,
    ),
    _apex_candidate("apex"),
    # With a GradScaler it writes the unscaled gradients back.
    _apex_candidate("apex_capturable", capturable=True, nightly=False, writes=frozenset({"grad"})),
    _apex_candidate("apex_master", capturable=True, nightly=False, master_weights=True, writes=frozenset({"grad"})),
)
