"""Saved and resumed: by every way that there is, and by another implementation."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import torch

from fuseproof.candidates import AdamCandidate, AdamSettings, adam_candidate
from fuseproof.parity.adam.regimes import REGIMES, SEED, Regime, make_params, usual_settings
from fuseproof.parity.bits import copies, differing
from fuseproof.parity.measures import DTYPES, ParityError, spacing

__all__ = [
    "LOADED",
    "WAYS",
    "assert_same_way",
    "check_going_back",
    "check_resumed",
    "check_resumed_by_another",
    "check_state_dict",
    "resume_by_another",
]

# Before the first step, before and after the second parameter's late first gradient at step 4.
_AFTER = (0, 2, 5)
# The saved groups bring the other's settings and flags along: who knows that loads the state alone.
LOADED = ("whole", "state_alone")
_USUAL, _LATE = REGIMES["mixed_signs"], REGIMES["late_gradient"]
_Params: TypeAlias = list[torch.Tensor]
_Way: TypeAlias = Callable[
    [AdamCandidate, torch.optim.Optimizer, _Params, AdamSettings], tuple[torch.optim.Optimizer, _Params]
]
# Of the greatest way that parameters can go. In FP32 implementations differ by 7e-6 of an update where one takes its
# betas in FP32; torch's loop in BF16 by 2 to 9 %. A lost step count makes the first update after it 0.3 to 3 times it.
# FP16, in which none is compared with another, is finer than BF16.
_FARTHEST = {"fp32": 1e-3, "bf16": 0.15, "fp16": 0.15}
_STEPS = 3


def _fresh(params: _Params) -> _Params:
    """Return parameters of the same bits, as a new process would load them."""
    return [param.detach().clone().requires_grad_() for param in params]


def _walk(regime: Regime, optimizer: torch.optim.Optimizer, params: _Params, steps: range) -> None:
    for step in steps:
        regime.set_gradients(params, step, SEED)
        optimizer.step()


def _by_state_dict(
    candidate: AdamCandidate, optimizer: torch.optim.Optimizer, params: _Params, settings: AdamSettings
) -> tuple[torch.optim.Optimizer, _Params]:
    new = _fresh(params)
    other = candidate.build(new, settings)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, new


def _by_file(
    candidate: AdamCandidate, optimizer: torch.optim.Optimizer, params: _Params, settings: AdamSettings
) -> tuple[torch.optim.Optimizer, _Params]:
    """Go through bytes, onto the CPU first, as checkpoints are loaded."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    new = _fresh(params)
    other = candidate.build(new, settings)
    other.load_state_dict(torch.load(file, map_location="cpu"))
    return other, new


def _by_deepcopy(
    _candidate: AdamCandidate, optimizer: torch.optim.Optimizer, params: _Params, _settings: AdamSettings
) -> tuple[torch.optim.Optimizer, _Params]:
    return copy.deepcopy((optimizer, params))


def _by_pickle(
    _candidate: AdamCandidate, optimizer: torch.optim.Optimizer, params: _Params, _settings: AdamSettings
) -> tuple[torch.optim.Optimizer, _Params]:
    other, new = pickle.loads(pickle.dumps((optimizer, params)))
    return other, new


WAYS: Mapping[str, _Way] = MappingProxyType(
    {"by_state_dict": _by_state_dict, "by_file": _by_file, "by_deepcopy": _by_deepcopy, "by_pickle": _by_pickle}
)


def check_resumed(candidate: AdamCandidate, device: torch.device, dtype: str, way: str) -> None:
    """Save, load and go on, from before the first step and from later: the end has the bits of the uninterrupted run.

    Args:
        candidate, device: who, where.
        dtype: name of the parameters' dtype.
        way: which of `WAYS`.

    Raises:
        ParityError: the end has other bits, or the original has moved.

    """
    settings = usual_settings(candidate, DTYPES[dtype])
    for after in _AFTER:
        params = make_params(_LATE, DTYPES[dtype], device, SEED)
        optimizer = candidate.build(params, settings)
        _walk(_LATE, optimizer, params, range(1, after + 1))
        other, others = WAYS[way](candidate, optimizer, params, settings)
        kept = [each.detach().clone() for each in params]
        _walk(_LATE, other, others, range(after + 1, 9))
        case = f"({candidate.name}, {dtype}, {way} after {after} steps)"
        if differing(params, kept):
            raise ParityError(f"steps of the copy moved the original's parameters {case}")
        _walk(_LATE, optimizer, params, range(after + 1, 9))
        if wrong := differing(params, others):
            off = max((params[i] - others[i]).detach().double().abs().max().item() for i in wrong)
            raise ParityError(
                f"resumed, the end has other bits in parameters {wrong}, off by up to {off:.3g} where a step moves "
                f"by about {settings.lr:g} {case}"
            )


def check_state_dict(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Ask for the state and load it into the same optimizer after every step: no bit of any later step changes.

    Raises:
        ParityError: it does.

    """
    settings = usual_settings(candidate, DTYPES[dtype])
    params = make_params(_USUAL, DTYPES[dtype], device, SEED)
    twins = _fresh(params)
    optimizer, twin = candidate.build(params, settings), candidate.build(twins, settings)
    for step in range(1, 5):
        _walk(_USUAL, optimizer, params, range(step, step + 1))
        _walk(_USUAL, twin, twins, range(step, step + 1))
        if differing(params, twins):
            raise ParityError(f"{candidate.name}, {dtype}: step {step} differs after its own state was loaded")
        optimizer.load_state_dict(optimizer.state_dict())


def check_going_back(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Save after three steps, take three more, load what was saved, and take them again: the same bits, the same state.

    Raises:
        ParityError: the end is another one, or the moments that the state shows are: it shows others than are used.

    """
    settings = usual_settings(candidate, DTYPES[dtype])
    params = make_params(_USUAL, DTYPES[dtype], device, SEED)
    optimizer = candidate.build(params, settings)
    _walk(_USUAL, optimizer, params, range(1, _STEPS + 1))
    start, saved = copies(params), copy.deepcopy(optimizer.state_dict())
    ends: list[_Params] = []
    for _ in range(2):
        _walk(_USUAL, optimizer, params, range(_STEPS + 1, 2 * _STEPS + 1))
        state = (optimizer.state.get(param, {}) for param in params)
        moments = [value for each in state for value in each.values() if isinstance(value, torch.Tensor)]
        ends.append(copies([*params, *moments]))
        with torch.no_grad():
            for param, old in zip(params, start, strict=True):
                param.copy_(old)
        optimizer.load_state_dict(copy.deepcopy(saved))
    if wrong := differing(*ends):
        what = "parameters" if wrong[0] < len(params) else "state"
        raise ParityError(
            f"after {_STEPS} steps, {_STEPS} more and the state of before loaded again, the same steps end in other "
            f"{what}: {len(wrong)} of {len(ends[0])} tensors differ ({candidate.name}, {dtype})"
        )


def resume_by_another(
    source: AdamCandidate, target: AdamCandidate, device: torch.device, dtype: str, loaded: str
) -> str:
    """Load the state of one implementation into another one, and go on.

    Args:
        source, target: whose state, and who goes on with it.
        device, dtype: where, and the name of the parameters' dtype.
        loaded: which of `LOADED`.

    Returns:
        How the ways of both agree; or "refused: " and the error that loading or stepping ended with.

    Raises:
        ParityError: the other goes another way, without an error.

    """
    decoupled = "decoupled" in target.decay_modes & source.decay_modes
    settings = replace(usual_settings(target, DTYPES[dtype]), decoupled=decoupled)
    params = make_params(_USUAL, DTYPES[dtype], device, SEED)
    optimizer = source.build(params, settings)
    _walk(_USUAL, optimizer, params, range(1, _STEPS + 1))
    others = _fresh(params)
    other = target.build(others, settings)
    try:
        saved = copy.deepcopy(optimizer.state_dict())
        if loaded == "state_alone":
            saved["param_groups"] = other.state_dict()["param_groups"]
        other.load_state_dict(saved)
        _walk(_USUAL, other, others, range(_STEPS + 1, 2 * _STEPS + 1))
    except Warning:
        raise
    except Exception as error:  # noqa: BLE001  # whatever it is, the user hears of it
        if "CUDA error" in str(error):  # a kernel that went astray is no refusal
            raise ParityError(f"{target.name} with the state of {source.name}: {error}") from None
        return f"refused: {type(error).__name__}: {error}".splitlines()[0]
    _walk(_USUAL, optimizer, params, range(_STEPS + 1, 2 * _STEPS + 1))
    if not differing(params, others):
        return "the same bits"
    assert_same_way(params, others, settings.lr, dtype, f"{target.name} with the state of {source.name}")
    return "the same but for roundings"


def assert_same_way(params: _Params, others: _Params, lr: float, dtype: str, who: str) -> None:
    """Raise unless two ways of three steps agree but for what right implementations round differently.

    Args:
        params, others: where they end.
        lr, dtype: with which learning rate, and the name of the parameters' dtype.
        who: goes the second way, for the message.

    Raises:
        ParityError: they do not.

    """
    host = torch.device("cpu")
    for one, two in zip(copies(params, host), copies(others, host), strict=True):
        allowed = _FARTHEST[dtype] * _STEPS * lr + 2 * spacing(one, one.dtype)
        off = (one.double() - two.double()).abs().where((one != two) & ~(one.isnan() & two.isnan()), 0.0)
        if not bool((off <= allowed).all()):
            raise ParityError(
                f"{who} goes another way, without an error: after {_STEPS} "
                f"steps it is off by {float(off.nan_to_num(torch.inf).max()):.3g} where a step moves by about "
                f"{lr:g}, and {_FARTHEST[dtype]:g} of their sum is allowed ({dtype})"
            )


def check_resumed_by_another(target: AdamCandidate, device: torch.device, dtype: str, source: str, loaded: str) -> None:
    """Raise as `resume_by_another` does; `source` is the reference of the candidate whose state is loaded."""
    resume_by_another(adam_candidate(source), target, device, dtype, loaded)
