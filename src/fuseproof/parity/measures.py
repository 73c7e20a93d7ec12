"""How right is decided: an element-wise error against an FP64 oracle, judged by a budget that has a reason."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuseproof.parity.worst import collecting, note

__all__ = [
    "DTYPES",
    "Budget",
    "ParityError",
    "again",
    "assert_parity",
    "assert_rounded",
    "assert_within",
    "eps_of",
    "round_to",
    "spacing",
]


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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


def again() -> str:
    """Return how the running test is run again, for the end of a message; an empty string outside pytest."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
    return f'; again: pytest "{test}"' if test else ""


def eps_of(dtype: torch.dtype) -> float:
    """Return the spacing of `dtype` at 1; a correctly rounded value errs by at most half of it, relatively."""
    return float(torch.finfo(dtype).eps)


def assert_parity(
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
        note(quantity, math.inf, held=False)
        raise ParityError(f"{quantity}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)} ({case})")
    if actual.numel() == 0:
        return 0.0
    error = (actual.double() - expected).abs()
    allowed = budget.factor * scale
    ratio = torch.where(error == 0, torch.zeros_like(error), error / allowed).nan_to_num(nan=torch.inf)
    ratio = ratio.where(allowed >= 0, torch.inf)  # a scale that is negative or NaN allows nothing
    worst, position = ratio.flatten().max(0)
    note(quantity, float(worst.item()), held=worst.item() <= 1)
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


def spacing(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance of neighbouring `dtype` numbers at `value`, float64; subnormals have the least one's.

    For float64 that is 2^-1022 at least, which is too much for its subnormals.
    """
    info = torch.finfo(dtype)
    digits, lowest = 1 - round(math.log2(info.eps)), round(math.log2(info.tiny)) + 1
    exponent = torch.frexp(value.double().nan_to_num(0.0, 0.0, 0.0)).exponent
    exponent = torch.where(value == 0, lowest, exponent.clamp(min=lowest))  # frexp gives zero the exponent of 1/2
    return ((exponent - digits + 1023).clamp(min=1).long() << 52).view(torch.float64)  # a power of two, by its bits


def round_to(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 `value` rounded once to `dtype`, to even at ties, as float64; beyond its range it is infinite.

    torch itself goes from FP64 to half precision through FP32, which rounds twice.
    """
    if dtype in {torch.float32, torch.float64}:
        return value.to(dtype).double()
    ulp = spacing(value, dtype)
    rounded = (value / ulp).round() * ulp
    infinite = torch.copysign(torch.full_like(rounded, torch.inf), value)
    rounded = torch.where(rounded.abs() > torch.finfo(dtype).max, infinite, rounded)
    return torch.where(value.isfinite(), rounded, value)


def assert_rounded(
    quantity: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    tolerance: torch.Tensor,
    budget: Budget,
    case: str,
    locate: Callable[[int], str] = str,
) -> None:
    """Raise unless each stored value is a rounding of some number within `tolerance` of the oracle's.

    So half precision may differ from the rounded oracle only where the oracle is within `tolerance` of a tie. What is
    not finite must stand where the oracle has such, and nowhere else; Inf less Inf may be NaN in another order.

    Args:
        quantity: what is compared, for the message.
        actual: what the candidate has stored, ``(elements,)``, in the dtype that it is stored in.
        expected: the oracle's values before they are stored, float64, same shape.
        tolerance: how far the candidate's arithmetic may be off before it stores, float64, same shape.
        budget: how many times `tolerance` may be used, with the reason of `tolerance`.
        case: which case this is, for the message.
        locate: flat position to words.

    Raises:
        ParityError: a value is outside, or the shapes differ.

    """
    allowed = budget.factor * tolerance.nan_to_num(nan=torch.inf)
    low, high = round_to(torch.stack([expected - allowed, expected + allowed]), actual.dtype).unbind()
    assert_within(quantity, actual, expected, low, high, budget, case, locate, allowed)


def assert_within(
    quantity: str,
    actual: torch.Tensor,
    expected: torch.Tensor,
    low: torch.Tensor,
    high: torch.Tensor,
    budget: Budget,
    case: str,
    locate: Callable[[int], str] = str,
    allowed: torch.Tensor | None = None,
) -> None:
    """Raise unless each stored value is within its limits; what is not finite must stand where the oracle has such.

    Args:
        quantity, actual, expected, case, locate: as in `assert_rounded`.
        low, high: the least and the greatest right value, float64, same shape.
        budget: why not less and not more.
        allowed: how far from the oracle the limits were before they were rounded, float64, same shape; what is noted of
            a check that holds is the greatest share of it. None: the share of the way to the limits.

    Raises:
        ParityError: a value is outside, or the shapes differ.

    """
    if actual.shape != expected.shape:
        note(quantity, math.inf, held=False)
        raise ParityError(f"{quantity}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)} ({case})")
    stored = actual.double()
    right = torch.where(expected.isfinite(), (low <= stored) & (stored <= high), ~stored.isfinite())
    if bool(right.all()):
        if collecting():
            note(quantity, _used(actual, expected, torch.where(stored > expected, high, low), allowed))
        return
    error = torch.where(right, 0.0, (stored - expected).abs())
    whole = torch.maximum(torch.maximum(high - expected, expected - low), spacing(expected, actual.dtype) / 2)
    ratio = torch.where(right, 0.0, (error / whole).nan_to_num(nan=torch.inf, posinf=torch.inf))
    worst = int(ratio.argmax())
    # Limits that were rounded need not lie alike on both sides, so that even what is beyond one may be below 1.
    note(quantity, max(1.0, ratio[worst].item()), held=False)
    raise ParityError(
        f"{quantity}: {int((~right).sum())} of {right.numel()} elements beyond the budget; worst at {locate(worst)}: "
        f"got {stored[worst].item():.9g}, oracle {expected[worst].item():.9g}, error {error[worst].item():.3g} = "
        f"{ratio[worst].item():.3g} x budget {whole[worst].item():.3g}, the rounding to {actual.dtype} included "
        f"(budget: {budget.reason}) ({case})"
    )


def _used(actual: torch.Tensor, expected: torch.Tensor, limit: torch.Tensor, allowed: torch.Tensor | None) -> float:
    """Return the greatest share of its tolerance that a right value has used, beyond the rounding that stored it.

    Half precision is mostly the oracle, rounded: its whole error would say nothing but that it was rounded.
    """
    half = spacing(actual, actual.dtype) / 2
    beyond = ((actual.double() - expected).abs() - half).clamp(min=0)
    room = allowed if allowed is not None else (limit - expected).abs() - half
    share = torch.where(beyond > 0, beyond / room, 0.0)[actual.isfinite()]
    return min(1.0, float(share.max())) if share.numel() else 0.0
