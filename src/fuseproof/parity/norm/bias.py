"""What the errors of y have in common: rounding noise averages out, a wrong constant does not."""

from __future__ import annotations

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.oracle import NormResult
from fuseproof.parity import Budget, assert_parity, eps_of
from fuseproof.parity.norm.regimes import NormInputs

__all__ = ["assert_unbiased"]

# In eps. The mean and the rstd of a row are wrong for all its elements alike: see the budgets of single elements.
_ROW_EPS = 4.0
# Over all rows the roundings of rstd average out; what is left is the bias of an approximate root, and eps in FP32.
_CONSTANT_EPS = 2.0
# A rounding's standard deviation is at most eps / sqrt(12) of the value; this is six of three of them.
_SIX_SIGMA = 3.0


def assert_unbiased(
    candidate: NormCandidate, inputs: NormInputs, right: NormResult, y: torch.Tensor, case: str
) -> None:
    """Compare the mean error of y in each row, and its error along gamma * x_hat over all rows, with their budgets.

    In half precision there is nothing to project: every value that is not near a tie is the oracle's, rounded.

    Args:
        candidate, inputs, right: who, from what, what the oracle says.
        y: what came of it, ``(rows, hidden)``.
        case: for messages.

    Raises:
        ParityError: the errors have something in common.

    """
    finite = right.y.isfinite().all(-1)
    if y.dtype.itemsize == 2 or y.numel() == 0 or not bool(finite.any()):
        return
    gamma, beta = inputs.flat(inputs.gamma, 1.0).double(), inputs.flat(inputs.beta, 0.0).double()
    x_term, eps = (gamma * right.x_hat)[finite], eps_of(y.dtype)
    error = y.double()[finite] - right.y[finite]
    mean_x = inputs.rows(inputs.x).double().abs().mean(-1, keepdim=True)[finite]
    shift = torch.zeros_like(mean_x) if candidate.kind == "rms_norm" else _ROW_EPS * eps * mean_x * right.rstd[finite]
    noise = _SIX_SIGMA * eps * (x_term.abs() + beta.abs())
    by_row = shift * gamma.mean().abs() + (shift + _ROW_EPS * eps) * x_term.mean(-1, keepdim=True).abs()
    along_row = x_term.square().sum(-1)
    shifted = (shift * (gamma * x_term).sum(-1, keepdim=True).abs()).squeeze(-1) + shift.squeeze(-1) * along_row
    tiny = torch.finfo(torch.float32).tiny
    budget = Budget(
        1.0,
        f"{_ROW_EPS:g} eps of mean|x| and of x_hat in a row, {_CONSTANT_EPS:g} eps over all, 6 sd of three roundings",
    )
    for quantity, common, allowed in (
        ("mean error of y in each row", error.mean(-1), by_row.squeeze(-1) + noise.norm(dim=-1) / y.shape[-1] + tiny),
        (
            "error of y along gamma * x_hat",
            (error * x_term).sum(),
            (noise * x_term).norm()
            + _ROW_EPS * eps * along_row.norm()
            + _CONSTANT_EPS * eps * along_row.sum()
            + shifted.sum()
            + tiny,
        ),
    ):
        assert_parity(quantity, common, torch.zeros_like(common), allowed, budget, case)
