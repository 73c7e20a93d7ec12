"""What a norm must return, and how far off a right implementation may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.oracle import NormResult, layer_norm, rms_norm
from fuseproof.parity import Budget, eps_of, round_to, spacing
from fuseproof.parity.norm.regimes import NormInputs

__all__ = ["AffineInHalf", "Wanted", "arithmetic_of", "budget", "oracle", "trusted", "wanted"]

# Each in eps of the dtype that is computed in: FP32, or FP64 for FP64 inputs.
# Products, sums and roots of single elements: about four roundings of half an eps, approximate roots 2 eps more.
_ELEMENT_EPS = 4.0
# Sums over a row or over the rows, relative to the sum of their absolute terms. Measured on a CPU: torch's sums in
# blocks 0.5, one after another over 64 terms of one sign 3.
_SUM_EPS = 4.0
# rstd, and what is multiplied by it: its approximate root, and half of what the sum under the root is off. Apex adds up
# 512 squares one after another where a row has 65,536 columns; those of BF16 have few digits and are all rounded alike:
# rstd is off by 4.2 eps in the same arithmetic on a CPU, by 4.6 on an H200.
_RSTD_EPS = _ELEMENT_EPS + _SUM_EPS / 2
# The mean of a row, relative to its mean |x|: torch 1.5, measured up to 65,536 columns. Beside a spread that is small,
# x_hat is off by as many eps times mean/std, which is what users of torch have.
_MEAN_EPS = 4.0
# Of dx where torch computes it in half precision: four of half a unit.
_ROUNDINGS_IN_HALF = 2.0
# How much of that the same arithmetic in another order may need beyond twice what the trusted one needs.
_FLOOR = 0.5
# Beyond as many rows torch's kernels sum 32 at a time, round these sums to half precision, and sum them in FP32: the
# same arithmetic on a CPU gives what an H200 gave, to the last bit. Such roundings are independent: six of their
# standard deviations, which is ulp / sqrt(12) each.
_ROWS_IN_ONE_SUM, _ROWS_OF_A_PART, _SIX_SIGMA = 65_536, 32, 6 / math.sqrt(12)
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


@dataclass(frozen=True)
class _Sizes:
    """Sums of absolute terms, by which roundings are scaled; float64.

    Attributes:
        gamma, beta: ``(hidden,)``.
        dy: ``(rows, hidden)``.
        x_hat, g: absolute values, ``(rows, hidden)``.
        mean_x, mean_g, mean_gx: means of the absolute terms of each row, ``(rows, 1)``.
        dx: terms of dx, ``(rows, hidden)``.
        dgamma, dbeta: sums over the rows of the absolute terms, ``(hidden,)``.
        dgamma_naive, dbeta_naive: see `_naive_sum`.

    """

    gamma: torch.Tensor
    beta: torch.Tensor
    dy: torch.Tensor
    x_hat: torch.Tensor
    g: torch.Tensor
    mean_x: torch.Tensor
    mean_g: torch.Tensor
    mean_gx: torch.Tensor
    dx: torch.Tensor
    dgamma: torch.Tensor
    dbeta: torch.Tensor
    dgamma_naive: torch.Tensor
    dbeta_naive: torch.Tensor

    @classmethod
    def of(cls, kind: str, inputs: NormInputs, right: NormResult) -> _Sizes:
        """Return the sizes of what was given and of what the oracle makes of it."""
        dy, x_hat, g = inputs.rows(inputs.dy).double(), right.x_hat.abs(), right.g.abs()
        centred = kind == "layer_norm"  # RMSNorm has no mean, and nothing of it is rounded
        mean_x = inputs.rows(inputs.x).double().abs().mean(-1, keepdim=True)
        products = dy * right.x_hat
        return cls(
            gamma=inputs.flat(inputs.gamma, 1.0).double(),
            beta=inputs.flat(inputs.beta, 0.0).double(),
            dy=dy,
            x_hat=x_hat,
            g=g,
            mean_x=mean_x if centred else torch.zeros_like(mean_x),
            mean_g=g.mean(-1, keepdim=True) if centred else torch.zeros_like(mean_x),
            mean_gx=(g * x_hat).mean(-1, keepdim=True),
            dx=right.rstd * (g + right.mean_g.abs() + x_hat * right.mean_gx.abs()),
            dgamma=products.abs().sum(0),
            dbeta=dy.abs().sum(0),
            dgamma_naive=_naive_sum(products),
            dbeta_naive=_naive_sum(dy),
        )


def wanted(
    candidate: NormCandidate,
    inputs: NormInputs,
    right: NormResult,
    y_dtype: torch.dtype,
    ran_on: str = "",
    rows: int = 0,
) -> Mapping[str, Wanted]:
    """Return what is wanted of y, dx, dgamma, dbeta and the saved mean and rstd.

    Args:
        candidate: whose record says what its arithmetic rounds besides.
        inputs: what it was given.
        right: the oracle's answer.
        y_dtype: what y is stored in.
        ran_on: type of the device that it ran on; empty: where the inputs are.
        rows: of the whole input where this is a part of it; 0: this is all.

    """
    ran_on, rows = ran_on or inputs.x.device.type, rows or len(right.y)
    eps, sizes = eps_of(arithmetic_of(inputs.x.dtype)), _Sizes.of(candidate.kind, inputs, right)
    # What an error of the mean is beside the spread of its row: the same for every element of the row.
    shift = _MEAN_EPS * eps * sizes.mean_x * right.rstd
    x_hat = shift * sizes.x_hat.clamp(min=1.0) + _RSTD_EPS * eps * sizes.x_hat + _TINY * right.rstd
    scaled = (sizes.gamma * right.x_hat).abs() + sizes.beta.abs()
    y = Wanted(right.y, sizes.gamma.abs() * x_hat + _ELEMENT_EPS * eps * scaled + _TINY)
    if candidate.half_affine and inputs.gamma is not None and y_dtype.itemsize == inputs.gamma.dtype.itemsize == 2:
        why = "x_hat, its product with gamma and the sum may each be rounded, as the record says"
        y = AffineInHalf(y.value, y.tolerance, 0.0, why, right.x_hat, x_hat, sizes.gamma, sizes.beta)
    row_sums = sizes.mean_g + sizes.x_hat * sizes.mean_gx
    moved = shift * (sizes.g + sizes.mean_g + sizes.x_hat * (sizes.mean_g + sizes.mean_gx))
    dx = _RSTD_EPS * eps * sizes.dx + right.rstd * (_SUM_EPS * eps * row_sums + moved) + _TINY
    dgamma = (sizes.dy.abs() * x_hat).sum(0) + _SUM_EPS * eps * sizes.dgamma + _TINY
    plain = {
        "y": y,
        "dx": Wanted(right.dx, dx),
        "dgamma": Wanted(right.dgamma, dgamma, eps * sizes.dgamma_naive),
        "dbeta": Wanted(right.dbeta, _SUM_EPS * eps * sizes.dbeta + _TINY, eps * sizes.dbeta_naive),
        "mean": Wanted(right.mean, _MEAN_EPS * eps * sizes.mean_x + _TINY),
        "rstd": Wanted(right.rstd, right.rstd * (shift + _RSTD_EPS * eps)),
    }
    if candidate.x_hat_from_output:
        return {**plain, **_from_output(plain, sizes, right, y_dtype)}
    if inputs.x.dtype.itemsize == 2 and ran_on in candidate.half_backward_on:
        return {**plain, **_backward_in_half(plain, sizes, right, inputs.x.dtype)}
    if inputs.x.dtype.itemsize == 2 and ran_on in candidate.half_partials_on and rows > _ROWS_IN_ONE_SUM:
        return {**plain, **_partials_in_half(plain, sizes, right, inputs.x.dtype)}
    return plain


def _through_x_hat(lost: torch.Tensor, sizes: _Sizes, right: NormResult) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what errors of x_hat of that size do to dx and dgamma."""
    by_slope = right.mean_gx.abs() * lost + sizes.x_hat * (sizes.g * lost).mean(-1, keepdim=True)
    return right.rstd * by_slope, (sizes.dy.abs() * lost).sum(0)


def _from_output(
    plain: Mapping[str, Wanted], sizes: _Sizes, right: NormResult, dtype: torch.dtype
) -> Mapping[str, Wanted]:
    """Return dx and dgamma of a backward that has y, rounded, instead of x; where gamma is 0, y has lost x_hat."""
    why = "x_hat is computed from the rounded y, as the record says"
    of_y = torch.where(sizes.gamma == 0, 0.0, right.y.abs() / (2 * sizes.gamma.abs()))
    dx, dgamma = _through_x_hat(eps_of(dtype) * (sizes.x_hat + of_y), sizes, right)
    return {
        "dx": Wanted(right.dx, plain["dx"].tolerance, dx, why),
        "dgamma": Wanted(right.dgamma, plain["dgamma"].tolerance, plain["dgamma"].extra + dgamma, why),
    }


def _backward_in_half(
    plain: Mapping[str, Wanted], sizes: _Sizes, right: NormResult, dtype: torch.dtype
) -> Mapping[str, Wanted]:
    """Return the gradients of a backward that has statistics in half precision, and sums in it."""
    unit, why = eps_of(dtype), "statistics and sums of the backward are in half precision, as the record says"
    dx, dgamma = _through_x_hat(unit * (sizes.x_hat + right.mean.abs() * right.rstd), sizes, right)
    dx = dx + _ROUNDINGS_IN_HALF * unit * sizes.dx
    dgamma = dgamma + unit * (_SUM_EPS * sizes.dgamma + sizes.dgamma_naive)
    dbeta = unit * (_SUM_EPS * sizes.dbeta + sizes.dbeta_naive)
    lost = unit * torch.finfo(dtype).tiny / 2  # by each rounding of a subnormal number
    return {
        "dx": Wanted(right.dx, plain["dx"].tolerance, dx + 2 * _ROUNDINGS_IN_HALF * lost, why),
        "dgamma": Wanted(right.dgamma, plain["dgamma"].tolerance, dgamma + len(sizes.dy) * lost, why),
        "dbeta": Wanted(right.dbeta, plain["dbeta"].tolerance, dbeta + len(sizes.dy) * lost, why),
    }


def _partials_in_half(
    plain: Mapping[str, Wanted], sizes: _Sizes, right: NormResult, dtype: torch.dtype
) -> Mapping[str, Wanted]:
    """Return dgamma and dbeta where sums over parts of the rows are rounded to half precision."""
    why = "beyond 65,536 rows sums of 32 rows are rounded to half precision, as the record says"

    def one(quantity: str, terms: torch.Tensor) -> Wanted:
        missing = -len(terms) % _ROWS_OF_A_PART
        parts = torch.nn.functional.pad(terms, (0, 0, 0, missing)).view(-1, _ROWS_OF_A_PART, terms.shape[1]).sum(1)
        rounded = _SIX_SIGMA * spacing(parts, dtype).norm(dim=0)
        return Wanted(plain[quantity].value, plain[quantity].tolerance, plain[quantity].extra + rounded, why)

    return {"dgamma": one("dgamma", sizes.dy * right.x_hat), "dbeta": one("dbeta", sizes.dy)}


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
        "y": f"{_ELEMENT_EPS:g} eps of each term, {_RSTD_EPS:g} of x_hat, {_MEAN_EPS:g} of mean|x| for its mean",
        "dx": f"{_RSTD_EPS:g} eps of each term, {_SUM_EPS:g} eps of the row sums' terms, {_MEAN_EPS:g} of mean|x|",
        "dgamma": f"{_SUM_EPS:g} eps of sum|dy x_hat|, and the errors of x_hat",
        "dbeta": f"{_SUM_EPS:g} eps of sum|dy|",
        "mean": f"{_MEAN_EPS:g} eps of mean|x|",
        "rstd": f"{_RSTD_EPS:g} eps, and the error of the mean",
    }[quantity]
    factor = 1.0
    if trusted_values is not None:
        error = (trusted_values.double() - one.value).abs() / one.tolerance
        needed = float(error.nan_to_num(0.0, 0.0, 0.0).max()) if error.numel() else 0.0
        factor = min(1.0, 2 * needed + _FLOOR)
    words = f"{words}; {factor:.2g} of that, twice what plain FP32 arithmetic needs" if factor < 1 else words
    return Budget(factor, "; ".join(filter(None, (words, one.reason))))
