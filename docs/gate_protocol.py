"""How often does the gate cry wolf on one machine, and what does it see? Measured, in parts, and evaluated from files.

    python docs/gate_protocol.py run FOLDER --visit monday --copies PYTHON_A PYTHON_B --processes 10 --minutes 9
    python docs/gate_protocol.py run FOLDER --visit monday --processes 3 --planted --gpus 0 1
    python docs/gate_protocol.py import BANK FOLDER --visit monday
    python docs/gate_protocol.py evaluate FOLDER [FILE.jsonl.gz ...]
    python docs/gate_protocol.py pack FOLDER FILE.jsonl.gz

`run` adds one small file for each fresh process to FOLDER: processes of two copies of one environment in the order
ABBA, or, planted, processes in which each benchmark also carries a slow-down of 1, 2 or 3 % in a Latin square. With
several GPUs each has a process at a time and an order of its own. It can be stopped at any time and goes on where the
folder ends: on another day, on another visit. Nothing is saved into a history.

`import` adds the processes of a folder of `fuseproof upgrade` between two copies of one environment: old is copy A, new
is copy B. So the same processes show that an upgrade which changes nothing passes, and how often the gate cries wolf.

`evaluate` needs no GPU, and reads folders and what `pack` has made of them. Each process is judged as a night against
the others (leave one out): how many of these A/A decisions lie above the 5 % limit, how many would have blocked, alone
and in pairs, and how many slow-downs of 1.5 to 5 % that are added by arithmetic are found. The planted processes say
whether the clock sees a slow-down at its size.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseproof import apex_probe, gpu, machine
from fuseproof.gate.settings import GateSettings
from fuseproof.history import History
from fuseproof.order import Order
from fuseproof.processes import Terminated, run_process, terminable
from fuseproof.statuses import INTERRUPTED
from fuseproof.upgrade.lanes import Lane, shares_of_the_cores
from fuseproof.verdicts.controls import count_unchanged
from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.nightly import Evidence, confirm_plan, judge, screen
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.screening import Screened, Screening
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

ORDER_OF_COPIES = "ABBA"
PLANTED_LN = tuple(math.log1p(percent / 100) for percent in (1, 2, 3))
ADDED_PERCENT = (1.5, 2.0, 3.0, 5.0)
SHARE = 5  # one benchmark in five is slowed at a time: with half of them it would be a shift of the suite
PAIRS = 5  # processes, or pairs of them, that confirm at least
LEAST = 16  # the night, five pairs that confirm it, and a history of five
CLOSE_LN = 0.003
SHORT_NS = 20_000.0
TIMES = ("device_time_ns", "iteration_time_ns")
LIMIT_S = 600.0
ARMS = {"old": "A", "new": "B"}
VISIT = re.compile(r"[A-Za-z0-9_.]+")
WAYS = {False: "alone", True: "in pairs"}
VOUCHED: dict[str, dict[str, str]] = {}  # by interpreter: what spares its later processes a look at Apex
EXPECTED = 0.05  # of the decisions of unchanged nights, above a one-sided 5 % limit


@dataclass(frozen=True)
class Process:
    """What one fresh process measured.

    Attributes:
        copy: "A" or "B".
        visit: on which visit to a machine, or day.
        gpu: on which of its GPUs.
        ended: when, as an ISO date.
        night: its values, as the gate reads them.
        planted: by key: a slow-down's size and what was seen of it, logarithms.
        seconds: how long it took.

    """

    copy: str
    visit: str
    gpu: str
    ended: str
    night: Night
    planted: Mapping[str, tuple[float, float]]
    seconds: float

    @property
    def values(self) -> Values:
        """Its values."""
        return self.night.screening[0]


# --- measuring --------------------------------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> int:
    """Add processes to the folder until there are enough, or the time is over."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    if len(arguments.gpus) > 1:
        return _side_by_side(arguments.gpus)
    if arguments.gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = arguments.gpus[0]
    kind, board = "planted" if arguments.planted else "aa", arguments.gpus[0] if arguments.gpus else "0"
    stem = f"{kind}-{arguments.visit}-gpu{board}-"
    end_s = time.monotonic() + 60 * arguments.minutes
    longest_s = 0.0
    for _ in range(arguments.processes):
        if longest_s and time.monotonic() + longest_s > end_s:
            print(f"stopped: another process would not end within {arguments.minutes:g} minutes")
            break
        number = len(list(arguments.folder.glob(f"{stem}*.json")))
        copy = ORDER_OF_COPIES[number % len(ORDER_OF_COPIES)]
        plants = _latin_square(arguments.folder, number) if arguments.planted else {}
        begun_s = time.monotonic()
        document = _measure(arguments, arguments.copies[copy == "B"], plants)
        seconds = time.monotonic() - begun_s
        longest_s = max(longest_s, seconds)
        about = {"copy": copy, "visit": arguments.visit, "gpu": board, "seconds": round(seconds, 1)}
        _write(arguments.folder / f"{stem}{number:04d}.json", _reduced(document, about))
        print(f"GPU {board}: {kind} process {number} (copy {copy}): {seconds:.1f} s", flush=True)
    return 0


def _side_by_side(gpus: Sequence[str]) -> int:
    """Start this command once for each GPU, on its share of the cores, and wait for all; return the first failure."""
    at = sys.argv.index("--gpus")
    rest = [*sys.argv[:at], *sys.argv[at + 1 + len(gpus) :]]
    workers = []
    for number, (each, cores) in enumerate(zip(gpus, shares_of_the_cores(len(gpus)), strict=True)):
        Lane(number, cores=cores).pin()  # what starts next inherits it
        workers.append(subprocess.Popen([sys.executable, *rest, "--gpus", each]))
    try:
        with terminable():
            statuses = [worker.wait() for worker in workers]
    except KeyboardInterrupt as interrupt:
        for worker in workers:
            if isinstance(interrupt, Terminated):  # Ctrl-C has reached them all
                worker.terminate()
            worker.wait()
        raise
    return next((status for status in statuses if status), 0)


def _latin_square(folder: Path, number: int) -> dict[str, float]:
    """Return a size for each benchmark that has been measured; three planted processes give each of them each size."""
    keys = sorted({pair.key for process in read([folder], "aa") for pair in process.values})
    if not keys:
        raise SystemExit("planted processes take the keys of those before: run without --planted first")
    return {key: PLANTED_LN[(place + number) % len(PLANTED_LN)] for place, key in enumerate(keys)}


def _measure(arguments: argparse.Namespace, python: str, plants: Mapping[str, float]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as storage:
        order = Order(Path(storage), tuple(arguments.paths), plants)
        command = [python, "-m", "pytest", "-n", "0", *(["-m", arguments.select] if arguments.select else [])]
        status, output = run_process(command, Path.cwd(), {**VOUCHED.get(python, {}), **order.given()}, LIMIT_S)
        runs, _ = History(Path(storage)).newest(machine.identify().slug)
        if status not in (0, 1) or not runs:
            raise SystemExit(f"{output[-3000:]}\nthe process ended with status {status} and measured nothing")
        document: dict[str, Any] = runs[0].document
        VOUCHED[python] = apex_probe.vouched_by(document)
        return document


def take(arguments: argparse.Namespace) -> int:
    """Add the processes of a folder of `fuseproof upgrade`, reduced; those that are there already stay as they are."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    documents = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(arguments.bank.glob("*-*.json"))}
    measured = {path: document for path, document in documents.items() if document.get("benchmarks")}
    if not measured:
        raise SystemExit(f"{arguments.bank}: no process of `fuseproof upgrade` that has measured anything")
    _refuse_two_environments(measured)
    added = 0
    for document in measured.values():
        block = document["upgrade"]
        about = {
            "copy": ARMS[block["arm"]],
            "visit": arguments.visit,
            "gpu": str(block["gpu"]),
            "seconds": round(block["seconds"], 1),
        }
        name = f"aa-{arguments.visit}-gpu{block['gpu']}-pair{block['pair']:04d}{about['copy']}.json"
        added += _write(arguments.folder / name, _reduced(document, about))
    print(f"{added} of {len(measured)} processes added to {arguments.folder}, the others were there")
    return 0


def _refuse_two_environments(documents: Mapping[Path, Mapping[str, Any]]) -> None:
    """An upgrade that changes anything says nothing of false alarms."""
    paths = list(documents)
    software = {path: document["fuseproof"]["software"] for path, document in documents.items()}
    other = next((path for path in paths if software[path] != software[paths[0]]), None)
    if other is not None:
        here, there = software[paths[0]], software[other]
        part = next(name for name in sorted({*here, *there}) if here.get(name) != there.get(name))
        raise SystemExit(
            f"{other.name} has {part} {there.get(part)} and {paths[0].name} has {here.get(part)}: "
            "only two copies of one environment can be imported"
        )


def _reduced(document: Mapping[str, Any], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the evaluation needs of a run: some kilobytes."""
    kept = ("key", "method", "metrics", "kernels_hash", "invalid", "gpu", "plant")
    records = [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
    block = document["fuseproof"]
    return {
        "process": dict(about),
        "datetime": document["datetime"],
        "fuseproof": {
            name: block[name] for name in ("board", "cpu_model", "software", "power_limit_w") if name in block
        },
        "benchmarks": [
            {"extra_info": {"fuseproof": {name: record[name] for name in kept if name in record}}} for record in records
        ],
    }


def _write(path: Path, document: Mapping[str, Any]) -> bool:
    """Write a new file, whole or not at all; return False where the same is there already."""
    text = json.dumps(document, separators=(",", ":"))
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    try:
        os.link(temporary, path)  # never replaces what another process has written
    except FileExistsError:
        if path.read_text(encoding="utf-8") != text:
            raise SystemExit(f"{path} is another process of this name: give another --visit") from None
        return False
    finally:
        temporary.unlink()
    return True


# --- evaluating -------------------------------------------------------------------------------------------------------


def read(folders: Sequence[Path], kind: str, *, boards: bool = False, without: str = "") -> list[Process]:
    """Return the processes of a kind, "aa" or "planted", in folders and packed ones: GPU by GPU, as they ran there.

    With `boards` those that do not say which GPU they ran on are told apart by visit and number. Benchmarks with
    `without` in their keys are left out.
    """
    found = []
    for name, document in itertools.chain.from_iterable(map(_documents, folders)):
        if not name.startswith(f"{kind}-"):
            continue
        if without:
            kept = [each for each in document["benchmarks"] if without not in each["extra_info"]["fuseproof"]["key"]]
            document = {**document, "benchmarks": kept}
        records = [benchmark["extra_info"]["fuseproof"] for benchmark in document["benchmarks"]]
        planted = {
            record["key"]: (arms["size_ln"], math.log(arms["planted_ns"] / arms["base_ns"]))
            for record in records
            if (arms := record.get("plant"))
        }
        about, night = document["process"], night_of(name, [document])
        if boards and not night.boards:
            night = replace(night, boards=frozenset({f"{about['visit']} {about['gpu']}"}))
        where = about["copy"], about["visit"], about["gpu"]
        found.append(Process(*where, document["datetime"], night, planted, about["seconds"]))
    begun = {visit: min(each.ended for each in found if each.visit == visit) for visit in {p.visit for p in found}}
    return sorted(found, key=lambda process: (begun[process.visit], process.visit, process.gpu, process.ended))


def _documents(place: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and documents of a folder's files, or of a packed one."""
    if place.is_dir():
        for path in sorted(place.glob("*-*.json")):
            yield path.stem, json.loads(path.read_text(encoding="utf-8"))
        return
    with gzip.open(place, "rt", encoding="utf-8") as lines:
        for line in lines:
            name, document = json.loads(line)
            yield name, document


def pack(arguments: argparse.Namespace) -> int:
    """Write the files of a folder as lines of one: a tenth of the size, to be kept."""
    lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in _documents(arguments.folder)]
    with arguments.file.open("xb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
        packed.write("".join(lines).encode())
    print(f"{len(lines)} processes, {arguments.file.stat().st_size / 1e3:.0f} KB")
    return 0


@dataclass(frozen=True)
class Left:
    """One process judged as a night against the others.

    Attributes:
        screening: what it says itself.
        verdicts: with its neighbours as confirming processes.
        undecided: suspects that more processes would decide than there are.

    """

    screening: Screening
    verdicts: list[Verdict]
    undecided: frozenset[Pair]

    @property
    def judged(self) -> frozenset[Pair]:
        """What was judged."""
        return frozenset(pair for each in self.screening.screened for pair in _chosen(each, each.judged))

    @property
    def gateable(self) -> frozenset[Pair]:
        """Of what was judged, where a slow-down of twice the tolerance would be seen."""
        return self.judged & frozenset(
            pair
            for each in self.screening.screened
            for pair in _chosen(each, each.limits.mde <= 2 * each.family.tolerance_ln)
        )

    @property
    def regressed(self) -> frozenset[Pair]:
        """What the night would have blocked, and more processes would not decide otherwise."""
        return self._said(lambda verdict: verdict.outcome is Outcome.REGRESSED)

    @property
    def held(self) -> frozenset[Pair]:
        """What the night would have held for a second one."""
        return self._said(lambda verdict: Reason.HELD in verdict.reasons)

    def _said(self, chosen: Callable[[Verdict], bool]) -> frozenset[Pair]:
        verdicts = [verdict for verdict in self.verdicts if chosen(verdict)]
        return frozenset(p for verdict in verdicts for p in verdict.members or [verdict.pair]) - self.undecided


def _chosen(each: Screened, flags: Sequence[bool]) -> Iterator[Pair]:
    return (pair for pair, flag in zip(each.family.pairs, flags, strict=True) if flag)


def leave_out(processes: Sequence[Process], index: int, *, paired: bool, added: Mapping[str, float]) -> Left:
    """Judge one process by the others; the ones after it confirm it, and the first of them are no part of its history.

    Args:
        processes: all of them, GPU by GPU.
        index: which one is the night.
        paired: whether copy A beside copy B confirms.
        added: slow-downs by key, logarithms, added to the night and to what confirms it.

    """
    night = processes[index]
    confirming = _pairs_after(processes, index) if paired else [(each, each) for each in _after(processes, index)]
    used = {id(each) for pair in confirming[:PAIRS] for each in pair} | {id(night)}
    in_time = sorted(processes, key=lambda process: process.ended)  # as a history is: creep is about its newest nights
    history = [process.night for process in in_time if id(process) not in used]
    screening = screen(
        history,
        replace(night.night, screening=[_slowed(night.values, added)]),
        rules=GateSettings().rules,
        paired=paired,
        full_selection=False,
    )
    evidence, left = Evidence(), list(confirming)
    while (plan := confirm_plan(screening, evidence)) and left:
        trusted, tonight = left.pop(0)
        evidence = evidence.add(_slowed(tonight.values, added), trusted.values if paired else None)
    found = Left(screening, judge(screening, evidence), frozenset())
    return found if plan is None else replace(found, undecided=frozenset(plan.pairs) or found.judged)


def _after(processes: Sequence[Process], index: int) -> list[Process]:
    """Return the others that measured all that one of them did, the next ones first."""
    keys = processes[index].values.keys()
    after = [*processes[index + 1 :], *processes[:index]]
    return [process for process in after if keys <= process.values.keys()]


def _pairs_after(processes: Sequence[Process], index: int) -> list[tuple[Process, Process]]:
    """Return (copy A, copy B) of all that ran one after the other on one GPU, the next ones first."""
    whole = {id(process) for process in _after(processes, index)}
    pairs: list[tuple[int, Process, Process]] = []
    place = 0
    while place + 1 < len(processes):
        one, two = processes[place : place + 2]
        if (one.visit, one.gpu) != (two.visit, two.gpu) or one.copy == two.copy:
            place += 1
            continue
        if {id(one), id(two)} <= whole:
            pairs.append((place, *((one, two) if one.copy == "A" else (two, one))))
        place += 2
    return [pair[1:] for pair in sorted(pairs, key=lambda pair: (pair[0] < index, pair[0]))]


def _slowed(values: Values, added: Mapping[str, float]) -> Values:
    return {
        pair: value * math.exp(added[pair.key]) if pair.metric in TIMES and pair.key in added else value
        for pair, value in values.items()
    }


def evaluate(
    folders: Sequence[Path], *, boards: bool = False, without: str = "", added: Sequence[float] = ADDED_PERCENT
) -> Iterator[str]:
    """Yield the lines of the report; `boards` and `without` as for `read`, `added` slow-downs in percent."""
    processes = read(folders, "aa", boards=boards, without=without)
    if len(processes) < LEAST:
        yield f"{len(processes)} A/A processes: fewer than {LEAST} judge nothing"
        return
    visits = sorted({process.visit for process in processes})
    keys = sorted({pair.key for process in processes for pair in process.values})
    seconds = statistics.median(process.seconds for process in processes)
    yield f"{len(processes)} A/A processes of {len(keys)} benchmarks in {len(visits)} visits, {seconds:.1f} s each"
    yield from _noise_lines(processes)
    judged = {paired: [_judged(processes, index, paired) for index in range(len(processes))] for paired in WAYS}
    groups = list(dict.fromkeys((process.visit, process.gpu) for process in processes))
    for visit, board in groups:
        places = [place for place, each in enumerate(processes) if (each.visit, each.gpu) == (visit, board)]
        chosen = {paired: [found[place] for place in places] for paired, found in judged.items()}
        yield from _group_lines(f"visit {visit}, GPU {board}", chosen)
    yield from _group_lines("all", judged)
    for paired, way in WAYS.items():
        for percent in added:
            yield f"{way}: +{percent:g} % added: {_found(processes, keys, paired, percent)}"
    yield _pairs_line(processes)
    yield from _planted_lines(read(folders, "planted", without=without))


@dataclass(frozen=True)
class Judged:
    """What an unchanged process said as a night.

    Attributes:
        decisions: pairs of benchmark and time that were judged.
        above: how many of them lay above the one-sided 5 % limit.
        gateable: of how many twice the tolerance would be seen.
        regressed: what it would have blocked.
        held: what it would have held for a second night.
        undecided: suspects that more processes would decide than there are.

    """

    decisions: int
    above: int
    gateable: int
    regressed: frozenset[Pair]
    held: frozenset[Pair]
    undecided: int


def _judged(processes: Sequence[Process], index: int, paired: bool) -> Judged:
    left = leave_out(processes, index, paired=paired, added={})
    counts = [count_unchanged(each, left.verdicts) for each in left.screening.screened]
    return Judged(
        sum(count.decisions for count in counts),
        sum(count.above for count in counts),
        len(left.gateable),
        left.regressed,
        left.held,
        len(left.undecided),
    )


def _group_lines(name: str, judged: Mapping[bool, Sequence[Judged]]) -> Iterator[str]:
    """What some processes said, alone and in pairs: the shares, and all that would have been blocked."""
    nights = judged[False]
    decisions, above = sum(night.decisions for night in nights), sum(night.above for night in nights)
    share, error = above / max(1, decisions), _share_error(nights)
    yield (
        f"{name}: {len(nights)} processes, {decisions} decisions, {above} above the 5 % limit "
        f"({share:.1%}; expected {EXPECTED:.1%}, from process to process +- {error:.1%})"
    )
    for paired, way in WAYS.items():
        regressed = [str(pair) for night in judged[paired] for pair in night.regressed]
        held = [str(pair) for night in judged[paired] for pair in night.held]
        gateable = sum(night.gateable for night in judged[paired]) / max(1, decisions)
        undecided = sum(night.undecided for night in judged[paired])
        yield (
            f"{name}: {way}: {len(regressed)} REGRESSED{_named(regressed)}, {len(held)} HELD{_named(held)}; "
            f"{undecided} suspects not decided for want of processes; gateable {gateable:.0%}"
        )


def _named(pairs: Sequence[str]) -> str:
    return f" ({', '.join(sorted(set(pairs))[:5])})" if pairs else ""


def _share_error(nights: Sequence[Judged]) -> float:
    """Return the standard error of the share: processes are independent, the benchmarks of one are not."""
    shares = [night.above / night.decisions for night in nights if night.decisions]
    return statistics.stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else math.nan


def _noise_lines(processes: Sequence[Process]) -> Iterator[str]:
    """Between processes of one visit, between visits, between the copies: medians over the benchmarks."""
    pairs = sorted({pair for process in processes for pair in process.values if pair.metric in TIMES})
    within, between, copies = [], [], []
    for pair in pairs:
        logs = {process.night.name: math.log(process.values[pair]) for process in processes if pair in process.values}
        groups: dict[str, list[float]] = {}
        arms: dict[str, list[float]] = {"A": [], "B": []}
        for process in processes:
            if process.night.name in logs:
                groups.setdefault(process.visit, []).append(logs[process.night.name])
                arms[process.copy].append(logs[process.night.name])
        spreads = [statistics.variance(group) for group in groups.values() if len(group) > 1]
        if spreads:
            within.append(math.sqrt(statistics.fmean(spreads)))
        if len(groups) > 1:
            between.append(statistics.stdev([statistics.fmean(group) for group in groups.values()]))
        if all(arms.values()):
            copies.append(statistics.median(arms["B"]) - statistics.median(arms["A"]))
    yield f"sd between processes of one visit: {_spread(within)}"
    yield f"sd between the means of visits: {_spread(between)}"
    yield f"copy B over copy A: {_spread(copies)}"


def _spread(logs: Sequence[float]) -> str:
    if not logs:
        return "not known"
    low, middle, high = min(logs), statistics.median(logs), max(logs)
    return f"median {middle:.3%}, from {low:.3%} to {high:.3%} over {len(logs)} times"


def _found(processes: Sequence[Process], keys: Sequence[str], paired: bool, percent: float) -> str:
    """Say how many slow-downs by arithmetic are blocked or held; one benchmark in five is slowed at a time."""
    found: dict[str, list[int]] = {"gateable": [0, 0, 0], "all": [0, 0, 0]}
    for index in range(len(processes)):
        slowed = {key: math.log1p(percent / 100) for place, key in enumerate(keys) if place % SHARE == index % SHARE}
        left = leave_out(processes, index, paired=paired, added=slowed)
        for name, pairs in (("gateable", left.gateable), ("all", left.judged)):
            asked = {pair for pair in pairs if pair.key in slowed}
            decided = asked - left.undecided
            caught = decided & (left.regressed | left.held)
            for place, count in enumerate((len(caught), len(decided), len(asked - decided))):
                found[name][place] += count
    return "; ".join(
        f"of {name} blocked or held {caught} of {decided} ({caught / max(1, decided):.1%})"
        + f", {undecided} not decided for want of processes" * bool(undecided)
        for name, (caught, decided, undecided) in found.items()
    )


def _pairs_line(processes: Sequence[Process]) -> str:
    """Say how many pairs a gateable suspect would have, and how many there are beside a night."""
    planned: list[int] = []
    for index in range(len(processes)):
        left = leave_out(processes, index, paired=True, added={})
        for each in left.screening.screened:
            counts = zip(each.family.pairs, each.limits.processes.tolist(), strict=True)
            planned += [count for pair, count in counts if pair in left.gateable]
    shares = ", ".join(f"{count} for {planned.count(count) / len(planned):.0%}" for count in sorted(set(planned)))
    there = min(len(_pairs_after(processes, index)) for index in range(len(processes)))
    return f"in pairs: planned for a gateable suspect: {shares or 'none'}; beside a night there are {there}"


def _planted_lines(processes: Sequence[Process]) -> Iterator[str]:
    """What the clocks saw of slow-downs that the device spun for: the difference from their size.

    Kernels below 20 us apart: 1 % of 8 us is 80 ns, two or three steps of the events' clock. Training iterations apart:
    where they are bound by the host they vary by more than what is planted.
    """
    by_size: dict[tuple[str, float], list[float]] = {}
    by_key: dict[str, dict[str, list[float]]] = {}
    for process in processes:
        for key, (size_ln, seen_ln) in process.planted.items():
            time_ns = process.values.get(Pair(key, TIMES[0]), math.inf)
            kind = "kernels below 20 us" if time_ns < SHORT_NS else "kernels of 20 us and more"
            kind = "iterations" if key.startswith("iteration/") else kind
            by_size.setdefault((kind, size_ln), []).append(seen_ln - size_ln)
            by_key.setdefault(kind, {}).setdefault(key, []).append(seen_ln - size_ln)
    for (kind, size_ln), errors in sorted(by_size.items()):
        close = sum(abs(error) <= CLOSE_LN for error in errors)
        size = f"{kind}: planted {math.expm1(size_ln):+.0%}"
        yield f"{size}: error {_spread(errors)}; within 0.3 %: {close} of {len(errors)}"
    for kind, errors_of in sorted(by_key.items()):
        means = [statistics.fmean(errors) for errors in errors_of.values()]
        close = sum(abs(mean) <= CLOSE_LN for mean in means)
        yield f"{kind}: planted, mean of a benchmark's processes: within 0.3 %: {close} of {len(means)}"
    worst = {key: max(map(abs, errors)) for errors_of in by_key.values() for key, errors in errors_of.items()}
    for key, error in sorted(worst.items(), key=lambda item: -item[1])[:5]:
        yield f"planted, furthest off: {key} by {error:.2%}"


def _visit(text: str) -> str:
    if not VISIT.fullmatch(text):  # it is part of a file's name
        raise argparse.ArgumentTypeError(f"{text!r}: a name of letters, digits, _ and .")
    return text


def main() -> int:
    """Run, import or evaluate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runs = commands.add_parser("run", help="add processes to a folder")
    runs.add_argument("folder", type=Path)
    runs.add_argument("--copies", nargs=2, metavar="PYTHON", default=[sys.executable] * 2, help="interpreters A and B")
    runs.add_argument("--processes", type=int, default=10, help="on each GPU (10)")
    runs.add_argument("--gpus", nargs="+", default=[], metavar="N", help="as in CUDA_VISIBLE_DEVICES; side by side")
    runs.add_argument("--minutes", type=float, default=60.0, help="start none that would not end by then")
    runs.add_argument(
        "--planted", action="store_true", help="each benchmark with a slow-down of 1, 2 or 3 %% beside it"
    )
    runs.add_argument("--select", default="fuseproof_gate", help="mark of the benchmarks; empty for all")
    runs.add_argument("--paths", nargs="+", default=["tests/e2e", "tests/kernels"])
    runs.set_defaults(work=run)
    takes = commands.add_parser("import", help="add the processes of a folder of `fuseproof upgrade`")
    takes.add_argument("bank", type=Path)
    takes.add_argument("folder", type=Path)
    takes.set_defaults(work=take)
    for command in (runs, takes):
        command.add_argument("--visit", type=_visit, required=True, help="a name for this visit to a machine, or day")
    packs = commands.add_parser("pack", help="keep the files of a folder in one")
    packs.add_argument("folder", type=Path)
    packs.add_argument("file", type=Path)
    packs.set_defaults(work=pack)
    evaluates = commands.add_parser("evaluate", help="report on folders, and on packed ones")
    evaluates.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    evaluates.add_argument("--without", default="", metavar="TEXT", help="leave out benchmarks with it in their keys")
    evaluates.add_argument(
        "--boards", action="store_true", help="each visit's GPU is a board of its own, where the files do not say"
    )
    evaluates.set_defaults(work=_print_report)
    arguments = parser.parse_args()
    try:
        return int(arguments.work(arguments))
    except KeyboardInterrupt:
        print("interrupted: finished processes are kept, and the same command goes on", flush=True)
        return INTERRUPTED


def _print_report(arguments: argparse.Namespace) -> int:
    for line in evaluate(arguments.folders, boards=arguments.boards, without=arguments.without):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
