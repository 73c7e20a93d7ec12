"""The history of runs under `bench_history/`: this module alone reads it and writes it.

`bench_history/<machine>/<file>.json` holds one replicate: pytest-benchmark's own document, readable by
`pytest-benchmark compare`, with a `fuseproof` block (see `run_schema`). `bench_history/<machine>/verdicts/<file>.json`
holds what was said of a night, or accepted with it (see `record_schema`). The history is append-only. Names say when a
file was written and in which night, so listing opens no file; whatever cannot be used is named and set aside.
"""

import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fuseproof.record_schema import RECORD_SCHEMA, find_record_fault
from fuseproof.run_file import NAME_FORM, RunFile, matches, new_name, night_fault
from fuseproof.run_schema import SCHEMA, find_fault
from fuseproof.storage import HistoryError, SetAside, entries, explained, read_document, resolved, shown, write_new

__all__ = ["History", "HistoryError", "Run", "RunFile", "SetAside"]

LOCK_TIMEOUT_S = 60.0
"""How long a save waits for the others on its machine; one save holds the lock for some milliseconds."""


VERDICTS = "verdicts"
"""The folder of a machine's verdicts; pytest-benchmark looks for runs in a machine's own folder only."""

_STALE_TMP_S = 3600.0  # no save takes an hour: whoever wrote an older one was killed
_MACHINE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


@dataclass(frozen=True)
class Run:
    """One replicate: the document of one fresh process, checked."""

    file: RunFile
    document: dict[str, Any]

    @property
    def machine(self) -> str:
        """The slug of the machine that measured it."""
        return self.file.machine

    @property
    def night(self) -> str:
        """The session that it belongs to."""
        return self.file.night

    def benchmarks_by_key(self) -> dict[str, dict[str, Any]]:
        """Return pytest-benchmark's benchmark objects by their stable key `op/candidate/dtype/shape`."""
        return {each["extra_info"]["fuseproof"]["key"]: each for each in self.document["benchmarks"]}


@dataclass(frozen=True)
class History:
    """All runs under `root`, by machine. A root that does not exist reads as empty and is created by the first save."""

    root: Path

    def machines(self) -> dict[str, int]:
        """Return how many runs each machine has, from the names alone; machines without one are left out."""
        with explained(self.root, "listed", "make it a readable folder"):
            names = [each.name for each in entries(self.root) if _MACHINE.fullmatch(each.name) and each.is_dir()]
        return {name: count for name in names if (count := len(self.files(name)))}

    def files(self, machine: str) -> list[RunFile]:
        """Return the machine's run files, oldest first, from the names alone."""
        parsed = (RunFile.parse(path, machine) for path in self._json_paths(machine))
        return sorted((file for file in parsed if file is not None), key=lambda file: file.order)

    def unnamed(self, machine: str) -> list[SetAside]:
        """Return the machine's `.json` files whose names are not those of runs."""
        return [_unnamed(path) for path in self._json_paths(machine) if RunFile.parse(path, machine) is None]

    def nights(self, machine: str) -> dict[str, list[RunFile]]:
        """Return the machine's files by night, from the names alone; the night with the newest file comes last."""
        nights: dict[str, list[RunFile]] = {}
        for file in self.files(machine):
            nights.setdefault(file.night, []).append(file)
        return dict(sorted(nights.items(), key=lambda night: night[1][-1].order))

    @staticmethod
    def load(file: RunFile) -> Run:
        """Read and check one file.

        Raises HistoryError for whatever is not a sound run: unreadable, cut short, not JSON, poisoned, foreign, newer.
        """
        document = read_document(file.path)
        if fault := find_fault(document, file.machine, file.night):
            raise HistoryError(f"{shown(file.path)}: {fault.what}; {fault.mend}")
        return Run(file, document)

    @staticmethod
    def load_path(path: Path) -> Run:
        """Read and check a run wherever it lies, by what it says of itself; raises HistoryError as `load` does.

        Without a run's name it counts as written when pytest-benchmark says that it ran.
        """
        document = read_document(path)
        if isinstance(document, dict) and {"verdicts", "accepted", "withdrawn"} & document.keys():
            raise HistoryError(f"{shown(path)}: holds verdicts, not a run; give the files of runs")
        block = document.get("fuseproof") if isinstance(document, dict) else None
        machine, night = (str(block.get(name)) if isinstance(block, dict) else "" for name in ("machine", "night"))
        file = RunFile.parse(path, machine)
        if fault := find_fault(document, machine, file.night if file else night):
            raise HistoryError(f"{shown(path)}: {fault.what}; {fault.mend}")
        try:
            written = datetime.fromisoformat(document["datetime"]).astimezone(UTC)
        except (ValueError, OverflowError):
            what = f"datetime is {document['datetime']!r:.60}, not a date"
            raise HistoryError(f"{shown(path)}: {what}; restore the file from a good copy") from None
        return Run(file or RunFile(path, machine, 0, written, night, "", None), document)

    def records(self, machine: str) -> list[RunFile]:
        """Return the files with what was said of the machine's nights, oldest first, from the names alone."""
        parsed = (RunFile.parse(path, machine) for path in self._json_paths(machine, VERDICTS))
        return sorted((file for file in parsed if file is not None), key=lambda file: file.order)

    def ended(self, machine: str, night: str) -> str | None:
        """Return why a night takes no more processes, None where it does: they would change what was judged."""
        if all(file.night != night for file in self.records(machine)):
            return None
        return f"the night {night!r} is judged or accepted already, and takes no more processes; give another name"

    def unnamed_records(self, machine: str) -> list[SetAside]:
        """Return what lies among the machine's verdicts under names that are not theirs."""
        return [_unnamed(path) for path in self._json_paths(machine, VERDICTS) if RunFile.parse(path, machine) is None]

    @staticmethod
    def load_record(file: RunFile) -> dict[str, Any]:
        """Read and check one file of verdicts; raises HistoryError as `load` does."""
        document: dict[str, Any] = read_document(file.path)
        if fault := find_record_fault(document, file.machine, file.night):
            raise HistoryError(f"{shown(file.path)}: {fault.what}; {fault.mend}")
        return document

    def newest_first(self, machine: str) -> Iterator[tuple[list[Run], list[SetAside]]]:
        """Yield each night's readable runs, oldest first, and what of it is set aside; the newest night comes first.

        Files are opened as nights are asked for.
        """
        for files in reversed(self.nights(machine).values()):
            yield _load_each(files)

    def newest(self, machine: str, nights: int = 1) -> tuple[list[Run], list[SetAside]]:
        """Return the runs of the newest `nights` nights, oldest first, and what was set aside on the way.

        A night counts if at least one of its files can be read; past one that cannot, an older night takes its place.
        Only files of the nights looked at are opened. Stray `.json` files are always among those set aside.
        """
        runs: list[Run] = []
        set_aside = self.unnamed(machine)
        found = self.newest_first(machine)
        while nights > 0 and (night := next(found, None)) is not None:
            runs += night[0]
            set_aside += night[1]
            nights -= bool(night[0])
        return sorted(runs, key=lambda run: run.file.order), set_aside

    def select(self, machine: str, spec: str) -> tuple[list[Run], list[SetAside]]:
        """Return the runs that the user named, oldest first, and those among them that are set aside.

        `spec` is a run's number ("3", "0003"), a path to a file, or a glob over file names that need not spell out
        their end ("0003_2026", "<machine>/0003*"). Runs of other machines are refused.
        Raises HistoryError when nothing matches, saying what is there.
        """
        if os.path.isfile(spec):  # noqa: PTH113 - Path.is_file raises for a spec that is too long for a name
            path = Path(spec)
            folder = resolved(path).parent
            if folder.parent == resolved(self.root) and folder.name != machine:
                raise HistoryError(
                    f"{shown(path)}: is a run of {folder.name!r} and this machine is {machine!r}; "
                    "foreign hardware is not compared: give a run of this machine"
                )
            file = RunFile.parse(path, machine)
            return ([], [_unnamed(path)]) if file is None else _load_each([file])
        files = [file for file in self.files(machine) if matches(file.path, machine, spec)]
        strays = [stray for stray in self.unnamed(machine) if matches(stray.path, machine, spec)]
        if not files and not strays:
            raise HistoryError(self._nothing_matches(machine, spec))
        runs, set_aside = _load_each(files)
        return runs, strays + set_aside

    def save(self, machine: str, document: dict[str, Any], night: str, label: str | None = None) -> RunFile:
        """Append one run and return its file; the document's `fuseproof` block is completed, never overruled.

        `night` is made of 0-9 and a-z; `label` is what the user gave to `--benchmark-save`, slugged here.
        Raises HistoryError, leaving the history as it was, for a document that `load` would refuse, a folder that
        cannot be written, a full disk, or a lock that is not free within LOCK_TIMEOUT_S.
        """
        folder = self.folder(machine)
        document = _completed(document, machine, night, SCHEMA)
        if fault := find_fault(document, machine, night):
            raise HistoryError(f"{shown(folder)}: nothing saved: {fault.what}; correct what measures it")
        return self._append(machine, "", document, night, label)

    def save_record(self, machine: str, document: dict[str, Any], night: str) -> RunFile:
        """Append what was said of a night, or accepted with it; raises HistoryError as `save` does."""
        document = _completed(document, machine, night, RECORD_SCHEMA)
        if fault := find_record_fault(document, machine, night):
            raise HistoryError(f"{shown(self.folder(machine) / VERDICTS)}: nothing saved: {fault.what}; correct it")
        return self._append(machine, VERDICTS, document, night, None)

    def _append(self, machine: str, part: str, document: dict[str, Any], night: str, label: str | None) -> RunFile:
        folder = self.folder(machine)
        if fault := night_fault(night):
            raise HistoryError(f"{shown(folder)}: nothing saved: {fault}")
        data = (json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n").encode("ascii")
        lock = folder / "append.lock"
        with explained(folder, "written", "nothing saved: make it writable, or free some space, and run again"):
            (folder / part).mkdir(parents=True, exist_ok=True)
            try:
                with FileLock(lock, timeout=LOCK_TIMEOUT_S):  # the kernel frees the lock of a killed holder
                    return self._write(machine, part, data, night, label)
            except Timeout as error:
                raise HistoryError(
                    f"{shown(lock)}: another process held this lock for {LOCK_TIMEOUT_S:g} s, so nothing was saved; "
                    "end that process, or wait for it, and run again"
                ) from error

    def _write(self, machine: str, part: str, data: bytes, night: str, label: str | None) -> RunFile:
        folder = self.folder(machine) / part
        for entry in entries(folder):
            if entry.name.endswith(".tmp"):
                with suppress(OSError):  # somebody else's, or a folder: not ours to fail on
                    if time.time() - entry.stat().st_mtime > _STALE_TMP_S:
                        Path(entry).unlink()
        files = self.records(machine) if part else self.files(machine)
        number = 1 + max((file.number for file in files), default=0)
        file = RunFile.parse(folder / new_name(number, night, label), machine)
        if file is None:
            raise HistoryError(
                f"{shown(folder)}: nothing saved: the run number {number} is too great for a name; "
                f"give the file with the number {number - 1} a smaller one"
            )
        write_new(file.path, file.path.with_suffix(".tmp"), data)
        return file

    def folder(self, machine: str) -> Path:
        """Return the folder of a machine; raises HistoryError for a name that is none."""
        if not _MACHINE.fullmatch(machine):
            raise HistoryError(f"{shown(self.root)}: {machine!r} is no machine: use letters, digits, '.', '-' and '_'")
        return self.root / machine

    def _json_paths(self, machine: str, part: str = "") -> list[Path]:
        folder = self.folder(machine) / part
        return [folder / entry.name for entry in entries(folder) if entry.name.endswith(".json")]

    def _nothing_matches(self, machine: str, spec: str) -> str:
        files = self.files(machine)
        others = self.machines()
        matching = {
            name: count for name, count in others.items() if any(matches(f.path, name, spec) for f in self.files(name))
        }
        has = f"has {len(files)} run(s), {files[0].path.name} to {files[-1].path.name}" if files else "has no run yet"
        foreign = matching or ({} if files else others)
        listed = ", ".join(f"{name} ({count} run(s))" for name, count in list(foreign.items())[:5])
        if len(foreign) > 5:
            listed += f" and {len(foreign) - 5} more"
        elsewhere = f", and foreign hardware is not compared: {listed}" if foreign else ""
        return (
            f"{shown(self.root)}: no run of this machine matches {spec!r}: {machine} {has}{elsewhere}; give a run's "
            "number, a file name or a path to a file, or save a first run with --benchmark-autosave"
        )


def _completed(document: dict[str, Any], machine: str, night: str, schema: int) -> dict[str, Any]:
    block = document.get("fuseproof", {})
    if not isinstance(block, dict):
        return document
    return {**document, "fuseproof": {"schema": schema, "night": night, "machine": machine, **block}}


def _load_each(files: Iterable[RunFile]) -> tuple[list[Run], list[SetAside]]:
    runs: list[Run] = []
    set_aside: list[SetAside] = []
    for file in files:
        try:
            runs.append(History.load(file))
        except HistoryError as error:
            set_aside.append(SetAside(file.path, str(error)))
    return runs, set_aside


def _unnamed(path: Path) -> SetAside:
    reason = f"its name is not a run's, which is {NAME_FORM}; give it its name back or move it out of the history"
    return SetAside(path, f"{shown(path)}: {reason}")
