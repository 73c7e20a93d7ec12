"""Metrics without noise: launches, kernel names, peak memory. They are compared, not estimated (section 3.0)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuseproof.verdicts.night import Kind, Night, Rule, Segments, Values
from fuseproof.verdicts.night import fault_of as number_fault
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

__all__ = ["Check", "checks", "compare", "expected", "fault_of", "judge_check"]


@dataclass(frozen=True)
class Check:
    """One exact pair.

    Attributes:
        rule: how it is compared.
        pair: what.
        allowed: what the processes of the segment's first clean night had: by the newest one memory would creep, each
            night by less than its margin.
        seen: what tonight's screening processes have.
        nights: clean nights of the segment.

    """

    rule: Rule
    pair: Pair
    allowed: tuple[Any, ...]
    seen: tuple[Any, ...]
    nights: int

    @property
    def suspect(self) -> bool:
        """Whether any process differs, so that one confirming process is needed."""
        return any(compare(self.rule, self.allowed, value) for value in self.seen)


def fault_of(value: object) -> str | None:
    """Say what is wrong with a count or a name, None for a finite number of at least 0 or a text."""
    if isinstance(value, str):
        return None if value else "the name is empty"
    return None if value == 0 and not isinstance(value, bool) else number_fault(value)


def compare(rule: Rule, allowed: Sequence[Any], value: Any) -> int:
    """Return 1 for worse, -1 for better, 0 for the same; memory has a margin. Other names count as worse."""
    if isinstance(value, str) or any(isinstance(each, str) for each in allowed):
        return int(value not in allowed)
    low, high = min(allowed), max(allowed)
    margin = max(high * math.expm1(rule.tolerance_ln), rule.margin_bytes) if rule.kind is Kind.MEMORY else 0
    return int(value > high + margin) - int(value < low - margin)


def _sound(rule: Rule, night: Night, pair: Pair) -> tuple[Any, ...]:
    fault = fault_of if rule.kind is Kind.EXACT else number_fault
    return tuple(values[pair] for values in night.screening if pair in values and fault(values[pair]) is None)


def expected(parts: Segments, judged_by: Mapping[Pair, Rule]) -> set[Pair]:
    """Return the exact pairs that have a clean night in their segment."""
    return {pair for pair, rule in judged_by.items() if _is_exact(rule) and parts.of(pair)[0]}


def checks(
    history: Sequence[Night], tonight: Night, judged_by: Mapping[Pair, Rule], parts: Segments
) -> tuple[Check, ...]:
    """Return a check for each exact pair of tonight that has a baseline: its first clean night with a sound value."""
    found = []
    for pair in sorted(tonight.pairs):
        rule = judged_by.get(pair)
        if rule is None or not _is_exact(rule):
            continue
        clean = parts.of(pair)[0]
        stable = (history[position] for position in clean if not _is_unstable(history[position], pair))
        allowed = next((values for night in stable if (values := _sound(rule, night, pair))), None)
        seen = _sound(rule, tonight, pair)
        if allowed and seen:
            found.append(Check(rule, pair, allowed, seen, len(clean)))
    return tuple(found)


def _is_exact(rule: Rule | None) -> bool:
    return rule is not None and rule.kind is not Kind.STOCHASTIC


def _is_unstable(night: Night, pair: Pair) -> bool:
    """Return whether the night's processes disagreed: its values must not become what is allowed."""
    mark = night.marks.get(pair)
    return mark is not None and Reason.UNSTABLE in mark.reasons


def judge_check(check: Check, confirming: Sequence[Values]) -> Verdict:
    """Return the verdict on an exact pair; a difference that not every process shows is UNSTABLE."""
    pair, rule = check.pair, check.rule
    fault = fault_of if rule.kind is Kind.EXACT else number_fault
    again = [values[pair] for values in confirming if pair in values]
    everything = [*check.seen, *again]
    detail = f"{_shown(check.allowed)} -> {_shown(check.seen)}"
    effect = _effect_ln(check)
    if not check.suspect:
        return Verdict(pair, Outcome.PASS, effect_ln=effect, nights=check.nights)
    if wrong := next((found for value in again if (found := fault(value))), None):
        return Verdict(pair, Outcome.INVALID, (Reason.BAD_VALUE,), nights=check.nights, detail=f"{pair}: {wrong}")
    if not again:
        detail += "; no confirming process ran"
        return Verdict(pair, Outcome.INVALID, (Reason.UNCONFIRMED,), nights=check.nights, detail=detail)
    signs = {compare(rule, check.allowed, value) for value in everything}
    outcome, reason = Outcome.INCONCLUSIVE, Reason.UNSTABLE
    if len(signs) == 1:
        outcome, reason = (Outcome.REGRESSED if 1 in signs else Outcome.IMPROVED), Reason.EXACT
    return Verdict(pair, outcome, (reason,), effect, nights=check.nights, processes=len(again), detail=detail)


def _effect_ln(check: Check) -> float | None:
    values = (*check.allowed, *check.seen)
    if any(isinstance(value, str) or value == 0 for value in values):
        return None
    return math.log(float(np.median(check.seen)) / float(np.median(check.allowed)))


def _shown(values: Sequence[Any]) -> str:
    return " or ".join(sorted({f"{value:,}" if isinstance(value, int) else str(value) for value in values}))
