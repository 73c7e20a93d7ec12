"""LayerNorm and RMSNorm, forward and with backward, checked against FP64."""

from __future__ import annotations

import torch

from fuseproof import oracle
from fuseproof.candidates import NormCandidate
from fuseproof.parity import Budget, ParityError, assert_parity, eps_of

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
        self.case = f"{candidate.name}, {rows}x{hidden}, {dtype}"

    def __call__(self) -> torch.Tensor:
        """Run forward; return y."""
        y: torch.Tensor = self.module(self.x)
        return y

    def gradients(self) -> tuple[torch.Tensor, ...]:
        """Run forward and backward; return (dx, dgamma) and, for LayerNorm, dbeta."""
        return torch.autograd.grad(self.module(self.x), (self.x, *self.weights), self.dy, allow_unused=True)

    def check(self) -> None:
        """Compare y, dx, dgamma and dbeta with FP64, each by the sum of its absolute terms."""
        x, gamma, *beta = self.x.detach(), *(weight.detach() for weight in self.weights)
        if beta:
            expected = oracle.layer_norm(x, gamma, beta[0], self.dy, _EPS)
        else:
            expected = oracle.rms_norm(x, gamma, self.dy, _EPS)
        got = (self.module(self.x).detach(), *self.gradients())
        actual = dict(zip(("y", "dx", "dgamma", "dbeta")[: len(got)], got, strict=True))
        eps, eps32 = eps_of(self.x.dtype), eps_of(torch.float32)
        sum_eps = eps_of(self.candidate.sum_dtype(self.x.dtype, self.x.device))
        subnormal = torch.finfo(self.x.dtype).smallest_normal * eps  # the spacing below the dtype's normal range
        roundings = Budget(1.0, "two ulps of its terms in the output's dtype, 8 FP32 eps of the terms of its row sums")
        dx_ulps = 4 if self.candidate.x_hat_from_output else 2  # x_hat is rounded to the output's dtype once more
        sums = Budget(1.0, "one ulp in the output's dtype, 4 eps of the sum's dtype of its terms, FP32 errors of x_hat")
        x_hat_errors = 8 * eps32 * expected.dgamma_sums
        for quantity, wanted, scale, budget in (
            ("y", expected.y, 2 * eps * expected.y_terms + 8 * eps32 * expected.y_sums + subnormal, roundings),
            (
                "dx",
                expected.dx,
                dx_ulps * eps * expected.dx_terms + 8 * eps32 * expected.dx_sums + subnormal,
                roundings,
            ),
            (
                "dgamma",
                expected.dgamma,
                eps * expected.dgamma.abs() + 4 * sum_eps * expected.dgamma_terms + x_hat_errors,
                sums,
            ),
            ("dbeta", expected.dbeta, eps * expected.dbeta.abs() + 4 * sum_eps * expected.dbeta_terms, sums),
        ):
            if quantity in actual:
                if actual[quantity] is None:
                    raise ParityError(f"{quantity}: the output does not depend on it at all ({self.case})")
                assert_parity(quantity, actual[quantity], wanted, scale, budget, self.case)
        self._check_common_error(actual["y"], expected, gamma.double())

    def _check_common_error(self, y: torch.Tensor, expected: oracle.NormResult, gamma: torch.Tensor) -> None:
        """Compare what the errors of y have in common in each row, and along gamma * x_hat over all rows.

        Roundings average out there, a wrong constant does not: in half precision an unbiased variance or a column left
        out of the statistics is below the roundings of single elements. A rounded x_hat does not average out either:
        with a standard deviation near 1 it falls back on the grid of x, and the mean is lost. Where the candidate's
        record says that it rounds x_hat, the oracle rounds it too.
        """
        eps, eps32 = eps_of(y.dtype), eps_of(torch.float32)
        x_term = gamma * expected.x_hat
        error = y.double() - expected.y
        if self.candidate.half_affine:
            error -= gamma * (expected.x_hat.to(y.dtype).double() - expected.x_hat)
        # A rounding's standard deviation is at most eps / sqrt(12) of the value; this is six of three of them.
        six_sigma = 3 * eps * expected.y_terms
        sums = 8 * eps32 * expected.y_sums
        # Rounding a product that is rounded already is biased by about eps^2: measured 1.1 eps^2 in BF16.
        bias = 2 * eps**2 * x_term.square()
        budget = Budget(1.0, "6 sigma of three roundings of each element, 8 FP32 eps of the terms of its row sums")
        for quantity, common, allowed in (
            ("mean error of y in each row", error.mean(-1), six_sigma.norm(dim=-1) / y.shape[-1] + sums.mean(-1)),
            (
                "error of y along gamma * x_hat",
                (error * x_term).sum(),
                (six_sigma * x_term).norm() + (sums * x_term.abs() + bias).sum(),
            ),
        ):
            assert_parity(quantity, common, torch.zeros_like(common), allowed, budget, self.case)


class NormForwardBackward(NormForward):
    """LayerNorm or RMSNorm forward and backward of ``(rows, hidden)``; arguments as for `NormForward`."""

    def __call__(self) -> tuple[torch.Tensor, ...]:  # type: ignore[override]  # a subject's result is its own
        """Run forward and backward; gradients are returned by autograd, not accumulated."""
        return self.gradients()
