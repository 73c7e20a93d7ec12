"""Benchmarks chosen by their keys, and the acceptance of a night's level of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fuseproof.gate.ledger import Ledger
from fuseproof.gate.present import night_label
from fuseproof.gate.records import NightRecord, by_metric, pairs_of
from fuseproof.history import History
from fuseproof.run_file import dated_ahead
from fuseproof.storage import HistoryError, shown
from fuseproof.tables import nearest
from fuseproof.verdicts.night import Night, is_part
from fuseproof.verdicts.screening import expected
from fuseproof.verdicts.verdict import SUITE, Pair, Reason

__all__ = ["Accepted", "Withdrawn", "accept", "chosen", "withdraw"]


def chosen(
    patterns: Sequence[str], metric: str | None, known: Iterable[Pair], whose: str = "of the history"
) -> list[Pair]:
    """Return the known pairs whose keys fit a pattern, in order.

    Raises:
        HistoryError: a pattern fits none, or no chosen benchmark has the metric; with the nearest that is known.

    """
    pairs = sorted(pair for pair in set(known) if pair.key != SUITE)
    for pattern in patterns:
        if not any(fnmatchcase(pair.key, pattern) for pair in pairs):
            help_ = nearest(pattern, {pair.key for pair in pairs}) if pairs else "the history is empty"
            raise HistoryError(f"no benchmark {whose} has the key {pattern!r}; {help_}")
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
        retired: which that night does not have, though it was asked for them.
        left: which it was not asked for: nothing changes for them.
        reason, who: as kept.
        notes: what whoever accepts must know besides.

    """

    night: Night
    pairs: tuple[Pair, ...]
    retired: tuple[Pair, ...]
    left: tuple[Pair, ...]
    reason: str
    who: str
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        where = night_label(self.night)
        lines = [f"accepted with night {where}: {pair}" for pair in self.pairs]
        lines += [f"retired with night {where}, which does not have it: {pair}" for pair in self.retired]
        lines += [f"left as it is, night {where} was not asked for it: {pair}" for pair in self.left]
        return [*lines, *self.notes]

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "night": self.night.name,
            "accepted": by_metric(self.pairs),
            "retired": by_metric(self.retired),
            "left": by_metric(self.left),
            "reason": self.reason,
            "who": self.who,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Withdrawn:
    """What is accepted no longer.

    Attributes:
        pairs: by the name of the night with which each was accepted.
        since: by the name of a night that was judged by these levels, the pairs that it measured.
        labels: of the nights, by name.
        reason, who: as kept.

    """

    pairs: Mapping[str, Sequence[Pair]]
    since: Mapping[str, Sequence[Pair]]
    labels: Mapping[str, str]
    reason: str
    who: str

    def lines(self) -> list[str]:
        """Return it for a terminal."""
        lines = [
            f"no longer accepted with night {self.labels[night]}: {pair}"
            for night, pairs in self.pairs.items()
            for pair in pairs
        ]
        since = [f"judged by that level, so no baseline: night {self.labels[night]}" for night in self.since]
        return [*lines, *since]

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return {
            "withdrawn": {night: by_metric(pairs) for night, pairs in self.pairs.items()},
            "no_baseline": {night: by_metric(pairs) for night, pairs in self.since.items()},
            "reason": self.reason,
            "who": self.who,
        }


def withdraw(
    history: History,
    machine: str,
    patterns: Sequence[str],
    metric: str | None,
    night: str | None,
    reason: str,
    who: str,
) -> Withdrawn:
    """Take back the newest acceptance of the benchmarks that fit the patterns: all is judged as if it had not been.

    Nights that were judged by that level are no baseline for these benchmarks, up to the next acceptance.

    Args:
        history, machine, patterns, metric, reason, who: as for `accept`.
        night: the night whose level was accepted; None for each benchmark's newest.

    Raises:
        HistoryError: nothing fits, nothing that fits is accepted, or it cannot be written.

    """
    ledger = Ledger(history, machine)
    nights = ledger.nights(everything=True)
    _check_words(reason, who)
    accepted = {pair: each for each in nights if night in (None, each.name) for pair in each.accepted}
    if not accepted:
        where = f"with night {night!r}" if night is not None else f"of {machine}"
        raise HistoryError(f"{shown(history.root)}: no level {where} is accepted, so there is none to withdraw")
    said = _said(history, machine)
    found: dict[str, list[Pair]] = {}
    since: dict[str, list[Pair]] = {}
    for pair in chosen(patterns, metric, accepted, "whose level is accepted"):
        start = accepted[pair]
        found.setdefault(start.name, []).append(pair)
        judged = _judged_since(said, start.name, pair)
        for each in nights[nights.index(start) + 1 :]:
            if start.methods.get(pair.key) not in (None, each.methods.get(pair.key)):
                continue  # another method's nights have a level of their own
            if pair in each.accepted:
                break
            if each.name in judged and pair in each.pairs:
                since.setdefault(each.name, []).append(pair)
    ledger.withdraw(found, since, reason, who)
    return Withdrawn(found, since, {each.name: night_label(each) for each in nights}, reason, who)


def _said(history: History, machine: str) -> list[tuple[str, dict[str, Any]]]:
    """Return all that was said, with the night's name, in the order in which it was."""
    said = []
    for file in history.records(machine):
        with suppress(HistoryError):  # its night is no baseline anyway
            said.append((file.night, history.load_record(file)))
    return said


def _judged_since(said: Sequence[tuple[str, dict[str, Any]]], start: str, pair: Pair) -> set[str]:
    """Return the nights on which a session has judged a pair since its level of a night was accepted."""
    at = [
        each for each, (name, what) in enumerate(said) if name == start and pair in pairs_of(what.get("accepted", {}))
    ]
    since = said[max(at, default=0) :]  # the acceptance is known by the index, and its file may be unreadable by now
    marks = [(name, NightRecord.read([what]).marks.get(pair)) for name, what in since if "verdicts" in what]
    return {name for name, mark in marks if mark is not None and Reason.WITHDRAWN not in mark.reasons}


def _unsound(night: Night, pair: Pair) -> str:
    """Return why a night's value of a pair is no level that can be accepted; empty where it is one."""
    mark = night.marks.get(pair)
    marked = mark.reasons if mark is not None and mark.is_invalid(accepted=True) else ()
    return "; ".join([*night.invalid.get(pair.key, ()), *marked])


def _notes(ledger: Ledger) -> tuple[str, ...]:
    """Say what the newest night may not be: a file that cannot be read may be newer, or one may be dated ahead."""
    aside = (f"set aside: {sentence}" for sentence in ledger.set_aside)
    return (*dated_ahead(ledger.history.files(ledger.machine)), *aside)


def _check_words(reason: str, who: str) -> None:
    if not reason.strip() or not who.strip():
        raise HistoryError("an acceptance has a reason and somebody who gives it; neither may be empty")


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
        HistoryError: nothing fits, the night is not there, was not asked for it or did not measure it soundly, or it
            cannot be written.

    """
    ledger = Ledger(history, machine)
    nights = ledger.nights(everything=True)
    _check_words(reason, who)
    if not nights:
        raise HistoryError(f"{shown(history.root)}: no readable run of {machine}; nothing can be accepted")
    names = [each.name for each in nights]
    if night is not None and night not in names:
        raise HistoryError(f"{shown(history.root)}: {machine} has no night {night!r}; {nearest(night, names)}")
    accepted = nights[-1] if night is None else nights[names.index(night)]
    pairs = chosen(patterns, metric, {pair for each in nights for pair in each.pairs})
    here = tuple(pair for pair in pairs if pair in accepted.pairs)
    asked = set() if is_part(accepted.selection) else expected(nights, accepted)
    gone = tuple(pair for pair in pairs if pair not in accepted.pairs and pair in asked)
    left = tuple(pair for pair in pairs if pair not in accepted.pairs and pair not in asked)
    if not here and not gone:
        raise HistoryError(
            f"night {accepted.name} was not asked for {left[0].key} (selection {accepted.selection or 'default'}), so "
            "it says nothing of it; give a night that was with --night"
        )
    for pair in here:
        if why := _unsound(accepted, pair):
            raise HistoryError(
                f"night {accepted.name}: {pair} is INVALID ({why}); accept it with a night that is sound"
            )
    notes = _notes(ledger)
    ledger.accept(accepted.name, (*here, *gone), reason, who)
    return Accepted(accepted, here, gone, left, reason, who, notes)
