"""What was said of a night stays with it: verdicts are remembered, never lost in silence, and found fast."""

import itertools
import json
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuseproof import index as index_module
from fuseproof.digest import digest_record, digest_run
from fuseproof.gate.ledger import Ledger
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.history import VERDICTS, History, HistoryError
from fuseproof.verdicts.controls import Unchanged
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason, in_percent

FLAT = (0.0,) * 12
SLOW = (2.5, *FLAT[1:])
OTHERS = {"launches": 3, "peak_bytes": 4096, "host_time_ns": 5e4, "kernels_hash": "c0ffee"}
HELD = Mark(Outcome.INCONCLUSIVE, (Reason.HELD,))


def verdict_files(book: Any) -> list[Path]:
    """Return the files of verdicts, oldest first."""
    return [file.path for file in book.history.records(book.machine)]


def plain(night: Night) -> dict[str, Any]:
    """Return all that a night holds, in one form."""
    arms = {name: [dict(run) for run in getattr(night, name)] for name in ("screening", "confirming", "trusted")}
    return {**vars(replace(night)), **arms, "invalid": {key: [*why] for key, why in night.invalid.items()}}


# --- nights ---


def test_a_night_is_what_its_documents_say(book: Any) -> None:
    """From the index come the same values, of the same types, as from the documents themselves."""
    runs = [
        book.run([number, 0.5], others=OTHERS, day=number, brought=["mine"], selection="full") for number in range(3)
    ]
    runs[1]["benchmarks"][1]["extra_info"]["fuseproof"]["invalid"] = ["throttled"]
    runs[2]["fuseproof"]["board"] = "another"
    book.save("n1", *runs)
    (stored,) = book.ledger.nights()
    wanted = book.ledger.night("n1", runs)

    assert plain(wanted) == plain(stored)
    assert [int, str] == [type(stored.screening[0][book.pair(0, name)]) for name in ("launches", "kernels_hash")]
    assert (wanted.day, wanted.selection, wanted.brought) == ("2026-01-01", "full", frozenset({"mine"}))
    assert wanted.boards == {"b0a4d1e5", "another"}


def test_nights_before_one(book: Any) -> None:
    """Tonight's own runs, saved already, are no part of its history."""
    book.calm(3)

    assert [night.name for night in book.ledger.nights(before="n2")] == ["n0", "n1"]
    assert [night.name for night in book.ledger.nights(before="tonight")] == ["n0", "n1", "n2"]


def test_a_history_that_does_not_exist_is_empty(book: Any) -> None:
    """And nothing is created by looking at it."""
    assert book.ledger.nights() == []
    assert not book.root.exists()


def test_other_machines_are_not_looked_at(book: Any) -> None:
    """Foreign hardware is never a baseline."""
    replace(book, machine="a100").calm(8)

    assert book.ledger.nights() == []
    assert {Outcome.NEW} == {verdict.outcome for verdict in book.session("tonight", [book.run()]).verdicts}


# --- what is remembered ---


def test_marks_are_remembered(book: Any) -> None:
    """Verdicts, confirming processes and the count of an unchanged night come back as they were."""
    book.calm(1)
    marks = {
        book.pair(0): HELD,
        book.pair(1): Mark(Outcome.REGRESSED, (Reason.CREEP,), "n0"),
        book.pair(2): Mark(Outcome.PASS),
    }
    evidence = Evidence().add({book.pair(0): 103.5, book.pair(1): 7}, {book.pair(0): 100.25})
    counted = Unchanged(12, 1, 0)
    book.ledger.mark("n0", marks, evidence=evidence, unchanged=counted)
    (night,) = book.ledger.nights()

    assert marks == night.marks
    assert evidence == Evidence(tuple(night.confirming), tuple(night.trusted))
    assert (counted,) == book.ledger.recall().unchanged


def test_of_two_verdicts_the_later_holds(book: Any) -> None:
    """A night that was judged again is what was said last; pairs that were not judged again keep their mark."""
    book.calm(1)
    book.ledger.mark("n0", {book.pair(0): HELD, book.pair(1): HELD})
    book.ledger.mark("n0", {book.pair(0): Mark(Outcome.PASS)})

    assert {book.pair(0): Mark(Outcome.PASS), book.pair(1): HELD} == book.ledger.nights()[0].marks


def test_verdicts_are_no_runs(book: Any) -> None:
    """pytest-benchmark's own commands still read the machine's folder, and see the runs alone."""
    book.calm(2)
    book.ledger.mark("n1", {book.pair(0): HELD})
    command = [sys.executable, "-m", "pytest_benchmark", "--storage", f"file://{book.root}", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True)

    assert len(listed.stdout.splitlines()) == 6
    assert book.history.unnamed(book.machine) == []


def test_a_regressed_night_is_never_a_baseline(book: Any) -> None:
    """However long nobody reacts, the baseline stays where it was; mended, all is as before."""
    book.calm(8)
    seen = [book.gate(f"g{number}", [book.run(SLOW, day=10 + number)] * 3) for number in range(25)]
    labels = [book.labels(session)[book.pair(0)] for session in seen]
    mended = book.gate("mended", [book.run(day=40)] * 3)
    nights = {verdict.pair: verdict.nights for verdict in mended.verdicts}

    assert labels == ["INCONCLUSIVE(HELD)"] + ["REGRESSED"] * 24
    assert [session.status() for session in seen] == [21] + [20] * 24
    assert (book.labels(mended), mended.status()) == ({}, 0)
    assert (nights[book.pair(0)], nights[book.pair(1)]) == (8, 20)


def test_memory_does_not_creep(book: Any) -> None:
    """Each night by less than its margin over the one before: judged by the level's first night, and since accepted."""
    mib = 2**20

    def night(number: int) -> Any:
        memory = {"peak_bytes": 100 * mib + number * mib // 3}
        return book.gate(f"g{number}", [book.run(day=number, others=memory)] * 3)

    said = [night(number) for number in range(40)]
    book.ledger.accept("g39", [book.pair(number, "peak_bytes") for number in range(12)], "wanted", "kim")
    said += [night(40), night(44)]

    assert [session.status() for session in said] == [0] * 4 + [20] * 36 + [0, 20]
    assert {book.labels(session)[book.pair(0, "peak_bytes")] for session in said[4:40]} == {"REGRESSED(EXACT)"}


def test_few_nights_say_what_they_can_prove(book: Any) -> None:
    """Beyond the bound that the verdict names and not blocked: it says from where on it would be."""
    book.calm(3, replicates=1)
    verdicts = book.gate("g0", [book.run((2.0, *FLAT[1:]), day=10)]).verdicts
    (found,) = (verdict for verdict in verdicts if verdict.pair == book.pair(0))

    assert (found.label, found.bound_ln < found.effect_ln) == ("INCONCLUSIVE(NOT_PROVEN)", True)
    assert f"so few nights prove only what is above {in_percent(3 * found.bound_ln)}: calibrate, or" in found.message


def test_held_nights_that_do_not_follow_each_other_prove_nothing(book: Any) -> None:
    """A night that passed between them is remembered too: the second slow night is held anew."""
    book.calm(8)
    nights = [
        book.gate(f"g{number}", [book.run(each, day=10 + number)] * 3) for number, each in enumerate((SLOW, FLAT, SLOW))
    ]

    assert [book.labels(session).get(book.pair(0), "PASS") for session in nights] == [
        "INCONCLUSIVE(HELD)",
        "PASS",
        "INCONCLUSIVE(HELD)",
    ]


def test_a_faster_level_is_the_baseline_from_its_first_night(book: Any) -> None:
    """Losing the gain again is a regression, though the level is the old one."""
    book.calm(8)
    fast = [book.gate(f"f{number}", [book.run((-2.5, *FLAT[1:]), day=10 + number)] * 3) for number in range(6)]
    back = [book.gate(f"b{number}", [book.run(day=20 + number)] * 3) for number in range(2)]
    labels = [book.labels(session).get(book.pair(0), "PASS") for session in (*fast, *back)]

    assert labels[:3] == ["PASS(FASTER)", "IMPROVED", "PASS"]
    assert labels[-2:] == ["INCONCLUSIVE(HELD)", "REGRESSED"]


def test_an_accepted_level_is_the_baseline(book: Any) -> None:
    """After `accept` the next night passes; the reason and the name are kept."""
    book.calm(8)
    for number in range(2):
        book.gate(f"g{number}", [book.run(SLOW, day=10 + number)] * 3)
    book.ledger.accept("g1", [book.pair(0)], "the new kernel is exact", "kim")
    after = book.gate("g2", [book.run(SLOW, day=13)] * 3)
    kept = json.loads(verdict_files(book)[2].read_text())

    assert (after.status(), book.labels(after)) == (0, {})
    assert (kept["reason"], kept["who"]) == ("the new kernel is exact", "kim")


@pytest.mark.parametrize("between", [0, 8], ids=["at-once", "after-quiet-nights"])
def test_a_suite_that_was_accepted_slower_is_held_anew(book: Any, between: int) -> None:
    """The next shift of the suite has a night and a beginning of its own, and the nights between stay its baseline."""
    book.calm(8)
    day = itertools.count(10)

    def night(percent: float, torch: str) -> Any:
        software = {"software": {"driver": "580", "torch": torch}}
        noise = np.random.default_rng(number := next(day)).normal(0, 0.1, (3, 12))
        runs = [book.run(percent + each, day=number, **software) for each in noise]
        session = book.gate(f"d{number}", runs)
        return session.status(), {each.label for each in session.verdicts}, {each.since for each in session.verdicts}

    shift = [({"INCONCLUSIVE(HELD, SUITE_SHIFT)"}, {None}), ({"REGRESSED(SUITE_SHIFT)"}, {"d10"})]
    assert [night(2.0, "2.12")[1:] for _ in range(2)] == shift
    book.ledger.accept("d11", [book.pair(number) for number in range(12)], "wanted", "kim")
    assert [night(2.0, "2.12")[:2] for _ in range(between)] == [(0, {"PASS"})] * between
    again = [night(4.0, "2.13") for _ in range(2)]

    assert again == [(21, *shift[0]), (20, {"REGRESSED(SUITE_SHIFT)"}, {f"d{12 + between}"})]


def test_the_first_night_of_a_regression_can_be_accepted(book: Any) -> None:
    """What the second one was said to have regressed since is wanted now, and is the baseline."""
    book.calm(8)
    for number in range(2):
        book.gate(f"g{number}", [book.run(SLOW, day=10 + number)] * 3)
    book.ledger.accept("g0", [book.pair(0)], "wanted", "kim")
    after = book.gate("g2", [book.run(SLOW, day=13)] * 3)
    slower = book.gate("g3", [book.run((20.0, *FLAT[1:]), day=14)] * 3)

    assert (book.labels(after), after.status()) == ({}, 0)
    assert (book.labels(slower), slower.status()) == ({book.pair(0): "REGRESSED"}, 20)


def test_a_retired_benchmark_is_not_missing(book: Any) -> None:
    """Removed on purpose: accept the night without it."""
    book.calm(8)
    gone = book.gate("g0", [book.run(FLAT[1:], day=10)] * 3)
    renumbered = {pair for pair, label in book.labels(gone).items() if label == "MISSING"}
    book.ledger.accept("g0", renumbered, "no longer shipped", "kim")

    assert {book.pair(11)} == renumbered
    assert book.gate("g1", [book.run(FLAT[1:], day=11)] * 3).status() == 0


# --- verdicts that are lost ---

FAULTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut-short": lambda data: data[: len(data) // 2],
    "not-utf-8": lambda data: data.replace(b"HELD", b"HE\xff\xfe"),
    "no-object": lambda _: b"[]",
    "unknown-verdict": lambda data: data.replace(b"INCONCLUSIVE", b"FINE"),
    "unknown-reason": lambda data: data.replace(b"HELD", b"BORED"),
    "newer-schema": lambda data: data.replace(b'"schema":2', b'"schema":3'),
    "other-machine": lambda data: data.replace(b"h200-sxm", b"a100-sxm"),
    "unknown-key": lambda data: data.replace(b'"trusted"', b'"mistrusted"'),
    "one-key-more": lambda data: data.replace(b'"trusted"', b'"more":[],"trusted"'),
    "no-keys": lambda data: data.replace(b'"op/mine/fp32/00"', b"7"),
    "nan": lambda data: data.replace(b'"confirming":[', b'"confirming":[{"k":{"m":NaN}},'),
    "no-plant": lambda data: re.sub(rb',"plant":{.*?}', b"", data),
    "plant-of-no-size": lambda data: re.sub(rb'"size_ratio":[0-9.]+', b'"size_ratio":0', data),
    "plant-seen-as-text": lambda data: re.sub(rb'"seen_ratios":\[', b'"seen_ratios":["",', data),
    "plant-nowhere": lambda data: re.sub(rb'"plant":{"key":"[^"]*"', b'"plant":{"key":""', data),
    "no-plant-object": lambda data: re.sub(rb'"plant":{.*?}', b'"plant":[]', data),
    "more-pairs-than-processes": lambda data: data.replace(b'"trusted":[]', b'"trusted":[' + b"{}," * 99 + b"{}]"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_lost_verdicts_are_named_and_their_night_is_no_baseline(book: Any, fault: str) -> None:
    """What a spoilt file said is not known: its night is INVALID, and the session is answered by nobody."""
    book.calm(8)
    book.gate("g0", [book.run(SLOW, day=10)] * 3)
    (path,) = verdict_files(book)
    spoilt = FAULTS[fault](path.read_bytes())
    assert spoilt != path.read_bytes()
    path.write_bytes(spoilt)
    session = book.session("tonight", [book.run(day=11)] * 3)
    (sentence,) = session.recall.lost

    assert str(path) in sentence
    assert len(sentence.splitlines()) == 1
    assert [verdict.nights for verdict in session.verdicts] == [8] * 12
    assert ([("history", sentence)], 21) == (
        [(each.name, each.detail) for each in session.controls if not each.passed],
        session.status(),
    )


def test_a_regression_is_said_over_lost_verdicts(book: Any) -> None:
    """20 comes before 21: what is proven is proven."""
    book.calm(8)
    book.gate("g0", [book.run(day=10)] * 3)
    verdict_files(book)[0].write_bytes(b"")

    assert book.gate("g1", [book.run((9.0, *FLAT[1:]), day=11)] * 3).status() == 20


def test_a_file_among_the_verdicts_that_is_none_is_lost_too(book: Any) -> None:
    """A renamed file may hold the verdicts of any night."""
    book.calm(8)
    book.gate("g0", [book.run(day=10)] * 3)
    (path,) = verdict_files(book)
    path.rename(path.with_name("copy.json"))
    session = book.session("tonight", [book.run(day=11)] * 3)

    assert "copy.json: its name is not a run's" in session.recall.lost[0]
    assert session.status() == 21


def test_a_night_that_was_to_be_judged_and_was_not_is_no_baseline(book: Any) -> None:
    """A session killed between saving and judging, or deleted verdicts: the night is named and left out."""
    book.calm(8)
    book.save("killed", *[book.run(SLOW, gated=True, day=9)] * 3)
    session = book.session("tonight", [book.run(day=11)] * 3)

    assert "night killed was to be judged and has no verdict" in session.recall.set_aside[0]
    assert [verdict.nights for verdict in session.verdicts] == [8] * 12
    assert session.status() == 0


def test_a_night_that_nobody_wanted_judged_is_a_baseline(book: Any) -> None:
    """A plain --benchmark-autosave and a calibration are what everything begins with."""
    book.calm(8)

    assert [verdict.nights for verdict in book.session("tonight", [book.run()] * 3).verdicts] == [8] * 12


def test_a_spoilt_run_is_named_and_the_others_judge(book: Any) -> None:
    """Nothing said of a night is lost with one of its runs."""
    book.calm(8)
    newest = book.history.files(book.machine)[-1].path
    newest.write_bytes(newest.read_bytes()[:1000])
    session = book.session("tonight", [book.run()] * 3)

    assert [str(newest) in sentence for sentence in session.recall.set_aside] == [True]
    assert session.recall.lost == ()
    assert (session.status(), session.verdicts[0].nights) == (0, 8)


@pytest.mark.parametrize(
    "marks",
    [{Pair("", "device_time_ns"): HELD}, {Pair("k", ""): HELD}],
    ids=["no-key", "no-metric"],
)
def test_verdicts_that_could_not_be_read_are_not_written(book: Any, marks: dict[Pair, Mark]) -> None:
    """What would be lost tomorrow is refused today."""
    book.calm(1)
    with pytest.raises(HistoryError, match="nothing saved"):
        book.ledger.mark("n0", marks)
    assert verdict_files(book) == []


# --- writing ---


def test_two_writers_at_once_lose_nothing(book: Any) -> None:
    """Runs and verdicts of two sessions of one machine are all there, under numbers of their own."""
    code = f"""if True:
        import json, sys
        from pathlib import Path
        from fuseproof.gate.ledger import Ledger
        from fuseproof.history import History
        from fuseproof.verdicts.verdict import in_percent, Mark, Outcome, Pair

        document = json.loads(sys.stdin.read())
        history = History(Path({str(book.root)!r}))
        ledger = Ledger(history, {book.machine!r})
        for number in range(10):
            night = f"{{sys.argv[1]}}{{number}}"
            ended = f"2026-01-01T00:{{ord(sys.argv[1]) - 97:02d}}:{{number:02d}}+00:00"  # no two processes end at once
            history.save({book.machine!r}, document | {{"datetime": ended}}, night)
            ledger.mark(night, {{Pair("op/mine/fp32/00", "device_time_ns"): Mark(Outcome.PASS)}})
            assert night in [each.name for each in ledger.nights()]
    """
    text = json.dumps(book.run())
    writers = [
        subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, text=True) for name in ("a", "b")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(text)
        writer.stdin.close()

    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    assert {f"{name}{number}" for name in "ab" for number in range(10)} == {n.name for n in book.ledger.nights()}
    assert [*range(1, 21)] == [file.number for file in book.history.records(book.machine)]
    assert all(night.marks for night in book.ledger.nights())


def test_a_killed_writer_leaves_the_verdicts_whole(book: Any) -> None:
    """What is left of it is no file of verdicts; the next one is written beside it."""
    book.calm(2)
    book.ledger.mark("n0", {book.pair(0): HELD})
    (path,) = verdict_files(book)
    path.with_suffix(".tmp").write_bytes(b'{"fuse')
    book.ledger.mark("n1", {book.pair(0): HELD})

    assert len(verdict_files(book)) == 2
    assert book.ledger.set_aside == ()


def test_verdicts_past_number_9999(book: Any) -> None:
    """The ten-thousandth night is remembered like the first."""
    book.calm(2)
    book.ledger.mark("n0", {book.pair(0): HELD})
    (path,) = verdict_files(book)
    path.rename(path.with_name(path.name.replace("0001_", "9999_", 1)))
    book.ledger.mark("n1", {book.pair(0): HELD})

    assert [file.number for file in book.history.records(book.machine)] == [9999, 10000]
    assert [{book.pair(0): HELD}] * 2 == [night.marks for night in book.ledger.nights()]


# --- the index ---


@pytest.fixture
def indexed(book: Any) -> Any:
    """A history with verdicts, and its index."""
    book.calm(4)
    book.gate("g0", [book.run(SLOW, day=10)] * 3)
    book.ledger.nights()
    assert (book.folder / index_module.FILE_NAME).exists()
    return book


def without_index(book: Any) -> list[dict[str, Any]]:
    """Return the nights as the files alone say."""
    return [plain(night) for night in Ledger(book.history, book.machine, keep_index=False).nights()]


def _garbage(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\x00" + bytes(range(256)) * 40)


def _other_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript("DROP TABLE words; PRAGMA user_version = 99;")
    connection.close()


def _without_words(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM words")
    connection.close()


def _without_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE files")
    connection.close()


def _spoilt(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE files SET ids = zeroblob(length(ids)), rest = zeroblob(10)")
    connection.close()


def _swapped(path: Path) -> None:
    first = "(SELECT {0} FROM files ORDER BY name LIMIT 1)"
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE files SET ids = {first.format('ids')} WHERE name > '0002'")
    connection.close()


def _other_numbers(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE files SET numbers = zeroblob(length(numbers))")
    connection.close()


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILT = {
    "gone": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": _garbage,
    "other-version": _other_version,
    "without-words": _without_words,
    "without-tables": _without_tables,
    "spoilt-rows": _spoilt,
    "words-of-another-file": _swapped,
    "other-numbers": _other_numbers,
    "a-folder": _folder,
}


@pytest.mark.parametrize("how", SPOILT)
def test_an_index_that_is_spoilt_changes_nothing(indexed: Any, how: str) -> None:
    """It holds nothing that the files do not."""
    SPOILT[how](indexed.folder / index_module.FILE_NAME)

    assert without_index(indexed) == [plain(night) for night in indexed.ledger.nights()]
    assert without_index(indexed) == [plain(night) for night in indexed.ledger.nights()]
    assert indexed.ledger.set_aside == ()


def test_an_index_in_use_is_done_without(indexed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session that builds it keeps nobody waiting for long, and nothing is removed under its hands."""
    monkeypatch.setattr(index_module, "_LOCK_TIMEOUT_S", 0.05)
    indexed.save("n9", indexed.run(day=20))
    other = sqlite3.connect(indexed.folder / index_module.FILE_NAME)
    other.execute("BEGIN EXCLUSIVE")
    found = [plain(night) for night in indexed.ledger.nights()]
    other.rollback()
    other.close()

    assert without_index(indexed) == found
    assert without_index(indexed) == [plain(night) for night in indexed.ledger.nights()]


def test_files_that_change_are_read_again(indexed: Any) -> None:
    """A file cut short is set aside though the index knows it; restored, it is back; deleted, it is gone."""
    path = indexed.history.files(indexed.machine)[-1].path
    before, copy = without_index(indexed), path.read_bytes()
    path.write_bytes(copy[:500])
    assert [str(path) in sentence for sentence in indexed.ledger.set_aside] == [True]
    path.write_bytes(copy)
    assert ((), before) == (indexed.ledger.set_aside, [plain(night) for night in indexed.ledger.nights()])
    path.unlink()
    assert [plain(night) for night in indexed.ledger.nights()] == without_index(indexed) != before
    with sqlite3.connect(indexed.folder / index_module.FILE_NAME) as connection:
        rows = connection.execute("SELECT count(*) FROM files WHERE name = ?", (path.name,)).fetchone()
    connection.close()
    assert rows == (0,)


def test_a_session_reads_new_files_only(indexed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history is read once, not every night."""
    read: list[str] = []

    def load(file: Any) -> Any:
        read.append(file.night)
        return original(file)

    original = History.load
    monkeypatch.setattr(History, "load", staticmethod(load))
    indexed.ledger.nights()
    assert read == []
    indexed.save("n9", indexed.run(day=20))
    indexed.ledger.nights()
    indexed.ledger.nights()

    assert read == ["n9"]


def test_a_changed_digest_has_a_new_version(book: Any) -> None:
    """Whoever changes what is kept of a file raises `index._VERSION`, else old indexes are read as new ones."""
    block = {"machine": "cpu-epyc-2c", "settings": {"threads": 2, "environment": {}}}
    run = book.run([1.0], others=OTHERS, gated=True, **block)
    group = {"outcome": "PASS", "reasons": ["FASTER"], "since": "n0", "pairs": {"launches": ["k"]}}
    judged = {
        "verdicts": [group],
        "confirming": [],
        "trusted": [],
        "unchanged": {"decisions": 1, "above": 0, "blocks": 0},
    }
    digests = [
        digest_run(run),
        digest_record(judged),
        digest_record({"accepted": {"m": ["k"]}, "reason": "r", "who": "w"}),
        digest_record({"withdrawn": {"m": ["k"]}, "reason": "r", "who": "w"}),
    ]

    assert (index_module._VERSION, zlib.crc32(repr(digests).encode())) == (3, 3383296527)


# --- which nights ---


def random_history(book: Any, seed: random.Random, nights: int) -> None:
    """Write a history with all that can happen to a benchmark in a year."""
    names = [f"n{number}" for number in range(nights)]
    for number, name in enumerate(names):
        some = [number for number in range(5) if seed.random() < 0.85]
        metrics = {
            book.key(each): {"device_time_ns": 1e5 * (1 + 0.001 * seed.random()), "launches": seed.choice([3, 3, 3, 4])}
            for each in some or [0]
        }
        invalid = {book.key(each): ["throttled"] for each in some if seed.random() < 0.05}
        method = "old" if seed.random() < (0.8 if number < nights // 3 else 0.2) else "new"
        gated = seed.random() < 0.5
        board = "two" if number % 3 else "one"
        book.save(name, book.document(metrics, invalid=invalid, method=method, gated=gated, day=number, board=board))
        if seed.random() < 0.9:
            outcomes = [Mark(Outcome.PASS)] * 6
            invalid_mark = Mark(Outcome.INVALID, (Reason.BOARD,) * (number % 2))
            outcomes += [HELD, Mark(Outcome.PASS, (Reason.FASTER,)), invalid_mark, Mark(Outcome.REGRESSED)]
            outcomes += [
                Mark(each, (), seed.choice(names[: number + 1])) for each in (Outcome.REGRESSED, Outcome.IMPROVED)
            ]
            pairs = [Pair(key, metric) for key in metrics for metric in ("device_time_ns", "launches")]
            book.ledger.mark(name, {pair: seed.choice(outcomes) for pair in pairs})
        if seed.random() < 0.05:
            book.ledger.accept(name, accepted := [book.pair(seed.randrange(5))], "why", "who")
            if number % 3 == 0:
                book.ledger.withdraw({name: accepted}, {}, "why", "who")


@pytest.mark.parametrize("number", range(8))
def test_the_chosen_nights_say_what_all_of_them_say(book: Any, number: int) -> None:
    """Older nights than the newest 20 and the anchor's are left out without changing any verdict."""
    seed = random.Random(number)
    random_history(book, seed, 110)
    ledger = book.ledger
    tonight = Night("tonight", [{book.pair(each): 1e5 * (1 + 0.02 * seed.random()) for each in range(5)}] * 3)
    tonight = replace(tonight, boards=frozenset({"one"}))

    def judged(nights: list[Night], method: str) -> Any:
        options = {"paired": False, "full_selection": True, "today": None}
        own = replace(tonight, methods={book.key(each): f"{method} a CPU" for each in range(5)})
        session = GateSession(GateSettings(), [], nights, own, **options)  # type: ignore[arg-type]
        numbers = {each.pair: (each.label, each.nights, each.since, each.nu, each.mde_ln) for each in session.verdicts}
        families = [each.family for each in session.screening.screened]
        boards = [dict(zip(each.pairs, zip(each.foreign, each.moved, strict=True), strict=True)) for each in families]
        return numbers, boards, session.plan(), session.screening.known

    chosen, everything = ledger.nights(), ledger.nights(everything=True)

    for method in ("new", "old"):
        assert judged(everything, method) == judged(chosen, method)
    values, all_values = (sum(len(night.pairs) for night in nights) for nights in (chosen, everything))
    assert values < 0.8 * all_values


def test_old_nights_are_left_out(book: Any) -> None:
    """Of a hundred quiet nights the newest 20 and the first 20 are read."""
    book.calm(60, replicates=1)
    names = [night.name for night in book.ledger.nights()]

    assert [f"n{number}" for number in (*range(20), *range(40, 60))] == names
    shutil.rmtree(book.folder / VERDICTS, ignore_errors=True)


def test_a_copy_in_another_night_is_no_night(book: Any) -> None:
    """A process counts once: for the night of which something has been said, else for the older one."""
    book.calm(8)
    book.ledger.mark("n7", {book.pair(0): Mark(Outcome.REGRESSED)})
    runs = [file.path for file in book.history.files(book.machine)]
    stolen = json.loads(runs[-1].read_text())
    stolen["fuseproof"]["night"] = "n9"
    copy = runs[0].with_name(runs[0].name.replace("_n0_", "_n9_"))
    copy.write_text(json.dumps(stolen))
    ledger = book.ledger

    for nights in (ledger.nights(), ledger.nights(before="n7")):
        assert [night.name for night in nights] == [f"n{number}" for number in range(len(nights))]
    assert [len(night.screening) for night in ledger.nights()] == [3] * 8
    (sentence,) = ledger.set_aside
    assert f"{copy.name}: is a copy of {runs[-1].name}; delete it" in sentence


@pytest.mark.parametrize("index", ["kept", "none"])
def test_a_copy_under_another_name_is_no_process(book: Any, index: str) -> None:
    """It would count twice, and halve the noise; it is named, whether or not the index has seen it before."""
    book.calm(2)
    (file, *_) = book.history.files(book.machine)
    uid = "0" * len(file.uid)
    copy = file.path.with_name(file.path.name.replace(file.uid, uid))
    copy.write_bytes(file.path.read_bytes())
    for ledger in (Ledger(book.history, book.machine, keep_index=index == "kept") for _ in range(2)):
        assert [len(night.screening) for night in ledger.nights()] == [3, 3]
        (sentence,) = ledger.set_aside
        assert re.search(rf"{copy.name}: is a copy of .*{file.uid}|{file.uid}.*: is a copy of {copy.name}", sentence)
