"""The pages that say which check catches which seeded bug: written from what is caught, and read back by a test.

Tests are imported from their files, so they load this one with `runpy`.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


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


def seen_in(path: Path, dtypes: Iterable[str], bugs: Mapping[str, object]) -> dict[str, set[str]]:
    """Return what a page says: by bug, the dtypes in which something catches it. Other rows are no bugs."""
    dtypes = list(dtypes)
    rows = [line.split("|")[1:-1] for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {
        name: {dtype for dtype, cell in zip(dtypes, cells, strict=True) if not cell.strip().startswith("hidden")}
        for first, *cells in rows
        if (name := first.strip()) in bugs
    }
