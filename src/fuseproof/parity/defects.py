"""Known faults of candidates: a table beside the tests, with the evidence, matched against test ids."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Defect", "find_defect", "load_defects"]


@dataclass(frozen=True)
class Defect:
    """One known fault.

    Attributes:
        candidates: whose it is.
        devices: types of device where it is seen.
        test: regular expression for the name of the test function.
        cases: regular expression for the whole test id without the candidate's name.
        evidence: what was seen, where and when.

    """

    candidates: tuple[str, ...]
    devices: tuple[str, ...]
    test: str
    cases: str
    evidence: str

    def reason(self) -> str:
        """Return the evidence, and what to do when it is gone."""
        return f"known defect: {self.evidence} If this passes, it is mended upstream: remove it from the table."


def load_defects(path: Path) -> tuple[Defect, ...]:
    """Return the defects that a TOML file lists as ``[[defect]]``; none where there is no such file.

    Raises:
        KeyError, TypeError: an entry lacks a key or has an unknown one.

    """
    if not path.exists():
        return ()
    entries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["defect"]
    lists = ("candidates", "devices")
    return tuple(Defect(**{**entry, **{name: tuple(entry[name]) for name in lists}}) for entry in entries)


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
        here = candidate in defect.candidates and device_type in defect.devices and re.fullmatch(defect.test, test)
        if here and re.fullmatch(defect.cases, case):
            return defect
    return None
