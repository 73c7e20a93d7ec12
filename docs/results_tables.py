"""Print the tables of a results page from the history: ``python docs/results_tables.py nvidia-h200 b9d0ea68``.

Medians over the processes of one night; the spread is their sample standard deviation over their mean.
"""

import statistics
import sys
from pathlib import Path

from fuseproof.history import History

ROOT = Path(__file__).resolve().parent.parent / "bench_history"


def spread(values: list[float]) -> str:
    """Return the standard deviation between processes in per cent of the mean."""
    return f"{statistics.stdev(values) / statistics.mean(values):.2%}" if len(values) > 1 else "-"


def main(machine: str, night: str) -> None:
    """Print ladder, kernels and agreement with the profiler."""
    history = History(ROOT)
    files = history.nights(machine).get(night)
    if files is None:
        sys.exit(f"{machine} has no night {night!r}; it has {', '.join(history.nights(machine)) or 'none'}")
    runs = [history.load(file).document for file in files]
    records: dict[str, list[dict]] = {}
    for run in runs:
        for benchmark in run["benchmarks"]:
            record = benchmark["extra_info"]["fuseproof"]
            record["constant_ns"] = run["fuseproof"]["interval_constant_ns"]
            records.setdefault(record["key"], []).append(record)
    print(f"{len(runs)} processes, {len(records)} benchmarks, night {night}\n")
    ladder = {key: each for key, each in records.items() if key.startswith("iteration/")}
    for size, kernels in sorted({(each[0]["about"]["size"], each[0]["about"]["kernels"]) for each in ladder.values()}):
        print_ladder(size, kernels, ladder)
    if kernels := {key: each for key, each in records.items() if key not in ladder}:
        print_kernels(kernels)


def metric(records: list[dict], name: str) -> list[float]:
    """Return a metric of each process that has it."""
    return [record["metrics"][name] for record in records if name in record["metrics"]]


def print_ladder(size: str, kernels: str, ladder: dict[str, list[dict]]) -> None:
    """Print the stages of one size and kernel set."""
    rows = [
        each for each in ladder.values() if (each[0]["about"]["size"], each[0]["about"]["kernels"]) == (size, kernels)
    ]
    medians = {each[0]["about"]["stage"]: statistics.median(metric(each, "iteration_time_ns")) for each in rows}
    print(f"**{size}, {kernels} kernels, {rows[0][0]['about']['tokens']} tokens an iteration**\n")
    print("| stage | iteration ms | between processes | device ms | peak MiB | gain | vs stage 1 |")
    print("|---|---|---|---|---|---|---|")
    for each in sorted(rows, key=lambda each: each[0]["about"]["stage"]):
        about, times = each[0]["about"], metric(each, "iteration_time_ns")
        device = metric(each, "device_time_ns")
        base = medians.get(about["base"])
        now = statistics.median(times)
        first = medians.get("1_adam_fp32")
        print(
            f"| `{about['stage']}` | {now / 1e6:.2f} | {spread(times)} "
            f"| {f'{statistics.median(device) / 1e6:.2f}' if device else '-'} "
            f"| {metric(each, 'peak_bytes')[0] / 2**20:,.1f} "
            f"| {f'{base / now:.2f}x' if base else '-'} | {f'{first / now:.2f}x' if first else '-'} |"
        )
    print()


def print_kernels(kernels: dict[str, list[dict]]) -> None:
    """Print device time, spread, rate, host time and agreement with the profiler of each kernel benchmark."""
    print(
        "| key | device us | between processes | GB/s | of copy | launches | host us | clock - span | profiler slows |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for key, each in kernels.items():
        device, host = metric(each, "device_time_ns"), metric(each, "host_time_ns")
        gaps = [
            (p["interval_ns"] - record["constant_ns"] - p["span_ns"]) / 1e3
            for record in each
            if "interval_ns" in (p := record["profiler"])
        ]
        slower = [
            record["profiler"]["interval_ns"] / record["metrics"]["device_time_ns"] - 1
            for record in each
            if "interval_ns" in record["profiler"]
        ]
        rates = each[0]["rates"]
        print(
            f"| `{key}` | {statistics.median(device) / 1e3:.2f} | {spread(device)} | {rates['gb_per_s']:.0f} "
            f"| {rates['of_copy_ceiling']:.1%} | {each[0]['metrics']['launches']} "
            f"| {f'{statistics.median(host) / 1e3:.0f}' if host else '-'} "
            f"| {f'{max(gaps, key=abs):+.2f} us' if gaps else '-'} "
            f"| {f'{statistics.median(slower):+.1%}' if slower else '-'} |"
        )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(
            f"usage: python {sys.argv[0]} MACHINE NIGHT (a folder in bench_history; the third part of a file's name)"
        )
    main(*sys.argv[1:])
