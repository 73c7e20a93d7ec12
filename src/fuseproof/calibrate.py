"""`fuseproof calibrate`: how much fresh processes differ here, and so how small a slow-down the gate can see."""

from __future__ import annotations

import argparse
import datetime
import math
import secrets
import shlex
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fuseproof import machine
from fuseproof.config import Settings, load_settings
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.present import aligned
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.history import NIGHT, History, HistoryError
from fuseproof.processes import ChildError, Progress, ending, last_words, run_process
from fuseproof.tables import ConfigError
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.verdict import UNANSWERED_STATUS, in_percent

__all__ = ["add", "calibration_lines"]

_USAGE_ERROR = 2
_INTERRUPTED = 130  # as a shell says it
_LIMIT_S = 3600.0  # of one process: the largest suites take minutes
_TESTS_RAN = (0, 1)  # pytest's statuses: all passed, some failed


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="measure how much fresh processes differ here, and what the gate can see",
        description="Run the benchmarks in N fresh processes, save them as one night, and say for each benchmark how "
        "much its time varies, what slow-down would be seen, and which are UNGATEABLE.",
        epilog="Exit status: 0 if all processes are there, 21 if not; what has been measured is kept.",
    )
    parser.add_argument("-n", type=int, default=8, metavar="N", help="processes of the night (8)")
    parser.add_argument("--night", metavar="NAME", help="go on with this night until it has N processes")
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="what to run, as for pytest: paths, -m fuseproof_gate",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    root = Path.cwd()
    try:
        settings = load_settings(root)
        if settings is None:
            print(f"{root}: no pyproject.toml with a [tool.fuseproof] table; run it in the repository", file=sys.stderr)
            return _USAGE_ERROR
        if arguments.n < 1:
            print(f"fuseproof calibrate: -n {arguments.n}: a night has at least one process", file=sys.stderr)
            return _USAGE_ERROR
        return _calibrate(root, settings, arguments)
    except (ConfigError, HistoryError) as error:
        print(error, file=sys.stderr)
        return _USAGE_ERROR


def _calibrate(root: Path, settings: Settings, arguments: argparse.Namespace) -> int:
    ledger = Ledger(History(root / settings.history), machine.identify().slug)
    night = arguments.night or secrets.token_hex(4)
    again = shlex.join(["fuseproof", "calibrate", "-n", str(arguments.n), "--night", night, *arguments.arguments])
    status = 0
    progress = Progress(print, f"calibrating night {night}")
    try:
        while (done := _count(ledger, night)) < arguments.n:
            with progress.step(done + 1, arguments.n):
                _measure(root, night, arguments.arguments)
            if _count(ledger, night) == done:
                raise ChildError("it ran to its end and saved nothing")
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except ChildError as error:
        print(f"process {done + 1} measured nothing: {error}", file=sys.stderr)
        status = UNANSWERED_STATUS
    kept = _count(ledger, night)
    if status:
        print(f"{kept} of {arguments.n} processes are kept; to go on: {again}")
    if kept:
        print("\n".join(calibration_lines(settings.gate, ledger, night)))
    return status


def _count(ledger: Ledger, night: str) -> int:
    return len(ledger.history.nights(ledger.machine).get(night, []))


def _measure(root: Path, night: str, arguments: Sequence[str]) -> None:
    command = [sys.executable, "-m", "pytest", *arguments, "--benchmark-autosave", "--fuseproof-gate=off"]
    status, output = run_process(command, root, {NIGHT: night}, _LIMIT_S)
    if status not in _TESTS_RAN:
        raise ChildError(f"{ending(status)}: {last_words(output)}")
    if status:
        print(f"a test failed, and what it measures is missing: {last_words(output)}", file=sys.stderr)


def calibration_lines(settings: GateSettings, ledger: Ledger, name: str) -> list[str]:
    """Return what a night of many processes says of each benchmark that is judged by its noise.

    Detectable is the slow-down that a night like the configured one would find in 95 % of cases, by what the whole
    history knows by now: alone, and in pairs with the trusted environment.
    """
    nights = ledger.nights()
    night = next(each for each in nights if each.name == name)
    alone, pairs = (_tomorrow(settings, nights, night, paired=paired) for paired in (False, True))
    rows = [("benchmark", "metric", "processes", "sd", "nights", "detectable alone", "in pairs", "")]
    ungateable = {"alone": 0, "in pairs": 0}
    for each, beside in zip(alone.screening.screened, pairs.screening.screened, strict=True):
        for column, pair in enumerate(each.family.pairs):
            if not each.judged[column]:
                continue
            limits = {"alone": float(each.limits.mde[column]), "in pairs": float(beside.limits.mde[column])}
            seen = {way: mde <= 2 * float(each.family.tolerance_ln[column]) for way, mde in limits.items()}
            for way in ungateable:
                ungateable[way] += not seen[way]
            rows.append(
                (
                    pair.key,
                    pair.metric,
                    str(sum(pair in process for process in night.screening)),
                    f"{math.sqrt(float(each.family.within_ln2[column])):.2%}",
                    str(int(each.family.nights[column])),
                    in_percent(limits["alone"]),
                    in_percent(limits["in pairs"]),
                    "" if seen["alone"] else "UNGATEABLE alone" if seen["in pairs"] else "UNGATEABLE",
                )
            )
    total = len(rows) - 1
    if not total:
        return ["nothing is known about the noise yet: a night of two processes or more says it"]
    return [
        *aligned(rows),
        f"{total} times of {len({row[0] for row in rows[1:]})} benchmarks: {ungateable['alone']} UNGATEABLE alone, "
        f"{ungateable['in pairs']} in pairs (a slow-down of twice the tolerance would be missed more than once in 20)",
    ]


def _tomorrow(settings: GateSettings, nights: Sequence[Night], night: Night, *, paired: bool) -> GateSession:
    """Return a night that measures exactly what this one has, in as many processes as the configuration says."""
    values = {
        pair: statistics.median(process[pair] for process in night.screening if pair in process)
        for pair in night.pairs
        if pair.metric.endswith("_ns")
    }
    tomorrow = replace(night, name="tomorrow", screening=[values] * settings.replicates)
    today = datetime.date.today()
    return GateSession(settings, [], nights, tomorrow, paired=paired, full_selection=False, today=today)
