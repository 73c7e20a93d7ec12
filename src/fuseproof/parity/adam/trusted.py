"""Half precision against a trusted implementation: one whose arithmetic and state are FP32, rounded once a step.

Step by step a candidate is judged from its own state, so moments that are kept in half precision are right as far as
their record says so. Whether the parameters are where an Adam would have brought them is another question.
"""

from __future__ import annotations

import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.oracle import AdamHyper
from fuseproof.parity import ParityError, eps_of
from fuseproof.parity.adam.bounds import Tracked, advance
from fuseproof.parity.adam.regimes import Regime, make_params, usual_settings
from fuseproof.parity.bits import copies
from fuseproof.parity.worst import note

__all__ = ["check_trusted"]

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
    params, twins = (make_params(regime, dtype, where, seed) for where in (device, torch.device("cpu")))
    optimizer = candidate.build(params, settings)
    arithmetic = candidate.arithmetic(device)
    hyper = AdamHyper(
        settings.lr,
        settings.betas,
        settings.eps,
        settings.weight_decay,
        settings.decoupled,
        arithmetic.hyper,
        arithmetic.bias_betas,
    )
    start = torch.cat([param.detach().double().flatten() for param in twins])
    truth = trusted = Tracked.exact(start, torch.zeros_like(start), torch.zeros_like(start))
    for step in range(1, steps + 1):
        for each in (params, twins):
            regime.set_gradients(each, step, seed)
        grad = torch.cat([param.grad.double().flatten() for param in twins if param.grad is not None])
        truth = advance(truth, grad, step, hyper, arithmetic.power_ulps, torch.float32)
        trusted = advance(trusted, grad, step, hyper, arithmetic.power_ulps, dtype).stored(dtype, torch.float32)
        optimizer.step()
    stored = torch.cat([param.double().flatten() for param in copies(params, torch.device("cpu"))])
    way = _rms(truth.param - start)
    error, trusted_error = _rms(stored - truth.param), _rms(trusted.param - truth.param)
    floor = _FLOOR * eps_of(dtype) * _rms(truth.param)
    allowed = min(_ABSOLUTE * way, _TIMES * trusted_error + floor)
    if not error <= allowed:
        raise ParityError(
            f"after {steps} steps parameters are off by {error:.3g}, {error / way:.3g} of their way; a trusted "
            f"implementation with FP32 state by {trusted_error:.3g}, so that {allowed:.3g} is allowed "
            f"({candidate.name}, {dtype}, {regime.name}, seed {seed})"
        )
    note("parameters beside trusted ones", error / allowed)
    return error / trusted_error


def _rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())
