"""An upgrade as one HTML page that needs nothing else: no script, no network, everything escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Final

from fuseproof.upgrade.answer import sentence
from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.picture import picture
from fuseproof.upgrade.sections import Section, is_time, sections
from fuseproof.verdicts.verdict import Outcome

__all__ = ["to_html"]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"  # a browser is told to load nothing either
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --bad: #c22; --good: #283; --open: #a70 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.25rem } h2 { font-size: 1rem; margin-top: 2rem }
.answer { border-left: .4rem solid var(--open); padding: .5rem 1rem; font-size: 1.1rem }
.answer.s0 { border-color: var(--good) } .answer.s1, .answer.s20 { border-color: var(--bad) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .85rem }
th, td { text-align: left; padding: .15rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top }
td { font-variant-numeric: tabular-nums }
.REGRESSED, .INVALID, .MISSING { color: var(--bad) } .IMPROVED { color: var(--good) }
.INCONCLUSIVE, .UNGATEABLE, .NEW { color: var(--open) }
svg { max-width: 100% } svg text { font: 11px system-ui, sans-serif; fill: currentColor }
svg line { stroke: currentColor } .band { fill: #8883 } .axis { stroke-opacity: .4 }
line.tolerance { stroke-opacity: .4; stroke-dasharray: 3 3 }
"""
_OUTCOMES = {str(outcome) for outcome in Outcome}


def to_html(upgrade: Upgrade) -> str:
    """Return the page."""
    answer = html.escape(sentence(upgrade))
    parts = [part for section in sections(upgrade) for part in _section(section, upgrade)]
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(_POLICY)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{answer}</title><style>{_STYLE}</style></head><body>",
            "<h1>Upgrade</h1>",
            f'<p class="answer s{upgrade.status}">{answer}</p>',
            *parts,
            "</body></html>",
            "",
        ]
    )


def _section(section: Section, upgrade: Upgrade) -> list[str]:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.lines:
        parts.append(f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in section.lines)}</ul>")
    if section.whole:
        parts += picture([each for each in upgrade.verdicts if is_time(each.pair.metric)], upgrade.tolerance_ln)
    if section.rows:
        parts += ['<div class="scroll"><table>', _row("th", section.header)]
        parts += [_row("td", row) for row in section.rows]
        parts.append("</table></div>")
    return parts


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(_cell(tag, cell) for cell in cells)}</tr>"


def _cell(tag: str, cell: str) -> str:
    outcome = f' class="{cell}"' if cell in _OUTCOMES else ""
    return f"<{tag}{outcome}>{html.escape(cell)}</{tag}>"
