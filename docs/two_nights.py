"""Two nights of the gate from end to end: one in which nothing has changed, and one with a slow-down that is real.

    python docs/two_nights.py FOLDER                                   # a GPU: 3 %
    OMP_NUM_THREADS=1 python docs/two_nights.py FOLDER --percent 30    # a CPU

FOLDER gets a copy of this repository's benchmarks with a candidate beside them that spins (`examples/spun.py`), a
history made by `fuseproof calibrate`, and a trusted environment: this interpreter, or the one that is given, with the
spin of the history. Then come a clean night, which must end with 0, and a night in which the candidate spins longer by
so many percent, which must end with 20 and blame nobody else. What is done already is not done again: the same command
goes on after an interruption, and `--until` ends it early.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CANDIDATE = "--layer-norm=spun=spun:SpunLayerNorm"
TIMES = ("device_time_ns", "iteration_time_ns")
INTERRUPTED = 2  # pytest's status
GATE = """
[tool.fuseproof.gate]
replicates = {processes}
trusted_python = {python}
trusted_env = {{ SPUN_PERCENT = "0" }}
"""


@dataclass(frozen=True)
class Gated:
    """A night to judge.

    Attributes:
        name: as the history calls it.
        status: with which it must end.
        percent: how much longer the candidate spins.

    """

    name: str
    status: int
    percent: float


def prepare(folder: Path, trusted: str, processes: int) -> None:
    """Copy the benchmarks, and write a configuration that names the trusted environment."""
    if (folder / "pyproject.toml").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tests/e2e", "tests/kernels"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "conftest.py", ROOT / "docs" / "examples" / "spun.py"):
        shutil.copy(path, folder)
    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    text = own + GATE.format(processes=processes, python=json.dumps(trusted))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def start(folder: Path, command: list[str], percent: float, night: str) -> int:
    """Run a command in the folder as a part of a night; return its status."""
    print(f"two nights: {night}: {' '.join(command)}", flush=True)
    environ = {**os.environ, "SPUN_PERCENT": f"{percent:g}", "FUSEPROOF_NIGHT": night}
    return subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environ, check=False).returncode


def judge(folder: Path, night: Gated, asked: list[str]) -> Mapping[str, Any]:
    """Run a gated night unless it has ended already; return its verdicts."""
    report = folder / f"{night.name}.json"
    if not report.exists() or json.loads(report.read_text(encoding="utf-8"))["status"] == INTERRUPTED:
        reports = [f"--fuseproof-gate-json={report.name}", f"--junitxml={night.name}.xml"]
        command = ["pytest", *asked, "-n", "0", "--benchmark-autosave", "--benchmark-compare", *reports]
        status = start(folder, command, night.percent, night.name)
        if not report.exists():
            raise SystemExit(f"the {night.name} night ended with status {status} and no verdicts")
    document: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return document


def told(night: Gated, document: Mapping[str, Any]) -> Iterator[str]:
    """Say what a night said, and what was done to it."""
    right = "as it must" if document["status"] == night.status else f"but must end with {night.status}"
    yield f"{night.name} night: status {document['status']}, {right}: {document['summary']}"
    for verdict in document["verdicts"]:
        slowed = night.percent and is_slowed(verdict)
        if verdict["metric"] in TIMES and (slowed or verdict["outcome"] not in ("PASS", "UNGATEABLE", "NEW")):
            seen = "not measured" if verdict["effect_ln"] is None else f"{math.expm1(verdict['effect_ln']):+.2%}"
            yield f"  {verdict['outcome']} {verdict['key']}: {seen}{' (slowed)' if slowed else ''}"


def is_slowed(verdict: Mapping[str, Any]) -> bool:
    """Whether the candidate's time is what a verdict is about."""
    return "/spun/" in verdict["key"] and verdict["metric"] in TIMES


def is_right(night: Gated, document: Mapping[str, Any]) -> bool:
    """Whether the night ended as it must, and blamed what was slowed and nothing else."""
    blamed = {
        pair["key"]
        for verdict in document["verdicts"]
        if verdict["outcome"] == "REGRESSED"
        for pair in verdict["members"] or [verdict]  # of a shift of the whole suite, those that moved
    }
    slowed = {verdict["key"] for verdict in document["verdicts"] if is_slowed(verdict)} if night.percent else set()
    return document["status"] == night.status and blamed <= slowed and bool(blamed) == bool(slowed)


def main() -> int:
    """Make what is missing of the history, run the nights, and compare with what must come out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--percent", type=float, default=3.0, help="how much longer the candidate spins (3)")
    parser.add_argument("--nights", type=int, default=3, help="of the history (3)")
    parser.add_argument("--processes", type=int, default=3, help="of each night (3)")
    parser.add_argument("--trusted", default=sys.executable, metavar="PYTHON", help="interpreter of the trusted arm")
    parser.add_argument("--until", choices=("history", "clean", "planted"), default="planted")
    parser.add_argument("--select", default="fuseproof_gate", help="mark of the benchmarks; empty for all")
    kernels = ["tests/kernels/test_adam_benchmark.py", "tests/kernels/test_norm_benchmark.py"]
    parser.add_argument("--paths", nargs="+", default=kernels, help="benchmarks; the ladder's are left out")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    prepare(folder, arguments.trusted, arguments.processes)
    asked = [*arguments.paths, *(["-m", arguments.select] if arguments.select else []), CANDIDATE]
    for number in range(1, arguments.nights + 1):
        name = f"history{number}"
        command = ["fuseproof", "calibrate", "-n", str(arguments.processes), "--night", name, *asked]
        status = start(folder, command, 0.0, name)
        if status:
            return status
    if arguments.until == "history":
        return 0
    nights = [Gated("clean", 0, 0.0)]
    if arguments.until == "planted":
        nights.append(Gated("planted", 20, arguments.percent))
    asked.append(f"--fuseproof-replicates={arguments.processes}")
    found = {night: judge(folder, night, asked) for night in nights}
    print("\n".join(line for night, document in found.items() for line in told(night, document)))
    return int(not all(is_right(night, document) for night, document in found.items()))


if __name__ == "__main__":
    sys.exit(main())
