"""What tensors hold, compared bit by bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

__all__ = ["Contents", "changes", "contents", "copies", "differing", "is_zero", "same_bits", "same_numbers"]

Contents = dict[str, Any]


def copies(tensors: Sequence[torch.Tensor], device: torch.device | None = None) -> list[torch.Tensor]:
    """Return copies of tensors on a device, fetched in one transfer for each dtype; where they are if it is None.

    A GPU that several processes share answers each of them in its turn only: many small transfers wait many times.
    """
    copied = list(tensors)
    alike: dict[tuple[torch.dtype, torch.device], list[int]] = defaultdict(list)
    for position, tensor in enumerate(tensors):
        alike[tensor.dtype, tensor.device].append(position)
    for (_, here), positions in alike.items():
        if device is None or here == device:
            for position in positions:
                copied[position] = tensors[position].detach().clone()
        else:
            flat = torch.cat([tensors[position].detach().flatten() for position in positions]).to(device)
            parts = flat.split([tensors[position].numel() for position in positions])
            for position, part in zip(positions, parts, strict=True):
                copied[position] = part.view(tensors[position].shape)
    return copied


def contents(reach: Mapping[str, object], device: torch.device | None = None) -> Contents:
    """Return copies of tensors, on a device as `copies` makes them, and other values, by name."""
    tensors = {name: value for name, value in reach.items() if isinstance(value, torch.Tensor)}
    return {**reach, **dict(zip(tensors, copies(list(tensors.values()), device), strict=True))}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit agree; NaN equals itself, -0 is not 0."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(*(each.contiguous().flatten().view(torch.uint8) for each in (one, other)))


def differing(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[int]:
    """Return the positions at which two lists of tensors do not hold the same bits; they are compared on the host."""
    host = torch.device("cpu")
    pairs = zip(copies(some, host), copies(others, host), strict=True)
    return [position for position, pair in enumerate(pairs) if not same_bits(*pair)]


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
