"""Finished pairs of two environments to verdicts: pure, from documents alone (docs/verdicts.md, section 7)."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuseproof.upgrade.bank import Trial, words_by_test
from fuseproof.upgrade.failed import judge_failures
from fuseproof.upgrade.skipped import Skipped, skipped_everywhere
from fuseproof.verdicts.exact import Check, judge_check
from fuseproof.verdicts.exact import fault_of as exact_fault
from fuseproof.verdicts.looks import LOOKS, judge_looks
from fuseproof.verdicts.night import fault_of
from fuseproof.verdicts.recorded import Process, process_of, tests_by_key
from fuseproof.verdicts.rules import Kind, Rule, rules_by_pair
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

__all__ = ["Comparison", "compare", "middle"]

NAMES = "kernels_hash"
_SHOWN_KERNELS = 3


@dataclass(frozen=True)
class Comparison:
    """What the pairs so far say.

    Attributes:
        verdicts: worst first.
        durations: old and new median as recorded; None where an arm has none.
        undecided: ids of the tests whose benchmarks the next pairs must measure.
        notes: one sentence for each thing that a reader must know besides.
        skipped: what was asked for and skipped in both arms.

    """

    verdicts: Sequence[Verdict]
    durations: Mapping[Pair, tuple[Any, Any]]
    undecided: frozenset[str]
    notes: Sequence[str] = ()
    skipped: Sequence[Skipped] = ()


@dataclass
class _Pairs:
    """The pairs of processes, by metric and benchmark.

    Attributes:
        both: old and new process of each pair.
        differences: by pair, new over old, logarithms, of the pairs of processes in which both are valid.
        spoiled: by key, why measurements were not used.

    """

    both: list[tuple[Process, Process]]
    differences: dict[Pair, list[float]] = field(default_factory=dict)
    spoiled: dict[str, Counter[str]] = field(default_factory=dict)
    spoiled_pairs: Counter[str] = field(default_factory=Counter)

    def values(self, pair: Pair) -> tuple[list[Any], list[Any]]:
        """Return all values of a pair, old and new."""
        old, new = ([each[arm].values[pair] for each in self.both if pair in each[arm].values] for arm in (0, 1))
        return old, new


def compare(trials: Sequence[Trial], rules: Sequence[Rule], arms: tuple[str, str] = ("old", "new")) -> Comparison:
    """Return what is said of the second arm beside the first.

    Args:
        trials: finished pairs, in the order of their numbers.
        rules: how metrics are judged.
        arms: names of the two in the trials' documents.

    """
    pairs = _Pairs([(process_of(trial.documents[arms[0]]), process_of(trial.documents[arms[1]])) for trial in trials])
    known = [{pair for each in pairs.both for pair in each[arm].values} for arm in (0, 1)]
    shared = known[0] & known[1]
    judged_by = rules_by_pair(rules, known[0] | known[1])
    foreign = _other_methods(pairs.both)
    timed = [p for p in judged_by if p in shared and judged_by[p].kind is Kind.STOCHASTIC and p.key not in foreign]
    _collect(pairs, timed)
    tests = {
        key: test for trial in trials for each in trial.documents.values() for key, test in tests_by_key(each).items()
    }
    verdicts = [
        *judge_failures(trials, arms),
        *_one_arm_only(known, judged_by, arms, _lacking(trials, tests)),
        *(_invalid(pair, detail) for pair in judged_by if (detail := foreign.get(pair.key)) and pair in shared),
        *_judge_times(pairs, timed, judged_by),
        *_judge_exact(pairs, [pair for pair in judged_by if pair in shared], judged_by),
    ]
    kernels = [_kernels(trials, arm) for arm in arms]
    verdicts = [_neither_worse_nor_better(each, kernels) if each.pair.metric == NAMES else each for each in verdicts]
    going_on = {each.pair.key for each in verdicts if Reason.UNDECIDED in each.reasons and each.processes < LOOKS[-1]}
    return Comparison(
        sorted(verdicts, key=lambda verdict: verdict.order),
        {pair: (middle(old), middle(new)) for pair in known[0] | known[1] for old, new in [pairs.values(pair)]},
        frozenset(tests[key] for key in going_on),
        [*_failures(trials), *_left_out(pairs)],
        skipped_everywhere(trials),
    )


def middle(values: Sequence[Any]) -> Any:
    """Return the median of numbers, the most frequent of names; None of nothing."""
    if not values:
        return None
    if any(isinstance(value, str) for value in values):
        return Counter(values).most_common(1)[0][0]
    return statistics.median(values)


def _other_methods(both: Iterable[tuple[Process, Process]]) -> dict[str, str]:
    """Return the keys that the arms measure in different ways, and so in vain."""
    return {
        key: "the environments measure it by different methods"
        for old, new in both
        for key in old.methods.keys() & new.methods.keys()
        if old.methods[key] != new.methods[key]
    }


def _collect(pairs: _Pairs, timed: Iterable[Pair]) -> None:
    wanted = sorted(timed)
    for old, new in pairs.both:
        spoiled = set()
        for pair in wanted:
            if pair not in old.values or pair not in new.values:
                continue
            if reasons := [*old.invalid.get(pair.key, ()), *new.invalid.get(pair.key, ())]:
                pairs.spoiled.setdefault(pair.key, Counter()).update(dict.fromkeys(reasons, 1))
                spoiled.add(pair.key)
                continue
            before, after = old.values[pair], new.values[pair]
            sound = fault_of(before) is None and fault_of(after) is None
            pairs.differences.setdefault(pair, []).append(math.log(after / before) if sound else math.nan)
        pairs.spoiled_pairs.update(spoiled)


def _judge_times(pairs: _Pairs, timed: Sequence[Pair], judged_by: Mapping[Pair, Rule]) -> list[Verdict]:
    """Judge each metric over all its benchmarks, which teach how much differences vary; all metrics share the error."""
    verdicts = []
    for metric in sorted({pair.metric for pair in timed}):
        own = [pair for pair in timed if pair.metric == metric]
        given = {pair: pairs.differences.get(pair, []) for pair in own}
        verdicts += judge_looks(
            given,
            # Those of the first look: a verdict must not change with what is measured after it.
            {pair: math.log(middle(sound)) for pair in own if (sound := _sound(pairs.values(pair)[0][: LOOKS[0]]))},
            tolerance_ln={pair: judged_by[pair].tolerance_ln for pair in own},
            resolution_ns=max(judged_by[pair].resolution_ns for pair in own),
            tests=len(timed),
        )
    return [_refined(verdict, pairs) for verdict in verdicts]


def _sound(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if fault_of(value) is None]


def _refined(verdict: Verdict, pairs: _Pairs) -> Verdict:
    """Return the verdict with what `judge_looks` does not ask: proven faster, and never validly measured."""
    key = verdict.pair.key
    reasons = pairs.spoiled.get(key)
    if reasons and not pairs.differences.get(verdict.pair) and pairs.spoiled_pairs[key] >= LOOKS[0]:
        return _invalid(verdict.pair, "; ".join(reasons))
    # The mirror of REGRESSED: the bound is the greater of the tolerance and what noise alone reaches.
    faster = verdict.effect_ln is not None and verdict.bound_ln is not None and -verdict.effect_ln > verdict.bound_ln
    if verdict.outcome is Outcome.PASS and faster:
        return replace(verdict, outcome=Outcome.IMPROVED, reasons=(Reason.FASTER,))
    return verdict


def _invalid(pair: Pair, detail: str) -> Verdict:
    return Verdict(pair, Outcome.INVALID, (Reason.MEASUREMENT,), detail=detail)


def _one_arm_only(
    known: Sequence[set[Pair]],
    judged_by: Mapping[Pair, Rule],
    arms: tuple[str, str],
    lacking: Mapping[str, Mapping[str, str]],
) -> Iterable[Verdict]:
    """Judge what one arm has alone; `lacking` says by key and arm why that arm has not."""
    for pair in sorted(judged_by.keys() & (known[0] ^ known[1])):
        lacks = arms[pair in known[0]]
        words = lacking.get(pair.key, {}).get(lacks)
        why = f": {words}" if words else ""
        if lacks == arms[1]:
            yield Verdict(pair, Outcome.MISSING, detail=f"{arms[0]} measures it, {lacks} does not{why}")
        else:
            detail = f"only {arms[1]} measures it{why}"
            yield Verdict(pair, Outcome.NEW, (Reason.NO_BASELINE,), detail=detail)


def _lacking(trials: Sequence[Trial], tests: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Return, by key and arm, why its test has measured nothing there; of a file that was skipped, each test's why."""
    failed, skipped = (words_by_test(trials, f"{how}_tests") for how in ("failed", "skipped"))
    found: dict[str, dict[str, str]] = {}
    for key, test in tests.items():
        said = {**skipped.get(test.partition("::")[0], {}), **skipped.get(test, {})}
        found[key] = {arm: f"its test is skipped in {arm}: {words}" for arm, words in said.items()}
        found[key] |= {arm: f"its test fails in {arm}: {words}" for arm, words in failed.get(test, {}).items()}
    return found


def _judge_exact(pairs: _Pairs, shared: Sequence[Pair], judged_by: Mapping[Pair, Rule]) -> Iterable[Verdict]:
    """Judge what has no noise: every process of the new arm must agree that it differs from all of the old one's."""
    for pair in sorted(shared):
        rule = judged_by[pair]
        if rule.kind is Kind.STOCHASTIC:
            continue
        fault = exact_fault if rule.kind is Kind.EXACT else fault_of
        old, new = pairs.values(pair)
        wrong = next((found for value in (*old, *new) if (found := fault(value))), None)
        if wrong is not None:
            yield Verdict(pair, Outcome.INVALID, (Reason.BAD_VALUE,), detail=f"{pair}: {wrong}")
            continue
        check = Check(rule, pair, tuple(old), tuple(new), 0)
        seen = judge_check(check, [{pair: value} for value in new[1:]])
        yield replace(seen, nights=None, processes=len(new))


def _neither_worse_nor_better(verdict: Verdict, kernels: Sequence[Mapping[str, Mapping[str, int]]]) -> Verdict:
    """Return other kernels as a change without a sign: an upgrade brings them, their time and launches are judged."""
    if verdict.outcome not in (Outcome.REGRESSED, Outcome.INCONCLUSIVE):
        return verdict
    old, new = (each.get(verdict.pair.key, {}) for each in kernels)
    parts = [
        f"{word} {', '.join(names[:_SHOWN_KERNELS])}{' and more' * (len(names) > _SHOWN_KERNELS)}"
        for word, names in (
            ("no longer", [f"{name} ({old[name]})" for name in old if old.get(name) != new.get(name)]),
            ("now", [f"{name} ({new[name]})" for name in new if old.get(name) != new.get(name)]),
        )
        if names
    ]
    # Names are shown by their first letters, and the most frequent ones only; the hash is of all of them.
    detail = "other kernels: " + ("; ".join(parts) or f"{verdict.detail}, the same by the first letters of their names")
    return replace(verdict, outcome=Outcome.PASS, detail=detail)


def _kernels(trials: Sequence[Trial], arm: str) -> dict[str, Mapping[str, int]]:
    """Return, by key, the kernels that were seen in an arm's newest process."""
    records = [each["extra_info"]["fuseproof"] for trial in trials for each in trial.documents[arm]["benchmarks"]]
    return {record["key"]: record["kernels"] for record in records if isinstance(record.get("kernels"), dict)}


def _failures(trials: Sequence[Trial]) -> Iterable[str]:
    """Yield a sentence for each arm in which tests failed, or nothing was measured."""
    said: dict[tuple[str, str], list[int]] = {}
    for trial in trials:
        for arm, document in trial.documents.items():
            block = document["upgrade"]
            if (words := block.get("nothing")) is not None:
                said.setdefault((arm, f"nothing was measured: {words}"), []).append(trial.number + 1)
            elif failed := block.get("failed_tests"):
                test, words = min(failed.items())
                more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
                said.setdefault((arm, f"{test}{more} failed: {words}"), []).append(trial.number + 1)
            elif (words := block.get("failures")) is not None:
                said.setdefault((arm, f"a test failed: {words}"), []).append(trial.number + 1)
    for (arm, sentence), numbers in said.items():
        yield f"{arm}, pair {', '.join(map(str, numbers))}: {sentence}"


def _left_out(pairs: _Pairs) -> Iterable[str]:
    for key, reasons in sorted(pairs.spoiled.items()):
        yield f"{key}: {pairs.spoiled_pairs[key]} pair(s) not used: {'; '.join(reasons)}"
