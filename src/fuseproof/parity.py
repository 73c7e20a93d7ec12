"""How right is decided: an element-wise error against an FP64 oracle, judged by a budget that has a reason."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Budget", "ParityError", "assert_within", "eps_of"]


class ParityError(AssertionError):
    """A quantity is further from the oracle than its budget allows."""


@dataclass(frozen=True)
class Budget:
    """The error an element may show: ``factor * scale``, where `scale` is given per element by the caller.

    Attributes:
        factor: multiple of the scale; dimensionless.
        reason: why this much and no more.

    """

    factor: float
    reason: str


def eps_of(dtype: torch.dtype) -> float:
    """Return the spacing of `dtype` at 1; a correctly rounded value errs by at most half of it, relatively."""
    return float(torch.finfo(dtype).eps)


def assert_within(
    quantity: str, actual: torch.Tensor, expected: torch.Tensor, scale: torch.Tensor, budget: Budget, case: str
) -> float:
    """Raise unless ``|actual - expected| <= budget.factor * scale`` holds for every element.

    Args:
        quantity: what is compared, for the message.
        actual: the candidate's values, any floating dtype and shape.
        expected: the oracle's values, float64, same shape.
        scale: magnitude that the error is measured against, float64, same shape.
        budget: the permitted multiple of `scale`, with its reason.
        case: which case this is, for the message.

    Returns:
        The greatest error in units of its budget (at most 1).

    Raises:
        ParityError: an element is off by more, or is not finite where the oracle is, or the shapes differ.

    """
    if actual.shape != expected.shape:
        raise ParityError(f"{quantity}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)} ({case})")
    if actual.numel() == 0:
        return 0.0
    error = (actual.double() - expected).abs()
    allowed = budget.factor * scale
    ratio = torch.where(error == 0, torch.zeros_like(error), error / allowed).nan_to_num(nan=torch.inf)
    ratio = ratio.where(allowed >= 0, torch.inf)  # a scale that is negative or NaN allows nothing
    worst, position = ratio.flatten().max(0)
    if worst.item() > 1:
        index = tuple(int(i) for i in torch.unravel_index(position, ratio.shape))
        over = int((ratio > 1).sum())
        raise ParityError(
            f"{quantity}: {over} of {ratio.numel()} elements beyond the budget; worst at {index}: "
            f"got {actual[index].item():.9g}, oracle {expected[index].item():.9g}, "
            f"error {error[index].item():.3g} = {worst.item():.3g} x budget {allowed[index].item():.3g} "
            f"(budget: {budget.reason}) ({case})"
        )
    return float(worst.item())
