"""The questions asked of every norm, each a function that raises `ParityError` where the answer is wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace

import torch
from torch import nn

from fuseproof.candidates import NormCandidate
from fuseproof.parity import ParityError, again, assert_within, round_to
from fuseproof.parity.bits import changes, contents, copies
from fuseproof.parity.norm.bias import assert_unbiased
from fuseproof.parity.norm.bounds import AffineInHalf, budget, oracle, trusted, wanted
from fuseproof.parity.norm.nature import nature_of
from fuseproof.parity.norm.regimes import REGIMES, SEED, NormInputs, NormRegime

__all__ = ["ALIGNED", "SHAPE", "NormOutputs", "build", "case_of", "check", "check_eps", "check_regime", "judge", "run"]

SHAPE = (37, 257)  # rows and columns that no vector width divides; every other row of half precision is unaligned
ALIGNED = (37, 256)  # every row begins where vector loads may: with the same columns it is summed in the same order

_STATISTICS = frozenset({"mean", "rstd"})
# Elements. The oracle's hundreds of small FP64 operations would each wait for a GPU that other workers use too.
_JUDGED_ON_THE_HOST = 2**17
_HOST = torch.device("cpu")


@dataclass(frozen=True)
class NormOutputs:
    """What a norm and its backward returned; None where the norm has no such parameter or keeps no such statistic."""

    y: torch.Tensor
    dx: torch.Tensor
    dgamma: torch.Tensor | None = None
    dbeta: torch.Tensor | None = None
    mean: torch.Tensor | None = None
    rstd: torch.Tensor | None = None


def build(candidate: NormCandidate, inputs: NormInputs) -> nn.Module:
    """Return the candidate's module with the gamma and beta of `inputs`, in their dtype, on their device."""
    shape = inputs.normalized_shape
    left_out = {}
    if inputs.gamma is None:
        left_out["elementwise_affine"] = False
    elif inputs.beta is None and candidate.kind == "layer_norm":
        left_out["bias"] = False
    with inputs.x.device:
        module = candidate.build(shape[0] if len(shape) == 1 else shape, inputs.eps, **left_out)
    for name, values in (("weight", inputs.gamma), ("bias", inputs.beta)):
        if values is not None and hasattr(module, name):
            setattr(module, name, nn.Parameter(values.detach()))  # in the layout that it has
    return module.to(inputs.x.device)


def run(
    candidate: NormCandidate,
    inputs: NormInputs,
    module: nn.Module | None = None,
    *,
    within: AbstractContextManager[object] | None = None,
    watch: bool = True,
) -> NormOutputs:
    """Run forward and backward once.

    Args:
        candidate: which norm.
        inputs: what it is given; layouts are kept.
        module: what `build` returned, or made of that; None: build one.
        within: what the forward runs in: autocast; None: nothing.
        watch: see that nothing of the inputs is written.

    Raises:
        ParityError: the output does not depend on something that it is made of, or an input was written.

    """
    module = build(candidate, inputs) if module is None else module
    x = inputs.x.detach().requires_grad_()
    parameters = dict(module.named_parameters())
    given = {"x": x, "dy": inputs.dy, **parameters}
    where = _HOST if _for_the_host(inputs.x) else None
    before = contents(given, where) if watch else {}
    with within or nullcontext():
        y = module(x)
    found = torch.autograd.grad(y, (x, *parameters.values()), inputs.dy, allow_unused=True, retain_graph=True)
    for name, gradient in zip(("x", *parameters), found, strict=True):
        if gradient is None:
            raise ParityError(f"the gradient of {name}: y does not depend on it at all ({candidate.name})")
    if written := changes(before, contents(given, where)) if watch else []:
        raise ParityError(f"written, though they are inputs: {', '.join(written)} ({candidate.name})")
    gradients = dict(zip(parameters, found[1:], strict=True))
    # Of a custom operator of torch statistics are outputs like y, and autograd follows them.
    saved = candidate.statistics(y) if candidate.statistics else (None, None)
    mean, rstd = (each if each is None else each.detach() for each in saved)
    return NormOutputs(y.detach(), found[0], gradients.get("weight"), gradients.get("bias"), mean, rstd)


def case_of(candidate: NormCandidate, inputs: NormInputs, what: str) -> str:
    """Return what is run, for messages."""
    shape, dtype = "x".join(map(str, inputs.x.shape)), str(inputs.x.dtype).removeprefix("torch.")
    normalized = ", ".join(map(str, inputs.normalized_shape))
    norm = f"{candidate.name}, {candidate.kind} of {shape} over ({normalized})"
    return f"{norm}, {dtype}, eps {inputs.eps:g}, {what}{again()}"


def judge(
    candidate: NormCandidate,
    inputs: NormInputs,
    outputs: NormOutputs,
    case: str,
    y_dtype: torch.dtype | None = None,
    cast: torch.dtype | None = None,
) -> None:
    """Compare all that a norm returned with FP64: dtypes, shapes, every element, and in FP32 what errors share.

    Args:
        candidate, inputs, outputs: who, from what, what came of it.
        case: for messages.
        y_dtype: what y must be; None: as x.
        cast: what x and the parameters are rounded to first, and their gradients too, as autocast does; None: nothing.

    Raises:
        ParityError: anything is wrong.

    """
    y_dtype, ran_on = y_dtype or inputs.x.dtype, inputs.x.device.type
    _assert_like(outputs, inputs, y_dtype, case)
    if _for_the_host(inputs.x):
        inputs, outputs = _on_the_host(inputs, outputs)
    inputs = inputs.cast(cast)
    right = oracle(candidate.kind, inputs)
    wants = wanted(candidate, inputs, right, y_dtype, ran_on)
    row_has_inf = inputs.rows(inputs.x).isinf().any(-1, keepdim=True)
    plain = {} if inputs.x.dtype == torch.float64 else trusted(candidate.kind, inputs)
    for quantity, one in wants.items():
        stored = getattr(outputs, quantity)
        if stored is None or (inputs.hidden == 0 and quantity in _STATISTICS):  # of nothing
            continue
        stored = stored.reshape(one.value.shape)
        allowance = budget(quantity, one, plain.get(quantity))
        # Autocast rounds gradients to its dtype on their way; statistics never leave the kernels.
        ends = one.limits(cast if cast and quantity not in _STATISTICS else stored.dtype, allowance.factor)
        low, high = (round_to(end, stored.dtype).flatten() for end in ends)
        # Of a row with an infinity the variance plus the square of the mean is Inf less Inf, its mean square is Inf.
        value = one.value.masked_fill(row_has_inf & stored.isnan(), torch.nan) if one.value.dim() == 2 else one.value
        allowed = None if isinstance(one, AffineInHalf) else (allowance.factor * one.tolerance + one.extra).flatten()
        where = _places(value.shape)
        try:
            assert_within(quantity, stored.flatten(), value.flatten(), low, high, allowance, case, where, allowed)
            if quantity == "y":
                assert_unbiased(candidate, inputs, right, stored, case)
        except ParityError as error:
            nature = nature_of(candidate.kind, inputs, right, quantity, stored, one)
            raise ParityError(f"{error}{nature and '; '}{nature}") from None


def _for_the_host(x: torch.Tensor) -> bool:
    return x.device != _HOST and x.numel() <= _JUDGED_ON_THE_HOST


def _on_the_host(inputs: NormInputs, outputs: NormOutputs) -> tuple[NormInputs, NormOutputs]:
    """Return both on the CPU, fetched in one transfer for each dtype."""
    given, came = _tensors(inputs), _tensors(outputs)
    fetched = copies([*given.values(), *came.values()], _HOST)
    given, came = dict(zip(given, fetched, strict=False)), dict(zip(came, fetched[len(given) :], strict=True))
    return replace(inputs, **given), replace(outputs, **came)  # type: ignore[arg-type]


def _tensors(owner: NormInputs | NormOutputs) -> dict[str, torch.Tensor]:
    values = {field.name: getattr(owner, field.name) for field in fields(owner)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def _places(shape: torch.Size) -> Callable[[int], str]:
    """Return what says a flat position in that shape in words."""

    def locate(position: int) -> str:
        words = ("row", "column") if len(shape) == 2 else ("column",)
        index = torch.unravel_index(torch.tensor(position), shape)
        return ", ".join(f"{word} {int(i)} of {n}" for word, i, n in zip(words, index, shape, strict=True))

    return locate


def _assert_like(outputs: NormOutputs, inputs: NormInputs, y_dtype: torch.dtype, case: str) -> None:
    """Raise unless each tensor has the shape and dtype of what it belongs to."""
    for name, got, like, dtype in (
        ("y", outputs.y, inputs.x, y_dtype),
        ("dx", outputs.dx, inputs.x, inputs.x.dtype),
        ("dgamma", outputs.dgamma, inputs.gamma, None),
        ("dbeta", outputs.dbeta, inputs.beta, None),
    ):
        if got is None or like is None:
            if (got is None) != (like is None):
                raise ParityError(f"{name}: there is {'none' if got is None else 'one'} ({case})")
            continue
        dtype = dtype or like.dtype
        if got.dtype != dtype:
            raise ParityError(f"{name}: is {got.dtype}, should be {dtype} ({case})")
        if got.shape != like.shape:
            raise ParityError(f"{name}: shape {tuple(got.shape)}, expected {tuple(like.shape)} ({case})")


def check(candidate: NormCandidate, inputs: NormInputs, what: str) -> NormOutputs:
    """Run a candidate and judge what it returns.

    Raises:
        ParityError: anything is wrong.

    """
    outputs = run(candidate, inputs)
    judge(candidate, inputs, outputs, case_of(candidate, inputs, what))
    return outputs


def check_regime(
    candidate: NormCandidate,
    regime: NormRegime,
    dtype: torch.dtype,
    device: torch.device,
    *,
    seed: int = SEED,
    leading: tuple[int, ...] = SHAPE[:1],
    normalized_shape: tuple[int, ...] = SHAPE[1:],
) -> NormOutputs:
    """Run a candidate over one kind of input.

    Raises:
        ParityError: anything is wrong.

    """
    inputs = regime.inputs(leading, normalized_shape, dtype, device, seed=seed).of(candidate.kind)
    return check(candidate, inputs, f"{regime.name}, seed {seed}")


def check_eps(candidate: NormCandidate, eps: float, dtype: torch.dtype, device: torch.device) -> NormOutputs:
    """Run a candidate over rows whose variance is about `eps`; with none, over such as the usual one would halve.

    Raises:
        ParityError: eps is another, or in another place.

    """
    regime = REGIMES["usual"].with_eps(eps) if eps else replace(REGIMES["small_spread"], eps=0.0)
    return check_regime(candidate, replace(regime, dy=REGIMES["dy_tiny"].dy), dtype, device)
