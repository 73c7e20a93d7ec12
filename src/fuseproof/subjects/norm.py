"""LayerNorm and RMSNorm, forward and with backward, checked against FP64."""

from __future__ import annotations

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.parity import ParityError
from fuseproof.parity.norm import NormInputs, NormOutputs, case_of, judge

__all__ = ["NormForward", "NormForwardBackward"]

_SEED = 20261129
_EPS = 1e-5


class NormForward:
    """LayerNorm or RMSNorm forward of ``(rows, hidden)``, as in training: the input requires a gradient.

    Args:
        candidate: which norm.
        rows, hidden: input shape.
        dtype: of input, weight and bias.
        device: where it runs.

    """

    inputs = f"x and dy N(0, 1), weight N(1, 0.2), bias N(0, 0.2), seed {_SEED}"

    def __init__(
        self, candidate: NormCandidate, rows: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        generator = torch.Generator(device).manual_seed(_SEED)

        def normal(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).to(dtype)

        self.candidate = candidate
        with device:
            self.module = candidate.build(hidden, _EPS).to(device=device, dtype=dtype)
        self.weights = [self.module.get_parameter("weight")]
        if candidate.kind == "layer_norm":
            self.weights.append(self.module.get_parameter("bias"))
        with torch.no_grad():
            for weight, centre in zip(self.weights, (1.0, 0.0), strict=False):
                weight.copy_(centre + 0.2 * normal(hidden))
        self.x = normal(rows, hidden).requires_grad_()
        self.dy = normal(rows, hidden)

    def __call__(self) -> torch.Tensor:
        """Run forward; return y."""
        y: torch.Tensor = self.module(self.x)
        return y

    def gradients(self) -> tuple[torch.Tensor, ...]:
        """Run forward and backward; return (dx, dgamma) and, for LayerNorm, dbeta."""
        return torch.autograd.grad(self.module(self.x), (self.x, *self.weights), self.dy, allow_unused=True)

    def check(self) -> None:
        """Compare y, dx, dgamma and dbeta with FP64."""
        gamma, *beta = (weight.detach() for weight in self.weights)
        x = self.x.detach()
        inputs = NormInputs(x, self.dy, gamma, beta[0] if beta else None, (x.shape[-1],), _EPS)
        outputs = NormOutputs(self.module(self.x).detach(), *self._all_gradients())
        judge(self.candidate, inputs, outputs, case_of(self.candidate, inputs, f"seed {_SEED}"))

    def _all_gradients(self) -> tuple[torch.Tensor, ...]:
        gradients = self.gradients()
        for name, gradient in zip(("dx", "dgamma", "dbeta"), gradients, strict=False):
            if gradient is None:
                raise ParityError(f"{name}: the output does not depend on it at all ({self.candidate.name})")
        return gradients


class NormForwardBackward(NormForward):
    """LayerNorm or RMSNorm forward and backward of ``(rows, hidden)``; arguments as for `NormForward`."""

    def __call__(self) -> tuple[torch.Tensor, ...]:  # type: ignore[override]  # a subject's result is its own
        """Run forward and backward; gradients are returned by autograd, not accumulated."""
        return self.gradients()
