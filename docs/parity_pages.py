"""Write the pages of known defects and of coverage: ``python docs/parity_pages.py [FOLDER]``.

Both come from what the tests use: the tables of defects and their reproductions, and the marks of the collected cases.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fuseproof.parity.cases import inapplicable, place_of
from fuseproof.parity.coverage import Coverage
from fuseproof.parity.defects import Defect, load_defects
from fuseproof.parity.faults import FAULTS

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "kernels"
PAGES = ROOT / "docs"


def defects_page() -> str:
    """Return the page of known defects: each with its evidence, its build and a program that shows it."""
    tables = {table: load_defects(table) for table in sorted(TESTS.glob("*_defects.toml"))}
    parts = [
        "# Known defects of Apex and torch",
        "What the parity tests have found, each with a program that a maintainer can run as it stands: it fails\n"
        "while the defect is there. A case that shows a known defect must fail (a strict xfail); when it passes, the\n"
        "run fails with *mended upstream: remove it from the table*. `tests/kernels/test_reproductions.py` runs the\n"
        "programs too.",
        "compute-sanitizer of CUDA 13.0 (memcheck, initcheck, racecheck) over 8 x 96 in FP32, BF16 and FP16 of Apex's\n"
        "FusedLayerNorm, plain and memory-efficient, FusedRMSNorm, both Mixed classes, and of FusedAdam plain,\n"
        "capturable and with masters: 0 errors, 0 hazards (torch 2.11.0+cu130, Apex of 2026-07-08, H200, 2026-11-29).",
        "Written by `python docs/parity_pages.py` from `tests/kernels/*_defects.toml` and their `reproductions/`.",
    ]
    for project in ("apex", "torch"):
        found = [
            (table, defect) for table, defects in tables.items() for defect in defects if _project(defect) == project
        ]
        if found:
            parts.append(f"## {project.capitalize() if project == 'apex' else project}")
            parts += [_section(table, defect) for table, defect in found]
    return "\n\n".join(parts) + "\n"


def _project(defect: Defect) -> str:
    return "apex" if any("apex" in candidate for candidate in defect.candidates) else "torch"


def _section(table: Path, defect: Defect) -> str:
    program = (table.parent / "reproductions" / defect.reproduction).read_text(encoding="utf-8").strip()
    kinds = "; ".join(f"{number} {FAULTS[number].title}" for number in defect.faults)
    seen = [f"`{each.test}`, cases `{each.cases}`" for each in defect.seen]
    return "\n".join(
        [
            f"### {defect.title}",
            "",
            f"- Whose: {', '.join(f'`{each}`' for each in defect.candidates)}, on {' and '.join(defect.devices)}",
            f"- Kind: {kinds}",
            f"- Seen: {defect.since}",
            f"- Evidence: {defect.evidence}",
            *([f"- The program takes {defect.memory_gib} GiB of GPU memory"] if defect.memory_gib else []),
            *([f"- The program needs {defect.gpus} GPUs"] if defect.gpus > 1 else []),
            f"- Entry `{defect.id}`, expected in:",
            *(f"  - {each}" for each in seen),
            "",
            "```python",
            program,
            "```",
        ]
    )


class _Collected:
    """What pytest has collected, noted for `coverage_page`."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []
        self.records: Mapping[str, Sequence[Any]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the items, and the candidates that they run with."""
        from fuseproof.hooks import CANDIDATES

        self.items = list(session.items)
        self.records = {fixture: list(each.values()) for fixture, each in session.config.stash[CANDIDATES].items()}


def _cases(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    return (item for item in items if item.get_closest_marker("parity"))


def coverage_page() -> str:
    """Return the page of coverage: how many cases ask each candidate, in each dtype, about each fault."""
    collected = _Collected()
    quietly = ["--collect-only", "-q", "-p", "no:cacheprovider", "-W", "ignore:Module already imported"]
    arguments = [str(TESTS), *quietly, "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = pytest.main(arguments, plugins=[collected])
    if status:
        sys.exit(f"{said.getvalue()}\nthe tests cannot be collected")
    coverage = Coverage(collected.records)
    for item in _cases(collected.items):
        if place := place_of(item):
            coverage.add(place, inapplicable(item))
    if holes := coverage.holes():
        sys.exit("\n".join(holes))
    return (
        "\n\n".join(
            [
                "# What is looked for, in whom",
                "A cell says how many cases of the parity tests look for a fault in a candidate, for parameters or\n"
                "inputs of FP32 / BF16 / FP16 (one number: the same in each); a letter says why there are none.\n"
                "Whether they can run depends on the machine: `pytest tests/kernels --coverage` prints this table for\n"
                "a run, with known defects in brackets, and fails where a cell is empty without a reason.",
                "Written by `python docs/parity_pages.py`.",
                coverage.markdown(),
            ]
        )
        + "\n"
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGES
    (folder / "apex-defects.md").write_text(defects_page(), encoding="utf-8")
    (folder / "coverage.md").write_text(coverage_page(), encoding="utf-8")
