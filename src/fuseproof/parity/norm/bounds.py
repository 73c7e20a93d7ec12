"""What a norm must return, and how far off a right implementation may be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.oracle import NormResult, layer_norm, rms_norm
from fuseproof.parity import Budget, eps_of, round_to
from fuseproof.parity.norm.regimes import NormInputs

__all__ = ["AffineInHalf", "Wanted", "arithmetic_of", "budget", "oracle", "trusted", "wanted"]

# Each in eps of the dtype that is computed in: FP32, or FP64 for FP64 inputs.
# Products, sums and roots of single elements: about four roundings of half an eps, approximate roots 2 eps more.
_ELEMENT_EPS = 4.0
# Sums over a row or over the rows, relative to the sum of their absolute terms. Measured on a CPU: torch's sums in
# blocks 0.5, one after another over 64 terms of one sign 3.
_SUM_EPS = 4.0
# The mean of a row, relative to its mean |x|: torch 1.5, measured up to 65,536 columns. Beside a spread that is small,
# x_hat is off by as many eps times mean/std, which is what users of torch have.
_MEAN_EPS = 4.0
# How much of that the same arithmetic in another order may need beyond twice what the trusted one needs.
_FLOOR = 0.5
_TINY = torch.finfo(torch.float32).tiny  # kernels built with --use_fast_math flush what is smaller


def arithmetic_of(dtype: torch.dtype) -> torch.dtype:
    """Return what inputs of `dtype` are computed in: FP32, and FP64 for FP64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def oracle(kind: str, inputs: NormInputs) -> NormResult:
    """Return the norm and its derivative in FP64."""
    x, dy = inputs.rows(inputs.x), inputs.rows(inputs.dy)
    gamma, beta = inputs.flat(inputs.gamma, 1.0), inputs.flat(inputs.beta, 0.0)
    if kind == "layer_norm":
        return layer_norm(x, gamma, beta, dy, inputs.eps)
    return rms_norm(x, gamma, dy, inputs.eps)


def trusted(kind: str, inputs: NormInputs) -> Mapping[str, torch.Tensor]:
    """Return y, dx, dgamma and dbeta by FP32 arithmetic on the inputs as they are, not yet rounded to their dtype."""
    x, dy, gamma, beta = (
        each.float()
        for each in (
            inputs.rows(inputs.x),
            inputs.rows(inputs.dy),
            inputs.flat(inputs.gamma, 1.0),
            inputs.flat(inputs.beta, 0.0),
        )
    )
    centred = x - x.mean(-1, keepdim=True) if kind == "layer_norm" else x
    rstd = (centred.square().mean(-1, keepdim=True) + inputs.eps).rsqrt()
    x_hat, g = centred * rstd, gamma * dy
    dx = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if kind == "layer_norm":
        dx = dx - g.mean(-1, keepdim=True)
    y = gamma * x_hat + beta if kind == "layer_norm" else gamma * x_hat
    return {"y": y, "dx": rstd * dx, "dgamma": (dy * x_hat).sum(0), "dbeta": dy.sum(0)}


@dataclass(frozen=True)
class Wanted:
    """One quantity of the oracle and how far a right one may be from it, before it is rounded to what it is stored in.

    Attributes:
        value: of the oracle.
        tolerance: what correct arithmetic in FP32 (FP64 for FP64) may be off; float64, same shape.
        extra: what sums one after another, and the candidate's record, allow besides.
        reason: why, where it is the record.

    """

    value: torch.Tensor
    tolerance: torch.Tensor
    extra: torch.Tensor | float = 0.0
    reason: str = ""

    def limits(self, dtype: torch.dtype, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the least and the greatest right value in `dtype`, with `factor` times the tolerance."""
        allowed = (factor * self.tolerance + self.extra).nan_to_num(nan=torch.inf)
        return round_to(self.value - allowed, dtype), round_to(self.value + allowed, dtype)


@dataclass(frozen=True)
class AffineInHalf(Wanted):
    """y of a kernel that may round x_hat, then its product with gamma, then the sum; or x_hat and the sum; or y only.

    Attributes:
        x_hat, x_hat_tolerance: ``(rows, hidden)``.
        gamma, beta: ``(hidden,)``, float64.

    """

    x_hat: torch.Tensor | None = None
    x_hat_tolerance: torch.Tensor | None = None
    gamma: torch.Tensor | None = None
    beta: torch.Tensor | None = None

    def limits(self, dtype: torch.dtype, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the least and the greatest of what such roundings may make of x_hat within its tolerance."""
        assert self.x_hat is not None
        assert self.x_hat_tolerance is not None
        assert self.gamma is not None
        assert self.beta is not None
        allowed = (factor * self.x_hat_tolerance).nan_to_num(nan=torch.inf)
        ends = [*super().limits(dtype, factor)]
        for end in (self.x_hat - allowed, self.x_hat + allowed):
            product = self.gamma * round_to(end, dtype)
            ends += [round_to(round_to(product, dtype) + self.beta, dtype), round_to(product + self.beta, dtype)]
        stacked = torch.stack(ends)
        return stacked.amin(0), stacked.amax(0)


def wanted(
    candidate: NormCandidate, inputs: NormInputs, right: NormResult, y_dtype: torch.dtype
) -> Mapping[str, Wanted]:
    """Return what is wanted of y, dx, dgamma, dbeta and the saved mean and rstd.

    Args:
        candidate: whose record says what its arithmetic rounds besides.
        inputs: what it was given.
        right: the oracle's answer.
        y_dtype: what y is stored in.

    """
    eps = eps_of(arithmetic_of(inputs.x.dtype))
    gamma, beta, dy = (
        each.double()
        for each in (inputs.flat(inputs.gamma, 1.0), inputs.flat(inputs.beta, 0.0), inputs.rows(inputs.dy))
    )
    size, g = right.x_hat.abs(), right.g.abs()
    mean_x = inputs.rows(inputs.x).double().abs().mean(-1, keepdim=True)
    # What an error of the mean is beside the spread of its row: the same for every element of the row.
    shift = torch.zeros_like(right.rstd) if candidate.kind == "rms_norm" else _MEAN_EPS * eps * mean_x * right.rstd
    x_hat = shift * size.clamp(min=1.0) + _ELEMENT_EPS * eps * size + _TINY * right.rstd
    mean_g = torch.zeros_like(shift) if candidate.kind == "rms_norm" else g.mean(-1, keepdim=True)
    mean_gx = (g * size).mean(-1, keepdim=True)
    dx_terms = g + right.mean_g.abs() + size * right.mean_gx.abs()
    dx = _ELEMENT_EPS * eps * dx_terms + _SUM_EPS * eps * (mean_g + size * mean_gx)
    dx = right.rstd * (dx + shift * (g + mean_g + size * (mean_g + mean_gx))) + _TINY
    dgamma_terms, dbeta_terms = (dy * right.x_hat).abs().sum(0), dy.abs().sum(0)
    dgamma_naive, dbeta_naive = (_naive_sum(values) for values in (dy * right.x_hat, dy))
    y = Wanted(right.y, gamma.abs() * x_hat + _ELEMENT_EPS * eps * ((gamma * right.x_hat).abs() + beta.abs()) + _TINY)
    if candidate.half_affine and inputs.gamma is not None and y_dtype.itemsize == inputs.gamma.dtype.itemsize == 2:
        why = "x_hat, its product with gamma and the sum may each be rounded, as the record says"
        y = AffineInHalf(y.value, y.tolerance, 0.0, why, right.x_hat, x_hat, gamma, beta)
    all_of_it = {
        "y": y,
        "dx": Wanted(right.dx, dx),
        "dgamma": Wanted(
            right.dgamma, (dy.abs() * x_hat).sum(0) + _SUM_EPS * eps * dgamma_terms + _TINY, eps * dgamma_naive
        ),
        "dbeta": Wanted(right.dbeta, _SUM_EPS * eps * dbeta_terms + _TINY, eps * dbeta_naive),
        "mean": Wanted(right.mean, _MEAN_EPS * eps * mean_x + _TINY),
        "rstd": Wanted(right.rstd, right.rstd * (shift + _ELEMENT_EPS * eps)),
    }
    if candidate.x_hat_from_output:
        unit, why = eps_of(y_dtype), "x_hat is computed from the rounded y, as the record says"
        lost = torch.where(gamma == 0, 0.0, unit * (size + right.y.abs() / (2 * gamma.abs())))
        extra = right.rstd * (right.mean_gx.abs() * lost + size * (g * lost).mean(-1, keepdim=True))
        all_of_it["dx"] = Wanted(right.dx, dx, extra, why)
        extra = all_of_it["dgamma"].extra + (dy.abs() * lost).sum(0)
        all_of_it["dgamma"] = Wanted(right.dgamma, all_of_it["dgamma"].tolerance, extra, why)
    elif inputs.x.device.type in candidate.half_backward_on and inputs.x.dtype.itemsize == 2:
        unit, why = (
            eps_of(inputs.x.dtype),
            "statistics and sums of the backward are in half precision, as the record says",
        )
        least = unit * torch.finfo(inputs.x.dtype).tiny  # half of it is lost in each rounding of a subnormal sum
        lost = unit * (size + right.mean.abs() * right.rstd)
        from_x_hat = right.rstd * (right.mean_gx.abs() * lost + size * (g * lost).mean(-1, keepdim=True))
        for quantity, extra, sums in (
            ("dx", 2 * unit * right.rstd * dx_terms + from_x_hat, 4),
            ("dgamma", unit * (_SUM_EPS * dgamma_terms + dgamma_naive) + (dy.abs() * lost).sum(0), len(dy)),
            ("dbeta", unit * (_SUM_EPS * dbeta_terms + dbeta_naive), len(dy)),
        ):
            plain = all_of_it[quantity]
            all_of_it[quantity] = Wanted(plain.value, plain.tolerance, extra + sums / 2 * least, why)
    return all_of_it


def _naive_sum(values: torch.Tensor) -> torch.Tensor:
    """Return by how many eps a sum one after another over the rows may be off beyond `_SUM_EPS` of its terms.

    Each partial sum is rounded: where terms have one sign these are large, and equal terms are all rounded alike.
    Measured on a CPU: 60 equal terms 5.8 eps, of which this gives 9.
    """
    partial: torch.Tensor = values.cumsum(0).norm(dim=0)
    return (2 * partial - _SUM_EPS * values.abs().sum(0)).clamp(min=0)


def budget(quantity: str, one: Wanted, trusted_values: torch.Tensor | None) -> Budget:
    """Return which part of its tolerance a quantity may use: at most all, and twice what trusted arithmetic needs.

    Args:
        quantity: its name.
        one: what is wanted.
        trusted_values: the same quantity by trusted arithmetic, not rounded to the inputs' dtype; None: there is none.

    """
    words = {
        "y": f"{_ELEMENT_EPS:g} eps of each term, {_MEAN_EPS:g} eps of mean|x| for its mean",
        "dx": f"{_ELEMENT_EPS:g} eps of each term, {_SUM_EPS:g} eps of the row sums' terms, {_MEAN_EPS:g} of mean|x|",
        "dgamma": f"{_SUM_EPS:g} eps of sum|dy x_hat|, and the errors of x_hat",
        "dbeta": f"{_SUM_EPS:g} eps of sum|dy|",
        "mean": f"{_MEAN_EPS:g} eps of mean|x|",
        "rstd": f"{_ELEMENT_EPS:g} eps, and the error of the mean",
    }[quantity]
    factor = 1.0
    if trusted_values is not None:
        error = (trusted_values.double() - one.value).abs() / one.tolerance
        needed = float(error.nan_to_num(0.0, 0.0, 0.0).max()) if error.numel() else 0.0
        factor = min(1.0, 2 * needed + _FLOOR)
    words = f"{words}; {factor:.2g} of that, twice what plain FP32 arithmetic needs" if factor < 1 else words
    return Budget(factor, "; ".join(filter(None, (words, one.reason))))
