"""What kind of fault a wrong update looks like: a sentence for the message of a failure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from fuseproof.oracle import AdamHyper, adam_update
from fuseproof.parity import round_to
from fuseproof.parity.adam.bounds import Tracked, advance
from fuseproof.parity.factors import factor_of

__all__ = ["nature_of"]

_NEARLY_ALL = 0.98  # of the elements agree with a hypothesis before it is named


def nature_of(
    stored: torch.Tensor, before: Tracked, grad: torch.Tensor, step: int, hyper: AdamHyper, power_ulps: float
) -> str:
    """Return what new parameters that are wrong look like, or an empty string.

    Args:
        stored: the candidate's new parameters, flat.
        before: state before the step.
        grad: the unscaled gradient, flat.
        step, hyper, power_ulps: as in `fuseproof.parity.adam.bounds.advance`.

    """
    wanted = advance(before, grad, step, hyper, power_ulps, stored.dtype)
    actual = stored.double()

    def agrees(param: torch.Tensor) -> torch.Tensor:
        low, high = (round_to(param + sign * wanted.param_error, stored.dtype) for sign in (-1, 1))
        return (low <= actual) & (actual <= high)

    wrong = ~(agrees(wanted.param) | ~(actual.isfinite() | wanted.param.isfinite()))
    unusual = wrong & (actual.isnan() | actual.isinf())
    if bool(unusual.any()) and bool(wanted.param[unusual].isfinite().all()):
        return f"{int(unusual.sum())} elements are NaN or infinite where the oracle is finite"
    if not bool(wrong.any()):
        return ""
    if bool((actual == before.param)[wrong].all()):
        positions = wrong.nonzero().flatten()
        first = int(positions[0])
        if int(positions.numel()) == wrong.numel() - first and first > 0:
            return f"nothing from element {first} of {wrong.numel()} on moved: looks like a skipped tail"
        return f"{int(positions.numel())} of {wrong.numel()} elements did not move at all"
    if float(wrong.double().mean()) < 1 - _NEARLY_ALL:  # too few to tell what they have in common
        return factor_of("update", actual - before.param, wanted.update)
    for name, update in _hypotheses(before, grad, step, hyper):
        if float(agrees(before.param + update).double().mean()) >= _NEARLY_ALL:
            return f"it agrees with {name}"
    return factor_of("update", actual - before.param, wanted.update)


def _hypotheses(before: Tracked, grad: torch.Tensor, step: int, hyper: AdamHyper) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the updates of faults that have a name, the more special ones first."""
    p, m, v = before.param, before.exp_avg, before.exp_avg_sq

    def with_(**changes: object) -> torch.Tensor:
        return adam_update(p, grad, m, v, step, replace(hyper, **changes)).update  # type: ignore[arg-type]

    if hyper.weight_decay:
        yield "the other kind of weight decay", with_(decoupled=not hyper.decoupled)
        yield "no weight decay", with_(weight_decay=0.0)
    if hyper.betas[0] != hyper.betas[1]:
        yield "swapped betas", with_(betas=hyper.betas[::-1])
    for other in (*range(1, step), *range(step + 1, step + 9)):
        yield f"step {other} (ours: {step})", adam_update(p, grad, m, v, other, hyper).update
    lr, _, _, eps, decay = hyper.taken()
    correction1, correction2 = hyper.corrections(step)
    right = adam_update(p, grad, m, v, step, hyper)
    decayed = lr * decay * p if hyper.decoupled else torch.zeros_like(p)
    root, rate = right.exp_avg_sq.sqrt(), lr / correction1
    yield "no bias correction", -lr * right.exp_avg / (root + eps) - decayed
    yield "eps before the bias correction", -rate * right.exp_avg / ((root + eps) / correction2**0.5) - decayed
    yield "eps inside the root", -rate * right.exp_avg / (right.exp_avg_sq / correction2 + eps).sqrt() - decayed
    yield "the exp_avg of the step before", -rate * m / (root / correction2**0.5 + eps) - decayed
    yield "the opposite sign", -right.update
