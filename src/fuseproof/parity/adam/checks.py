"""The questions asked of every Adam, each a function that raises `ParityError` where the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.regimes import REGIMES, SHAPES, Regime, make_params
from fuseproof.parity.layouts import channels_last, shifted, transposed

__all__ = ["LAYOUTS", "SEED", "STRUCTURES", "check_layout", "check_overflow", "check_regime", "check_scaled"]

SEED = 20261129
_USUAL = REGIMES["mixed_signs"]
_SCALE = 2.0**10  # FP16 gradients times it stay finite, and division by it is exact

# Shapes on both sides of where kernels cut their work: launches take 36 tensors (30 with masters), chunks 65,536
# elements.
STRUCTURES: Mapping[str, Sequence[tuple[int, ...]]] = MappingProxyType(
    {
        "1_tensor": ((5, 3),),
        "30_tensors": ((5, 3),) * 30,
        "31_tensors": ((5, 3),) * 31,
        "36_tensors": ((5, 3),) * 36,
        "37_tensors": ((5, 3),) * 37,
        "72_tensors": ((5, 3),) * 72,
        "73_tensors": ((5, 3),) * 73,
        "65535_elements": ((65_535,),),
        "65536_elements": ((65_536,),),
        "65537_elements": ((65_537,),),
        "131073_elements_and_1": ((131_073,), (1,)),
        "empty_first": ((0,), (5, 3), (7,)),
        "empty_between": ((5, 3), (3, 0), (7,)),
        "empty_last": ((5, 3), (7,), (0, 4)),
        "empty_only": ((0,),),
        "no_dimension": ((), (5, 3)),
        "dimensions_of_1": ((1, 1, 5, 1), (1,), (1, 3, 1)),
    }
)


def check_regime(
    candidate: AdamCandidate,
    regime: Regime,
    settings: AdamSettings,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = SEED,
    steps: int = 6,
    shapes: Sequence[tuple[int, ...]] = SHAPES,
) -> CheckedAdam:
    """Run a candidate through a regime: every step from its own state, then the whole way.

    Raises:
        ParityError: anything is wrong.

    """
    params = make_params(regime, dtype, device, seed, shapes)
    adam = CheckedAdam(candidate, [Group(params, settings)], _case(dtype, regime.name, settings, seed))
    for step in range(1, steps + 1):
        regime.set_gradients(params, step, seed)
        adam.step()
    adam.finish()
    return adam


def _case(dtype: torch.dtype, what: str, settings: AdamSettings, seed: int) -> str:
    return f"{str(dtype).removeprefix('torch.')}, {what}, {settings}, seed {seed}"


_Layout = Callable[[torch.Tensor], torch.Tensor]
# How a parameter and its gradient lie in memory; the shape is (4, 3, 5, 2) always.
LAYOUTS: Mapping[str, tuple[_Layout, _Layout]] = MappingProxyType(
    {
        "both_channels_last": (channels_last, channels_last),
        "gradient_channels_last": (torch.Tensor.contiguous, channels_last),
        "parameter_channels_last": (channels_last, torch.Tensor.contiguous),
        "both_transposed": (transposed, transposed),
        "gradient_transposed": (torch.Tensor.contiguous, transposed),
        "parameter_transposed": (transposed, torch.Tensor.contiguous),
        "parameter_shifted": (shifted, torch.Tensor.contiguous),
        "gradient_shifted": (torch.Tensor.contiguous, shifted),
        "both_shifted": (shifted, shifted),
    }
)


def check_layout(
    candidate: AdamCandidate, layout: str, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Run a candidate over parameters and gradients that lie in memory as `layout` says, beside a plain one.

    Raises:
        ParityError: values went to the wrong place, or to a neighbour in the same storage.

    """
    of_param, of_grad = LAYOUTS[layout]
    shapes = ((4, 3, 5, 2), (5, 3))
    first, plain = make_params(_USUAL, dtype, device, SEED, shapes)
    params = [of_param(first.detach()).requires_grad_(), plain]
    case = _case(dtype, layout, settings, SEED)
    ends = torch.as_strided(params[0].detach(), (first.numel() + 2,), (1,), 0) if of_param is shifted else None
    adam = CheckedAdam(candidate, [Group(params, settings)], case)
    for step in range(1, 4):
        _USUAL.set_gradients(params, step, SEED)
        assert params[0].grad is not None
        params[0].grad = of_grad(params[0].grad)
        adam.step()
        if ends is not None and bool(ends[[0, -1]].count_nonzero()):
            raise ParityError(f"neighbours of a parameter in its storage were written ({case})")
    adam.finish()


def check_scaled(
    candidate: AdamCandidate, settings: AdamSettings, device: torch.device, *, unscale: bool = False
) -> None:
    """Run a candidate over FP32 parameters under a GradScaler, with gradients of the size of eps among them.

    Args:
        candidate, settings, device: as ever.
        unscale: unscale gradients and clip their norm before the step, as training loops do.

    Raises:
        ParityError: a step differs from that with unscaled gradients.

    """
    _scaled_steps(candidate, settings, device, overflows={}, unscale=unscale)


def check_overflow(
    candidate: AdamCandidate, settings: AdamSettings, device: torch.device, *, tensor: int, element: int, value: float
) -> None:
    """Run a candidate under a GradScaler where two of five steps have an element that is not finite.

    Args:
        candidate, settings, device: as ever.
        tensor, element: where it is, in `fuseproof.parity.adam.regimes.SHAPES`; negative from the end.
        value: NaN or an infinity.

    Raises:
        ParityError: anything moves or counts in these steps, the scale does not fall, or a later step is wrong.

    """
    where = dict.fromkeys((1, 4), (tensor, element, value))
    _scaled_steps(candidate, settings, device, overflows=where, unscale=False)


def _scaled_steps(
    candidate: AdamCandidate,
    settings: AdamSettings,
    device: torch.device,
    *,
    overflows: Mapping[int, tuple[int, int, float]],
    unscale: bool,
) -> None:
    regime = replace(_USUAL, gradients=lambda noise, step: noise * (settings.eps if step % 2 else 2.0**-6))
    params = make_params(_USUAL, torch.float32, device, SEED)
    half = len(params) // 2
    groups = [Group(params[:half], settings), Group(params[half:], settings)]
    what = f"GradScaler{', unscaled and clipped' if unscale else ''}, overflows {dict(overflows)}"
    adam = CheckedAdam(candidate, groups, _case(torch.float32, what, settings, SEED))
    scaler = torch.amp.GradScaler(device.type, init_scale=_SCALE, growth_interval=100)
    scaler.scale(torch.ones((), device=device))  # a scaler makes its scale at the first loss
    for step in range(1, 6):
        regime.set_gradients(params, step, SEED)
        scale = float(scaler.get_scale())
        for param in params:
            assert param.grad is not None
            param.grad.mul_(scale)
        if overflow := overflows.get(step):
            tensor, element, value = overflow
            grad = params[tensor].grad
            assert grad is not None
            grad.flatten()[element] = value
        if unscale:
            scaler.unscale_(adam.optimizer)
            torch.nn.utils.clip_grad_norm_(params, 0.1)
        adam.step(1.0 if unscale else scale, bool(overflow), by=lambda: scaler.step(adam.optimizer))
        scaler.update()
        if float(scaler.get_scale()) != scale * (0.5 if overflow else 1.0):
            raise ParityError(f"the scale went from {scale:g} to {scaler.get_scale():g} in step {step} ({adam.case})")
    adam.finish()
