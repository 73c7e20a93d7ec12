"""Candidates against each other, look after look: who is faster, or equal, or not yet known (docs/verdicts.md, 7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from fuseproof.verdicts.looks import EQUAL_TAIL, INTERVAL_TAIL, LOOKS, SLOWER_TAIL, is_settled, is_sound, look, samples
from fuseproof.verdicts.noise import student
from fuseproof.verdicts.verdict import Pair

__all__ = ["Place", "Standing", "judge_contest"]


class Place(StrEnum):
    """What is said of a challenger beside the one that it is compared with."""

    FASTER = "faster"
    SLOWER = "slower"
    EQUAL = "equal"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Standing:
    """One challenger in one benchmark and metric.

    Attributes:
        pair: the challenger's own key, and the metric.
        place: what is said of it.
        effect_ln: the median of its logarithmic ratios; None before the first look, and the next two.
        interval_ln: its 95 % interval.
        nu: degrees of freedom.
        processes: that it rests on.

    """

    pair: Pair
    place: Place
    effect_ln: float | None = None
    interval_ln: tuple[float, float] | None = None
    nu: float | None = None
    processes: int = 0


def judge_contest(
    ratios_ln: Mapping[Pair, Sequence[float]],
    ln_durations: Mapping[Pair, float],
    *,
    tolerance_ln: float,
    resolution_ns: float,
    tests: int,
) -> list[Standing]:
    """Return the standings that all looks so far allow.

    Equal is asked first: the ratio is proven to lie within the tolerance on both sides. Else faster or slower, if it is
    proven to lie on one side of 1, in either direction with half of the error that a regression has. A standing of an
    earlier look stays.

    Args:
        ratios_ln: by challenger: its time over the other's, for each process, in the order in which they ran.
        ln_durations: the logarithm of its duration in nanoseconds, for the trend of the noise.
        tolerance_ln: the largest difference that is none.
        resolution_ns: the step of the clock.
        tests: how many standings share the error.

    """
    sound = {pair: list(map(float, values)) for pair, values in ratios_ln.items() if is_sound(values)}
    found = {pair: Standing(pair, Place.UNDECIDED) for pair in ratios_ln}
    for sample in samples(sound, ln_durations, resolution_ns):
        seen = look(sample.differences_ln, sample.ln_duration, tests, tolerance_ln, sample.floor_ln2)
        size, se = np.abs(seen.effect_ln), seen.se_ln
        equal = size + student(EQUAL_TAIL / len(LOOKS), seen.nu) * se < tolerance_ln
        apart = size - student(SLOWER_TAIL / 2 / len(LOOKS) / tests, seen.nu) * se > 0
        apart &= is_settled(sample.count, size)
        half = student(INTERVAL_TAIL, seen.nu) * se
        for pair in sample.ready:
            if found[pair].place is not Place.UNDECIDED:
                continue
            column = sample.pairs.index(pair)
            effect, reach = float(seen.effect_ln[column]), float(half[column])
            place = Place.UNDECIDED
            if equal[column]:
                place = Place.EQUAL
            elif apart[column]:
                place = Place.FASTER if effect < 0 else Place.SLOWER
            interval = (effect - reach, effect + reach)
            found[pair] = Standing(pair, place, effect, interval, float(seen.nu[column]), sample.count)
    return [found[pair] for pair in sorted(found)]
