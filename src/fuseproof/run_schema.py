"""What a run's document must hold: one check, shared by writing and reading.

A run is pytest-benchmark's own JSON document with a `fuseproof` block beside it and one inside the `extra_info` of each
benchmark. A number that is wrong here would become tomorrow's baseline, so nothing is repaired: the first fault found
is worded, and the document refused.
"""

import math
import re
import reprlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

from fuseproof.verdicts.verdict import SUITE

SCHEMA = 1
"""The version of the document's layout that this fuseproof writes, and the only one that it reads."""

_DOCUMENT_KEYS = {"machine_info": dict, "commit_info": dict, "datetime": str, "version": str, "benchmarks": list}
_BENCHMARK_KEYS = {"name": str, "fullname": str, "group": str | None, "stats": dict, "extra_info": dict}
_RECORD_KEYS = {"key": str, "method": str, "metrics": dict}
# What the gate reads where it is there. Gated sessions write whether the night was to be judged, what was asked for (""
# for the whole suite, "full" for that with what a night cannot afford), and the names of candidates that were brought.
_BLOCK_OPTIONS = {
    "gated": bool,
    "selection": str,
    "brought": list,
    "cpu_model": str,
    "power_limit_w": float | int | None,
    "board": str,
    "software": dict,
    "settings": dict,
    "vouches": str,
}
_RECORD_OPTIONS = {"invalid": list, "gpu": dict | None, "kernels_hash": str}
# What the tables of `pytest-benchmark compare` read; without one of them the command ends in a traceback.
_STATS = ("min", "max", "mean", "stddev", "median", "iqr", "ops", "rounds", "iterations")
# Real documents are about eight deep. The bound ends the walk through one that contains itself.
_MAX_DEPTH = 32
_GREATEST = sys.float_info.max

_PLAIN_NAME = re.compile(r"[0-9A-Za-z_-]{1,40}")
_brief = reprlib.Repr()
_brief.maxstring = 100


@dataclass(frozen=True)
class Fault:
    """Why a document is refused: `what` names the key and its value, `mend` what to do with a file that holds it."""

    what: str
    mend: str = "restore the file from a good copy or delete it"


def cpu_threads(block: Mapping[str, Any]) -> int | None:
    """Return torch's threads where the CPU itself was measured, by a run's `fuseproof` block; None on a GPU.

    There each number of them has times of its own. Beside a GPU they move host times alone, and little: those are
    reported, and gated only where somebody asks for it.
    """
    threads = block.get("settings", {}).get("threads")
    return threads if str(block.get("machine")).startswith("cpu-") else None


def measured_on(block: Mapping[str, Any]) -> str:
    """Return what of the host takes part in a run's numbers, in words, by its `fuseproof` block."""
    threads = cpu_threads(block)
    return str(block.get("cpu_model", "")) + (f", {threads} threads" if threads is not None else "")


def find_fault(document: object, machine: str, night: str) -> Fault | None:
    """Return the first fault of a run's document, or None for a sound one.

    `machine` is the name of the folder that the file is (or will be) in, `night` the night that its name says.
    """
    return next(_faults(document, machine, night), None)


def _faults(document: object, machine: str, night: str) -> Iterator[Fault]:
    # The caller stops at the first fault, so whatever a `yield` has ruled out need not be guarded against below it.
    if not isinstance(document, dict):
        yield Fault(f"the document is {shown(document)}, not an object")
        return
    # First: a newer fuseproof may have changed everything else.
    yield from block_faults(document.get("fuseproof"), machine, night, SCHEMA)
    yield from _key_faults(document, _DOCUMENT_KEYS, "")
    if not document["benchmarks"]:
        yield Fault("benchmarks is empty, so nothing was measured")
    seen: dict[str, int] = {}
    for index, benchmark in enumerate(document["benchmarks"]):
        where = f"benchmarks[{index}]"
        yield from _benchmark_faults(benchmark, where)
        key = benchmark["extra_info"]["fuseproof"]["key"]
        if key in seen:
            yield Fault(f"{where} and benchmarks[{seen[key]}] both have the key {shown(key)}")
        seen[key] = index
    if not _is_json(document, 0):
        yield from leaf_faults(document)


def block_faults(block: object, machine: str, night: str, known: int) -> Iterator[Fault]:
    """Yield what is wrong with the `fuseproof` block of a document whose layout has the version `known`."""
    if block is None:
        yield Fault("it has no fuseproof block, so fuseproof did not write it", "move it out of the history")
    if not isinstance(block, dict):
        yield Fault(f"fuseproof is {shown(block)}, not an object")
        return
    schema = block.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        yield Fault(f"fuseproof.schema is {shown(schema)}, not {known}")
    elif schema > known:
        what = f"fuseproof.schema is {shown(schema)} and this version reads {known}: written by a newer fuseproof"
        yield Fault(what, "upgrade fuseproof")
    if block.get("machine") != machine:
        what = f"fuseproof.machine is {shown(block.get('machine'))}, not {shown(machine)}"
        yield Fault(what, "foreign hardware is not compared: keep the file in the folder of its own machine")
    if block.get("night") != night:
        what = f"fuseproof.night is {shown(block.get('night'))}, but the file's name says {shown(night)}"
        yield Fault(what, "give the file its name back")
    yield from _option_faults(block, _BLOCK_OPTIONS, "fuseproof.")
    threads = block.get("settings", {}).get("threads", 1)
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        yield Fault(f"fuseproof.settings.threads is {shown(threads)}, not a number of threads")


def _benchmark_faults(benchmark: object, where: str) -> Iterator[Fault]:
    if not isinstance(benchmark, dict):
        yield Fault(f"{where} is {shown(benchmark)}, not an object")
        return
    yield from _key_faults(benchmark, _BENCHMARK_KEYS, f"{where}.")
    record = benchmark["extra_info"].get("fuseproof")
    if not isinstance(record, dict):
        yield Fault(f"{where}.extra_info.fuseproof is {shown(record)}, not an object")
        return
    record_at = f"{where}.extra_info.fuseproof"
    yield from _key_faults(record, _RECORD_KEYS, f"{record_at}.")
    for name in ("key", "method"):
        if not record[name]:
            yield Fault(f"{record_at}.{name} is empty")
        if not record[name].isprintable():
            yield Fault(f"{record_at}.{name} is {shown(record[name])}, which no line can show")
    if record["key"] == SUITE:
        yield Fault(f"{record_at}.key is {shown(SUITE)}, which stands for the whole suite")
    owner = f" of {shown(record['key'])}"
    stats = dict(benchmark["stats"])
    outliers = stats.pop("outliers", None)
    if not isinstance(outliers, str):
        yield Fault(f"{where}.stats.outliers{owner} is {shown(outliers)}, not a str")
    for name in _STATS:
        if name not in stats:
            yield Fault(f"{where}.stats.{name}{owner} is missing")
    yield from _nesting_faults({name: stats[name] for name in _STATS}, f"{where}.stats", owner)
    yield from number_faults(stats, f"{where}.stats", owner)
    yield from _nesting_faults(record["metrics"], f"{record_at}.metrics", owner)
    for name in ("metrics", "quantiles"):
        yield from number_faults(record.get(name, {}), f"{record_at}.{name}", owner)
    for name in record["metrics"]:
        if not name or not name.isprintable():
            yield Fault(f"{record_at}.metrics{owner} has the name {shown(name)}, which no line can show")
    yield from _option_faults(record, _RECORD_OPTIONS, f"{record_at}.")
    clock_mhz = (record.get("gpu") or {}).get("spin_sm_clock_mhz", 0.0)
    yield from _nesting_faults({"spin_sm_clock_mhz": clock_mhz}, f"{record_at}.gpu", owner)
    yield from number_faults(clock_mhz, f"{record_at}.gpu.spin_sm_clock_mhz", owner)


def _option_faults(holder: dict[str, object], kinds: Mapping[str, type | UnionType], prefix: str) -> Iterator[Fault]:
    """Yield what is wrong with keys that need not be there; their lists are of texts."""
    there = {name: kind for name, kind in kinds.items() if name in holder}
    yield from _key_faults(holder, there, prefix)
    for name in there:
        value = holder[name]
        if isinstance(value, list) and not all(isinstance(each, str) for each in value):
            yield Fault(f"{prefix}{name} is not a list of texts")


def _nesting_faults(numbers: dict[str, object], where: str, owner: str) -> Iterator[Fault]:
    """Yield what is a list or an object where `number_faults`, which looks into those, must find a number."""
    for name, value in numbers.items():
        if isinstance(value, dict | list | tuple):
            yield Fault(f"{where}{_step(name, first=False)}{owner} is {shown(value)}, not a number")


def _key_faults(holder: dict[str, object], kinds: Mapping[str, type | UnionType], prefix: str) -> Iterator[Fault]:
    for name, kind in kinds.items():
        if name not in holder:
            yield Fault(f"{prefix}{name} is missing")
        elif not isinstance(holder[name], kind):
            yield Fault(f"{prefix}{name} is {shown(holder[name])}, not a {getattr(kind, '__name__', kind)}")


def number_faults(value: object, where: str, owner: str, depth: int = 0) -> Iterator[Fault]:
    """Yield each leaf that is no finite number of at least 0; bool is an int to Python, never to us."""
    if isinstance(value, dict) and all(
        type(each) in (float, int) and 0 <= each <= _GREATEST for each in value.values()
    ):
        return  # nearly all of them: without a name for each leaf a long history is read in half the time
    children = _children(value, where)
    if children is not None and depth < _MAX_DEPTH:
        for child_at, child in children:
            yield from number_faults(child, child_at, owner, depth + 1)
    # The upper bound also refuses integers that no float can hold. NaN fails every comparison.
    elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _GREATEST:
        yield Fault(f"{where}{owner} is {shown(value)}, not a finite number of at least 0")


def _is_json(value: object, depth: int) -> bool:
    """Return whether `leaf_faults` would find nothing: the same question without a name for each leaf."""
    kind = type(value)
    if depth > _MAX_DEPTH:
        return False
    if kind is str:
        return _is_text(value)
    if kind is int or kind is bool or value is None:
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_text(name) and _is_json(child, depth + 1) for name, child in value.items())
    return isinstance(value, list | tuple) and all(_is_json(child, depth + 1) for child in value)


def _is_text(value: object) -> bool:
    """Return whether this is a string that can be written: half of a surrogate pair, as JSON may hold it, cannot."""
    if not isinstance(value, str):
        return False
    try:
        return value.isascii() or bool(value.encode("utf-8"))
    except UnicodeEncodeError:
        return False


def leaf_faults(value: object, where: str = "", depth: int = 0) -> Iterator[Fault]:
    """Yield what JSON cannot hold, or holds only by Python's leave, anywhere in the document."""
    if depth > _MAX_DEPTH:
        yield Fault(f"{where[:100]}... is nested more than {_MAX_DEPTH} deep")
        return
    if isinstance(value, dict) and not all(_is_text(name) for name in value):
        yield Fault(f"{where or 'the document'} has a key that is not a string of whole characters")
    children = _children(value, where)
    if children is not None:
        for child_at, child in children:
            yield from leaf_faults(child, child_at, depth + 1)
    elif isinstance(value, str) and not _is_text(value):
        yield Fault(f"{where} is {shown(value)}, which has half a character")
    elif not (value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))):
        yield Fault(f"{where} is {shown(value)}, which JSON does not have")


def _children(value: object, where: str) -> list[tuple[str, object]] | None:
    if isinstance(value, dict):
        return [(f"{where}{_step(name, first=not where)}", child) for name, child in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{where}[{index}]", child) for index, child in enumerate(value)]
    return None


def _step(name: object, *, first: bool) -> str:
    if isinstance(name, str) and _PLAIN_NAME.fullmatch(name):
        return name if first else f".{name}"
    return f"[{shown(name)}]"


def shown(value: object) -> str:
    """Return the `repr`, kept short and on one printable line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return "a huge integer"  # its repr may be thousands of digits, or refused by Python
    if value is None or isinstance(value, str | int | float):
        return _brief.repr(value)
    return f"a {type(value).__name__}"
