"""A gated night for a reader: what wants attention, what was judged by what, and JSON that every parser reads."""

import datetime
import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest

from fuseproof.gate import present
from fuseproof.gate.records import NightRecord, Recall
from fuseproof.gate.session import GateSession
from fuseproof.gate.settings import GateSettings
from fuseproof.verdicts.night import Night
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule
from fuseproof.verdicts.verdict import Pair

OTHERS = {"peak_bytes": 3 * 2**20, "launches": 3, "kernels_hash": "c0ffee"}


def run_of(percent: list[float], **others: Any) -> dict[Pair, Any]:
    """Return a process with all metrics of each benchmark."""
    found: dict[Pair, Any] = {}
    for number, value in enumerate(percent):
        key = f"op/mine/fp32/{number:02d}"
        found[Pair(key, "device_time_ns")] = 1e5 * math.exp(value / 100)
        found |= {Pair(key, name): each for name, each in (OTHERS | others).items()}
    return found


def history() -> list[Night]:
    """Return eight nights of 12 benchmarks."""
    return [
        Night(
            f"n{at}",
            [run_of([0.1 * math.sin(at * 7 + run * 3 + number) for number in range(12)]) for run in range(3)],
            day=f"2027-01-{at + 1:02d}",
        )
        for at in range(8)
    ]


def session_of(tonight: Night, nights: list[Night] | None = None, **options: Any) -> GateSession:
    """Judge a night; every confirming process measures what its first process did."""
    defaults = {"paired": False, "full_selection": True, "today": datetime.date(2027, 1, 31)}
    settings = options.pop("settings", GateSettings())
    found = GateSession(settings, [], history() if nights is None else nights, tonight, **(defaults | options))
    while found.plan():
        found.add(tonight.screening[0])
    return found


def night(*runs: dict[Pair, Any], **options: Any) -> Night:
    """Return tonight."""
    return Night("tonight", list(runs), **options)


LEVEL = [0.0] * 12


def test_a_quiet_night_is_two_lines() -> None:
    """Nothing wants attention: the controls, and the summary with counts, keys, selection and baseline."""
    controls, summary = present.table_lines(session_of(night(*[run_of(LEVEL)] * 3)))

    assert "no slow-down was planted" in controls
    assert "unchanged nights: 0 of 12 above the 5 % limit, 0 blocks" in controls
    assert summary == (
        "gate: 48 PASS; judged 12 of 12 keys (selection: everything); "
        "baseline: 8 nights a benchmark, 2027-01-01 (n0) to 2027-01-08 (n7)"
    )


def test_a_slow_benchmark_has_one_line() -> None:
    """Benchmark, metric, baseline, now, change, interval, verdict, why."""
    lines = present.table_lines(session_of(night(*[run_of([2.0, *LEVEL[1:]])] * 3)))
    cells = lines[1].split()

    assert lines[0].split()[:5] == ["benchmark", "metric", "baseline", "now", "change"]
    assert cells[:2] == ["op/mine/fp32/00", "device_time_ns"]
    assert cells[3:6] == ["us", "102.02", "us"]
    assert "INCONCLUSIVE  HELD; bound +1.00 %; 5 confirming" in lines[1]
    assert len(lines) == 4


def test_exact_metrics_show_what_they_were_and_are() -> None:
    """Memory in MiB, launches as a number, kernels by the hash of their names."""
    found = session_of(night(*[run_of(LEVEL, peak_bytes=5 * 2**20, launches=4, kernels_hash="beef")] * 3))
    lines = [line.split() for line in present.table_lines(found) if "/00 " in line]

    assert [
        lines[0][2:4],
        lines[1][2:4],
        lines[2][2:6],
    ] == [["c0ffee", "beef"], ["3", "4"], ["3.00", "MiB", "5.00", "MiB"]]


def test_a_missing_benchmark_has_one_line_for_all_its_metrics() -> None:
    """Four lines would say the same."""
    lines = present.table_lines(session_of(night(*[run_of(LEVEL[1:])] * 3)))

    assert [line.split()[:3] for line in lines if "MISSING  in the" in line] == [["op/mine/fp32/11", "4", "metrics"]]
    assert "4 MISSING, 44 PASS; judged 11 of 12 keys" in lines[-1]


def test_much_of_the_same_is_counted() -> None:
    """A new machine has hundreds of benchmarks without a baseline; with `everything` each has its line."""
    found = session_of(night(run_of([0.0] * 40)), nights=[])
    lines = present.table_lines(found)

    assert len(lines) == 14
    assert lines[-3] == "... and 30 lines more of NEW"
    assert "160 NEW; judged 0 of 40 keys (selection: everything); baseline: none" in lines[-2]
    assert present.CALIBRATE.format("40 keys") == lines[-1]
    assert len(present.table_lines(found, everything=True)) == 163


def test_a_change_beyond_ten_times_is_a_factor_in_the_table() -> None:
    """Its bound too, where noise alone would reach a million times."""
    lines = present.table_lines(session_of(night(*[run_of([400.0, *LEVEL[1:]])] * 3)))
    (row,) = [line for line in lines if line.startswith("op/mine/fp32/00 ")]

    assert re.search(r" x 5\d ", row), row
    assert "%" not in row.partition(" x 5")[2].partition("bound")[0]


def test_a_shift_of_the_suite_is_one_line() -> None:
    """With some of its members by name."""
    nights = [replace(each, software={"torch": "2.11"}) for each in history()]
    found = session_of(night(*[run_of([4.0] * 12)] * 3, software={"torch": "2.12"}), nights)
    (line,) = [line for line in present.table_lines(found) if line.startswith("the whole suite")]

    assert "HELD, SUITE_SHIFT" in line
    assert "12 benchmarks: op/mine/fp32/00, op/mine/fp32/01, op/mine/fp32/02, ..." in line


def test_what_is_not_used_is_named_and_counted() -> None:
    """Set aside, lost, an override that fits nothing, a mode that blocks nothing."""
    settings = GateSettings(mode="warn", rules=(*DEFAULT_RULES, Rule("launches", Kind.REPORTED, keys="nothing*")))
    recall = Recall(("a.json: is empty", "b.json: is empty"), ("b.json: is empty",))
    lines = present.table_lines(session_of(night(*[run_of(LEVEL)] * 3), settings=settings, recall=recall))

    assert [x for x in lines if x.startswith("set ")] == ["set aside: a.json: is empty", "set aside: b.json: is empty"]
    assert "control failed: history: b.json: is empty" in lines
    assert any("override: keys = 'nothing*' fits none of 12 known benchmarks" in line for line in lines)
    assert '; 2 set aside; control failed: history (by itself status 21); mode "warn": the status stays 0' in lines[-1]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, "fast", None, True, 10**400], ids=repr)
def test_any_value_is_shown_and_is_json(value: object) -> None:
    """A measurement that is none must not end the session that names it."""
    run = run_of(LEVEL) | {Pair("op/mine/fp32/00", "device_time_ns"): value}
    found = session_of(night(*[run] * 3))
    text = json.dumps(present.to_json(found), allow_nan=False)

    assert any("INVALID  BAD_VALUE" in line for line in present.table_lines(found))
    assert json.loads(text)["verdicts"][0]["outcome"] == "INVALID"


def test_json_holds_what_the_table_leaves_out() -> None:
    """Every verdict with its numbers, and the summary."""
    found = session_of(night(*[run_of([2.0, *LEVEL[1:]])] * 3))
    document = json.loads(json.dumps(present.to_json(found), allow_nan=False))
    slow = document["verdicts"][0]

    assert (len(document["verdicts"]), document["judged"], document["known"]) == (48, 12, 12)
    assert (slow["outcome"], slow["reasons"], slow["processes"]) == ("INCONCLUSIVE", ["HELD"], 5)
    assert present.table_lines(found)[-1] == document["summary"]
    assert pytest.approx(1e5 * math.exp(0.02)) == slow["now"]
    assert all(control["passed"] for control in document["controls"])


def test_a_confirming_value_that_is_none_is_not_stored() -> None:
    """The night's verdict says what is wrong; its record must be readable tomorrow."""
    key = Pair("k", "device_time_ns")
    evidence = Evidence().add({key: math.nan, Pair("k", "launches"): 0, Pair("k", "kernels_hash"): "beef"})

    assert NightRecord({}, evidence).document()["confirming"] == [{"k": {"kernels_hash": "beef", "launches": 0}}]


@pytest.mark.parametrize(("selection", "said"), [("", True), ("full", True), ("gate", False), ("gate of tests", False)])
def test_an_override_may_be_for_what_a_nights_share_leaves_out(selection: str, said: bool) -> None:
    """A pattern that fits none is a typing error, but not in a share, and not where another night had what it fits."""
    settings = GateSettings(rules=(*DEFAULT_RULES, Rule("launches", Kind.REPORTED, keys="nothing*")))
    lines = present.table_lines(session_of(night(*[run_of(LEVEL)] * 3), settings=settings, selection=selection))
    assert said == any("fits none of" in line for line in lines)

    seen = GateSettings(rules=(*DEFAULT_RULES, Rule("launches", Kind.REPORTED, keys="op/*/11")))
    part = night(*[run_of(LEVEL[:11])] * 3)
    assert not any("fits none of" in line for line in present.table_lines(session_of(part, settings=seen)))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ("gate", "gate", False),
        ("", "gate of tests/kernels", True),
        ("not recorded", "gate", False),
        ("gate", "not recorded", False),
    ],
)
def test_a_baseline_of_another_selection_is_named(before: str, now: str, said: bool) -> None:
    """What a process measures besides moves memory-bound kernels by about 1 % on an H200."""
    nights = [replace(each, selection=before) for each in history()]
    lines = present.table_lines(session_of(night(*[run_of(LEVEL)] * 3, selection=now), nights))
    named = [line for line in lines if line.startswith("the baseline's newest nights were asked for something else")]
    assert bool(named) == said
    assert all("(default)" in line for line in named)


@pytest.mark.parametrize(
    ("ran_on", "said"), [("old", True), ("new", False), ("", False)], ids=["other", "same", "unknown"]
)
def test_a_baseline_of_another_board_is_named(ran_on: str, said: bool) -> None:
    """A night that passes on a faster GPU says nothing of a slow-down as large as that."""
    nights = [replace(each, boards=frozenset(filter(None, [ran_on]))) for each in history()]
    tonight = replace(night(*[run_of(LEVEL)] * 3), boards=frozenset({"new"}))
    named = [line for line in present.table_lines(session_of(tonight, nights)) if "of other GPUs of this model" in line]
    assert bool(named) == said
    assert all(line.startswith(f"{len(LEVEL)} of {len(LEVEL)} keys were judged") for line in named)
