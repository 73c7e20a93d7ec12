"""`fuseproof versus`: candidates against each other in one environment, for each shape, device and host apart."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fuseproof import gpu
from fuseproof.statuses import INTERRUPTED, USAGE_ERROR
from fuseproof.storage import HistoryError
from fuseproof.tables import ConfigError
from fuseproof.upgrade.asked import Asked, about, add_common
from fuseproof.upgrade.environment import UpgradeError, examine, resolve
from fuseproof.upgrade.files import add_files, as_json, files_of, write

__all__ = ["add"]

_FOLDER = "fuseproof-versus"
_FILES = ("json", "markdown")
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
        epilog="Exit status: 0 whoever is faster, 21 if something is undecided or fails, 2 used wrongly, 130 ended by "
        "Ctrl-C or SIGTERM.",
    )
    parser.add_argument("candidates", nargs="+", metavar="CANDIDATE", help="names; the others stand beside the first")
    parser.add_argument("--tests", action="append", metavar="TESTS", help="a folder or file of tests (./tests)")
    add_common(parser, _FOLDER, "")
    add_files(parser, _FILES)
    parser.set_defaults(run=_run, tolerance=_TOLERANCE)


def _run(arguments: argparse.Namespace) -> int:
    gpu.mark_root(os.environ)  # this process looks at the GPU too, and is no stranger to its children
    try:
        names = list(dict.fromkeys(arguments.candidates))
        if len(names) < 2:
            raise ConfigError(f"{' '.join(names)}: name at least two candidates")
        return _compare(Asked.of(arguments), names, files_of(arguments, _FILES))
    except (ConfigError, HistoryError, UpgradeError) as error:
        print(f"fuseproof versus: {error}", file=sys.stderr)
        return USAGE_ERROR


def _compare(asked: Asked, names: list[str], files: Mapping[str, Path]) -> int:
    from fuseproof.upgrade.absent import absent
    from fuseproof.upgrade.bank import Bank
    from fuseproof.upgrade.measured import measure
    from fuseproof.upgrade.standings import rank
    from fuseproof.upgrade.table import terminal_lines, to_json, to_markdown

    say = partial(print, "versus:", flush=True)
    here = examine(resolve(_ARM, sys.executable), Path.cwd())
    plan = asked.plan("versus", here.machine_slug, {_ARM: about(here)}, names)
    bank = Bank.begin(asked.folder, plan)
    ranked = partial(rank, names=names, rules=asked.rules, tolerance_ln=asked.tolerance_ln)
    try:
        measured = measure(asked, bank, {_ARM: here.environment}, lambda trials: ranked(trials).undecided, say)
    finally:
        bank.end()
    standings = ranked(measured.trials)
    gone = absent(measured.trials, names, "cuda" if here.gpus else "cpu")
    measured = replace(measured, notes=(*measured.notes, *gone))
    tolerance_ln = asked.tolerance_ln
    print("\n".join(terminal_lines(standings, measured, tolerance_ln)))
    texts = {
        "json": as_json(to_json(standings, measured, tolerance_ln)),
        "markdown": to_markdown(standings, measured, tolerance_ln, plan),
    }
    for kind, path in files.items():
        write(path, texts[kind])
    return INTERRUPTED if measured.interrupted else standings.status
