"""What comes of each pair of input and weight dtypes, with and without autocast: as stated in a table, or an error."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.parity import DTYPES, ParityError
from fuseproof.parity.norm.checks import build, case_of, judge, run
from fuseproof.parity.norm.regimes import REGIMES, SEED

__all__ = ["AUTOCAST", "DtypeCase", "DtypeResult", "check_dtypes", "find_result", "load_results"]

AUTOCAST = ("off", "bf16", "fp16")
# What an error about dtypes says in one way or another: "expected scalar type Half", "mixed dtype (CPU)".
_ABOUT_DTYPES = re.compile(r"d?type|float|half|bf16|fp16", re.IGNORECASE)
_REFUSALS = (RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class DtypeCase:
    """One cell of the matrix: names of dtypes, autocast "off" or a dtype, and "eager" or "compiled"."""

    input: str
    weight: str
    autocast: str
    mode: str = "eager"


@dataclass(frozen=True)
class DtypeResult:
    """What is stated for some cells.

    Attributes:
        candidates: full names.
        devices: types of device.
        input, weight, autocast, mode: regular expressions for the cells.
        y: the dtype of y: "error", "input", "weight", "autocast" or a dtype's name.
        cast: what x and the parameters are rounded to first: "", "autocast" or a dtype's name.
        torch_from, torch_before: the versions of torch for which it is stated, such as "2.12"; empty: no such end.

    """

    candidates: tuple[str, ...]
    devices: tuple[str, ...]
    y: str
    input: str = ".*"
    weight: str = ".*"
    autocast: str = ".*"
    mode: str = "eager"
    cast: str = ""
    torch_from: str = ""
    torch_before: str = ""

    def covers(self, candidate: str, device_type: str, case: DtypeCase, torch_version: str) -> bool:
        """Whether this is stated for that cell in that version of torch."""
        number = _number(torch_version)
        if self.torch_from and number < _number(self.torch_from):
            return False
        if self.torch_before and number >= _number(self.torch_before):
            return False
        cells = ((getattr(self, name), getattr(case, name)) for name in ("input", "weight", "autocast", "mode"))
        here = candidate in self.candidates and device_type in self.devices
        return here and all(re.fullmatch(pattern, value) for pattern, value in cells)

    def y_of(self, case: DtypeCase) -> str:
        """Return the name of y's dtype in a cell, or "error"."""
        return str(getattr(case, self.y)) if self.y in {"input", "weight", "autocast"} else self.y

    def cast_of(self, case: DtypeCase) -> str:
        """Return the name of what is rounded to first in a cell; empty where nothing is."""
        return case.autocast if self.cast == "autocast" else self.cast

    def words(self, case: DtypeCase) -> str:
        """Return what is stated for a cell, as tables show it."""
        cast = self.cast_of(case)
        return self.y_of(case) + (f" ({cast})" if cast else "")


def _number(version: str) -> tuple[int, ...]:
    """Return major and minor of a version of torch: (2, 12) of "2.12.0a0+git"."""
    return tuple(int(part) for part in version.split(".")[:2])


def load_results(path: Path) -> tuple[DtypeResult, ...]:
    """Return the results that a TOML file lists as ``[[result]]``.

    Raises:
        KeyError, TypeError: an entry lacks a key or has an unknown one.

    """
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["result"]
    lists = ("candidates", "devices")
    return tuple(DtypeResult(**{**entry, **{name: tuple(entry[name]) for name in lists}}) for entry in entries)


def find_result(
    results: Sequence[DtypeResult], candidate: str, device_type: str, case: DtypeCase, torch_version: str = ""
) -> DtypeResult | None:
    """Return what is stated for a cell in a version of torch, empty for the one that runs; None where nothing is.

    Raises:
        ValueError: two results are stated for it.

    """
    version = torch_version or torch.__version__
    found = [result for result in results if result.covers(candidate, device_type, case, version)]
    if len(found) > 1:
        raise ValueError(f"{len(found)} results are stated for {candidate} on {device_type}, {case}")
    return found[0] if found else None


def check_dtypes(candidate: NormCandidate, case: DtypeCase, result: DtypeResult, device: torch.device) -> None:
    """Run a candidate in one cell: the stated dtype of y and right values, or a refusal that speaks of dtypes.

    Raises:
        ParityError: anything else came of it.

    """
    y = result.y_of(case)
    inputs = REGIMES["usual"].inputs((5,), (64,), DTYPES[case.input], device, weight_dtype=DTYPES[case.weight])
    inputs = inputs.of(candidate.kind)
    inputs = replace(inputs, dy=inputs.dy.to(DTYPES.get(y, inputs.x.dtype)))
    words = f"weight {case.weight}, autocast {case.autocast}, {case.mode}, seed {SEED}"
    said = case_of(candidate, inputs, words)
    module = build(candidate, inputs)
    if case.mode == "compiled":
        torch.compiler.reset()
        module.compile()
        candidate = replace(candidate, statistics=None)  # they are where the compiler keeps them
    within: AbstractContextManager[object] = nullcontext()
    if case.autocast != "off":
        within = torch.autocast(device.type, DTYPES[case.autocast])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is slow in this pair
            with within:
                actual = module(inputs.x).dtype
            if y != "error" and actual != DTYPES[y]:
                raise ParityError(f"y is {actual}, stated is {y} ({said})")
            outputs = run(candidate, inputs, module, within=within)
    except _REFUSALS as error:
        if y != "error":
            raise ParityError(f"stated is y in {y}; {type(error).__name__}: {error} ({said})") from None
        if not _ABOUT_DTYPES.search(str(error)):
            raise ParityError(f"it refuses, and does not speak of dtypes: {error} ({said})") from None
        return
    if y == "error":
        raise ParityError(f"stated is an error, and y came in {actual} ({said})")
    judge(candidate, inputs, outputs, said, DTYPES[y], DTYPES.get(result.cast_of(case)))
