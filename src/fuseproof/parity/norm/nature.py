"""What kind of fault a wrong norm looks like: a sentence for the message of a failure."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fuseproof.oracle import NormResult
from fuseproof.parity import spacing
from fuseproof.parity.factors import factor_of
from fuseproof.parity.norm.bounds import Wanted
from fuseproof.parity.norm.regimes import NormInputs

__all__ = ["nature_of"]

_NEARLY_ALL = 0.98  # of the elements agree with a hypothesis before it is named
# How many units of its dtype a value may be beside a hypothesis, besides the tolerance of the right one, which may be a
# smaller number. Among those that are so near the one is named that most elements are roundings of.
_UNITS, _UNITS_IN_HALF, _ROUNDED = 16.0, 2.0, 0.5
_OTHER_EPS = (1e-12, 1e-8, 1e-6, 1e-5, 1e-3)  # what libraries take where nobody says
_Hypotheses = Iterator[tuple[str, torch.Tensor]]


def nature_of(
    kind: str, inputs: NormInputs, right: NormResult, quantity: str, stored: torch.Tensor, one: Wanted
) -> str:
    """Return what a wrong quantity looks like, or an empty string.

    Args:
        kind: "layer_norm" or "rms_norm".
        inputs, right: what was given, and what the oracle makes of it.
        quantity: "y", "dx", "dgamma", "dbeta", "mean" or "rstd".
        stored: what came of it, shaped as the oracle's.
        one: what is wanted of it.

    """
    actual = stored.double()
    allowed = (one.tolerance + one.extra).nan_to_num(nan=torch.inf)
    units = _UNITS_IN_HALF if stored.dtype.itemsize == 2 else _UNITS

    def agrees(value: torch.Tensor, units: float) -> torch.Tensor:
        return (actual - value).abs() <= allowed + units * spacing(value, stored.dtype)

    wrong = ~(agrees(one.value, units) | (~actual.isfinite() & ~one.value.isfinite()))
    if not bool(wrong.any()):
        return ""
    unusual = wrong & ~actual.isfinite()
    if bool(unusual.any()) and bool(one.value[unusual].isfinite().all()):
        return f"{int(unusual.sum())} elements are NaN or infinite where the oracle is finite"
    if words := _where(wrong, actual):
        return words
    finite, best, named = one.value.isfinite(), float(agrees(one.value, _ROUNDED).double().mean()), ""
    for name, value in _hypotheses(kind, inputs, right, quantity):
        rounded = float(agrees(value, _ROUNDED)[finite].double().mean())
        if rounded > best and float(agrees(value, units)[finite].double().mean()) >= _NEARLY_ALL:
            best, named = rounded, f"it agrees with {name}"
    if named:
        return named
    return factor_of(quantity, actual, one.value)


def _where(wrong: torch.Tensor, actual: torch.Tensor) -> str:
    """Return which rows or columns are wrong, if it is an end of them."""
    for dim, word in ((0, "row"), (1, "column")) if wrong.dim() == 2 else ((0, "column"),):
        size = wrong.shape[dim]
        bad = wrong.any(1 - dim).nonzero().flatten() if wrong.dim() == 2 else wrong.nonzero().flatten()
        first = int(bad[0])
        if first > 0 and int(bad.numel()) == size - first:
            zero = ", where all is zero" if not bool(actual.narrow(dim, first, size - first).count_nonzero()) else ""
            return f"wrong from {word} {first} of {size} on{zero}: looks like an end that was left out"
    return ""


def _hypotheses(kind: str, inputs: NormInputs, right: NormResult, quantity: str) -> _Hypotheses:
    """Yield what faults that have a name make of a quantity, the more special ones first."""
    gamma, beta = inputs.flat(inputs.gamma, 1.0).double(), inputs.flat(inputs.beta, 0.0).double()
    x, dy = inputs.rows(inputs.x).double(), inputs.rows(inputs.dy).double()
    if quantity == "y":
        yield from _forward(kind, x, gamma, beta, right, inputs.eps)
    elif quantity == "dx":
        slope = right.x_hat * right.mean_gx
        yield "zero", torch.zeros_like(right.dx)
        yield "a derivative that ignores gamma", _dx(kind, right, dy)
        yield "a derivative without the mean of gamma * dy", right.rstd * (right.g - slope)
        yield "a derivative without the term in x_hat", right.rstd * (right.g - right.mean_g)
        yield "constant statistics: the derivative of neither mean nor variance", right.rstd * right.g
        yield "a derivative without rstd", right.dx / right.rstd
        yield "dy of the row before", _dx(kind, right, right.g.roll(1, 0))
    elif quantity == "dgamma":
        yield "dbeta", right.dbeta
        yield "zero", torch.zeros_like(right.dgamma)
        yield "a sum of dy * x without statistics", (dy * x).sum(0)
        yield "a sum without rstd", (dy * (x - right.mean)).sum(0)
        yield "a sum of gamma * dy * x_hat", gamma * right.dgamma
        yield "a sum without the last row", (dy * right.x_hat)[:-1].sum(0)
    elif quantity == "dbeta":
        yield "dgamma", right.dgamma
        yield "zero", torch.zeros_like(right.dbeta)
        yield "a sum of gamma * dy", gamma * right.dbeta
        yield "a sum without the last row", dy[:-1].sum(0)
    elif quantity == "rstd":
        yield "the standard deviation", 1 / right.rstd
        yield "the variance", right.rstd**-2 - inputs.eps


def _dx(kind: str, right: NormResult, g: torch.Tensor) -> torch.Tensor:
    mean_g = g.mean(-1, keepdim=True) if kind == "layer_norm" else 0.0
    return right.rstd * (g - mean_g - right.x_hat * (g * right.x_hat).mean(-1, keepdim=True))


def _forward(
    kind: str, x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, right: NormResult, eps: float
) -> _Hypotheses:
    centred, hidden = x - right.mean, x.shape[-1]
    variance = centred.square().mean(-1, keepdim=True)

    def y(values: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        return gamma * (values * rstd) + beta

    yield "a norm that ignores gamma and beta", right.x_hat
    yield "a norm that ignores gamma", right.x_hat + beta
    yield "a norm that ignores beta", gamma * right.x_hat
    yield "a scale of 1 + gamma", right.y + right.x_hat
    yield "no eps", y(centred, variance.rsqrt())
    for other in _OTHER_EPS:
        if other != eps:
            yield f"eps {other:g} (ours: {eps:g})", y(centred, (variance + other).rsqrt())
    yield "eps outside the root", y(centred, 1 / (variance.sqrt() + eps))
    yield "the square of eps", y(centred, (variance + eps * eps).rsqrt())
    if hidden > 1:
        yield "the unbiased variance", y(centred, (variance * hidden / (hidden - 1) + eps).rsqrt())
        shorter = x[:, :-1]
        mean = shorter.mean(-1, keepdim=True) if kind == "layer_norm" else torch.zeros_like(variance)
        short = (shorter - mean).square().mean(-1, keepdim=True)
        yield "statistics without the last column", y(x - mean, (short + eps).rsqrt())
        yield "a mean without the last column", y(x - mean, right.rstd)
        yield (
            "a variance without the last column",
            y(centred, (centred[:, :-1].square().mean(-1, keepdim=True) + eps).rsqrt()),
        )
    if kind == "layer_norm":
        squares = (x.square().mean(-1, keepdim=True) + eps).rsqrt()
        yield "RMSNorm", y(x, squares)
        yield "the mean square in place of the variance", y(centred, squares)
        yield "a mean that is not subtracted", y(x, right.rstd)
    else:
        mean = x.mean(-1, keepdim=True)
        spread = (x - mean).square().mean(-1, keepdim=True)
        yield "LayerNorm", y(x - mean, (spread + eps).rsqrt())
        yield "the variance in place of the mean square", y(x, (spread + eps).rsqrt())
    for step, which in ((1, "before"), (-1, "after")):
        yield f"the statistics of the row {which}", y(x - right.mean.roll(step, 0), right.rstd.roll(step, 0))
    for dtype, name in ((torch.bfloat16, "BF16"), (torch.float16, "FP16")):
        yield f"an rstd rounded to {name}", y(centred, right.rstd.to(dtype).double())
        yield f"an x_hat rounded to {name}", gamma * right.x_hat.to(dtype).double() + beta
        yield f"a mean rounded to {name}", y(x - right.mean.to(dtype).double(), right.rstd)
