"""TOML files read strictly: one sentence for whatever cannot be used, and the nearest word for one that is unknown."""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["ConfigError", "nearest", "read_toml", "refuse_unknown"]


_MOST_WORDS = 8  # a suite has hundreds of keys, and a sentence has one line


class ConfigError(Exception):
    """The configuration cannot be used; the message is one sentence: the file, the key, the mend."""


def nearest(word: str, known: Iterable[str], listed: str = "") -> str:
    """Return a half-sentence that helps with a word that is not among the known ones.

    Args:
        word: the unknown one.
        known: all that it may be.
        listed: these as a reader should see them, where they are few enough to be told whatever is near.

    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?{f' known: {listed}.' if listed else ''}"
    if listed:
        return f"known: {listed}."
    more = f" and {len(known) - _MOST_WORDS} more" if len(known) > _MOST_WORDS else ""
    return f"known: {', '.join(known[:_MOST_WORDS])}{more}."


def read_toml(path: Path) -> dict[str, Any] | None:
    """Return a TOML file's document, None where there is no such file.

    Raises:
        ConfigError: it cannot be read or does not parse.

    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            raise ConfigError(f"{path}: cannot be read: it is no regular file; remove it, or put a file in its place.")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}.") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} names no file: {error}.") from None


def refuse_unknown(where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse a table with a key that is not among the known ones.

    Raises:
        ConfigError: naming the key and the nearest known one.

    """
    known = list(known)
    for name in table:
        if name not in known:
            raise ConfigError(f"{where} has no key {name!r}; {nearest(name, known)}")
