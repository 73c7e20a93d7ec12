"""Judge the processes of one environment, compared with itself, in other pairs: how often would it be called slower?

    fuseproof upgrade --from python --to python --no-parity --pairs 10 --no-early-stop --folder aa
    python docs/upgrade_bank.py aa --ways 8

The first makes a bank of 20 processes of two copies of one environment. The second deals them anew, eight times, into
ten pairs of two, of one GPU each, and judges each deal as `fuseproof upgrade` would: nothing may be REGRESSED.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuseproof.gate.settings import GateSettings
from fuseproof.storage import read_document
from fuseproof.upgrade.bank import Trial, read_trials
from fuseproof.upgrade.comparison import Comparison, compare
from fuseproof.upgrade.plan import UpgradePlan
from fuseproof.verdicts.verdict import Outcome, closing_line

ARMS = ("old", "new")


def dealt(trials: Sequence[Trial], way: int) -> list[Trial]:
    """Return the processes of these pairs in other pairs, the same ones for one `way`; those of a GPU stay together."""
    deck = random.Random(way)  # cards, not secrets
    found = []
    for gpu in sorted({trial.gpu for trial in trials}):
        processes = [trial.documents[arm] for trial in trials if trial.gpu == gpu for arm in ARMS]
        deck.shuffle(processes)
        found += [(gpu, pair) for pair in zip(processes[::2], processes[1::2], strict=True)]
    deck.shuffle(found)
    return [Trial(number, gpu, "old", dict(zip(ARMS, pair, strict=True))) for number, (gpu, pair) in enumerate(found)]


def judged(trials: Sequence[Trial], ways: int) -> Iterator[tuple[str, Comparison]]:
    """Yield what is said of the pairs as they ran, and of each other way to deal them."""
    rules = GateSettings().rules
    yield "as they ran", compare(trials, rules)
    for way in range(1, ways + 1):
        yield f"dealt anew, way {way}", compare(dealt(trials, way), rules)


def main() -> None:
    """Print one line for each way, and whatever is called slower or hungrier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `fuseproof upgrade`")
    parser.add_argument("--ways", type=int, default=8)
    arguments = parser.parse_args()
    path = arguments.folder / "plan.json"
    trials = read_trials(arguments.folder, UpgradePlan.read(read_document(path), str(path)))
    print(f"{2 * len(trials)} processes")
    for name, comparison in judged(trials, arguments.ways):
        print(f"{name}: {closing_line(comparison.verdicts)}")
        for verdict in comparison.verdicts:
            if verdict.outcome in (Outcome.REGRESSED, Outcome.INVALID, Outcome.MISSING, Outcome.INCONCLUSIVE):
                print(f"  {verdict.message}")


if __name__ == "__main__":
    main()
