"""What was asked for and skipped wherever it was asked, by its reasons: nobody may take it for compared. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fuseproof.upgrade.bank import Trial, words_by_test

__all__ = ["Skipped", "by_reason", "in_words", "skipped_everywhere"]


@dataclass(frozen=True)
class Skipped:
    """Tests that were skipped for one reason.

    Attributes:
        reason: in the words of the skip; those of each environment where they differ.
        tests: their ids; of a file that was skipped whole its path.

    """

    reason: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.tests)} skipped: {self.reason}"


def by_reason(reasons: Mapping[str, str]) -> tuple[Skipped, ...]:
    """Group tests by their reasons, the most frequent one first."""
    found: dict[str, list[str]] = {}
    for test, reason in sorted(reasons.items()):
        found.setdefault(reason, []).append(test)
    groups = [Skipped(reason, tuple(tests)) for reason, tests in found.items()]
    return tuple(sorted(groups, key=lambda each: (-len(each.tests), each.reason)))


def in_words(reasons: Mapping[str, str], arms: Iterable[str]) -> str:
    """Return why a test was skipped, by environment: a reason that is that of all of them once."""
    said = {arm: reasons.get(arm, "no such test") for arm in arms}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{arm}: {reason}" for arm, reason in said.items())


def skipped_everywhere(trials: Sequence[Trial]) -> tuple[Skipped, ...]:
    """Return the tests that were skipped in some process, and measured and failed in none."""
    documents = [document for trial in trials for document in trial.documents.values()]
    told = {each["fullname"] for document in documents for each in document["benchmarks"]}
    told |= words_by_test(trials, "failed_tests").keys()
    arms = list(trials[0].documents) if trials else []
    files = {test.partition("::")[0] for test in told}
    return by_reason(
        {
            test: in_words(reasons, arms)
            for test, reasons in words_by_test(trials, "skipped_tests").items()
            if test not in told and test not in files
        }
    )
