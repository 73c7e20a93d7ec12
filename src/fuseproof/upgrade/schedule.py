"""What runs next: how many pairs until the next look, of which benchmarks, in which order of the arms."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fuseproof.upgrade.bank import Trial
from fuseproof.verdicts.looks import LOOKS

__all__ = ["Block", "next_block", "order_of_arms", "tests_of_all"]


@dataclass(frozen=True)
class Block:
    """Pairs that run before the next look.

    Attributes:
        numbers: theirs.
        done: pairs before them.
        look: after so many pairs is looked.
        most: pairs in all.
        tests: ids of what they run; empty for whatever the command line chooses.
        what: for the line of progress.

    """

    numbers: tuple[int, ...]
    done: int
    look: int
    most: int
    tests: tuple[str, ...]
    what: str


def order_of_arms(arms: Sequence[str], place: int) -> list[str]:
    """Return the order in which the arms of a GPU's pair run, the `place`-th there: AB, BA, AB, BA.

    Whatever drifts along alters both arms alike.
    """
    return list(reversed(arms)) if place % 2 else list(arms)


def tests_of_all(trials: Sequence[Trial]) -> tuple[str, ...]:
    """Return the ids of all that was measured; none where a test has failed, which may be seen next time.

    Named tests are collected in a fraction of the time of a whole suite.
    """
    documents = [document for trial in trials for document in trial.documents.values()]
    if any(document["upgrade"]["failed"] for document in documents):
        return ()
    return tuple(sorted({each["fullname"] for document in documents for each in document["benchmarks"]}))


def next_block(
    trials: Sequence[Trial], undecided: Collection[str], most: int, lanes: int, *, everything: bool = False
) -> Block | None:
    """Return the pairs until the next look; None where nothing is left to run.

    The first block is one pair on each GPU: it says what there is to measure, and whether anything can be.

    Args:
        trials: the pairs so far.
        undecided: ids of the tests whose benchmarks are not decided by them.
        most: pairs in all.
        lanes: pairs that run side by side.
        everything: all benchmarks take part in all pairs, decided ones too.

    """
    done = len(trials)
    known = {trial.number for trial in trials}
    if not done:
        return Block(tuple(range(min(lanes, LOOKS[0]))), 0, LOOKS[0], most, (), "all benchmarks")
    if done >= most or not (undecided or everything):
        return None
    target = min(most, next((count for count in LOOKS if count > done), most))
    numbers = tuple([number for number in range(target) if number not in known][: target - done])
    if done < LOOKS[0] or everything:
        return Block(numbers, done, target, most, tests_of_all(trials), "all benchmarks")
    tests = tuple(sorted(undecided))
    return Block(numbers, done, target, most, tests, f"{len(tests)} undecided benchmark{'s' * (len(tests) > 1)}")
