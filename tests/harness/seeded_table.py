"""Seeded bugs by name, and the pages that say which check catches which: written from what is caught, and read back.

Tests are imported from their files, so they load this one with `runpy`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Bug:
    """One implementation with one thing wrong.

    Attributes:
        kind: its class.
        seen_in: dtypes in which it can be seen.
        why_hidden: why not in the others.
        record: facts of its record that differ from a right one's.
        record_of: makes a candidate's record of a class, a name and such facts.

    """

    kind: type
    seen_in: frozenset[str]
    why_hidden: str
    record: Mapping[str, object]
    record_of: Callable[..., Any] = field(repr=False)

    @property
    def name(self) -> str:
        """Its name in ids and in the table."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in self.kind.__name__).strip("_")

    def candidate(self) -> Any:
        """Return its record."""
        return self.record_of(self.kind, self.name, **self.record)


class Bugs(dict[str, Bug]):
    """Bugs by name, in the order in which they are written."""

    def __init__(self, record_of: Callable[..., Any], dtypes: Iterable[str]) -> None:
        """Begin with none; a bug is seen in all dtypes unless it says otherwise."""
        super().__init__()
        self.record_of = record_of
        self.everywhere = frozenset(dtypes)

    def add(
        self,
        seen_in: frozenset[str] | None = None,
        why_hidden: str = "",
        record: Mapping[str, object] | None = None,
    ) -> Callable[[type], type]:
        """Return a decorator that adds a class."""

        def added(kind: type) -> type:
            bug = Bug(kind, self.everywhere if seen_in is None else seen_in, why_hidden, record or {}, self.record_of)
            self[bug.name] = bug
            return kind

        return added


def row(name: str, caught: Iterable[Sequence[str]], why_hidden: str) -> str:
    """Return the row of a bug: for each dtype how many checks catch it, and the first of them; or why none can."""
    cells = [f"{len(names)}: {names[0]}" if names else f"hidden: {why_hidden}" for names in caught]
    return f"| {name} | {' | '.join(cells)} |"


def page(title: str, text: str, module: str, dtypes: Iterable[str], rows: Iterable[str]) -> str:
    """Return a page: its title, what it says, who writes it, and the table."""
    columns = ["bug", *dtypes]
    lines = [
        f"# {title}",
        "",
        text.strip(),
        "",
        f"Written by `python {module}`; `{module}` holds the bugs.",
        "",
        f"| {' | '.join(columns)} |",
        f"|{'---|' * len(columns)}",
        *rows,
        "",
    ]
    return "\n".join(lines)


def first_checks(path: Path, dtypes: Iterable[str], bugs: Mapping[str, object]) -> dict[tuple[str, str], str]:
    """Return what a page says: by bug and dtype, the first check that catches it. Other rows are no bugs."""
    dtypes = list(dtypes)
    rows = [line.split("|")[1:-1] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {
        (name, dtype): cell.strip().partition(": ")[2]
        for first, *cells in rows
        if (name := first.strip()) in bugs
        for dtype, cell in zip(dtypes, cells, strict=True)
        if not cell.strip().startswith("hidden")
    }


def seen_in(path: Path, dtypes: Iterable[str], bugs: Mapping[str, object]) -> dict[str, set[str]]:
    """Return what a page says: by bug, the dtypes in which something catches it."""
    said: dict[str, set[str]] = {}
    for name, dtype in first_checks(path, dtypes, bugs):
        said.setdefault(name, set()).add(dtype)
    return said
