"""What tensors hold, compared bit by bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["Contents", "changes", "contents", "is_zero", "same_bits", "same_numbers"]

Contents = dict[str, Any]


def contents(reach: Mapping[str, object]) -> Contents:
    """Return copies of tensors and other values, by name."""
    return {name: value.detach().clone() if isinstance(value, torch.Tensor) else value for name, value in reach.items()}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree; NaN equals itself, -0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def same_numbers(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether dtype, shape and every number agree; a NaN equals any other NaN, -0 is 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(((one == other) | (one.isnan() & other.isnan())).all())


def changes(before: Contents, after: Contents) -> list[str]:
    """Return the names of what is not the same in both; what is only in `after` does not count."""
    changed = []
    for name, old in before.items():
        new = after.get(name)
        if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
            if not same_bits(old, new):
                changed.append(name)
        elif type(old) is not type(new) or old != new:
            changed.append(name)
    return changed


def is_zero(value: object) -> bool:
    """Whether a value is zero, or a tensor of nothing but zeros."""
    return not bool(value.detach().count_nonzero()) if isinstance(value, torch.Tensor) else not value
