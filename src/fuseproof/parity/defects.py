"""Known faults of candidates: a table beside the tests, with evidence and a reproduction, matched against test ids."""

from __future__ import annotations

import builtins
import re
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["Defect", "DefectTableError", "Seen", "find_defect", "id_in", "load_defects"]


class DefectTableError(Exception):
    """A table that cannot be read as one; the message is one sentence with the file, the entry and the mend."""


@dataclass(frozen=True)
class Seen:
    """Where a defect is seen.

    Attributes:
        test: regular expression for the name of the test function.
        cases: regular expression for the whole test id without the candidate's name.
        candidates, devices: whose cases, and on which types of device.

    """

    test: str
    cases: str
    candidates: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Defect:
    """One known fault.

    Attributes:
        id: its worded name, unique in the table.
        title: the fault in a line.
        faults: its kinds, by their numbers in `fuseproof.parity.faults`.
        candidates: whose it is.
        devices: types of device where it is seen.
        evidence: what was seen, in numbers.
        since: the builds in which it was seen, and when.
        reproduction: a file in the folder `reproductions` beside the table: a program that fails while the defect is
            there, and needs nothing but torch and the candidate.
        seen: the cases that show it.
        raises: names of the exceptions, Python's own, by which it shows.
        memory_gib: GPU memory that the reproduction takes, where it is so much that it runs only when it is asked for.
        gpus: how many the reproduction needs.

    """

    id: str
    title: str
    faults: tuple[int, ...]
    candidates: tuple[str, ...]
    devices: tuple[str, ...]
    evidence: str
    since: str
    reproduction: str
    seen: tuple[Seen, ...]
    raises: tuple[str, ...] = ("AssertionError",)
    memory_gib: int = 0
    gpus: int = 1

    def reason(self) -> str:
        """Return the evidence, and what to do when it is gone."""
        return (
            f"known defect {self.id}: {self.evidence} If this passes, it is mended upstream: remove it from the table."
        )

    def exceptions(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions by which it shows."""
        return tuple(getattr(builtins, name) for name in self.raises)


def id_in(reason: str) -> str | None:
    """Return the id of the defect whose `Defect.reason` stands in a text, None where none does."""
    found = re.search(r"known defect (\S+): ", reason)
    return found[1] if found else None


_LISTS = ("faults", "candidates", "devices", "raises")


def load_defects(path: Path) -> tuple[Defect, ...]:
    """Return the defects that a TOML file lists as ``[[defect]]``; none where there is no such file.

    Each has one or more ``[[defect.seen]]`` with `test` and `cases`, and `candidates` and `devices` where these are
    fewer than the defect's.

    Raises:
        DefectTableError: it is no TOML, an entry lacks a key or has an unknown one, or an id is there twice.

    """
    if not path.exists():
        return ()
    try:
        entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8")).get("defect", [])
    except tomllib.TOMLDecodeError as error:
        raise DefectTableError(f"{path}: {error}; mend the file.") from None
    defects = tuple(_defect(path, entry) for entry in entries)
    ids = [defect.id for defect in defects]
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise DefectTableError(f"{path}: {', '.join(twice)} is there twice; give each defect an id of its own.")
    return defects


def _defect(path: Path, entry: dict[str, Any]) -> Defect:
    name = f"{path}: defect {entry.get('id', 'without id')}"
    optional = {"raises", "memory_gib", "gpus"}
    _check_keys(name, entry, {each.name for each in fields(Defect)}, optional)
    shared = {key: tuple(entry[key]) for key in ("candidates", "devices")}
    seen = []
    for place in entry["seen"]:
        _check_keys(f"{name}, seen", place, {each.name for each in fields(Seen)}, set(shared))
        whose = shared | {key: tuple(place[key]) for key in shared if key in place}
        seen.append(Seen(place["test"], place["cases"], whose["candidates"], whose["devices"]))
    lists = {key: tuple(entry[key]) for key in _LISTS if key in entry}
    defect = Defect(**{**entry, **lists, "seen": tuple(seen)})
    for each in defect.raises:
        kind = getattr(builtins, each, None)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise DefectTableError(f"{name}: raises names {each!r}, which is no exception of Python's own.")
    return defect


def _check_keys(name: str, entry: dict[str, Any], known: set[str], optional: set[str]) -> None:
    if unknown := sorted(entry.keys() - known):
        raise DefectTableError(f"{name}: unknown key {', '.join(unknown)}; known are {', '.join(sorted(known))}.")
    if missing := sorted(known - optional - entry.keys()):
        raise DefectTableError(f"{name}: it lacks {', '.join(missing)}; add it.")


def find_defect(defects: tuple[Defect, ...], candidate: str, device_type: str, test: str, case: str) -> Defect | None:
    """Return the defect that a case is known to show, or None.

    Args:
        defects: the table.
        candidate, device_type: what runs where.
        test: name of the test function.
        case: the test's id; with or without the candidate's name in front.

    """
    case = "" if case == candidate else case.removeprefix(f"{candidate}-")
    for defect in defects:
        for seen in defect.seen:
            here = candidate in seen.candidates and device_type in seen.devices
            if here and re.fullmatch(seen.test, test) and re.fullmatch(seen.cases, case):
                return defect
    return None
