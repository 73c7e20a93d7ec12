"""A norm that is used more than once: twice before a backward, backward again, with other parameters, half frozen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import torch
from torch import nn

from fuseproof.candidates import NormCandidate
from fuseproof.parity import ParityError
from fuseproof.parity.bits import same_bits
from fuseproof.parity.norm.checks import SHAPE, build, case_of, judge, run
from fuseproof.parity.norm.regimes import REGIMES, SEED, NormInputs

__all__ = [
    "WRITES",
    "check_asked_for",
    "check_backward_again",
    "check_other_batches",
    "check_rewritten",
    "check_shared",
    "check_without_autograd",
    "check_written_in_between",
]

# How parameters get other values: as an optimizer's step, and past autograd's count of versions, as averages of
# weights, sharding and kernels of others write them.
WRITES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], object]] = MappingProxyType(
    {
        "in_place": lambda parameter, values: parameter.copy_(values),
        "through_data": lambda parameter, values: parameter.data.copy_(values),
    }
)
# Rows of one batch after another: fewer, more than ever before, and as many as at first.
_BATCHES = (5, 100, SHAPE[0])


def _inputs(
    candidate: NormCandidate,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = SEED,
    shape: tuple[int, int] = SHAPE,
) -> NormInputs:
    return REGIMES["usual"].inputs(shape[:1], shape[1:], dtype, device, seed=seed).of(candidate.kind)


def _assert_same(quantity: str, got: torch.Tensor | None, expected: torch.Tensor | None, case: str) -> None:
    if got is None or expected is None:
        if (got is None) != (expected is None):
            raise ParityError(f"{quantity}: there is {'none' if got is None else 'one'} ({case})")
    elif not same_bits(got, expected):
        differ = int((got != expected).sum())
        off = float((got.double() - expected.double()).abs().max())
        raise ParityError(f"{quantity}: {differ} of {got.numel()} elements differ, by {off:.3g} at most ({case})")


def _gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def check_rewritten(
    candidate: NormCandidate, dtype: torch.dtype, device: torch.device, write: str = "in_place"
) -> None:
    """Call a module, write other values into its parameters, and call it again: they are used.

    Args:
        candidate, dtype, device: which norm, over what, and where.
        write: how they are written, a name in `WRITES`.

    Raises:
        ParityError: what comes of it is not what a new module with these values returns.

    """
    first, second = (_inputs(candidate, dtype, device, SEED + i) for i in range(2))
    module = build(candidate, first)
    run(candidate, first, module)
    with torch.no_grad():
        for parameter, values in zip(module.parameters(), (second.gamma, second.beta), strict=False):
            assert values is not None
            WRITES[write](parameter, values)
    again, expected = run(candidate, second, module), run(candidate, second)
    case = case_of(candidate, second, f"parameters written {write} after a first call")
    for quantity in ("y", "dx", "dgamma", "dbeta"):
        _assert_same(quantity, getattr(again, quantity), getattr(expected, quantity), case)


def check_shared(
    candidate: NormCandidate, dtype: torch.dtype, device: torch.device, shape: tuple[int, int] = SHAPE
) -> None:
    """Call one module twice before any backward, as layers that share it do: neither call disturbs the other.

    Raises:
        ParityError: y, dx or the sums of both calls' gradients have other bits than those of each call alone.

    """
    first = _inputs(candidate, dtype, device, shape=shape)
    second = replace(first, x=first.x.flip(0) * 2, dy=first.dy.flip(0) / 2)
    alone = [run(candidate, each) for each in (first, second)]
    module = build(candidate, first)
    xs = [each.x.detach().requires_grad_() for each in (first, second)]
    ys = []
    for x, one in zip(xs, alone, strict=True):
        ys.append(module(x))
        _assert_same("y", ys[-1].detach(), one.y, case_of(candidate, first, f"call {len(ys)} of a module"))
    case = case_of(candidate, first, "two calls before any backward")
    for y, one in zip(ys, alone, strict=True):
        _assert_same("y, looked at after both calls", y.detach(), one.y, case)
    for y, each in zip(reversed(ys), (second, first), strict=True):  # a + b is b + a
        y.backward(each.dy)
    for x, one in zip(xs, alone, strict=True):
        _assert_same("dx", x.grad, one.dx, case)
    for (name, got), quantity in zip(_gradients(module).items(), ("dgamma", "dbeta"), strict=False):
        _assert_same(f"gradient of {name}", got, sum(getattr(one, quantity) for one in alone), case)


def check_backward_again(
    candidate: NormCandidate, dtype: torch.dtype, device: torch.device, shape: tuple[int, int] = SHAPE
) -> None:
    """Go through a graph that is retained a second time: the same gradients, or an error.

    Raises:
        ParityError: they have other bits.

    """
    inputs = _inputs(candidate, dtype, device, shape=shape)
    module = build(candidate, inputs)
    x = inputs.x.detach().requires_grad_()
    y, names = module(x), ("x", *dict(module.named_parameters()))
    once = torch.autograd.grad(y, (x, *module.parameters()), inputs.dy, retain_graph=True)
    kept = [each.clone() for each in once]
    try:
        again = torch.autograd.grad(y, (x, *module.parameters()), inputs.dy)
    except RuntimeError:
        return  # it says that it cannot
    for name, got, first, before in zip(names, again, once, kept, strict=True):
        _assert_same(f"gradient of {name}", got, before, case_of(candidate, inputs, "backward a second time"))
        _assert_same(f"gradient of {name}", first, before, case_of(candidate, inputs, "before backward a second time"))


def check_asked_for(
    candidate: NormCandidate, dtype: torch.dtype, device: torch.device, shape: tuple[int, int] = SHAPE
) -> None:
    """Ask for each choice of gradients, as where inputs or parameters are frozen: those asked for, and no others.

    Raises:
        ParityError: one has other bits than where all are asked for, or comes unasked.

    """
    inputs = _inputs(candidate, dtype, device, shape=shape)
    expected = run(candidate, inputs)
    module = build(candidate, inputs)
    owners = ["x", *dict(module.named_parameters())]
    quantities = dict(zip(("x", "weight", "bias"), (expected.dx, expected.dgamma, expected.dbeta), strict=True))
    for choice in product((True, False), repeat=len(owners)):
        asked = dict(zip(owners, choice, strict=True))
        if not any(choice):
            continue
        x = inputs.x.detach().requires_grad_(asked["x"])
        for name, parameter in module.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(asked[name])
        module(x).backward(inputs.dy)
        wanted = " and ".join(name for name in owners if asked[name])
        case = case_of(candidate, inputs, f"gradients of {wanted} alone")
        for name, got in {"x": x.grad, **_gradients(module)}.items():
            _assert_same(f"gradient of {name}", got, quantities[name] if asked[name] else None, case)


def check_without_autograd(
    candidate: NormCandidate, dtype: torch.dtype, device: torch.device, shape: tuple[int, int] = SHAPE
) -> None:
    """Call a module under no_grad, under inference_mode and in evaluation: the bits of a training's forward.

    Raises:
        ParityError: y has others, or a later call's, or those of values that were in x's memory before.

    """
    inputs = _inputs(candidate, dtype, device, shape=shape)
    module = build(candidate, inputs)
    later = replace(inputs, x=inputs.x.flip(0) * 2)
    expected, expected_later = (run(candidate, each, module).y for each in (inputs, later))
    for mode in (torch.no_grad, torch.inference_mode):
        case = case_of(candidate, inputs, f"under {mode.__name__}")
        with mode():
            x = inputs.x.clone()  # a static input, as graphs and servers have, into which the next batch is written
            y = module(x)
            _assert_same("y", y, expected, case)
            _assert_same("y of other values in the same memory", module(x.copy_(later.x)), expected_later, case)
        _assert_same("y, looked at after another call", y, expected, case)
    _assert_same("y", module.eval()(inputs.x).detach(), expected, case_of(candidate, inputs, "in evaluation"))


def check_other_batches(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Call one module with batches of other sizes, forward and backward: each is right, whatever was there before.

    Raises:
        ParityError: anything is wrong: rows are lost, or those of an earlier batch count.

    """
    first = _inputs(candidate, dtype, device)
    module = build(candidate, first)
    before = [SHAPE[0]]
    judge(candidate, first, run(candidate, first, module), case_of(candidate, first, f"seed {SEED}"))
    for rows in _BATCHES:
        drawn = _inputs(candidate, dtype, device, shape=(rows, SHAPE[1]))
        inputs = replace(drawn, gamma=first.gamma, beta=first.beta)
        what = f"after batches of {', '.join(map(str, before))} rows, seed {SEED}"
        judge(candidate, inputs, run(candidate, inputs, module), case_of(candidate, inputs, what))
        before.append(rows)


def check_written_in_between(candidate: NormCandidate, dtype: torch.dtype, device: torch.device, written: str) -> None:
    """Write x, y or a parameter in place between forward and backward: the gradients of what was, or an error.

    Args:
        candidate, dtype, device: which norm, over what, and where.
        written: ``"x"``, ``"y"``, ``"weight"`` or ``"bias"``.

    Raises:
        ParityError: gradients are those of other values, and nobody says so.

    """
    inputs = _inputs(candidate, dtype, device)
    expected, module = run(candidate, inputs), build(candidate, inputs)
    leaf = inputs.x.detach().requires_grad_()
    x = leaf * 1  # the residual of a network is no leaf either
    y = module(x)
    tensors = {"x": x, "y": y, **dict(module.named_parameters())}
    try:
        with torch.no_grad():
            tensors[written].add_(1)
        found = torch.autograd.grad(y, (leaf, *module.parameters()), inputs.dy)
    except RuntimeError:
        return  # autograd counts what is written to what was saved
    case = case_of(candidate, inputs, f"{written} written between forward and backward")
    for quantity, got in zip(("dx", "dgamma", "dbeta"), found, strict=False):
        _assert_same(quantity, got, getattr(expected, quantity), case)
