"""Whether an error is a constant factor, in words for the message of a failure."""

from __future__ import annotations

import torch

__all__ = ["factor_of"]


def factor_of(quantity: str, actual: torch.Tensor, wanted: torch.Tensor) -> str:
    """Return by how much a quantity is scaled, in words; an empty string where that does not explain its errors."""
    usable = actual.isfinite() & wanted.isfinite()
    wanted = wanted[usable]
    rest, norm = actual[usable] - wanted, float((wanted * wanted).sum())
    if norm == 0:
        return ""
    factor = float((rest * wanted).sum()) / norm
    left = rest - factor * wanted
    if float((left * left).sum()) > 0.1 * float((rest * rest).sum()):
        return ""
    size = f"{abs(factor):.3g} times itself" if abs(factor) >= 1 else f"{100 * abs(factor):.3g} %"
    side = "large" if factor > 0 else "small"
    return f"{quantity} {size} too {side}, the same everywhere: looks like a constant factor"
