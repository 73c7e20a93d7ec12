"""FP64 arithmetic written from the formulas. Imports no candidate, no ``torch.optim``, no ``nn.LayerNorm``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["AdamHyper", "LayerNormResult", "adam_update", "layer_norm"]


@dataclass(frozen=True)
class AdamHyper:
    """Adam's hyper-parameters as the arithmetic under test sees them: already rounded to the dtype it takes them in."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled: bool

    def rounded(self, dtype: torch.dtype) -> AdamHyper:
        """Return these values rounded to `dtype`, as an implementation that takes them in `dtype` uses them."""

        def r(value: float) -> float:
            return torch.tensor(value, dtype=torch.float64).to(dtype).double().item()

        return AdamHyper(r(self.lr), r(self.beta1), r(self.beta2), r(self.eps), r(self.weight_decay), self.decoupled)


def adam_update(
    param: torch.Tensor,
    grad: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: int,
    hyper: AdamHyper,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One step of Adam (Kingma & Ba 2015, algorithm 1) or AdamW (Loshchilov & Hutter 2019, algorithm 2) in FP64.

    eps stands outside the root, after the bias correction, as in ``torch.optim.Adam``.

    Args:
        param, grad, exp_avg, exp_avg_sq: equal shapes, any floating dtype; state before the step.
        step: the number of this step; the first is 1.
        hyper: hyper-parameters, rounded as the implementation takes them.

    Returns:
        (update, exp_avg, exp_avg_sq) after the step, float64; the new parameter is ``param + update``.

    """
    p, g = param.double(), grad.double()
    if not hyper.decoupled:
        g = g + hyper.weight_decay * p
    m = hyper.beta1 * exp_avg.double() + (1 - hyper.beta1) * g
    v = hyper.beta2 * exp_avg_sq.double() + (1 - hyper.beta2) * g * g
    m_hat = m / (1 - hyper.beta1**step)
    v_hat = v / (1 - hyper.beta2**step)
    update = -hyper.lr * m_hat / (v_hat.sqrt() + hyper.eps)
    if hyper.decoupled:
        update = update - hyper.lr * hyper.weight_decay * p
    return update, m, v


@dataclass(frozen=True)
class LayerNormResult:
    """LayerNorm in FP64, with the sums of absolute terms by which errors are scaled.

    Attributes:
        y, dx: ``(rows, hidden)``.
        dgamma, dbeta: ``(hidden,)``.
        y_terms: |gamma * x_hat| + |beta|, what the last roundings of y are relative to; ``(rows, hidden)``.
        y_sums: the same with x_hat's own terms, |gamma| * rstd * (|x| + mean|x|) + |beta|; ``(rows, hidden)``.
        dx_terms: sum of the absolute terms of dx; ``(rows, hidden)``.
        dx_sums: the same with the terms of its row means; ``(rows, hidden)``.
        dgamma_terms: sum over rows of |dy * x_hat|, ``(hidden,)``.
        dbeta_terms: sum over rows of |dy|, ``(hidden,)``.

    """

    y: torch.Tensor
    dx: torch.Tensor
    dgamma: torch.Tensor
    dbeta: torch.Tensor
    y_terms: torch.Tensor
    y_sums: torch.Tensor
    dx_terms: torch.Tensor
    dx_sums: torch.Tensor
    dgamma_terms: torch.Tensor
    dbeta_terms: torch.Tensor


def layer_norm(
    x: torch.Tensor, gamma: torch.Tensor, beta: torch.Tensor, dy: torch.Tensor, eps: float
) -> LayerNormResult:
    """LayerNorm (Ba, Kiros & Hinton 2016, eq. 4) over the last dimension and its derivative, in FP64.

    Args:
        x, dy: ``(rows, hidden)``, any floating dtype.
        gamma, beta: ``(hidden,)``, any floating dtype.
        eps: added to the biased variance, under the root.

    """
    x, gamma, beta, dy = x.double(), gamma.double(), beta.double(), dy.double()
    centred = x - x.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
    x_hat = centred * rstd
    y = gamma * x_hat + beta
    g = gamma * dy
    mean_g = g.mean(-1, keepdim=True)
    mean_gx = (g * x_hat).mean(-1, keepdim=True)
    return LayerNormResult(
        y=y,
        dx=rstd * (g - mean_g - x_hat * mean_gx),
        dgamma=(dy * x_hat).sum(0),
        dbeta=dy.sum(0),
        y_terms=(gamma * x_hat).abs() + beta.abs(),
        y_sums=gamma.abs() * rstd * (x.abs() + x.abs().mean(-1, keepdim=True)) + beta.abs(),
        dx_terms=rstd * (g.abs() + mean_g.abs() + (x_hat * mean_gx).abs()),
        dx_sums=rstd
        * (g.abs() + g.abs().mean(-1, keepdim=True) + x_hat.abs() * (g * x_hat).abs().mean(-1, keepdim=True)),
        dgamma_terms=(dy * x_hat).abs().sum(0),
        dbeta_terms=dy.abs().sum(0),
    )
