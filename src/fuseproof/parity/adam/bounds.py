"""What Adam must store after a step, and how far off correct FP32 arithmetic may leave it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuseproof.oracle import AdamHyper, adam_update
from fuseproof.parity import Budget, eps_of, round_to, spacing

__all__ = ["BUDGETS", "Tracked", "advance", "bias"]

_EPS = eps_of(torch.float32)
_TINY = torch.finfo(torch.float32).tiny  # kernels built with --use_fast_math flush what is smaller
# About twelve roundings of half an eps make an update: exp_avg 3, exp_avg_sq 3 (halved by the root), root, root of the
# correction, quotient by it, eps, quotient, step size, product. Approximate roots and quotients take 6 eps more.
_UPDATE_EPS = 12.0
# Products and sum: three roundings of half an eps, one more for 1 - beta in FP32; a factor 2 for other orders.
_MOMENT_EPS = 4.0

BUDGETS = {
    "param": Budget(
        1.0,
        f"one rounding when it is stored, {_UPDATE_EPS:g} eps32 of the update's terms before that, with decoupled "
        "decay 1 eps32 of the parameter, in half precision 0.5 eps32 of it for the sum",
    ),
    "exp_avg": Budget(1.0, f"one rounding when it is stored, {_MOMENT_EPS:g} eps32 of its terms before that"),
    "exp_avg_sq": Budget(1.0, f"one rounding when it is stored, {_MOMENT_EPS:g} eps32 of its terms before that"),
}


@dataclass(frozen=True)
class Tracked:
    """Values of the oracle and how far those of a right implementation may be from them; float64, equal shapes.

    Attributes:
        param, exp_avg, exp_avg_sq: values.
        param_error, exp_avg_error, exp_avg_sq_error: none of them negative; infinite where nothing can be said.
        update: the last step's; zeros before the first.

    """

    param: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    param_error: torch.Tensor
    exp_avg_error: torch.Tensor
    exp_avg_sq_error: torch.Tensor
    update: torch.Tensor

    @classmethod
    def exact(cls, param: torch.Tensor, exp_avg: torch.Tensor, exp_avg_sq: torch.Tensor) -> Tracked:
        """Return values that are known exactly, flat."""
        values = [each.detach().double().flatten() for each in (param, exp_avg, exp_avg_sq)]
        zeros = torch.zeros_like(values[0])
        return cls(values[0], values[1], values[2], zeros, zeros, zeros, zeros)

    @classmethod
    def cat(cls, parts: list[Tracked]) -> Tracked:
        """Return the parts as one."""
        return cls(*(torch.cat([vars(part)[name] for part in parts]) for name in cls.__dataclass_fields__))

    def split(self, sizes: list[int]) -> list[Tracked]:
        """Return this as parts of those sizes."""
        columns = [getattr(self, name).split(sizes) for name in self.__dataclass_fields__]
        return [Tracked(*parts) for parts in zip(*columns, strict=True)]

    def stored(self, param_dtype: torch.dtype, moments_dtype: torch.dtype) -> Tracked:
        """Return this as it is after its values were rounded to what they are stored in."""
        param, param_error = _stored(self.param[None], self.param_error[None], param_dtype)
        moments = torch.stack([self.exp_avg, self.exp_avg_sq])
        moments, errors = _stored(moments, torch.stack([self.exp_avg_error, self.exp_avg_sq_error]), moments_dtype)
        return Tracked(param[0], moments[0], moments[1], param_error[0], errors[0], errors[1], self.update)


def _stored(values: torch.Tensor, errors: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return values as they are stored and their errors then; both ``(quantities, elements)``, for fewer operations."""
    stored, low, high = round_to(torch.stack([values, values - errors, values + errors]), dtype)
    return stored, torch.maximum(high - stored, stored - low).nan_to_num(nan=torch.inf)


def advance(
    before: Tracked, grad: torch.Tensor, step: int, hyper: AdamHyper, power_ulps: float, dtype: torch.dtype
) -> Tracked:
    """Return what one step makes of `before`, not yet stored, with the errors of correct FP32 arithmetic.

    Errors that `before` has are carried on by monotony: the update grows with exp_avg and shrinks with exp_avg_sq.

    Args:
        before: state before the step, flat.
        grad: the unscaled gradient, flat.
        step: the number of this step; the first is 1.
        hyper: hyper-parameters and the dtypes in which the implementation takes them.
        power_ulps: by how many FP32 ulps the powers in the bias corrections may be off.
        dtype: what parameters, or their masters, are stored in; half precision is rounded from an FP32 sum.

    """
    lr, beta1, beta2, eps, decay = hyper.taken()
    correction1, correction2 = hyper.corrections(step)
    after = adam_update(before.param, grad, before.exp_avg, before.exp_avg_sq, step, hyper)
    g, g_error = grad.double(), torch.zeros_like(before.param)
    if not hyper.decoupled:
        g = g + decay * before.param
        # Where decay cancels the gradient, roundings of both are all that is left of their sum, and of its square.
        g_error = decay * before.param_error + _EPS * (grad.double().abs() + decay * before.param.abs())
        g_error = g_error if decay else torch.zeros_like(g)
    carried_m = beta1 * before.exp_avg_error + (1 - beta1) * g_error
    carried_v = beta2 * before.exp_avg_sq_error + (1 - beta2) * g_error * (2 * g.abs() + g_error) + _TINY
    size = after.exp_avg.abs()

    def move(m: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return lr / correction1 * m.clamp(min=0) / ((v.clamp(min=0) / correction2).sqrt() + eps)

    middle = move(size, after.exp_avg_sq)
    widest = move(size + carried_m, after.exp_avg_sq - carried_v) - middle
    narrowest = middle - move(size - carried_m, after.exp_avg_sq + carried_v)
    moved = torch.maximum(widest, narrowest).nan_to_num(nan=torch.inf)
    rounded = (_UPDATE_EPS * _EPS + _factor_slack(hyper, step, power_ulps)) * after.update_terms
    param = before.param + after.update
    param_error = before.param_error * (1 + (lr * decay if hyper.decoupled else 0.0)) + moved + rounded
    if hyper.decoupled and decay:
        param_error = param_error + _EPS * torch.maximum(before.param.abs(), param.abs())
    if dtype != torch.float32:
        param_error = param_error + _EPS / 2 * param.abs()
    return Tracked(
        param,
        after.exp_avg,
        after.exp_avg_sq,
        param_error,
        carried_m + _MOMENT_EPS * _EPS * after.exp_avg_terms + _TINY,
        carried_v + _MOMENT_EPS * _EPS * after.exp_avg_sq_terms,
        after.update,
    )


def _factor_slack(hyper: AdamHyper, step: int, power_ulps: float) -> float:
    """Return by how much ``beta ** step``, so many FP32 ulps off, may scale the update; dimensionless."""
    beta1, beta2 = hyper.betas if hyper.corrected else (0.0, 0.0)
    return power_ulps * _EPS * (beta1**step / (1 - beta1**step) + 0.5 * beta2**step / (1 - beta2**step))


def bias(
    stored: torch.Tensor, wanted: Tracked, before: torch.Tensor, hyper: AdamHyper, step: int, power_ulps: float
) -> tuple[float, float]:
    """Project what parameters are beside the rounded oracle on the update: rounding averages out, constants do not.

    In half precision there is nothing to project: away from ties the values are the oracle's, and at a tie many
    elements of the same few numbers go the same way.

    Args:
        stored: the new parameters or masters, float32, flat.
        wanted: what `advance` says of them.
        before: the old parameters, float64, flat.
        hyper, step, power_ulps: as in `advance`.

    Returns:
        The factor by which the update is too large, and how much of it is allowed: seven scalars are rounded to FP32
        (lr, 1 - beta1, beta2, 1 - beta2, both corrections, their quotient), the decayed parameter once, six standard
        deviations of the elements' own roundings.

    """
    rest = stored.double() - round_to(wanted.param, stored.dtype)
    usable = rest.isfinite() & wanted.param_error.isfinite() & wanted.update.isfinite()
    rest, u, a = rest[usable], wanted.update[usable], wanted.param_error[usable]
    norm = (u * u).sum().item()
    if norm == 0:
        return 0.0, 0.0
    ulp = spacing(wanted.param, stored.dtype)[usable]
    noise = 6 * (a * torch.maximum(a, ulp) * u * u).sum().sqrt().item()
    _, _, _, _, decay = hyper.taken()
    coherent = 3.5 * _EPS + _factor_slack(hyper, step, power_ulps)
    if hyper.decoupled and decay:
        # The decayed parameter lies on its own grid: updates of equal size are all rounded alike there.
        coherent += _EPS * (before[usable] * u).abs().sum().item() / norm
    return (rest * u).sum().item() / norm, coherent + noise / norm
