"""An upgrade as a sentence, as lines for a terminal, as JSON; as Markdown and HTML by the modules of these names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from textwrap import TextWrapper
from typing import Any, Final

from fuseproof.gate.present import aligned
from fuseproof.upgrade.answer import sentence
from fuseproof.upgrade.environment import Examined
from fuseproof.upgrade.html import to_html
from fuseproof.upgrade.inventory import differences
from fuseproof.upgrade.markdown import to_markdown
from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.sections import Section, sections
from fuseproof.verdicts.verdict import Verdict

__all__ = ["sentence", "terminal_lines", "to_html", "to_json", "to_markdown"]

SCHEMA: Final = 1
_SHOWN_ROWS = 20  # of a table on a terminal; a file has them all
_WIDEST = 100  # characters of a cell there
_LONGEST = 1000  # characters of the last one, over lines: what a check of ours says has some 700
_BELOW = TextWrapper(
    _WIDEST,
    initial_indent="  ",
    subsequent_indent="  ",
    break_long_words=False,  # ids of tests are there to be copied
    break_on_hyphens=False,
)


def terminal_lines(upgrade: Upgrade) -> list[str]:
    """Return the sentence, then what it rests on; tables hold what wants attention, and say what they leave out."""
    lines = [sentence(upgrade)]
    for section in sections(upgrade):
        if section.whole:
            continue
        lines += ["", section.title, *(f"  {line}" for line in section.lines)]
        if section.rows:
            lines += [f"  {line}" for line in _table(section)]
        if (left := len(section.rows) - _SHOWN_ROWS) > 0:
            lines.append(f"  ... and {left} more")
    return lines


def _table(section: Section) -> Iterator[str]:
    """Yield its lines; a last cell that is too long, as what a failure says, stands whole below its row."""
    rows = [section.header, *section.rows[:_SHOWN_ROWS]]
    below = [cell if len(cell := row[-1]) > _WIDEST else "" for row in rows]
    cells = [(*map(_short, row[:-1]), "" if long else row[-1]) for row, long in zip(rows, below, strict=True)]
    for line, long in zip(aligned(cells) if section.numbers else _to_the_left(cells), below, strict=True):
        yield line
        yield from _BELOW.wrap(_short(long, _LONGEST))


def _to_the_left(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]


def _short(cell: str, most: int = _WIDEST) -> str:
    return cell if len(cell) <= most else f"{cell[: most - 3]}..."


def to_json(upgrade: Upgrade) -> dict[str, Any]:
    """Return all that the report says as one object; effects are logarithms of ratios, errors are in budgets."""
    parity = upgrade.parity
    return {
        "schema": SCHEMA,
        "sentence": sentence(upgrade),
        "status": upgrade.status,
        "interrupted": upgrade.interrupted,
        "pairs": upgrade.pairs,
        "seconds": upgrade.seconds,
        "tolerance_ln": upgrade.tolerance_ln,
        "selection": upgrade.selection,
        "notes": list(upgrade.notes),
        "old": _environment(upgrade.old),
        "new": _environment(upgrade.new),
        "differences": [dataclasses.asdict(each) for each in differences(upgrade.old, upgrade.new)],
        "parity": None
        if parity is None
        else {**dataclasses.asdict(parity), "sentence": parity.sentence, "status": parity.status},
        "verdicts": [_verdict(upgrade, each) for each in upgrade.verdicts],
        "skipped": [dataclasses.asdict(each) for each in upgrade.skipped],
        "reported": [
            {"key": pair.key, "metric": pair.metric, "old": _strict(old), "new": _strict(new)}
            for pair, (old, new) in sorted(upgrade.durations.items())
            if pair not in {each.pair for each in upgrade.verdicts}
        ],
    }


def _environment(examined: Examined) -> dict[str, Any]:
    return {
        "python": examined.environment.python,
        "given": dict(examined.environment.variables),
        "machine": examined.machine_slug,
        "gpus": examined.gpus,
        "inventory": dict(examined.inventory),
        "packages": dict(examined.versions),
        "variables": dict(examined.variables),
        "findings": [dataclasses.asdict(each) for each in examined.findings],
    }


def _verdict(upgrade: Upgrade, verdict: Verdict) -> dict[str, Any]:
    old, new = upgrade.durations.get(verdict.pair, (None, None))
    return {
        "key": verdict.pair.key,
        "metric": verdict.pair.metric,
        "outcome": str(verdict.outcome),
        "reasons": [str(reason) for reason in verdict.reasons],
        "old": _strict(old),
        "new": _strict(new),
        "effect_ln": _strict(verdict.effect_ln),
        "interval_ln": None if verdict.interval_ln is None else [_strict(each) for each in verdict.interval_ln],
        "bound_ln": _strict(verdict.bound_ln),
        "mde_ln": _strict(verdict.mde_ln),
        "pairs": verdict.processes,
        "detail": verdict.detail,
    }


def _strict(value: Any) -> Any:
    """Return a value as JSON holds it: that has no word for infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
