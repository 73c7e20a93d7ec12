"""Whether two trainings give the same result: their loss curves stay together within a stated band."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuseproof.training import Training

__all__ = ["BANDS", "STEPS", "Band", "assert_same_curve", "loss_curve"]

STEPS = 60
_EARLY = 20


@dataclass(frozen=True)
class Band:
    """How far a loss curve may stray from the reference's, in nats.

    Early on a difference of rounding has not grown yet and a difference of method shows; later single batches amplify
    rounding by orders of magnitude, so only the mean is judged.

    Attributes:
        early: greatest difference over the first 20 steps.
        mean: absolute value of the mean difference over all 60.
        reason: what it was derived from.

    """

    early: float
    mean: float
    reason: str


# Measured on the size `tiny`. CPU: FP32 stages stray by 5e-7 early and 6e-7 in the mean, BF16 ones by 3e-4 and 1e-3;
# lr * 1.01 by 5e-3 and 4e-3, lr * 1.03 by 1.4e-2 and 2e-2, beta2 = 0.99 by 2e-3 and 3e-3, eps = 1e-5 by 1e-3 and 2e-3,
# weight decay 0.1 by 6e-4 and 1e-3. H200: BF16 with torch's LayerNorm, which returns FP32 under autocast, stays below
# 2e-3 early; Apex's returns BF16 and strays by 2.8e-3.
BANDS = {
    "fp32": Band(1e-4, 1e-4, "FP32 rounding, with a margin of a hundred for other orders of summation"),
    "tf32": Band(2e-3, 1e-2, "products of ten-bit fractions"),
    "bf16": Band(6e-3, 1e-2, "forward and backward in seven-bit fractions, LayerNorm's output included"),
    "fp16": Band(6e-3, 1e-2, "forward and backward in ten-bit fractions"),
}


def loss_curve(training: Training) -> torch.Tensor:
    """Train for `STEPS` iterations and return the losses, float64 on the CPU, ``(STEPS,)``."""
    losses = [training().detach().clone() for _ in range(STEPS)]
    return torch.stack(losses).double().cpu()


def assert_same_curve(curve: torch.Tensor, reference: torch.Tensor, band: Band, case: str) -> None:
    """Raise unless `curve` stays within `band` of `reference`.

    Args:
        curve, reference: losses, ``(STEPS,)``.
        band: how far they may be apart.
        case: what is compared, for the message.

    Raises:
        AssertionError: the curves part, or a loss is not finite.

    """
    difference = curve - reference
    early = difference[:_EARLY].abs()
    step = int(early.argmax()) + 1
    assert bool(curve.isfinite().all()), f"{case}: a loss is not finite"
    assert early.max() <= band.early, (
        f"{case}: the loss curves part at step {step}: {curve[step - 1]:.6f}, reference {reference[step - 1]:.6f}, "
        f"{early.max():.2g} nats apart, band {band.early:.2g} ({band.reason})"
    )
    mean = difference.mean().abs()
    assert mean <= band.mean, (
        f"{case}: over {STEPS} steps the loss is {difference.mean():+.2g} nats off in the mean, "
        f"band {band.mean:.2g} ({band.reason})"
    )
