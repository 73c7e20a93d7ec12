"""A long training's events: settings that change, parameters that move in memory, steps beyond the second thousand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ExponentialLR, LambdaLR, LRScheduler, OneCycleLR

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import case_of, usual_adam
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, usual_settings
from fuseproof.parity.bits import copies, differing

__all__ = [
    "SCHEDULES",
    "check_late_steps",
    "check_lr_tensor",
    "check_moved",
    "check_schedule",
    "check_settings_by_hand",
]

_USUAL = REGIMES["mixed_signs"]
# Beyond 2,048, where FP16 cannot count further; BF16 cannot beyond 256, and a byte wraps there.
_LATE_STEP = 2_200
# With beta2 = 0.9999 a step that stays at 2,048 makes the update 3 % too large, which BF16 shows.
_LATE_BETAS = (0.9, 0.9999)
# Each setting alone is another from one step to the next; half precision shows all of them.
_BY_HAND: tuple[dict[str, Any], ...] = (
    {"lr": 0.25},
    {"lr": 0.125, "betas": (0.5, 0.9)},
    {"lr": 0.5, "betas": (0.9, 0.99)},
    {"weight_decay": 0.5},
    {"eps": 0.0625},
)
SCHEDULES: Mapping[str, Callable[[torch.optim.Optimizer], LRScheduler]] = MappingProxyType(
    {
        "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "exponential": lambda optimizer: ExponentialLR(optimizer, 0.5),
        "cosine": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 3),
        "one_cycle_with_betas": lambda optimizer: OneCycleLR(optimizer, 0.2, total_steps=10),
        # At lr 0 nothing moves but the moments.
        "warm_up_from_0": lambda optimizer: LambdaLR(optimizer, lambda step: min(1.0, step / 3)),
    }
)


def check_settings_by_hand(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Write lr, betas, weight decay and eps into the group between steps: the next step uses them.

    Raises:
        ParityError: it uses others.

    """
    adam = usual_adam(candidate, "settings by hand", settings, dtype, device)
    for step, changed in enumerate(_BY_HAND, 1):
        _set_by_hand(adam, **changed)
        _USUAL.set_gradients(adam.params, step, SEED)
        adam.step()
    adam.finish()


def check_schedule(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device, schedule: str
) -> CheckedAdam:
    """Let a scheduler, which of `SCHEDULES`, set lr and betas between steps: each step uses what is set.

    Raises:
        ParityError: it uses others.

    """
    adam = usual_adam(candidate, schedule, settings, dtype, device)
    scheduler = SCHEDULES[schedule](adam.optimizer)
    for step in range(1, 7):
        (group,) = adam.optimizer.param_groups
        adam.change_settings(lr=float(scheduler.get_last_lr()[0]), betas=tuple(map(float, group["betas"])))
        _USUAL.set_gradients(adam.params, step, SEED)
        adam.step()
        scheduler.step()
    adam.finish()
    return adam


def check_lr_tensor(candidate: AdamCandidate, dtype: torch.dtype, device: torch.device, where: torch.device) -> None:
    """Give lr as a tensor there, and write another value into it after every step, as schedulers do.

    Raises:
        ParityError: a step uses another value, or writes it.
        TypeError, ValueError: it takes no tensor.

    """
    settings = usual_settings(candidate, dtype, lr=2.0**-4)
    lr = torch.tensor(settings.lr, device=where)

    def build(params: Iterable[torch.Tensor], usual: AdamSettings) -> torch.optim.Optimizer:
        return candidate.build(params, replace(usual, lr=lr))  # type: ignore[arg-type]  # whether it takes one is asked

    made = replace(candidate, build=build)
    adam = usual_adam(made, f"lr as a tensor on {where.type}", settings, dtype, device)
    for step in range(1, 7):
        _USUAL.set_gradients(adam.params, step, SEED)
        adam.step()
        _set_by_hand(adam, lr=2.0 ** -(4 + step % 3))
    adam.finish()


def _set_by_hand(adam: CheckedAdam, **changed: Any) -> None:
    """Write settings into the group: into a tensor that is there, or over a number."""
    (group,) = adam.optimizer.param_groups
    for name, value in changed.items():
        if isinstance(group[name], torch.Tensor):
            group[name].fill_(value)
        else:
            group[name] = value
    adam.change_settings(**changed)


def check_moved(candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device) -> None:
    """Give every parameter other memory with the same values between steps: what is there moves, the old memory stays.

    Raises:
        ParityError: the old memory was written, or the parameters did not move.

    """
    adam = usual_adam(candidate, "moved in memory", settings, dtype, device)
    params = adam.params
    left: list[torch.Tensor] = []
    kept: list[torch.Tensor] = []
    for step in range(1, 5):
        if step == 3:
            left, kept = [param.detach() for param in params], copies(params)
            for param, values in zip(params, copies(params), strict=True):
                param.data = values
        _USUAL.set_gradients(params, step, SEED)
        adam.step()
    adam.finish()
    if wrong := differing(left, kept):
        raise ParityError(f"the memory that parameters {wrong} had before they moved was written ({adam.case})")


def check_late_steps(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Take 2,200 steps with the same gradients, and check the next one; in half precision from zero, where it shows.

    Raises:
        ParityError: the step is wrong, or has another number.

    """
    settings = replace(settings, betas=_LATE_BETAS)
    params = make_params(_USUAL, dtype, device, SEED, ((257,),))
    adam = CheckedAdam(candidate, [Group(params, settings)], case_of(dtype, "late steps", settings, SEED))
    _USUAL.set_gradients(params, 1, SEED)
    adam.skip_ahead(_LATE_STEP)
    if dtype.itemsize == 2:
        with torch.no_grad():
            for param in params:
                param.zero_()
    adam.step()
