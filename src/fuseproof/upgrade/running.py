"""Pairs of processes, run block after block until everything is decided: side by side, one GPU each, ABBA on each."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from fuseproof.processes import ChildError, Progress, side_by_side
from fuseproof.upgrade.bank import Bank, Trial
from fuseproof.upgrade.child import Child
from fuseproof.upgrade.environment import Environment
from fuseproof.upgrade.lanes import Lane
from fuseproof.upgrade.schedule import Block, order_of_arms

__all__ = ["Runner"]

_ATTEMPTS = 2  # one crash may be chance; a pair that crashes twice will crash again


@dataclass
class Runner:
    """Runs the pairs of one bank.

    Attributes:
        bank: where they are kept.
        environments: by arm.
        child: starts processes.
        lanes: where they run.
        next_block: says what to run next, from the pairs so far; None when there is nothing left to ask.
        say: prints a line of progress.
        budget_s: no pair is started that would not end within so many seconds; None for as many as it takes.
        notes: what went wrong, one sentence each.
        over: the budget is.

    """

    bank: Bank
    environments: Mapping[str, Environment]
    child: Child
    lanes: Sequence[Lane]
    next_block: Callable[[Sequence[Trial]], Block | None]
    say: Callable[[str], None]
    budget_s: float | None = None
    notes: list[str] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        self._begun_s = time.monotonic()
        self._guard = threading.Lock()
        self._places: Counter[int] = Counter()
        self._longest_s = 0.0
        self._last_s: list[float] = []
        self._unit = "pair" if len(self.environments) > 1 else "process"

    def run(self) -> None:
        """Run block after block.

        Raises:
            ChildError: a pair has failed twice; what was finished is kept.
            ConfigError: pytest refuses the command line, or it selects nothing.
            KeyboardInterrupt: by Ctrl-C or SIGTERM; what was finished is kept.

        """
        trials = self.bank.trials()
        self._places = Counter(trial.gpu for trial in trials)
        while (block := self.next_block(trials)) is not None and not self.over:
            self._run_block(block)
            trials = self.bank.trials()

    def _run_block(self, block: Block) -> None:
        waiting = deque(block.numbers)
        lanes = self.lanes[: len(waiting)]
        known_s = self._last_s[-len(lanes) :]
        progress = Progress(self.say, block.what, known_s, side_by_side=len(lanes), until="to the look")
        side_by_side([partial(self._work, lane, waiting, block, progress) for lane in lanes])
        self._last_s = progress.steps_s  # the next block measures no more than this one

    def _work(self, lane: Lane, waiting: deque[int], block: Block, progress: Progress, stop: threading.Event) -> None:
        lane.pin()
        while not stop.is_set():
            with self._guard:
                if not waiting or self._ends_too_late():
                    return
                number = waiting.popleft()
            place = block.done + len(block.numbers) - len(waiting)
            told = f"{place} (look at {block.look}, at most {block.most})"
            with progress.step(place, block.look, self._unit, told):
                trial = self._pair(number, lane, block.tests, stop)
                with self._guard:
                    self.bank.add(trial)
                    self._longest_s = max(self._longest_s, trial.seconds)

    def _ends_too_late(self) -> bool:
        if self.budget_s is None or not self._longest_s:
            return False
        self.over = self.over or time.monotonic() - self._begun_s + self._longest_s > self.budget_s
        return self.over

    def _pair(self, number: int, lane: Lane, tests: Sequence[str], stop: threading.Event) -> Trial:
        with self._guard:
            place = self._places[lane.number]
            self._places[lane.number] += 1
        arms = order_of_arms(list(self.environments), place)
        seed = f"{self.bank.plan.seed}-{number}"
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                documents = {
                    arm: self.child.measure(self.environments[arm], tests, seed, lane.variables, stop) for arm in arms
                }
                return Trial(number, lane.number, arms[0], documents)
            except ChildError as error:
                if attempt == _ATTEMPTS or stop.is_set():
                    raise
                self.notes.append(f"{self._unit} {number + 1} was run again: {error}")
                self.say(self.notes[-1])
        raise AssertionError("unreachable")
