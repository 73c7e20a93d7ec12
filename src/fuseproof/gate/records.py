"""What is remembered beside a night's runs: its marks, its confirming processes, its count as a night without change.

To and from the JSON that `history` stores. Verdicts are grouped by what they say, so that a night of 500 benchmarks
stays a list of keys.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fuseproof.verdicts.controls import Plant, Planting, Unchanged
from fuseproof.verdicts.exact import fault_of
from fuseproof.verdicts.night import Values
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

__all__ = ["NightRecord", "Recall", "by_metric", "mark_of_group", "pairs_of"]

_ARMS = ("confirming", "trusted")


@dataclass(frozen=True)
class NightRecord:
    """What a gated session says of its night.

    Attributes:
        marks: by pair, from `verdicts.verdict.marks_of`.
        evidence: the confirming processes; they teach how much processes vary.
        unchanged: the night's decisions, where nothing had changed since its baseline.
        planting: its planted slow-down; None where an older fuseproof has not said it.

    """

    marks: Mapping[Pair, Mark]
    evidence: Evidence = field(default_factory=Evidence)
    unchanged: Unchanged | None = None
    planting: Planting | None = field(default_factory=Planting)

    @classmethod
    def read(cls, documents: Sequence[Mapping[str, Any]]) -> NightRecord:
        """Return what documents of verdicts on one night say, oldest first; the later mark and plant hold.

        Whoever withdraws an accepted level marks nights later, without a plant: the session's own stays.
        """
        groups = [group for document in documents for group in document["verdicts"]]
        marks = {pair: mark_of_group(group) for group in groups for pair in pairs_of(group["pairs"])}
        arms = (tuple(_pairs(process) for each in documents for process in each[arm]) for arm in _ARMS)
        counted = [Unchanged(**each["unchanged"]) for each in documents if "unchanged" in each]
        plants = [each["plant"] for each in documents if "plant" in each]
        plant = next((each for each in reversed(plants) if each is not None), None)
        return cls(marks, Evidence(*arms), counted[-1] if counted else None, _planting(plant) if plants else None)

    def document(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        groups: dict[Mark, list[Pair]] = {}
        for pair, mark in sorted(self.marks.items()):
            groups.setdefault(mark, []).append(pair)
        document: dict[str, Any] = {
            "verdicts": [
                {
                    "outcome": str(mark.outcome),
                    "reasons": [str(reason) for reason in mark.reasons],
                    "since": mark.since,
                    "pairs": by_metric(pairs),
                }
                for mark, pairs in groups.items()
            ],
            "confirming": [_values(values) for values in self.evidence.tonight],
            "trusted": [_values(values) for values in self.evidence.trusted],
            "plant": None if self.planting is None else _plant(self.planting),
        }
        if self.unchanged is not None:
            document["unchanged"] = {name: getattr(self.unchanged, name) for name in ("decisions", "above", "blocks")}
        return document


@dataclass(frozen=True)
class Recall:
    """What a session must know of the history besides its nights.

    Attributes:
        set_aside: one sentence for each file that is not used.
        lost: those of them that held verdicts: what they said of their night is not known, so no answer rests on them.
        unchanged: earlier nights without a change.

    """

    set_aside: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    unchanged: tuple[Unchanged, ...] = ()


def by_metric(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """Return the keys of pairs by their metric."""
    found: dict[str, list[str]] = {}
    for pair in sorted(pairs):
        found.setdefault(pair.metric, []).append(pair.key)
    return found


def pairs_of(keys_by_metric: Mapping[str, Iterable[str]]) -> list[Pair]:
    """Return what `by_metric` took apart."""
    return [Pair(key, metric) for metric, keys in keys_by_metric.items() for key in keys]


def mark_of_group(group: Mapping[str, Any]) -> Mark:
    """Return the mark that a group of verdicts stands for."""
    return Mark(Outcome(group["outcome"]), tuple(Reason(reason) for reason in group["reasons"]), group["since"])


def _values(values: Values) -> dict[str, dict[str, Any]]:
    """Return a process's sound values by key and metric: the verdict has said what is wrong with the others."""
    found: dict[str, dict[str, Any]] = {}
    for pair, value in sorted(values.items()):
        if fault_of(value) is None:
            found.setdefault(pair.key, {})[pair.metric] = value
    return found


def _pairs(process: Mapping[str, Mapping[str, Any]]) -> dict[Pair, Any]:
    """Return what `_values` took apart."""
    return {Pair(key, metric): value for key, metrics in process.items() for metric, value in metrics.items()}


def _plant(planting: Planting) -> dict[str, Any] | None:
    """Return a planted slow-down as ratios: JSON has no NaN, so a process that measured nothing leaves none."""
    if (plant := planting.plant) is None:
        return None
    return {
        "key": plant.pair.key,
        "metric": plant.pair.metric,
        "size_ratio": math.exp(plant.size_ln),
        "block_ratio": math.exp(plant.block_ln),
        "seen_ratios": [math.exp(effect_ln) for effect_ln in planting.effects_ln if math.isfinite(effect_ln)],
    }


def _planting(document: Mapping[str, Any] | None) -> Planting:
    """Return what `_plant` took apart."""
    if document is None:
        return Planting()
    size_ln, block_ln = (math.log(document[name]) for name in ("size_ratio", "block_ratio"))
    plant = Plant(Pair(document["key"], document["metric"]), size_ln, block_ln)
    return Planting(plant, tuple(math.log(ratio) for ratio in document["seen_ratios"]))
