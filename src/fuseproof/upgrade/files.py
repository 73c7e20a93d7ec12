"""The files that an answer is written to: their folders are looked for before hours of measuring, not after."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fuseproof.storage import HistoryError, explained
from fuseproof.tables import ConfigError

__all__ = ["add_files", "as_json", "files_of", "write"]


def add_files(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add an option for each kind of file."""
    for name in names:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=f"write the answer there as {name}")


def files_of(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Path]:
    """Return the files that a command line names, by kind; raises ConfigError for one that cannot be written."""
    paths = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    for name, path in paths.items():
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--{name} {path}: there is no folder {path.parent}; make it")
        if path.is_dir():
            raise ConfigError(f"--{name} {path}: is a folder; name a file")
        if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
            raise ConfigError(f"--{name} {path}: cannot be written; make it writable, or name another file")
    return paths


def as_json(document: Mapping[str, Any]) -> str:
    """Return a document as the text of a file."""
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def write(path: Path, text: str) -> None:
    """Write an answer; raises HistoryError, and shows what could not be written, so that it is not lost."""
    try:
        with explained(path, "written", "what it would hold is above"):
            path.write_text(text, encoding="utf-8")
    except HistoryError:
        print(text)
        raise
