"""The `[tool.fuseproof]` table of pyproject.toml. Unknown keys are errors that name the nearest known one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from fuseproof.gate.settings import GateSettings, parse_gate
from fuseproof.tables import ConfigError, nearest, read_toml, refuse_unknown

__all__ = ["ConfigError", "Settings", "load_settings", "nearest"]


@dataclass(frozen=True)
class Settings:
    """What a repository has configured.

    Attributes:
        history: folder of the run files, relative to pyproject.toml.
        gate: the table `[tool.fuseproof.gate]`.

    """

    history: str = "bench_history"
    gate: GateSettings = field(default_factory=GateSettings)


def load_settings(root: Path) -> Settings | None:
    """Return the settings of the repository at `root`, None where it has no `[tool.fuseproof]` table.

    Raises:
        ConfigError: pyproject.toml does not parse, or the table holds an unknown key or a value of the wrong type.

    """
    path = root / "pyproject.toml"
    table = (read_toml(path) or {}).get("tool", {})
    if not isinstance(table, dict) or "fuseproof" not in table:
        return None
    values = table["fuseproof"]
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: tool.fuseproof is {values!r}; it is a table, [tool.fuseproof].")
    where = f"{path}: [tool.fuseproof]"
    refuse_unknown(where, values, (each.name for each in fields(Settings)))
    history = values.get("history", Settings.history)
    if not isinstance(history, str) or not history:
        raise ConfigError(f"{where} history is {history!r}; it takes a non-empty string.")
    return Settings(history, parse_gate(values.get("gate", {}), path))
