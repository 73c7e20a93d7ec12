"""What the gate needs of a file of the history: words that all nights are looked through for, and the rest of it.

A run of 500 benchmarks is 800 KB of JSON, of which the gate reads 20 KB once compressed, and of most nights only which
benchmarks they have. The words are texts, so that an index need not know what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ACCEPTED", "Digest", "digest_record", "digest_run", "read_word"]

ACCEPTED = "accepted"
"""The word in the place of a verdict for a pair whose level somebody has accepted."""

_BLOCK_PARTS = (
    "schema",
    "night",
    "machine",
    "cpu_model",
    "power_limit_w",
    "software",
    "gated",
    "selection",
    "brought",
)
_RECORD_PARTS = ("key", "method", "metrics", "kernels_hash")


@dataclass(frozen=True)
class Digest:
    """One file, digested.

    Attributes:
        words: of a run: one for each benchmark; of verdicts: a pair, what was said of it, the next pair, and so on.
        rest: of a run: a document with the same structure that `verdicts.recorded` reads; of verdicts: all but them.

    """

    words: tuple[str, ...]
    rest: dict[str, Any]


def digest_run(document: Mapping[str, Any]) -> Digest:
    """Return the digest of a sound run: words are [key, method, CPU model, metrics, INVALID?, to be judged?]."""
    block = document["fuseproof"]
    words, benchmarks = [], []
    for benchmark in document["benchmarks"]:
        record = benchmark["extra_info"]["fuseproof"]
        kept = {name: record[name] for name in _RECORD_PARTS if name in record}
        if record.get("invalid"):
            kept["invalid"] = record["invalid"]
        if clock_mhz := (record.get("gpu") or {}).get("spin_sm_clock_mhz"):
            kept["gpu"] = {"spin_sm_clock_mhz": clock_mhz}
        metrics = sorted([*record["metrics"], *(["kernels_hash"] if "kernels_hash" in record else [])])
        flags = "invalid" in kept, bool(block.get("gated"))
        words.append(_word([record["key"], record["method"], block.get("cpu_model", ""), metrics, *flags]))
        benchmarks.append({"extra_info": {"fuseproof": kept}})
    rest = {
        "fuseproof": {name: block[name] for name in _BLOCK_PARTS if name in block},
        "datetime": document["datetime"],
        "benchmarks": benchmarks,
    }
    return Digest(tuple(words), rest)


def digest_record(document: Mapping[str, Any]) -> Digest:
    """Return the digest of sound verdicts: by turns [key, metric] and [outcome, reasons, since] or `ACCEPTED`."""
    words: list[str] = []
    groups = [(_word([g["outcome"], g["reasons"], g["since"]]), g["pairs"]) for g in document.get("verdicts", [])]
    groups += [(_word(ACCEPTED), document["accepted"])] if "accepted" in document else []
    for said, pairs in groups:
        for metric, keys in pairs.items():
            for key in keys:
                words += (_word([key, metric]), said)
    rest = {name: value for name, value in document.items() if name not in {"verdicts", "accepted"}}
    return Digest(tuple(words), rest)


def _word(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_word(word: str) -> Any:
    """Return what a word says."""
    return json.loads(word)
