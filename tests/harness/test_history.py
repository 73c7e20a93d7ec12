"""The history loses nothing, reads nothing wrong, and names whatever it will not read."""

import copy
import errno
import itertools
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseproof import history as history_module
from fuseproof.history import History, HistoryError, RunFile

MACHINE = "h200-sxm"
STATS = {
    **dict.fromkeys(("min", "max", "mean", "stddev", "median", "iqr", "q1", "q3"), 2e-5),
    "ops": 5e4,
    "rounds": 30,
    "iterations": 1,
    "outliers": "1;2",
    "data": [2e-5, 2e-5],
}


def bench(key: str) -> dict[str, Any]:
    """One benchmark as pytest-benchmark writes it, with our record."""
    metrics = {"device_time": 2e-5, "peak_bytes": 4096, "launches": 0}
    record = {"key": key, "method": "a1b2", "metrics": metrics, "quantiles": {"device_time": [1e-5, 2e-5]}}
    ids = {"group": None, "name": f"test[{key}]", "fullname": f"t.py::test[{key}]", "params": None, "param": None}
    return {**ids, "extra_info": {"fuseproof": record}, "options": {}, "stats": dict(STATS)}


def sound() -> dict[str, Any]:
    """A document of two benchmarks, as a session hands it over."""
    return {
        "machine_info": {"node": "host"},
        "commit_info": {"id": "abc"},
        "benchmarks": [bench("adam/apex/bf16/1m"), bench("layer_norm/apex/bf16/4096x1024")],
        "datetime": "2026-11-29T14:31:17+00:00",
        "version": "5.3.1",
    }


def stored(night: str = "n1", machine: str = MACHINE) -> dict[str, Any]:
    """The same document as a file holds it."""
    return {**sound(), "fuseproof": {"schema": 1, "night": night, "machine": machine}}


def put(
    history: History, name: str, content: bytes | dict[str, Any] | None = None, machine: str = MACHINE
) -> RunFile | None:
    """Place a file past `save`; without content, a sound run of the night in its name."""
    path = history.root / machine / name
    path.parent.mkdir(parents=True, exist_ok=True)
    file = RunFile.parse(path, machine)
    if content is None:
        assert file is not None
        content = stored(file.night, machine)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return file


def name(number: int, day: int, night: str, uid: str = "aa", label: str = "") -> str:
    """Name a run written at noon of a day of January."""
    return f"{number:04d}_202601{day:02d}T120000Z_{night}_{uid}{label and '_'}{label}.json"


def listing(history: History, machine: str = MACHINE) -> list[str]:
    """Everything in the machine's folder except the lock."""
    return sorted(path.name for path in (history.root / machine).glob("*") if path.suffix != ".lock")


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A history that does not exist yet."""
    return History(tmp_path / "bench_history")


_opened: list[str] | None = None


def _note_open(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(args[0]))


sys.addaudithook(_note_open)  # sees every way to open a file; cannot be removed, hence the switch


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Record the paths that this process opens."""
    global _opened
    seen: list[str] = []
    _opened = seen
    try:
        yield seen
    finally:
        _opened = None


@pytest.fixture
def unprivileged() -> Iterator[History]:
    """A history in a folder that everybody may enter, used by somebody who is not root."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        was = os.geteuid()
        if was == 0:
            os.seteuid(65534)
        yield History(Path(folder) / "bench_history")
        os.seteuid(was)


class TestRoundTrip:
    """What is saved is what is read."""

    def test_document_and_identity_survive(self, history: History) -> None:
        """A saved run reads back equal, with its night, machine, label and benchmarks by key."""
        document = {**sound(), "fuseproof": {"inventory": {"torch": "2.11"}}}

        file = history.save(MACHINE, document, "n1", label="before upgrade!")
        run = history.load(file)

        block = {"schema": 1, "night": "n1", "machine": MACHINE, "inventory": {"torch": "2.11"}}
        assert {**sound(), "fuseproof": block} == run.document
        assert (run.night, run.machine, run.file.label) == ("n1", MACHINE, "before-upgrade")
        assert [file] == history.files(MACHINE)
        assert {each["extra_info"]["fuseproof"]["key"]: each for each in sound()["benchmarks"]} == (
            run.benchmarks_by_key()
        )

    def test_the_callers_document_is_left_alone(self, history: History) -> None:
        """Saving does not change the document that it was given."""
        document = sound()

        history.save(MACHINE, document, "n1")

        assert sound() == document

    def test_file_is_compact_json_with_a_newline(self, history: History) -> None:
        """A file is one line without spaces: indented, as pytest-benchmark writes it, it would be half as big again."""
        data = history.save(MACHINE, sound(), "n1").path.read_bytes()

        assert data.endswith(b"}\n")
        assert json.dumps(stored(), separators=(",", ":")).encode() + b"\n" == data

    def test_missing_root_reads_as_empty(self, history: History) -> None:
        """Before the first save every question has an empty answer and no folder is made."""
        assert (
            history.machines(),
            history.files(MACHINE),
            history.unnamed(MACHINE),
            history.nights(MACHINE),
            history.newest(MACHINE),
        ) == ({}, [], [], {}, ([], []))
        assert not history.root.exists()

    def test_needs_neither_torch_nor_pytest_nor_numpy(self) -> None:
        """The gate reads a history on a laptop that has none of them."""
        code = "import sys, fuseproof.history; print(*{'torch', 'pytest', 'numpy'} & set(sys.modules))"

        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert shown.stdout == "\n"


class TestNames:
    """Names alone say what was written when, and by which night."""

    def test_parts_of_a_name(self, history: History) -> None:
        """Number, UTC time, night, uid and label are read back from a name; the label may hold underscores."""
        file = RunFile.parse(history.root / MACHINE / name(12, 31, "k3x9", "0f", "my_label-1.0"), MACHINE)

        assert file is not None
        assert (
            file.number,
            file.written.isoformat(),
            file.night,
            file.uid,
            file.label,
        ) == (12, "2026-01-31T12:00:00+00:00", "k3x9", "0f", "my_label-1.0")

    @pytest.mark.parametrize(
        "stray",
        [
            "baseline.json",
            "0001_abc.json",
            ".0001_20260101T120000Z_n1_aa.json",
            "001_20260101T120000Z_n1_aa.json",
            "00001_20260101T120000Z_n1_aa.json",
            "0001_20260231T120000Z_n1_aa.json",
            "0001_20260101T120000Z_N1_aa.json",
            "0001_20260101T120000Z_n1.json",
            "0001_20260101T120000Z_n1_aa_.json",
            "0001_20260101T120000Z_n1_aa.json.json",
            "0001_20260101T120000Z_n1_aa_x y.json",
            "\u0660\u0660\u0660\u0661_20260101T120000Z_n1_aa.json",
            "0001_20260101T120000Z_n1_aa\n.json",
            f"{'9' * 100}_20260101T120000Z_n1_aa.json",
        ],
    )
    def test_stray_json_is_named_and_set_aside(self, history: History, stray: str) -> None:
        """A `.json` file with another name is no run, is always reported in one line, and never moves the numbers."""
        put(history, stray, stored())
        put(history, name(1, 1, "n1"))

        runs, set_aside = history.newest(MACHINE)

        assert [run.night for run in runs] == ["n1"]
        assert (
            [stray] == [each.path.name for each in set_aside] == [each.path.name for each in history.unnamed(MACHINE)]
        )
        assert repr(stray)[1:-1] in set_aside[0].reason
        assert "\n" not in set_aside[0].reason
        assert history.save(MACHINE, sound(), "n2").number == 2

    def test_other_files_are_no_business_of_ours(self, history: History) -> None:
        """A README, a lock and a temporary file are neither runs nor set aside."""
        for other in ("README.md", "append.lock", "0001_20260101T120000Z_n1_aa.tmp"):
            put(history, other, b"{")

        assert history.newest(MACHINE) == ([], [])
        assert history.machines() == {}

    @pytest.mark.parametrize(
        ("label", "slug"),
        [
            (None, None),
            ("", None),
            ("nightly", "nightly"),
            ("torch-2.11_a", "torch-2.11_a"),
            ("../up one", "..-up-one"),
            ("é/ü", None),
            ("x" * 300, "x" * 80),
        ],
        ids=["none", "empty", "plain", "allowed-signs", "path", "nothing-allowed", "long"],
    )
    def test_label_is_slugged(self, history: History, label: str | None, slug: str | None) -> None:
        """Whatever was given to --benchmark-save, the file is in the machine's folder and reads back."""
        file = history.save(MACHINE, sound(), "n1", label)

        assert slug == file.label
        assert [file] == history.files(MACHINE)
        assert history.root / MACHINE == file.path.parent

    @pytest.mark.parametrize("night", ["", "N1", "n_1", "n-1", "n1\n", "x" * 33])
    def test_night_that_would_not_read_back_is_refused(self, history: History, night: str) -> None:
        """A night id is 1 to 32 of 0-9 and a-z; nothing is written for another."""
        with pytest.raises(HistoryError, match="nothing saved: the night"):
            history.save(MACHINE, sound(), night)
        assert not history.root.exists()

    @pytest.mark.parametrize("machine", ["", ".", "..", "../elsewhere", "/tmp", ".hidden", "a/b", "a b"])
    def test_machine_cannot_leave_the_history(self, history: History, machine: str) -> None:
        """A machine is one folder name; no other path is read or written."""
        for use in (history.files, history.newest, lambda slug: history.save(slug, sound(), "n1")):
            with pytest.raises(HistoryError, match="is no machine"):
                use(machine)
        assert not history.root.exists()


class TestOrder:
    """Oldest first, by written time, then number, then uid."""

    def test_time_then_number_then_uid(self, history: History) -> None:
        """The time written outranks the number, since merged hosts repeat numbers."""
        wanted = [
            name(12, 1, "n"),
            name(1, 2, "n"),
            name(9999, 2, "n", "a", "label"),
            name(9999, 2, "n", "a0"),  # sorted as text, this would come before the line above
            name(10000, 2, "n"),  # and this before both
            name(1, 3, "n"),
        ]
        for each in reversed(wanted):
            put(history, each)

        assert wanted == [file.path.name for file in history.files(MACHINE)]

    def test_numbers_go_on_past_9999(self, history: History) -> None:
        """After run 9999 comes 10000, then 10001, and they are the newest (pytest-benchmark stops finding them)."""
        put(history, name(9999, 1, "old"))

        numbers = [history.save(MACHINE, sound(), f"n{i}").number for i in range(2)]

        assert numbers == [10000, 10001]
        assert [run.night for run in history.newest(MACHINE, nights=2)[0]] == ["n0", "n1"]
        assert history.select(MACHINE, "10000")[0][0].file.number == 10000

    def test_numbers_that_cannot_be_named_are_refused(self, history: History) -> None:
        """At the end of the numbers a save says so and writes no name that it could not read back."""
        put(history, name(999_999_999, 1, "old"))

        with pytest.raises(HistoryError, match="number 1000000000 is too great for a name; give the file"):
            history.save(MACHINE, sound(), "n1")
        assert len(listing(history)) == 1

    def test_two_hosts_merge(self, history: History, tmp_path: Path) -> None:
        """Two hosts of one kind have equal numbers; their folders merge by copying and every run is kept."""
        other = History(tmp_path / "other_host")
        for night in ("n1", "n2"):
            history.save(MACHINE, sound(), f"{night}a")
            other.save(MACHINE, sound(), f"{night}b")
        for file in other.files(MACHINE):
            target = history.root / MACHINE / file.path.name
            assert not target.exists()
            file.path.rename(target)

        assert sorted(file.number for file in history.files(MACHINE)) == [1, 1, 2, 2]
        assert {"n1a", "n1b", "n2a", "n2b"} == {run.night for run in history.newest(MACHINE, nights=4)[0]}
        assert len(history.select(MACHINE, "1")[0]) == 2
        assert history.save(MACHINE, sound(), "n3").number == 3


class TestNewest:
    """The newest nights that can be read, and a name for each file that cannot."""

    def test_a_night_is_all_its_replicates(self, history: History) -> None:
        """Files of one night belong together, even when another host's night lies between them."""
        for each in (name(1, 1, "old"), name(2, 2, "n1"), name(1, 3, "n2", "bb"), name(3, 4, "n1")):
            put(history, each)

        assert [run.file.number for run in history.newest(MACHINE)[0]] == [2, 3]
        assert [run.night for run in history.newest(MACHINE, nights=2)[0]] == ["n1", "n2", "n1"]
        assert list(history.nights(MACHINE)) == ["old", "n2", "n1"]
        assert history.newest(MACHINE, nights=0)[0] == []

    def test_walks_back_past_what_it_cannot_read(self, history: History) -> None:
        """An unreadable newest night is named and the one before it takes its place; a half-readable one counts."""
        put(history, name(1, 1, "n1"))
        put(history, name(2, 2, "n2"))
        put(history, name(3, 3, "n3"), b"")
        put(history, name(4, 4, "n4"))
        put(history, name(5, 4, "n4"), b'{"benchmarks": [')

        runs, set_aside = history.newest(MACHINE, nights=2)

        assert [run.file.number for run in runs] == [2, 4]
        assert {name(3, 3, "n3"), name(5, 4, "n4")} == {each.path.name for each in set_aside}
        for each in set_aside:
            assert str(each.path) in each.reason

    def test_listing_opens_no_file(self, history: History) -> None:
        """1,200 runs are listed, counted and grouped by name; the newest night opens its own files and no other."""
        put(history, name(1, 1, "n0"))
        for i in range(1200):
            (history.root / MACHINE / name(i + 2, 2, f"n{i // 3}", f"u{i}")).touch()
        put(history, name(1203, 3, "last"))
        stray = history.root / MACHINE / "stray.json"
        stray.touch()

        with opened_files() as seen:
            counts = history.machines(), len(history.files(MACHINE)), len(history.nights(MACHINE))
            strays = history.unnamed(MACHINE)
        assert counts == ({MACHINE: 1202}, 1202, 401)
        assert [stray] == [each.path for each in strays]
        assert [path for path in seen if str(history.root) in path] == []

        with opened_files() as seen:
            runs, _ = history.newest(MACHINE)
        assert [run.night for run in runs] == ["last"]
        assert [str(runs[0].file.path)] == [path for path in seen if str(history.root) in path]


@dataclass(frozen=True)
class Poison:
    """A value that a document must not hold, where it is put, and what the refusal names."""

    id: str
    at: tuple[str | int, ...]
    value: Any
    says: str

    def into(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the document with the value in its place; DELETE takes the place out."""
        document = copy.deepcopy(document)
        *parents, last = self.at
        holder: Any = document
        for step in parents:
            holder = holder[step]
        if self.value is DELETE:
            del holder[last]
        else:
            holder[last] = self.value
        return document


DELETE = object()
FIRST = ("benchmarks", 0)
RECORD = (*FIRST, "extra_info", "fuseproof")
MEDIAN = r"benchmarks\[0\]\.stats\.median of 'adam/apex/bf16/1m' is "
POISONS = [
    Poison("nan-time", (*FIRST, "stats", "median"), math.nan, MEDIAN + "nan"),
    Poison("infinite-time", (*FIRST, "stats", "median"), math.inf, MEDIAN + "inf"),
    Poison("negative-time", (*FIRST, "stats", "median"), -1e-9, MEDIAN + "-1e-09"),
    Poison("text-time", (*FIRST, "stats", "median"), "2e-5", MEDIAN + "'2e-5'"),
    Poison("bool-time", (*FIRST, "stats", "median"), True, MEDIAN + "True"),
    Poison("null-time", (*FIRST, "stats", "median"), None, MEDIAN + "None"),
    Poison("time-beyond-floats", (*FIRST, "stats", "median"), 10**400, MEDIAN + "a huge integer"),
    Poison("missing-time", (*FIRST, "stats", "median"), DELETE, r"stats\.median .*is missing"),
    Poison("unknown-stat-nan", (*FIRST, "stats", "p99"), math.nan, r"stats\.p99 .*nan"),
    Poison("round-negative", (*FIRST, "stats", "data", 1), -1.0, r"stats\.data\[1\]"),
    Poison("outliers-number", (*FIRST, "stats", "outliers"), 3, r"stats\.outliers"),
    Poison("outliers-missing", (*FIRST, "stats", "outliers"), DELETE, r"stats\.outliers"),
    Poison("stats-list", (*FIRST, "stats"), [], r"benchmarks\[0\]\.stats is a list"),
    Poison("metric-nan", (*RECORD, "metrics", "peak_bytes"), math.nan, r"metrics\.peak_bytes of .* is nan"),
    Poison("metric-negative", (*RECORD, "metrics", "launches"), -1, r"metrics\.launches of .* is -1"),
    Poison("metric-text", (*RECORD, "metrics", "launches"), "3", r"metrics\.launches of .* is '3'"),
    Poison("metric-bool", (*RECORD, "metrics", "launches"), False, r"metrics\.launches of .* is False"),
    Poison("metric-odd-name", (*RECORD, "metrics", "a\nb\ud800"), -1, r"metrics\['a\\nb\\ud800'\]"),
    Poison("time-list", (*FIRST, "stats", "median"), [], MEDIAN + "a list, not a number"),
    Poison("metric-list", (*RECORD, "metrics", "launches"), [3], r"metrics\.launches of .* is a list, not a number"),
    Poison("metric-object", (*RECORD, "metrics", "launches"), {}, r"metrics\.launches of .* is a dict, not a number"),
    Poison("metrics-list", (*RECORD, "metrics"), [1], r"metrics is a list"),
    Poison("metrics-missing", (*RECORD, "metrics"), DELETE, r"fuseproof\.metrics is missing"),
    Poison(
        "quantile-nan", (*RECORD, "quantiles", "device_time", 1), math.nan, r"quantiles\.device_time\[1\] of .* nan"
    ),
    Poison("quantile-text", (*RECORD, "quantiles"), "0.5", r"quantiles of .* is '0.5'"),
    Poison("key-missing", (*RECORD, "key"), DELETE, r"fuseproof\.key is missing"),
    Poison("key-number", (*RECORD, "key"), 3, r"fuseproof\.key is 3"),
    Poison("key-empty", (*RECORD, "key"), "", r"fuseproof\.key is empty"),
    Poison(
        "key-twice", (*RECORD, "key"), "layer_norm/apex/bf16/4096x1024", r"benchmarks\[1\] and benchmarks\[0\] both"
    ),
    Poison(
        "key-of-two-lines", (*RECORD, "key"), "op/\n\x1b[31m", r"fuseproof\.key is 'op/\\n\\x1b\[31m', which no line"
    ),
    Poison("key-of-half-a-character", (*RECORD, "key"), "op/\ud800", r"fuseproof\.key is 'op/\\ud800', which no line"),
    Poison("key-of-the-suite", (*RECORD, "key"), "*", r"fuseproof\.key is '\*', which stands for the whole suite"),
    Poison("metric-without-a-name", (*RECORD, "metrics", ""), 1, r"metrics of .* has the name '', which no line"),
    Poison(
        "metric-of-two-lines", (*RECORD, "metrics", "a\nb"), 1, r"metrics of .* has the name 'a\\nb', which no line"
    ),
    Poison("half-a-character", ("machine_info", "node"), "\udfff", r"machine_info\.node is '\\udfff', which has half"),
    Poison("half-a-key", ("machine_info", "\udfff"), 1, "machine_info has a key that is not a string of whole"),
    Poison("settings-list", ("fuseproof", "settings"), [], r"fuseproof\.settings is a list, not a dict"),
    Poison("threads-text", ("fuseproof", "settings"), {"threads": "8"}, r"settings\.threads is '8', not a number of"),
    Poison("threads-zero", ("fuseproof", "settings"), {"threads": 0}, r"settings\.threads is 0, not a number of"),
    Poison("method-missing", (*RECORD, "method"), DELETE, r"fuseproof\.method is missing"),
    Poison("invalid-text", (*RECORD, "invalid"), "throttled", r"fuseproof\.invalid is 'throttled', not a list"),
    Poison("invalid-number", (*RECORD, "invalid"), [3], r"fuseproof\.invalid is not a list of texts"),
    Poison("gpu-text", (*RECORD, "gpu"), "H200", r"fuseproof\.gpu is 'H200'"),
    Poison("clock-text", (*RECORD, "gpu"), {"spin_sm_clock_mhz": "1980"}, r"gpu\.spin_sm_clock_mhz of .* is '1980'"),
    Poison("clock-list", (*RECORD, "gpu"), {"spin_sm_clock_mhz": []}, r"gpu\.spin_sm_clock_mhz of .* is a list"),
    Poison("kernels-hash-number", (*RECORD, "kernels_hash"), 3, r"fuseproof\.kernels_hash is 3, not a str"),
    Poison("record-missing", RECORD, DELETE, r"extra_info\.fuseproof is None"),
    Poison("name-missing", (*FIRST, "fullname"), DELETE, r"benchmarks\[0\]\.fullname is missing"),
    Poison("group-number", (*FIRST, "group"), 1, r"benchmarks\[0\]\.group is 1"),
    Poison("benchmark-text", FIRST, "x", r"benchmarks\[0\] is 'x'"),
    Poison("benchmarks-object", ("benchmarks",), {}, "benchmarks is a dict"),
    Poison("benchmarks-empty", ("benchmarks",), [], "benchmarks is empty"),
    Poison("benchmarks-missing", ("benchmarks",), DELETE, "benchmarks is missing"),
    Poison("machine-info-missing", ("machine_info",), DELETE, "machine_info is missing"),
    Poison("commit-info-text", ("commit_info",), "abc", "commit_info is 'abc'"),
    Poison("datetime-missing", ("datetime",), DELETE, "datetime is missing"),
    Poison("version-number", ("version",), 5.3, r"version is 5\.3"),
    Poison("nan-anywhere", ("machine_info", "clocks"), [1, {"sm": math.nan}], r"machine_info\.clocks\[1\]\.sm is nan"),
    Poison("too-deep", ("machine_info", "x"), json.loads("[" * 40 + "]" * 40), "more than 32 deep"),
    Poison("block-list", ("fuseproof",), [], "fuseproof is a list"),
    Poison("schema-text", ("fuseproof", "schema"), "1", r"fuseproof\.schema is '1'"),
    Poison("schema-zero", ("fuseproof", "schema"), 0, r"fuseproof\.schema is 0"),
    Poison("schema-bool", ("fuseproof", "schema"), True, r"fuseproof\.schema is True"),
    Poison("schema-newer", ("fuseproof", "schema"), 2, "written by a newer fuseproof"),
    Poison("brought-number", ("fuseproof", "brought"), [3], r"fuseproof\.brought is not a list of texts"),
    Poison("cpu-model-list", ("fuseproof", "cpu_model"), [], r"fuseproof\.cpu_model is a list, not a str"),
    Poison("board-number", ("fuseproof", "board"), 7, r"fuseproof\.board is 7"),
    Poison("power-limit-text", ("fuseproof", "power_limit_w"), "700", r"fuseproof\.power_limit_w is '700'"),
    Poison("software-list", ("fuseproof", "software"), [], r"fuseproof\.software is a list, not a dict"),
    Poison("other-machine", ("fuseproof", "machine"), "a100", r"fuseproof\.machine is 'a100', not 'h200-sxm'"),
    Poison("other-night", ("fuseproof", "night"), "n2", r"fuseproof\.night is 'n2'"),
]


class TestPoison:
    """Nothing that would be a wrong baseline is written, or believed if somebody else wrote it."""

    @pytest.mark.parametrize("poison", POISONS, ids=lambda poison: poison.id)
    def test_refused_at_write_and_named_at_read(self, history: History, poison: Poison) -> None:
        """One check serves both: saving writes nothing, reading sets aside, and each names where and the key."""
        document = poison.into(stored())
        with pytest.raises(HistoryError, match=rf"nothing saved: .*{poison.says}") as refused:
            history.save(MACHINE, document, "n1")
        assert str(history.root / MACHINE) in str(refused.value)
        assert not history.root.exists()

        put(history, name(1, 1, "n1"), document)
        runs, set_aside = history.newest(MACHINE)
        assert runs == []
        assert re.search(poison.says, set_aside[0].reason)
        assert name(1, 1, "n1") in set_aside[0].reason
        assert set_aside[0].reason.isprintable()

    def test_newer_schema_asks_for_an_upgrade(self, history: History) -> None:
        """A newer document is judged by its schema before its shape, and must not be deleted."""
        put(history, name(1, 1, "n1"), {"fuseproof": {"schema": 7}})

        reason = history.newest(MACHINE)[1][0].reason

        assert "written by a newer fuseproof; upgrade fuseproof" in reason
        assert "delete" not in reason

    @pytest.mark.parametrize(
        "value", [{1: 2}, {"x": object()}, {"x": b"bytes"}, {"x": {1, 2}}], ids=["int-key", "object", "bytes", "set"]
    )
    def test_what_json_cannot_hold_is_refused(self, history: History, value: Any) -> None:
        """An object, bytes or a key that is not text is a HistoryError that names it, not a TypeError."""
        with pytest.raises(HistoryError, match=r"nothing saved: machine_info(\.x| has a key)"):
            history.save(MACHINE, {**sound(), "machine_info": value}, "n1")

    @pytest.mark.parametrize("at", [("machine_info",), (*RECORD, "quantiles")], ids=["machine-info", "quantiles"])
    def test_document_that_contains_itself_is_refused(self, history: History, at: tuple[str | int, ...]) -> None:
        """A circular document ends in a HistoryError, not in a RecursionError."""
        circle: dict[str, Any] = {}
        circle["self"] = circle
        document = sound()
        holder: Any = document
        for step in at[:-1]:
            holder = holder[step]
        holder[at[-1]] = circle

        with pytest.raises(HistoryError, match=rf"nothing saved: .*{at[-1]}\.self\.self"):
            history.save(MACHINE, document, "n1")

    def test_zero_is_a_number(self, history: History) -> None:
        """No launches and no bytes are measurements."""
        document = sound()
        document["benchmarks"][0]["extra_info"]["fuseproof"]["metrics"] = {"launches": 0, "peak_bytes": 0.0}

        assert history.load(history.save(MACHINE, document, "n1")).night == "n1"


@dataclass(frozen=True)
class Garbage:
    """File content that is no document."""

    id: str
    data: bytes
    says: str


GARBAGE = [
    Garbage("empty", b"", "is empty"),
    Garbage("truncated", json.dumps(stored()).encode()[:700], "cut short"),
    Garbage("binary", bytes(range(256)), "is not JSON"),
    Garbage("zeros", bytes(4096), "is not JSON"),
    Garbage("utf-16", json.dumps(stored()).encode("utf-16"), "is not JSON"),
    Garbage("list", b"[1, 2]", "the document is a list"),
    Garbage("number", b"3", "the document is 3"),
    Garbage("nan", b"NaN", "the document is nan"),
    Garbage("native", json.dumps(sound()).encode(), "no fuseproof block"),
    Garbage("deep", b"[" * 100_000, "is not JSON"),
    Garbage("digits", b"[" + b"9" * 5000 + b"]", "is not JSON"),
    Garbage("conflict", b"<<<<<<< HEAD\n" + json.dumps(stored()).encode(), "is not JSON"),
]


class TestGarbage:
    """Whatever lies in the folder, reading ends in a sentence."""

    @pytest.mark.parametrize("garbage", GARBAGE, ids=lambda garbage: garbage.id)
    def test_content_that_is_no_run(self, history: History, garbage: Garbage) -> None:
        """The file is named, set aside, and the night before it is used."""
        put(history, name(1, 1, "n1"))
        put(history, name(2, 2, "n2"), garbage.data)

        runs, set_aside = history.newest(MACHINE)

        assert [run.night for run in runs] == ["n1"]
        assert [name(2, 2, "n2")] == [each.path.name for each in set_aside]
        assert f"{set_aside[0].path}: " in set_aside[0].reason
        assert garbage.says in set_aside[0].reason

    @pytest.mark.parametrize(
        "make",
        [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path.name)],
        ids=["folder", "pipe", "dangling-link", "link-to-itself"],
    )
    def test_things_that_are_no_files(self, history: History, make: Callable[[Path], None]) -> None:
        """A folder, a pipe or a broken link is set aside, under a run's name or another, and does not block."""
        put(history, name(1, 1, "n1"))
        for each in (name(2, 2, "n2"), "x.json"):
            make(history.root / MACHINE / each)

        runs, set_aside = history.newest(MACHINE)

        assert [run.night for run in runs] == ["n1"]
        assert ["x.json", name(2, 2, "n2")] == [each.path.name for each in set_aside]

    def test_file_that_may_not_be_read(self, unprivileged: History) -> None:
        """Missing permission is a reason like any other."""
        put(unprivileged, name(1, 1, "n1"))
        (unprivileged.root / MACHINE / name(1, 1, "n1")).chmod(0)

        runs, set_aside = unprivileged.newest(MACHINE)

        assert runs == []
        assert "cannot be read (Permission denied)" in set_aside[0].reason

    def test_folder_that_may_not_be_listed(self, unprivileged: History) -> None:
        """A folder that hides its names cannot pass for an empty one."""
        put(unprivileged, name(1, 1, "n1"))
        (unprivileged.root / MACHINE).chmod(0)

        for use in (unprivileged.files, unprivileged.newest, lambda _: unprivileged.machines()):
            with pytest.raises(HistoryError, match=rf"{MACHINE}: cannot be listed \(Permission denied\)"):
                use(MACHINE)
        (unprivileged.root / MACHINE).chmod(0o700)
        for mode in (0, 0o444):
            unprivileged.root.chmod(mode)
            with pytest.raises(HistoryError, match=r"bench_history.*: cannot be listed \(Permission denied\)"):
                unprivileged.machines()
        unprivileged.root.chmod(0o700)

    def test_machine_folder_that_leads_nowhere(self, history: History) -> None:
        """A link in a circle among the machines is a sentence; a dangling one is no machine."""
        put(history, name(1, 1, "n1"))
        (history.root / "dangling").symlink_to("nowhere")
        assert history.machines() == {MACHINE: 1}

        (history.root / "circle").symlink_to("circle")
        with pytest.raises(HistoryError, match=r"bench_history: cannot be listed \(Too many levels"):
            history.machines()

    def test_a_link_to_itself(self, history: History) -> None:
        """As the history it cannot be listed, and a run that lies elsewhere is read all the same."""
        history.save("h200", sound(), "n1")
        link = history.root.parent / "link"
        link.symlink_to(link)
        with pytest.raises(HistoryError, match=r"link: cannot be listed \(Too many levels of symbolic links\)"):
            History(link).machines()
        run = history.files("h200")[0]
        assert [run.path] == [each.file.path for each in History(link).select("h200", str(run.path))[0]]

    def test_root_that_nobody_can_name(self) -> None:
        """The folder of a configuration may hold anything."""
        with pytest.raises(HistoryError, match=r"'a\\x00b': cannot be listed"):
            History(Path("a\0b")).machines()

    def test_root_that_is_a_file(self, history: History) -> None:
        """A file in the history's place cannot pass for an empty history."""
        history.root.write_text("")

        for use in (history.machines, lambda: history.newest(MACHINE), lambda: history.save(MACHINE, sound(), "n1")):
            with pytest.raises(HistoryError, match=r"bench_history.*: cannot be (listed|written)"):
                use()

    @given(st.binary(max_size=400))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_bytes(self, tmp_path: Path, data: bytes) -> None:
        """No bytes raise anything but HistoryError."""
        file = put(History(tmp_path), name(1, 1, "n1"), data)
        assert file is not None

        with pytest.raises(HistoryError):
            History.load(file)

    @given(st.data())
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_value_anywhere(self, tmp_path: Path, data: st.DataObject) -> None:
        """Any JSON value anywhere in a document is read or refused in a sentence, and writing agrees with reading."""
        numbers = st.integers() | st.floats() | st.just(10**310)
        json_values = st.recursive(
            st.none() | st.booleans() | numbers | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
            max_leaves=6,
        )
        document: Any = stored()
        if place := data.draw(st.sampled_from([(), *_places(document)])):
            document = Poison("", place, data.draw(st.just(DELETE) | json_values), "").into(document)
        else:
            document = data.draw(json_values)
        history = History(tmp_path)
        file = put(history, name(1, 1, "n1"), json.dumps(document).encode())
        assert file is not None

        read = _refusal(lambda: history.load(file))
        assert read is None or read.isprintable()
        if isinstance(document, dict):
            written = _refusal(lambda: history.save(MACHINE, document, "n1"))
            # Saving completes a block that lacks something; reading must find it whole.
            block = document.get("fuseproof", {})
            completed = isinstance(block, dict) and not {"schema", "night", "machine"} <= set(block)
            assert (read is None) == (written is None) or completed


def _refusal(use: Callable[[], object]) -> str | None:
    try:
        use()
    except HistoryError as error:
        return str(error)
    return None


def _places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in steps:
        yield (*at, step)
        yield from _places(child, (*at, step))


KILLED = """
import json, os, signal, sys
from pathlib import Path
from fuseproof.history import History

steps = 0
def counted(real):
    def step(*args):
        global steps
        steps += 1
        if steps == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args)
    return step
os.fsync, os.link = counted(os.fsync), counted(os.link)
History(Path(sys.argv[1])).save(sys.argv[3], json.loads(sys.stdin.read()), "killed")
"""

SAVER = """
import json, sys, time
from pathlib import Path
from fuseproof.history import History

root, go, night, saves, machine = sys.argv[1:]
document = json.loads(sys.stdin.read())
while not Path(go).exists():
    time.sleep(0.001)
for _ in range(int(saves)):
    print(History(Path(root)).save(machine, document, night).path.name)
"""

HOLDER = """
import filelock, sys

lock = filelock.FileLock(sys.argv[1])
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


class TestInterrupted:
    """A save that does not end leaves the history as it was, and the next one works."""

    @pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
    @pytest.mark.parametrize("calls", [("fsync", 1), ("link", 1), ("fsync", 2)], ids=["data", "link", "folder"])
    def test_failure_at_each_step(
        self, history: History, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, int], error: BaseException
    ) -> None:
        """A full disk or Ctrl-C at any step leaves the runs that were there, and no other file."""
        history.save(MACHINE, sound(), "n1")
        before = listing(history)
        function, fail_at = calls
        real, seen = getattr(os, function), []

        def failing(*args: Any) -> Any:
            seen.append(args)
            if len(seen) == fail_at:
                raise error
            return real(*args)

        monkeypatch.setattr(os, function, failing)
        wanted = HistoryError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(wanted, match="No space left on device" if wanted is HistoryError else None):
            history.save(MACHINE, sound(), "n2")
        monkeypatch.undo()

        assert before == listing(history)
        assert history.save(MACHINE, sound(), "n3").number == 2

    def test_disk_that_fills_up_in_the_middle(self, history: History) -> None:
        """A write that is really cut short by the system leaves nothing behind."""
        history.save(MACHINE, sound(), "n1")
        before = listing(history)
        was = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, was[1]))
        try:
            with pytest.raises(HistoryError, match=r"cannot be written \(File too large\); nothing saved"):
                history.save(MACHINE, sound(), "n2")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, was)

        assert before == listing(history)

    @pytest.mark.parametrize(
        ("step", "nights"), [(1, ["n1"]), (2, ["n1"]), (3, ["n1", "killed"])], ids=["data", "link", "folder"]
    )
    def test_kill_9_at_each_step(self, history: History, step: int, nights: list[str]) -> None:
        """A killed save leaves whole runs and a temporary file; the next neither waits for its lock nor counts it."""
        history.save(MACHINE, sound(), "n1")

        killed = subprocess.run(
            [sys.executable, "-c", KILLED, str(history.root), str(step), MACHINE],
            input=json.dumps(sound()).encode(),
            check=False,
        )

        assert killed.returncode == -9
        assert [".json"] * len(nights) + [".tmp"] == sorted(Path(each).suffix for each in listing(history))
        runs, set_aside = history.newest(MACHINE, nights=9)
        assert (sorted(nights), []) == (sorted(run.night for run in runs), set_aside)
        started = time.monotonic()
        assert len(nights) + 1 == history.save(MACHINE, sound(), "n3").number
        assert time.monotonic() - started < 5

    def test_temporary_files_go_after_an_hour(self, history: History) -> None:
        """A save removes what a killed one left, leaves a younger one to its writer, and minds no folder."""
        for each in ("old.tmp", "young.tmp"):
            put(history, each, b"{")
        (history.root / MACHINE / "folder.tmp").mkdir()
        for each in ("old.tmp", "folder.tmp"):
            os.utime(history.root / MACHINE / each, (time.time() - 3700,) * 2)

        file = history.save(MACHINE, sound(), "n1")

        assert sorted([file.path.name, "folder.tmp", "young.tmp"]) == listing(history)

    def test_never_overwrites(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even with a name that is taken, the file that is there stays as it is."""
        taken = history.save(MACHINE, sound(), "n1").path
        before = taken.read_bytes()
        monkeypatch.setattr(history_module, "new_name", lambda *_: taken.name)

        for link in (os.link, _no_hard_links):
            monkeypatch.setattr(os, "link", link)
            with pytest.raises(HistoryError, match="nothing saved"):
                history.save(MACHINE, sound(), "n1", label="other")
        assert before == taken.read_bytes()
        assert [taken.name] == listing(history)

    def test_file_system_without_hard_links(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a mount refuses hard links the run is saved all the same."""
        monkeypatch.setattr(os, "link", _no_hard_links)

        file = history.save(MACHINE, sound(), "n1")

        assert [file.path.name] == listing(history)
        assert history.load(file).night == "n1"

    def test_root_that_may_not_be_written(self, unprivileged: History) -> None:
        """A read-only history is a sentence with the folder and the mend, not a traceback."""
        unprivileged.save(MACHINE, sound(), "n1")
        (unprivileged.root / MACHINE).chmod(0o555)

        for machine in (MACHINE, "new-machine"):
            unprivileged.root.chmod(0o555)
            with pytest.raises(HistoryError, match=rf"{machine}: cannot be written \(Permission denied\).*writable"):
                unprivileged.save(machine, sound(), "n2")
        assert len(unprivileged.files(MACHINE)) == 1
        unprivileged.root.chmod(0o755)
        (unprivileged.root / MACHINE).chmod(0o755)

    def test_files_are_readable_by_others(self, history: History) -> None:
        """A run has the permissions of any new file, not the private ones of a temporary file."""
        was = os.umask(0o022)
        try:
            assert history.save(MACHINE, sound(), "n1").path.stat().st_mode & 0o777 == 0o644
        finally:
            os.umask(was)


def _no_hard_links(*_: object) -> None:
    raise OSError(errno.EPERM, "Operation not permitted")


class TestWriters:
    """Several processes save at once."""

    @pytest.mark.parametrize(("writers", "saves"), [(2, 10), (8, 4)])
    def test_nothing_is_lost(self, history: History, tmp_path: Path, writers: int, saves: int) -> None:
        """Every save of every process is there, whole, under a number of its own."""
        go = tmp_path / "go"
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", SAVER, str(history.root), str(go), f"n{i}", str(saves), MACHINE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(writers)
        ]
        go.touch()
        printed = [process.communicate(json.dumps(sound()), timeout=60)[0].split() for process in processes]

        files = history.files(MACHINE)
        assert sorted(itertools.chain(*printed)) == sorted(file.path.name for file in files) == listing(history)
        assert list(range(1, writers * saves + 1)) == sorted(file.number for file in files)
        runs, set_aside = history.newest(MACHINE, nights=writers)
        assert (writers * saves, []) == (len(runs), set_aside)

    def test_lock_that_stays_held(self, history: History, monkeypatch: pytest.MonkeyPatch) -> None:
        """A lock that is not freed in time is named; nothing is written, reading goes on."""
        history.save(MACHINE, sound(), "n1")
        monkeypatch.setattr(history_module, "LOCK_TIMEOUT_S", 0.1)
        lock = history.root / MACHINE / "append.lock"

        child = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            child.stdout.readline()
            with pytest.raises(HistoryError, match=rf"{re.escape(str(lock))}: another process held this lock"):
                history.save(MACHINE, sound(), "n2")
            assert [run.night for run in history.newest(MACHINE)[0]] == ["n1"]
            child.kill()

        assert history.save(MACHINE, sound(), "n2").number == 2
        with filelock.FileLock(lock, timeout=0):
            pass


@pytest.fixture
def three_nights(history: History) -> History:
    """Three nights of one run on this machine, and one run on another."""
    for i in (1, 2, 3):
        put(history, name(i, i, f"n{i}", label="before" if i == 2 else ""))
    put(history, name(7, 7, "n7"), machine="a100-pcie")
    (history.root / "README.md").touch()
    return history


class TestSelect:
    """What the user named, or a sentence that says what is there."""

    @pytest.mark.parametrize(
        ("spec", "numbers"),
        [
            ("3", [3]),
            ("0003", [3]),
            ("00003", [3]),
            ("*", [1, 2, 3]),
            ("*_before.json", [2]),
            ("*_n[12]_*", [1, 2]),
            ("0002_2026", [2]),
            (f"{MACHINE}/0002*", [2]),
            (f"{MACHINE}/2", [2]),
            ("*/*", [1, 2, 3]),
        ],
    )
    def test_number_and_glob(self, three_nights: History, spec: str, numbers: list[int]) -> None:
        """A number is a number, not a prefix; a glob may stop before the end of the name; other machines never join."""
        runs, set_aside = three_nights.select(MACHINE, spec)

        assert (numbers, []) == ([run.file.number for run in runs], set_aside)
        assert {MACHINE} == {run.machine for run in runs}

    def test_number_is_no_prefix(self, three_nights: History) -> None:
        """Run 1 is not run 10."""
        put(three_nights, name(10, 9, "n10"))
        put(three_nights, name(10000, 9, "n11"))

        assert [run.file.number for run in three_nights.select(MACHINE, "1")[0]] == [1]
        assert [run.file.number for run in three_nights.select(MACHINE, "10")[0]] == [10]

    def test_path_in_and_outside_the_history(
        self, three_nights: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A path works from anywhere, absolute or relative, for a file of this machine."""
        inside = three_nights.files(MACHINE)[0].path
        outside = tmp_path / "mail" / inside.name
        outside.parent.mkdir()
        outside.write_bytes(inside.read_bytes())
        monkeypatch.chdir(tmp_path)

        for path in (inside, outside, outside.relative_to(tmp_path)):
            runs, set_aside = three_nights.select(MACHINE, str(path))
            assert ([(run.file.number, run.machine) for run in runs], set_aside) == ([(1, MACHINE)], [])

    def test_named_file_that_cannot_be_used_is_set_aside(self, three_nights: History, tmp_path: Path) -> None:
        """A truncated, foreign or misnamed file is matched, so it comes back with its reason, not as "nothing"."""
        put(three_nights, name(4, 4, "n4"), b"{")
        put(three_nights, "0005_native.json", sound())
        foreign = tmp_path / name(7, 7, "n7")
        foreign.write_text(json.dumps(stored("n7", "a100-pcie")))

        for spec, reason in {
            "4": "is not JSON",
            "5": "its name is not a run's",
            "*_native*": "its name is not a run's",
            str(three_nights.root / MACHINE / "0005_native.json"): "its name is not a run's",
            str(foreign): "fuseproof.machine is 'a100-pcie', not 'h200-sxm'; foreign hardware is not compared",
        }.items():
            runs, set_aside = three_nights.select(MACHINE, spec)
            assert runs == []
            assert [reason in each.reason for each in set_aside] == [True]

    @pytest.mark.parametrize(
        "spec", ["9", "no-such-label", "a100-pcie/3", "tests/kernels", "", "x" * 5000, "[", f"{MACHINE}/"]
    )
    def test_nothing_matches(self, three_nights: History, spec: str) -> None:
        """The sentence says what this machine has; runs of others that would not match either are no help."""
        with pytest.raises(HistoryError) as refused:
            three_nights.select(MACHINE, spec)

        there = f"{MACHINE} has 3 run(s), {name(1, 1, 'n1')} to {name(3, 3, 'n3')}"
        assert f"no run of this machine matches {spec!r}: {there}; give" in str(refused.value)

    @pytest.mark.parametrize("spec", ["7", "*_n7_*", "a100-pcie/0007*"])
    def test_only_another_machine_matches(self, three_nights: History, spec: str) -> None:
        """Foreign hardware is refused by name."""
        with pytest.raises(HistoryError, match=r"foreign hardware is not compared: a100-pcie \(1 run\(s\)\); give"):
            three_nights.select(MACHINE, spec)

    def test_path_to_another_machines_run(self, three_nights: History) -> None:
        """A path into another machine's folder is refused by name too."""
        with pytest.raises(HistoryError, match=r"is a run of 'a100-pcie' and .* foreign hardware is not compared"):
            three_nights.select(MACHINE, str(three_nights.files("a100-pcie")[0].path))

    def test_machine_without_runs(self, three_nights: History) -> None:
        """A new machine is told that it has none and which others have, at most five of them."""
        for i in range(6):
            put(three_nights, name(1, 1, "n1"), machine=f"b100-{i}")

        with pytest.raises(
            HistoryError, match=r"b200 has no run yet, .*: b100-0 .*, b100-4 \(1 run\(s\)\) and 2 more; give"
        ):
            three_nights.select("b200", "1")

    @given(st.text(max_size=12))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    def test_any_text(self, three_nights: History, spec: str) -> None:
        """No text raises anything but HistoryError."""
        with suppress(HistoryError):
            three_nights.select(MACHINE, spec)


class TestPytestBenchmark:
    """The files stay pytest-benchmark's own."""

    def test_its_command_compares_what_we_saved(self, history: History, tmp_path: Path) -> None:
        """A document that pytest-benchmark really wrote is accepted, and `pytest-benchmark compare` reads it back."""
        (tmp_path / "test_it.py").write_text(
            "def test_it(benchmark):\n"
            "    benchmark.pedantic(sum, ([1],), rounds=3)\n"
            "    benchmark.extra_info['fuseproof'] = {'key': 'k', 'method': 'm', 'metrics': {'host_time': 1e-6}}\n"
        )
        command = [sys.executable, "-m", "pytest", "-p", "no:fuseproof", "-p", "no:cacheprovider", "-c", os.devnull]
        run_it = [*command, "--rootdir", ".", "--benchmark-json", "out.json", "test_it.py"]
        timed = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
        subprocess.run(run_it, cwd=tmp_path, env=timed, check=True, capture_output=True)
        document = json.loads((tmp_path / "out.json").read_text())
        put(history, name(9999, 1, "old"))
        saved = [history.save(MACHINE, document, "n1"), history.save(MACHINE, document, "n2", label="after.upgrade")]

        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # it loads pytest's plugins, ours too
        compare = [sys.executable, "-m", "pytest_benchmark", "--storage", str(history.root), "compare"]
        shown = subprocess.run([*compare, "*"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False)

        assert shown.returncode == 0, shown.stderr
        assert [file.number for file in saved] == [10000, 10001]
        # It shows the start of a file's name beside each benchmark.
        assert len(re.findall(r"^test_it \(.*1000[01]_", shown.stdout, re.MULTILINE)) == 2, shown.stdout
        assert "Failed to load" not in shown.stdout + shown.stderr
