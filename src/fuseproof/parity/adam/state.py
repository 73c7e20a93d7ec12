"""Where an Adam keeps what: moments, counters, masters, and all else that a step could reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.parity import ParityError, bits

__all__ = ["AdamState"]


class AdamState:
    """The state of an optimizer, read by the names that torch and Apex use.

    Args:
        candidate: whose record says who counts steps and whether there are masters.
        optimizer: what it has built.

    """

    def __init__(self, candidate: AdamCandidate, optimizer: torch.optim.Optimizer) -> None:
        self._candidate = candidate
        self._optimizer = optimizer

    def _of(self, param: torch.Tensor) -> dict[str, Any]:
        found: dict[str, Any] = self._optimizer.state.get(param, {})
        return found

    def weight(self, param: torch.Tensor) -> torch.Tensor:
        """Return the master of a parameter that has one, else the parameter.

        Raises:
            ParityError: the record promises masters, and this parameter has none.

        """
        if not self._candidate.master_weights or param.dtype == torch.float32:
            return param
        # As Apex keeps them: beside the groups, in their order.
        groups = zip(self._optimizer.param_groups, getattr(self._optimizer, "param_groups_master", ()), strict=False)
        for group, masters in groups:
            for each, master in zip(group["params"], masters["params"], strict=True):
                if each is param:
                    found: torch.Tensor = master
                    return found
        raise ParityError(f"{self._candidate.name}: a parameter {tuple(param.shape)} has no master")

    def moments(self, param: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return copies of (exp_avg, exp_avg_sq); None where the state has no such names."""
        state = self._of(param)
        if not {"exp_avg", "exp_avg_sq"} <= state.keys():
            return None
        return state["exp_avg"].detach().clone(), state["exp_avg_sq"].detach().clone()

    def count(self, param: torch.Tensor) -> int | None:
        """Return how many steps the candidate has counted for a parameter; None where its counter has another name."""
        holder: dict[str, Any] = self._of(param)
        if self._candidate.step_count == "group":
            groups = self._optimizer.param_groups
            holder = next(group for group in groups if any(each is param for each in group["params"]))
        return int(holder["step"]) if "step" in holder else None

    def contents(self, params: Sequence[torch.Tensor]) -> bits.Contents:
        """Return copies of all that the optimizer can reach, by name: "parameter 0, exp_avg", "group 1, lr"."""
        reach: dict[str, object] = {}
        for position, param in enumerate(params):
            reach[f"parameter {position}"] = param
            reach[f"gradient {position}"] = param.grad
            if (master := self.weight(param)) is not param:
                reach[f"master {position}"] = master
            for name, value in self._of(param).items():
                reach[f"parameter {position}, {name}"] = value
        for position, group in enumerate(self._optimizer.param_groups):
            for name, value in group.items():
                if name != "params":
                    reach[f"group {position}, {name}"] = value
        return bits.contents(reach)
