"""What an upgrade does to parity: cases newly wrong and newly right, defects, errors that grew. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fuseproof.upgrade.parity_run import ABSENT, Case, ParityRun

__all__ = ["GROWTH", "CaseChange", "Growth", "ParityChange", "compare"]

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
    """An error that grew, though it is within its budget; in units of it."""

    test: str
    quantity: str
    old: float
    new: float

    def __str__(self) -> str:
        return f"{self.test}: {self.quantity} from {self.old:.3g} to {self.new:.3g} of its budget"


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
        defects_gained: known defects that the new environment shows and the old one does not.
        defects_mended: known defects that only the old one shows.
        vanished: asked in the old one; absent or skipped in the new one.
        appeared: the other way round, and not wrong.
        grown: errors that grew, the greatest first.
        seconds: how long both took.

    """

    old: str = ""
    new: str = ""
    compared: int = 0
    growth: float = GROWTH
    newly_failing: tuple[CaseChange, ...] = ()
    newly_passing: tuple[CaseChange, ...] = ()
    still_failing: tuple[CaseChange, ...] = ()
    defects_gained: tuple[CaseChange, ...] = ()
    defects_mended: tuple[CaseChange, ...] = ()
    vanished: tuple[CaseChange, ...] = ()
    appeared: tuple[CaseChange, ...] = ()
    grown: tuple[Growth, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    @property
    def status(self) -> int:
        """1 if the new environment is wrong where the old one was not, 21 if it cannot be known, else 0."""
        if self.newly_failing or self.defects_gained:
            return 1
        return 21 if self.vanished or not self.compared else 0

    @property
    def sentence(self) -> str:
        """What changed, in a few words; nothing that must be known is left out."""
        if not self.compared:
            return "no case ran in both environments: widen -k, or leave parity out by --no-parity"
        counts = (
            (self.newly_failing, "new failure", "new failures"),
            (self.defects_gained, "known defect gained", "known defects gained"),
            (self.vanished, "case no longer asked", "cases no longer asked"),
            (self.still_failing, "failure in both", "failures in both"),
            (self.defects_mended, "defect mended", "defects mended"),
            (self.newly_passing, "failure mended", "failures mended"),
            (self.appeared, "new case", "new cases"),
            (self.grown, "error grown", "errors grown"),
        )
        words = [f"{len(found)} {one if len(found) == 1 else many}" for found, one, many in counts if found]
        return f"{', '.join(words) or 'unchanged'} in {self.compared} cases"


def compare(old: ParityRun, new: ParityRun, growth: float = GROWTH) -> ParityChange:
    """Compare what came of the cases of two environments.

    Args:
        old, new: the environments.
        growth: the factor beyond which an error is said to have grown, above 1.

    """
    if not growth > 1:
        raise ValueError(f"growth is {growth}; it is a factor above 1")
    found: dict[str, list[CaseChange]] = {}
    grown: list[Growth] = []
    compared = 0
    for test in sorted({*old.cases, *new.cases}):
        before, after = old.cases.get(test, ABSENT), new.cases.get(test, ABSENT)
        both = before.ran and after.ran
        compared += both
        if (kind := _kind(before, after)) is not None:
            why = after.why or before.why
            found.setdefault(kind, []).append(CaseChange(test, before.outcome, after.outcome, why))
        if both:
            grown += _grown(test, before.errors, after.errors, growth)
    grown.sort(key=lambda each: (-each.new / max(each.old, _SMALL), each.test, each.quantity))
    changes = {kind: tuple(changes) for kind, changes in found.items()}
    return ParityChange(
        old.summary,
        new.summary,
        compared,
        growth,
        **changes,  # the names are those of `_kind`
        grown=tuple(grown),
        seconds=old.seconds + new.seconds,
    )


def _kind(old: Case, new: Case) -> str | None:
    """Return which of the lists of `ParityChange` a case belongs to."""
    if new.outcome == "failed":
        return "still_failing" if old.outcome == "failed" else "newly_failing"
    if not new.ran or not old.ran:
        return "vanished" if old.ran else "appeared" if new.ran else None
    if old.outcome == "failed":
        return "newly_passing" if new.outcome in _RIGHT else "still_failing"
    if (old.outcome == "known") == (new.outcome == "known"):
        return None
    return "defects_mended" if new.outcome in _RIGHT else "defects_gained"


def _grown(test: str, old: Mapping[str, float], new: Mapping[str, float], growth: float) -> list[Growth]:
    return [
        Growth(test, quantity, old[quantity], error)
        for quantity, error in new.items()
        if quantity in old and error > growth * max(old[quantity], _SMALL)
    ]
