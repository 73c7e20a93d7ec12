"""The overall sentence of an upgrade: whether to switch, and what that rests on."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.sections import is_time, plain
from fuseproof.verdicts.verdict import Outcome, Reason, Verdict

__all__ = ["sentence"]

_LEADS = {0: "Switch", 21: "Not decided"}
_SHOWN_REASONS = 3  # of a sentence; its section has them all
_UNDECIDED = {Outcome.INCONCLUSIVE, Outcome.UNGATEABLE}
_NOT_MEASURED = {Outcome.INVALID, Outcome.MISSING}


def sentence(upgrade: Upgrade) -> str:
    """Return the answer: whether to switch, and all that it rests on, in one sentence that agrees with the status."""
    lead = f"{_LEADS.get(upgrade.status, 'Do not switch')}{_wrong_before(upgrade)}"
    parts = [*_times(upgrade), *_skipped(upgrade), _memory(upgrade.verdicts), *_counts(upgrade.verdicts)]
    parity = "parity was not asked for" if upgrade.parity is None else f"parity: {upgrade.parity.sentence}"
    early = "; interrupted, start it again and it goes on" if upgrade.interrupted else ""
    return plain(f"{lead}: {', '.join([*parts, parity])}{early}.")


def _wrong_before(upgrade: Upgrade) -> str:
    """Return what a reader of the first words alone must know of a switch: it mends nothing of what fails in both."""
    count = 0 if upgrade.parity is None else len(upgrade.parity.still_failing)
    if upgrade.status or not count:
        return ""
    words = "case that failed before and still fails" if count == 1 else "cases that failed before and still fail"
    return f", with {count} parity {words}"


def _keys(verdicts: Iterable[Verdict]) -> int:
    return len({verdict.pair.key for verdict in verdicts})


def _times(upgrade: Upgrade) -> list[str]:
    verdicts = upgrade.verdicts
    if not verdicts:
        return ["no benchmark was compared"]
    times = [each for each in verdicts if is_time(each.pair.metric)]
    slower = _keys(each for each in times if each.outcome is Outcome.REGRESSED)
    faster = _keys(each for each in times if each.outcome is Outcome.IMPROVED)
    undecided = _keys(each for each in verdicts if each.outcome in _UNDECIDED)
    failed = _keys(each for each in verdicts if Reason.FAILED in each.reasons)
    unmeasured = _keys(each for each in verdicts if each.outcome in _NOT_MEASURED) - failed
    tolerance = f"{math.expm1(upgrade.tolerance_ln):.3g}"
    percent = f"{float(tolerance) * 100:g} %"
    new = _keys(each for each in verdicts if each.outcome is Outcome.NEW)
    parts = [f"{slower} of {_keys(verdicts)} benchmarks slower than {percent} (95 %)"]
    parts += [f"{faster} faster"] if faster else []
    parts += [f"{undecided} undecided"] if undecided else []
    why = "its test fails" if failed == 1 else "their tests fail"
    parts += [f"{failed} not compared, since {why}"] if failed else []
    parts += [f"{unmeasured} not comparable"] if unmeasured else []
    return parts + ([f"{new} only in {upgrade.new.name}"] if new else [])


def _skipped(upgrade: Upgrade) -> list[str]:
    """Return how many benchmarks were asked for in vain; where that is all of them, why."""
    count = sum(len(each.tests) for each in upgrade.skipped)
    if not count:
        return []
    if upgrade.verdicts:
        return [f"{count} skipped in both"]
    why = "; ".join(each.reason for each in upgrade.skipped[:_SHOWN_REASONS])
    more = len(upgrade.skipped) - _SHOWN_REASONS
    return [f"all {count} skipped in both ({why}{f'; and {more} reasons more' if more > 0 else ''})"]


def _memory(verdicts: Iterable[Verdict]) -> str:
    memory = [each for each in verdicts if each.pair.metric.endswith("_bytes")]
    more = _keys(each for each in memory if each.outcome is Outcome.REGRESSED)
    less = _keys(each for each in memory if each.outcome is Outcome.IMPROVED)
    known = any(each.outcome is Outcome.PASS for each in memory)
    words = [f"more in {more}"] * bool(more) + [f"less in {less}"] * bool(less)
    return f"peak memory {' and '.join(words) or ('unchanged' if known else 'not compared')}"


def _counts(verdicts: Iterable[Verdict]) -> list[str]:
    exact = [each for each in verdicts if not is_time(each.pair.metric) and not each.pair.metric.endswith("_bytes")]
    names = [each for each in exact if each.pair.metric == "kernels_hash"]
    counts = [each for each in exact if each.pair.metric != "kernels_hash"]
    other = _keys(each for each in names if each.outcome is not Outcome.PASS or each.reasons)
    more = _keys(each for each in counts if each.outcome is Outcome.REGRESSED)
    less = _keys(each for each in counts if each.outcome is Outcome.IMPROVED)
    found = ((other, "other kernels in"), (more, "more launches or calls in"), (less, "fewer launches or calls in"))
    return [f"{words} {count}" for count, words in found if count]
