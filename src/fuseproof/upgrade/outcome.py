"""The answer of an upgrade: what was compared, what is said of it, and the exit status that follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseproof.statuses import REGRESSED, TESTS_FAILED, UNANSWERED
from fuseproof.verdicts.verdict import Outcome, Pair, Verdict, exit_status

if TYPE_CHECKING:
    from fuseproof.upgrade.environment import Examined
    from fuseproof.upgrade.parity_change import ParityChange
    from fuseproof.upgrade.skipped import Skipped

__all__ = ["Upgrade"]


@dataclass(frozen=True)
class Upgrade:
    """One comparison of two environments.

    Attributes:
        old, new: the environments as examined.
        verdicts: worst first: times, and what is compared exactly (kernels, launches, memory). IMPROVED is proven
            faster (or less); PASS(EXACT) is a change that is neither worse nor better: other kernels.
        durations: old and new median as recorded: nanoseconds, bytes, a count, a name. Metrics that are reported and
            not judged are here too.
        parity: what changed between the environments; None where it was not asked for.
        pairs: finished pairs of processes.
        seconds: how long their processes took, GPUs side by side; those of an interrupted run included.
        interrupted: whether it was ended before its end: what is undecided may still be decided.
        tolerance_ln: the largest slow-down that is none, a logarithm.
        selection: what was asked for, in words.
        notes: what a reader must know besides, one sentence each: a pair that measured nothing, a budget that is over.
        skipped: benchmarks that were asked for and skipped in both.

    """

    old: Examined
    new: Examined
    verdicts: Sequence[Verdict]
    durations: Mapping[Pair, tuple[Any, Any]]
    parity: ParityChange | None
    pairs: int
    seconds: float
    interrupted: bool
    tolerance_ln: float
    selection: str
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()

    @property
    def status(self) -> int:
        """The exit status: 1 newly wrong results, 20 slower or hungrier, 21 not known, 0 neither."""
        parity = 0 if self.parity is None else self.parity.status
        # A benchmark that only the new environment has is nothing to switch back for.
        asked = [verdict for verdict in self.verdicts if verdict.outcome is not Outcome.NEW]
        found = {parity, exit_status(asked, required_gate=True), 0 if asked else UNANSWERED}
        return next((status for status in (TESTS_FAILED, REGRESSED, UNANSWERED) if status in found), 0)
