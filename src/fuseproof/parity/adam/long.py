"""A long training's events: settings that change, parameters that move in memory, steps beyond the second thousand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity import ParityError
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import case_of
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params
from fuseproof.parity.bits import copies, differing

__all__ = ["check_late_steps", "check_moved", "check_settings_by_hand"]

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


def check_settings_by_hand(
    candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device
) -> None:
    """Write lr, betas, weight decay and eps into the group between steps: the next step uses them.

    Raises:
        ParityError: it uses others.

    """
    params = make_params(_USUAL, dtype, device, SEED)
    adam = CheckedAdam(candidate, [Group(params, settings)], case_of(dtype, "settings by hand", settings, SEED))
    for step, changed in enumerate(_BY_HAND, 1):
        (group,) = adam.optimizer.param_groups
        for name, value in changed.items():
            if isinstance(group[name], torch.Tensor):
                group[name].fill_(value)
            else:
                group[name] = value
        adam.change_settings(**changed)
        _USUAL.set_gradients(params, step, SEED)
        adam.step()
    adam.finish()


def check_moved(candidate: AdamCandidate, settings: AdamSettings, dtype: torch.dtype, device: torch.device) -> None:
    """Give every parameter other memory with the same values between steps: what is there moves, the old memory stays.

    Raises:
        ParityError: the old memory was written, or the parameters did not move.

    """
    params = make_params(_USUAL, dtype, device, SEED)
    adam = CheckedAdam(candidate, [Group(params, settings)], case_of(dtype, "moved in memory", settings, SEED))
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
