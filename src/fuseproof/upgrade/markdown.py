"""An upgrade as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fuseproof.upgrade.answer import sentence
from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.sections import sections

__all__ = ["to_markdown"]

_MOST_ROWS = 1000  # of a table: a case that is no longer asked may have thousands beside it, and no reader
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$#])")


def to_markdown(upgrade: Upgrade) -> str:
    """Return the report; whatever a name holds is shown as it is."""
    lines = ["# Upgrade", "", f"**{_escaped(sentence(upgrade))}**"]
    for section in sections(upgrade):
        lines += ["", f"## {_escaped(section.title)}", ""]
        lines += [f"- {_escaped(line)}" for line in section.lines]
        if section.rows:
            lines += ["", _row(section.header), _row("---" for _ in section.header)]
            lines += [_row(map(_escaped, row)) for row in section.rows[:_MOST_ROWS]]
            if (left := len(section.rows) - _MOST_ROWS) > 0:
                lines += ["", f"... and {left} more"]
    return "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", text)
