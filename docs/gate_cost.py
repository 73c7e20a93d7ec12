"""What the gate costs a session, by the length of its history: the table of `docs/verdicts.md`, section 10.

Run `python docs/gate_cost.py [RUNS ...]`: it writes a history of that many runs of 500 benchmarks into a temporary
folder (0.8 MB a run), three runs a night with their verdicts, and measures in fresh processes: first one that has to
read all new runs, then sessions that find one new night each, of which the quickest counts. Seconds are without the
import of numpy and scipy; peak RSS is that of the whole process.
"""

import datetime
import json
import math
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCHMARKS = 500
REPLICATES = 3
SESSIONS = 5
MACHINE = "simulated"
SIGMA = 0.002  # between processes and between nights, as kernels of 20 us and more have on an H200
REGRESSED_SHARE = 0.002  # of all verdicts: half a suite is not always green
SAMPLE = sorted(Path("bench_history/nvidia-h200").glob("0002_*.json"))


def template() -> dict:
    """Return a stored run with its benchmarks repeated under other keys until there are 500."""
    document = json.loads(SAMPLE[0].read_text())
    kernels = [b for b in document["benchmarks"] if "device_time_ns" in b["extra_info"]["fuseproof"]["metrics"]]
    benchmarks = []
    for number in range(BENCHMARKS):
        benchmark = json.loads(json.dumps(kernels[number % len(kernels)]))
        benchmark["extra_info"]["fuseproof"]["key"] += f"_{number // len(kernels)}"
        benchmark["extra_info"]["fuseproof"]["invalid"] = []
        benchmarks.append(benchmark)
    return document | {"benchmarks": benchmarks}


def write_night(root: Path, night: int, document: dict, seed: random.Random, *, verdicts: bool = True) -> None:
    """Write one night: its runs, and what was said of them."""
    day = datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=night)
    name = f"{night:08x}"
    folder = root / MACHINE / "verdicts"
    folder.mkdir(parents=True, exist_ok=True)
    shift = seed.gauss(0, SIGMA / 2)
    base = [b["extra_info"]["fuseproof"]["metrics"]["device_time_ns"] for b in document["benchmarks"]]
    own = [seed.gauss(0, SIGMA / 2) for _ in base]
    block = document["fuseproof"] | {"machine": MACHINE, "night": name, "gated": True, "selection": ""}
    for run in range(REPLICATES):
        number = night * REPLICATES + run + 1
        for benchmark, duration_ns, night_ln in zip(document["benchmarks"], base, own, strict=True):
            value = duration_ns * math.exp(shift + night_ln + seed.gauss(0, SIGMA))
            benchmark["extra_info"]["fuseproof"]["metrics"]["device_time_ns"] = round(value, 1)
        stamp = (day + datetime.timedelta(minutes=run)).strftime("%Y%m%dT%H%M%SZ")
        text = json.dumps(document | {"fuseproof": block, "datetime": day.isoformat()}, separators=(",", ":"))
        (folder.parent / f"{number:04d}_{stamp}_{name}_aa.json").write_text(text)
    for benchmark, duration_ns in zip(document["benchmarks"], base, strict=True):
        benchmark["extra_info"]["fuseproof"]["metrics"]["device_time_ns"] = duration_ns
    if verdicts:
        keys = [b["extra_info"]["fuseproof"]["key"] for b in document["benchmarks"]]
        bad = [key for key in keys if seed.random() < REGRESSED_SHARE]
        good = [key for key in keys if key not in bad]
        exact = dict.fromkeys(("peak_bytes", "launches", "kernels_hash"), keys)
        groups = [{"outcome": "PASS", "reasons": [], "since": None, "pairs": {"device_time_ns": good, **exact}}]
        if bad:
            groups.append({"outcome": "REGRESSED", "reasons": [], "since": None, "pairs": {"device_time_ns": bad}})
        block = {"schema": 1, "machine": MACHINE, "night": name}
        record = {"fuseproof": block, "verdicts": groups, "confirming": [], "trusted": []}
        stamp = (day + datetime.timedelta(hours=1)).strftime("%Y%m%dT%H%M%SZ")
        (folder / f"{night + 1:04d}_{stamp}_{name}_aa.json").write_text(json.dumps(record, separators=(",", ":")))


def session(root: Path) -> None:
    """Judge the newest night against those before it, as a gated session does, and print what that has cost."""
    began = time.perf_counter()
    from fuseproof.gate.ledger import Ledger
    from fuseproof.gate.present import table_lines
    from fuseproof.gate.session import GateSession
    from fuseproof.gate.settings import GateSettings
    from fuseproof.history import History

    imported = time.perf_counter()
    history = History(root)
    name, files = list(history.nights(MACHINE).items())[-1]
    ledger = Ledger(history, MACHINE)
    tonight = ledger.night(name, [history.load(file).document for file in files])
    loaded = time.perf_counter()
    cpu = time.process_time()
    past = ledger.nights(before=name)
    recall = ledger.recall(before=name)
    remembered = time.perf_counter()
    gate = GateSession(
        GateSettings(),
        [],
        past,
        tonight,
        paired=False,
        full_selection=True,
        today=datetime.date(2027, 1, 1),
        recall=recall,
    )
    plan = gate.plan()
    lines = table_lines(gate)
    ended = time.perf_counter()
    print(
        json.dumps(
            {
                "imports_s": imported - began,
                "ledger_s": remembered - loaded,
                "judging_s": ended - remembered,
                "cpu_s": time.process_time() - cpu,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "suspects": 0 if plan is None else len(plan.pairs),
                "summary": lines[-1],
            }
        )
    )


def measured(root: Path) -> dict:
    """Return what a session in a fresh process has cost."""
    child = subprocess.run(
        [sys.executable, __file__, "--session", str(root)], capture_output=True, text=True, check=True
    )
    return json.loads(child.stdout)


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--session"]:
        session(Path(sys.argv[2]))
        return
    document, seed = template(), random.Random(0)
    print("| runs | nights | a run read anew, ms | history, s | judging, s | CPU of the two, s | peak RSS, MiB |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        root, night = Path(folder), 0
        for runs in [int(each) for each in sys.argv[1:]] or [250, 500, 1000]:
            before = night
            while (night + 1) * REPLICATES <= runs:
                write_night(root, night, document, seed)
                night += 1
            anew_ms = measured(root)["ledger_s"] * 1e3 / ((night - before) * REPLICATES)
            later = []
            for _ in range(SESSIONS):
                write_night(root, night, document, seed)
                night += 1
                later.append(measured(root))
            quickest = min(later, key=lambda cost: cost["ledger_s"] + cost["judging_s"])
            cells = [f"{anew_ms:.0f}", f"{quickest['ledger_s']:.2f}", f"{quickest['judging_s']:.2f}"]
            cells += [f"{min(c['cpu_s'] for c in later):.2f}", f"{max(c['peak_mib'] for c in later):.0f}"]
            print(f"| {runs:,} | {night - SESSIONS} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
