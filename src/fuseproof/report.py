"""Benchmark objects to text: the ladder table and the closing lines. Imports neither torch nor pytest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fuseproof.verdicts.verdict import in_percent

__all__ = ["invalid_lines", "kernel_table", "ladder_tables"]

Benchmark = Mapping[str, Any]

_HEADER = (
    "stage",
    "iteration ms",
    "spread",
    "device ms",
    "tokens/s",
    "peak MiB",
    "gain",
    "vs stage 1",
    "of matmul",
    "compared",
    "change",
    "peak change",
)
_KERNEL_HEADER = (
    "kernel",
    "device us",
    "spread",
    "host us",
    "peak MiB",
    "launches",
    "compared",
    "change",
    "peak change",
)
_NOISY = 0.2  # interquartile range over median: on a machine this busy a change of some per cent says nothing


def _record(benchmark: Benchmark) -> Mapping[str, Any]:
    record: Mapping[str, Any] = benchmark.get("extra_info", {}).get("fuseproof", {})
    return record


def _number(value: float | None, form: str, unit: str = "") -> str:
    return "-" if value is None else format(value, form) + unit


def ladder_tables(benchmarks: Sequence[Benchmark], compared: Mapping[str, Benchmark]) -> list[str]:
    """Return the ladder's tables as lines, one table per size and kernel set; empty when no stage was measured.

    Args:
        benchmarks: this run's benchmark objects.
        compared: a stored run's comparable benchmark objects by key.

    """
    tables: dict[tuple[str, str], list[Benchmark]] = {}
    for benchmark in benchmarks:
        about = _record(benchmark).get("about", {})
        if "stage" in about:
            tables.setdefault((about["size"], about["kernels"]), []).append(benchmark)
    lines: list[str] = []
    for (size, kernels), rows in tables.items():
        rows.sort(key=lambda row: _record(row)["about"]["stage"])
        lines += ["", f"training ladder: {size}, {kernels} kernels, {_tokens(rows[0])} tokens an iteration"]
        lines += _aligned([_HEADER, *_ladder_rows(rows, compared)])
        lines += _total(rows)
    return lines


def _tokens(row: Benchmark) -> int:
    return int(_record(row)["about"]["tokens"])


def _iteration_ns(row: Benchmark) -> float:
    return float(_record(row)["metrics"]["iteration_time_ns"])


def _first_stage(rows: Sequence[Benchmark]) -> Benchmark | None:
    return next((row for row in rows if _record(row)["about"]["stage"].startswith("1_")), None)


def _ladder_rows(rows: Sequence[Benchmark], compared: Mapping[str, Benchmark]) -> list[tuple[str, ...]]:
    first = _first_stage(rows)
    table: list[tuple[str, ...]] = []
    times_ns = {_record(row)["about"]["stage"]: _iteration_ns(row) for row in rows}
    for row in rows:
        record = _record(row)
        metrics = record["metrics"]
        time_ns = _iteration_ns(row)
        device_ns, peak = metrics.get("device_time_ns"), metrics.get("peak_bytes")
        base_ns = times_ns.get(record["about"]["base"])
        old = compared.get(record["key"])
        old_ns = None if old is None else _iteration_ns(old)
        table.append(
            (
                record["about"]["stage"] + _mark(row),
                f"{time_ns / 1e6:.2f}",
                f"{_spread(row):.1%}",
                _number(None if device_ns is None else device_ns / 1e6, ".2f"),
                f"{_tokens(row) / time_ns * 1e9:,.0f}",
                _number(None if peak is None else peak / 2**20, ",.1f"),
                _number(None if base_ns is None else base_ns / time_ns, ".2f", "x"),
                _number(None if first is None else _iteration_ns(first) / time_ns, ".2f", "x"),
                _number(record["rates"].get("of_matmul_ceiling"), ".1%"),
                _number(None if old_ns is None else old_ns / 1e6, ".2f"),
                _change(old, row, "iteration_time_ns"),
                _change(old, row, "peak_bytes"),
            )
        )
    return table


def _spread(row: Benchmark) -> float:
    stats = row["stats"]
    return float((stats["q3"] - stats["q1"]) / stats["median"])


def _mark(row: Benchmark) -> str:
    if _record(row)["invalid"]:
        return " INVALID"
    return " noisy" if _spread(row) > _NOISY else ""


def _change(old: Benchmark | None, new: Benchmark, metric: str) -> str:
    """Return by how much a metric has changed; "-" where one of the two lacks it."""
    pair = [_record(each)["metrics"].get(metric) for each in (old or {}, new)] if old else []
    return in_percent(math.log(pair[1] / pair[0])) if pair and all(pair) else "-"


def kernel_table(benchmarks: Sequence[Benchmark], compared: Mapping[str, Benchmark]) -> list[str]:
    """Return one line per kernel benchmark: what pytest-benchmark's tables lack; empty when none was measured.

    Args:
        benchmarks: this run's benchmark objects.
        compared: a stored run's comparable benchmark objects by key.

    """
    rows = []
    for benchmark in benchmarks:
        record = _record(benchmark)
        if "metrics" not in record or "stage" in record.get("about", {}):
            continue
        metrics, old = record["metrics"], compared.get(record["key"])
        device_ns, host_ns, peak = metrics.get("device_time_ns"), metrics.get("host_time_ns"), metrics.get("peak_bytes")
        old_ns = None if old is None else _record(old)["metrics"].get("device_time_ns")
        rows.append(
            (
                record["key"] + _mark(benchmark),
                _number(None if device_ns is None else device_ns / 1e3, ",.2f"),
                f"{_spread(benchmark):.1%}",
                _number(None if host_ns is None else host_ns / 1e3, ",.0f"),
                _number(None if peak is None else peak / 2**20, ",.1f"),
                _number(metrics.get("launches"), ",d"),
                _number(None if old_ns is None else old_ns / 1e3, ",.2f"),
                _change(old, benchmark, "device_time_ns"),
                _change(old, benchmark, "peak_bytes"),
            )
        )
    return ["", "kernels", *_aligned([_KERNEL_HEADER, *rows])] if rows else []


def _total(rows: Sequence[Benchmark]) -> list[str]:
    """Compare the last stage of the ladder itself with its first; what lies beyond stage 4 has no total."""
    first = _first_stage(rows)
    last = [row for row in rows if _record(row)["about"]["stage"] < "5"][-1:]
    if first is None or not last or last[0] is first:
        return []
    pair = (first, last[0])
    speed = _iteration_ns(pair[0]) / _iteration_ns(pair[1])
    peaks = [_record(row)["metrics"].get("peak_bytes") for row in pair]
    memory = f", peak memory {peaks[1] / peaks[0]:.2f} times" if all(peaks) else ""
    names = [_record(row)["about"]["stage"] for row in pair]
    noisy = " (noisy)" if any(_spread(row) > _NOISY for row in pair) else ""
    return [f"total: {names[1]} is {speed:.2f} times as fast as {names[0]}{memory}{noisy}"]


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in table
    ]


def invalid_lines(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Return one line per benchmark whose result must not be judged, with the reasons."""
    records = [_record(benchmark) for benchmark in benchmarks]
    return [f"INVALID {each['key']}: {'; '.join(each['invalid'])}" for each in records if each.get("invalid")]


def compared_line(compared: int, measured: int, new: Sequence[str]) -> str:
    """Return how many benchmarks have a stored one to compare with, and which have none."""
    line = f"compared {compared} of {measured} benchmarks"
    if not new:
        return line
    shown = ", ".join(new[:5]) + (f" and {len(new) - 5} more" if len(new) > 5 else "")
    return f"{line}; in no stored run, or by another method or on another CPU model: {shown}"
