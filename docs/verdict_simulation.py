"""Operating curves of the gate, simulated with the functions that it ships: the tables of `docs/verdicts.md`.

Run `python docs/verdict_simulation.py [SUITES]`. A suite has 300 benchmarks: 75 of each standard deviation between
processes in SIGMAS, each times a lognormal factor of 30 %. A night adds a common and an own effect, each like the night
before with correlation 0.5. 5 % of the processes (and, where said, 5 % of the nights) lie four times as far out.
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuseproof.verdicts import bounds, looks, noise

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

PERCENT = 0.01
SIGMAS = (0.1, 0.2, 0.4, 1.0)
SHIFTS = (1.0, 1.5, 2.0, 3.0, 5.0)
TOLERANCE = 1.0 * PERCENT
CHUNK = 100
NOMINAL = np.tile(SIGMAS, 75) * PERCENT
LN_DURATION = np.log(NOMINAL)  # a steady benchmark is a long one: what the trend over durations is for
FLOOR = np.full(len(NOMINAL), noise.LEAST_VARIANCE_LN2)
RNG = np.random.default_rng(20261129)


def contaminated(shape: tuple[int, ...]) -> Floats:
    """Return normals of which 5 % lie four times as far out."""
    return RNG.standard_normal(shape) * np.where(RNG.random(shape) < 0.05, 4.0, 1.0)


def night_effects(suites: int, nights: int, sigma: float, *, wild: bool) -> Floats:
    """Return (suites, nights, benchmarks): a common and an own effect, each with a memory of one night."""
    total = np.zeros((suites, nights, len(NOMINAL)))
    for width in (1, len(NOMINAL)):
        effect = sigma * RNG.standard_normal((suites, nights, width))
        for night in range(1, nights):
            effect[:, night] = 0.5 * effect[:, night - 1] + math.sqrt(0.75) * effect[:, night]
        total += effect * np.where(RNG.random(effect.shape) < 0.05 * wild, 4.0, 1.0)
    return total


@dataclass(frozen=True)
class Cell:
    """One condition: replicates a night, nights of history, what nights do (in percent)."""

    replicates: int
    nights: int
    sigma_night: float = 0.2
    wild: bool = False


class World:
    """Histories of `suites` suites, estimated by the shipped functions, and the means to run fresh processes."""

    def __init__(self, cell: Cell, suites: int, later: int) -> None:
        self.cell, self.suites = cell, suites
        shape = (suites, len(NOMINAL))
        self.sigma = NOMINAL * np.exp(0.3 * RNG.standard_normal(shape))
        self.effects = night_effects(suites, cell.nights + later, cell.sigma_night * PERCENT, wild=cell.wild)
        processes = [self.processes(night, cell.replicates) for night in range(cell.nights)]
        values = np.stack([np.median(each, axis=1) for each in processes], axis=1)
        self.base = noise.between_nights(values)
        within = [each - np.median(each, axis=1, keepdims=True) for each in processes if cell.replicates > 1]
        calibration = self.sigma[:, None] * contaminated((suites, 8, len(NOMINAL)))
        within.append(calibration - np.median(calibration, axis=1, keepdims=True))
        df = 7.0 + cell.nights * (cell.replicates - 1)
        self.within, self.within_nu = noise.shrunken(np.concatenate(within, axis=1), df, LN_DURATION, FLOOR)
        if cell.nights > 2:
            self.variance, self.nu = noise.shrunken(self.base.residuals_ln, cell.nights - 1.0, LN_DURATION, FLOOR)
        else:
            self.variance = noise.new_machine_variance(self.within, cell.replicates)
            self.nu = np.asarray(noise.NEW_NU)
        tests = len(NOMINAL)
        self.unpaired = bounds.unpaired_limits(
            self.variance, self.nu, cell.nights - 1.0, float(cell.nights), tests, TOLERANCE
        )
        self.paired = bounds.paired_limits(self.unpaired, self.within, self.within_nu, tests, TOLERANCE)

    def processes(self, night: int, count: int) -> Floats:
        """Return fresh processes of a night: (suites, count, benchmarks)."""
        return self.effects[:, night, None] + self.sigma[:, None] * contaminated((self.suites, count, len(NOMINAL)))

    def screened(self, night: int, shift: Floats | float = 0.0) -> tuple[Floats, Floats, Floats]:
        """Return (d, C, c) of a night's screening."""
        y = np.median(self.processes(night, self.cell.replicates), axis=1) + shift
        d = y - self.base.center_ln
        return d, *bounds.clip_common(d, self.base.sd_common_ln)


def by_sigma(hits: Flags) -> str:
    """Return percentages by process standard deviation: 0.1 / 0.2 / 0.4 / 1 %."""
    return "/".join(f"{100 * hits[:, k :: len(SIGMAS)].mean():.0f}" for k in range(len(SIGMAS)))


def blocked(
    rule: str,
    world: World,
    nights: list[tuple[Floats, Floats, Floats]],
    in_pairs: tuple[Floats, Floats],
    shift: Floats | float,
) -> Flags:
    """Return what blocks under a rule if all benchmarks are slower by `shift`.

    `nights` holds (d - c, D, own bound) of two nights, `in_pairs` the median pair differences of the first and theirs.
    """
    screen = world.unpaired.screen
    suspect, again = (excess + shift > screen for excess, _, _ in nights)
    if rule == "paired":
        return np.asarray(suspect & (in_pairs[0] + shift > np.maximum(world.paired.block, in_pairs[1])))
    block, later = (np.maximum(world.unpaired.block, own) for _, _, own in nights)
    first = suspect & (nights[0][1] + shift > block)
    if rule == "unpaired":
        return np.asarray(first)
    df = world.cell.nights - 1.0
    proof = bounds.is_proven(nights[0][1] + shift, block, df, held=False)
    held = first & (proof > 0)
    next_night = bounds.is_proven(nights[1][1] + shift, later, df, held)
    return np.asarray((first & (proof == 2)) | (again & (next_night == 2)))


def nightly(cell: Cell, suites: int) -> dict[str, tuple[Flags, list[Flags], Flags]]:
    """Return by rule: suites that block without a change; blocks at each shift and at the MDE; who is gateable."""
    rules = ("unpaired", "two nights", "paired")
    false: dict[str, list[Flags]] = {rule: [] for rule in rules}
    hits: dict[str, list[list[Flags]]] = {rule: [] for rule in rules}
    gateable: dict[str, list[Flags]] = {rule: [] for rule in rules}
    for _ in range(suites // CHUNK):
        world = World(cell, CHUNK, later=2)
        nights = []
        for night in (cell.nights, cell.nights + 1):
            d, _, c = world.screened(night)
            z = world.processes(night, bounds.UNPAIRED_PROCESSES)
            nights.append(
                (
                    d - c,
                    np.median(z, axis=1) - world.base.center_ln - c,
                    bounds.own_bound(z, world.within, world.within_nu, 1),
                )
            )
        night = cell.nights
        pairs = world.processes(night, 15) - world.processes(night, 15)
        medians = [np.median(pairs[:, :count], axis=1) for count in bounds.PAIR_COUNTS]
        chosen = [world.paired.processes == count for count in bounds.PAIR_COUNTS]
        own = [bounds.own_bound(pairs[:, :n], 2 * world.within, world.within_nu, 1) for n in bounds.PAIR_COUNTS]
        in_pairs = np.select(chosen, medians), np.select(chosen, own)
        for rule in rules:
            false[rule].append(np.asarray(blocked(rule, world, nights, in_pairs, 0.0).any(axis=1)))
            limits = world.paired if rule == "paired" else world.unpaired
            shifts: list[Floats | float] = [*(shift * PERCENT for shift in SHIFTS), limits.mde]
            hits[rule].append([blocked(rule, world, nights, in_pairs, shift) for shift in shifts])
            gateable[rule].append(limits.mde <= 2 * TOLERANCE)
    return {
        rule: (
            np.concatenate(false[rule]),
            [np.concatenate([chunk[k] for chunk in hits[rule]]) for k in range(len(SHIFTS) + 1)],
            np.concatenate(gateable[rule]),
        )
        for rule in rules
    }


def power_table(suites: int) -> None:
    """Print what is found on one night, two nights, and in pairs."""
    names = {"unpaired": "alone, one night above B", "two nights": "alone, as judged", "paired": "in pairs"}
    print(
        "| confirmed | r | K | "
        + " | ".join(f"+{shift:g} %" for shift in SHIFTS)
        + " | MDE | gateable | false nights |"
    )
    print("|---" * (6 + len(SHIFTS)) + "|")
    for cell in (Cell(1, 3), Cell(1, 8), Cell(1, 20), Cell(3, 1), Cell(3, 8), Cell(3, 20)):
        for rule, (false, hits, gateable) in nightly(cell, suites).items():
            row = " | ".join(by_sigma(hit) for hit in hits)
            print(
                f"| {names[rule]} | {cell.replicates} | {cell.nights} | {row} | {by_sigma(gateable)} | {_rate(false)} |"
            )


def _rate(false: Flags) -> str:
    return f"{100 * false.mean():.2f} %"


def null_table(suites: int) -> None:
    """Print how many nights of an unchanged suite block."""
    print("| nights | r | K | alone, one night above B | alone, as judged | in pairs |")
    print("|---|---|---|---|---|---|")
    for replicates in (1, 3):
        for sigma, wild in ((0.0, False), (0.5, False), (0.2, True)):
            result = nightly(Cell(replicates, 8, sigma, wild), suites)
            rates = " | ".join(_rate(false) for false, _, _ in result.values())
            print(f"| sd {sigma:g} %{', 5 % of them x4' if wild else ''} | {replicates} | 8 | {rates} |")


def partial_table(suites: int) -> None:
    """Print what a shift of a part of the suite does: K = 20, r = 1."""
    heads = ("part", "shift", "suite alarm", "found one by one", "if C were subtracted")
    print(f"| {' | '.join(heads)} | others faster, a night | if C were subtracted |")
    print("|---" * 7 + "|")
    for share, shift in ((0.0, 0.0), (0.1, 2.0), (0.3, 2.0), (0.5, 2.0), (0.7, 2.0), (1.0, 2.0), (1.0, 4.0)):
        alarms, found, naive, faster, naive_faster, moved = 0.0, 0, 0, 0, 0, 0
        for _ in range(suites // CHUNK):
            world = World(Cell(1, 20), CHUNK, later=1)
            on = RNG.random((CHUNK, len(NOMINAL))) < share
            d, common, c = world.screened(20, np.asarray(shift * PERCENT * on))
            z = np.median(world.processes(20, 5), axis=1) + shift * PERCENT * on - world.base.center_ln
            limit = bounds.alarm_bound(world.base.sd_common_ln, 20.0, TOLERANCE)
            alarms += float(((common > limit) & (np.median(z, axis=1)[:, None] > limit)).sum())
            limits = world.unpaired
            found += int((on & (d - c > limits.screen) & (z - c > limits.block)).sum())
            naive += int((on & (d - common > limits.screen) & (z - common > limits.block)).sum())
            faster += int((~on & (d - c < -limits.screen) & (z - c < -limits.block)).sum())
            naive_faster += int((~on & (d - common < -limits.screen) & (z - common < -limits.block)).sum())
            moved += int(on.sum())
        total = suites // CHUNK * CHUNK
        parts = [f"{100 * alarms / total:.1f} %", *(f"{100 * n / max(moved, 1):.0f} %" for n in (found, naive))]
        print(
            f"| {share:.0%} | {shift:+g} % | {' | '.join(parts)} | {faster / total:.2f} | {naive_faster / total:.2f} |"
        )


def creep_table(suites: int) -> None:
    """Print what the anchor finds in ten nights of +0.3 %, and how often it blocks twenty nights without a change."""
    print("| r | nights | ten nights of +0.3 %: found by the tenth | false a night |")
    print("|---|---|---|---|")
    for replicates, sigma in ((1, 0.2), (3, 0.2), (3, 0.5)):
        caught, false, asked = [], 0.0, 0
        for _ in range(suites // CHUNK):
            world = World(Cell(replicates, 20, sigma), CHUNK, later=20)
            limit = bounds.creep_bound(world.variance, world.nu, 20.0, len(NOMINAL), TOLERANCE)
            nights = []
            for night in range(20, 40):
                d, _, c = world.screened(night)
                nights.append(d - c)
            levels = np.stack(nights, axis=1)
            for path in (0.3 * np.arange(1.0, 11.0), np.zeros(20)):
                shifted = levels[:, : len(path)] + path[:, None] * PERCENT
                above = [
                    bounds.creep_effect(shifted[:, k - 4 : k + 1], np.zeros_like(limit)) > limit
                    for k in range(4, len(path))
                ]
                if path.any():
                    caught.append(np.any(above, axis=0))
                else:
                    false += float(np.any(above, axis=2).sum())
                    asked += len(above) * CHUNK
        print(f"| {replicates} | sd {sigma:g} % | {by_sigma(np.concatenate(caught))} | {100 * false / asked:.3f} % |")


def upgrade_table(suites: int) -> None:
    """Print what the looks decide: REGRESSED and PASS by 12 and by 24 pairs."""
    print(
        "| shift | REGRESSED by 12 pairs | PASS by 12 | REGRESSED by 24 | PASS by 24 | suites with a false REGRESSED |"
    )
    print("|---|---|---|---|---|---|")
    for shift in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0):
        cells: list[list[Flags]] = [[], [], [], []]
        for _ in range(suites // CHUNK):
            world = World(Cell(1, 3, 0.0), CHUNK, later=1)
            values = world.processes(3, looks.LOOKS[-1]) - world.processes(3, looks.LOOKS[-1]) + shift * PERCENT
            slower = equal = np.zeros((CHUNK, len(NOMINAL)), dtype=bool)
            for count in looks.LOOKS:
                seen = looks.look(values[:, :count], LN_DURATION, len(NOMINAL), TOLERANCE, FLOOR)
                slower, equal = slower | (seen.slower & ~equal), equal | (seen.equal & ~slower)
                if count in (12, 24):
                    at = 0 if count == 12 else 2
                    cells[at].append(slower)
                    cells[at + 1].append(equal)
        row = " | ".join(by_sigma(np.concatenate(each)) for each in cells)
        false = _rate(np.asarray(np.concatenate(cells[2]).any(axis=1))) if shift == 0 else "-"
        print(f"| {shift:+g} % | {row} | {false} |")


def main() -> None:
    """Print all tables."""
    suites = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    start = time.perf_counter()
    for title, table in (
        ("Nightly, nights of sd 0.2 %", power_table),
        ("Nothing has changed", null_table),
        ("A part of the suite", partial_table),
        ("Creep", creep_table),
        ("Upgrade", upgrade_table),
    ):
        print(f"\n{title} ({suites // CHUNK * CHUNK} suites a row)\n")
        table(suites)
        print(f"<!-- {time.perf_counter() - start:.0f} s -->", flush=True)


if __name__ == "__main__":
    main()
