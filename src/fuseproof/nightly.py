"""`fuseproof nightly`: all that a night asks, in processes of their own, and one status for all of it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuseproof.config import load_settings
from fuseproof.processes import Terminated, terminable
from fuseproof.requirements import HARDWARE, requirement_fault, requirements
from fuseproof.statuses import CRASHED, INTERRUPTED, USAGE_ERROR
from fuseproof.tables import ConfigError

__all__ = ["add", "joined_status"]

_ANSWERS = (1, 20, 21, 0)
"""The statuses of a session that ran to its end, in the order of what matters: parity, slower, not answered."""


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "nightly",
        help="doctor, parity, benchmarks and gate, with one status",
        description="Run `fuseproof doctor`, then all tests on all cores (is it right?), then the benchmarks alone, "
        "several fresh processes of them, and the gate. Each part runs whatever the ones before it said.",
        epilog="Exit status: that of a part that crashed or was used wrongly; else the first that applies: 1 a test "
        "failed, 20 REGRESSED, 21 not answered, 0; 130 if interrupted.",
    )
    parser.add_argument(
        "--require", default="", metavar="WHAT[,WHAT]", help="cuda, apex, baseline, gate: as for pytest"
    )
    parser.add_argument("--workers", default="auto", metavar="N", help="processes of the parity part (auto)")
    parser.add_argument(
        "--select", default="fuseproof_gate", metavar="MARK", help="benchmarks to judge (fuseproof_gate)"
    )
    parser.add_argument(
        "--replicates", type=int, metavar="N", help="processes that measure; default: the configuration's"
    )
    parser.add_argument(
        "--reports", type=Path, metavar="FOLDER", help="write JUnit files and the verdicts as JSON there"
    )
    parser.add_argument("paths", nargs="*", help="where the tests are; default: as for pytest")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        settings = load_settings(Path.cwd())
        if settings is None:
            raise ConfigError(
                f"{Path.cwd()}: no pyproject.toml with a [tool.fuseproof] table; run it in the repository"
            )
        if arguments.replicates is not None and arguments.replicates < 1:
            raise ConfigError(f"--replicates {arguments.replicates}: a night has at least one process")
        if fault := requirement_fault(requirements(arguments.require)):
            raise ConfigError(fault)
        if arguments.reports is not None:
            arguments.reports.mkdir(parents=True, exist_ok=True)
    except ConfigError as error:
        print(f"fuseproof nightly: {error}", file=sys.stderr)
        return USAGE_ERROR
    except OSError as error:
        why = f"--reports {arguments.reports}: is no folder and cannot be made one ({error.strerror or error})"
        print(f"fuseproof nightly: {why}; give another", file=sys.stderr)
        return USAGE_ERROR
    replicates = settings.gate.replicates if arguments.replicates is None else arguments.replicates
    with tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True) as scratch:
        verdicts = None if settings.gate.mode == "off" else (arguments.reports or Path(scratch)) / "gate.json"
        return _night(_parts(arguments, replicates, verdicts), verdicts)


def _night(parts: Mapping[str, list[str]], verdicts: Path | None) -> int:
    """Run all parts and return one status; a gate that is not off leaves its verdicts in a file."""
    statuses: dict[str, int] = {}
    if verdicts is None:
        print('nightly: [tool.fuseproof.gate] mode is "off": nothing is judged')
    else:
        verdicts.unlink(missing_ok=True)  # of another night
    for name, command in parts.items():
        print(f"nightly: {name}: {shlex.join(command)}", flush=True)
        begun_s = time.monotonic()
        with terminable(), subprocess.Popen(command) as part:
            try:
                statuses[name] = part.wait()
            except Terminated:
                part.terminate()  # this signal was sent to one process
                part.wait()
                return INTERRUPTED
            except KeyboardInterrupt:
                part.wait()  # it has got the signal too, and says and saves what it has
                return INTERRUPTED
        took = f"{time.monotonic() - begun_s:.0f} s"
        print(f"nightly: {name} ended with status {statuses[name]} after {took}", flush=True)
    if verdicts is not None and statuses.get("gate") == 0 and not verdicts.exists():
        print("nightly: gate ended before it had judged anything: something in it ended its process; run it by itself")
        statuses["gate"] = CRASHED
    status = joined_status(statuses.values())
    print(f"nightly: {', '.join(f'{name} {part}' for name, part in statuses.items())}; status {status}")
    return status


def _parts(arguments: argparse.Namespace, replicates: int, verdicts: Path | None) -> dict[str, list[str]]:
    """Return the command of each part."""
    required = requirements(arguments.require)
    hardware = [each for each in required if each in HARDWARE]
    pytest = [sys.executable, "-m", "pytest", *arguments.paths]
    reports = arguments.reports
    return {
        "doctor": [sys.executable, "-m", "fuseproof", "doctor", *_option("--require", hardware)],
        "parity": [
            *pytest,
            *("--benchmark-disable", "-n", arguments.workers, "--dist", "worksteal"),
            *_option("--fuseproof-require", hardware),
            *([f"--junitxml={reports / 'parity.xml'}"] if reports else []),
        ],
        "gate": [
            *pytest,
            *("-n", "0"),
            *(["-m", arguments.select] if arguments.select else []),
            *_option("--fuseproof-require", required),
            f"--fuseproof-replicates={replicates if verdicts else 1}",
            *([f"--junitxml={reports / 'gate.xml'}"] if reports else []),
            *([f"--fuseproof-gate-json={verdicts}"] if verdicts else []),
            *("--benchmark-autosave", "--benchmark-compare"),
        ],
    }


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [f"{name}={','.join(values)}"] if values else []


def joined_status(statuses: Iterable[int]) -> int:
    """Return one status for several parts: a crash hides nothing and is hidden by nothing but another one.

    The first status that is none of a finished session's (2 interrupted, 3 internal error, 4 usage error, 5 no tests,
    a signal); else the first of 1, 20, 21 that occurs; else 0.
    """
    statuses = list(statuses)
    crashed = next((status for status in statuses if status not in _ANSWERS), None)
    if crashed is not None:
        return crashed if crashed > 0 else CRASHED
    return next(answer for answer in _ANSWERS if answer in statuses)
