"""How each metric of each benchmark is gated: rules, the last one that fits wins. Imports neither numpy nor scipy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from fuseproof.verdicts.verdict import Pair

__all__ = ["DEFAULT_RULES", "Kind", "Rule", "rule_of", "rules_by_pair"]


class Kind(Enum):
    """How a metric is judged: by its noise, exactly, exactly beyond a margin of bytes, or not at all."""

    STOCHASTIC = "stochastic"
    EXACT = "exact"
    MEMORY = "memory"
    REPORTED = "reported"


@dataclass(frozen=True)
class Rule:
    """How one metric is gated.

    Attributes:
        metric: its name in a record.
        kind: how it is judged.
        tolerance_ln: the largest slow-down that never blocks by itself (memory: the relative part of the margin).
        resolution_ns: the step of its clock.
        margin_bytes: the absolute part of a memory margin.
        keys: the benchmarks that it is for, a pattern as of a shell over keys.

    """

    metric: str
    kind: Kind
    tolerance_ln: float = 0.0
    resolution_ns: float = 0.0
    margin_bytes: int = 0
    keys: str = "*"


DEFAULT_RULES = (
    Rule("device_time_ns", Kind.STOCHASTIC, tolerance_ln=math.log(1.01), resolution_ns=32.0),  # CUDA events: 32 ns
    Rule("iteration_time_ns", Kind.STOCHASTIC, tolerance_ln=math.log(1.01), resolution_ns=1.0),
    Rule("peak_bytes", Kind.MEMORY, tolerance_ln=math.log(1.005), margin_bytes=2**20),
    Rule("launches", Kind.EXACT),
    Rule("kernels_hash", Kind.EXACT),
    Rule("host_time_ns", Kind.REPORTED, resolution_ns=1.0),
)
"""Host time is reported and not gated: it varies by 14 to 32 % between processes; its causes are gated exactly."""


def rule_of(rules: Sequence[Rule], pair: Pair) -> Rule | None:
    """Return the last rule that fits a pair; None where no rule does, or where the metric is reported only."""
    fitting = (rule for rule in reversed(rules) if rule.metric == pair.metric and fnmatchcase(pair.key, rule.keys))
    rule = next(fitting, None)
    return None if rule is None or rule.kind is Kind.REPORTED else rule


def rules_by_pair(rules: Sequence[Rule], pairs: Iterable[Pair]) -> Mapping[Pair, Rule]:
    """Return the rule of each pair that is judged."""
    return {pair: rule for pair in pairs if (rule := rule_of(rules, pair)) is not None}
