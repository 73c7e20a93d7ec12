"""The changes of an upgrade as one SVG: each with its interval, on an axis in percent, beside the tolerance."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fuseproof.upgrade.sections import plain
from fuseproof.verdicts.verdict import Verdict, in_percent

__all__ = ["picture"]

# In pixels: what the longest name (75 letters) takes, where the axis ends, room for its last label, a line of text.
_NAMES, _END, _WIDTH, _LINE = 500, 970, 1000, 18
_LEAST_ROOM = 3  # tolerances on either side of no change: where nothing happens, noise should not look like much
_MOST_ROOM_LN = math.log(10)  # as far as a percentage goes
_WHOLE = 0.75  # of the intervals: what waits for the host varies so much that all others would be points beside it
_MOST_TICKS, _LEAST_SHARE = 4, 0.17  # on either side, and from one to the next: a label takes some 40 of 235 pixels
_WIDE_LN = math.log(1.5)  # from here on steps in percent are no more alike on both sides
_FACTORS: Final = (1.25, 2, 5, 10)  # whose percentages are round on both: -20 % and +25 %, -90 % and +900 %


@dataclass(frozen=True)
class _Axis:
    """Logarithms of ratios to pixels.

    Attributes:
        room_ln: as far as it goes, on either side.

    """

    room_ln: float

    def x(self, ln: float) -> str:
        """Return a place on it; what lies beyond is at its end."""
        share = max(-1.0, min(1.0, ln / self.room_ln))
        return f"{_NAMES + (_END - _NAMES) * (1 + share) / 2:.1f}"

    def ticks_ln(self) -> list[float]:
        """Return where its labels stand: round percentages, or round factors where it is wide."""
        if self.room_ln > _WIDE_LN:
            sides = [ln for ln in map(math.log, _FACTORS) if ln > _LEAST_SHARE * self.room_ln]
            ends = [*(-ln for ln in reversed(sides)), 0.0, *sides]
        else:
            least = math.expm1(self.room_ln) / _MOST_TICKS
            power = 10.0 ** math.floor(math.log10(least))
            step = next(each * power for each in (1, 2, 5, 10) if each * power >= least * (1 - 1e-9))
            ends = [math.log1p(number * step) for number in range(-_MOST_TICKS, _MOST_TICKS + 1)]
        return [ln for ln in ends if abs(ln) <= self.room_ln * (1 + 1e-9)]


def picture(times: Sequence[Verdict], tolerance_ln: float) -> list[str]:
    """Return each time's change with its interval, in the order given; nothing where no change has a finite one.

    All changes are on it, and most intervals whole; the widest ones run to its ends.

    Args:
        times: verdicts on times.
        tolerance_ln: the largest difference that is none.

    """
    known = [
        (each, each.effect_ln, each.interval_ln)
        for each in times
        if each.effect_ln is not None and each.interval_ln is not None
        if all(map(math.isfinite, (each.effect_ln, *each.interval_ln)))
    ]
    if not known:
        return []
    ends = sorted(max(map(abs, interval)) for _, _, interval in known)
    furthest = max(ends[math.ceil(_WHOLE * len(ends)) - 1], *(abs(effect) for _, effect, _ in known))
    axis = _Axis(max(_LEAST_ROOM * tolerance_ln, min(furthest, _MOST_ROOM_LN)))
    bottom = _LINE * (len(known) + 1) + _LINE // 2
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {bottom + _LINE}" width="{_WIDTH}" height="{bottom + _LINE}" role="img">',
        "<title>change of each time with its 95 % interval; the band is the tolerance</title>",
        *_scale(axis, tolerance_ln, bottom),
    ]
    for number, (verdict, effect, interval) in enumerate(known, 2):
        y = number * _LINE
        name = plain(verdict.pair)
        said = f"{name}: {in_percent(effect)} ({in_percent(interval[0])} to {in_percent(interval[1])})"
        lines += [
            f'<g class="{verdict.outcome}"><title>{html.escape(said)}</title>',
            f'<text x="0" y="{y}">{html.escape(name)}</text>',
            f'<line x1="{axis.x(interval[0])}" x2="{axis.x(interval[1])}" y1="{y - 4}" y2="{y - 4}"/>',
            f'<circle cx="{axis.x(effect)}" cy="{y - 4}" r="3.5" fill="currentColor"/></g>',
        ]
    return [*lines, "</svg>"]


def _scale(axis: _Axis, tolerance_ln: float, bottom: int) -> list[str]:
    """Return the band of the tolerance with its two labels above, and the ticks with theirs below."""
    low, high = axis.x(-tolerance_ln), axis.x(tolerance_ln)
    lines = [
        f'<rect class="band" x="{low}" width="{float(high) - float(low):.1f}" y="{_LINE}" height="{bottom - _LINE}"/>',
        f'<line class="axis" x1="{_NAMES}" x2="{_END}" y1="{bottom}" y2="{bottom}"/>',
    ]
    for ln, x, anchor, word in ((-tolerance_ln, low, "end", "tolerance "), (tolerance_ln, high, "start", "")):
        said = html.escape(f"{word}{in_percent(ln)}")
        lines += [
            f'<line class="tolerance" x1="{x}" x2="{x}" y1="{_LINE}" y2="{bottom}"/>',
            f'<text class="tolerance" x="{x}" y="{_LINE - 5}" text-anchor="{anchor}">{said}</text>',
        ]
    for ln in axis.ticks_ln():
        x, top = axis.x(ln), bottom - 4 if abs(ln) > 1e-12 else _LINE
        lines += [
            f'<line class="axis" x1="{x}" x2="{x}" y1="{top}" y2="{bottom + 4}"/>',
            f'<text class="tick" x="{x}" y="{bottom + _LINE - 2}" text-anchor="middle">{_label(ln)}</text>',
        ]
    return lines


def _label(ln: float) -> str:
    """Return a tick in as few digits as it has: +0.5 %, -33 %."""
    return f"{math.expm1(ln) * 100:+.3g} %" if abs(ln) > 1e-12 else "0 %"
