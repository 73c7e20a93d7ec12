"""Norms in uses beyond one forward and backward: second derivatives, memory that others have left, a wrong shape."""

from __future__ import annotations

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.parity import ParityError
from fuseproof.parity.norm.checks import build, case_of, judge, run
from fuseproof.parity.norm.regimes import REGIMES, SEED, NormInputs

__all__ = ["check_second_derivative", "check_written", "poison"]

# Of the largest: a term that is missing is of the size of the whole; roundings are 1,000 times smaller.
_SECOND_TOLERANCE = 1e-4
# Sizes of blocks and how many of each. CUDA's caching allocator takes those below 1 MiB from other memory than those
# above; on a CPU what is larger than 128 KiB may go back to the system, where it is cleared.
_POISONED = {2**26: 1, 2**19: 128, 2**16: 64, 2**12: 64}


def poison(device: torch.device) -> torch.Tensor:
    """Leave NaN, in any floating dtype, in the memory that the next tensors on `device` will get.

    Returns:
        What keeps a CPU's heap from shrinking back below that memory: to be kept until it is used.

    """
    if device.type == "cuda":
        torch.cuda.empty_cache()  # so that all that the allocator has at hand is what was filled
    blocks = [
        torch.full((size,), 0xFF, dtype=torch.uint8, device=device) for size, n in _POISONED.items() for _ in range(n)
    ]
    lid = torch.zeros(64, device=device)
    del blocks
    return lid


def check_written(
    candidate: NormCandidate,
    leading: tuple[int, ...],
    normalized_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
) -> None:
    """Run a candidate where all free memory holds NaN.

    Raises:
        ParityError: an element was not written, or something was read before it was.

    """
    inputs = REGIMES["usual"].inputs(leading, normalized_shape, dtype, device).of(candidate.kind)
    module = build(candidate, inputs)
    lid = poison(device)
    outputs = run(candidate, inputs, module, watch=False)  # copies of the inputs would take the memory
    judge(candidate, inputs, outputs, case_of(candidate, inputs, f"memory full of NaN, seed {SEED}"))
    del lid


def check_second_derivative(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Differentiate the squared norm of dx, as a gradient penalty does: the right values, or an error.

    Raises:
        ParityError: values that are wrong, or silently zero.

    """
    inputs = REGIMES["usual"].inputs((5,), (16,), dtype, device).of(candidate.kind)
    module = build(candidate, inputs)
    x, dy = inputs.x.detach().requires_grad_(), inputs.dy.detach().requires_grad_()
    y = module(x)
    try:
        (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
        dx.square().sum().backward()  # the whole graph: asked for x alone, autograd passes errors by
    except RuntimeError:
        return  # it says that it has no second derivative
    case = case_of(candidate, inputs, f"second derivative, seed {SEED}")
    owners = {"x": x, "gamma": module.get_parameter("weight"), "dy": dy}
    for (name, owner), expected in zip(owners.items(), _second_derivative(candidate.kind, inputs), strict=True):
        got = owner.grad
        actual = torch.zeros_like(expected) if got is None else got.double()
        error, size = (actual - expected).abs().max().item(), expected.abs().max().item()
        if not error <= _SECOND_TOLERANCE * size:
            zero = "; it is zero all over" if not bool(actual.count_nonzero()) else ""
            raise ParityError(
                f"second derivative by {name}: off by {error:.3g}, where the largest is {size:.3g} "
                f"(budget: {_SECOND_TOLERANCE:g} of it, for a term that is missing){zero} ({case})"
            )


def _second_derivative(kind: str, inputs: NormInputs) -> tuple[torch.Tensor, ...]:
    """Return the derivatives of the squared norm of dx by x, gamma and dy, by autograd through the formula in FP64."""
    x = inputs.x.detach().double().requires_grad_()
    gamma = inputs.flat(inputs.gamma, 1.0).detach().double().requires_grad_()
    dy = inputs.dy.detach().double().requires_grad_()
    g = gamma * dy
    centred = x - x.mean(-1, keepdim=True) if kind == "layer_norm" else x
    rstd = (centred.square().mean(-1, keepdim=True) + inputs.eps).rsqrt()
    x_hat = centred * rstd
    dx = g - x_hat * (g * x_hat).mean(-1, keepdim=True)
    if kind == "layer_norm":
        dx = dx - g.mean(-1, keepdim=True)
    return torch.autograd.grad((rstd * dx).square().sum(), (x, gamma, dy))
