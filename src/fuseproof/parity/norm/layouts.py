"""Norms over inputs and gradients that lie in memory in other ways than row after row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.parity.layouts import channels_last, padded_rows, shifted, shifted_by_8_bytes, transposed
from fuseproof.parity.norm.checks import check
from fuseproof.parity.norm.regimes import REGIMES, SEED

__all__ = ["LAYOUTS", "check_layout"]

# An odd hidden size, so that in half precision every other row is unaligned, and one that vectors of 16 bytes divide:
# a kernel that reads such rows by vectors must not where the first one is unaligned. Four dimensions for channels-last.
_LEADING, _HIDDEN = (4, 3, 5), (7, 64)
_Layout = Callable[[torch.Tensor], torch.Tensor]


def _plain(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous()


def _columns_last(values: torch.Tensor) -> torch.Tensor:
    """Columns are far apart in memory: the first dimension is the fastest."""
    return transposed(values, -1)


def _every_other_column(values: torch.Tensor) -> torch.Tensor:
    storage = torch.zeros(*values.shape[:-1], 2 * values.shape[-1], dtype=values.dtype, device=values.device)
    return storage[..., ::2].copy_(values)


def _every_other_row(values: torch.Tensor) -> torch.Tensor:
    storage = torch.zeros(2 * values.shape[0], *values.shape[1:], dtype=values.dtype, device=values.device)
    return storage[::2].copy_(values)


def _slice_of_columns(values: torch.Tensor) -> torch.Tensor:
    """Rows are further apart than they are long: the middle third of wider ones, as a chunk of q, k and v together."""
    columns = values.shape[-1]
    return padded_rows(values, 3 * columns, columns)


def _one_row(values: torch.Tensor) -> torch.Tensor:
    """All rows are the same memory."""
    return values[:1, :1, :1].expand(values.shape)


def _one_element(values: torch.Tensor) -> torch.Tensor:
    """What the gradient of a sum is: one number for all."""
    return values[:1, :1, :1, :1].expand(values.shape)


def _one_column(values: torch.Tensor) -> torch.Tensor:
    """What the gradient of a sum over the columns is: one number for each row, which lie side by side."""
    return values[..., :1].contiguous().expand(values.shape)


# How x, dy and the parameters lie in memory.
LAYOUTS: Mapping[str, tuple[_Layout, _Layout, _Layout]] = MappingProxyType(
    {
        "x_transposed": (transposed, _plain, _plain),
        "x_columns_last": (_columns_last, _plain, _plain),
        "x_channels_last": (channels_last, _plain, _plain),
        "x_every_other_column": (_every_other_column, _plain, _plain),
        "x_every_other_row": (_every_other_row, _plain, _plain),
        "x_slice_of_columns": (_slice_of_columns, _plain, _plain),
        "x_one_row": (_one_row, _plain, _plain),
        "x_shifted": (shifted, _plain, _plain),
        "dy_transposed": (_plain, transposed, _plain),
        "dy_columns_last": (_plain, _columns_last, _plain),
        "dy_channels_last": (_plain, channels_last, _plain),
        "dy_every_other_column": (_plain, _every_other_column, _plain),
        "dy_every_other_row": (_plain, _every_other_row, _plain),
        "dy_slice_of_columns": (_plain, _slice_of_columns, _plain),
        "dy_one_row": (_plain, _one_row, _plain),
        "dy_one_column": (_plain, _one_column, _plain),
        "dy_one_element": (_plain, _one_element, _plain),
        "dy_shifted": (_plain, shifted, _plain),
        "both_columns_last": (_columns_last, _columns_last, _plain),
        "both_shifted": (shifted, shifted, _plain),
        "parameters_shifted": (_plain, _plain, shifted),
        "all_shifted": (shifted, shifted, shifted),
        "x_shifted_by_8_bytes": (shifted_by_8_bytes, _plain, _plain),
        "dy_shifted_by_8_bytes": (_plain, shifted_by_8_bytes, _plain),
        "parameters_shifted_by_8_bytes": (_plain, _plain, shifted_by_8_bytes),
    }
)


def check_layout(candidate: NormCandidate, layout: str, dtype: torch.dtype, device: torch.device) -> None:
    """Run a candidate over inputs that lie in memory as `layout` says.

    Raises:
        ParityError: values were taken from the wrong place.

    """
    of_x, of_dy, of_parameters = LAYOUTS[layout]
    for hidden in _HIDDEN:
        plain = REGIMES["usual"].inputs(_LEADING, (hidden,), dtype, device).of(candidate.kind)
        gamma, beta = (None if each is None else of_parameters(each) for each in (plain.gamma, plain.beta))
        inputs = replace(plain, x=of_x(plain.x), dy=of_dy(plain.dy), gamma=gamma, beta=beta)
        check(candidate, inputs, f"{layout}, seed {SEED}")
