"""The kinds of faults that real users met: their numbers, and whom each cannot befall, for a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

__all__ = ["FAULTS", "Fault"]

# A candidate's record and the name of a dtype to the reason why the fault cannot be there, or None.
Absent: TypeAlias = Callable[[Any, str], str | None]
_ADAM = ("adam",)
_NORM = ("norm",)


def _nowhere(_record: Any, _dtype: str) -> str | None:
    return None


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        number: as in tests, ``@pytest.mark.fault(number)``.
        title: what goes wrong.
        fixtures: the fixtures whose candidates can have it.
        absent: why a candidate cannot have it in a dtype.

    """

    number: int
    title: str
    fixtures: tuple[str, ...] = _ADAM
    absent: Absent = _nowhere


def _without_masters(record: Any, dtype: str) -> str | None:
    if not record.master_weights:
        return "keeps no masters"
    return "an FP32 parameter is its own master" if dtype == "fp32" else None


def _in_fp32(_record: Any, dtype: str) -> str | None:
    return "in FP32 the moments and the parameter have one dtype" if dtype == "fp32" else None


def _in_twice_the_memory(_record: Any, dtype: str) -> str | None:
    return "FP32 goes by the same indices in twice the memory" if dtype == "fp32" else None


def _in_half(_record: Any, dtype: str) -> str | None:
    if dtype == "fp32":
        return None
    return "a second derivative is there in every dtype or in none: FP32 and FP64 are asked"


def _numbered(*faults: Fault) -> Mapping[int, Fault]:
    return MappingProxyType({fault.number: fault for fault in faults})


FAULTS: Mapping[int, Fault] = _numbered(
    Fault(1, "a tensor without elements in the list"),
    Fault(2, "late or absent gradients"),
    Fault(3, "masters ignored for one dtype", absent=_without_masters),
    Fault(4, "moments rounded to the parameter's dtype", absent=_in_fp32),
    Fault(5, "gradient unscaled twice"),
    Fault(6, "parameter and gradient in different memory formats"),
    Fault(7, "overflow in any group, tensor, position"),
    Fault(8, "L2 and decoupled decay mixed up"),
    Fault(9, "launch boundaries"),
    Fault(10, "beyond 2^31 elements", absent=_in_twice_the_memory),
    Fault(11, "eps, bias correction, lr and betas at their edges"),
    Fault(12, "fused and unfused Adam diverge under AMP"),
    Fault(13, "resumed, also by another implementation"),
    Fault(14, "a CUDA graph freezes the step count"),
    Fault(15, "schedulers, lr as a tensor"),
    Fault(16, "many groups, mixed dtypes, an empty group, a group added later"),
    Fault(17, "the current device is another"),
    Fault(18, "autograd is not told that parameters were written"),
    Fault(19, "no drop-in: sparse gradients are taken for dense ones, arguments are not taken"),
    Fault(33, "launched on another stream than the current one"),
    Fault(34, "addresses that were kept from an earlier step"),
    Fault(20, "empty batch", _NORM),
    Fault(21, "rows at the grid limit", _NORM),
    Fault(22, "weight and bias gradients wrong for some shape", _NORM),
    Fault(23, "large mean, small spread", _NORM),
    Fault(24, "constant or zero rows, tiny eps", _NORM),
    Fault(25, "dtype of input, weight and autocast", _NORM),
    Fault(26, "unaligned and strided inputs and gradients", _NORM),
    Fault(27, "race between rows", _NORM),
    Fault(28, "batch dependence", _NORM),
    Fault(29, "second derivative", _NORM, _in_half),
    Fault(30, "memory-efficient mode loses precision", _NORM),
    Fault(31, "tracing, export, compile", _NORM),
    Fault(32, "outputs left uninitialised", _NORM),
    Fault(35, "what one call keeps meets another", _NORM),
)
