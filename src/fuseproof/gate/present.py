"""A gated night as lines for a terminal and as one JSON object."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fuseproof.gate.remarks import remarks
from fuseproof.gate.session import GateSession
from fuseproof.statuses import UNANSWERED
from fuseproof.verdicts.night import Night, is_share
from fuseproof.verdicts.verdict import SUITE, Outcome, Pair, Verdict, closing_line, in_percent

__all__ = ["CALIBRATE", "aligned", "night_label", "shown_value", "table_lines", "to_json"]

CALIBRATE = "nothing to judge {} by yet: `fuseproof calibrate -n 8` remembers eight processes as one night"

_HEADER = ("benchmark", "metric", "baseline", "now", "change", "95 % interval", "verdict", "why")
_QUIET = (Outcome.UNGATEABLE, Outcome.NEW)
_SHOWN_BITS = 1000  # a float holds 1,024
_BY_NOISE = ("plant", "same arm")  # controls that fail where processes differ by more than the history knows
_IF_NOISE = "if noise is the cause: on a CPU set OMP_NUM_THREADS=1 and calibrate anew; else docs/verdicts.md, section 8"
_UNPLANTED = "no slow-down was planted"
_UNRECORDED = (
    "plant: not on record, so whether the night's gate was awake is not known: a gated session leaves it with its "
    "verdicts, beside its runs"
)
_QUIET_ROWS = 10  # a new machine has hundreds of them, and the table is for what wants attention


def table_lines(session: GateSession, *, everything: bool = False) -> list[str]:
    """Return the table of what wants attention, then the controls that failed, then the summary; last what to do.

    Args:
        session: the night.
        everything: with a row for each verdict, PASS too.

    """
    rows, left_out = _chosen(session.verdicts, everything)
    lines = []
    if rows:
        before, now = baselines(session), tonight_values(session)
        lines += aligned([_HEADER, *(_row(verdicts, before, now) for verdicts in rows)])
    lines += [f"... and {count} lines more of {outcome}" for outcome, count in left_out.items()]
    lines += [f"control failed: {each.name}: {each.detail}" for each in session.controls if not each.passed]
    awake = [f"{each.name}: {each.detail}" for each in session.controls if each.passed]
    asleep = []
    if session.planting is None:
        asleep = [_UNRECORDED]
    elif session.plant is not None and not session.planted and not session.from_files:
        asleep = [_UNPLANTED]
    lines += [f"controls: {'; '.join([*awake, *asleep])}"] if awake or asleep else []
    lines += [f"set aside: {sentence}" for sentence in (*session.recall.set_aside, *session.screening.set_aside)]
    if session.full_selection and not is_share(session.selection):
        known = session.screening.known | session.screening.tonight.pairs
        lines += session.settings.unmatched({pair.key for pair in known})
    lines += remarks(session)
    lines.append(summary_line(session))
    new = {verdict.pair.key for verdict in session.verdicts if verdict.outcome is Outcome.NEW}
    if new or not session.screening.known:
        lines.append(CALIBRATE.format(f"{len(new)} keys" if len(new) != 1 else next(iter(new))))
    return lines


def summary_line(session: GateSession) -> str:
    """Return the counts of all verdicts, what was judged of what, the baseline, and which controls failed."""
    judged, known = session.judged
    asked = session.selection or ("everything" if session.full_selection else "a part")
    waived = sum(verdict.waived for verdict in session.verdicts)
    parts = [closing_line(session.verdicts)]
    if waived:
        parts.append(f"{waived} of them waived")
    parts.append(f"judged {judged} of {known} keys (selection: {asked})")
    parts.append(_baseline(session))
    if aside := len(session.recall.set_aside) + len(session.screening.set_aside):
        parts.append(f"{aside} set aside")
    parts += _failed_controls(session)
    parts += ["controls: not on record"] * (session.planting is None)
    if session.settings.mode == "warn":
        parts.append('mode "warn": the status stays 0')
    return "gate: " + "; ".join(parts)


def _failed_controls(session: GateSession) -> list[str]:
    """Say which controls failed, that this is no answer, and what to do where noise may be why."""
    failed = dict.fromkeys(each.name for each in session.controls if not each.passed)
    if not failed:
        return []
    said = f"control failed: {', '.join(failed)} (by itself status {UNANSWERED})"
    return [said, *([_IF_NOISE] if any(name.startswith(_BY_NOISE) for name in failed) else [])]


def _baseline(session: GateSession) -> str:
    families = [each.family for each in session.screening.screened]
    first = [position for family in families for position in family.first]
    last = [position for family in families for position in family.reference]
    counts = [int(count) for family in families for count in family.nights]
    counts = counts or [check.nights for check in session.screening.checks]
    history = session.screening.history
    if not counts:
        return "baseline: none"
    most = max(counts)
    how_many = f"{most}" if min(counts) == most else f"{min(counts)} to {most}"
    nights = f"baseline: {how_many} night{'s' if most > 1 else ''} a benchmark"
    if not first:
        return nights
    return f"{nights}, {night_label(history[min(first)])} to {night_label(history[max(last)])}"


def night_label(night: Night) -> str:
    """Return a night's day and name."""
    return f"{night.day} ({night.name})" if night.day else night.name


def _chosen(verdicts: Sequence[Verdict], everything: bool) -> tuple[list[list[Verdict]], dict[Outcome, int]]:
    """Return the verdicts of each line, and how many lines are left out: what says the same of a key has one line."""
    if everything:
        return [[verdict] for verdict in verdicts], {}
    lines: dict[tuple[Any, ...], list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.outcome is Outcome.PASS and not verdict.reasons:
            continue
        whole_key = verdict.effect_ln is None and verdict.pair.key != SUITE
        same = (
            verdict.outcome,
            verdict.reasons,
            verdict.pair.key,
            verdict.detail if whole_key else verdict.pair.metric,
        )
        lines.setdefault(same, []).append(verdict)
    rows: list[list[Verdict]] = []
    seen: Counter[Outcome] = Counter()
    for line in lines.values():
        outcome = line[0].outcome
        seen[outcome] += 1
        if outcome not in _QUIET or seen[outcome] <= _QUIET_ROWS:
            rows.append(line)
    return rows, {each: seen[each] - _QUIET_ROWS for each in _QUIET if seen[each] > _QUIET_ROWS}


def _row(verdicts: Sequence[Verdict], before: Mapping[Pair, Any], now: Mapping[Pair, Any]) -> tuple[str, ...]:
    verdict = verdicts[0]
    pair = verdict.pair
    alone = len(verdicts) == 1
    interval = verdict.interval_ln
    return (
        "the whole suite" if pair.key == SUITE else pair.key,
        pair.metric if alone else f"{len(verdicts)} metrics",
        shown_value(pair.metric, before.get(pair) if alone else None),
        shown_value(pair.metric, now.get(pair) if alone else None),
        "-" if verdict.effect_ln is None else in_percent(verdict.effect_ln),
        "-" if interval is None else f"{in_percent(interval[0])} to {in_percent(interval[1])}",
        f"{verdict.outcome}{' waived' if verdict.waived else ''}",
        _why(verdict),
    )


def _why(verdict: Verdict) -> str:
    parts = [", ".join(verdict.reasons)] if verdict.reasons else []
    if verdict.bound_ln is not None:
        parts.append(f"bound {in_percent(verdict.bound_ln)}")
    if verdict.outcome is Outcome.UNGATEABLE and verdict.mde_ln is not None:
        parts.append(f"detectable {in_percent(verdict.mde_ln)}")
    if verdict.processes:
        parts.append(f"{verdict.processes} confirming")
    if verdict.members:
        names = ", ".join(pair.key for pair in verdict.members[:3])
        parts.append(f"{len(verdict.members)} benchmarks: {names}{', ...' * (len(verdict.members) > 3)}")
    if verdict.since is not None:
        parts.append(f"since {verdict.since}")
    if verdict.detail:
        parts.append(verdict.detail)
    return "; ".join(parts)


def baselines(session: GateSession) -> dict[Pair, Any]:
    """Return each pair's baseline as recorded: nanoseconds, bytes, a count or a name."""
    found: dict[Pair, Any] = {check.pair: _middle(check.allowed) for check in session.screening.checks}
    for each in session.screening.screened:
        found |= {p: math.exp(ln) for p, ln in zip(each.family.pairs, each.family.center_ln.tolist(), strict=True)}
    return found


def tonight_values(session: GateSession) -> dict[Pair, Any]:
    """Return each pair's value of tonight as recorded, the middle one of its processes."""
    processes = session.screening.tonight.screening
    found: dict[Pair, list[Any]] = {}
    for values in processes:
        for pair, value in values.items():
            found.setdefault(pair, []).append(value)
    return {pair: _middle(values) for pair, values in found.items()}


def _middle(values: Sequence[Any]) -> Any:
    """Return the median of numbers; of anything else what there is, with "or" between."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return statistics.median(values)
    return " or ".join(sorted({str(value) for value in values}))


def shown_value(metric: str, value: Any) -> str:
    """Return a value in the unit that suits its metric; "-" for None."""
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return "a huge integer"
    if metric == "iteration_time_ns":
        return f"{value / 1e6:,.3f} ms"
    if metric.endswith("_ns"):
        return f"{value / 1e3:,.2f} us"
    if metric.endswith("_bytes"):
        return f"{value / 2**20:,.2f} MiB"
    return f"{value:,g}"


def to_json(session: GateSession) -> dict[str, Any]:
    """Return all that the table says and what it leaves out; effects are logarithms of ratios."""
    before, now = baselines(session), tonight_values(session)
    judged, known = session.judged
    return {
        "summary": summary_line(session),
        "judged": judged,
        "known": known,
        "selection": session.selection,
        "full_selection": session.full_selection,
        "verdicts": [_verdict_json(verdict, before, now) for verdict in session.verdicts],
        "controls": [
            {"name": each.name, "passed": bool(each.passed), "detail": each.detail} for each in session.controls
        ],
        "set_aside": [*session.recall.set_aside, *session.screening.set_aside],
    }


def _verdict_json(verdict: Verdict, before: Mapping[Pair, Any], now: Mapping[Pair, Any]) -> dict[str, Any]:
    value = now.get(verdict.pair)
    return {
        "key": verdict.pair.key,
        "metric": verdict.pair.metric,
        "outcome": str(verdict.outcome),
        "reasons": [str(reason) for reason in verdict.reasons],
        "waived": verdict.waived,
        "baseline": before.get(verdict.pair),
        "now": str(value) if isinstance(value, float) and not math.isfinite(value) else value,
        "effect_ln": verdict.effect_ln,
        "interval_ln": verdict.interval_ln,
        "bound_ln": verdict.bound_ln,
        "mde_ln": verdict.mde_ln,
        "nights": verdict.nights,
        "nu": verdict.nu,
        "processes": verdict.processes,
        "members": [{"key": pair.key, "metric": pair.metric} for pair in verdict.members],
        "since": verdict.since,
        "detail": verdict.detail,
        "message": verdict.message,
    }


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines: the first column and the last to the left, the others to the right."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, len(widths) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]
