"""Where an Adam keeps what: moments, counters, masters, and all else that a step could reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.parity import ParityError
from fuseproof.parity.bits import Contents, contents

__all__ = ["AdamState", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """Copies of all that an optimizer could reach at one time; parameters are named by their positions.

    Attributes:
        values: what is there, by name: "parameter 0", "gradient 0", "master 0", "parameter 0, exp_avg", "group 1, lr".
        counters: the name of what counts the steps of each parameter.

    """

    values: Contents
    counters: tuple[str, ...]

    def param(self, position: int) -> torch.Tensor:
        """Return a parameter."""
        found: torch.Tensor = self.values[f"parameter {position}"]
        return found

    def grad(self, position: int) -> torch.Tensor:
        """Return the gradient of a parameter that has one."""
        found: torch.Tensor = self.values[f"gradient {position}"]
        return found

    def weight(self, position: int) -> torch.Tensor:
        """Return the master of a parameter that has one, else the parameter."""
        found: torch.Tensor = self.values.get(f"master {position}", self.param(position))
        return found

    def moments(self, position: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return (exp_avg, exp_avg_sq); None where the state has no such names."""
        names = [f"parameter {position}, {name}" for name in ("exp_avg", "exp_avg_sq")]
        return (self.values[names[0]], self.values[names[1]]) if self.values.keys() >= set(names) else None

    def count(self, position: int) -> int | None:
        """Return how many steps the candidate has counted for a parameter; None where its counter has another name."""
        counted = self.values.get(self.counters[position])
        return None if counted is None else int(counted)


class AdamState:
    """The state of an optimizer, read by the names that torch and Apex use.

    Args:
        candidate: whose record says who counts steps and whether there are masters.
        optimizer: what it has built.
        device: where copies are judged.

    """

    def __init__(self, candidate: AdamCandidate, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._candidate = candidate
        self._optimizer = optimizer
        self._device = device

    def _master(self, param: torch.Tensor) -> torch.Tensor | None:
        """Return the master of a parameter, as Apex keeps them: beside the groups, in their order.

        Raises:
            ParityError: the record promises masters, and this parameter has none.

        """
        if not self._candidate.master_weights or param.dtype == torch.float32:
            return None
        groups = zip(self._optimizer.param_groups, getattr(self._optimizer, "param_groups_master", ()), strict=False)
        for group, masters in groups:
            for each, master in zip(group["params"], masters["params"], strict=True):
                if each is param:
                    found: torch.Tensor = master
                    return found
        raise ParityError(f"{self._candidate.name}: a parameter {tuple(param.shape)} has no master")

    def snapshot(self, params: Sequence[torch.Tensor], bystanders: Mapping[str, torch.Tensor]) -> Snapshot:
        """Return copies of all that the optimizer can reach, and of tensors that it should not."""
        reach: dict[str, object] = dict(bystanders)
        for position, param in enumerate(params):
            reach[f"parameter {position}"] = param
            reach[f"gradient {position}"] = param.grad
            if (master := self._master(param)) is not None:
                reach[f"master {position}"] = master
            state: dict[str, Any] = self._optimizer.state.get(param, {})
            for name, value in state.items():
                reach[f"parameter {position}, {name}"] = value
        counters = {id(param): f"parameter {position}, step" for position, param in enumerate(params)}
        for position, group in enumerate(self._optimizer.param_groups):
            for name, value in group.items():
                if name != "params":
                    reach[f"group {position}, {name}"] = value
            if self._candidate.step_count == "group":
                counters |= {id(param): f"group {position}, step" for param in group["params"]}
        return Snapshot(contents(reach, self._device), tuple(counters[id(param)] for param in params))
