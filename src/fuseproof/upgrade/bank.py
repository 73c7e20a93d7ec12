"""A folder of measured pairs, so that an interruption costs the pair that was running and nothing else.

`plan.json` says what is compared. Each finished process is one file, `0003-old.json`: the run's document as the history
would hold it, and an `upgrade` block with the pair's number, the arm, the GPU, the place in the pair, the seconds
and the tests that failed or were skipped, with what they said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fuseproof.run_schema import find_fault, shown
from fuseproof.storage import HistoryError, entries, explained, read_document, write_new
from fuseproof.storage import shown as shown_path
from fuseproof.upgrade.plan import UpgradePlan

__all__ = ["Bank", "Trial", "read_trials", "words_by_test"]

_PLAN = "plan.json"
_LOCK = "plan.lock"
_NAME = re.compile(r"(?P<number>[0-9]{4})-(?P<arm>[a-z]+)\.json")
_OWN = re.compile(r"plan\.(json|lock|tmp)|([0-9]{4}|parity)-[a-z]+\.(json|tmp)")
_FINISHED = re.compile(r"([0-9]{4}|parity)-[a-z]+\.json")
_MOST_GPUS, _LONGEST_S = 1000, 1e6  # no machine has more, and no process takes eleven days
_NEW_FOLDER = "give another --folder, or delete this one to measure anew"


@dataclass(frozen=True)
class Trial:
    """One finished pair; of `versus`, one process that measured all candidates.

    Attributes:
        number: its place among the pairs.
        gpu: which of the GPUs, counted from 0, both arms ran on.
        first: the arm that ran first.
        documents: by arm, what it measured: no benchmarks and the reason as `upgrade.nothing` where it measured none.

    """

    number: int
    gpu: int
    first: str
    documents: Mapping[str, Mapping[str, Any]]

    @property
    def seconds(self) -> float:
        """How long its processes took."""
        return sum(float(each["upgrade"]["seconds"]) for each in self.documents.values())


@dataclass(frozen=True)
class Bank:
    """The pairs of one plan.

    Attributes:
        folder: where they are kept.
        plan: what they are pairs of.
        lock: held while somebody appends.

    """

    folder: Path
    plan: UpgradePlan
    lock: FileLock

    @classmethod
    def begin(cls, folder: Path, plan: UpgradePlan) -> Bank:
        """Return the bank of this plan in `folder`, which is made or gone on with, and hold its lock.

        A plan of which nothing is finished, as one that selected nothing leaves, gives way to this one.

        Raises:
            HistoryError: the folder holds pairs of another plan or something else, or somebody else works in it.

        """
        name = shown_path(folder)
        with explained(folder, "written", "give another --folder"):
            folder.mkdir(parents=True, exist_ok=True)
            strangers = [each.name for each in entries(folder) if not _OWN.fullmatch(each.name)]
            if strangers and not (folder / _PLAN).exists():
                raise HistoryError(f"{name}: holds {strangers[0]} and no {_PLAN}; give another --folder")
            lock = FileLock(folder / _LOCK, timeout=0)
            try:
                lock.acquire()  # the kernel frees the lock of a killed holder
            except Timeout:
                busy = f"--folder {name}: another fuseproof measures here; wait for it, or give another --folder"
                raise HistoryError(busy) from None
            if not (folder / _PLAN).exists():
                _write(folder / _PLAN, plan.document())
        begun = UpgradePlan.read(read_document(folder / _PLAN), shown_path(folder / _PLAN))
        if not (difference := plan.difference(begun)):
            return cls(folder, begun, lock)
        if any(_FINISHED.fullmatch(each.name) for each in entries(folder)):
            raise HistoryError(f"{name}: was begun for something else ({difference}); {_NEW_FOLDER}")
        with explained(folder, "written", "give another --folder"):
            (folder / _PLAN).unlink()
            _write(folder / _PLAN, plan.document())
        return cls(folder, plan, lock)

    def end(self) -> None:
        """Let somebody else append."""
        self.lock.release()

    def add(self, trial: Trial) -> None:
        """Keep a finished pair; raises HistoryError where it cannot be written."""
        with explained(self.folder, "written", "free some space, and run the same command again"):
            for arm in trial.documents:
                self._path(trial.number, arm).unlink(missing_ok=True)  # half a pair, of a run that was killed
            for arm, document in trial.documents.items():
                about = {"pair": trial.number, "arm": arm, "gpu": trial.gpu, "first": arm == trial.first}
                _write(self._path(trial.number, arm), {**document, "upgrade": {**about, **document["upgrade"]}})

    def beside(self, name: str) -> Path:
        """Return the path of something that is kept beside the pairs."""
        return self.folder / f"{name}.json"

    def keep(self, path: Path, document: Mapping[str, Any]) -> None:
        """Write it, whole or not at all; raises HistoryError where it cannot be written."""
        with explained(self.folder, "written", "free some space, and run the same command again"):
            _write(path, document)

    def trials(self) -> list[Trial]:
        """Return the finished pairs; see `read_trials`."""
        return read_trials(self.folder, self.plan)

    def _path(self, number: int, arm: str) -> Path:
        return self.folder / f"{number:04d}-{arm}.json"


def read_trials(folder: Path, plan: UpgradePlan) -> list[Trial]:
    """Return the finished pairs of a plan's folder by their numbers; half a pair is none.

    Raises:
        HistoryError: a file cannot be used; the sentence names it.

    """
    found: dict[int, dict[str, Path]] = {}
    for entry in entries(folder):
        if match := _NAME.fullmatch(entry.name):
            found.setdefault(int(match["number"]), {})[match["arm"]] = folder / entry.name
    whole = {number: paths for number, paths in sorted(found.items()) if paths.keys() == plan.arms.keys()}
    return [_trial(number, {arm: paths[arm] for arm in plan.arms}, plan) for number, paths in whole.items()]


def words_by_test(trials: Sequence[Trial], block: str) -> dict[str, dict[str, str]]:
    """Return what tests have said first, by their ids and by arm; `block` is "failed_tests" or "skipped_tests"."""
    found: dict[str, dict[str, str]] = {}
    for trial in trials:
        for arm, document in trial.documents.items():
            for test, words in document["upgrade"].get(block, {}).items():
                found.setdefault(test, {}).setdefault(arm, words)
    return found


def _trial(number: int, paths: Mapping[str, Path], plan: UpgradePlan) -> Trial:
    documents = {arm: _process(path, number, arm, plan.machine) for arm, path in paths.items()}
    blocks = {arm: document["upgrade"] for arm, document in documents.items()}
    first = next((arm for arm, block in blocks.items() if block["first"]), next(iter(blocks)))
    return Trial(number, next(iter(blocks.values()))["gpu"], first, documents)


def _process(path: Path, number: int, arm: str, machine: str) -> dict[str, Any]:
    document = read_document(path)
    mend = "delete the file, and its pair is measured again"
    block = document.get("upgrade") if isinstance(document, dict) else None
    if not isinstance(block, dict):
        raise HistoryError(f"{shown_path(path)}: upgrade is {shown(block)}, not an object; {mend}")
    wanted = {"pair": int, "arm": str, "gpu": int, "first": bool, "seconds": float | int, "failed": bool}
    for name, kind in wanted.items():
        if not isinstance(block.get(name), kind):
            raise HistoryError(f"{shown_path(path)}: upgrade.{name} is {shown(block.get(name))}; {mend}")
    for name, most in (("gpu", _MOST_GPUS), ("seconds", _LONGEST_S)):
        if isinstance(block[name], bool) or not 0 <= block[name] <= most:
            raise HistoryError(f"{shown_path(path)}: upgrade.{name} is {shown(block[name])}; {mend}")
    for name in ("nothing", "failures"):
        if not isinstance(block.get(name, ""), str):
            raise HistoryError(f"{shown_path(path)}: upgrade.{name} is {shown(block[name])}; {mend}")
    for name, needed in (("failed_tests", block["failed"]), ("skipped_tests", False)):
        tests = block.get(name, None if needed else {})
        if not isinstance(tests, dict) or not all(isinstance(words, str) for words in tests.values()):
            raise HistoryError(f"{shown_path(path)}: upgrade.{name} is {shown(tests)}; {mend}")
    if (block["pair"], block["arm"]) != (number, arm):
        said = f"upgrade says pair {block['pair']}, {block['arm']}"
        raise HistoryError(f"{shown_path(path)}: {said}; give the file its name back, or delete it")
    if isinstance(block.get("nothing"), str) and document.get("benchmarks") == []:
        return document  # type: ignore[no-any-return]  # an object, as the block in it shows
    run = document.get("fuseproof")
    night = str(run.get("night")) if isinstance(run, dict) else ""
    if fault := find_fault(document, machine, night):
        raise HistoryError(f"{shown_path(path)}: {fault.what}; {mend}")
    return document  # type: ignore[no-any-return]


def _write(path: Path, document: Mapping[str, Any]) -> None:
    data = (json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n").encode("ascii")
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)  # of a run that was killed: the lock is ours
    write_new(path, temporary, data)
