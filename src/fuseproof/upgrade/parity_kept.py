"""Parity in both environments, at once where there are two GPUs: what came of it is kept beside the pairs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from fuseproof.processes import side_by_side, terminable
from fuseproof.statuses import UNANSWERED
from fuseproof.upgrade.asked import Asked
from fuseproof.upgrade.bank import Bank
from fuseproof.upgrade.environment import Examined, UpgradeError
from fuseproof.upgrade.lanes import VISIBLE, lanes
from fuseproof.upgrade.parity_change import ParityChange, compare
from fuseproof.upgrade.parity_run import SCHEMA, ParityRun, measure_parity, read_run

__all__ = ["parity"]


@terminable()
def parity(
    asked: Asked, bank: Bank, both: Sequence[Examined], workers: int, say: Callable[[str], None]
) -> ParityChange:
    """Return what changes of parity from the first environment to the second.

    Args:
        asked: which cases.
        bank: where what came of them is kept.
        both: old and new.
        workers: processes that share the cases.
        say: prints a line.

    Raises:
        UpgradeError: pytest crashed, hung, was refused or ended early: nothing is known of the rest; or there is no
            case at all, so that no measuring could decide.
        HistoryError: what is kept cannot be read or written.
        KeyboardInterrupt: by Ctrl-C or SIGTERM; what is kept has been said.

    """
    devices = [lane.variables[VISIBLE] for lane in lanes(asked.gpus, os.environ.get(VISIBLE)) if lane.variables]
    together = len(devices) >= len(both)
    shares = [devices[number :: len(both)] if together else devices for number in range(len(both))]
    runs = [
        partial(_run, asked, bank, examined, workers, say, {VISIBLE: ",".join(share)} if share else {})
        for examined, share in zip(both, shares, strict=True)
    ]
    try:
        old, new = side_by_side(runs) if together else [run(None) for run in runs]
    except KeyboardInterrupt:
        say(_interrupted([each.name for each in both if _path(bank, each).exists()]))
        raise
    if not old.cases and not new.cases:
        which = f" -k {asked.keyword!r}" * bool(asked.keyword)
        raise UpgradeError(f"no parity case fits {' '.join(asked.tests)}{which}: widen it, or give --no-parity")
    change = compare(old, new)
    if not change.compared and change.status == UNANSWERED:
        say("parity: no case ran in both, so the answer will be 'Not decided': widen -k, or give --no-parity")
    return change


def _interrupted(kept: Sequence[str]) -> str:
    if not kept:
        return "interrupted in parity: nothing of it is kept; the same command starts it again"
    return f"interrupted in parity: that of {' and '.join(kept)} is kept; the same command goes on with the rest"


def _path(bank: Bank, examined: Examined) -> Path:
    return bank.beside(f"parity-{examined.name}")


def _run(
    asked: Asked,
    bank: Bank,
    examined: Examined,
    workers: int,
    say: Callable[[str], None],
    variables: Mapping[str, str],
    stop: threading.Event | None,
) -> ParityRun:
    path = _path(bank, examined)
    if path.exists():
        kept = read_run(path, f"parity in {examined.name}")
        say(f"parity: {examined.name} environment: {kept.summary}, as kept in {bank.folder}")
        return kept
    run = measure_parity(
        examined,
        [str(asked.root / test) for test in asked.tests],
        asked.keyword,
        Path.cwd(),
        workers,
        say,
        arguments=(f"--rootdir={asked.root}", *asked.arguments),
        variables=variables,
        stop=stop,
    )
    if not run.cases:  # found again by collecting alone; a mistaken -k must leave nothing that holds the folder
        return run
    tests = {test: asdict(case) for test, case in run.cases.items()}
    bank.keep(path, {"schema": SCHEMA, "finished": True, "seconds": round(run.seconds, 1), "tests": tests})
    return run
