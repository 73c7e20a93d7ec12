"""What is measured: each builds its tensors from a seed, is called once a round and checks itself in FP64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import torch

from fuseproof import oracle
from fuseproof.candidates import LAYER_NORM, AdamCandidate, AdamSettings, LayerNormCandidate
from fuseproof.parity import Budget, assert_within, eps_of
from fuseproof.workload import SIZES, Transformer

__all__ = ["PARAMETER_SETS", "SEED", "AdamStep", "LayerNormForward", "LayerNormForwardBackward", "Subject"]

SEED = 20261129
_EPS = 1e-5
_CHUNK_ELEMENTS = 2**26  # FP64 temporaries of a check stay below about 5 GB


class Subject(Protocol):
    """Something to measure: call it once a round; `check` raises when what it computes is wrong."""

    def __call__(self) -> Any:
        """Do the measured work once."""

    def check(self) -> None:
        """Raise `AssertionError` when the result is not right."""


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
        # A CPU's share: 10 M elements in the shapes of a small layer stack.
        "10m": ((512, 512), (512,)) * 38,
    }
)


class AdamStep:
    """One ``optimizer.step()`` over a parameter set, FP32, with constant random gradients.

    Args:
        candidate: which Adam.
        parameter_set: name of a parameter set or of a transformer size.
        device: where it runs.

    """

    settings = AdamSettings(lr=1e-3, weight_decay=0.01)

    def __init__(self, candidate: AdamCandidate, parameter_set: str, device: torch.device) -> None:
        self.candidate = candidate
        generator = torch.Generator(device).manual_seed(SEED)
        self.params = [
            torch.empty(shape, device=device).normal_(0, 0.02, generator=generator).requires_grad_()
            for shape in parameter_shapes(parameter_set)
        ]
        for param in self.params:
            param.grad = torch.empty_like(param, requires_grad=False).normal_(0, 1e-3, generator=generator)
        self.optimizer = self.candidate.build(self.params, self.settings)
        self.steps = 0

    @property
    def elements(self) -> int:
        """Elements of all parameters."""
        return sum(param.numel() for param in self.params)

    def __call__(self) -> None:
        """Take one step."""
        self.optimizer.step()
        self.steps += 1

    def check(self) -> None:
        """Take one step and compare every update and moment with FP64; the step count is ours."""
        hyper = oracle.AdamHyper(
            self.settings.lr,
            self.settings.betas,
            self.settings.eps,
            self.settings.weight_decay,
            self.settings.decoupled,
            self.candidate.hyper_dtype,
            self.candidate.bias_dtype(self.params[0].device),
        )
        if self.steps == 0:
            self()  # the optimizers make their state in the first step
        before = [self._flat(group) for group in self._groups()]
        self()
        case = f"{self.candidate.name}, step {self.steps}"
        for (param, exp_avg, exp_avg_sq), group in zip(before, self._groups(), strict=True):
            grad = torch.cat([param_.grad.flatten() for param_ in group if param_.grad is not None])
            update, m, v = oracle.adam_update(param, grad, exp_avg, exp_avg_sq, self.steps, hyper)
            new_param, new_m, new_v = self._flat(group)
            eps32 = eps_of(torch.float32)
            assert_within(
                "update",
                new_param.double() - param.double(),
                update,
                1.5 * eps32 * param.double().abs() + 16 * eps32 * update.abs(),
                Budget(1.0, "three roundings at the parameter's size (decay factor, decay, sum), 16 eps of the update"),
                case,
            )
            for quantity, actual, expected, terms in (
                ("exp_avg", new_m, m, exp_avg.double().abs() + grad.double().abs()),
                ("exp_avg_sq", new_v, v, v),
            ):
                assert_within(quantity, actual, expected, terms, Budget(4 * eps32, "a few FP32 roundings"), case)

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
            torch.cat([param.detach().flatten() for param in group]),
            torch.cat([state[param]["exp_avg"].flatten() for param in group]),
            torch.cat([state[param]["exp_avg_sq"].flatten() for param in group]),
        )


class LayerNormForward:
    """LayerNorm forward of ``(rows, hidden)``, as in training: the input requires a gradient.

    Args:
        candidate: which LayerNorm.
        rows, hidden: input shape.
        dtype: of input, weight and bias.
        device: where it runs.

    """

    def __init__(
        self, candidate: LayerNormCandidate, rows: int, hidden: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        generator = torch.Generator(device).manual_seed(SEED)

        def normal(*shape: int) -> torch.Tensor:
            return torch.empty(shape, device=device).normal_(generator=generator).to(dtype)

        self.candidate = candidate
        with device:
            self.module = self.candidate.build(hidden, _EPS).to(device=device, dtype=dtype)
        self.weight, self.bias = self.module.get_parameter("weight"), self.module.get_parameter("bias")
        with torch.no_grad():
            self.weight.copy_(1 + 0.2 * normal(hidden))
            self.bias.copy_(0.2 * normal(hidden))
        self.x = normal(rows, hidden).requires_grad_()
        self.dy = normal(rows, hidden)
        self.case = f"{candidate.name}, {rows}x{hidden}, {dtype}"

    def __call__(self) -> torch.Tensor:
        """Run forward; return y."""
        y: torch.Tensor = self.module(self.x)
        return y

    def gradients(self) -> tuple[torch.Tensor, ...]:
        """Run forward and backward; return (dx, dgamma, dbeta)."""
        return torch.autograd.grad(self.module(self.x), (self.x, self.weight, self.bias), self.dy)

    def check(self) -> None:
        """Compare y, dx, dgamma and dbeta with FP64, each by the sum of its absolute terms."""
        expected = oracle.layer_norm(self.x.detach(), self.weight.detach(), self.bias.detach(), self.dy, _EPS)
        y = self.module(self.x).detach()
        dx, dgamma, dbeta = self.gradients()
        eps, eps32 = eps_of(self.x.dtype), eps_of(torch.float32)
        sum_eps = eps_of(self.candidate.sum_dtype(self.x.dtype, self.x.device))
        roundings = Budget(1.0, "two ulps of its terms in the output's dtype, 8 FP32 eps of the terms of its row sums")
        sums = Budget(1.0, "one ulp in the output's dtype, 4 eps of the sum's dtype of its absolute terms")
        for quantity, actual, wanted, scale, budget in (
            ("y", y, expected.y, 2 * eps * expected.y_terms + 8 * eps32 * expected.y_sums, roundings),
            ("dx", dx, expected.dx, 2 * eps * expected.dx_terms + 8 * eps32 * expected.dx_sums, roundings),
            (
                "dgamma",
                dgamma,
                expected.dgamma,
                eps * expected.dgamma.abs() + 4 * sum_eps * expected.dgamma_terms,
                sums,
            ),
            ("dbeta", dbeta, expected.dbeta, eps * expected.dbeta.abs() + 4 * sum_eps * expected.dbeta_terms, sums),
        ):
            assert_within(quantity, actual, wanted, scale, budget, self.case)


class LayerNormForwardBackward(LayerNormForward):
    """LayerNorm forward and backward of ``(rows, hidden)``; arguments as for `LayerNormForward`."""

    def __call__(self) -> tuple[torch.Tensor, ...]:  # type: ignore[override]  # a subject's result is its own
        """Run forward and backward; gradients are returned by autograd, not accumulated."""
        return self.gradients()
