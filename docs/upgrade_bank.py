"""Judge the processes of one environment, compared with itself, in other pairs: how often would it be called slower?

    fuseproof upgrade --from python --to python --no-parity --pairs 10 --no-early-stop --folder aa
    python docs/upgrade_bank.py aa --ways 8

The first makes a bank of 20 processes of two copies of one environment. The second deals them anew, eight times, into
ten pairs of two, of one GPU each, and judges each deal as `fuseproof upgrade` would: nothing may be REGRESSED, and all
that is gateable must PASS. Gateable is a time whose minimum detectable effect at the last look that so many pairs allow
is at most twice its tolerance; what is noisier, as a host-bound iteration is, cannot be proven equal by so few.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from fuseproof.gate.settings import GateSettings
from fuseproof.storage import read_document
from fuseproof.upgrade.bank import Trial, read_trials
from fuseproof.upgrade.comparison import Comparison, compare
from fuseproof.upgrade.plan import UpgradePlan
from fuseproof.verdicts.looks import LOOKS
from fuseproof.verdicts.rules import rules_by_pair
from fuseproof.verdicts.verdict import Outcome, Verdict, closing_line

ARMS = ("old", "new")
RULES = GateSettings().rules


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
    yield "as they ran", compare(trials, RULES)
    for way in range(1, ways + 1):
        yield f"dealt anew, way {way}", compare(dealt(trials, way), RULES)


def mde_ln(verdict: Verdict, pairs: int, tolerance_ln: float) -> float:
    """Return the slow-down that would be found in 95 % of comparisons of so many pairs, from the noise of this one.

    A verdict that was decided earlier rests on fewer; its standard error shrinks with the root of their number.
    """
    if verdict.bound_ln is None or verdict.mde_ln is None:
        return math.inf
    shrunk = math.sqrt(verdict.processes / pairs)
    return max(tolerance_ln, verdict.bound_ln * shrunk) + (verdict.mde_ln - verdict.bound_ln) * shrunk


def counted(comparison: Comparison, pairs: int) -> str:
    """Return the counts of the judged times in one line."""
    last = max((look for look in LOOKS if look <= pairs), default=LOOKS[0])
    limits = {pair: rule.tolerance_ln for pair, rule in rules_by_pair(RULES, comparison.durations).items()}
    times = [each for each in comparison.verdicts if each.pair.metric.endswith("_time_ns")]
    slower = sum(each.outcome is Outcome.REGRESSED for each in times)
    undecided = sum(each.outcome is Outcome.INCONCLUSIVE for each in times)
    gateable = [each for each in times if mde_ln(each, last, limits[each.pair]) <= 2 * limits[each.pair]]
    passed = sum(each.outcome in (Outcome.PASS, Outcome.IMPROVED) for each in gateable)
    other = closing_line([each for each in comparison.verdicts if each not in times])
    return (
        f"REGRESSED {slower}, PASS {passed} of {len(gateable)} gateable, undecided {undecided} of {len(times)} times; "
        f"the rest: {other}"
    )


def main() -> None:
    """Print one line for each way, and whatever is called slower or hungrier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of `fuseproof upgrade`")
    parser.add_argument("--ways", type=int, default=8)
    arguments = parser.parse_args()
    path = arguments.folder / "plan.json"
    trials = read_trials(arguments.folder, UpgradePlan.read(read_document(path), str(path)))
    print(f"{2 * len(trials)} processes; gateable: so many pairs would find a slow-down of twice the tolerance")
    for name, comparison in judged(trials, arguments.ways):
        print(f"{name}: {counted(comparison, len(trials))}")
        for verdict in comparison.verdicts:
            if verdict.outcome in (Outcome.REGRESSED, Outcome.INVALID, Outcome.MISSING):
                print(f"  {verdict.message}")


if __name__ == "__main__":
    main()
