"""`fuseproof versus`: candidates against each other in one environment, for each shape, device and host apart."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof import gpu
from fuseproof.storage import HistoryError
from fuseproof.tables import ConfigError
from fuseproof.upgrade.asked import Asked, about, add_common
from fuseproof.upgrade.environment import UpgradeError, examine, resolve

if TYPE_CHECKING:
    from fuseproof.upgrade.measured import Measured
    from fuseproof.upgrade.standings import Standings

__all__ = ["add"]

_USAGE_ERROR = 2
_INTERRUPTED = 130  # as a shell says it
_FOLDER = "fuseproof-versus"
_ARM = "here"
_TOLERANCE = "1 %"  # below it a difference between two kernels is no reason to choose


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "versus",
        help="candidates against each other: which kernel is faster here, for which shapes",
        description="Compare candidates of Adam or LayerNorm, and the kernel sets of training iterations, in fresh "
        "processes of one environment. Each process measures all of them in an order of its own, until it is proven "
        "who is faster or that they are equal. Finished processes are kept: the same command goes on.",
        epilog="Exit status: 0 whoever is faster, 21 if something is undecided, 2 used wrongly, 130 ended by Ctrl-C or "
        "SIGTERM.",
    )
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE", help="names; the first is compared with the others")
    parser.add_argument("--tests", action="append", metavar="TESTS", help="a folder or file of tests (./tests)")
    add_common(parser, _FOLDER, "")
    for name in ("json", "markdown"):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write the answer there as {name}")
    parser.set_defaults(run=_run, tolerance=_TOLERANCE)


def _run(arguments: argparse.Namespace) -> int:
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    try:
        names = list(dict.fromkeys(arguments.candidates))
        if len(names) < 2:
            raise ConfigError(f"{' '.join(names)}: name at least two candidates")
        asked = Asked.of(arguments)
        for path in filter(None, (arguments.json, arguments.markdown)):
            if not path.absolute().parent.is_dir():
                raise ConfigError(f"{path}: there is no folder {path.parent}; make it")
        return _compare(asked, names, arguments)
    except (ConfigError, HistoryError, UpgradeError) as error:
        print(f"fuseproof versus: {error}", file=sys.stderr)
        return _USAGE_ERROR


def _compare(asked: Asked, names: list[str], arguments: argparse.Namespace) -> int:
    from fuseproof.upgrade.bank import Bank
    from fuseproof.upgrade.measured import measure
    from fuseproof.upgrade.standings import rank

    say = partial(print, "versus:", flush=True)
    here = examine(resolve(_ARM, sys.executable), Path.cwd())
    plan = asked.plan("versus", here.machine_slug, {_ARM: about(here)}, names)
    bank = Bank.begin(asked.folder, plan)
    ranked = partial(rank, names=names, rules=asked.rules, tolerance_ln=asked.tolerance_ln)
    try:
        measured = measure(
            asked, bank, {_ARM: here.environment}, lambda trials: ranked(trials).undecided, say
        )
    finally:
        bank.end()
    standings = ranked(measured.trials)
    return _tell(standings, measured, arguments)


def _tell(standings: Standings, measured: Measured, arguments: argparse.Namespace) -> int:
    from fuseproof.upgrade import table

    for line in table.terminal_lines(standings, measured):
        print(line)
    if arguments.markdown is not None:
        table.write(arguments.markdown, table.markdown(standings, measured))
    if arguments.json is not None:
        table.write(arguments.json, table.to_json(standings, measured))
    return _INTERRUPTED if measured.interrupted else standings.status
