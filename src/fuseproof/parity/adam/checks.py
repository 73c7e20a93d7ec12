"""The questions asked of every Adam, each a function that raises `ParityError` where the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.regimes import REGIMES, SEED, SHAPES, Regime, make_params
from fuseproof.parity.layouts import channels_last, shifted, transposed

__all__ = ["LAYOUTS", "STRUCTURES", "case_of", "check_layout", "check_regime"]

_USUAL = REGIMES["mixed_signs"]

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
    adam = CheckedAdam(candidate, [Group(params, settings)], case_of(dtype, regime.name, settings, seed))
    for step in range(1, steps + 1):
        regime.set_gradients(params, step, seed)
        adam.step()
    adam.finish()
    return adam


def case_of(dtype: torch.dtype, what: str, settings: AdamSettings, seed: int) -> str:
    """Return what is run, for messages."""
    return f"{str(dtype).removeprefix('torch.')}, {what}, {settings}, seed {seed}"


def _expanded(values: torch.Tensor) -> torch.Tensor:
    """Return the first value as a tensor of that shape whose elements are all one in memory."""
    return values.flatten()[:1].expand(values.numel()).view(values.shape)


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
        "gradient_expanded": (torch.Tensor.contiguous, _expanded),
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
    case = case_of(dtype, layout, settings, SEED)
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
