"""Two nights of the gate from end to end: one in which nothing has changed, and one with a slow-down that is real.

    python docs/two_nights.py FOLDER                                   # a GPU: 3 %
    OMP_NUM_THREADS=1 python docs/two_nights.py FOLDER --percent 100   # a CPU

FOLDER gets a copy of this repository's benchmarks with a candidate beside them that spins (`examples/spun_kernels.py`),
a history made by `fuseproof calibrate`, and a trusted environment: this interpreter, or the one that is given, with the
spin of the history. Then come a clean night, which must end with 0, and a night in which the candidate spins longer by
so many percent of what its forward takes, which must end with 20 and blame nobody else. Beside what each benchmark of
the candidate was found to be slower stands what it was: the longer spin as the device clock sees it by itself.

What is done already is not done again: the same command goes on after an interruption. `--parts` does some of it: with
the history in a copy of the folder, the two nights may run on two GPUs at once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CANDIDATE = "spun_norm"
OPTION = f"--layer-norm={CANDIDATE}=spun_kernels:SpunFP32LayerNorm"
FORWARD = f"layer_norm_fwd/{CANDIDATE}/"
TIME = "device_time_ns"
INTERRUPTED = 2  # pytest's status
SPINS = 200  # of each length, to know it to a few nanoseconds
CLOSE_LN = 0.003
GATE = """
[tool.fuseproof.gate]
replicates = {processes}
trusted_python = {python}
trusted_env = {{ SPUN_MORE_NS = "" }}
"""


@dataclass(frozen=True)
class Gated:
    """A night to judge.

    Attributes:
        name: as the history calls it.
        status: with which it must end.
        more_ns: by dtype and shape: how much longer the candidate spins.

    """

    name: str
    status: int
    more_ns: Mapping[str, float] = field(default_factory=dict)

    @property
    def variable(self) -> str:
        """The same as the candidate reads it."""
        return " ".join(f"{name}:{more_ns:.0f}" for name, more_ns in sorted(self.more_ns.items()))


def prepare(folder: Path, trusted: str, processes: int) -> None:
    """Copy the benchmarks, and write a configuration that names the trusted environment."""
    if (folder / "pyproject.toml").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tests/e2e", "tests/kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "conftest.py", ROOT / "docs" / "examples" / "spun_kernels.py"):
        shutil.copy(path, folder)
    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = own + GATE.format(processes=processes, python=json.dumps(trusted))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def start(folder: Path, command: list[str], night: Gated, name: str) -> int:
    """Run a command in the folder as a part of the night of that name; return its status."""
    print(f"two nights: {night.name}: {' '.join(command)}", flush=True)
    environ = {**os.environ, "SPUN_MORE_NS": night.variable, "FUSEPROOF_NIGHT": name}
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environ, check=False).returncode


def judge(folder: Path, night: Gated, asked: list[str]) -> Mapping[str, Any]:
    """Run a gated night unless it has ended already; return its verdicts."""
    report = folder / f"{night.name}.json"
    if not report.exists() or json.loads(report.read_text(encoding="utf-8"))["status"] == INTERRUPTED:
        reports = [f"--fuseproof-gate-json={report.name}", f"--junitxml={night.name}.xml"]
        command = ["pytest", *asked, "-n", "0", "--benchmark-autosave", "--benchmark-compare", *reports]
        # One that was interrupted is judged as far as it came, and takes no more processes.
        status = start(folder, command, night, night.name + secrets.token_hex(2) * report.exists())
        if not report.exists():
            raise SystemExit(f"the {night.name} night ended with status {status} and no verdicts")
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return document


def slowed_by(folder: Path, percent: float) -> dict[str, float]:
    """Return, by dtype and shape, so many percent of what the candidate's forward took in the history, ns."""
    times_ns: dict[str, list[float]] = {}
    for path in sorted(folder.glob("bench_history/*/*_history*.json")):
        for benchmark in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
            record = benchmark["extra_info"]["fuseproof"]
            if record["key"].startswith(FORWARD):
                times_ns.setdefault(record["key"].removeprefix(FORWARD), []).append(record["metrics"][TIME])
    return {name: round(statistics.median(values) * percent / 100) for name, values in times_ns.items()}


def there_ns(more_ns: Mapping[str, float]) -> dict[str, float]:
    """Return how much longer the candidate's spins really are, as the device clock sees them by themselves, ns."""
    import torch

    if not torch.cuda.is_available():
        return dict(more_ns)  # a CPU waits until a time
    from fuseproof.channel import fastest_channel
    from fuseproof.clock import DeviceClock

    sys.path.insert(0, str(ROOT / "docs" / "examples"))
    import spun_kernels

    device = torch.device("cuda")
    torch.cuda.set_stream(fastest_channel(device).stream)

    def spin_ns(nanoseconds: float) -> float:
        cycles = round(nanoseconds * spun_kernels.CYCLES_PER_NS)
        clock = DeviceClock(device)
        clock.prepare(lambda: torch.cuda._sleep(cycles))
        for _ in range(SPINS):
            clock.run(lambda: torch.cuda._sleep(cycles))
        middle = sorted(clock.rounds_ns)[SPINS // 10 : -SPINS // 10]
        return statistics.fmean(middle)  # a median would step as the events' clock does

    base_ns = spin_ns(spun_kernels.BASE_NS)
    return {name: spin_ns(spun_kernels.BASE_NS + more) - base_ns for name, more in more_ns.items()}


def told(night: Gated, document: Mapping[str, Any], there: Mapping[str, float]) -> Iterator[str]:
    """Say what a night said, and beside each time that was made longer by how much it was."""
    right = "as it must" if document["status"] == night.status else f"but must end with {night.status}"
    yield f"{night.name} night: status {document['status']}, {right}: {document['summary']}"
    close = []
    for verdict in document["verdicts"]:
        effect_ln, slowed = verdict["effect_ln"], is_slowed(night, verdict)
        seen = "not measured" if effect_ln is None else f"found {math.expm1(effect_ln):+.2%}"
        if slowed and effect_ln is not None:
            size_ln = math.log1p(there[named(verdict["key"])] / verdict["baseline"])
            close.append(abs(effect_ln - size_ln) <= CLOSE_LN)
            seen += f", there {math.expm1(size_ln):+.2%}"
        if slowed or verdict["outcome"] not in ("PASS", "UNGATEABLE", "NEW"):
            yield f"  {verdict['outcome']} {verdict['key']} {verdict['metric']}: {seen}"
    if close:
        yield f"  of {len(close)} that were slowed, {sum(close)} found within 0.3 % of what was there"


def named(key: str) -> str:
    """Return dtype and shape of a benchmark, by which the candidate is told its spin."""
    return "/".join(key.split("/")[2:])


def is_slowed(night: Gated, verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict is on a time of the candidate's that was made longer."""
    return f"/{CANDIDATE}/" in verdict["key"] and verdict["metric"] == TIME and named(verdict["key"]) in night.more_ns


def is_right(night: Gated, document: Mapping[str, Any]) -> bool:
    """Whether the night ended as it must, and blamed what was slowed and nothing else."""
    blamed = {
        pair["key"]
        for verdict in document["verdicts"]
        if verdict["outcome"] == "REGRESSED"
        for pair in verdict["members"] or [verdict]  # of a shift of the whole suite, those that moved
    }
    slowed = {verdict["key"] for verdict in document["verdicts"] if is_slowed(night, verdict)}
    return document["status"] == night.status and blamed <= slowed and bool(blamed) == bool(slowed)


def main() -> int:
    """Do what is asked for and missing, and compare with what must come out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--percent", type=float, default=3.0, help="how much longer the candidate's forward takes (3)")
    parser.add_argument("--nights", type=int, default=3, help="of the history (3)")
    parser.add_argument("--processes", type=int, default=3, help="of each night (3)")
    parser.add_argument("--trusted", default=sys.executable, metavar="PYTHON", help="interpreter of the trusted arm")
    parts = ("history", "clean", "planted")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="what to do (all)")
    parser.add_argument("--select", default="fuseproof_gate", help="mark of the benchmarks; empty for all")
    parser.add_argument("--paths", nargs="+", default=["tests/kernels"], help="where benchmarks are (tests/kernels)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    prepare(folder, arguments.trusted, arguments.processes)
    asked = [*arguments.paths, *(["-m", arguments.select] if arguments.select else []), OPTION]
    for number in range(1, arguments.nights + 1) if "history" in arguments.parts else ():
        night = Gated(f"history{number}", 0)
        command = ["fuseproof", "calibrate", "-n", str(arguments.processes), "--night", night.name, *asked]
        if status := start(folder, command, night, night.name):
            return status
    more_ns = slowed_by(folder, arguments.percent)
    asked.append(f"--fuseproof-replicates={arguments.processes}")
    nights = [each for each in (Gated("clean", 0), Gated("planted", 20, more_ns)) if each.name in arguments.parts]
    found = {night.name: judge(folder, night, asked) for night in nights}
    for night in nights:
        print("\n".join(told(night, found[night.name], there_ns(night.more_ns) if night.more_ns else {})))
    return int(not all(is_right(night, found[night.name]) for night in nights))


if __name__ == "__main__":
    sys.exit(main())
