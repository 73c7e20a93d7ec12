"""Benchmarks chosen by their keys, and the acceptance of a night's level of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fuseproof.gate.ledger import Ledger
from fuseproof.gate.present import night_label
from fuseproof.gate.records import by_metric
from fuseproof.history import History
from fuseproof.run_file import dated_ahead
from fuseproof.storage import HistoryError, shown
from fuseproof.tables import nearest
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.verdict import SUITE, Pair

__all__ = ["Accepted", "accept", "chosen"]


def chosen(patterns: Sequence[str], metric: str | None, known: Iterable[Pair]) -> list[Pair]:
    """Return the known pairs whose keys fit a pattern, in order.

    Raises:
        HistoryError: a pattern fits none, or no chosen benchmark has the metric; with the nearest that is known.

    """
    pairs = sorted(pair for pair in set(known) if pair.key != SUITE)
    for pattern in patterns:
        if not any(fnmatchcase(pair.key, pattern) for pair in pairs):
            help_ = nearest(pattern, {pair.key for pair in pairs}) if pairs else "the history is empty"
            raise HistoryError(f"no benchmark of the history has the key {pattern!r}; {help_}")
    found = [pair for pair in pairs if any(fnmatchcase(pair.key, pattern) for pattern in patterns)]
    kept = [pair for pair in found if metric in (None, pair.metric)]
    if not kept:
        raise HistoryError(
            f"these benchmarks have no metric {metric!r}; {nearest(str(metric), {p.metric for p in found})}"
        )
    return kept


@dataclass(frozen=True)
class Accepted:
    """What was accepted.

    Attributes:
        night: whose level it is.
        pairs: for which a new segment starts.
        retired: which that night does not have.
        reason, who: as kept.
        notes: what whoever accepts must know besides.

    """

    night: Night
    pairs: tuple[Pair, ...]
    retired: tuple[Pair, ...]
    reason: str
    who: str
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        where = night_label(self.night)
        lines = [f"accepted with night {where}: {pair}" for pair in self.pairs]
        lines += [f"retired with night {where}, which does not have it: {pair}" for pair in self.retired]
        return [*lines, *self.notes]

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "night": self.night.name,
            "accepted": by_metric(self.pairs),
            "retired": by_metric(self.retired),
            "reason": self.reason,
            "who": self.who,
            "notes": list(self.notes),
        }


def accept(
    history: History,
    machine: str,
    patterns: Sequence[str],
    metric: str | None,
    night: str | None,
    reason: str,
    who: str,
) -> Accepted:
    """Accept a night's level of the benchmarks that fit the patterns, and remember it.

    Args:
        history, machine: whose nights.
        patterns: keys, or patterns of them.
        metric: one, or all.
        night: a night's name; None for the newest.
        reason, who: for whoever asks later.

    Raises:
        HistoryError: nothing fits, the night is not there or did not measure it soundly, or it cannot be written.

    """
    ledger = Ledger(history, machine)
    nights = ledger.nights(everything=True)
    if not reason.strip() or not who.strip():
        raise HistoryError("an acceptance has a reason and somebody who gives it; neither may be empty")
    if not nights:
        raise HistoryError(f"{shown(history.root)}: no readable run of {machine}; nothing can be accepted")
    names = [each.name for each in nights]
    if night is not None and night not in names:
        raise HistoryError(f"{shown(history.root)}: {machine} has no night {night!r}; {nearest(night, names)}")
    accepted = nights[-1] if night is None else nights[names.index(night)]
    pairs = chosen(patterns, metric, {pair for each in nights for pair in each.pairs})
    here = tuple(pair for pair in pairs if pair in accepted.pairs)
    gone = tuple(pair for pair in pairs if pair not in accepted.pairs)
    for pair in here:
        if pair.key in accepted.invalid:
            why = "; ".join(accepted.invalid[pair.key])
            raise HistoryError(
                f"night {accepted.name}: {pair} is INVALID ({why}); accept it with a night that is sound"
            )
    ledger.accept(accepted.name, pairs, reason, who)
    return Accepted(accepted, here, gone, reason, who, tuple(dated_ahead(history.files(machine))))
