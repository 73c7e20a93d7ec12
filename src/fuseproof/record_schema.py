"""What a verdicts document must hold: what was said of a night or accepted with it; one check for writing and reading.

A verdict that is read wrongly would make a regressed night a baseline, so nothing is repaired and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from fuseproof.run_schema import Fault, block_faults, leaf_faults, number_faults, shown
from fuseproof.verdicts.verdict import Outcome, Reason

__all__ = ["RECORD_SCHEMA", "find_record_fault"]

RECORD_SCHEMA = 2
"""The version of the layout of verdicts documents that this fuseproof writes; it also reads 1, which has no `plant`."""

_JUDGED_KEYS = {"fuseproof", "verdicts", "confirming", "trusted", "unchanged", "plant"}
_ACCEPTED_KEYS = {"fuseproof", "accepted", "reason", "who"}
_WITHDRAWN_KEYS = {"fuseproof", "withdrawn", "reason", "who"}
_GROUP_KEYS = {"outcome", "reasons", "since", "pairs"}
_SAID_BY_HAND = {"accepted": _ACCEPTED_KEYS, "withdrawn": _WITHDRAWN_KEYS}
_PLANT_KEYS = {"key", "metric", "size_ratio", "block_ratio", "seen_ratios"}


def find_record_fault(document: object, machine: str, night: str) -> Fault | None:
    """Return the first fault of a verdicts document, or None for a sound one.

    `machine` is the name of the folder that the file is (or will be) in, `night` the night that its name says.
    """
    return next(_faults(document, machine, night), None)


def _faults(document: object, machine: str, night: str) -> Iterator[Fault]:
    # The caller stops at the first fault, so whatever a `yield` has ruled out need not be guarded against below it.
    if not isinstance(document, dict):
        yield Fault(f"the document is {shown(document)}, not an object")
        return
    yield from block_faults(document.get("fuseproof"), machine, night, RECORD_SCHEMA)
    keys = next((said for name, said in _SAID_BY_HAND.items() if name in document), _JUDGED_KEYS)
    if document["fuseproof"]["schema"] == 1:
        keys = keys - {"plant"}
    for name in document.keys() ^ keys - ({"unchanged"} - document.keys()):
        yield Fault(f"{name} is {'missing' if name in keys else 'no key of a verdicts document'}")
    yield from leaf_faults(document)
    for said in _SAID_BY_HAND.keys() & document.keys():
        yield from _pairs_faults(document[said], said)
        for name in ("reason", "who"):
            if not isinstance(document[name], str) or not document[name]:
                yield Fault(f"{name} is {shown(document[name])}, not a text")
        return
    yield from _verdict_faults(document["verdicts"])
    for name in ("confirming", "trusted"):
        yield from _process_faults(document[name], name)
    if (pairs := len(document["trusted"])) > (count := len(document["confirming"])):
        yield Fault(f"trusted holds {pairs} processes and confirming {count}: each ran beside one of those")
    unchanged = document.get("unchanged", {"decisions": 0, "above": 0, "blocks": 0})
    if not isinstance(unchanged, dict) or unchanged.keys() != {"decisions", "above", "blocks"}:
        yield Fault(f"unchanged is {shown(unchanged)}, not decisions, above and blocks")
    yield from number_faults(unchanged, "unchanged", "")
    yield from _plant_faults(document.get("plant"))


def _verdict_faults(groups: object) -> Iterator[Fault]:
    if not isinstance(groups, list):
        yield Fault(f"verdicts is {shown(groups)}, not a list")
        return
    for index, group in enumerate(groups):
        where = f"verdicts[{index}]"
        if not isinstance(group, dict) or group.keys() != _GROUP_KEYS:
            yield Fault(f"{where} does not hold {', '.join(sorted(_GROUP_KEYS))}")
        if group["outcome"] not in [*Outcome]:
            yield Fault(f"{where}.outcome is {shown(group['outcome'])}, which is no verdict")
        if not isinstance(group["reasons"], list) or any(reason not in [*Reason] for reason in group["reasons"]):
            yield Fault(f"{where}.reasons is {shown(group['reasons'])}, not a list of reasons")
        if not isinstance(group["since"], str | None):
            yield Fault(f"{where}.since is {shown(group['since'])}, not a night")
        yield from _pairs_faults(group["pairs"], f"{where}.pairs")


def _pairs_faults(pairs: object, where: str) -> Iterator[Fault]:
    if not isinstance(pairs, dict) or not pairs:
        yield Fault(f"{where} is {shown(pairs)}, not keys by metric")
        return
    for metric, keys in pairs.items():
        if not metric or not isinstance(keys, list) or not all(isinstance(key, str) and key for key in keys):
            yield Fault(f"{where}.{metric} is {shown(keys)}, not a list of keys")


def _plant_faults(plant: object) -> Iterator[Fault]:
    if plant is None:
        return
    if not isinstance(plant, dict) or plant.keys() != _PLANT_KEYS:
        yield Fault(f"plant is {shown(plant)}, not an object with {', '.join(sorted(_PLANT_KEYS))}")
        return
    for name in ("key", "metric"):
        if not isinstance(plant[name], str) or not plant[name]:
            yield Fault(f"plant.{name} is {shown(plant[name])}, not a text")
    if not isinstance(plant["seen_ratios"], list):
        yield Fault(f"plant.seen_ratios is {shown(plant['seen_ratios'])}, not a list")
        return
    ratios = [plant["size_ratio"], plant["block_ratio"], *plant["seen_ratios"]]
    yield from number_faults(ratios, "plant", " (size, block, seen)")
    if not all(ratios):
        yield Fault("plant holds the ratio 0, and no time is 0")


def _process_faults(processes: object, where: str) -> Iterator[Fault]:
    if not isinstance(processes, list) or not all(isinstance(process, dict) for process in processes):
        yield Fault(f"{where} is {shown(processes)}, not a list of processes")
        return
    for index, process in enumerate(processes):
        for key, metrics in process.items():
            if not isinstance(metrics, dict):
                yield Fault(f"{where}[{index}] of {shown(key)} is {shown(metrics)}, not metrics")
            numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
            yield from number_faults(numbers, f"{where}[{index}]", f" of {shown(key)}")
