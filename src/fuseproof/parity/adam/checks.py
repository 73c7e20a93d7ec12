"""The questions asked of every Adam, each a function that raises `ParityError` where the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.regimes import REGIMES, SEED, SHAPES, Regime, make_params
from fuseproof.parity.layouts import channels_last, padded_rows, shifted, shifted_by_8_bytes, transposed

__all__ = [
    "LAYOUTS",
    "STRUCTURES",
    "Layout",
    "case_of",
    "check_layout",
    "check_overflowing_squares",
    "check_regime",
    "usual_adam",
]

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
        # The tensor that fills the last place of a launch has a chunk more.
        "30th_of_65537_elements": (*((5, 3),) * 29, (65_537,), (5, 3)),
        "36th_of_65537_elements": (*((5, 3),) * 35, (65_537,), (5, 3)),
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


def check_overflowing_squares(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Take one step with gradients of 1e25 among usual ones: FP32 has no number for their squares.

    What the update is there depends on where it overflows; a second step may be NaN by right arithmetic too.

    Raises:
        ParityError: a parameter is not finite.

    """
    regime = Regime("overflowing_squares", "infinity times zero", gradients=_every_other_huge)
    params = make_params(regime, dtype, device, SEED)
    optimizer = candidate.build(params, settings)
    regime.set_gradients(params, 1, SEED)
    optimizer.step()
    spoiled = sum(int((~param.isfinite()).sum()) for param in params)
    if spoiled:
        case = case_of(dtype, regime.name, settings, SEED)
        raise ParityError(
            f"finite gradients of 1e25 make {spoiled} parameters infinite or NaN ({candidate.name}, {case})"
        )


def _every_other_huge(noise: torch.Tensor, _: int) -> torch.Tensor:
    values = noise.clone().flatten()
    values[::2] = values[::2].sign() * 1e25
    return values.view(noise.shape)


def usual_adam(
    candidate: AdamCandidate, what: str, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> CheckedAdam:
    """Return an Adam over one group of parameters of the usual regime, each of whose steps is checked.

    Args:
        candidate, settings: which Adam, and its hyper-parameters.
        what: is done with it, for messages.
        dtype, device: of the parameters.

    """
    params = make_params(_USUAL, dtype, device, SEED)
    return CheckedAdam(candidate, [Group(params, settings)], case_of(dtype, what, settings, SEED))


def case_of(dtype: torch.dtype, what: str, settings: AdamSettings, seed: int) -> str:
    """Return what is run, for messages."""
    return f"{str(dtype).removeprefix('torch.')}, {what}, {settings}, seed {seed}"


def _expanded(values: torch.Tensor) -> torch.Tensor:
    """Return the first value as a tensor of that shape whose elements are all one in memory."""
    return values.flatten()[:1].expand(values.numel()).view(values.shape)


@dataclass(frozen=True)
class Layout:
    """How parameters and their gradients lie in memory.

    Attributes:
        of_param, of_grad: what lays them out.
        shapes: of the parameters; with and without a tail behind the last whole vector.

    """

    of_param: Callable[[torch.Tensor], torch.Tensor]
    of_grad: Callable[[torch.Tensor], torch.Tensor]
    shapes: Sequence[tuple[int, ...]] = ((4, 3, 5, 2), (3, 3, 5, 3))


def _unaligned_slice(values: torch.Tensor) -> torch.Tensor:
    """Rows are further apart than they are long, by an odd number, and begin at an odd one."""
    return padded_rows(values, 2 * values.shape[-1] + 1, 1)


_MATRICES = ((5, 6), (7, 8))
LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        "both_channels_last": Layout(channels_last, channels_last),
        "gradient_channels_last": Layout(torch.Tensor.contiguous, channels_last),
        "parameter_channels_last": Layout(channels_last, torch.Tensor.contiguous),
        "both_transposed": Layout(transposed, transposed),
        "gradient_transposed": Layout(torch.Tensor.contiguous, transposed),
        "parameter_transposed": Layout(transposed, torch.Tensor.contiguous),
        "gradient_expanded": Layout(torch.Tensor.contiguous, _expanded),
        "gradient_padded_rows": Layout(torch.Tensor.contiguous, _unaligned_slice, _MATRICES),
        "parameter_padded_rows": Layout(_unaligned_slice, torch.Tensor.contiguous, _MATRICES),
        "both_padded_rows": Layout(_unaligned_slice, _unaligned_slice, _MATRICES),
        "parameter_shifted": Layout(shifted, torch.Tensor.contiguous),
        "gradient_shifted": Layout(torch.Tensor.contiguous, shifted),
        "both_shifted": Layout(shifted, shifted),
        "parameter_shifted_by_8_bytes": Layout(shifted_by_8_bytes, torch.Tensor.contiguous),
        "gradient_shifted_by_8_bytes": Layout(torch.Tensor.contiguous, shifted_by_8_bytes),
        "both_shifted_by_8_bytes": Layout(shifted_by_8_bytes, shifted_by_8_bytes),
    }
)


def check_layout(
    candidate: AdamCandidate, layout: str, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Run a candidate over parameters and gradients that lie in memory as `layout` says, beside a plain one.

    Raises:
        ParityError: values went to the wrong place, or to a neighbour in the same storage.

    """
    how = LAYOUTS[layout]
    *laid_out, plain = make_params(_USUAL, dtype, device, SEED, (*how.shapes, (5, 3)))
    params = [*(how.of_param(each.detach()).requires_grad_() for each in laid_out), plain]
    case = case_of(dtype, layout, settings, SEED)
    around = [_around(param.detach()) for param in params]
    adam = CheckedAdam(candidate, [Group(params, settings)], case)

    def step() -> None:
        adam.optimizer.step()
        if any(bool(storage[outside].count_nonzero()) for storage, outside in around):
            raise ParityError(f"neighbours of a parameter in its storage were written ({case})")

    for number in range(1, 4):
        _USUAL.set_gradients(params, number, SEED)
        for param in params[:-1]:
            assert param.grad is not None
            param.grad = how.of_grad(param.grad)
        adam.step(by=step)
    adam.finish()


def _around(param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a parameter's whole storage, flat, and where it holds none of its elements."""
    numel = param.untyped_storage().nbytes() // param.element_size()
    storage = torch.as_strided(param, (numel,), (1,), 0)
    outside = torch.ones_like(storage, dtype=torch.bool)
    torch.as_strided(outside, param.shape, param.stride(), param.storage_offset()).fill_(False)
    return storage, outside
