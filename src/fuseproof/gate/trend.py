"""One machine's history for a reader: how well each benchmark can be gated, and the nights of one."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fuseproof.gate.change_point import NEEDS_RUPTURES, change_points
from fuseproof.gate.present import aligned, night_label, shown_value
from fuseproof.gate.settings import GateSettings
from fuseproof.verdicts.night import Night, value_ln, values_ln
from fuseproof.verdicts.screening import screen
from fuseproof.verdicts.verdict import Pair, in_percent

__all__ = ["Point", "Power", "powers", "series"]


@dataclass(frozen=True)
class Power:
    """How well one benchmark and metric can be gated tonight, by the history alone and in pairs.

    Attributes:
        key, metric: which.
        nights: K, the nights of its baseline.
        baseline: in the metric's unit.
        noise_ln: standard deviation between nights.
        within_ln: between the processes of one night.
        tolerance_ln: the largest slow-down that never blocks by itself.
        mde_ln: minimum detectable effect by the history alone.
        paired_mde_ln: in pairs with a trusted environment.

    """

    key: str
    metric: str
    nights: int
    baseline: float
    noise_ln: float
    within_ln: float
    tolerance_ln: float
    mde_ln: float
    paired_mde_ln: float

    @property
    def gateable(self) -> str:
        """Whether twice the tolerance would be seen: "yes", "in pairs" or "UNGATEABLE"."""
        if self.mde_ln <= 2 * self.tolerance_ln:
            return "yes"
        return "in pairs" if self.paired_mde_ln <= 2 * self.tolerance_ln else "UNGATEABLE"


@dataclass(frozen=True)
class Point:
    """One night of a series.

    Attributes:
        night, day: which.
        value: the night's value as recorded; None where it has none.
        sd_ln: standard deviation of its processes; None with fewer than two.
        processes: how many.
        mark: what was said of it; empty where nothing was.
        starts: a new level begins here, as far as the series alone can tell.
        apart: measured by another method than the newest night, or on another CPU model or number of threads.

    """

    night: str
    day: str
    value: Any
    sd_ln: float | None
    processes: int
    mark: str
    starts: bool
    apart: bool = False


def powers(settings: GateSettings, nights: Sequence[Night]) -> list[Power]:
    """Return what could be seen tonight of each benchmark that has a baseline."""
    if not nights:
        return []
    methods = {key: method for night in nights for key, method in night.methods.items()}
    values = {pair: value for night in nights for run in night.screening for pair, value in run.items()}
    # Tonight is every benchmark's newest value, as often as a night of this repository has processes.
    tonight = Night("tonight", [values] * settings.replicates, methods=methods)
    alone, paired = (
        screen(nights, tonight, rules=settings.rules, paired=way, full_selection=False) for way in (False, True)
    )
    found = []
    for each, beside in zip(alone.screened, paired.screened, strict=True):
        family = each.family
        for column in np.flatnonzero(each.judged).tolist():
            pair = family.pairs[column]
            found.append(
                Power(
                    pair.key,
                    pair.metric,
                    int(family.nights[column]),
                    math.exp(float(family.center_ln[column])),
                    math.sqrt(float(family.variance_ln2[column])),
                    math.sqrt(float(family.within_ln2[column])),
                    float(family.tolerance_ln[column]),
                    float(each.limits.mde[column]),
                    float(beside.limits.mde[column]),
                )
            )
    return sorted(found, key=lambda power: (power.key, power.metric))


def power_lines(found: Sequence[Power]) -> list[str]:
    """Return the benchmarks as a table with the slow-down that would be seen, and how many of them can be gated."""
    header = (
        "benchmark",
        "metric",
        "K",
        "baseline",
        "sd nights",
        "sd processes",
        "seen alone",
        "seen in pairs",
        "gateable",
    )
    rows = [
        (
            each.key,
            each.metric,
            str(each.nights),
            shown_value(each.metric, each.baseline),
            f"{each.noise_ln:.2%}",
            f"{each.within_ln:.2%}",
            in_percent(each.mde_ln),
            in_percent(each.paired_mde_ln),
            each.gateable,
        )
        for each in found
    ]
    header = ("benchmark", "metric", "K", "baseline", "sd nights", "sd processes", "alone", "in pairs", "gateable")
    counts = [f"{sum(each.gateable == word for each in found)} {word}" for word in ("yes", "in pairs", "UNGATEABLE")]
    return [*aligned([header, *rows]), f"gateable: {', '.join(counts)} of {len(found)} that have noise"]


def series(nights: Iterable[Night], pair: Pair) -> tuple[list[Point], str | None]:
    """Return a pair's nights, oldest first, and a sentence where change points could not be looked for."""
    having = [night for night in nights if pair in night.pairs or pair in night.marks or pair in night.accepted]
    method = next((night.methods[pair.key] for night in reversed(having) if pair.key in night.methods), "")
    apart = [night.methods.get(pair.key, method) != method for night in having]
    known = [
        (position, value)
        for position, night in enumerate(having)
        if not apart[position] and not math.isnan(value := _value_ln(night, pair))
    ]
    found = change_points([value for _, value in known])
    starts = {known[at][0] for at in found or []}
    points = [_point(night, pair, position in starts, apart[position]) for position, night in enumerate(having)]
    return points, NEEDS_RUPTURES if found is None else None


def _value_ln(night: Night, pair: Pair) -> float:
    return math.nan if pair.key in night.invalid else value_ln(night, pair)


def _point(night: Night, pair: Pair, starts: bool, apart: bool) -> Point:
    values = [run[pair] for run in night.screening if pair in run]
    logs = values_ln(night.screening, pair)
    named = any(isinstance(value, str) for value in values)
    value = " or ".join(sorted({str(v) for v in values})) if named else statistics.median(values) if values else None
    mark = night.marks.get(pair)
    words = [] if mark is None else [str(mark.outcome), *map(str, mark.reasons)]
    words += ["accepted"] if pair in night.accepted else []
    words += ["INVALID: " + "; ".join(night.invalid[pair.key])] if pair.key in night.invalid else []
    if mark is not None and mark.since is not None:
        words.append(f"since {mark.since}")
    words += ["by another method"] if apart else []
    spread = statistics.stdev(logs) if len(logs) > 1 else None
    return Point(night.name, night.day, value, spread, len(values), " ".join(words), starts, apart)


def series_lines(pair: Pair, points: Sequence[Point]) -> list[str]:
    """Return a series as a table; each night beside the one before it that was measured by the newest one's method."""
    rows = []
    before = None
    for point in points:
        number = isinstance(point.value, int | float) and not point.apart
        change = in_percent(math.log(point.value) - math.log(before)) if number and before and point.value else "-"
        rows.append(
            (
                night_label(Night(point.night, [], day=point.day)),
                shown_value(pair.metric, point.value),
                change,
                "-" if point.sd_ln is None else f"{point.sd_ln:.2%}",
                str(point.processes),
                f"{point.mark}{'  <- a new level' if point.starts else ''}".strip(),
            )
        )
        before = point.value if number else before
    header = ("night", "value", "to the one before", "sd", "processes", "said of it")
    return [f"{pair.key} {pair.metric}", *aligned([header, *rows])]


def to_json(found: Sequence[Power] | Sequence[Point]) -> list[dict[str, Any]]:
    """Return either kind of row as JSON objects."""
    return [asdict(each) | ({"gateable": each.gateable} if isinstance(each, Power) else {}) for each in found]
