"""Run documents of one night, as `history` reads them, to the night that the gate judges."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.verdict import Pair

__all__ = ["night_of", "values_of"]

HOST_PARTS = ("driver",)  # what a pair of environments on one host shares; all else comes with an environment

NOT_RECORDED = "not recorded"


def values_of(document: Mapping[str, Any]) -> Values:
    """Return a process's values: all metrics of each benchmark, and the hash of its kernels' names."""
    values: dict[Pair, Any] = {}
    for record in _records(document):
        values |= {Pair(record["key"], name): value for name, value in record["metrics"].items()}
        if "kernels_hash" in record:
            values[Pair(record["key"], "kernels_hash")] = record["kernels_hash"]
    return values


def night_of(name: str, documents: Sequence[Mapping[str, Any]]) -> Night:
    """Return a night of screening processes, without marks.

    A key is invalid if one of its processes says so. Host and iteration times compare within one CPU model only, so
    that is part of each method.
    """
    invalid: dict[str, list[str]] = {}
    methods: dict[str, str] = {}
    clocks_mhz: list[float] = []
    for document in documents:
        cpu = document.get("fuseproof", {}).get("cpu_model", "")
        for record in _records(document):
            if record.get("invalid"):
                invalid.setdefault(record["key"], []).extend(record["invalid"])
            methods[record["key"]] = f"{record['method']} {cpu}"
            if clock_mhz := (record.get("gpu") or {}).get("spin_sm_clock_mhz"):
                clocks_mhz.append(float(clock_mhz))
    blocks = [document.get("fuseproof", {}) for document in documents]
    software = dict(blocks[-1].get("software", {})) if blocks else {}
    host = {part: software.pop(part) for part in HOST_PARTS if part in software}
    host |= {part: str(blocks[-1][part]) for part in ("power_limit_w",) if blocks and part in blocks[-1]}
    return Night(
        name,
        [values_of(document) for document in documents],
        invalid=invalid,
        methods=methods,
        software=software,
        host=host,
        sm_clock_mhz=statistics.median(clocks_mhz) if clocks_mhz else None,
        selection=_selection(blocks),
        brought=frozenset(name for block in blocks for name in block.get("brought", ())),
        day=min((str(document.get("datetime", ""))[:10] for document in documents), default=""),
    )


def _selection(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Return what a night's processes were asked for; several parts are a part, and so is what nobody has recorded."""
    asked = dict.fromkeys(str(block.get("selection", NOT_RECORDED)) for block in blocks)
    return " + ".join(each or "default" for each in asked) if len(asked) > 1 else next(iter(asked), NOT_RECORDED)


def _records(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
