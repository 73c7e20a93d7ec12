"""Histories of one machine, written through the front door, for the tests of the gate."""

import copy
import datetime
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof.gate.ledger import Ledger
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.history import History, RunFile
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.verdict import Pair, Waiver

TODAY = datetime.date(2027, 1, 31)
STATS = {
    **dict.fromkeys(("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3"), 2e-5),
    "ops": 5e4,
    "rounds": 30,
    "iterations": 1,
    "outliers": "1;2",
}
FLAT = (0.0,) * 12
BLOCK = {
    "cpu_model": "a CPU",
    "power_limit_w": 700.0,
    "board": "b0a4d1e5",
    "software": {"driver": "580", "torch": "2.11"},
    "selection": "",
}


@dataclass
class Book:
    """One machine's history.

    Attributes:
        root: its folder.
        machine: its slug.
        settings: how it is gated.
        waivers: in force.

    """

    root: Path
    machine: str = "h200-sxm"
    settings: GateSettings = field(default_factory=GateSettings)
    waivers: Sequence[Waiver] = ()
    _saved: Iterator[int] = field(default_factory=itertools.count)

    @staticmethod
    def document(
        metrics: Mapping[str, Mapping[str, Any]],
        *,
        invalid: Mapping[str, list[str]] | None = None,
        method: str = "a1b2",
        day: int = 0,
        **block: Any,
    ) -> dict[str, Any]:
        """Return a run's document of these metrics by key; `kernels_hash` among them goes to its own place."""
        benchmarks = []
        for key, values in metrics.items():
            record = {"key": key, "method": method, "metrics": dict(values), "invalid": (invalid or {}).get(key, [])}
            if "kernels_hash" in values:
                record["kernels_hash"] = record["metrics"].pop("kernels_hash")
            record["gpu"] = {"spin_sm_clock_mhz": 1980.0}
            ids = {"group": None, "name": f"test[{key}]", "fullname": f"t.py::test[{key}]", "param": None}
            benchmarks.append({**ids, "extra_info": {"fuseproof": record}, "options": {}, "stats": dict(STATS)})
        date = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=day)
        return {
            "machine_info": {"node": "host"},
            "commit_info": {"id": "abc"},
            "benchmarks": benchmarks,
            "datetime": date.isoformat(),
            "version": "5.3.1",
            "fuseproof": copy.deepcopy(BLOCK | block),
        }

    def run(
        self,
        percent: Iterable[float] = FLAT,
        *,
        duration_ns: float = 1e5,
        others: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """Return a run's document of device times of benchmarks 0, 1, ...: logarithms times 100 about a duration."""
        metrics = {
            self.key(number): {"device_time_ns": duration_ns * math.exp(value / 100), **(others or {})}
            for number, value in enumerate(percent)
        }
        return self.document(metrics, **options)

    @staticmethod
    def key(number: int) -> str:
        """Return the key of a benchmark by its number."""
        return f"op/mine/fp32/{number:02d}"

    def pair(self, number: int, metric: str = "device_time_ns") -> Pair:
        """Return the pair of a benchmark's device time, or of another metric."""
        return Pair(self.key(number), metric)

    @staticmethod
    def labels(session: GateSession) -> dict[Pair, str]:
        """Return what a session says of each pair, but for a plain PASS."""
        return {verdict.pair: verdict.label for verdict in session.verdicts if verdict.label != "PASS"}

    @property
    def history(self) -> History:
        """The front door."""
        return History(self.root)

    @property
    def folder(self) -> Path:
        """The machine's folder."""
        return self.root / self.machine

    @property
    def ledger(self) -> Ledger:
        """A fresh look at the files."""
        return Ledger(self.history, self.machine)

    def save(self, night: str, *documents: dict[str, Any]) -> list[RunFile]:
        """Append a night of these processes."""
        return [self.history.save(self.machine, self._ended(each), night) for each in documents]

    def _ended(self, document: dict[str, Any]) -> dict[str, Any]:
        """Let no two processes end in one microsecond: they would be copies of one."""
        if "datetime" not in document:
            return document
        moment = datetime.datetime.fromisoformat(document["datetime"])
        return {**document, "datetime": (moment + datetime.timedelta(microseconds=next(self._saved))).isoformat()}

    def calm(self, nights: int, *, replicates: int = 3, first: int = 0, sigma: float = 0.1, **options: Any) -> None:
        """Append nights in which nothing happens: 12 benchmarks, `sigma` % between nights and between processes."""
        seed = np.random.default_rng(first)
        for number in range(first, first + nights):
            level = seed.normal(0, sigma, len(FLAT))
            runs = [level + seed.normal(0, sigma, len(FLAT)) for _ in range(replicates)]
            self.save(f"n{number}", *(self.run(run, day=number, **options) for run in runs))

    def session(
        self,
        night: str,
        documents: Sequence[dict[str, Any]],
        *,
        paired: bool = False,
        full_selection: bool = True,
        **options: Any,
    ) -> GateSession:
        """Begin to judge a night by the nights before it."""
        ledger = self.ledger
        return GateSession(
            self.settings,
            self.waivers,
            ledger.nights(before=night),
            ledger.night(night, documents),
            paired=paired,
            full_selection=full_selection,
            today=TODAY,
            recall=ledger.recall(before=night),
            **options,
        )

    def gate(
        self,
        night: str,
        documents: Sequence[dict[str, Any]],
        confirming: dict[str, Any] | None = None,
        trusted: dict[str, Any] | None = None,
        planted_ln: float | None = None,
        **options: Any,
    ) -> GateSession:
        """Save a night, judge it and remember what was said; every confirming process measures the same.

        Its planted slow-down is seen as it was planted, or as `planted_ln`.
        """
        self.save(night, *(each | {"fuseproof": each["fuseproof"] | {"gated": True}} for each in documents))
        session = self.session(night, documents, paired=trusted is not None, **options)
        again = night_of("again", [confirming or documents[0]]).screening[0]
        beside = None if trusted is None else night_of("trusted", [trusted]).screening[0]
        while session.plan():
            session.add(again, beside)
        if session.plant is not None:
            session.add_planted(session.plant.size_ln if planted_ln is None else planted_ln)
        self.remember(night, session)
        return session

    def remember(self, night: str, session: GateSession) -> None:
        """Leave what a session has said and seen, as a gated session does."""
        seen = {name: getattr(session, name) for name in ("evidence", "unchanged", "planting")}
        self.ledger.mark(night, session.marks, **seen)


@pytest.fixture
def book(tmp_path: Path) -> Book:
    """A history that does not exist yet."""
    return Book(tmp_path / "bench_history")
