"""FP64 arithmetic written from the formulas. Imports no candidate, no ``torch.optim``, no ``nn.LayerNorm``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

__all__ = ["AdamHyper", "AdamResult", "NormResult", "adam_update", "layer_norm", "rms_norm"]


@dataclass(frozen=True)
class AdamHyper:
    """Adam's hyper-parameters, with the dtypes in which the arithmetic under test takes them.

    Attributes:
        lr, betas, eps, weight_decay: as the user gave them.
        decoupled: AdamW's weight decay instead of an L2 term in the gradient.
        dtype: in which lr, betas, eps and decay enter update and moments.
        bias_dtype: in which the betas enter the bias correction. 1 - 0.999^2 with beta2 in FP32 is off by 1.3e-5.
        corrected: whether there is a bias correction at all.

    """

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    decoupled: bool
    dtype: torch.dtype = torch.float64
    bias_dtype: torch.dtype = torch.float64
    corrected: bool = True

    def taken(self) -> tuple[float, float, float, float, float]:
        """Return (lr, beta1, beta2, eps, weight_decay) as the arithmetic under test takes them."""
        lr, beta1, beta2, eps, decay = (
            _as(self.dtype, value) for value in (self.lr, *self.betas, self.eps, self.weight_decay)
        )
        return lr, beta1, beta2, eps, decay

    def corrections(self, step: int) -> tuple[float, float]:
        """Return the bias corrections ``1 - beta ** step`` of exp_avg and exp_avg_sq; the first step is 1."""
        if not self.corrected:
            return 1.0, 1.0
        beta1, beta2 = (_as(self.bias_dtype, beta) for beta in self.betas)
        return 1 - beta1**step, 1 - beta2**step


@cache
def _as(dtype: torch.dtype, value: float) -> float:
    return torch.tensor(value, dtype=torch.float64).to(dtype).double().item()


@dataclass(frozen=True)
class AdamResult:
    """One step of Adam in FP64, with the sums of absolute terms by which errors are scaled; all of equal shape.

    Attributes:
        update: the new parameter is ``param + update``.
        exp_avg, exp_avg_sq: after the step.
        exp_avg_terms: max(beta1, 1 - beta1) * |exp_avg before| + (1 - beta1) * g, where g is |grad| + decay * |param|
            for L2. With exp_avg + (1 - beta1) * (grad - exp_avg) the old exp_avg is rounded in a product with
            1 - beta1, with beta1 * exp_avg + (1 - beta1) * grad in one with beta1.
        exp_avg_sq_terms: beta2 * exp_avg_sq before + (1 - beta2) * |grad + decay * param| * g; without L2 decay it is
            exp_avg_sq itself. exp_avg_sq + (1 - beta2) * (grad^2 - exp_avg_sq) needs more where beta2 is below 1/2, and
            gets none: it loses a small square beside a great old one, and the root of what is left is no update.
        update_terms: the update with the terms of its moments: larger than it where gradient, decay and exp_avg cancel.

    """

    update: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    exp_avg_terms: torch.Tensor
    exp_avg_sq_terms: torch.Tensor
    update_terms: torch.Tensor


def adam_update(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: int,
    hyper: AdamHyper,
) -> AdamResult:
    """One step of Adam (Kingma & Ba 2015, algorithm 1) or AdamW (Loshchilov & Hutter 2019, algorithm 2) in FP64.

    eps stands outside the root, after the bias correction, as in ``torch.optim.Adam``.

    Args:
        param, grad, exp_avg, exp_avg_sq: equal shapes, any floating dtype; state before the step.
        step: the number of this step; the first is 1.
        hyper: hyper-parameters and the dtypes in which the implementation takes them.

    """
    lr, beta1, beta2, eps, decay = hyper.taken()
    correction1, correction2 = hyper.corrections(step)
    p, g = param.double(), grad.double()
    g_terms = g.abs()
    if not hyper.decoupled:
        g, g_terms = g + decay * p, g_terms + decay * p.abs()
    m = beta1 * exp_avg.double() + (1 - beta1) * g
    m_terms = max(beta1, 1 - beta1) * exp_avg.double().abs() + (1 - beta1) * g_terms
    v = beta2 * exp_avg_sq.double() + (1 - beta2) * g * g
    v_terms = beta2 * exp_avg_sq.double() + (1 - beta2) * g.abs() * g_terms
    per_m = lr / correction1 / ((v / correction2).sqrt() + eps)
    update, update_terms = -per_m * m, per_m * m_terms * torch.where(v > 0, v_terms / v, 1.0)
    if hyper.decoupled:
        update, update_terms = update - lr * decay * p, update_terms + lr * decay * p.abs()
    return AdamResult(update, m, v, m_terms, v_terms, update_terms)


@dataclass(frozen=True)
class NormResult:
    """LayerNorm or RMSNorm and its derivative in FP64; RMSNorm's mean and mean_g are 0, its dbeta is what one would be.

    Attributes:
        y, dx, x_hat: ``(rows, hidden)``.
        dgamma, dbeta: ``(hidden,)``.
        mean, rstd: the statistics that a forward saves for its backward; ``(rows, 1)``.
        g: gamma * dy, what flows back into x_hat; ``(rows, hidden)``.
        mean_g, mean_gx: row means of g and of g * x_hat; ``(rows, 1)``.

    """

    y: torch.Tensor
    dx: torch.Tensor
    dgamma: torch.Tensor
    dbeta: torch.Tensor
    mean: torch.Tensor
    rstd: torch.Tensor
    x_hat: torch.Tensor
    g: torch.Tensor
    mean_g: torch.Tensor
    mean_gx: torch.Tensor


def layer_norm(x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, dy: torch.Tensor, eps: float) -> NormResult:
    """LayerNorm (Ba, Kiros & Hinton 2016, eq. 4) over the last dimension and its derivative, in FP64.

    Args:
        x, dy: ``(rows, hidden)``, any floating dtype.
        gamma, beta: ``(hidden,)``, any floating dtype.
        eps: added to the biased variance, under the root.

    """
    x = x.double()
    return _norm(x, x.mean(-1, keepdim=True), gamma.double(), beta.double(), dy.double(), eps)


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, dy: torch.Tensor, eps: float) -> NormResult:
    """RMSNorm (Zhang & Sennrich 2019, eq. 4) over the last dimension and its derivative, in FP64.

    Args:
        x, dy: ``(rows, hidden)``, any floating dtype.
        gamma: ``(hidden,)``, any floating dtype.
        eps: added to the mean square, under the root.

    """
    x = x.double()
    return _norm(x, None, gamma.double(), torch.zeros_like(gamma, dtype=torch.float64), dy.double(), eps)


def _norm(
    x: torch.Tensor,
    mean: torch.Tensor | None,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    dy: torch.Tensor,
    eps: float,
) -> NormResult:
    """Normalize around `mean`; around 0, without its terms in the derivative, where there is none."""
    centred = x if mean is None else x - mean
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    x_hat, g = centred * rstd, gamma * dy
    mean_g = torch.zeros_like(rstd) if mean is None else g.mean(-1, keepdim=True)
    mean_gx = (g * x_hat).mean(-1, keepdim=True)
    return NormResult(
        y=gamma * x_hat + beta,
        dx=rstd * (g - mean_g - x_hat * mean_gx),
        dgamma=(dy * x_hat).sum(0),
        dbeta=dy.sum(0),
        mean=torch.zeros_like(rstd) if mean is None else mean,
        rstd=rstd,
        x_hat=x_hat,
        g=g,
        mean_g=mean_g,
        mean_gx=mean_gx,
    )
