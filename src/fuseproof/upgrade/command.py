"""`fuseproof upgrade`: whether to switch from one environment to another.

What judges is imported when it runs, so that `fuseproof doctor` works without numpy.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof import gpu
from fuseproof.processes import ChildError
from fuseproof.storage import HistoryError
from fuseproof.tables import ConfigError
from fuseproof.upgrade.asked import Asked, add_common, variables
from fuseproof.upgrade.environment import Examined, UpgradeError, examine, require_same_machine, resolve

if TYPE_CHECKING:
    from fuseproof.upgrade.outcome import Upgrade

__all__ = ["add"]

_USAGE_ERROR = 2
_UNANSWERED = 21
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
        print("upgrade: looking at both environments", flush=True)
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
    from fuseproof.upgrade.child import Child
    from fuseproof.upgrade.comparison import compare
    from fuseproof.upgrade.lanes import VISIBLE, lanes
    from fuseproof.upgrade.outcome import Upgrade
    from fuseproof.upgrade.plan import UpgradePlan
    from fuseproof.upgrade.running import Runner
    from fuseproof.upgrade.schedule import next_block

    plan = UpgradePlan(
        "upgrade",
        old.machine_slug,
        {each.name: _about(each) for each in (old, new)},
        asked.tests,
        asked.keyword,
        asked.mark,
        asked.arguments,
        tolerance=asked.tolerance,
    )
    where = lanes(asked.gpus, os.environ.get(VISIBLE))
    bank = Bank.begin(asked.folder, plan)
    try:
        if kept := len(bank.trials()):
            print(f"upgrade: {kept} finished pairs in {asked.folder} are used; delete it to measure anew")
        runner = Runner(
            bank,
            {each.name: each.environment for each in (old, new)},
            Child(bank.plan, asked.root, Path.cwd()),
            where,
            lambda trials: next_block(
                trials, compare(trials, asked.rules).undecided, asked.most, len(where), everything=asked.everything
            ),
            lambda line: print(f"upgrade: {line}", flush=True),
            asked.budget_s,
        )
        interrupted = False
        try:
            runner.run()
        except KeyboardInterrupt:
            interrupted = True
            runner.notes.append(f"interrupted; the same command goes on with what is in {asked.folder}")
        except ChildError as error:
            runner.notes.append(str(error))
        if runner.over:
            runner.notes.append(f"the budget is over; the same command goes on with what is in {asked.folder}")
        trials = bank.trials()
    finally:
        bank.end()
    found = compare(trials, asked.rules)
    return Upgrade(
        old,
        new,
        found.verdicts,
        found.durations,
        None,
        len(trials),
        sum(trial.seconds for trial in trials),
        interrupted,
        max((rule.tolerance_ln for rule in asked.rules if rule.metric == "device_time_ns"), default=0.0),
        plan.selection,
        (*runner.notes, *found.notes),
    )


def _about(examined: Examined) -> dict[str, Any]:
    about = asdict(examined.environment)
    return {
        "python": about["python"],
        "set": about["variables"],
        "inventory": dict(examined.inventory),
        "variables": dict(examined.variables),
    }


def _tell(upgrade: Upgrade) -> None:
    from fuseproof.verdicts.verdict import Outcome, closing_line

    for verdict in upgrade.verdicts:
        if verdict.outcome is not Outcome.PASS or verdict.reasons:
            print(verdict.message)
    for note in upgrade.notes:
        print(note)
    print(f"upgrade: {closing_line(upgrade.verdicts)}; {upgrade.pairs} pairs, {upgrade.seconds:.0f} s")
