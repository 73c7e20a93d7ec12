"""What a session was asked to measure, so that what is missing can be told from what was not asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

__all__ = ["GATE_MARK", "Selection", "is_timed"]

GATE_MARK = "fuseproof_gate"
_FULL_MARK = "fuseproof_full"
_NAMES = ("gate", "default", "full")
"""Each contains the one before it."""


def is_timed(item: pytest.Item | None) -> bool:
    """Return whether a test is a benchmark."""
    return item is not None and "benchmark" in getattr(item, "fixturenames", ())


@dataclass
class Selection:
    """The benchmarks that the command line asks for.

    Attributes:
        name: "full" (``--fuseproof-full``), "gate" (``-m fuseproof_gate``) or "default".
        paths: where they are looked for, relative to the repository.
        brought: names of the user's own candidates.
        narrowed: why some benchmarks of that name and place take no part; empty if all do.

    """

    name: str
    paths: tuple[str, ...]
    brought: tuple[str, ...] = ()
    narrowed: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: pytest.Config) -> Selection:
        """Return what the options say; what `leave_out` is told later narrows it."""
        option = config.option
        name = "gate" if option.markexpr.strip() == GATE_MARK else "full" if option.fuseproof_full else "default"
        specs = [*(option.fuseproof_adam or ()), *(option.fuseproof_layer_norm or ())]
        ignoring = [each for each in ("ignore", "ignore_glob") if getattr(option, each)]
        return cls(
            name,
            _paths(config),
            tuple(sorted(spec.partition("=")[0] for spec in specs)),
            [f"--{each.replace('_', '-')}" for each in ignoring],
        )

    def leave_out(self, items: Iterable[pytest.Item]) -> None:
        """Note what is deselected: benchmarks that belong to the selection make it a narrowed one."""
        lost = sum(is_timed(item) and self._has(item) for item in items)
        if lost:
            self.narrowed.append(f"{lost} benchmarks deselected")

    def _has(self, item: pytest.Item) -> bool:
        marked = {name: item.get_closest_marker(name) is not None for name in (GATE_MARK, _FULL_MARK)}
        if self.name == "gate":
            return marked[GATE_MARK]
        return self.name == "full" or not marked[_FULL_MARK]

    def __str__(self) -> str:
        where = f" of {', '.join(self.paths)}" if self.paths != (".",) else ""
        return f"{self.name}{where}" + (f", narrowed: {', '.join(self.narrowed)}" if self.narrowed else "")

    def to_json(self) -> dict[str, Any]:
        """Return it as a run's file remembers it."""
        return {"name": self.name, "paths": self.paths, "brought": self.brought, "narrowed": bool(self.narrowed)}

    def covers(self, stored: Mapping[str, Any]) -> bool:
        """Return whether all that a stored run measured is asked for tonight; never for a narrowed one, of either."""
        if self.narrowed or stored.get("narrowed", True) or stored["name"] not in _NAMES:
            return False
        places = [PurePosixPath(path) for path in self.paths]
        return _NAMES.index(stored["name"]) <= _NAMES.index(self.name) and all(
            any(PurePosixPath(path).is_relative_to(place) for place in places) for path in stored["paths"]
        )

    def asks_for(self, key: str, stored: Mapping[str, Any]) -> bool:
        """Return whether a key of a covered run is asked for: a user's own candidate only if it is brought again."""
        candidate = key.split("/")[1].rpartition("@")[2]
        return candidate not in set(stored["brought"]) - set(self.brought)


def _paths(config: pytest.Config) -> tuple[str, ...]:
    """Return the places that are collected, relative to the repository; "." for what is collected if none is given."""
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        return (".",)
    found = set()
    for argument in config.args:
        path, separator, name = argument.partition("::")
        place = (config.invocation_params.dir / path).resolve()
        relative = place.relative_to(config.rootpath) if place.is_relative_to(config.rootpath) else Path(place.name)
        found.add(f"{relative.as_posix()}/{name}" if separator else relative.as_posix())
    return (".",) if found == set(config.getini("testpaths")) else tuple(sorted(found))
