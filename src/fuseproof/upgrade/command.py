"""`fuseproof upgrade`: whether to switch from one environment to another.

What judges is imported when it runs, so that `fuseproof doctor` works without numpy.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof import gpu
from fuseproof.processes import side_by_side
from fuseproof.statuses import INTERRUPTED, USAGE_ERROR
from fuseproof.storage import HistoryError
from fuseproof.tables import ConfigError
from fuseproof.upgrade.asked import Asked, about, add_common, variables
from fuseproof.upgrade.environment import Examined, UpgradeError, examine, require_same_machine, resolve
from fuseproof.upgrade.files import add_files, as_json, files_of, write

if TYPE_CHECKING:
    from fuseproof.upgrade.outcome import Upgrade

__all__ = ["add"]

_FOLDER = "fuseproof-upgrade"
_FILES = ("json", "markdown", "html")
_MOST_WORKERS = 8  # of parity: on an H200 more of them wait for the GPU


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
    parser.add_argument("--workers", metavar="N", help="processes that share the parity cases (8, or as many as cores)")
    add_files(parser, _FILES)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    try:
        asked, files = Asked.of(arguments), files_of(arguments, _FILES)
        given = (
            ("old", arguments.old, variables("--from-env", arguments.from_env)),
            ("new", arguments.new, variables("--to-env", arguments.to_env)),
        )
        environments = [resolve(*each) for each in given]
        _say("looking at both environments")
        old, new = side_by_side([partial(examine, each, Path.cwd()) for each in environments])
        require_same_machine(old, new)
        workers = None if arguments.no_parity else _workers(arguments.workers)
        upgrade = _compare(asked, old, new, workers)
        _tell(upgrade, files)
    except (ConfigError, HistoryError, UpgradeError) as error:
        print(f"fuseproof upgrade: {error}", file=sys.stderr)
        return USAGE_ERROR
    return INTERRUPTED if upgrade.interrupted else upgrade.status


def _workers(asked: str | None) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if asked is None:
        return min(_MOST_WORKERS, cores)
    if not asked.isascii() or not asked.isdecimal() or len(asked) > 4:
        raise ConfigError(f"--workers {asked}: give a number; 0 for none beside pytest's own process")
    return int(asked)


def _compare(asked: Asked, old: Examined, new: Examined, workers: int | None) -> Upgrade:
    """Compare parity, by so many workers or not at all, and then times."""
    from fuseproof.upgrade.bank import Bank
    from fuseproof.upgrade.comparison import compare
    from fuseproof.upgrade.measured import measure, require_some
    from fuseproof.upgrade.outcome import Upgrade
    from fuseproof.upgrade.parity_kept import parity

    both = {each.name: each for each in (old, new)}
    plan = asked.plan("upgrade", old.machine_slug, {name: about(each) for name, each in both.items()})
    bank = Bank.begin(asked.folder, plan)
    try:
        if workers is not None and asked.keyword and not bank.trials():
            require_some(asked, bank, old.environment)
        change = None if workers is None else parity(asked, bank, (old, new), workers, _say)
        environments = {name: each.environment for name, each in both.items()}
        measured = measure(asked, bank, environments, lambda trials: compare(trials, asked.rules).undecided, _say)
    finally:
        bank.end()
    found = compare(measured.trials, asked.rules)
    return Upgrade(
        old,
        new,
        found.verdicts,
        found.durations,
        change,
        len(measured.trials),
        measured.seconds,
        measured.interrupted,
        asked.tolerance_ln,
        plan.selection,
        (*measured.notes, *found.notes),
        found.skipped,
    )


def _say(line: str) -> None:
    print(f"upgrade: {line}", flush=True)  # through a pipe it would come with the end


def _tell(upgrade: Upgrade, files: Mapping[str, Path]) -> None:
    from fuseproof.upgrade.report import terminal_lines, to_html, to_json, to_markdown

    print("\n".join(terminal_lines(upgrade)))
    kinds: Mapping[str, Callable[[Upgrade], str]] = {
        "json": lambda each: as_json(to_json(each)),
        "markdown": to_markdown,
        "html": to_html,
    }
    for kind, path in files.items():
        write(path, kinds[kind](upgrade))
