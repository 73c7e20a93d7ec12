"""Pairs measured until they answer, the budget is over, somebody ends it or it fails: what is there is kept."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fuseproof.processes import ChildError, terminable
from fuseproof.upgrade.asked import Asked
from fuseproof.upgrade.bank import Bank, Trial
from fuseproof.upgrade.child import Child
from fuseproof.upgrade.environment import Environment
from fuseproof.upgrade.lanes import VISIBLE, lanes
from fuseproof.upgrade.running import Runner
from fuseproof.upgrade.schedule import next_block

__all__ = ["Measured", "measure", "require_some"]


@dataclass(frozen=True)
class Measured:
    """What there is when no more is measured.

    Attributes:
        trials: all finished pairs.
        notes: why there are not more, and what was run again; one sentence each.
        interrupted: by Ctrl-C or SIGTERM.

    """

    trials: Sequence[Trial]
    notes: Sequence[str]
    interrupted: bool

    @property
    def seconds(self) -> float:
        """How long all processes took, those of several GPUs side by side: the longest of their sums."""
        sums: dict[int, float] = {}
        for trial in self.trials:
            sums[trial.gpu] = sums.get(trial.gpu, 0.0) + trial.seconds
        return max(sums.values(), default=0.0)


@terminable()
def measure(
    asked: Asked,
    bank: Bank,
    environments: Mapping[str, Environment],
    undecided: Callable[[Sequence[Trial]], Collection[str]],
    say: Callable[[str], None],
) -> Measured:
    """Measure what the bank's pairs do not answer yet.

    Args:
        asked: what, how many, how long.
        bank: where pairs are kept.
        environments: by arm.
        undecided: ids of the tests that the pairs so far do not decide.
        say: prints a line.

    Raises:
        ConfigError: pytest refuses the command line, or nothing is selected.
        HistoryError: the bank cannot be read or written.

    """
    if kept := len(bank.trials()):
        say(f"finished before and used: {kept}; to measure anew, delete {bank.folder}")
    places = lanes(asked.gpus, os.environ.get(VISIBLE))
    runner = Runner(
        bank,
        environments,
        Child(bank.plan, asked.root, Path.cwd()),
        places,
        lambda trials: next_block(trials, undecided(trials), asked.most, len(places), everything=asked.everything),
        say,
        asked.budget_s,
    )
    interrupted = False
    try:
        runner.run()
    except KeyboardInterrupt:
        interrupted = True
    except ChildError as error:
        runner.notes.append(f"ended: {error}")
    if interrupted or runner.over:
        why = "interrupted" if interrupted else "the budget is over"
        runner.notes.append(f"{why}: the same command goes on with the pairs in {bank.folder}")
    return Measured(bank.trials(), runner.notes, interrupted)


def require_some(asked: Asked, bank: Bank, environment: Environment) -> None:
    """Collect the benchmarks in one environment, seconds before minutes of parity: a -k may fit none of them.

    Raises:
        ConfigError: pytest refuses the command line, or nothing is selected.

    """
    child = Child(bank.plan, asked.root, Path.cwd(), more=("--collect-only",))
    with suppress(ChildError):  # whatever ends it, parity meets it too, and has more to say of it
        child.measure(environment, (), bank.plan.seed, {}, threading.Event())
