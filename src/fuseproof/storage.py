"""Files written whole or not at all, and read with one sentence for whatever goes wrong. Under the history only."""

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["HistoryError", "SetAside", "entries", "explained", "read_document", "resolved", "shown", "write_new"]

_NO_HARD_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP}


class HistoryError(Exception):
    """The history cannot be used as asked; the message is one sentence: the file, the key, the mend."""


@dataclass(frozen=True)
class SetAside:
    """A file that is not used; `reason` is one sentence: the file, the key, the mend."""

    path: Path
    reason: str


def read_document(path: Path) -> Any:
    """Return the JSON that a file holds.

    Raises HistoryError for what is missing, no regular file, empty, not JSON or cut short.
    """
    name = shown(path)
    with explained(path, "read", "make it readable"):
        if not path.exists():
            raise HistoryError(f"{name}: is missing; correct the name, or restore the file")
        if path.is_dir():
            raise HistoryError(f"{name}: is a folder; give the files in it, or move it out of the history")
        if not path.is_file():  # opening a pipe would wait for ever
            raise HistoryError(f"{name}: is no regular file; move whatever it is out of the history")
        data = path.read_bytes()
    if not data:
        raise HistoryError(f"{name}: is empty; restore the file from a good copy or delete it")
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise HistoryError(
            f"{name}: is not JSON, or cut short ({error}); restore the file from a good copy or delete it"
        ) from error


def write_new(path: Path, tmp: Path, data: bytes) -> None:
    """Write all of a new file or nothing: whatever ends this early leaves at most `tmp`."""
    try:
        with tmp.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(tmp, path)  # unlike rename, never replaces a file
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS or path.exists():
                raise
            tmp.rename(path)
        try:
            _sync_folder(path.parent)
        except BaseException:
            path.unlink()
            raise
    finally:
        tmp.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what a folder holds, by name; nothing where there is no folder.

    Raises:
        HistoryError: it cannot be listed.

    """
    with explained(folder, "listed", "make it a readable folder"):
        try:
            with os.scandir(folder) as found:
                return sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise OSError(str(error)) from None  # a name that no folder can have


def resolved(path: Path) -> Path:
    """Return the path without links, or as it is where they lead round in a circle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def shown(path: Path) -> str:
    """The path as it is, or escaped where it would break the line or the terminal's encoding."""
    return str(path) if str(path).isprintable() else repr(str(path))


@contextmanager
def explained(path: Path, verb: str, mend: str) -> Iterator[None]:
    """Turn an OSError into a HistoryError that says what could not be done with the path, and the mend."""
    try:
        yield
    except OSError as error:
        raise HistoryError(f"{shown(path)}: cannot be {verb} ({error.strerror or error}); {mend}") from error
