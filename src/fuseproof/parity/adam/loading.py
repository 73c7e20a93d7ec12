"""A state that is loaded into an optimizer that was built otherwise: whose moments, what settings, in which memory."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.parity.adam.life import assert_same_way
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, usual_settings
from fuseproof.parity.bits import changes, contents, differing
from fuseproof.parity.layouts import channels_last
from fuseproof.parity.measures import DTYPES, ParityError

__all__ = ["LOADERS", "Loader", "check_loaded"]

_USUAL = REGIMES["mixed_signs"]
_STEPS = 3
_Schedule = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


def _unscheduled(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)


def _halved(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


@dataclass(frozen=True)
class Loader:
    """How the optimizer that loads a state differs from the one that saved it, and what happened before.

    Attributes:
        shapes: of the parameters.
        groups: over how many groups they are spread; all but the first have no weight decay.
        schedule: what sets lr until the state is saved.
        built_with: settings of the loading optimizer, in whose place those of the state are used from then on.
        of_param: how its parameters lie in memory; the saved moments are contiguous.

    """

    shapes: Sequence[tuple[int, ...]] = ((5, 3),) * 4
    groups: int = 1
    schedule: _Schedule = _unscheduled
    built_with: Mapping[str, Any] = field(default_factory=dict)
    of_param: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.contiguous

    def build(
        self, candidate: AdamCandidate, params: list[torch.Tensor], settings: AdamSettings
    ) -> torch.optim.Optimizer:
        """Return an optimizer over the groups."""
        each = len(params) // self.groups
        entries: list[Any] = [{"params": params[i * each : (i + 1) * each]} for i in range(self.groups)]
        for entry in entries[1:]:
            entry["weight_decay"] = 0.0
        return candidate.build(entries if self.groups > 1 else params, settings)


# Equal shapes, so that nothing else stops who takes one parameter's moments for another's.
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "two_groups": Loader(groups=2),
        "after_a_schedule": Loader(schedule=_halved),
        "built_with_other_settings": Loader(
            built_with={"lr": 1.0, "betas": (0.5, 0.9), "eps": 1e-2, "weight_decay": 0.5}
        ),
        "in_channels_last": Loader(shapes=((4, 3, 5, 2), (3, 3, 5, 3)), of_param=channels_last),
    }
)


def check_loaded(candidate: AdamCandidate, device: torch.device, dtype: str, loader: str) -> None:
    """Save after three steps, load and take three more beside the original: groups and ways are the same.

    Args:
        candidate, device: who and where.
        dtype: name of the parameters' dtype.
        loader: which of `LOADERS`. Where the parameters lie otherwise in memory, a step may refuse by a word, and
            roundings may differ; else the bits are the same.

    Raises:
        ParityError: anything in the groups, or the way, is another one.

    """
    how, settings = LOADERS[loader], usual_settings(candidate, DTYPES[dtype])
    case = f"({candidate.name}, {dtype}, loaded: {loader})"
    params = make_params(_USUAL, DTYPES[dtype], device, SEED, how.shapes)
    optimizer = how.build(candidate, params, settings)
    scheduler = how.schedule(optimizer)
    for step in range(1, _STEPS + 1):
        _USUAL.set_gradients(params, step, SEED)
        optimizer.step()
        scheduler.step()
    others = [how.of_param(param.detach().clone()).requires_grad_() for param in params]
    other = how.build(candidate, others, replace(settings, **how.built_with))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if wrong := changes(_groups(optimizer), _groups(other)):
        raise ParityError(f"after loading the groups differ from those that were saved: {', '.join(wrong)} {case}")
    moved = how.of_param is not torch.Tensor.contiguous
    for step in range(_STEPS + 1, 2 * _STEPS + 1):
        _USUAL.set_gradients(params, step, SEED)
        _USUAL.set_gradients(others, step, SEED)
        optimizer.step()
        try:
            other.step()
        except RuntimeError as error:
            if moved and re.search("layout|contiguous", str(error)):
                return  # refused by a word, which is as right as the result
            raise
    if moved:
        assert_same_way(params, others, settings.lr, dtype, f"{candidate.name} with its own state, {loader}")
    elif wrong_params := differing(params, others):
        raise ParityError(f"loaded and gone on with, parameters {wrong_params} end in other bits {case}")


def _groups(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return copies of all that is in the groups but the parameters, by name."""
    return contents(
        {
            f"group {i}, {name}": value
            for i, group in enumerate(optimizer.param_groups)
            for name, value in group.items()
            if name != "params"
        }
    )
