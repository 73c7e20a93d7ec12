"""The table `[tool.fuseproof.gate]`: what is gated, how strictly, and what is done about it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from fuseproof.tables import ConfigError, refuse_unknown
from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule

__all__ = ["MODES", "GateSettings", "parse_gate"]

MODES = ("fail", "warn", "off")

_KINDS = {rule.metric: rule.kind for rule in DEFAULT_RULES} | {"host_time_ns": Kind.STOCHASTIC}
_TAKES = {
    Kind.STOCHASTIC: "a percentage such as '1 %', or 'reported'",
    Kind.MEMORY: "a margin such as '0.5 % or 1 MiB' (the greater), '2 %' or '64 KiB', or 'reported'",
    Kind.EXACT: "'exact' or 'reported'",
}
_PART = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?) ?(?P<unit>%|bytes|KiB|MiB|GiB)")
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_GREATEST_PERCENT = 1000.0  # a slow-down of eleven times that is let pass is a typing error
_MOST_REPLICATES = 50


@dataclass(frozen=True)
class GateSettings:
    """How this repository is gated.

    Attributes:
        mode: "fail" (status 20 and 21), "warn" (all is judged, shown and remembered, the status stays 0) or "off".
        replicates: screening processes of a night.
        trusted_python: interpreter of the trusted environment, for confirmation in pairs; None for confirmation alone.
        trusted_env: environment variables that the trusted interpreter needs.
        waivers: file of the waivers, relative to pyproject.toml; None: `waivers.toml`, if it is there.
        rules: how metrics are gated; the last that fits a benchmark wins, so overrides follow the metrics' own.

    """

    mode: str = "fail"
    replicates: int = 3  # a night's median of three: power of the operating curves in docs/verdicts.md
    trusted_python: str | None = None
    trusted_env: Mapping[str, str] = field(default_factory=dict)
    waivers: str | None = None
    rules: tuple[Rule, ...] = DEFAULT_RULES

    def unmatched(self, keys: Iterable[str]) -> list[str]:
        """Return a sentence for each override whose pattern is that of none of these keys: all that are known."""
        keys = list(keys)
        patterns = dict.fromkeys(rule.keys for rule in self.rules if rule.keys != "*")
        idle = [pattern for pattern in patterns if not any(fnmatchcase(key, pattern) for key in keys)]
        return [
            f"[tool.fuseproof.gate] override: keys = {pattern!r} fits none of {len(keys)} known benchmarks; "
            "correct the pattern or remove the override"
            for pattern in idle
        ]


def parse_gate(table: object, path: Path) -> GateSettings:
    """Return the settings that the table of a pyproject.toml holds.

    Raises:
        ConfigError: an unknown key or metric, or a value of the wrong type; one sentence that names it.

    """
    where = f"{path}: [tool.fuseproof.gate]"
    values = _table(table, where)
    refuse_unknown(where, values, [*_named(), "tolerance", "override"])
    mode = values.get("mode", GateSettings.mode)
    if mode not in MODES:
        raise ConfigError(f"{where} mode is {mode!r}; it takes one of {', '.join(MODES)}.")
    replicates = values.get("replicates", GateSettings.replicates)
    if not isinstance(replicates, int) or isinstance(replicates, bool) or not 1 <= replicates <= _MOST_REPLICATES:
        raise ConfigError(f"{where} replicates is {replicates!r}; it takes a number of 1 to {_MOST_REPLICATES}.")
    trusted = values.get("trusted_python")
    for name, text in (("trusted_python", trusted), ("waivers", values.get("waivers"))):
        if text is not None and (not isinstance(text, str) or not text):
            raise ConfigError(f"{where} {name} is {text!r}; it takes a non-empty string.")
    environment = _table(values.get("trusted_env", {}), f"{where} trusted_env")
    for name, text in environment.items():
        if not isinstance(text, str):
            raise ConfigError(f"{where} trusted_env {name} is {text!r}; it takes a string.")
    return GateSettings(
        mode,
        replicates,
        trusted,
        environment,
        values.get("waivers", GateSettings.waivers),
        (*_defaults(values.get("tolerance", {}), where), *_overrides(values.get("override", []), where)),
    )


def _named() -> list[str]:
    return [each.name for each in fields(GateSettings) if each.name != "rules"]


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}; it is a table.")
    return value


def _defaults(table: object, where: str) -> list[Rule]:
    own = {rule.metric: rule for rule in _rules(table, f"{where} tolerance")}
    return [own.get(rule.metric, rule) for rule in DEFAULT_RULES]


def _overrides(entries: object, where: str) -> list[Rule]:
    if not isinstance(entries, list):
        raise ConfigError(f"{where} override is {entries!r}; write [[tool.fuseproof.gate.override]], once for each.")
    rules: list[Rule] = []
    for number, entry in enumerate(entries, 1):
        here = f"{where} override {number}"
        values = _table(entry, here)
        refuse_unknown(here, values, ("keys", "tolerance", "reason"))
        for name in ("keys", "reason"):
            if not isinstance(values.get(name), str) or not values[name]:
                raise ConfigError(f"{here} {name} is {values.get(name)!r}; it takes a non-empty string.")
        found = _rules(values.get("tolerance"), f"{here} tolerance")
        if not found:
            raise ConfigError(f"{here} tolerance is empty; name a metric in it, or remove the override.")
        rules += [replace(rule, keys=values["keys"]) for rule in found]
    return rules


def _rules(table: object, where: str) -> list[Rule]:
    values = _table(table, where)
    refuse_unknown(where, values, _KINDS)
    return [_rule(metric, text, f"{where} {metric}") for metric, text in values.items()]


def _rule(metric: str, text: object, where: str) -> Rule:
    (base,) = (rule for rule in DEFAULT_RULES if rule.metric == metric)
    kind = _KINDS[metric]
    if text == "reported":
        return Rule(metric, Kind.REPORTED, resolution_ns=base.resolution_ns)
    if kind is Kind.EXACT and text == "exact":
        return base
    parsed = margin(text) if kind is not Kind.EXACT else None
    if parsed is None or (kind is Kind.STOCHASTIC and (parsed[1] or not parsed[0])):
        raise ConfigError(f"{where} is {text!r}; it takes {_TAKES[kind]}.")
    return Rule(metric, kind, parsed[0], base.resolution_ns, parsed[1])


def margin(text: object) -> tuple[float, int] | None:
    """Read '0.5 % or 1 MiB': a relative part as a logarithm and an absolute one in bytes; None for anything else.

    A part that is not given is 0: that of '64 KiB' is (0.0, 65536).
    """
    parts = [_PART.fullmatch(part.strip()) for part in text.split(" or ")] if isinstance(text, str) else [None]
    found = [part for part in parts if part is not None]
    kinds = [part["unit"] == "%" for part in found]
    if len(found) != len(parts) or kinds.count(True) > 1 or kinds.count(False) > 1:
        return None
    percent = sum(float(part["number"]) for part in found if part["unit"] == "%")
    size = sum(float(part["number"]) * _BYTES[part["unit"]] for part in found if part["unit"] != "%")
    return (math.log1p(percent / 100), int(size)) if percent <= _GREATEST_PERCENT and size < 2**63 else None
