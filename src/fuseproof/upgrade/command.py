"""`fuseproof upgrade`: whether to switch from one environment to another.

What judges is imported when it runs, so that `fuseproof doctor` works without numpy.
"""

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
from fuseproof.upgrade.asked import Asked, about, add_common, variables
from fuseproof.upgrade.environment import Examined, UpgradeError, examine, require_same_machine, resolve

if TYPE_CHECKING:
    from fuseproof.upgrade.outcome import Upgrade

__all__ = ["add"]

_USAGE_ERROR = 2
_INTERRUPTED = 130  # as a shell says it
_FOLDER = "fuseproof-upgrade"


def add(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "upgrade",
        help="two environments, one verdict: whether to switch",
        description="Compare two environments on this machine: parity in both, then the benchmarks in fresh processes, "
        "in pairs, until each is proven slower or proven equal. Finished pairs are kept: the same command goes on.",
        epilog="Exit status: 1 results are newly wrong, 20 REGRESSED, 21 not answered, 2 used wrongly, 130 ended by "
        "Ctrl-C or SIGTERM, else 0.",
    )
    what = "an interpreter, or the folder of a virtual environment"
    parser.add_argument("--from", dest="old", required=True, metavar="OLD", help=f"the environment you trust: {what}")
    parser.add_argument("--to", dest="new", required=True, metavar="NEW", help="the one you want")
    for arm in ("from", "to"):
        parser.add_argument(
            f"--{arm}-env", action="append", metavar="NAME=VALUE", help="a variable set in that environment; repeatable"
        )
    parser.add_argument("tests", nargs="*", metavar="TESTS", help="folders or files of tests (./tests)")
    add_common(parser, _FOLDER, "fuseproof_gate")
    parser.add_argument("--no-parity", action="store_true", help="compare times alone")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    try:
        asked = Asked.of(arguments)
        given = (
            ("old", arguments.old, variables("--from-env", arguments.from_env)),
            ("new", arguments.new, variables("--to-env", arguments.to_env)),
        )
        environments = [resolve(*each) for each in given]
        _say("upgrade", "looking at both environments")
        old, new = (examine(each, Path.cwd()) for each in environments)
        require_same_machine(old, new)
        upgrade = _compare(asked, old, new)
        _tell(upgrade)
    except (ConfigError, HistoryError, UpgradeError) as error:
        print(f"fuseproof upgrade: {error}", file=sys.stderr)
        return _USAGE_ERROR
    return _INTERRUPTED if upgrade.interrupted else upgrade.status


def _compare(asked: Asked, old: Examined, new: Examined) -> Upgrade:
    from fuseproof.upgrade.bank import Bank
    from fuseproof.upgrade.comparison import compare
    from fuseproof.upgrade.measured import measure
    from fuseproof.upgrade.outcome import Upgrade

    both = {each.name: each for each in (old, new)}
    plan = asked.plan("upgrade", old.machine_slug, {name: about(each) for name, each in both.items()})
    bank = Bank.begin(asked.folder, plan)
    try:
        environments = {name: each.environment for name, each in both.items()}
        measured = measure(
            asked, bank, environments, lambda trials: compare(trials, asked.rules).undecided, partial(_say, "upgrade")
        )
    finally:
        bank.end()
    found = compare(measured.trials, asked.rules)
    return Upgrade(
        old,
        new,
        found.verdicts,
        found.durations,
        None,
        len(measured.trials),
        measured.seconds,
        measured.interrupted,
        max((rule.tolerance_ln for rule in asked.rules if rule.metric == "device_time_ns"), default=0.0),
        plan.selection,
        (*measured.notes, *found.notes),
    )


def _say(command: str, line: str) -> None:
    print(f"{command}: {line}", flush=True)  # through a pipe it would come with the end


def _tell(upgrade: Upgrade) -> None:
    from fuseproof.verdicts.verdict import Outcome, closing_line

    for verdict in upgrade.verdicts:
        if verdict.outcome is not Outcome.PASS or verdict.reasons:
            print(verdict.message)
    for note in upgrade.notes:
        print(note)
    print(f"upgrade: {closing_line(upgrade.verdicts)}; {upgrade.pairs} pairs, {upgrade.seconds:.0f} s")
