"""The questions asked of every Adam, each a function that raises `ParityError` where the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.regimes import REGIMES, SEED, SHAPES, Regime, make_params
from fuseproof.parity.layouts import channels_last, shifted, shifted_by_8_bytes, transposed

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
        # Blocks of 128 to 512 threads, each with 1 to 8 elements: every size between two of them is in some class.
        "around_powers_of_2": tuple((2**k + beyond,) for k in range(1, 16) for beyond in (-1, 0, 1)),
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
# How a parameter and its gradient lie in memory; with and without a tail behind the last whole vector.
_LAID_OUT = ((4, 3, 5, 2), (3, 3, 5, 3))
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
        "parameter_shifted_by_8_bytes": (shifted_by_8_bytes, torch.Tensor.contiguous),
        "gradient_shifted_by_8_bytes": (torch.Tensor.contiguous, shifted_by_8_bytes),
        "both_shifted_by_8_bytes": (shifted_by_8_bytes, shifted_by_8_bytes),
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
    *laid_out, plain = make_params(_USUAL, dtype, device, SEED, (*_LAID_OUT, (5, 3)))
    params = [*(of_param(each.detach()).requires_grad_() for each in laid_out), plain]
    case = case_of(dtype, layout, settings, SEED)
    ends = [end for param in params for end in _ends(param.detach())]
    adam = CheckedAdam(candidate, [Group(params, settings)], case)
    for step in range(1, 4):
        _USUAL.set_gradients(params, step, SEED)
        for param in params[:-1]:
            assert param.grad is not None
            param.grad = of_grad(param.grad)
        adam.step()
        if any(bool(end.count_nonzero()) for end in ends):
            raise ParityError(f"neighbours of a parameter in its storage were written ({case})")
    adam.finish()


def _ends(param: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return what lies before and behind a parameter that was shifted in its storage."""
    by = param.storage_offset()
    return tuple(torch.as_strided(param, (by,), (1,), start) for start in (0, by + param.numel())) if by else ()
