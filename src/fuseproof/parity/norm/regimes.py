"""Named inputs of a norm: x, gamma, beta and dy with the fault that each exists for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import torch

from fuseproof.parity import DTYPES

__all__ = ["NORM_DTYPES", "REGIMES", "SEED", "NormInputs", "NormRegime"]

# FP64 is for those whose record claims it.
NORM_DTYPES = {**DTYPES, "fp64": torch.float64}
SEED = 20261129
_EPS = 1e-5  # what nn.LayerNorm takes where nobody says otherwise


@dataclass(frozen=True)
class NormInputs:
    """What a norm and its backward are given.

    Attributes:
        x, dy: ``(..., *normalized_shape)``.
        gamma, beta: ``normalized_shape``, or None where the norm has no such parameter.
        normalized_shape: the last dimensions of x, over which it is normalized.
        eps: added to the variance or mean square.

    """

    x: torch.Tensor
    dy: torch.Tensor
    gamma: torch.Tensor | None
    beta: torch.Tensor | None
    normalized_shape: tuple[int, ...]
    eps: float = _EPS

    def of(self, kind: str) -> NormInputs:
        """Return these inputs as that kind of norm takes them: RMSNorm has no beta."""
        return self if kind == "layer_norm" else replace(self, beta=None)

    def cast(self, dtype: torch.dtype | None) -> NormInputs:
        """Return these inputs with x and the parameters rounded to `dtype`; None: as they are."""
        if dtype is None:
            return self
        gamma, beta = (None if each is None else each.to(dtype) for each in (self.gamma, self.beta))
        return replace(self, x=self.x.to(dtype), gamma=gamma, beta=beta)

    @property
    def hidden(self) -> int:
        """How many elements are normalized together."""
        return math.prod(self.normalized_shape)

    def rows(self, values: torch.Tensor) -> torch.Tensor:
        """Return x, dy, or what is shaped like them, as ``(rows, hidden)``."""
        leading = values.dim() - len(self.normalized_shape)
        return values.reshape(math.prod(values.shape[:leading]), self.hidden)

    def flat(self, parameter: torch.Tensor | None, absent: float) -> torch.Tensor:
        """Return gamma or beta as ``(hidden,)``; where there is none, what it would be."""
        if parameter is None:
            return torch.full((self.hidden,), absent, dtype=self.x.dtype, device=self.x.device)
        return parameter.reshape(-1)


_Draw: TypeAlias = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


def _standard(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    return noise


def _times(scale: float) -> _Draw:
    return lambda noise, _: scale * noise


def _by_dtype(fp16: float, others: float) -> _Draw:
    """Scale by what FP16 can hold, or by what the others can."""
    return lambda noise, dtype: noise * (fp16 if dtype == torch.float16 else others)


def _near_one(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    return 1 + 0.2 * noise


def _small(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    return 0.2 * noise


def _constant(value: float) -> _Draw:
    return lambda noise, _: torch.full_like(noise, value)


def _large_mean(noise: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mean so large beside the spread that x still has some values: 1e5 with 24 digits, less with fewer."""
    return noise + {torch.bfloat16: 20.0, torch.float16: 200.0}.get(dtype, 1e5)


def _rows_of_their_own(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """Scales from 1/16 to 16 and means of both signs: no row's statistics are near another's."""
    position = torch.arange(len(noise), dtype=torch.float64)[:, None]
    return noise * 2.0 ** (position % 9 - 4) + 3 * torch.where(position % 2 == 0, 1.0, -1.0)


def _constant_rows(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """Every third row is one number all over, every third is zero."""
    values = noise.clone()
    values[::3] = 3 * values[::3, :1]
    values[1::3] = 0.0
    return values


def _outlier(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """One element of each row outweighs all others."""
    values = noise.clone()
    values[:, values.shape[1] // 3] *= 1000.0
    return values


def _ramp(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    """From -1 to 1 along each row: the last columns weigh most."""
    return torch.linspace(-1, 1, noise.shape[1], dtype=torch.float64) + 0.1 * noise


def _edge(noise: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """FP16 to its last number; squares of 1e15 are as large as FP32 can sum."""
    return torch.finfo(dtype).max * (noise / 4).clamp(-1, 1) if dtype == torch.float16 else 1e15 * noise


def _non_finite_rows(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    values = noise.clone()
    values[1, 1], values[3, -1], values[5, 0], values[-2, 2] = torch.nan, torch.inf, -torch.inf, torch.nan
    return values


def _one_zero(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    values = 1 + 0.2 * noise
    values[len(values) // 2] = 0.0
    return values


def _last_row(noise: torch.Tensor, _: torch.dtype) -> torch.Tensor:
    values = torch.zeros_like(noise)
    values[-1] = noise[-1]
    return values


@dataclass(frozen=True)
class NormRegime:
    """One kind of input.

    Attributes:
        name: its worded id.
        catches: the fault that it exists for.
        x, gamma, beta, dy: standard normal noise in float64 and the input's dtype to values; x and dy of
            ``(rows, hidden)``, gamma and beta of ``(hidden,)``.
        eps: of the norm.

    """

    name: str
    catches: str
    x: _Draw = _standard
    gamma: _Draw = _near_one
    beta: _Draw = _small
    dy: _Draw = _standard
    eps: float = _EPS

    def inputs(
        self,
        leading: tuple[int, ...],
        normalized_shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        *,
        seed: int = SEED,
        weight_dtype: torch.dtype | None = None,
    ) -> NormInputs:
        """Return inputs of ``(*leading, *normalized_shape)``, the same on every device.

        Args:
            leading: the dimensions before the normalized ones.
            normalized_shape: those that are normalized.
            dtype: of x and dy.
            device: where they go.
            seed: of the noise.
            weight_dtype: of gamma and beta; None: as x.

        """
        generator = torch.Generator().manual_seed(seed)
        rows, hidden = math.prod(leading), math.prod(normalized_shape)

        def draw(of: _Draw, into: torch.dtype, *shape: int) -> torch.Tensor:
            noise = torch.randn(shape, generator=generator, dtype=torch.float64)
            return (of(noise, into) if noise.numel() else noise).to(into).to(device)

        weights = weight_dtype or dtype
        gamma, beta = (draw(of, weights, hidden).view(normalized_shape) for of in (self.gamma, self.beta))
        x, dy = (draw(of, dtype, rows, hidden).view(*leading, *normalized_shape) for of in (self.x, self.dy))
        return NormInputs(x, dy, gamma, beta, normalized_shape, self.eps)

    def with_eps(self, eps: float) -> NormRegime:
        """Return this regime with x so small that `eps` is of the size of its variance."""
        return replace(self, name=f"{self.name} at eps {eps:g}", x=_times(math.sqrt(eps)), eps=eps)


def _known(*regimes: NormRegime) -> Mapping[str, NormRegime]:
    return MappingProxyType({regime.name: regime for regime in regimes})


REGIMES = _known(
    NormRegime("usual", "wrong constants and formulas; a gamma or beta that is ignored"),
    NormRegime("default_affine", "what is special-cased: gamma 1, beta 0", gamma=_constant(1.0), beta=_constant(0.0)),
    NormRegime("large_mean", "a variance from the mean of squares, a mean in half precision", x=_large_mean),
    NormRegime("rows_of_their_own", "statistics of another row", x=_rows_of_their_own),
    NormRegime("constant_rows", "division by a variance of zero", x=_constant_rows),
    NormRegime("zero_rows_tiny_eps", "gradients that overflow", x=_constant(0.0), dy=_times(1e-3), eps=1e-12),
    NormRegime("small_spread", "eps: its size and its place", x=_times(2e-3)),
    NormRegime("tiny_values_tiny_eps", "subnormals, an eps below FP16's", x=_times(1e-6), dy=_times(1e-4), eps=1e-12),
    NormRegime("edge_of_the_range", "sums and squares in half precision", x=_edge),
    NormRegime("outlier", "statistics that lose small terms beside a large one", x=_outlier),
    NormRegime("ramp", "columns that are dropped at the end of a row", x=_ramp),
    NormRegime("gamma_zero", "division by gamma; a gamma that is clamped", gamma=_constant(0.0)),
    NormRegime("gamma_one_zero", "the same at one column", gamma=_one_zero),
    NormRegime("gamma_tiny", "x_hat from y where |gamma| is far below |beta|", gamma=_times(2e-3), beta=_standard),
    NormRegime("gamma_negative", "a sign that is lost", gamma=lambda noise, _: -(1 + 0.2 * noise).abs()),
    NormRegime("gamma_huge", "gamma in half precision", gamma=_by_dtype(1e3, 1e6), dy=_times(0.1)),
    NormRegime("beta_huge", "a beta that is added before the last rounding", beta=_times(1e3)),
    NormRegime("dy_one_sign", "bias that signs cancel", dy=lambda noise, _: noise.abs()),
    NormRegime("dy_ones", "what the gradient of a sum is", dy=_constant(1.0)),
    NormRegime("dy_zero", "gradients where there are none", dy=_constant(0.0)),
    NormRegime("dy_tiny", "gradients that underflow in half precision", dy=_by_dtype(1e-6, 1e-20)),
    NormRegime("dy_huge", "gradients that overflow in half precision", dy=_by_dtype(1e3, 1e15)),
    NormRegime("dy_last_row", "rows that are skipped in dgamma and dbeta", dy=_last_row),
    NormRegime("non_finite_x", "NaN and Inf that spread to other rows, or vanish", x=_non_finite_rows),
    NormRegime("non_finite_dy", "the same of gradients", dy=_non_finite_rows),
)
