"""What a history of several GPUs of one model does to the gate, simulated with the functions that it ships.

Run `python docs/board_simulation.py [HISTORIES]`. A fleet has some boards; each is slower or faster than the model by a
common and an own effect for each benchmark, of the sizes that were measured (docs/verdicts.md, section 12). A night is
one process on a board that is drawn anew, or, where the board has changed, on one that no night before ran on. What is
suspect is confirmed on tonight's board, alone or in pairs. One benchmark in five is slowed, where any is.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuseproof.gate.settings import GateSettings
from fuseproof.verdicts.night import Night, Values
from fuseproof.verdicts.nightly import Evidence, confirm_plan, judge, screen
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

Floats = npt.NDArray[np.float64]

SIGMAS = (0.001, 0.002, 0.004, 0.01)  # between processes on one board
BENCHMARKS = 60
COMMON_LN, OWN_LN = 0.003, 0.005  # of a board: 25 of 32 kernels slower by 0.6 % in the median, one by 2.7 %
NIGHTS = 24
SHARE = 5
ADDED_PERCENT = (0.0, 2.0, 5.0)
RULES = GateSettings().rules
RNG = np.random.default_rng(20261130)
SIGMA = np.tile(SIGMAS, BENCHMARKS // len(SIGMAS))
PAIRS = [Pair(f"op/candidate/fp32/{place:02d}", "device_time_ns") for place in range(BENCHMARKS)]
LEVEL_LN = np.log(np.tile(np.geomspace(2e4, 3e6, BENCHMARKS // len(SIGMAS)), (len(SIGMAS), 1)).T.ravel())


@dataclass(frozen=True)
class Fleet:
    """Where nights run.

    Attributes:
        words: what it is called.
        boards: how many the history ran on.
        known: whether runs say on which.
        new: tonight's board is none of them.

    """

    words: str
    boards: int
    known: bool = True
    new: bool = False


FLEETS = (
    Fleet("one board", 1),
    Fleet("two boards", 2),
    Fleet("four boards", 4),
    Fleet("eight boards", 8),
    Fleet("one board, tonight another", 1, new=True),
    Fleet("four boards, not recorded", 4, known=False),
    Fleet("one board, tonight another, not recorded", 1, known=False, new=True),
)


def process(board: Floats, added: Floats | float = 0.0) -> Values:
    """Return what a fresh process on a board measures."""
    logs = LEVEL_LN + board + added + SIGMA * RNG.standard_normal(BENCHMARKS)
    return dict(zip(PAIRS, np.exp(logs).tolist(), strict=True))


def night(fleet: Fleet, name: str, board: int, values: Values) -> Night:
    """Return a night of one process on a board."""
    return Night(name, [values], boards=frozenset({f"board {board}"} if fleet.known else ()))


def judged(fleet: Fleet, percent: float, *, paired: bool) -> tuple[list[Verdict], frozenset[Pair]]:
    """Judge one night by a history of its own; return the verdicts, and what had been slowed."""
    shape = (fleet.boards + fleet.new, BENCHMARKS)
    boards = COMMON_LN * RNG.standard_normal((shape[0], 1)) + OWN_LN * RNG.standard_normal(shape)
    ran_on = RNG.integers(fleet.boards, size=NIGHTS + 1)
    tonight = fleet.boards if fleet.new else int(ran_on[-1])
    history = [night(fleet, f"n{n:02d}", int(b), process(boards[b])) for n, b in enumerate(ran_on[:-1])]
    slowed = np.arange(BENCHMARKS) % SHARE == RNG.integers(SHARE) if percent else np.zeros(BENCHMARKS, dtype=bool)
    added = slowed * math.log1p(percent / 100)
    screening = screen(
        history,
        night(fleet, "tonight", tonight, process(boards[tonight], added)),
        rules=RULES,
        paired=paired,
        full_selection=False,
    )
    evidence = Evidence()
    while confirm_plan(screening, evidence):
        evidence = evidence.add(process(boards[tonight], added), process(boards[tonight]) if paired else None)
    return judge(screening, evidence), frozenset(pair for pair, on in zip(PAIRS, slowed, strict=True) if on)


def said(verdict: Verdict) -> str:
    """Return which column a verdict belongs to."""
    if verdict.outcome is Outcome.REGRESSED or Reason.HELD in verdict.reasons:
        return "blamed"
    return "BOARD" if Reason.BOARD in verdict.reasons else "other"


def row(fleet: Fleet, histories: int, *, paired: bool) -> Iterator[str]:
    """Yield the cells of a fleet, confirmed in one way."""
    for percent in ADDED_PERCENT:
        counts: Counter[tuple[bool, str]] = Counter()
        nights: Counter[str] = Counter()
        for _ in range(histories):
            verdicts, slowed = judged(fleet, percent, paired=paired)
            found = [(pair in slowed, said(each)) for each in verdicts for pair in each.members or [each.pair]]
            counts.update(found)
            nights.update({word for on, word in found if not on})
        if not percent:
            yield f"{nights['blamed'] / histories:.1%}"
            yield f"{nights['BOARD'] / histories:.1%}"
            continue
        asked = sum(count for (on, _), count in counts.items() if on)
        yield f"{counts[True, 'blamed'] / asked:.0%}"
        yield f"{counts[True, 'BOARD'] / asked:.0%}"


def main() -> None:
    """Print the table."""
    histories = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    start = time.perf_counter()
    heads = ["nights on", "confirmed", "nothing changed: nights that blame", "nights with INVALID(BOARD)"]
    heads += [f"+{percent:g} %: {word}" for percent in ADDED_PERCENT[1:] for word in ("blamed", "INVALID(BOARD)")]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for fleet in FLEETS:
        for paired, way in ((False, "alone"), (True, "in pairs")):
            print(f"| {fleet.words} | {way} | {' | '.join(row(fleet, histories, paired=paired))} |", flush=True)
    print(f"<!-- {histories} histories a cell, {time.perf_counter() - start:.0f} s -->")


if __name__ == "__main__":
    main()
