"""The index of a machine's history: digests of its files, so that a session reads only those that are new.

It holds nothing that the files do not: it is not in version control, may be deleted at any time and is built again.
A file is read again when its size or time has changed. Where the index cannot be used, all is read and kept in memory.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from fuseproof.digest import Digest, digest_record, digest_run
from fuseproof.history import VERDICTS, History
from fuseproof.run_file import RunFile
from fuseproof.storage import HistoryError

__all__ = ["FILE_NAME", "Index", "opened"]

FILE_NAME = "index.sqlite"

_VERSION = 3  # of the tables and of the digests in them
_LOCK_TIMEOUT_S = 10.0  # another session stores a batch within a second
_BATCH = 50  # files between two commits: what a killed session has read is not read again
_TABLES = """
DROP TABLE IF EXISTS words;
DROP TABLE IF EXISTS files;
CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT UNIQUE NOT NULL);
CREATE TABLE files (
    name TEXT PRIMARY KEY, size INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
    ids BLOB NOT NULL, ids_crc INTEGER NOT NULL, numbers BLOB NOT NULL, rest BLOB NOT NULL, rest_crc INTEGER NOT NULL
);
"""

Stamp = tuple[int, int]


class Index:
    """The digests of one machine's files, while it is open.

    Attributes:
        ids: by file name, the numbers of its words; names of verdicts have their folder before them.
        words: by number.
        faults: by file name, why it cannot be used; one sentence with file, key and mend.

    """

    def __init__(self, connection: sqlite3.Connection, files: Mapping[str, RunFile]) -> None:
        self._connection = connection
        self._files = files
        self.ids: dict[str, array[int]] = {}
        self.faults: dict[str, str] = {}
        self._checksums: dict[str, int] = {}  # of all but the words
        if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
            connection.executescript(f"{_TABLES} PRAGMA user_version = {_VERSION};")
        self._refresh()
        self.words: dict[int, str] = dict(connection.execute("SELECT id, word FROM words"))
        if any(ids and not 1 <= min(ids) <= max(ids) <= len(self.words) for ids in self.ids.values()):
            raise sqlite3.DatabaseError("words are missing")  # they are numbered from 1 and never removed

    def copies(self, names: Sequence[str]) -> dict[str, str]:
        """Return which files hold what an earlier one of them holds, by name: the earlier one's.

        A copy under another name, or in another night, is no second process. A process says when it ended to the
        microsecond, so no two of them are equal.
        """
        first: dict[int, str] = {}
        found = {}
        for name in names:
            if name not in self.ids:
                continue
            earlier = first.setdefault(self._checksums[name], name)
            if earlier != name and self.ids[earlier] == self.ids[name] and self.read(earlier) == self.read(name):
                found[name] = earlier
        return found

    def read(self, name: str) -> tuple[array[float], dict[str, Any]] | None:
        """Return the numbers and the rest of a file; None for one that is at fault."""
        if name not in self.ids:
            return None
        try:
            query = "SELECT numbers, rest, rest_crc FROM files WHERE name = ?"
            numbers, rest, crc = self._connection.execute(query, (name,)).fetchone()
            if zlib.crc32(numbers + rest) == crc:
                return array("d", numbers), json.loads(rest)
        except (sqlite3.Error, TypeError, ValueError):
            pass
        try:  # spoilt, or another session has removed it: the file itself is there
            digest = _digest(self._files[name])
        except HistoryError as error:
            self.faults[name] = str(error)
            return None
        return digest.numbers, digest.rest

    def _refresh(self) -> None:
        rows = self._connection.execute("SELECT name, size, mtime_ns, ids, ids_crc, rest_crc FROM files")
        known = {name: ((size, mtime_ns), ids, crc, rest_crc) for name, size, mtime_ns, ids, crc, rest_crc in rows}
        new: list[tuple[str, Stamp]] = []
        for name, file in self._files.items():
            stamp = _stamp(file)
            stored = known.get(name)
            if stored is not None and stored[0] == stamp and zlib.crc32(stored[1]) == stored[2]:
                self.ids[name] = array("i", stored[1])
                self._checksums[name] = stored[3]
            else:
                new.append((name, stamp))
        if gone := known.keys() - self._files.keys():
            with self._connection:
                self._connection.executemany("DELETE FROM files WHERE name = ?", [(name,) for name in gone])
        for start in range(0, len(new), _BATCH):
            self._read(new[start : start + _BATCH])

    def _read(self, batch: Sequence[tuple[str, Stamp]]) -> None:
        digests: dict[str, tuple[Stamp, Digest]] = {}
        for name, stamp in batch:
            try:
                digests[name] = stamp, _digest(self._files[name])
            except HistoryError as error:
                self.faults[name] = str(error)
        words = dict.fromkeys(word for _, digest in digests.values() for word in digest.words)
        with self._connection:
            self._connection.executemany("INSERT OR IGNORE INTO words (word) VALUES (?)", [(word,) for word in words])
            number_of = dict(self._connection.execute("SELECT word, id FROM words"))
            for name, (stamp, digest) in digests.items():
                ids = array("i", (number_of[word] for word in digest.words))
                rest = json.dumps(digest.rest, separators=(",", ":")).encode("ascii")
                data, numbers = ids.tobytes(), digest.numbers.tobytes()
                self._checksums[name] = zlib.crc32(numbers + rest)
                row = (name, *stamp, data, zlib.crc32(data), numbers, rest, self._checksums[name])
                self._connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                self.ids[name] = ids


@contextmanager
def opened(history: History, machine: str, *, stored: bool = True) -> Iterator[Index]:
    """Open a machine's index, brought up to date; what is wrong with the index itself is mended or done without.

    With `stored` false nothing is written: all is read, and forgotten.

    Raises:
        HistoryError: the folder cannot be listed.

    """
    index, connection = _open(history, machine, stored)
    try:
        yield index
    finally:
        connection.close()


def _open(history: History, machine: str, stored: bool) -> tuple[Index, sqlite3.Connection]:
    files = {file.path.name: file for file in history.files(machine)}
    files |= {f"{VERDICTS}/{file.path.name}": file for file in history.records(machine)}
    path = history.folder(machine) / FILE_NAME
    for attempt in ("as it is", "afresh") if files and stored else ():
        connection = None
        try:
            connection = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S)
            return Index(connection, files), connection
        except (sqlite3.Error, ValueError, OverflowError) as error:
            if connection is not None:
                connection.close()
            # In use, not to be written, no space: nothing is wrong with what it holds.
            if isinstance(error, sqlite3.OperationalError) and "no such" not in str(error):
                break
            if attempt == "as it is":
                with suppress(OSError):
                    path.unlink()
    connection = sqlite3.connect(":memory:")
    return Index(connection, files), connection


def _stamp(file: RunFile) -> Stamp:
    try:
        status = file.path.stat()
    except OSError:
        return -1, -1  # reading it will say what is wrong
    return status.st_size, status.st_mtime_ns


def _digest(file: RunFile) -> Digest:
    if file.path.parent.name == VERDICTS:
        return digest_record(History.load_record(file))
    return digest_run(History.load(file).document)
