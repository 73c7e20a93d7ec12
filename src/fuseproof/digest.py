"""What the gate needs of a file of the history: words that all nights are looked through for, numbers, and the rest.

A run of 500 benchmarks is 800 KB of JSON, of which the gate needs 20 KB of numbers, and of most nights only which
benchmarks they have. The words are texts, so that an index need not know what they mean.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fuseproof.run_schema import cpu_threads, measured_on

__all__ = ["ACCEPTED", "WITHDRAWN", "Digest", "RunWord", "digest_record", "digest_run", "read_word"]

ACCEPTED = "accepted"
"""The word in the place of a verdict for a pair whose level somebody has accepted."""

WITHDRAWN = "withdrawn"
"""The word in the place of a verdict for a pair whose accepted level is so no longer."""

_BLOCK_PARTS = ("machine", "cpu_model", "power_limit_w", "board", "software", "gated", "selection", "brought")
_RECORD_PARTS = ("confirming", "trusted", "unchanged", "reason", "who")


class RunWord(NamedTuple):
    """What one benchmark of a run says but for its numbers; the same in every run of a quiet year.

    Attributes:
        key: the benchmark.
        method: hash of what makes its numbers comparable.
        host: what of it takes part in the numbers (`run_schema.measured_on`).
        metrics: names of its numbers, in the order in which they are stored.
        whole: which of them are integers.
        kernels_hash: of the kernels' names; empty where they are not known.
        invalid: whether it must not be judged.
        gated: whether its session was to judge it.

    """

    key: str
    method: str
    host: str
    metrics: list[str]
    whole: list[bool]
    kernels_hash: str
    invalid: bool
    gated: bool


@dataclass(frozen=True)
class Digest:
    """One file, digested.

    Attributes:
        words: of a run: a `RunWord` for each benchmark; of verdicts: a pair, what was said of it, the next pair, ...
        numbers: of a run: the metrics of all benchmarks, one after the other.
        rest: all that is needed besides.

    """

    words: tuple[str, ...]
    rest: dict[str, Any]
    numbers: array[float] = field(default_factory=lambda: array("d"))


def digest_run(document: Mapping[str, Any]) -> Digest:
    """Return the digest of a sound run."""
    block = document["fuseproof"]
    host = measured_on(block)
    words, numbers = [], array("d")
    invalid: dict[str, list[str]] = {}
    clocks_mhz = []
    for benchmark in document["benchmarks"]:
        record = benchmark["extra_info"]["fuseproof"]
        metrics = record["metrics"]
        numbers.extend(float(value) for value in metrics.values())
        if record.get("invalid"):
            invalid[record["key"]] = record["invalid"]
        if clock_mhz := (record.get("gpu") or {}).get("spin_sm_clock_mhz"):
            clocks_mhz.append(clock_mhz)
        words.append(
            _word(
                RunWord(
                    record["key"],
                    record["method"],
                    host,
                    list(metrics),
                    [isinstance(value, int) for value in metrics.values()],
                    record.get("kernels_hash", ""),
                    record["key"] in invalid,
                    bool(block.get("gated")),
                )
            )
        )
    rest = {
        "fuseproof": {
            **{name: block[name] for name in _BLOCK_PARTS if name in block},
            **({"settings": {"threads": threads}} if (threads := cpu_threads(block)) is not None else {}),
        },
        "datetime": document["datetime"],
        "invalid": invalid,
        "clocks_mhz": clocks_mhz,
    }
    return Digest(tuple(words), rest, numbers)


def digest_record(document: Mapping[str, Any]) -> Digest:
    """Return the digest of sound verdicts: [key, metric], [outcome, reasons, since] or a word for it, ..."""
    words: list[str] = []
    groups = [(_word([g["outcome"], g["reasons"], g["since"]]), g["pairs"]) for g in document.get("verdicts", [])]
    groups += [(_word(word), document[word]) for word in (ACCEPTED, WITHDRAWN) if word in document]
    for said, pairs in groups:
        for metric, keys in pairs.items():
            for key in keys:
                words += (_word([key, metric]), said)
    return Digest(tuple(words), {name: document[name] for name in _RECORD_PARTS if name in document})


def _word(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_word(word: str) -> Any:
    """Return what a word says."""
    return json.loads(word)
