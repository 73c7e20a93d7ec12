"""Ways in which the same values lie in memory."""

from __future__ import annotations

import torch

__all__ = ["channels_last", "padded_rows", "shifted", "shifted_by_8_bytes", "transposed"]


def channels_last(values: torch.Tensor) -> torch.Tensor:
    """Return a copy of an ``(n, c, h, w)`` tensor in channels-last order."""
    return values.contiguous(memory_format=torch.channels_last)


def transposed(values: torch.Tensor, dim: int = 1) -> torch.Tensor:
    """Return a copy whose first dimension changes places with `dim` in memory."""
    return values.transpose(0, dim).contiguous().transpose(0, dim)


def padded_rows(values: torch.Tensor, width: int, first: int) -> torch.Tensor:
    """Return a copy of ``(..., columns)`` as a slice of zeros of so many columns: rows are `width` elements apart.

    Args:
        values: what is copied.
        width: columns of the storage.
        first: the column of it where rows begin.

    """
    storage = torch.zeros(*values.shape[:-1], width, dtype=values.dtype, device=values.device)
    return storage[..., first : first + values.shape[-1]].copy_(values)


def shifted(values: torch.Tensor) -> torch.Tensor:
    """Return a copy one element into a larger storage of zeros: nothing is aligned for vector loads."""
    return _shifted(values, 1)


def shifted_by_8_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return a copy 8 bytes into a larger storage of zeros: aligned for loads of 8 bytes, not for those of 16."""
    return _shifted(values, 8 // values.element_size())


def _shifted(values: torch.Tensor, by: int) -> torch.Tensor:
    storage = torch.zeros(values.numel() + 2 * by, dtype=values.dtype, device=values.device)
    return storage[by:-by].view(values.shape).copy_(values)
