"""`waivers.toml`: leave for one benchmark and metric to be worse, by at most so much, until a day."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from pathlib import Path

from fuseproof.gate.settings import GateSettings, margin
from fuseproof.tables import ConfigError, nearest, read_toml, refuse_unknown
from fuseproof.verdicts.rules import DEFAULT_RULES, rule_of
from fuseproof.verdicts.verdict import Pair, Waiver

__all__ = ["load_waivers", "unknown_waivers"]

_FILE = "waivers.toml"
_TEXTS = ("key", "metric", "limit", "reason", "owner")
_METRICS = [rule.metric for rule in DEFAULT_RULES if rule.metric != "kernels_hash"]
"""Kernel names have no size that a limit could bound: whoever wants others accepts them."""


def load_waivers(root: Path, settings: GateSettings) -> list[Waiver]:
    """Return the repository's waivers; whether they are still needed is judged with a night.

    Args:
        root: of the repository.
        settings: which file they are in; where it names none, `waivers.toml` if that is there.

    Raises:
        ConfigError: one sentence that names the file, the entry and the mend.

    """
    path = root / (settings.waivers or _FILE)
    document = read_toml(path)
    if document is None:
        if settings.waivers is not None:
            raise ConfigError(
                f"{path}: is missing, and [tool.fuseproof.gate] waivers names it; restore it or remove the key."
            )
        return []
    refuse_unknown(f"{path}:", document, ("waiver",))
    entries = document.get("waiver", [])
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: waiver is {entries!r}; write [[waiver]], once for each.")
    found: dict[Pair, int] = {}
    waivers = []
    for number, entry in enumerate(entries, 1):
        waiver = _waiver(entry, f"{path}: waiver {number}")
        if rule_of(settings.rules, waiver.pair) is None:
            raise ConfigError(
                f"{path}: waiver {number}: {waiver.pair} is reported and blocks nothing; remove the waiver, or gate "
                "the metric in [tool.fuseproof.gate]."
            )
        if waiver.pair in found:
            raise ConfigError(
                f"{path}: waivers {found[waiver.pair]} and {number} are both for {waiver.pair}; remove one."
            )
        found[waiver.pair] = number
        waivers.append(waiver)
    return waivers


def _waiver(entry: object, where: str) -> Waiver:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {entry!r}; it is a table, [[waiver]].")
    refuse_unknown(where, entry, (*_TEXTS, "expiry"))
    for name in _TEXTS:
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise ConfigError(f"{where}: {name} is {entry.get(name)!r}; it takes a non-empty string.")
    if entry["metric"] not in _METRICS:
        raise ConfigError(f"{where}: no metric {entry['metric']!r} can be waived; {nearest(entry['metric'], _METRICS)}")
    limit = margin(entry["limit"])
    if limit is None or limit[1] or not limit[0]:
        raise ConfigError(f"{where}: limit is {entry['limit']!r}; it takes a percentage such as '3 %'.")
    expiry = entry.get("expiry")
    if not isinstance(expiry, datetime.date) or isinstance(expiry, datetime.datetime):
        raise ConfigError(f"{where}: expiry is {expiry!r}; it takes a date without quotes, such as 2027-01-31.")
    return Waiver(Pair(entry["key"], entry["metric"]), limit[0], entry["reason"], entry["owner"], expiry)


def unknown_waivers(waivers: Iterable[Waiver], known: Iterable[Pair]) -> list[str]:
    """Return a sentence for each waiver of a pair that neither the history nor tonight has: a whole selection's."""
    known = set(known)
    return [
        f"the waiver of {waiver.pair} ({waiver.reason}, {waiver.owner}) is for what neither the history nor this run "
        f"has; correct or remove it: {nearest(waiver.pair.key, {pair.key for pair in known})}"
        for waiver in waivers
        if waiver.pair not in known
    ]
