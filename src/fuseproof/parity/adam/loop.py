"""What training loops do between two steps, to parameters, gradients, state and groups: the next step works on that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import usual_adam
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, usual_settings
from fuseproof.parity.bits import differing
from fuseproof.parity.measures import DTYPES

__all__ = [
    "check_added_group",
    "check_cleared_state",
    "check_clipped_params",
    "check_default_dtype",
    "check_exchanged_param",
    "check_one_buffer",
]

_USUAL = REGIMES["mixed_signs"]


def _walk(adam: CheckedAdam, steps: range, by: Callable[[], object] | None = None) -> None:
    for step in steps:
        _USUAL.set_gradients(adam.params, step, SEED)
        adam.step(by=by)


def check_added_group(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Add a group after three steps, every setting of which is another: it starts at step 1, by its own settings.

    Raises:
        ParityError: it does not, or the group before it is led astray.

    """
    adam = usual_adam(candidate, "group added", settings, dtype, device)
    _walk(adam, range(1, 4))
    own = replace(settings, lr=settings.lr / 2, weight_decay=0.5, betas=(0.5, 0.9), eps=1e-2)
    adam.add_group(Group(make_params(_USUAL, dtype, device, SEED + 1), own))
    _walk(adam, range(1, 4))
    adam.finish()


def check_one_buffer(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Copy each step's gradients into the tensors that were there before, as buckets and ``set_to_none=False`` do.

    Raises:
        ParityError: a step goes by other gradients than those that are there.

    """
    adam = usual_adam(candidate, "gradients in one buffer", settings, dtype, device)
    buffers = [torch.empty_like(param, requires_grad=False) for param in adam.params]
    for step in range(1, 5):
        _USUAL.set_gradients(adam.params, step, SEED)
        for param, buffer in zip(adam.params, buffers, strict=True):
            assert param.grad is not None
            param.grad = buffer.copy_(param.grad)
        adam.step()
    adam.finish()


def check_clipped_params(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Clip the parameters themselves after every step, as Wasserstein critics do: the next step starts from there.

    Raises:
        ParityError: it starts from elsewhere.

    """
    adam = usual_adam(candidate, "parameters clipped", settings, dtype, device)
    for step in range(1, 5):
        _walk(adam, range(step, step + 1))
        adam.write_params(lambda values: values.clamp(-0.5, 0.5))
    adam.finish()


def check_cleared_state(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Clear ``optimizer.state`` after three steps, as for a new phase of training: the next step is a first one.

    Raises:
        ParityError: it goes on with something of before.

    """
    adam = usual_adam(candidate, "state cleared", settings, dtype, device)
    _walk(adam, range(1, 4))
    adam.clear_state()
    _walk(adam, range(1, 4))
    adam.finish()


def check_exchanged_param(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Put a longer parameter in another's place in its group, its moments lengthened by zeros: it moves, the old stays.

    Raises:
        ParityError: the new one stays, or the old one moves.

    """
    dtype_, case = DTYPES[dtype], f"({candidate.name}, {dtype}, a parameter exchanged in its group)"
    params = make_params(_USUAL, dtype_, device, SEED)
    optimizer = candidate.build(params, usual_settings(candidate, dtype_))
    _USUAL.set_gradients(params, 1, SEED)
    optimizer.step()
    old, kept = params[1], params[1].detach().clone()
    new = _lengthened(old.detach()).requires_grad_()
    state = optimizer.state.pop(old)
    optimizer.state[new] = {
        name: _lengthened(value) if isinstance(value, torch.Tensor) and value.shape == old.shape else value
        for name, value in state.items()
    }
    (group,) = optimizer.param_groups
    group["params"][1] = params[1] = new
    before = new.detach().clone()
    _USUAL.set_gradients(params, 2, SEED)
    optimizer.step()
    if unmoved := int((new == before).sum()):
        raise ParityError(f"{unmoved} of {new.numel()} elements of the new parameter did not move {case}")
    if differing([old], [kept]):
        raise ParityError(f"the parameter that was taken out moved {case}")


def _lengthened(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, torch.zeros_like(values[:2])])


def check_default_dtype(
    candidate: AdamCandidate, settings: AdamSettings, default: torch.dtype, device: torch.device
) -> None:
    """Build and step under another default dtype, as models are made in BF16: FP32 parameters keep FP32 moments.

    Raises:
        ParityError: a step is wrong, or moments are kept in another dtype.

    """

    def build(params: Iterable[torch.Tensor], usual: AdamSettings) -> torch.optim.Optimizer:
        with _default_dtype(default):
            return candidate.build(params, usual)

    def step() -> None:
        with _default_dtype(default):
            adam.optimizer.step()

    strict = replace(candidate, build=build, moments="float32")
    adam = usual_adam(strict, f"default dtype {default}", settings, torch.float32, device)
    _walk(adam, range(1, 4), by=step)
    adam.finish()


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Let torch make new tensors in that dtype."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(usual)
