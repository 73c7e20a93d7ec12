"""Standings as lines for a terminal, as Markdown and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fuseproof.gate.present import aligned, shown_value
from fuseproof.upgrade.measured import Measured
from fuseproof.upgrade.plan import UpgradePlan
from fuseproof.upgrade.standings import HOST, Row, Standings
from fuseproof.verdicts.contest import Place
from fuseproof.verdicts.verdict import in_percent

__all__ = ["terminal_lines", "to_json", "to_markdown"]

_SCHEMA = 1
_HEADER = (
    "benchmark",
    "metric",
    "first",
    "other",
    "first has",
    "other has",
    "other beside first",
    "95 % interval",
    "answer",
)
_WORDS = {"iteration_time_ns": "iteration", "device_time_ns": "device", HOST: "host", "peak_bytes": "peak memory"}


def terminal_lines(standings: Standings, measured: Measured, tolerance_ln: float) -> list[str]:
    """Return who wins how often, the table, and what a reader must know besides."""
    rows = [_HEADER, *(_cells(row, tolerance_ln) for row in standings.rows)]
    notes = [*measured.notes, *standings.notes]
    table = aligned(rows) if standings.rows else []
    return [*table, *notes, *([""] if table else []), *_summary(standings, tolerance_ln), _closing(measured)]


def to_markdown(standings: Standings, measured: Measured, tolerance_ln: float, plan: UpgradePlan) -> str:
    """Return the answer as a Markdown page: who wins how often, the table, the notes, and what was measured."""
    about = plan.arms[next(iter(plan.arms))]["inventory"]
    software = ", ".join(f"{name} {about[name]}" for name in ("torch", "cuda", "driver", "apex") if name in about)
    lines = [f"# {' against '.join(plan.candidates)}", "", f"On {plan.machine}; {software}. {_closing(measured)}.", ""]
    lines += [f"- {line}" for line in _summary(standings, tolerance_ln)]
    lines += ["", _line(_HEADER), _line(["---"] * len(_HEADER))]
    lines += [_line(_cells(row, tolerance_ln)) for row in standings.rows]
    lines += ["", *(f"- {note}" for note in (*measured.notes, *standings.notes))]
    return "\n".join(lines).rstrip() + "\n"


def to_json(standings: Standings, measured: Measured, tolerance_ln: float) -> dict[str, Any]:
    """Return the answer as one object; effects are logarithms of ratios."""
    return {
        "schema": _SCHEMA,
        "status": standings.status,
        "interrupted": measured.interrupted,
        "processes": len(measured.trials),
        "seconds": measured.seconds,
        "tolerance_ln": tolerance_ln,
        "rows": [asdict(row) for row in standings.rows],
        "notes": [*measured.notes, *standings.notes],
    }


def _summary(standings: Standings, tolerance_ln: float) -> list[str]:
    """Return a line for each kind of benchmark, metric and two candidates: who is faster in how many."""
    counts: dict[tuple[str, str, str, str], Counter[Place]] = {}
    for row in standings.rows:
        if row.standing is not None:
            kind = (row.benchmark.partition("/")[0], row.metric, row.first, row.challenger)
            counts.setdefault(kind, Counter())[row.standing.place] += 1
    return [
        f"{op} {_WORDS[metric]}: {challenger} is faster than {first} in {places[Place.FASTER]}, slower in "
        f"{places[Place.SLOWER]}, {_equal(tolerance_ln)} in {places[Place.EQUAL]}, undecided in "
        f"{places[Place.UNDECIDED]}"
        for (op, metric, first, challenger), places in counts.items()
    ] or ["nothing was compared: no benchmark has measured two of the candidates"]


def _closing(measured: Measured) -> str:
    return f"{len(measured.trials)} processes, {measured.seconds:.0f} s"


def _equal(tolerance_ln: float) -> str:
    return f"equal within {math.expm1(tolerance_ln) * 100:.3g} %"


def _cells(row: Row, tolerance_ln: float) -> tuple[str, ...]:
    standing = row.standing
    a, b = row.values
    ratio_ln = standing.effect_ln if standing is not None else math.log(b / a) if a and b else None
    interval = None if standing is None else standing.interval_ln
    return (
        row.benchmark,
        _WORDS.get(row.metric, row.metric),
        row.first,
        row.challenger,
        shown_value(row.metric, a),
        shown_value(row.metric, b),
        "-" if ratio_ln is None else in_percent(ratio_ln),
        "-" if interval is None else f"{in_percent(interval[0])} to {in_percent(interval[1])}",
        _answer(row, tolerance_ln),
    )


def _answer(row: Row, tolerance_ln: float) -> str:
    if row.standing is None:
        return f"{row.first if row.more > 0 else row.challenger} has less" if row.more else "the same"
    if row.standing.place is Place.UNDECIDED:
        return "undecided"
    if row.standing.place is Place.EQUAL:
        return _equal(tolerance_ln)
    return f"{row.challenger if row.standing.place is Place.FASTER else row.first} is faster"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
