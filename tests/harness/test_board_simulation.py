"""The simulation of several boards: what it says of a board that is new, on record or not."""

import runpy
from pathlib import Path

import numpy as np
import pytest

SIMULATION = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "board_simulation.py"))
FLEETS = {fleet.words: fleet for fleet in SIMULATION["FLEETS"]}
NEW = "one board, tonight another"


def nights(words: str, percent: float, *, paired: bool = False, count: int = 12) -> list[set[str]]:
    """Return what some nights said of benchmarks that were slowed, or, without a slow-down, of all."""
    found = []
    for _ in range(count):
        verdicts, slowed = SIMULATION["judged"](FLEETS[words], percent, paired=paired)
        asked = [each for each in verdicts if not percent or slowed & set(each.members or [each.pair])]
        found.append({SIMULATION["said"](each) for each in asked})
    return found


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the same histories each time."""
    monkeypatch.setitem(SIMULATION["judged"].__globals__, "RNG", np.random.default_rng(20261130))


def test_a_new_board_is_blamed_only_where_nobody_says_that_it_is_one() -> None:
    """Two boards differ by more than processes do: without a record that is a slow-down, with one a question."""
    unknown, known = nights(f"{NEW}, not recorded", 0), nights(NEW, 0)

    assert sum("blamed" in said for said in unknown) > 6
    assert not any("blamed" in said for said in known)
    assert sum("BOARD" in said for said in known) > 6


def test_pairs_on_a_new_board_find_what_is_slower_and_nothing_else() -> None:
    """Both arms run on the same board."""
    assert not any({"blamed", "BOARD"} & said for said in nights(NEW, 0, paired=True))
    assert all("blamed" in said for said in nights(NEW, 5, paired=True))
