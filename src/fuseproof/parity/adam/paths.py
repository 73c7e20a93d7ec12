"""Whether an Adam's own kernel takes the step: as it is built, and after it has loaded a checkpoint."""

from __future__ import annotations

import copy

import torch

from fuseproof.candidates import ADAM, AdamCandidate
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, usual_settings
from fuseproof.parity.launch import Launched, assert_launched, launched_by
from fuseproof.parity.measures import DTYPES, ParityError

__all__ = ["check_kernel", "check_kernel_after_loading", "check_traffic"]

# They fit into one launch of Apex's with masters, which takes 30; and launches for each of them would be many.
_SHAPES = ((64, 33),) * 20
_USUAL = REGIMES["mixed_signs"]
_PASSES = 7  # a step reads parameter, gradient and both moments, and writes all but the gradient
# torch's schema says that gradients are written, which they are under a GradScaler only; step counts are small.
_DECLARED_PASSES = 8.01


def check_kernel(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Take a step over twenty tensors: one launch of the candidate's own kernel, and few others.

    Raises:
        ParityError: the kernel did not run, or not once, or launches grow with tensors.

    """
    optimizer, params = _warm(candidate, device, dtype)
    _assert_own(candidate, launched_by(optimizer.step, device), f"{candidate.name}, {dtype}, {len(params)} tensors")


def check_kernel_after_loading(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Load a checkpoint of torch's plain Adam: the candidate's own kernel goes on, or it refuses.

    Raises:
        ParityError: another kernel goes on.

    """
    plain, params = _warm(ADAM["torch_loop"], device, dtype)
    optimizer = candidate.build(params, usual_settings(candidate, DTYPES[dtype]))
    try:
        optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        optimizer.step()
    except (KeyError, RuntimeError, TypeError, ValueError):  # it refuses; test_resumed_by_another looks at that
        return
    case = f"{candidate.name} after a checkpoint of torch's plain Adam, {dtype}"
    _assert_own(candidate, launched_by(optimizer.step, device), case)


def check_traffic(candidate: AdamCandidate, device: torch.device, dtype: str) -> float:
    """Return how many bytes a step's operators read and write, over the least that a step needs.

    Raises:
        ParityError: it is one fused operator, and moves more than it must.

    """
    optimizer, params = _warm(candidate, device, dtype)
    least = _PASSES * sum(param.numel() * param.element_size() for param in params)
    ratio = launched_by(optimizer.step, device).traffic_bytes / least
    kernel = candidate.kernels.get(device.type)
    if kernel and kernel.launches == 1 and ratio > _DECLARED_PASSES / _PASSES:
        raise ParityError(
            f"a step of {candidate.name} in {dtype} moves {ratio:.3g} times the bytes that it must; "
            f"{_DECLARED_PASSES / _PASSES:.3g} are allowed: every element once, gradients declared as written"
        )
    return ratio


def _warm(
    candidate: AdamCandidate, device: torch.device, dtype: str
) -> tuple[torch.optim.Optimizer, list[torch.Tensor]]:
    params = make_params(_USUAL, DTYPES[dtype], device, SEED, _SHAPES)
    optimizer = candidate.build(params, usual_settings(candidate, DTYPES[dtype]))
    _USUAL.set_gradients(params, 1, SEED)
    optimizer.step()
    return optimizer, params


def _assert_own(candidate: AdamCandidate, launched: Launched, case: str) -> None:
    kernel = candidate.kernels[launched.device_type]
    # A kernel for each operation of a step takes some thirty, one for each tensor as well eight times as many.
    most = len(_SHAPES) * (1 if kernel.launches else 3)
    assert_launched(launched, kernel.name, kernel.launches, most, case)
