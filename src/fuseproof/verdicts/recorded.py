"""Run documents of one night, as `history` reads them, to the night that the gate judges."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fuseproof.run_schema import cpu_threads, measured_on
from fuseproof.verdicts.night import NOT_RECORDED, Night, Values
from fuseproof.verdicts.verdict import Pair

__all__ = ["THREADS", "Process", "assembled", "night_of", "process_of", "tests_by_key", "values_of"]

THREADS = "threads"
"""Among a night's `host`: how many torch had, where the CPU itself was measured."""

_APART = "its processes do not measure the same: method, CPU model or threads differ"
HOST_PARTS = ("driver",)  # what a pair of environments on one host shares; all else comes with an environment


def values_of(document: Mapping[str, Any]) -> Values:
    """Return a process's values: all metrics of each benchmark, and the hash of its kernels' names."""
    values: dict[Pair, Any] = {}
    for record in _records(document):
        values |= {Pair(record["key"], name): value for name, value in record["metrics"].items()}
        if "kernels_hash" in record:
            values[Pair(record["key"], "kernels_hash")] = record["kernels_hash"]
    return values


def tests_by_key(document: Mapping[str, Any]) -> dict[str, str]:
    """Return the id of the test that measured each key."""
    return {each["extra_info"]["fuseproof"]["key"]: each["fullname"] for each in document["benchmarks"]}


@dataclass(frozen=True)
class Process:
    """One process as recorded.

    Attributes:
        values: what it measured.
        methods: by key, the hash of the method.
        invalid: by key, why it must not be judged.
        block: the document's `fuseproof` block, for what is installed and was asked for.
        clocks_mhz: of the spin probes.
        written: when, as an ISO date.

    """

    values: Values
    methods: Mapping[str, str]
    invalid: Mapping[str, Sequence[str]]
    block: Mapping[str, Any]
    clocks_mhz: Sequence[float]
    written: str


def process_of(document: Mapping[str, Any]) -> Process:
    """Return the process that a run document is of."""
    records = _records(document)
    return Process(
        values_of(document),
        {record["key"]: record["method"] for record in records},
        {record["key"]: record["invalid"] for record in records if record.get("invalid")},
        document.get("fuseproof", {}),
        [clock for record in records if (clock := (record.get("gpu") or {}).get("spin_sm_clock_mhz"))],
        str(document.get("datetime", "")),
    )


def night_of(name: str, documents: Sequence[Mapping[str, Any]]) -> Night:
    """Return a night of screening processes, without marks, from their run documents."""
    return assembled(name, [process_of(document) for document in documents])


def assembled(name: str, processes: Sequence[Process]) -> Night:
    """Return a night of screening processes, without marks.

    A key is invalid if one of its processes says so, or if they measured it by more than one method. Host and iteration
    times compare within one CPU model only, and on a CPU all do with one number of threads: those are part of each
    method.
    """
    invalid: dict[str, list[str]] = {}
    methods: dict[str, str] = {}
    for process in processes:
        where = measured_on(process.block)
        own = {key: f"{method} {where}" for key, method in process.methods.items()}
        apart = {key: [_APART] for key in own if methods.get(key, own[key]) != own[key]}
        methods |= own
        for key, reasons in itertools.chain(process.invalid.items(), apart.items()):
            known = invalid.setdefault(key, [])
            known += [reason for reason in reasons if reason not in known]
    blocks = [process.block for process in processes]
    clocks_mhz = [float(clock) for process in processes for clock in process.clocks_mhz]
    software = dict(blocks[-1].get("software", {})) if blocks else {}
    host = {part: software.pop(part) for part in HOST_PARTS if part in software}
    host |= {part: str(blocks[-1][part]) for part in ("power_limit_w",) if blocks and part in blocks[-1]}
    if blocks and (threads := cpu_threads(blocks[-1])) is not None:
        host[THREADS] = str(threads)
    boards = [str(block.get("board", "")) for block in blocks]
    return Night(
        name,
        [process.values for process in processes],
        invalid=invalid,
        methods=methods,
        software=software,
        host=host,
        boards=frozenset(boards) if all(boards) else frozenset(),
        sm_clock_mhz=statistics.median(clocks_mhz) if clocks_mhz else None,
        selection=_selection(blocks),
        brought=frozenset(name for block in blocks for name in block.get("brought", ())),
        day=min((process.written[:10] for process in processes), default=""),
    )


def _selection(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return what a night's processes were asked for; several parts are a part, and so is what nobody has recorded."""
    asked = dict.fromkeys(str(block.get("selection", NOT_RECORDED)) for block in blocks)
    return " + ".join(each or "default" for each in asked) if len(asked) > 1 else next(iter(asked), NOT_RECORDED)


def _records(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
