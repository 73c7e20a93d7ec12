"""One step of Adam over the parameters of a model, checked against FP64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from types import MappingProxyType

import torch

from fuseproof import oracle
from fuseproof.candidates import LAYER_NORM, AdamCandidate, AdamSettings
from fuseproof.parity import Budget, assert_parity, eps_of
from fuseproof.workload import SIZES, Transformer

__all__ = ["PARAMETER_SETS", "AdamStep", "adam_settings", "parameter_shapes"]

_SEED = 20261129
# A check's step has other gradients than those before. Under constant ones an Adam without momentum, or with AMSGrad's
# maximum of exp_avg_sq, is indistinguishable from Adam. Powers of two: a product by the inverse gives the bits back.
_GRADIENT_FACTORS = (-(2.0**-1), 2.0**-6)
_CHUNK_ELEMENTS = 2**26  # FP64 temporaries of a check stay below about 5 GB


def _transformer_shapes(size_name: str) -> tuple[torch.Size, ...]:
    with torch.device("meta"):
        model = Transformer(SIZES[size_name], LAYER_NORM["torch"].build)
    return tuple(parameter.shape for parameter in model.parameters())


def parameter_shapes(name: str) -> tuple[torch.Size, ...]:
    """Return the shapes of a parameter set by its name: one of `PARAMETER_SETS`."""
    if name in SIZES:
        return _transformer_shapes(name)
    return tuple(torch.Size(shape) for shape in PARAMETER_SETS[name])


PARAMETER_SETS: Mapping[str, Sequence[tuple[int, ...]]] = MappingProxyType(
    {
        "2000x64": ((64,),) * 2000,
        # A CPU's share: 10 M elements in the shapes of a small layer stack, few enough tensors to compile.
        "10m": ((707, 707), (707,)) * 20,
    }
)


class AdamStep:
    """One ``optimizer.step()`` over a parameter set, FP32, with constant random gradients.

    Args:
        candidate: which Adam.
        parameter_set: name of a parameter set or of a transformer size.
        device: where it runs.

    """

    inputs = f"parameters N(0, 0.02), gradients N(0, 1e-3), seed {_SEED}"

    def __init__(self, candidate: AdamCandidate, parameter_set: str, device: torch.device) -> None:
        self.candidate = candidate
        self.parameter_set = parameter_set
        self.settings = adam_settings(candidate)
        generator = torch.Generator(device).manual_seed(_SEED)
        self.params = [
            torch.empty(shape, device=device).normal_(0, 0.02, generator=generator).requires_grad_()
            for shape in parameter_shapes(parameter_set)
        ]
        for param in self.params:
            param.grad = torch.empty_like(param, requires_grad=False).normal_(0, 1e-3, generator=generator)
        self.optimizer = self.candidate.build(self.params, self.settings)
        self.steps = 0

    def __call__(self) -> None:
        """Take one step."""
        self.optimizer.step()
        self.steps += 1

    def check(self) -> None:
        """Compare every update and moment of one step with FP64; the step count is ours.

        An optimizer whose state has other names is compared over its first steps, with moments of the oracle's own.
        """
        if self.steps == 0:
            self()  # the optimizers make their state in the first step
        if not all({"exp_avg", "exp_avg_sq"} <= set(self.optimizer.state[param]) for param in self.params):
            self._check_trajectory()
            return
        with self._gradients_changed():
            self._check_step()

    def _check_step(self) -> None:
        before = [self._flat(group) for group in self._groups()]
        self()
        for (param, exp_avg, exp_avg_sq), group in zip(before, self._groups(), strict=True):
            grad = _flat_gradients(group)
            wanted = oracle.adam_update(param, grad, exp_avg, exp_avg_sq, self.steps, self._hyper())
            new_param, new_m, new_v = self._flat(group)
            self._assert_moved(param, new_param, wanted.update, wanted.update_terms, self.steps)
            eps32 = eps_of(torch.float32)
            for quantity, actual, expected, terms in (
                ("exp_avg", new_m, wanted.exp_avg, wanted.exp_avg_terms),
                ("exp_avg_sq", new_v, wanted.exp_avg_sq, wanted.exp_avg_sq_terms),
            ):
                few = Budget(4 * eps32, "a few FP32 roundings")
                assert_parity(quantity, actual, expected, terms, few, f"{self.candidate.name}, step {self.steps}")

    def _check_trajectory(self) -> None:
        fresh = AdamStep(self.candidate, self.parameter_set, self.params[0].device)
        groups = list(fresh._groups())
        starts = [_flat_values(group) for group in groups]
        first = [_flat_gradients(group) for group in groups]
        with fresh._gradients_changed():
            second = [_flat_gradients(group) for group in groups]
        ways = [fresh._walk(*each) for each in zip(starts, first, second, first, strict=True)]
        fresh()
        with fresh._gradients_changed():
            fresh()
        fresh()
        for start, way, group in zip(starts, ways, groups, strict=True):
            fresh._assert_moved(start, _flat_values(group), *way, fresh.steps, rounded=fresh.steps)

    @contextmanager
    def _gradients_changed(self) -> Iterator[None]:
        for exponent in (1, -1):
            for param, factor in zip(self.params, cycle(_GRADIENT_FACTORS), strict=False):
                if param.grad is not None:
                    param.grad.mul_(factor**exponent)
            if exponent == 1:
                yield

    def _walk(self, start: torch.Tensor, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return how far the oracle goes from `start` in its first steps, and the terms of all the steps, float64."""
        param = start.double()
        exp_avg = exp_avg_sq = terms = torch.zeros_like(param)
        for step, grad in enumerate(gradients, 1):
            moved = oracle.adam_update(param, grad, exp_avg, exp_avg_sq, step, self._hyper())
            param, terms = param + moved.update, terms + moved.update_terms
            exp_avg, exp_avg_sq = moved.exp_avg, moved.exp_avg_sq
        return param - start.double(), terms

    def _assert_moved(
        self,
        param: torch.Tensor,
        new_param: torch.Tensor,
        update: torch.Tensor,
        terms: torch.Tensor,
        step: int,
        rounded: int = 1,
    ) -> None:
        """Compare the way a parameter went, rounded so many times, with the oracle's update."""
        eps32 = eps_of(torch.float32)
        power = self.candidate.arithmetic(param.device).power_ulps
        beta1, beta2 = self.settings.betas
        slack = power * eps32 * (beta1**step / (1 - beta1**step) + 0.5 * beta2**step / (1 - beta2**step))
        assert_parity(
            "update",
            new_param.double() - param.double(),
            update,
            1.5 * rounded * eps32 * torch.maximum(param.abs(), new_param.abs()).double() + (16 * eps32 + slack) * terms,
            Budget(
                1.0,
                "three roundings a step at the parameter's size (decay factor, decay, sum), 16 eps of its terms"
                + f", {power:g} ulps of the power in the bias correction" * (power > 0),
            ),
            f"{self.candidate.name}, step {step}",
        )

    def _hyper(self) -> oracle.AdamHyper:
        return self.candidate.hyper(self.settings, self.params[0].device)

    def _groups(self) -> Iterator[list[torch.Tensor]]:
        """Yield the parameters in groups that fit a check's memory."""
        group: list[torch.Tensor] = []
        for param in self.params:
            if group and sum(p.numel() for p in group) + param.numel() > _CHUNK_ELEMENTS:
                yield group
                group = []
            group.append(param)
        if group:
            yield group

    def _flat(self, group: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return copies of (parameters, exp_avg, exp_avg_sq), each flat."""
        state = self.optimizer.state
        return (
            _flat_values(group),
            torch.cat([state[param]["exp_avg"].flatten() for param in group]),
            torch.cat([state[param]["exp_avg_sq"].flatten() for param in group]),
        )


def _flat_values(group: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([param.detach().flatten() for param in group])


def _flat_gradients(group: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([param.grad.flatten() for param in group if param.grad is not None])


def adam_settings(candidate: AdamCandidate) -> AdamSettings:
    """Return the settings of the benchmarks: with weight decay, decoupled where the candidate can."""
    return AdamSettings(lr=1e-3, weight_decay=0.01, decoupled="decoupled" in candidate.decay_modes)
