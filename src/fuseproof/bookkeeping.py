"""What a pytest session does with its benchmarks: which stored run it compares with, and where it saves its own."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fuseproof import machine, preflight
from fuseproof.asked import Asked
from fuseproof.history import History, HistoryError, Run, SetAside
from fuseproof.requirements import HARDWARE, requirement_fault
from fuseproof.run_file import NIGHT, dated_ahead
from fuseproof.run_schema import SCHEMA, cpu_threads
from fuseproof.selection import Selection

__all__ = ["Bookkeeper"]

_NIGHTS = 20  # how far back a benchmark is looked for that newer runs lack


@dataclass
class Bookkeeper:
    """The stored side of one session.

    Attributes:
        asked, history: from `asked.take_over`.
        baselines: the runs to compare with, oldest first; without names the newest night, and as many older ones as
            were needed to find each benchmark.
        notes: lines for the header and the summary.
        night: the session's; several processes are one night where FUSEPROOF_NIGHT says so.
        selection: what the command line asks for.
        gated: whether verdicts are asked for.

    """

    asked: Asked
    history: History
    selection: Selection
    baselines: list[Run] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    night: str = field(default_factory=lambda: os.environ.get(NIGHT) or secrets.token_hex(4))
    gated: bool = False
    _nights: Iterator[tuple[list[Run], list[SetAside]]] = field(default=iter(()), repr=False)

    def require_open_night(self) -> None:
        """Refuse to add to a night that is over.

        Raises:
            pytest.UsageError: FUSEPROOF_NIGHT names one that is judged.

        """
        if self.asked.label is None and not self.gated:
            return
        with suppress(HistoryError):  # a history that cannot be listed is told at the end, which keeps the run
            if fault := self.history.ended(machine.identify().slug, self.night):
                raise pytest.UsageError(f"{NIGHT}: {fault}.")

    def find_baselines(self) -> None:
        """Find the runs to compare with, and say which they are or why there are none.

        Raises:
            pytest.UsageError: a named run does not exist.

        """
        if self.asked.compare is None:
            return
        slug = machine.identify().slug
        try:
            if self.asked.compare is True:
                self._set_aside(self.history.unnamed(slug))
                self._nights = itertools.islice(self.history.newest_first(slug), _NIGHTS)
                while not self.baselines and self._reach_back():
                    pass
            else:
                self.baselines, unreadable = self.history.select(slug, str(self.asked.compare))
                if not self.baselines:  # a run that was named and cannot be read is no reason to compare with nothing
                    raise HistoryError("; ".join(each.reason for each in unreadable))
                self._set_aside(unreadable)
        except HistoryError as error:
            raise pytest.UsageError(str(error)) from None
        self.notes += dated_ahead(self.history.files(slug))
        if self.baselines and self.asked.compare is True:
            newest = self.baselines[-1]
            older = "; what it lacks with the newest run that has it"
            self.notes.append(f"comparing with {_shown(newest.file.path)} ({_software(newest)}){older}")
        elif self.baselines:
            self.notes += [f"comparing with {_shown(run.file.path)} ({_software(run)})" for run in self.baselines]
        else:
            self.notes.append(self._nothing_to_compare(slug))

    def _reach_back(self) -> bool:
        """Read the next older night; False where there is none, or none within reach."""
        for readable, unreadable in self._nights:
            self.baselines[:0] = readable
            self._set_aside(unreadable)
            return True
        return False

    def _set_aside(self, unused: list[SetAside]) -> None:
        self.notes += [f"set aside: {each.reason}" for each in unused]

    def _nothing_to_compare(self, slug: str) -> str:
        others = {name: count for name, count in self.history.machines().items() if name != slug}
        foreign = ", ".join(f"{name} ({count} runs)" for name, count in others.items())
        return (
            f"nothing to compare with: no readable run of {slug} in {_shown(self.history.root)}"
            + (f"; other hardware is not compared: {foreign}" if foreign else "")
            + ("; save one with --benchmark-autosave" if self.asked.label is None else "; this run is the first")
        )

    def comparable(self, record: Mapping[str, Any], run: Run) -> dict[str, Any] | None:
        """Return the stored benchmark with this record's key, if the two numbers mean the same.

        Another method (clock, rounds, shapes) never does; on a CPU another number of threads neither; an iteration's
        time only on one CPU model, since the host takes part in it.
        """
        stored = run.benchmarks_by_key().get(record["key"])
        if stored is None or stored["extra_info"]["fuseproof"]["method"] != record["method"]:
            return None
        block = run.document["fuseproof"]
        if cpu_threads(block) not in (None, machine.settings()["threads"]):
            return None
        host_matters = "iteration_time_ns" in record["metrics"]
        if host_matters and block.get("cpu_model") != machine.identify().cpu_model:
            return None
        return stored

    def compared_mapping(self, benchmarks: list[Any]) -> dict[Path, dict[str, Any]]:
        """Return pytest-benchmark's mapping of path to test id to stored benchmark, matched by key."""
        mapping: dict[Path, dict[str, Any]] = {}
        for benchmark in benchmarks:
            record = benchmark.extra_info.get("fuseproof")
            for run, stored in self._matches(record) if record else ():
                mapping.setdefault(Path(run.file.path.name), {})[benchmark.fullname] = stored
        return mapping

    def newest_comparable(self, benchmarks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return, by key, what the newest run that has them holds for these benchmarks."""
        records = [benchmark["extra_info"]["fuseproof"] for benchmark in benchmarks]
        return {record["key"]: found[-1][1] for record in records if (found := self._matches(record))}

    def _matches(self, record: Mapping[str, Any]) -> list[tuple[Run, dict[str, Any]]]:
        """Return the stored benchmarks to compare a record with: of all runs that were named, else the newest."""

        def pairs() -> list[tuple[Run, dict[str, Any]]]:
            return [(run, stored) for run in self.baselines if (stored := self.comparable(record, run))]

        if self.asked.compare is not True:
            return pairs()
        while not (found := pairs()) and self._reach_back():
            pass
        return found[-1:]

    def block(self, measured: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `fuseproof` block of a run file."""
        here = machine.identify()
        return {
            "schema": SCHEMA,
            **self.stamp(),
            "machine": here.slug,
            "cpu_model": here.cpu_model,
            "power_limit_w": here.power_limit_w,
            "host": here.host_id,
            **({"board": here.board_id} if here.board_id else {}),
            "software": machine.inventory(),
            "settings": machine.settings(),
            **({"vouches": vouches} if (vouches := preflight.vouches()) else {}),
            **measured,
        }

    def stamp(self) -> dict[str, Any]:
        """Return what all processes of one night say alike in their `fuseproof` block."""
        return {
            "night": self.night,
            "gated": self.gated,
            "selection": str(self.selection),
            "brought": list(self.selection.brought),
        }

    def earlier_tonight(self) -> list[dict[str, Any]]:
        """Return what earlier processes of this night have saved; what cannot be read is named among the notes."""
        documents = []
        for file in self.history.nights(machine.identify().slug).get(self.night, []):
            try:
                documents.append(self.history.load(file).document)
            except HistoryError as error:
                self.notes.append(f"set aside: {error}")
        return documents

    def document(self, config: pytest.Config) -> dict[str, Any] | None:
        """Return this session's benchmarks as pytest-benchmark's own document, None if none ran to its end."""
        finished = [each for each in config._benchmarksession.benchmarks if each]  # type: ignore[attr-defined]
        benchmarks = [each for each in finished if "fuseproof" in each.extra_info]
        if plain := [each.fullname for each in finished if each not in benchmarks]:
            self.notes.append(f"not saved, since only what goes through `measure` has a key: {', '.join(plain)}")
        if not benchmarks:
            return None
        hook = config.hook
        machine_info = hook.pytest_benchmark_generate_machine_info(config=config)
        hook.pytest_benchmark_update_machine_info(config=config, machine_info=machine_info)
        commit_info = hook.pytest_benchmark_generate_commit_info(config=config)
        hook.pytest_benchmark_update_commit_info(config=config, commit_info=commit_info)
        document: dict[str, Any] = hook.pytest_benchmark_generate_json(
            config=config,
            benchmarks=benchmarks,
            include_data=bool(config.option.benchmark_save_data),
            machine_info=machine_info,
            commit_info=commit_info,
        )
        hook.pytest_benchmark_update_json(config=config, benchmarks=benchmarks, output_json=document)
        return document

    def save(self, document: dict[str, Any] | None) -> None:
        """Append a run to the history, and say where it is.

        Raises:
            HistoryError: it cannot be written; the message says why, what to do, and where the run is kept meanwhile.

        """
        if document is None:
            self.notes.append("nothing saved: no benchmark ran to its end")
            return
        try:
            file = self.history.save(machine.identify().slug, document, self.night, self.asked.label or None)
        except HistoryError as error:
            raise HistoryError(f"{error}. {_kept(document)}") from None
        self.notes.append(f"saved as {_shown(file.path)}")

    def unmet(self, requirements: list[str]) -> list[str]:
        """Return a sentence for each requirement of ``--fuseproof-require`` that this machine or history does not meet.

        Raises:
            pytest.UsageError: an unknown requirement.

        """
        if fault := requirement_fault(requirements, option="--fuseproof-require"):
            raise pytest.UsageError(f"{fault}.")
        hardware = [each for each in requirements if each in HARDWARE]
        sentences = [f"{' and '.join(hardware)} required: {sentence}" for sentence in preflight.unmet(hardware)]
        if "baseline" in requirements and not self.baselines:
            missing = self.notes[-1] if self.asked.compare else "it needs --benchmark-compare"
            sentences.append(f"baseline required: {missing}")
        if "gate" in requirements and not self.gated:
            missing = "it is switched off" if self.asked.compare else "it needs --benchmark-compare"
            sentences.append(f"gate required: {missing}")
        return sentences


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _kept(document: dict[str, Any]) -> str:
    """Write the document where it can be written, so that a full disk or a wrong mode does not lose the run."""
    try:
        with tempfile.NamedTemporaryFile("w", prefix="fuseproof-", suffix=".json", delete=False) as file:
            json.dump(document, file)
    except (OSError, ValueError, TypeError):
        return "The run is lost."
    return f"The run is kept in {file.name}."


def _software(run: Run) -> str:
    software = run.document["fuseproof"].get("software", {})
    return ", ".join(f"{name} {software[name]}" for name in ("torch", "driver", "apex") if software.get(name))
