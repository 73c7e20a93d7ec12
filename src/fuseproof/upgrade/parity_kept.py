"""Parity in both environments, each measured once: what came of it is kept beside the pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from fuseproof.storage import read_document
from fuseproof.upgrade.asked import Asked
from fuseproof.upgrade.bank import Bank
from fuseproof.upgrade.environment import Examined
from fuseproof.upgrade.parity_change import ParityChange, compare
from fuseproof.upgrade.parity_run import SCHEMA, ParityRun, measure_parity, read_run

__all__ = ["parity"]


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
        UpgradeError: pytest crashed, hung, was refused or ended early: nothing is known of the rest.
        HistoryError: what is kept cannot be read or written.

    """
    old, new = (_run(asked, bank, each, workers, say) for each in both)
    return compare(old, new)


def _run(asked: Asked, bank: Bank, examined: Examined, workers: int, say: Callable[[str], None]) -> ParityRun:
    path = bank.beside(f"parity-{examined.name}")
    if path.exists():
        kept = read_run(path, f"parity in {examined.name}", float(read_document(path).get("seconds", 0.0)))
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
    )
    tests = {test: asdict(case) for test, case in run.cases.items()}
    bank.keep(path, {"schema": SCHEMA, "finished": True, "seconds": round(run.seconds, 1), "tests": tests})
    return run
