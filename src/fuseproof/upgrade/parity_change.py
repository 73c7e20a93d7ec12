"""What an upgrade does to parity: cases newly wrong and newly right, defects, errors that grew. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from fuseproof.statuses import TESTS_FAILED, UNANSWERED
from fuseproof.upgrade.parity_run import ABSENT, ENDLESS, WRONG, Case, ParityRun
from fuseproof.upgrade.skipped import Skipped, by_reason, in_words

__all__ = ["GROWTH", "CaseChange", "Growth", "ParityChange", "compare", "in_budgets"]

# Measured where nothing but the order and the fusing of operations changes, torch's CPU kernels with and without AVX
# (docs/upgrade.md): of 1,373 errors 369 were others, the greatest by 1.54 times; among small ones 3.5 times and, where
# half precision shows an error only if a value lies near a tie, from nothing to something.
GROWTH: Final = 2.0
"""An error that grows by more than this factor is told."""

_SMALL = 0.25  # of a budget: an error below it counts as this large
_RIGHT = ("passed", "mended")


@dataclass(frozen=True)
class CaseChange:
    """A case of which something else came; `absent` where an environment has no such test."""

    test: str
    old: str
    new: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.test}: {self.old} -> {self.new}{f': {self.why}' if self.why else ''}"


@dataclass(frozen=True)
class Growth:
    """An error that grew; in units of its budget."""

    test: str
    quantity: str
    old: float
    new: float

    def __str__(self) -> str:
        return f"{self.test}: {self.quantity} from {in_budgets(self.old)} to {in_budgets(self.new)} of its budget"

    @property
    def times(self) -> float:
        """How many times as large it is, where what is small counts as `_SMALL`."""
        return self.new / max(self.old, _SMALL)


def in_budgets(error: float) -> str:
    """Return an error in units of its budget, in words where it has no size."""
    return "without measure" if error >= ENDLESS else f"{error:.3g}"


@dataclass(frozen=True)
class ParityChange:
    """The parity cases of two environments, compared.

    Attributes:
        old, new: the counts in words.
        compared: cases that ran in both.
        growth: the factor beyond which an error is said to have grown.
        newly_failing: right, known to be wrong, or not asked in the old environment, and wrong in the new one.
        newly_passing: wrong before, and no longer.
        still_failing: wrong in both.
        worsened: of cases that fail in both, the errors that grew, the greatest growth first.
        failing_otherwise: failing in both; before by an error that has a size, and now by something that has none.
        defects_gained: known defects that the new environment shows and the old one does not.
        defects_mended: known defects that only the old one shows.
        vanished: asked in the old one; absent or skipped in the new one.
        appeared: the other way round, and not wrong.
        skipped: asked in neither.
        grown: errors that grew in their budgets, and of known defects; the greatest growth first.
        seconds: how long both took.

    """

    old: str = ""
    new: str = ""
    compared: int = 0
    growth: float = GROWTH
    newly_failing: tuple[CaseChange, ...] = ()
    newly_passing: tuple[CaseChange, ...] = ()
    still_failing: tuple[CaseChange, ...] = ()
    worsened: tuple[Growth, ...] = ()
    failing_otherwise: tuple[CaseChange, ...] = ()
    defects_gained: tuple[CaseChange, ...] = ()
    defects_mended: tuple[CaseChange, ...] = ()
    vanished: tuple[CaseChange, ...] = ()
    appeared: tuple[CaseChange, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    grown: tuple[Growth, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def status(self) -> int:
        """1 if the new environment is wrong where the old one was not, or more so, 21 if nobody can know, else 0."""
        if self.newly_failing or self.defects_gained or self.worsened:
            return TESTS_FAILED
        return UNANSWERED if self.vanished or self.failing_otherwise or not self.compared else 0

    @property
    def sentence(self) -> str:
        """What changed, in a few words; nothing that must be known is left out."""
        if not self.compared:
            return "no case ran in both environments: widen -k, or leave parity out by --no-parity"
        counts = (
            (self.newly_failing, "new failure", "new failures"),
            (self.defects_gained, "known defect gained", "known defects gained"),
            (self.still_failing, f"failure in both{self._worse}", f"failures in both{self._worse}"),
            (self.vanished, "case no longer asked", "cases no longer asked"),
            (self.failing_otherwise, "failing in both, in another way", "failing in both, in other ways"),
            (self.defects_mended, "defect mended", "defects mended"),
            (self.newly_passing, "failure mended", "failures mended"),
            (self.appeared, "new case", "new cases"),
            (self.grown, "error grown", "errors grown"),
        )
        words = [f"{len(found)} {one if len(found) == 1 else many}" for found, one, many in counts if found]
        neither = sum(len(each.tests) for each in self.skipped)
        skipped = f", {neither} skipped in both" if neither else ""
        return f"{', '.join(words) or 'unchanged'} in {self.compared} cases{skipped}"

    @property
    def _worse(self) -> str:
        """How many of the cases that fail in both are further off, and how far."""
        if not self.worsened:
            return ""
        endless = any(each.new >= ENDLESS for each in self.worsened)
        far = "beyond measure" if endless else f"by up to {max(each.times for each in self.worsened):.3g} times"
        return f", {len({each.test for each in self.worsened})} of them worse {far}"


def compare(old: ParityRun, new: ParityRun, growth: float = GROWTH) -> ParityChange:
    """Compare what came of the cases of two environments.

    Args:
        old, new: the environments.
        growth: the factor beyond which an error is said to have grown, above 1.

    Raises:
        ValueError: the factor is not above 1.

    """
    if not growth > 1:
        raise ValueError(f"growth is {growth}; it is a factor above 1")
    found: dict[str, list[CaseChange]] = {}
    grown: list[Growth] = []
    worsened: list[Growth] = []
    skipped: dict[str, str] = {}
    compared = 0
    for test in sorted({*old.cases, *new.cases}):
        before, after = old.cases.get(test, ABSENT), new.cases.get(test, ABSENT)
        both = before.ran and after.ran
        compared += both
        if not before.ran and not after.ran:
            reasons = {arm: each.why for arm, each in (("old", before), ("new", after)) if each is not ABSENT}
            skipped[test] = in_words(reasons, ("old", "new"))
        if (kind := _kind(before, after)) is not None:
            why = after.why or before.why
            found.setdefault(kind, []).append(CaseChange(test, before.outcome, after.outcome, why))
        if both:
            both_fail = before.outcome == after.outcome == "failed"
            for each in _grown(test, before, after, growth):
                (worsened if both_fail and each.new >= 1 else grown).append(each)
    for errors in (grown, worsened):
        errors.sort(key=lambda one: (-one.times, one.test, one.quantity))
    changes = {kind: tuple(changes) for kind, changes in found.items()}
    return ParityChange(
        old.summary,
        new.summary,
        compared,
        growth,
        **changes,  # the names are those of `_kind`
        skipped=by_reason(skipped),
        grown=tuple(grown),
        worsened=tuple(worsened),
        seconds=old.seconds + new.seconds,
    )


def _kind(old: Case, new: Case) -> str | None:
    """Return which of the lists of `ParityChange` a case belongs to."""
    if new.outcome == "failed":
        if old.outcome != "failed":
            return "newly_failing"
        return "failing_otherwise" if _beyond(old) and not _beyond(new) else "still_failing"
    if not new.ran or not old.ran:
        return "vanished" if old.ran else "appeared" if new.ran else None
    if old.outcome == "failed":
        return "newly_passing" if new.outcome in _RIGHT else "still_failing"
    if (old.outcome == "known") == (new.outcome == "known"):
        return None
    return "defects_mended" if new.outcome in _RIGHT else "defects_gained"


def _beyond(case: Case) -> list[float]:
    """Return the errors of a wrong case that are beyond their budgets."""
    return [error for error in case.errors.values() if error >= 1] if case.outcome in WRONG else []


def _grown(test: str, old: Case, new: Case, growth: float) -> list[Growth]:
    """Return what grew; where both are wrong, a check that fails in the new one only beside the worst of the old one.

    A case ends with the first check that fails: what the other environment says of the same quantity need not exist.
    """
    before = dict(old.errors)
    if worst := max(_beyond(old), default=0.0):
        before = {quantity: worst for quantity, error in new.errors.items() if error >= 1} | before
    return [
        Growth(test, quantity, before[quantity], error)
        for quantity, error in new.errors.items()
        if quantity in before and error > growth * max(before[quantity], _SMALL)
    ]
