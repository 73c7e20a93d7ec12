"""`fuseproof check`: files of runs judged as a gated session would, on any machine, without running anything."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fuseproof.gate.ledger import Ledger
from fuseproof.gate.records import NightRecord, Recall
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.history import VERDICTS, History, Run
from fuseproof.run_file import RunFile
from fuseproof.storage import HistoryError, resolved, shown
from fuseproof.verdicts.night import Night, Values, is_part
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.verdict import Waiver

__all__ = ["checked"]


def checked(
    paths: Sequence[Path],
    settings: GateSettings,
    waivers: Sequence[Waiver],
    history: History,
    today: datetime.date,
    *,
    whole_suite: bool = False,
) -> GateSession:
    """Return the newest night among the files, judged by the others among them; by the history where there is none.

    Its first processes screen, as many as the settings say, and the others confirm. Of a night that its own session has
    judged all screen, what it left confirms, and what its controls have seen is judged again by the same functions.

    Args:
        paths: run files.
        settings, waivers: as of the repository.
        history: where to look for nights if the files are all of one.
        today: for waivers.
        whole_suite: the newest night was asked for everything, whatever its files say.

    Raises:
        HistoryError: the question cannot be asked: a file that may be the newest cannot be used, or of two machines.

    """
    runs, copies, faults = _read(paths)
    machine = _one_machine(runs)
    nights: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda run: run.file.order):
        nights.setdefault(run.night, []).append(run)
    name, newest = max(nights.items(), key=lambda night: night[1][-1].file.order)
    aside = [*copies, *_older_than(newest, faults)]
    ledgers = _ledgers(runs, machine, history)
    known = {found: night for ledger in ledgers for found, night in ledger.named(nights).items()}
    recalls = [ledger.recall(before=name) for ledger in ledgers]
    past = [_remembered(other, found, known) for other, found in nights.items() if other != name]
    if not past:
        ledger = Ledger(history, machine)
        past = ledger.nights(before=name)
        recalls = [ledger.recall(before=name)]
    tonight = night_of(name, [run.document for run in newest])
    if whole_suite and tonight.selection != "full":
        tonight = replace(tonight, selection="")
    said = _said(name, ledgers, Ledger(history, machine))
    recorded = list(zip_longest(said.evidence.tonight, said.evidence.trusted)) if said is not None else []
    paired = any(trusted is not None for _, trusted in recorded)
    # A session that has judged its night screened with all of its processes: those that confirm are no runs.
    screened = settings.replicates if said is None else len(tonight.screening)
    screening, spare = tonight.screening[:screened], tonight.screening[screened:]
    session = GateSession(
        settings,
        waivers,
        past,
        replace(tonight, screening=screening),
        paired=paired,
        full_selection=not is_part(tonight.selection),
        today=today,
        selection=tonight.selection,
        from_files=True,
        recall=Recall(
            (*aside, *(sentence for recall in recalls for sentence in recall.set_aside)),
            tuple(sentence for recall in recalls for sentence in recall.lost),
            tuple(count for recall in recalls for count in recall.unchanged),
        ),
        planting=said.planting if said is not None else None,
    )
    suspects = {pair.key for pair in session.screening.suspects}
    for own, trusted in recorded:
        # What the night ran as a control confirms nothing here either.
        left_out = set() if session.plan() and (trusted is not None or not paired) else suspects
        session.add(_without(own, left_out), trusted and _without(trusted, left_out))
    for values in spare:
        if session.plan():
            session.add(values)
    return session


def _said(name: str, ledgers: Iterable[Ledger], own: Ledger) -> NightRecord | None:
    """Return what the night's own session has left beside the files or, of copies, in the history; None for nothing."""
    for ledger in ledgers:
        with suppress(HistoryError):  # named among what the history has lost, which answers nothing
            if (said := ledger.said(name)) is not None:
                return said
    return own.said(name)


def _without(values: Values, keys: Collection[str]) -> Values:
    return {pair: value for pair, value in values.items() if pair.key not in keys}


def _read(paths: Iterable[Path]) -> tuple[list[Run], list[str], dict[Path, HistoryError]]:
    """Return the runs, sentences on copies of them that count to another night, and what is wrong with other files."""
    runs: dict[str, Run] = {}
    copies: list[str] = []
    faults: dict[Path, HistoryError] = {}
    for path in paths:
        try:
            run = History.load_path(path)
            # A copy of a run, under whatever name or night, is no second process: a suspect would confirm itself.
            content = hashlib.sha256(json.dumps(_process(run), sort_keys=True).encode()).hexdigest()
            first = runs.setdefault(content, run)
            if first.night != run.night:
                copies.append(f"{shown(path)}: is a copy of {shown(first.file.path)} in another night; delete it")
        except HistoryError as error:
            faults[path] = error
    if not runs:
        more = f"; and {len(faults) - 3} files more" if len(faults) > 3 else ""
        raise HistoryError("; ".join(map(str, list(faults.values())[:3])) + more or "no files are given")
    return list(runs.values()), copies, faults


def _process(run: Run) -> dict[str, Any]:
    """Return what a run says but for the night that it counts to."""
    return {**run.document, "fuseproof": {**run.document["fuseproof"], "night": ""}}


def _one_machine(runs: Sequence[Run]) -> str:
    machines = sorted({run.machine for run in runs})
    if len(machines) > 1:
        first, other = (next(run.file.path for run in runs if run.machine == machine) for machine in machines[:2])
        raise HistoryError(
            f"{first} is of {machines[0]!r} and {other} of {machines[1]!r}; foreign hardware is not compared: "
            "give the files of one machine"
        )
    return machines[0]


def _older_than(newest: Sequence[Run], faults: dict[Path, HistoryError]) -> list[str]:
    """Return sentences on files that cannot be used and are older than the newest night, by their names."""
    for path, error in faults.items():
        file = RunFile.parse(path, newest[0].machine)
        if file is None or file.night == newest[0].night or file.order > newest[0].file.order:
            raise HistoryError(f"{error}; it may be of the newest night, so nothing is judged")
    return [str(error) for error in faults.values()]


def _ledgers(runs: Sequence[Run], machine: str, history: History) -> list[Ledger]:
    """Return a ledger for each folder of a history among the files' own: it knows what was said of their nights.

    Only the repository's own history keeps an index: beside copies nothing is written.
    """
    folders = sorted({resolved(run.file.path).parent for run in runs})
    own = resolved(history.root)
    return [
        Ledger(History(folder.parent), machine, keep_index=folder.parent == own)
        for folder in folders
        if folder.name == machine and (folder / VERDICTS).is_dir()
    ]


def _remembered(name: str, runs: Sequence[Run], known: dict[str, Night]) -> Night:
    """Return the night of these runs, with what was said of it where that is known."""
    night = night_of(name, [run.document for run in runs])
    if name not in known:
        return night
    said = known[name]
    invalid = {key: said.invalid.get(key, night.invalid.get(key, ())) for key in {*night.invalid, *said.invalid}}
    return replace(
        night,
        invalid=invalid,
        marks=said.marks,
        accepted=said.accepted,
        confirming=said.confirming,
        trusted=said.trusted,
    )
