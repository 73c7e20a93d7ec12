"""`fuseproof calibrate`: how much fresh processes differ here, and so how small a slow-down the gate can see.

numpy, scipy and what the history needs are imported when it runs, so that `fuseproof doctor` works without them.
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof import apex_probe, gpu, machine
from fuseproof.config import ConfigError, Settings, load_settings
from fuseproof.processes import ChildError, Progress, ending, last_words, run_process
from fuseproof.run_file import NIGHT, night_fault
from fuseproof.statuses import INTERRUPTED, NO_TESTS, TESTS_RAN, UNANSWERED, USAGE_ERROR, USED_WRONGLY
from fuseproof.storage import HistoryError

if TYPE_CHECKING:
    from fuseproof.history import History

__all__ = ["add"]

_ELSEWHERE = {
    "-n": "give -n before what is to be run; processes measure one after the other",
    "--numprocesses": "processes measure one after the other, -n of them; give -n before what is to be run",
    "--night": "give --night before what is to be run",
    "--benchmark-storage": "the processes of a night are counted where `history` in [tool.fuseproof] says; set that",
}
"""Options that do not reach this command behind a path, by their beginnings: what to do instead."""
_LIMIT_S = 3600.0  # of one process: the largest suites take minutes


class _NothingSelectedError(Exception):
    """The arguments select no test: the same command would find none again."""


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "calibrate",
        help="measure how much fresh processes differ here, and what the gate can see",
        description="Run the benchmarks in N fresh processes, save them as one night, and say for each benchmark how "
        "much its time varies, what slow-down would be seen, and which are UNGATEABLE.",
        epilog="Exit status: 0 if all processes are there, 21 if not, 130 if interrupted (what has been measured is "
        "kept), 2 for wrong usage or a history that cannot be used.",
    )
    parser.add_argument("-n", type=int, default=8, metavar="N", help="processes of the night (8)")
    parser.add_argument("--night", metavar="NAME", help="go on with this night until it has N processes")
    what = "what to run, as for pytest: paths, then -m fuseproof_gate; without a path put -- before it"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help=what)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    root = Path.cwd()
    try:
        settings = load_settings(root)
        if settings is None:
            raise ConfigError(f"{root}: no pyproject.toml with a [tool.fuseproof] table; run it in a repository.")
        if arguments.n < 1:
            raise ConfigError(f"-n {arguments.n}: a night has at least one process.")
        if arguments.night is not None and (fault := night_fault(arguments.night)):
            raise ConfigError(f"--night: {fault}.")
        return _calibrate(root, settings, arguments)
    except (ConfigError, HistoryError) as error:
        print(f"fuseproof calibrate: {error}", file=sys.stderr)
        return USAGE_ERROR
    except ImportError as error:
        print(f"fuseproof calibrate: {error}; `fuseproof doctor` says what to do", file=sys.stderr)
        return USAGE_ERROR


def _calibrate(root: Path, settings: Settings, arguments: argparse.Namespace) -> int:
    from fuseproof.history import History

    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    history, slug = History(root / settings.history), machine.identify().slug
    night = arguments.night or secrets.token_hex(4)
    if fault := history.ended(slug, night):
        raise ConfigError(f"--night: {fault}.")
    asked = arguments.arguments[arguments.arguments[:1] == ["--"] :]
    for option, mend in _ELSEWHERE.items():
        if found := next((each for each in asked if re.match(rf"{option}(?![a-z-])", each)), None):
            raise ConfigError(f"{found}: {mend}.")
    progress = Progress(lambda line: print(line, flush=True), f"calibrating night {night}")
    status = done = 0
    vouched: dict[str, str] = {}

    def count() -> int:
        return len(history.nights(slug).get(night, []))

    try:
        while (done := count()) < arguments.n:
            with progress.step(done + 1, arguments.n):
                words = _measure(root, {NIGHT: night, **vouched}, asked)
            if count() == done:
                raise ChildError(f"it ran to its end and saved nothing: {words}")
            vouched = apex_probe.vouched_by(history.load(history.nights(slug)[night][-1]).document)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except _NothingSelectedError as error:
        print(f"fuseproof calibrate: {error}", file=sys.stderr)
        return UNANSWERED
    except ChildError as error:
        print(f"process {done + 1} measured nothing: {error}", file=sys.stderr)
        status = UNANSWERED
    if status:
        again = ["fuseproof", "calibrate", "-n", str(arguments.n), "--night", night, *arguments.arguments]
        print(f"{count()} of {arguments.n} processes are kept; to go on: {shlex.join(again)}")
    if count():
        print("\n".join(_power_lines(settings, history, slug, night)))
    return status


def _measure(root: Path, environ: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Run one process to its end and return its last words."""
    ours = [f"--rootdir={root}", "--benchmark-autosave", "--fuseproof-gate=off"]
    status, output = run_process([sys.executable, "-m", "pytest", *arguments, *ours], root, environ, _LIMIT_S)
    if status == USED_WRONGLY:
        raise ConfigError(f"pytest refuses: {last_words(output).removeprefix('ERROR: ')}")
    if status == NO_TESTS:
        meant = shlex.join(arguments) or "the default paths"
        raise _NothingSelectedError(f"nothing was selected by {meant}: {last_words(output)}")
    if status not in TESTS_RAN:
        raise ChildError(f"{ending(status)}: {last_words(output)}")
    if status:
        print(f"a test failed, and what it measures is missing: {last_words(output)}", file=sys.stderr)
    return last_words(output)


def _power_lines(settings: Settings, history: History, slug: str, name: str) -> list[str]:
    """Return what the gate can see of the benchmarks that this night has measured."""
    from fuseproof.gate.ledger import Ledger
    from fuseproof.gate.trend import power_lines, powers

    nights = Ledger(history, slug).nights()
    keys = {pair.key for night in nights if night.name == name for pair in night.pairs}
    found = [power for power in powers(settings.gate, nights) if power.key in keys]
    return power_lines(found) if found else ["one process says nothing of the noise: calibrate with more"]
