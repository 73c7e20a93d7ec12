"""How often does the gate cry wolf on one machine, and what does it see? Measured, in parts, and evaluated from files.

    python docs/gate_protocol.py run FOLDER --lease monday --copies PYTHON_A PYTHON_B --processes 10 --minutes 9
    python docs/gate_protocol.py run FOLDER --lease monday --copies PYTHON_A PYTHON_B --processes 2 --planted
    python docs/gate_protocol.py evaluate FOLDER

`run` appends one small file for each fresh process to FOLDER: processes of two copies of one environment in the order
ABBA, or, planted, processes in which each benchmark also carries a slow-down of 1, 2 or 3 % in a Latin square. It can
be stopped at any time and goes on where the folder ends: on another day, in another lease. Nothing is saved into a
history.

`evaluate` needs no GPU. Each process is judged as a night against the others (leave one out): how many of these A/A
decisions lie above the 5 % limit, how many would have blocked, alone and in pairs, and how many slow-downs of 1.5 to
5 % that are added by arithmetic are found. The planted processes say whether the clock sees a slow-down at its size.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseproof import gpu, machine
from fuseproof.gate.settings import GateSettings
from fuseproof.history import History
from fuseproof.order import Order
from fuseproof.processes import run_process
from fuseproof.verdicts.controls import count_unchanged
from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.nightly import Evidence, confirm_plan, judge, screen
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.screening import Screening
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

ORDER_OF_COPIES = "ABBA"
PLANTED_LN = tuple(math.log1p(percent / 100) for percent in (1, 2, 3))
ADDED_PERCENT = (1.5, 2.0, 3.0, 5.0)
SHARE = 5  # one benchmark in five is slowed at a time: with half of them it would be a shift of the suite
PAIRS = 5  # processes, or pairs of them, that confirm at least
LEAST = 16  # the night, five pairs that confirm it, and a history of five
CLOSE_LN = 0.003
TIMES = ("device_time_ns", "iteration_time_ns")
LIMIT_S = 600.0


@dataclass(frozen=True)
class Process:
    """What one fresh process measured.

    Attributes:
        copy: "A" or "B".
        lease: on which loan of a machine, or day.
        night: its values, as the gate reads them.
        planted: by key: a slow-down's size and what was seen of it, logarithms.
        seconds: how long it took.

    """

    copy: str
    lease: str
    night: Night
    planted: Mapping[str, tuple[float, float]]
    seconds: float

    @property
    def values(self) -> Values:
        """Its values."""
        return self.night.screening[0]


# --- measuring --------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> None:
    """Append processes to the folder until there are enough, or the time is over."""
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    folder: Path = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    kind = "planted" if arguments.planted else "aa"
    end_s = time.monotonic() + 60 * arguments.minutes
    longest_s = 0.0
    for _ in range(arguments.processes):
        if longest_s and time.monotonic() + longest_s > end_s:
            print(f"stopped: another process would not end within {arguments.minutes:g} minutes")
            break
        number = len(list(folder.glob(f"{kind}-*.json")))
        copy = ORDER_OF_COPIES[number % len(ORDER_OF_COPIES)]
        plants = _latin_square(folder, number) if arguments.planted else {}
        begun_s = time.monotonic()
        document = _measure(arguments, arguments.copies[copy == "B"], plants)
        seconds = time.monotonic() - begun_s
        longest_s = max(longest_s, seconds)
        _write(folder / f"{kind}-{number:04d}.json", _reduced(document, copy, arguments.lease, seconds))
        print(f"{kind} process {number} (copy {copy}): {seconds:.1f} s", flush=True)


def _latin_square(folder: Path, number: int) -> dict[str, float]:
    """Return a size for each benchmark that has been measured; three planted processes give each of them each size."""
    keys = sorted({pair.key for process in read(folder, "aa") for pair in process.values})
    if not keys:
        raise SystemExit("planted processes take the keys of those before: run without --planted first")
    return {key: PLANTED_LN[(place + number) % len(PLANTED_LN)] for place, key in enumerate(keys)}


def _measure(arguments: argparse.Namespace, python: str, plants: Mapping[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as storage:
        order = Order(Path(storage), tuple(arguments.paths), plants)
        command = [python, "-m", "pytest", "-n", "0", *(["-m", arguments.select] if arguments.select else [])]
        status, output = run_process(command, Path.cwd(), order.given(), LIMIT_S)
        runs, _ = History(Path(storage)).newest(machine.identify().slug)
        if status not in (0, 1) or not runs:
            raise SystemExit(f"{output[-3000:]}\nthe process ended with status {status} and measured nothing")
        document: dict[str, Any] = runs[0].document
        return document


def _reduced(document: Mapping[str, Any], copy: str, lease: str, seconds: float) -> dict[str, Any]:
    """Return what the evaluation needs of a run: some kilobytes."""
    kept = ("key", "method", "metrics", "kernels_hash", "invalid", "gpu", "plant")
    records = [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
    return {
        "process": {"copy": copy, "lease": lease, "seconds": round(seconds, 1)},
        "datetime": document["datetime"],
        "fuseproof": {name: document["fuseproof"].get(name) for name in ("cpu_model", "software", "power_limit_w")},
        "benchmarks": [
            {"extra_info": {"fuseproof": {name: record[name] for name in kept if name in record}}} for record in records
        ],
    }


def _write(path: Path, document: Mapping[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
    os.link(temporary, path)  # never replaces what another lease has written
    temporary.unlink()


# --- evaluating -------------------------------------------------------------------------------------------------------


def read(folder: Path, kind: str) -> list[Process]:
    """Return the folder's processes of a kind, "aa" or "planted", in the order in which they ran."""
    found = []
    for path in sorted(folder.glob(f"{kind}-*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        records = [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
        planted = {
            record["key"]: (arms["size_ln"], math.log(arms["planted_ns"] / arms["base_ns"]))
            for record in records
            if (arms := record.get("plant"))
        }
        about = document["process"]
        found.append(Process(about["copy"], about["lease"], night_of(path.stem, [document]), planted, about["seconds"]))
    return found


@dataclass(frozen=True)
class Left:
    """One process judged as a night against the others.

    Attributes:
        screening: what it says itself.
        verdicts: with its neighbours as confirming processes.

    """

    screening: Screening
    verdicts: list[Verdict]


def leave_out(processes: Sequence[Process], index: int, *, paired: bool, added: Mapping[str, float]) -> Left:
    """Judge one process by the others; the ones after it confirm it, and are no part of its history.

    Args:
        processes: all of them.
        index: which one is the night.
        paired: whether copy A beside copy B confirms.
        added: slow-downs by key, logarithms, added to the night and to what confirms it.

    """
    after = [processes[(index + step) % len(processes)] for step in range(1, len(processes))]
    arms = {copy: [process for process in after if process.copy == copy] for copy in "AB"}
    tonight = arms["B"] if paired else after
    used = {id(each) for each in (arms["A"][:PAIRS] + arms["B"][:PAIRS] if paired else after[:PAIRS])}
    history = [process.night for process in processes if id(process) not in used and process is not processes[index]]
    night = replace(processes[index].night, screening=[_slowed(processes[index].values, added)])
    screening = screen(history, night, rules=GateSettings().rules, paired=paired, full_selection=False)
    evidence = Evidence()
    while confirm_plan(screening, evidence):
        done = len(evidence.tonight)
        if done >= min(len(tonight), len(arms["A"])):
            break
        evidence = evidence.add(_slowed(tonight[done].values, added), arms["A"][done].values if paired else None)
    return Left(screening, judge(screening, evidence))


def _slowed(values: Values, added: Mapping[str, float]) -> Values:
    return {
        pair: value * math.exp(added[pair.key]) if pair.metric in TIMES and pair.key in added else value
        for pair, value in values.items()
    }


def _blocks(verdicts: Sequence[Verdict]) -> list[Pair]:
    """Return the pairs that a night would have blocked or held."""
    found: list[Pair] = []
    for verdict in verdicts:
        if verdict.outcome is Outcome.REGRESSED or Reason.HELD in verdict.reasons:
            found += verdict.members or [verdict.pair]
    return found


def evaluate(folder: Path) -> Iterator[str]:
    """Yield the lines of the report."""
    processes = read(folder, "aa")
    if len(processes) < LEAST:
        yield f"{len(processes)} A/A processes: fewer than {LEAST} judge nothing"
        return
    leases = sorted({process.lease for process in processes})
    keys = sorted({pair.key for process in processes for pair in process.values})
    seconds = statistics.median(process.seconds for process in processes)
    yield f"{len(processes)} A/A processes of {len(keys)} benchmarks in {len(leases)} leases, {seconds:.1f} s each"
    yield from _noise_lines(processes)
    for paired in (False, True):
        yield from _judged_lines(processes, keys, paired)
    yield from _planted_lines(read(folder, "planted"))


def _noise_lines(processes: Sequence[Process]) -> Iterator[str]:
    """Between processes of one lease, between leases, between the copies: medians over the benchmarks."""
    pairs = sorted({pair for process in processes for pair in process.values if pair.metric in TIMES})
    within, between, copies = [], [], []
    for pair in pairs:
        logs = {process.night.name: math.log(process.values[pair]) for process in processes if pair in process.values}
        groups: dict[str, list[float]] = {}
        arms: dict[str, list[float]] = {"A": [], "B": []}
        for process in processes:
            if process.night.name in logs:
                groups.setdefault(process.lease, []).append(logs[process.night.name])
                arms[process.copy].append(logs[process.night.name])
        spreads = [statistics.variance(group) for group in groups.values() if len(group) > 1]
        if spreads:
            within.append(math.sqrt(statistics.fmean(spreads)))
        if len(groups) > 1:
            between.append(statistics.stdev([statistics.fmean(group) for group in groups.values()]))
        if all(arms.values()):
            copies.append(statistics.median(arms["B"]) - statistics.median(arms["A"]))
    yield f"sd between processes of one lease: {_spread(within)}"
    yield f"sd between the means of leases: {_spread(between)}"
    yield f"copy B over copy A: {_spread(copies)}"


def _spread(logs: Sequence[float]) -> str:
    if not logs:
        return "not known"
    low, middle, high = min(logs), statistics.median(logs), max(logs)
    return f"median {middle:.3%}, from {low:.3%} to {high:.3%} over {len(logs)} times"


def _judged_lines(processes: Sequence[Process], keys: Sequence[str], paired: bool) -> Iterator[str]:
    way = "in pairs" if paired else "alone"
    decisions = above = gateable = nights = 0
    wrong: list[Pair] = []
    for index in range(len(processes)):
        left = leave_out(processes, index, paired=paired, added={})
        blocked = _blocks(left.verdicts)
        wrong += blocked
        nights += bool(blocked)
        for each in left.screening.screened:
            if each.judged.any():
                count = count_unchanged(each, left.verdicts)
                decisions, above = decisions + count.decisions, above + count.above
                gateable += int((each.judged & (each.limits.mde <= 2 * each.family.tolerance_ln)).sum())
    if not paired:
        yield f"A/A decisions above the one-sided 5 % limit: {above} of {decisions} ({above / decisions:.1%})"
    yield (
        f"{way}: blocked or held {len(wrong)} times in {nights} of {len(processes)} A/A nights"
        + (f" ({', '.join(sorted({str(pair) for pair in wrong})[:5])})" if wrong else "")
        + f"; gateable {gateable / decisions:.0%}"
    )
    for percent in ADDED_PERCENT:
        found = asked = 0
        for index in range(len(processes)):
            slowed = {
                key: math.log1p(percent / 100) for place, key in enumerate(keys) if place % SHARE == index % SHARE
            }
            left = leave_out(processes, index, paired=paired, added=slowed)
            judged = {pair for each in left.screening.screened for pair in _judged(each, slowed)}
            found += len(judged & set(_blocks(left.verdicts)))
            asked += len(judged)
        yield f"{way}: +{percent:g} % added: blocked or held {found} of {asked} ({found / max(1, asked):.1%})"


def _judged(each: Any, slowed: Mapping[str, float]) -> Iterator[Pair]:
    for pair, judged in zip(each.family.pairs, each.judged, strict=True):
        if judged and pair.key in slowed:
            yield pair


def _planted_lines(processes: Sequence[Process]) -> Iterator[str]:
    """What the clock saw of slow-downs that the device spun for: the difference from their size."""
    by_size: dict[float, list[float]] = {}
    worst: dict[str, float] = {}
    for process in processes:
        for key, (size_ln, seen_ln) in process.planted.items():
            by_size.setdefault(size_ln, []).append(seen_ln - size_ln)
            worst[key] = max(worst.get(key, 0.0), abs(seen_ln - size_ln))
    for size_ln, errors in sorted(by_size.items()):
        close = sum(abs(error) <= CLOSE_LN for error in errors)
        yield f"planted {math.expm1(size_ln):+.0%}: error {_spread(errors)}; within 0.3 %: {close} of {len(errors)}"
    for key, error in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        yield f"planted, furthest off: {key} {error:.2%}"


def main() -> None:
    """Run or evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="append processes to a folder")
    runs.add_argument("folder", type=Path)
    runs.add_argument("--lease", required=True, help="a name for this loan of the machine, or day")
    runs.add_argument("--copies", nargs=2, metavar="PYTHON", default=[sys.executable] * 2, help="interpreters A and B")
    runs.add_argument("--processes", type=int, default=10)
    runs.add_argument("--minutes", type=float, default=60.0, help="start none that would not end by then")
    runs.add_argument(
        "--planted", action="store_true", help="each benchmark with a slow-down of 1, 2 or 3 %% beside it"
    )
    runs.add_argument("--select", default="fuseproof_gate", help="mark of the benchmarks; empty for all")
    runs.add_argument("--paths", nargs="+", default=["tests/e2e", "tests/kernels"])
    evaluates = commands.add_parser("evaluate", help="report on a folder")
    evaluates.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if hasattr(arguments, "lease"):
        run(arguments)
    else:
        for line in evaluate(arguments.folder):
            print(line)


if __name__ == "__main__":
    main()
