"""Half precision against a trusted implementation: one whose arithmetic and state are FP32, rounded once a step.

Step by step a candidate is judged from its own state, so moments that are kept in half precision are right as far as
their record says so. Whether the parameters are where an Adam would have brought them is another question.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.oracle import AdamHyper, adam_update
from fuseproof.parity import ParityError, eps_of, round_to
from fuseproof.parity.adam.regimes import Regime, make_params, usual_settings
from fuseproof.parity.bits import copies
from fuseproof.parity.worst import note, share

__all__ = ["check_trusted"]

_State: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # parameters, exp_avg, exp_avg_sq
_TIMES = 2.0  # as many roundings as the trusted one has; measured: right ones 1.00, FP32 arithmetic on BF16 moments 1.1
_ABSOLUTE = 0.1  # of the way that parameters went: beyond it nobody would train, however coarse the trusted one is
_FLOOR = 0.25  # units of the parameters: half a unit at most for the last rounding, 0.29 in the mean of squares


def check_trusted(
    candidate: AdamCandidate, device: torch.device, regime: Regime, dtype: torch.dtype, *, seed: int, steps: int
) -> float:
    """Compare how far off a candidate's half-precision parameters are with how far off trusted ones are.

    Truth is the way of an FP64 oracle that rounds nothing. Errors are root mean squares over all elements.

    Args:
        candidate, device: who and where.
        regime, dtype, seed, steps: what it goes through.

    Returns:
        The candidate's error over the trusted one's.

    Raises:
        ParityError: the error is greater than twice the trusted one's and a floor of a quarter unit of the parameters,
            or greater than a tenth of the way that they went.

    """
    settings = usual_settings(candidate, dtype, lr=regime.lr_for(dtype), weight_decay=0.0)
    params = make_params(regime, dtype, device, seed)
    optimizer = candidate.build(params, settings)
    hyper = candidate.hyper(settings, device)
    for step in range(1, steps + 1):
        regime.set_gradients(params, step, seed)
        optimizer.step()
    start, truth, trusted = _ways(regime, dtype, hyper, seed, steps)
    stored = torch.cat([param.double().flatten() for param in copies(params, torch.device("cpu"))])
    way = _rms(truth - start)
    error, trusted_error = _rms(stored - truth), _rms(trusted - truth)
    floor = _FLOOR * eps_of(dtype) * _rms(truth)
    allowed = min(_ABSOLUTE * way, _TIMES * trusted_error + floor)
    note("parameters beside trusted ones", share(error, allowed), held=error <= allowed)
    if not error <= allowed:
        raise ParityError(
            f"after {steps} steps parameters are off by {error:.3g}, {error / way:.3g} of their way; a trusted "
            f"implementation with FP32 state by {trusted_error:.3g}, so that {allowed:.3g} is allowed "
            f"({candidate.name}, {dtype}, {regime.name}, seed {seed})"
        )
    return error / trusted_error


@cache
def _ways(
    regime: Regime, dtype: torch.dtype, hyper: AdamHyper, seed: int, steps: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return where parameters start, and where the oracle and the trusted implementation end; float64, flat."""
    params = make_params(regime, dtype, torch.device("cpu"), seed)
    start = torch.cat([param.detach().double().flatten() for param in params])
    truth = trusted = (start, torch.zeros_like(start), torch.zeros_like(start))
    for step in range(1, steps + 1):
        regime.set_gradients(params, step, seed)
        grad = torch.cat([param.grad.double().flatten() for param in params if param.grad is not None])
        truth = _stepped(truth, grad, step, hyper)
        param, exp_avg, exp_avg_sq = _stepped(trusted, grad, step, hyper)
        trusted = (round_to(param, dtype), exp_avg.float().double(), exp_avg_sq.float().double())
    return start, truth[0], trusted[0]


def _stepped(state: _State, grad: torch.Tensor, step: int, hyper: AdamHyper) -> _State:
    param, exp_avg, exp_avg_sq = state
    after = adam_update(param, grad, exp_avg, exp_avg_sq, step, hyper)
    return param + after.update, after.exp_avg, after.exp_avg_sq


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())
