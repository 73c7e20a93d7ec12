"""What a session was asked to measure, so that what is missing can be told from what was not asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fuseproof.verdicts.night import NARROWED

__all__ = ["GATE_MARK", "Selection", "is_timed"]

GATE_MARK = "fuseproof_gate"
_FULL_MARK = "fuseproof_full"


def is_timed(item: pytest.Item | None) -> bool:
    """Return whether a test is a benchmark."""
    return item is not None and "benchmark" in getattr(item, "fixturenames", ())


@dataclass
class Selection:
    """The benchmarks that the command line asks for; two equal texts without a narrowing ask for the same.

    Attributes:
        name: "full" (``--fuseproof-full``), "gate" (``-m fuseproof_gate``) or "" for the default.
        paths: where they are looked for, relative to the repository; empty for all of it.
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
        name = "gate" if option.markexpr.strip() == GATE_MARK else "full" if option.fuseproof_full else ""
        specs = [*(option.fuseproof_adam or ()), *(option.fuseproof_layer_norm or ())]
        ignoring = [f"--{each.replace('_', '-')}" for each in ("ignore", "ignore_glob") if getattr(option, each)]
        return cls(name, _paths(config), tuple(sorted(spec.partition("=")[0] for spec in specs)), ignoring)

    def leave_out(self, items: Iterable[pytest.Item]) -> None:
        """Note what is deselected: benchmarks that belong to the selection make it a narrowed one."""
        lost = sum(is_timed(item) and self._has(item) for item in items)
        if lost:
            self.narrowed.append(f"{lost} benchmarks deselected")

    def _has(self, item: pytest.Item) -> bool:
        if self.name == "gate":
            return item.get_closest_marker(GATE_MARK) is not None
        return self.name == "full" or item.get_closest_marker(_FULL_MARK) is None

    def __str__(self) -> str:
        """As the history remembers it: empty for the whole default suite."""
        parts = [f"of {', '.join(self.paths)}"] if self.paths else []
        parts += [f"{NARROWED}: {', '.join(self.narrowed)}"] if self.narrowed else []
        return " ".join([self.name or "default", *parts]) if parts else self.name


def _paths(config: pytest.Config) -> tuple[str, ...]:
    """Return the places that are collected, relative to the repository; none for what is collected by default."""
    found = set()
    for argument in config.args:
        path, separator, name = argument.partition("::")
        place = (config.invocation_params.dir / path).resolve()
        relative = place.relative_to(config.rootpath) if place.is_relative_to(config.rootpath) else Path(place.name)
        found.add(f"{relative.as_posix()}{separator}{name}")
    return () if found == set(config.getini("testpaths") or ["."]) else tuple(sorted(found))
