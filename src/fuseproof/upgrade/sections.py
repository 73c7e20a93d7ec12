"""The answer of an upgrade as sections of sentences and tables, which each form of the report writes in its own way."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fuseproof.gate.present import shown_value
from fuseproof.upgrade.environment import Examined
from fuseproof.upgrade.inventory import differences, in_words
from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.parity_change import ParityChange, in_budgets
from fuseproof.upgrade.skipped import Skipped
from fuseproof.verdicts.verdict import SUITE, Outcome, Reason, Verdict, in_percent

__all__ = ["Section", "is_time", "plain", "sections"]

_TABLE = ("benchmark", "metric", "old", "new", "change", "95 % interval", "verdict", "why")


@dataclass(frozen=True)
class Section:
    """A part of a report.

    Attributes:
        title: of it.
        lines: sentences before its table.
        header, rows: its table; none where there are no rows.
        whole: it repeats what others say beside all that is unchanged; for a page, not for a terminal.

    """

    title: str
    lines: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    whole: bool = False

    @property
    def numbers(self) -> bool:
        """Whether the table is one of numbers, between its first column and its last."""
        return self.header == _TABLE


def plain(text: object) -> str:
    """Return a text on one line that moves no cursor: names and messages come from elsewhere."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())


def is_time(metric: str) -> bool:
    """Whether a metric is a time, which is estimated; all others are compared exactly."""
    return metric.endswith("_time_ns")


def sections(upgrade: Upgrade) -> list[Section]:
    """Return all that is to be said after the overall sentence, what matters most first."""
    parity = _parity(upgrade.parity) if upgrade.parity is not None else [Section("Parity", ("It was not asked for.",))]
    measured = [each for each in upgrade.verdicts if Reason.FAILED not in each.reasons]
    exact, times = (
        _verdicts(title, upgrade, [each for each in measured if is_time(each.pair.metric) == kind], same)
        for title, kind, same in (
            ("Kernels, launches, memory", False, "the same in both"),
            ("Times", True, "none slower, none faster, none undecided"),
        )
    )
    times = replace(times, lines=(*times.lines, *_host(upgrade)))
    failed = _failed([each for each in upgrade.verdicts if Reason.FAILED in each.reasons])
    skipped = _skipped("Benchmarks", upgrade.skipped)
    return [_course(upgrade), _environments(upgrade), *parity, *failed, *skipped, exact, times, _everything(upgrade)]


def _course(upgrade: Upgrade) -> Section:
    asked = f"Asked for: {upgrade.selection or 'everything'}."
    pairs = f"{upgrade.pairs} pair{'s' * (upgrade.pairs != 1)} of processes in {upgrade.seconds:,.0f} s."
    early = ["It was interrupted; start it again with the same folder, and it goes on."] if upgrade.interrupted else []
    return Section("Course", tuple(map(plain, [asked, pairs, *early, *upgrade.notes])))


def _environments(upgrade: Upgrade) -> Section:
    found = differences(upgrade.old, upgrade.new)
    lines = [f"{one.name}: {one.environment.python}{_set(one.environment.variables)}" for one in _both(upgrade)]
    lines += [f"both on {upgrade.new.machine_slug}: {in_words(found)}"]
    lines += [
        f"{one.name}: {each.sentence}" for one in _both(upgrade) for each in one.findings if each.status == "broken"
    ]
    rows = [(each.kind, each.name, each.old, each.new) for each in found]
    return _section("Environments", lines, ("kind", "what", "old", "new"), rows)


def _both(upgrade: Upgrade) -> tuple[Examined, Examined]:
    return upgrade.old, upgrade.new


def _set(variables: Mapping[str, str]) -> str:
    return "".join(f" {name}={value}" for name, value in variables.items())


def _section(
    title: str,
    lines: Iterable[str],
    header: tuple[str, ...],
    rows: Iterable[Sequence[object]],
    *,
    whole: bool = False,
) -> Section:
    cells = tuple(tuple(plain(cell) for cell in row) for row in rows)
    return Section(title, tuple(map(plain, lines)), header if cells else (), cells, whole)


def _parity(change: ParityChange) -> list[Section]:
    lines = [f"{change.sentence} ({change.seconds:,.0f} s)", f"old: {change.old}", f"new: {change.new}"]
    found = [Section("Parity", tuple(map(plain, lines)))]
    for title, changes in (
        ("Newly failing", change.newly_failing),
        ("Known defects gained", change.defects_gained),
        ("No longer asked", change.vanished),
        ("Failing in both, in another way", change.failing_otherwise),
        ("Failing in both", change.still_failing),
        ("Known defects mended", change.defects_mended),
        ("Failures mended", change.newly_passing),
        ("New cases", change.appeared),
    ):
        if changes:
            rows = [(each.test, f"{each.old} -> {each.new}", each.why) for each in changes]
            found.append(_section(f"Parity: {title.lower()} ({len(rows)})", (), ("case", "was and is", "why"), rows))
    for title, grown in (("failing in both, and", change.worsened), ("errors", change.grown)):
        if grown:
            errors = [
                (each.test, each.quantity, in_budgets(each.old), in_budgets(each.new), f"{each.times:.3g}")
                for each in grown
            ]
            title = f"Parity: {title} grown more than {change.growth:g} times ({len(grown)})"
            header = ("case", "quantity", "old, in budgets", "new, in budgets", "times")
            found.append(_section(title, (), header, errors))
    return [*found, *_skipped("Parity:", change.skipped)]


def _skipped(what: str, skipped: Sequence[Skipped]) -> list[Section]:
    """Return the table of what was skipped in both, a row for each reason."""
    rows = [(len(each.tests), each.tests[0], each.reason) for each in skipped]
    title = f"{what} skipped in both ({sum(len(each.tests) for each in skipped)})"
    return [_section(title, (), ("tests", "the first", "why"), rows)] if rows else []


def _verdicts(title: str, upgrade: Upgrade, verdicts: Sequence[Verdict], same: str) -> Section:
    """Return what wants attention: all but PASS, and what is not the same though it passes."""
    told = [each for each in verdicts if each.outcome is not Outcome.PASS or each.reasons]
    quiet = len(verdicts) - len(told)
    if not verdicts:
        lines = ["nothing was compared"]
    else:
        lines = [f"{quiet} of {len(verdicts)} {same if not told else 'without a finding'}"]
    return _section(title, lines, _TABLE, [_row(upgrade, each) for each in told])


def _host(upgrade: Upgrade) -> list[str]:
    """Return what became of host times as one sentence: each alone is noise, the median over benchmarks is less so."""
    changes = [_reported_ln(*values) for pair, values in upgrade.durations.items() if pair.metric == "host_time_ns"]
    known = sorted(each for each in changes if each is not None)
    if not known:
        return []
    middle, least, most = (in_percent(each) for each in (statistics.median(known), known[0], known[-1]))
    of = f"{len(known)} benchmark{'s' * (len(known) != 1)}"
    return [f"host time, which is judged by nobody: {middle} in the median of {of}, {least} to {most}"]


def _reported_ln(old: Any, new: Any) -> float | None:
    """Return the logarithm of what a metric that is judged by nobody has become; None where an arm has none."""
    numbers = all(isinstance(each, int | float) and 0 < each < math.inf for each in (old, new))
    return math.log(new / old) if numbers else None


def _failed(verdicts: Sequence[Verdict]) -> list[Section]:
    rows = [(each.pair.key, each.outcome, each.detail) for each in verdicts]
    title = f"Benchmarks whose tests fail ({len(rows)})"
    return [_section(title, (), ("test", "verdict", "why"), rows)] if rows else []


def _everything(upgrade: Upgrade) -> Section:
    rows = [_row(upgrade, each) for each in sorted(upgrade.verdicts, key=lambda each: each.pair)]
    judged = {each.pair for each in upgrade.verdicts}
    for pair in sorted(upgrade.durations.keys() - judged):
        change_ln = _reported_ln(*upgrade.durations[pair])
        change = "-" if change_ln is None else in_percent(change_ln)
        old, new = (shown_value(pair.metric, value) for value in upgrade.durations[pair])
        rows.append((pair.key, pair.metric, old, new, change, "-", "reported only", ""))
    lines = [
        "Medians over all processes; the change is the median over pairs, so the two need not agree. What is reported "
        "only is compared by its medians."
    ]
    return _section("All benchmarks", lines if rows else ["nothing was measured"], _TABLE, rows, whole=True)


def _row(upgrade: Upgrade, verdict: Verdict) -> tuple[str, ...]:
    pair, interval = verdict.pair, verdict.interval_ln
    old, new = upgrade.durations.get(pair, (None, None))
    why = [", ".join(reason for reason in verdict.reasons if reason is not Reason.EXACT), verdict.detail]
    why += [f"{verdict.processes} pairs"] if verdict.processes else []
    return (
        "the whole suite" if pair.key == SUITE else pair.key,
        pair.metric,
        shown_value(pair.metric, old),
        shown_value(pair.metric, new),
        "-" if verdict.effect_ln is None else in_percent(verdict.effect_ln),
        "-" if interval is None else f"{in_percent(interval[0])} to {in_percent(interval[1])}",
        str(verdict.outcome),
        "; ".join(part for part in why if part),
    )
