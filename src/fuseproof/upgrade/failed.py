"""Benchmarks that were asked for and whose tests failed: a verdict of their own where no other one tells. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuseproof.upgrade.bank import Trial, words_by_test
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

__all__ = ["TEST", "judge_failures"]

TEST = "test"
"""The metric of a verdict on a benchmark whose key nobody knows: its `Pair.key` is the id of the test that failed."""


def judge_failures(trials: Sequence[Trial], arms: tuple[str, str]) -> Iterator[Verdict]:
    """Yield INVALID for each test that failed, but for those that MISSING or NEW tells, or that the new arm measured.

    So it is said of a test that fails in both, of one that fails in one and is skipped in the other, and of one that
    fails in the new arm in some processes only: that its times are fine says nothing of it.
    """
    old, new = arms
    measured = {
        arm: {each["fullname"] for trial in trials for each in trial.documents[arm]["benchmarks"]} for arm in arms
    }
    for test, words in sorted(words_by_test(trials, "failed_tests").items()):
        gone = test in measured[old] and test not in measured[new]
        mended = new not in words and test in measured[new]
        if not gone and not mended:
            where = " and ".join(arm for arm in arms if arm in words)
            detail = f"its test fails in {where}: {words.get(new, words.get(old))}"
            yield Verdict(Pair(test, TEST), Outcome.INVALID, (Reason.FAILED,), detail=detail)
