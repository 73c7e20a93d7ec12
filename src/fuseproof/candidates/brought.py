"""Bring your own kernel: `NAME=module:attr` to a candidate that takes part in every test and benchmark."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import nn

from fuseproof.candidates.record import AdamCandidate, AdamSettings, NormCandidate

__all__ = ["BroughtError", "bring_adam", "bring_layer_norm"]

_NORMALIZED_DIMS = 3  # of an image: channels, height and width
_SPEC = re.compile(r"(?P<name>[A-Za-z0-9_.]+)=(?P<module>[A-Za-z_][\w.]*):(?P<attr>[A-Za-z_][\w.]*)")

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class BroughtError(Exception):
    """What was brought cannot be used; the message is one sentence with the option, the reason and the mend."""


def bring_adam(option: str, spec: str, known: Mapping[str, Any]) -> AdamCandidate:
    """Return a candidate for a class with the signature of ``torch.optim.Adam``.

    A class that takes `decoupled_weight_decay` or `adam_w_mode` is tested with both kinds of weight decay; any other
    with the L2 term that ``torch.optim.Adam`` adds to the gradient.

    Args:
        option: the command-line option, for messages.
        spec: ``NAME=module:attr``.
        known: names that are taken.

    Raises:
        BroughtError: a wrong spec, a taken name, a module that does not import, or not a class of that kind.

    """
    name, kind = _load(option, spec, known)
    takes = _parameters(option, spec, kind, ("params",))
    switch = next((each for each in ("decoupled_weight_decay", "adam_w_mode") if each in takes), None)
    modes: frozenset[Literal["l2", "decoupled"]] = frozenset({"l2", "decoupled"} if switch else {"l2"})
    corrects = "bias_correction" in takes
    needed = [each for each in ("lr", "betas", "eps", "weight_decay") if each not in takes and "**" not in takes]
    if needed:
        raise BroughtError(
            f"{option} {spec}: {kind.__name__} takes no {', '.join(needed)}; "
            "give it the signature of torch.optim.Adam(params, lr, betas, eps, weight_decay)."
        )

    def build(params: Iterable[torch.Tensor], settings: AdamSettings) -> torch.optim.Optimizer:
        flags: dict[str, bool] = {switch: settings.decoupled} if switch else {}
        if corrects:
            flags["bias_correction"] = settings.bias_correction
        optimizer: torch.optim.Optimizer = kind(
            params,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            **flags,
        )
        return optimizer

    return AdamCandidate(
        name,
        build,
        decay_modes=modes,
        dtypes=_dtypes(option, spec, kind),
        switches_correction=corrects,
        own_kernels=True,
        brought=spec,
    )


def bring_layer_norm(option: str, spec: str, known: Mapping[str, Any]) -> NormCandidate:
    """Return a candidate for a class with the signature of ``nn.LayerNorm``; arguments and errors as `bring_adam`.

    A class whose argument is called `normalized_shape` is tested with up to three dimensions, any other with one; one
    that takes `elementwise_affine` or `bias` is tested without its parameters too.
    """
    name, kind = _load(option, spec, known)
    takes = _parameters(option, spec, kind, ())
    if isinstance(kind, type) and not issubclass(kind, nn.Module):
        raise BroughtError(
            f"{option} {spec}: {kind.__name__} is no torch.nn.Module; give a class like torch.nn.LayerNorm."
        )
    if not takes:
        raise BroughtError(
            f"{option} {spec}: {kind.__name__} takes no argument; "
            "give it the signature of torch.nn.LayerNorm(normalized_shape, eps)."
        )

    leaves_out = frozenset({"elementwise_affine", "bias"} & takes)

    def build(normalized_shape: int | tuple[int, ...], eps: float, **left_out: bool) -> nn.Module:
        module: nn.Module = kind(normalized_shape, eps=eps, **left_out)
        for parameter in () if left_out else ("weight", "bias"):
            if not isinstance(getattr(module, parameter, None), nn.Parameter):
                raise TypeError(f"{kind.__name__} has no parameter {parameter!r}, which nn.LayerNorm has")
        return module

    return NormCandidate(
        name,
        build,
        normalized_dims=_NORMALIZED_DIMS if "normalized_shape" in takes else 1,
        half_affine=True,  # it may: a test of its own asks whether it does
        dtypes=_dtypes(option, spec, kind),
        leaves_out=leaves_out,  # type: ignore[arg-type]  # a set of these two words
        brought=spec,
    )


def _dtypes(option: str, spec: str, kind: Callable[..., Any]) -> frozenset[torch.dtype]:
    """Return what the class is meant for: what its `fuseproof_dtypes` names, or all."""
    names = getattr(kind, "fuseproof_dtypes", tuple(_DTYPES))
    if isinstance(names, str) or not names or not set(names) <= _DTYPES.keys():
        raise BroughtError(
            f"{option} {spec}: fuseproof_dtypes is {names!r}; make it a tuple of one or more of {', '.join(_DTYPES)}."
        )
    return frozenset(_DTYPES[name] for name in names)


def _load(option: str, spec: str, known: Mapping[str, Any]) -> tuple[str, Callable[..., Any]]:
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise BroughtError(f"{option} {spec}: write it as NAME=module:attr, for example mine=my_kernels:FusedAdam.")
    if match["name"] in known:
        raise BroughtError(
            f"{option} {spec}: the name {match['name']!r} is taken; choose another than {', '.join(known)}."
        )
    if "" not in sys.path and os.getcwd() not in sys.path:  # noqa: PTH109  # sys.path holds strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    try:
        found: Any = importlib.import_module(match["module"])
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever the user's module raises is told, with its line
        raise BroughtError(
            f"{option} {spec}: {match['module']} cannot be imported: {_where(error)}{_hint(error)}"
        ) from None
    for part in match["attr"].split("."):
        if not hasattr(found, part):
            names = ", ".join(each for each in vars(found) if not each.startswith("_"))
            raise BroughtError(f"{option} {spec}: {match['module']} has no {part!r}; it has {names}.")
        found = getattr(found, part)
    if not callable(found):
        raise BroughtError(f"{option} {spec}: {match['attr']} is no class but {found!r}.")
    return match["name"], found


def _hint(error: BaseException) -> str:
    return "; is its folder on PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""


def _where(error: BaseException) -> str:
    """Return the error with the last line of the user's own code in its traceback."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError) or len(frames) < 2:  # the first frame is ours
        return said
    return f"{said} ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})"


def _parameters(option: str, spec: str, kind: Callable[..., Any], required: tuple[str, ...]) -> set[str]:
    """Return the names of what `kind` takes, with "**" if it takes any keyword."""
    try:
        parameters = inspect.signature(kind).parameters
    except (TypeError, ValueError):
        raise BroughtError(f"{option} {spec}: {kind!r} has no signature to look at; wrap it in a class.") from None
    names = {"**" if each.kind is each.VAR_KEYWORD else name for name, each in parameters.items()}
    missing = [name for name in required if name not in names]
    if missing:
        hidden = any(each.kind is each.VAR_POSITIONAL for each in parameters.values())
        mend = "; write its arguments out, since *args hides which weight decay it takes" if hidden else ""
        raise BroughtError(f"{option} {spec}: {kind} takes no {', '.join(missing)}, which torch.optim.Adam does{mend}.")
    return names
