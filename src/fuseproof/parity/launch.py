"""Did the fused kernel really run: what one call launches, by kernel on a GPU and by operator on a CPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fuseproof.parity.measures import ParityError
from fuseproof.tracing import trace_rounds

__all__ = ["Launched", "assert_launched", "launched_by"]


@dataclass(frozen=True)
class Launched:
    """What a call has launched.

    Attributes:
        device_type: where; on "cuda" the names are kernels', on "cpu" operators'.
        names: full names with their numbers.
        traffic_bytes: what operators of torch's dispatcher have read and written, as their schemas say; kernels that
            are called past the dispatcher are not in it.

    """

    device_type: str
    names: Mapping[str, int]
    traffic_bytes: int


class _Operators(TorchDispatchMode):
    """Notes every operator, and the bytes of the tensors that it reads and writes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: Counter[str] = Counter()
        self.traffic_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.names[func.name().partition(".")[0]] += 1
        schema = func._schema
        if all(each.alias_info is None or each.alias_info.is_write for each in schema.returns):  # else it is a view
            self.traffic_bytes += _bytes_of((args, kwargs))
            given = dict(zip((each.name for each in schema.arguments), args, strict=False)) | (kwargs or {})
            written = [each.name for each in schema.arguments if each.alias_info and each.alias_info.is_write]
            self.traffic_bytes += _bytes_of([given.get(name) for name in written])
            self.traffic_bytes += 0 if written else _bytes_of(results)
        return results


def _bytes_of(tree: Any) -> int:
    return sum(each.numel() * each.element_size() for each in tree_leaves(tree) if isinstance(each, torch.Tensor))


def launched_by(call: Callable[[], object], device: torch.device) -> Launched:
    """Return what `call` launches; it is called once on a CPU, and once more on a GPU, where it is profiled.

    Args:
        call: what to look at; warmed up, so that what is made at the first call only is not in it.
        device: where it runs.

    """
    with _Operators() as operators:
        call()
    names: Mapping[str, int] = operators.names
    if device.type == "cuda":
        (trace,) = trace_rounds(call, 1, None)
        names = Counter(name for name, _, _ in trace.kernels)
    return Launched(device.type, names, operators.traffic_bytes)


def assert_launched(launched: Launched, expected: str, times: int | None, most: int, case: str) -> None:
    """Raise unless the kernel that a candidate is for has run, so many times, without many others beside it.

    Args:
        launched: what has run.
        expected: regular expression that is found in the kernel's or operator's full name.
        times: how many launches of it the work takes; None: any number.
        most: how many launches there may be in all.
        case: what was run, for the message.

    Raises:
        ParityError: it has not, or not so often, or too much else has.

    """
    found = sum(count for name, count in launched.names.items() if re.search(expected, name))
    total = sum(launched.names.values())
    if found and times in (None, found) and total <= most:
        return
    what = "kernels" if launched.device_type == "cuda" else "operators"
    ran = ", ".join(f"{count} x {name[:120]}" for name, count in Counter(launched.names).most_common(8)) or "nothing"
    if not found:
        raise ParityError(f"{expected} never ran: the candidate has fallen back to other {what}: {ran} ({case})")
    wanted = "any number" if times is None else times
    raise ParityError(
        f"{expected} ran {found} times and {total} {what} in all, expected {wanted} and at most {most}: {ran} ({case})"
    )
