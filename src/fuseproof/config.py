"""The `[tool.fuseproof]` table of pyproject.toml. Unknown keys are errors that name the nearest known one."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

__all__ = ["ConfigError", "Settings", "load_settings", "nearest"]


class ConfigError(Exception):
    """The configuration cannot be used; the message is one sentence: the file, the key, the mend."""


@dataclass(frozen=True)
class Settings:
    """What a repository has configured.

    Attributes:
        history: folder of the run files, relative to pyproject.toml.

    """

    history: str = "bench_history"


def nearest(word: str, known: list[str]) -> str:
    """Return a half-sentence that helps with a word that is not among the known ones."""
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}."


def load_settings(root: Path) -> Settings | None:
    """Return the settings of the repository at `root`, None where it has no `[tool.fuseproof]` table.

    Raises:
        ConfigError: pyproject.toml does not parse, or the table holds an unknown key or a value of the wrong type.

    """
    path = root / "pyproject.toml"
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from None
    table = document.get("tool", {})
    if not isinstance(table, dict) or "fuseproof" not in table:
        return None
    values = table["fuseproof"]
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: tool.fuseproof is {values!r}; it is a table, [tool.fuseproof].")
    known = [each.name for each in fields(Settings)]
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{path}: [tool.fuseproof] has no key {name!r}; {nearest(name, known)}")
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path}: [tool.fuseproof] {name} is {value!r}; it takes a non-empty string.")
    return Settings(**values)
