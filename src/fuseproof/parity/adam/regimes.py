"""Named inputs of an optimizer: gradients and parameters with the fault that each exists for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import TypeAlias

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity.bits import copies

__all__ = ["MODES", "REGIMES", "SEED", "SHAPES", "Regime", "make_params", "settings_in_mode", "usual_settings"]

MODES = ("l2", "decoupled")
SEED = 20261129
_REMEMBERED = 2**14  # elements of all parameters, up to which drawn gradients are kept
_PERIOD = 2**20 + 7  # prime, so that no two chunks of a kernel hold the same numbers

# A matrix, a vector that no vector width divides, one element, and both sides of a multiple of 256.
SHAPES: tuple[tuple[int, ...], ...] = ((48, 33), (7,), (128,), (1,), (257,))
_Values: TypeAlias = Callable[[torch.Tensor, int], torch.Tensor]


def _always(_tensor: int, _step: int) -> bool:
    return True


def _normal(scale: float) -> _Values:
    return lambda noise, _: scale * noise


def _standard(noise: torch.Tensor, _: int) -> torch.Tensor:
    return noise


def _changing(noise: torch.Tensor, step: int) -> torch.Tensor:
    """Sizes change between steps: without that, momentum and AMSGrad's maximum are invisible."""
    return noise * 2.0 ** -(5 + 3 * (step % 3))


def _log_uniform(low: float, high: float) -> _Values:
    def draw(noise: torch.Tensor, _: int) -> torch.Tensor:
        position = torch.special.ndtr(noise.abs()) * 2 - 1  # uniform from 0 to 1
        return torch.copysign(torch.exp(math.log(low) + position * math.log(high / low)), noise)

    return draw


def _zeros(noise: torch.Tensor, step: int) -> torch.Tensor:
    """Every third element never has a gradient, and from the third step on only every fifth has one."""
    values, flat = _changing(noise, step).flatten(), torch.arange(noise.numel())
    values[(flat % 3 == 0) | ((step > 2) & (flat % 5 != 1))] = 0.0
    return values.view(noise.shape)


def _non_finite(noise: torch.Tensor, step: int) -> torch.Tensor:
    values = _changing(noise, step).flatten()
    if step == 2 and values.numel() > 3:
        values[1], values[2], values[-1] = torch.nan, torch.inf, -torch.inf
    return values.view(noise.shape)


@dataclass(frozen=True)
class Regime:
    """One kind of gradients and parameters over a few steps.

    Attributes:
        name: its worded id.
        catches: the fault that it exists for.
        faults: the numbers of faults in `fuseproof.parity.faults` that it shows.
        gradients: standard normal noise and the step (first: 1) to gradients, float64.
        fp16_gradients: the same for FP16, whose numbers span less; None: the same.
        params: standard normal noise to parameters.
        lr: learning rate in FP32, and in half precision, where an update shall span many ulps of parameters near 1.
        present: whether a tensor (by position) has a gradient at a step.

    """

    name: str
    catches: str
    faults: tuple[int, ...] = ()
    gradients: _Values = _changing
    fp16_gradients: _Values | None = None
    params: _Values = _standard
    lr: tuple[float, float] = (1e-3, 0.1)
    present: Callable[[int, int], bool] = _always

    def lr_for(self, dtype: torch.dtype) -> float:
        """Return the learning rate for parameters of `dtype`."""
        return self.lr[dtype != torch.float32]

    def set_gradients(self, params: list[torch.Tensor], step: int, seed: int) -> None:
        """Give each parameter its gradient of this step, or None; the same on every device."""
        kinds = tuple((param.shape, param.dtype) for param in params)
        few = sum(shape.numel() for shape, _ in kinds) <= _REMEMBERED
        drawn = (_drawn if few else _drawn.__wrapped__)(self, kinds, step, seed)
        receiving = []
        for param, values in zip(params, drawn, strict=True):
            param.grad = None
            receiving += [] if values is None else [param]
        sent = _sent([values for values in drawn if values is not None], receiving)
        for param, values in zip(receiving, sent, strict=True):
            param.grad = torch.empty_like(param, requires_grad=False).copy_(_repeated(values, param.shape))


@lru_cache(maxsize=256)  # the same gradients are for many candidates; of the oracle's time they would take a tenth
def _drawn(
    regime: Regime, kinds: tuple[tuple[torch.Size, torch.dtype], ...], step: int, seed: int
) -> list[torch.Tensor | None]:
    """Return gradients for parameters of those shapes and dtypes on the host, to be copied; None for no gradient."""
    generator = torch.Generator().manual_seed(seed * 1009 + step)
    drawn: list[torch.Tensor | None] = []
    for position, (shape, dtype) in enumerate(kinds):
        noise = _noise(shape, generator)
        draw = regime.fp16_gradients if dtype == torch.float16 and regime.fp16_gradients else regime.gradients
        drawn.append(draw(noise, step).to(dtype) if regime.present(position, step) else None)
    return drawn


def _noise(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Return standard normal noise, float64; for a shape of more than `_PERIOD` elements one period of it, flat."""
    drawn = torch.randn(min(shape.numel(), _PERIOD), generator=generator, dtype=torch.float64)
    return drawn.view(shape) if shape.numel() <= _PERIOD else drawn


def _repeated(values: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return values in that shape: of a period as many as fill it, made where it is, since 21 M are slow to send."""
    numel = shape.numel()
    return values if values.shape == shape else values.repeat(-(-numel // values.numel()))[:numel].view(shape)


def _sent(values: list[torch.Tensor], params: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return values where parameters are, all of them on one device; on a GPU a few transfers take them there."""
    return copies(values, params[0].device) if params and params[0].device.type == "cuda" else values


def make_params(
    regime: Regime, dtype: torch.dtype, device: torch.device, seed: int, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> list[torch.Tensor]:
    """Return parameters of those shapes, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    noise = [_noise(torch.Size(shape), generator) for shape in shapes]
    drawn = copies([regime.params(each, 0).to(dtype) for each in noise], device)
    # Each in storage of its own, as parameters are.
    return [
        _repeated(each, torch.Size(shape)).clone().requires_grad_() for each, shape in zip(drawn, shapes, strict=True)
    ]


def _every_other_zero(noise: torch.Tensor, _: int) -> torch.Tensor:
    """At zero an update is not rounded to its parameter's ulp."""
    values = noise.clone().flatten()
    values[::2] = 0.0
    return values.view(noise.shape)


def _known(*regimes: Regime) -> Mapping[str, Regime]:
    return MappingProxyType({regime.name: regime for regime in regimes})


REGIMES = _known(
    Regime(
        "mixed_signs",
        "wrong constants, order of operations, momentum: gradients of both signs that change",
        faults=(8,),
    ),
    Regime(
        "constant_gradients",
        "what only accumulates: with the same gradient every step the update stays lr against its sign",
        gradients=lambda noise, _: noise / 32,
    ),
    Regime(
        "small_gradients",
        "moments in half precision: with gradients of a thousandth their squares are no numbers of FP16",
        gradients=lambda noise, _: noise / 1024,
    ),
    Regime("one_sign", "bias that signs cancel", gradients=lambda noise, step: _changing(noise, step).abs()),
    Regime(
        "tiny_gradients",
        "place and size of eps: gradients about eps and below",
        faults=(11,),
        gradients=_log_uniform(1e-13, 1e-6),
        fp16_gradients=_log_uniform(1e-7, 1e-5),
        params=_every_other_zero,
    ),
    Regime(
        "huge_gradients",
        "overflow of squares, constants hidden behind eps",
        faults=(11,),
        gradients=_log_uniform(1e2, 1e16),
        fp16_gradients=_log_uniform(1e1, 6e4),
    ),
    Regime(
        "wide_range",
        "approximations that hold for usual sizes only",
        gradients=_log_uniform(1e-9, 1e3),
        fp16_gradients=_log_uniform(1e-6, 1e3),
    ),
    Regime(
        "fading_gradients",
        "maxima and stale squares: each step's gradients are a quarter of the last one's",
        gradients=lambda noise, step: noise * 4.0**-step,
    ),
    Regime(
        "zero_gradients",
        "moments that are not decayed where the gradient is exactly zero",
        faults=(11,),
        gradients=_zeros,
    ),
    Regime(
        "late_gradient",
        "one step count for many parameters: the second's first gradient comes at step 4",
        faults=(2,),
        present=lambda tensor, step: tensor != 1 or step >= 4,
    ),
    Regime(
        "absent_gradients",
        "work on parameters without gradient: each misses two steps, then one, the last has none",
        faults=(2,),
        present=lambda tensor, step: (tensor + step) % 5 in {2, 4} and tensor != len(SHAPES) - 1,
    ),
    Regime("non_finite", "NaN and Inf that spread, or vanish", gradients=_non_finite),
    Regime(
        "large_params",
        "decay and update of different sizes",
        faults=(8,),
        params=_normal(100.0),
        lr=(1e-2, 2.0),
    ),
    Regime(
        "sub_ulp_updates",
        "masters that do not move, rounding up where it should be to nearest",
        lr=(1e-8, 1e-4),
    ),
)


def settings_in_mode(mode: str, **values: object) -> AdamSettings:
    """Return settings with a kind of weight decay by its name."""
    return AdamSettings(decoupled=mode == "decoupled", **values)  # type: ignore[arg-type]


def usual_settings(candidate: AdamCandidate, dtype: torch.dtype, **values: object) -> AdamSettings:
    """Return settings for the usual gradients: some weight decay, decoupled where the candidate can."""
    usual = {"lr": REGIMES["mixed_signs"].lr_for(dtype), "weight_decay": 0.01}
    return settings_in_mode("decoupled" if "decoupled" in candidate.decay_modes else "l2", **{**usual, **values})
