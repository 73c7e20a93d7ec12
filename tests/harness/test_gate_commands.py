"""`fuseproof check`, `show` and `accept`: golden histories from files, exact messages, and nothing but files needed."""

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fuseproof
from fuseproof import cli, machine
from fuseproof.gate import change_point
from fuseproof.gate.ledger import Ledger
from fuseproof.history import History
from fuseproof.storage import HistoryError
from fuseproof.verdicts.boards import OTHER_BOARD
from fuseproof.verdicts.night import NARROWED
from fuseproof.verdicts.nightly import Evidence
from fuseproof.verdicts.recorded import night_of
from fuseproof.verdicts.verdict import Mark, Outcome, Pair, Reason

CASES = json.loads((Path(__file__).parent / "golden" / "nightly.json").read_text())["cases"]
PATTERN = (-1.3, -0.7, -0.4, -0.1, 0.1, 0.4, 0.7, 1.3)
FLAT = (0.0,) * 12
SLOW = (3.0, *FLAT[1:])
PYPROJECT = """
[tool.fuseproof]
[tool.fuseproof.gate]
replicates = 1
tolerance = { device_time_ns = "1.0050167084 %" }
"""  # whose logarithm is the golden cases' 0.01

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(book: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in the folder that holds the history; return its status and what it printed."""
    book.root.parent.mkdir(exist_ok=True)
    monkeypatch.chdir(book.root.parent)
    (book.root.parent / "pyproject.toml").write_text(PYPROJECT)

    def run(*arguments: object) -> tuple[int, str]:
        status = cli.main([str(each) for each in arguments])
        out, err = capsys.readouterr()
        return status, out + err

    return run


def files(book: Any) -> list[Path]:
    """Return the machine's run files, oldest first."""
    return [file.path for file in book.history.files(book.machine)]


# --- golden histories ---


def pattern(number: int, case: dict[str, Any]) -> list[float]:
    """Return night `number` of a golden case, in logarithms times 100."""
    night = [case.get("sigma", 0.2) * PATTERN[(number + benchmark) % 8] for benchmark in range(8)]
    if (wild := case.get("wild")) and wild["night"] == number:
        night[wild["benchmark"]] = wild["value"]
    night[0] += case.get("marked", {}).get(str(number), {}).get("shift", 0.0)
    return night


def golden_history(book: Any, case: dict[str, Any]) -> None:
    """Write a golden case's nights as files; the first also holds eight processes that show their spread."""
    duration_ns = case.get("duration_ns", 1e6)
    for number in range(case.get("nights", 8)):
        book.save(f"night{number}", book.run(pattern(number, case), duration_ns=duration_ns, day=number))
        marks = {
            book.pair(0): Mark(Outcome(mark["outcome"]))
            for night, mark in case.get("marked", {}).items()
            if int(night) == number
        }
        spread = [values_of(book, pattern(at, case | {"wild": None}), duration_ns) for at in range(8)]
        book.ledger.mark(f"night{number}", marks, evidence=Evidence(tuple(spread)) if number == 0 else None)
    if "accepted" in case:
        book.save("accepted", book.run([case["accepted"], *[0.0] * 7], duration_ns=duration_ns, day=20))
        book.ledger.accept("accepted", [book.pair(0)], "wanted", "kim")


def values_of(book: Any, percent: list[float], duration_ns: float) -> dict[Pair, float]:
    """Return a process's values."""
    return {book.pair(number): duration_ns * math.exp(value / 100) for number, value in enumerate(percent)}


def golden_tonight(book: Any, case: dict[str, Any], night: str) -> None:
    """Write the night to be judged: in pairs its confirming processes lie beside it, alone they are further runs."""
    percent = [case["tonight"].get(str(number), 0.0) for number in range(8)]
    software = {"driver": "590" if case.get("new_host") else "580", "torch": "2.11"}
    options = {"duration_ns": case.get("duration_ns", 1e6), "software": software, "day": 30}
    confirming = case.get("confirming", {"0": []})["0"]
    runs = [] if case.get("paired") else [[value] for value in confirming]
    book.save(night, *(book.run(each, **options) for each in [percent, *runs]))
    if case.get("paired"):
        still = case.get("trusted", {"0": [0.0] * len(confirming)})["0"]
        arms = [tuple(values_of(book, [value], options["duration_ns"]) for value in arm) for arm in (confirming, still)]
        book.ledger.mark(night, {}, evidence=Evidence(*arms))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_history(book: Any, run: Run, case: dict[str, Any]) -> None:
    """The golden cases of the verdicts, from files on disk to the command's status and numbers."""
    golden_history(book, case)
    golden_tonight(book, case, "tonight")
    if case.get("again"):
        held = book.session("tonight", [json.loads(path.read_text()) for path in files(book)[-6:-5]])
        while held.plan():
            held.add(values_of(book, [case["confirming"]["0"][0]], 1e6))
        book.ledger.mark("tonight", held.marks, evidence=held.evidence)
        golden_tonight(book, case, "zlast")
    status, text = run("check", *files(book), "--json")
    found = json.loads(text)
    ask = book.key(int(case.get("ask", 0)))
    (verdict,) = [each for each in found["verdicts"] if (each["key"], each["metric"]) == (ask, "device_time_ns")]
    reasons = f"({', '.join(verdict['reasons'])})" if verdict["reasons"] else ""
    seen = {
        "verdict": f"{verdict['outcome']}{reasons}",
        "status": status,
        "processes": verdict["processes"],
        "effect": verdict["effect_ln"] * 100,
        "bound": verdict["bound_ln"] * 100,
        "mde": verdict["mde_ln"] * 100,
        "nights": verdict["nights"],
        "nu": verdict["nu"],
        "since": verdict["since"],
    }

    assert status == found["status"]
    for name, value in case["expect"].items():
        if name in seen:
            close = pytest.approx(value, rel=1e-4, abs=2e-4) if isinstance(value, float) else value
            assert (name, close) == (name, seen[name])


# --- check ---


def test_check_judges_by_the_history(book: Any, run: Run) -> None:
    """Files of one night are judged by the nights before it; without --require an untried benchmark is green."""
    book.calm(8)
    book.save("tonight", *[book.run((3.0, *FLAT[1:], 0.0), day=20)] * 6)
    status, text = run("check", *files(book)[-6:])
    lines = text.splitlines()

    assert status == 21
    assert "op/mine/fp32/00" in lines[1]
    assert "INCONCLUSIVE  HELD; bound" in lines[1]
    assert "5 confirming" in lines[1]
    assert "1 INCONCLUSIVE, 1 NEW, 11 PASS; judged 12 of 13 keys (selection: everything)" in lines[-2]
    assert "baseline: 8 nights a benchmark, 2026-01-01 (n0) to 2026-01-08 (n7)" in lines[-2]
    assert "nothing to judge op/mine/fp32/12 by yet: `fuseproof calibrate" in lines[-1]


def test_check_judges_copies_outside_the_history(book: Any, run: Run, tmp_path: Path) -> None:
    """Artifacts of a CI under names of their own; nothing is written beside them."""
    book.calm(8)
    copies = tmp_path / "artifacts"
    copies.mkdir()
    for number, path in enumerate(files(book)):
        (copies / f"run-{number}.json").write_bytes(path.read_bytes())
    status, text = run("check", *sorted(copies.iterdir(), key=lambda path: int(path.stem[4:])))

    assert status == 0
    assert "12 PASS; judged 12 of 12 keys" in text
    assert "baseline: 7 nights" in text
    assert len([*copies.iterdir()]) == 24


@pytest.mark.parametrize("where", ["in_the_history", "copies"])
@pytest.mark.parametrize(
    ("planted_ln", "status", "said"), [(None, 0, "% seen, bound"), (0.0, 21, "+0.00 % seen"), (math.nan, 21, "nothing")]
)
def test_a_night_whose_plant_was_not_seen_is_no_answer_later_either(
    book: Any, run: Run, tmp_path: Path, planted_ln: float | None, status: int, said: str, where: str
) -> None:
    """Its own session ended with 21: judged from its files, or from copies of them beside that history, it does too."""
    book.calm(8)
    live = book.gate("tonight", [book.run(day=20)], planted_ln=planted_ln)
    paths = files(book)[-1:]
    if where == "copies":
        paths = [tmp_path / "artifact.json"]
        paths[0].write_bytes(files(book)[-1].read_bytes())
    found, text = run("check", *paths)
    (control,) = [each for each in live.controls if each.name == "plant"]

    assert (status, found) == (live.status(), status)
    assert control.detail in text
    assert said in control.detail
    assert ("control failed: plant" in text.splitlines()[-1]) == (status == 21)
    assert "not on record" not in text


def test_a_session_that_ended_before_its_controls_is_no_answer(book: Any, run: Run) -> None:
    """Ctrl-C before the plant: no PASS of that night rests on a gate that was awake."""
    book.calm(8)
    book.save("tonight", document := book.run(day=20))
    book.remember("tonight", book.session("tonight", [document]))
    status, text = run("check", files(book)[-1])

    assert (status, "nothing seen" in text) == (21, True)


def test_processes_of_a_night_that_disagreed_are_no_answer_later_either(book: Any, run: Run) -> None:
    """Two processes ran as controls after one that screened without a suspect; they are judged again."""
    book.calm(8)
    book.save("tonight", document := book.run(day=20))
    session = book.session("tonight", [document])
    assert session.plan() is None
    for percent in ((1.0, -1.0) * 6, (-1.0, 1.0) * 6):
        session.add(night_of("control", [book.run(percent)]).screening[0])
    session.add_planted(session.plant.size_ln)
    book.remember("tonight", session)
    status, text = run("check", *files(book))
    (control,) = [each.detail for each in session.controls if each.name.startswith("same arm")]

    assert (session.status(), status) == (21, 21)
    assert f"control failed: same arm device_time_ns: {control}" in text


@pytest.mark.parametrize("left", ["nothing", "verdicts_of_an_older_fuseproof"])
def test_controls_that_nobody_has_left_are_said_and_not_red(book: Any, run: Run, left: str) -> None:
    """A calibration has none, and verdicts of schema 1 do not hold what was seen of a planted slow-down."""
    book.calm(8)
    if left != "nothing":
        book.gate("tonight", [book.run(day=20)])
        (path,) = (book.folder / "verdicts").iterdir()
        document = json.loads(path.read_text())
        del document["plant"]
        path.write_text(json.dumps(document | {"fuseproof": document["fuseproof"] | {"schema": 1}}))
    status, text = run("check", *files(book))

    assert status == 0
    assert "plant: not on record" in text
    assert text.splitlines()[-1].endswith("; controls: not on record")
    assert "; controls: not on record" in json.loads(run("check", *files(book), "--json")[1])["summary"]


def test_a_copy_of_a_run_confirms_nothing(book: Any, run: Run, tmp_path: Path) -> None:
    """A run given twice, here and as an artifact, is one process: a suspect is not confirmed by itself."""
    book.calm(8)
    book.save("slow", book.run((30.0, *FLAT[1:]), day=9))
    paths = files(book)
    copies = tmp_path / "artifacts"
    copies.mkdir()
    for number in range(5):
        (copies / str(number)).mkdir()
        (copies / str(number) / paths[-1].name).write_bytes(paths[-1].read_bytes())
    once = run("check", *paths)
    assert (once[0], "UNCONFIRMED" in once[1]) == (21, True)
    assert once == run("check", *paths, *copies.glob("*/*.json"))
    for number, path in enumerate(copies.glob("*/*.json")):
        path.rename(path.with_name(f"renamed-{number}.json"))
    assert once == run("check", *paths, *copies.glob("*/*.json"))


def test_a_copy_in_another_night_is_no_night(book: Any, run: Run) -> None:
    """An edited copy of a calm run under the newest name would say PASS of a regression."""
    book.calm(8)
    book.save("slow", *[book.run(SLOW, day=9)] * 6)
    once = run("check", *files(book))
    stolen = json.loads(files(book)[0].read_text())
    stolen["fuseproof"]["night"] = "zzz"
    copy = files(book)[-1].with_name(files(book)[-1].name.replace("_slow_", "_zzz_"))
    copy.write_text(json.dumps(stolen))
    status, text = run("check", *files(book)[:-1], copy)

    assert (once[0], "HELD" if "HELD" in once[1] else "") == (21, "HELD")
    assert (status, "HELD" in text) == (21, True)
    assert f"{copy}: is a copy of {files(book)[0]} in another night; delete it" in text


def test_check_says_that_a_night_is_dated_ahead(book: Any, run: Run) -> None:
    """It counts as the newest, and the night that was meant is among those that it is judged by."""
    book.calm(3)
    ahead = files(book)[0].with_name(files(book)[0].name.replace(files(book)[0].name.split("_")[1], "29991231T000000Z"))
    files(book)[0].rename(ahead)

    assert f"1 run(s) are dated ahead of this machine's clock, the last {ahead.name}" in run("check", *files(book))[1]


def test_a_history_that_leads_to_itself(book: Any, run: Run, tmp_path: Path) -> None:
    """A link in a circle where the history should be: files elsewhere are judged by each other all the same."""
    book.calm(2)
    paths = files(book)
    book.root.rename(tmp_path / "away")
    book.root.symlink_to(book.root.name)
    moved = [tmp_path / "away" / book.machine / path.name for path in paths]

    status, text = run("check", *moved)
    assert (status, len(text.splitlines())) == (21, 1)
    assert "cannot be listed (Too many levels of symbolic links)" in text


def test_times_that_no_ratio_can_hold(book: Any, run: Run) -> None:
    """From the smallest number to the greatest: the level changes by more than a float, and the table says so."""
    for number, value in enumerate((5e-324, 1.7e308, 5e-324)):
        book.save(f"n{number}", book.document({"op/a": {"device_time_ns": value}}, day=number))
    status, text = run("show", "op/a")

    assert (status, len(text.splitlines())) == (0, 5)
    assert "> x 1000" in text
    assert "< x 0.001" in text


def test_a_character_that_the_terminal_lacks_is_a_number(book: Any) -> None:
    """A key in Greek on a terminal of ASCII."""
    book.save("n0", book.document({"op/\u03bc": {"device_time_ns": 1e5}}))
    book.root.parent.joinpath("pyproject.toml").write_text(PYPROJECT)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "fuseproof", "show", "*"]
    ran = subprocess.run(command, cwd=book.root.parent, env=environ, capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stderr) == (0, "")
    assert r"op/\u03bc" in ran.stdout


def test_check_remembers_verdicts(book: Any, run: Run) -> None:
    """A regressed night among the files is no baseline here either."""
    book.calm(8)
    for number in range(3):
        book.gate(f"g{number}", [book.run((3.0, *FLAT[1:]), day=10 + number)])
    book.save("tonight", *[book.run((3.0, *FLAT[1:]), day=20)] * 6)
    status, text = run("check", *files(book), "--json")
    (verdict,) = [each for each in json.loads(text)["verdicts"] if each["outcome"] == "REGRESSED"]

    assert (status, verdict["nights"], verdict["since"]) == (20, 8, "g0")


def test_check_without_a_history(book: Any, run: Run) -> None:
    """Everything is new, status 0, and the last line says what to do; with --require=gate it is 21."""
    book.save("tonight", book.run())
    status, text = run("check", *files(book))

    assert (status, run("check", *files(book), "--require=gate")[0]) == (0, 21)
    assert "nothing to judge 12 keys by yet: `fuseproof calibrate -n 8`" in text.splitlines()[-1]
    assert "judged 0 of 12 keys" in text
    assert "baseline: none" in text


def test_check_says_what_has_vanished(book: Any, run: Run) -> None:
    """Of a night that was asked for everything, by its own record or by the option."""
    book.calm(8)
    book.save("tonight", book.run(FLAT[1:], selection=f"default {NARROWED}: 1 benchmarks deselected", day=20))
    part, whole = run("check", files(book)[-1]), run("check", files(book)[-1], "--whole-suite")

    assert (part[0], whole[0]) == (0, 21)
    assert f"judged 11 of 12 keys (selection: default {NARROWED}: 1 benchmarks deselected)" in part[1]
    assert "MISSING" in whole[1]


def test_check_refuses_two_machines(book: Any, run: Run) -> None:
    """Foreign hardware is refused by name."""
    book.calm(1)
    other = replace(book, machine="a100-sxm")
    other.calm(1)
    status, text = run("check", *files(book), *files(other))

    assert status == 21
    assert "is of 'a100-sxm' and" in text
    assert "foreign hardware is not compared: give the files of one machine" in text


def test_check_names_a_spoilt_file(book: Any, run: Run) -> None:
    """An older one is set aside; one that may be the newest is no file to judge another in its place."""
    book.calm(8)
    paths = files(book)
    paths[0].write_bytes(paths[0].read_bytes()[:300])
    older = run("check", *paths)
    paths[-1].write_bytes(b"")
    newest = run("check", *paths)

    assert older[0] == 0
    assert f"set aside: {paths[0]}: is not JSON, or cut short" in older[1]
    assert "; 1 set aside" in older[1]
    assert newest[0] == 21
    assert (
        f"{paths[-1]}: is empty; restore the file from a good copy or delete it; it may be of the newest night"
        in newest[1]
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is missing; correct the name, or restore the file"),
        ("", "is empty"),
        ("[]", "the document is a list, not an object"),
        ("{}", "has no fuseproof block"),
        ('{"fuseproof": 3}', "fuseproof is 3, not an object"),
        ('{"fuseproof": {"schema": 1, "machine": "m", "night": "n"}}', "machine_info is missing"),
        ('{"fuseproof": {"schema": 7, "machine": "m", "night": "n"}}', "written by a newer fuseproof"),
    ],
)
def test_check_refuses_what_is_no_run(run: Run, tmp_path: Path, content: str | None, said: str) -> None:
    """One sentence on stderr, status 21, no traceback."""
    path = tmp_path / "some.json"
    if content is not None:
        path.write_text(content)
    status, text = run("check", path)

    assert (status, len(text.splitlines())) == (21, 1)
    assert text.startswith(f"fuseproof check: {path}: ")
    assert said in text


def test_many_files_that_are_none_are_one_short_line(run: Run, tmp_path: Path) -> None:
    """A folder of something else, by its glob: three are named, the others counted."""
    paths = [tmp_path / f"{number}.json" for number in range(9)]
    for path in paths:
        path.write_text("{}")
    status, text = run("check", *paths)

    assert (status, text.count("no fuseproof block")) == (21, 3)
    assert text.endswith("; and 6 files more\n")


def test_check_reads_the_waivers(book: Any, run: Run) -> None:
    """An expired one is a failed control; a file that cannot be read is one sentence."""
    book.calm(8)
    names = {"key": book.key(0), "metric": "launches", "limit": "3 %", "reason": "r", "owner": "kim"}
    entry = "".join(f'{name} = "{text}"\n' for name, text in names.items()) + "expiry = 2020-01-31\n"
    (book.root.parent / "waivers.toml").write_text(f"[[waiver]]\n{entry}")
    expired = run("check", *files(book))
    (book.root.parent / "waivers.toml").write_text(f"[[waivers]]\n{entry}")
    faulty = run("check", *files(book))

    assert (expired[0], faulty[0]) == (21, 2)
    assert (
        "control failed: waivers: the waiver of op/mine/fp32/00 launches (r, kim) expired on 2020-01-31" in expired[1]
    )
    assert "waivers.toml: has no key 'waivers'; did you mean 'waiver'?" in faulty[1]


def test_a_faulty_configuration_is_one_sentence(book: Any, run: Run) -> None:
    """For every command."""
    book.calm(1)
    (book.root.parent / "pyproject.toml").write_text("[tool.fuseproof]\n[tool.fuseproof.gate]\nmdoe = 1\n")
    for command in (["check", files(book)[0]], ["show"], ["accept", "x", "--reason", "y"]):
        status, text = run(*command)
        assert (status, len(text.splitlines())) == (2, 1)
        assert "has no key 'mdoe'; did you mean 'mode'?" in text


# --- show ---


def test_show_lists_what_can_be_gated(book: Any, run: Run) -> None:
    """Each benchmark with its baseline, noise and detectable effect; the last line counts them."""
    book.calm(10)
    status, text = run("show")
    found = json.loads(run("show", "--json")[1])["benchmarks"]

    assert status == 0
    assert len(text.splitlines()) == 14
    assert text.splitlines()[-1] == "gateable: 12 yes, 0 in pairs, 0 UNGATEABLE of 12 that have noise"
    assert [book.key(number) for number in range(12)] == [each["key"] for each in found]
    assert all(
        each["nights"] == 10 and 0.0003 < each["noise_ln"] < 0.003 and each["gateable"] == "yes" for each in found
    )


def test_show_names_the_metrics_that_it_knows(book: Any, run: Run) -> None:
    """A metric that nothing has is no answer, not an empty table; as a key is."""
    book.calm(3)
    status, text = run("show", "--metric", "nope")

    assert status == 21
    assert "fuseproof show: no benchmark here has a metric 'nope'; known are device_time_ns" in text
    assert "gateable" not in text
    assert run("show", "--metric", "device_time_ns")[0] == 0
    for command in (["show", book.key(0)], ["accept", book.key(0), "--reason", "y"]):
        status, text = run(*command, "--metric", "nope")
        assert (status, "these benchmarks have no metric 'nope'" in text) == (21, True)


def test_show_names_what_cannot_be_gated(book: Any, run: Run) -> None:
    """A benchmark that varies by 3 % is UNGATEABLE there as in a session."""
    book.calm(10, sigma=3.0)

    assert "0 yes, 0 in pairs, 12 UNGATEABLE" in run("show")[1]


def test_show_tells_a_benchmark_s_nights(book: Any, run: Run) -> None:
    """Value, spread and what was said of each night, oldest first."""
    book.calm(8)
    book.gate("g0", [book.run((3.0, *FLAT[1:]), day=20)] * 3)
    book.ledger.accept("g0", [book.pair(0)], "wanted", "kim")
    lines = run("show", book.key(0), "--metric", "device_time_ns")[1].splitlines()

    assert f"{book.key(0)} device_time_ns" == lines[0]
    assert lines[-1].split()[:4] == ["2026-01-21", "(g0)", "103.05", "us"]
    assert lines[-1].endswith("INCONCLUSIVE HELD accepted")
    assert len(lines) == 11


def test_show_tells_a_jump_by_its_factor(book: Any, run: Run) -> None:
    """Forty times as slow as the night before is no percentage; back again neither."""
    for day, percent in enumerate((0.0, 369.0, 0.0)):
        book.save(f"n{day}", *[book.run((percent, *FLAT[1:]), day=day)] * 3)
    lines = run("show", book.key(0), "--metric", "device_time_ns")[1].splitlines()

    assert [re.search(r" us +(.*?)  ", line)[1] for line in lines[-2:]] == ["x 40", "x 0.025"]


def test_show_names_nights_whose_gate_was_asleep(book: Any, run: Run) -> None:
    """A night's PASS says little where its session has not seen the slow-down that it had planted."""
    book.calm(8)
    book.gate("awake", [book.run(day=20)])
    asleep = book.gate("asleep", [book.run(day=21)], planted_ln=0.0)
    text, found = run("show", "*/00")[1], json.loads(run("show", "*/00", "--json")[1])
    (control,) = [each for each in asleep.controls if each.name == "plant"]

    assert [line for line in text.splitlines() if "control failed" in line] == [
        f"control failed: plant of night asleep: {control.detail}"
    ]
    assert found["unseen_plants"] == {"asleep": control.detail}


def test_show_says_where_the_level_changed(book: Any, run: Run) -> None:
    """The night with which it rose, and no other."""
    pytest.importorskip("ruptures", reason="an extra: fuseproof[trends]")
    book.calm(12)
    seed = np.random.default_rng(9)
    for number in range(12, 20):
        book.save(f"n{number}", *(book.run(3.0 + seed.normal(0, 0.1, 12), day=number) for _ in range(3)))
    lines = run("show", book.key(0))[1].splitlines()

    assert [line.split("(")[1].split(")")[0] for line in lines if "<- a new level" in line] == ["n12"]


def test_a_missing_library_is_one_sentence(book: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ruptures the series is shown all the same."""
    monkeypatch.setitem(sys.modules, "ruptures", None)
    book.calm(12)
    status, text = run("show", book.key(0))

    assert status == 0
    assert len(text.splitlines()) == 15
    assert text.splitlines()[-1] == change_point.NEEDS_RUPTURES


@pytest.mark.parametrize("shape", ["flat", "spike", "few", "constant"])
def test_a_series_without_a_change_has_no_point(shape: str) -> None:
    """Noise, one wild night, too few nights, the same value every night."""
    pytest.importorskip("ruptures", reason="an extra: fuseproof[trends]")
    values = np.random.default_rng(1).normal(0, 0.001, 60)
    values[30] += 0.05 * (shape == "spike")
    values = {"few": np.array([0.0] * 4 + [1.0] * 4), "constant": np.zeros(60)}.get(shape, values)

    assert change_point.change_points(values.tolist()) == []


# --- accept ---


def test_accept_starts_a_new_baseline(book: Any, run: Run) -> None:
    """The regression is over, for the benchmarks that fit the pattern and for no others."""
    book.calm(8)
    slow = (3.0, 3.0, *FLAT[2:])
    for number in range(2):
        book.gate(f"g{number}", [book.run(slow, day=10 + number)] * 3)
    status, text = run("accept", "*/00", "--reason", "the new kernel is exact", "--who", "kim")
    after = book.gate("g2", [book.run(slow, day=15)] * 3)

    assert (0, f"accepted with night 2026-01-12 (g1): {book.pair(0)}\n") == (status, text)
    assert {book.pair(1): "REGRESSED"} == book.labels(after)


def test_another_board_s_level_is_accepted(book: Any, run: Run) -> None:
    """The night says what to do about its other GPU, and that is what helps; withdrawn, it is unanswered again."""
    book.calm(8)
    night = [book.run(SLOW, day=10, board="another")] * 3
    said = book.gate("g0", night)
    status, table = run("check", *files(book))
    (row,) = [line for line in table.splitlines() if line.startswith(book.key(0))]
    course = run("show", book.key(0))[1]

    assert (21, 21, {book.pair(0): "INVALID(BOARD)"}) == (said.status(), status, book.labels(said))
    assert OTHER_BOARD in row
    assert "INVALID BOARD" in course

    for arguments, labels in (([], {}), (["--withdraw"], {book.pair(0): "INVALID(BOARD)"}), ([], {})):
        assert run("accept", "*/00", *arguments, "--reason", "another board")[0] == 0
        after = book.session("tonight", night)
        while after.plan():
            after.add(night_of("again", night[:1]).screening[0])
        assert labels == book.labels(after)


def test_what_a_night_could_not_judge_is_no_level(book: Any, run: Run) -> None:
    """It would be NEW from then on, and green."""
    book.calm(4)
    book.ledger.mark("n3", {book.pair(0): Mark(Outcome.INVALID, (Reason.UNCONFIRMED,))})
    records = book.history.records(book.machine)
    status, text = run("accept", "*/00", "--reason", "why")

    assert status == 21
    assert f"night n3: {book.pair(0)} is INVALID (UNCONFIRMED); accept it with a night that is sound" in text
    assert records == book.history.records(book.machine)
    assert run("accept", "*/00", "--night", "n2", "--reason", "why")[0] == 0


def test_accept_says_that_the_newest_night_may_not_be(book: Any, run: Run) -> None:
    """A run that is dated ahead counts as the newest: whoever accepts is told."""
    book.calm(2)
    (path,) = (file.path for file in book.save("ahead", book.run()))
    path.rename(path.with_name(path.name.replace(path.name.split("_")[1], "29991231T000000Z")))
    arguments = ["accept", "*/00", "--reason", "why", "--who", "kim"]
    assert "1 run(s) are dated ahead of this machine's clock, the last" in run(*arguments)[1]
    assert "dated ahead" in json.loads(run(*arguments, "--json")[1])["notes"][0]


def test_accept_says_that_a_newer_night_cannot_be_read(book: Any, run: Run) -> None:
    """The newest night that can be read is not the one that was meant: whoever accepts is told, and can withdraw."""
    book.calm(2)
    (path,) = (file.path for file in book.save("spoilt", book.run()))
    path.write_bytes(path.read_bytes()[:300])
    text = run("accept", "*/00", "--reason", "why", "--who", "kim")[1]

    assert "accepted with night 2026-01-02 (n1)" in text
    assert f"set aside: bench_history/h200-sxm/{path.name}: is not JSON, or cut short" in text


def test_accept_retires_what_the_night_does_not_have(book: Any, run: Run) -> None:
    """A benchmark that was removed on purpose is no longer MISSING."""
    book.calm(8)
    book.gate("g0", [book.run(FLAT[:11], day=10)] * 3)
    _, text = run("accept", book.key(11), "--reason", "no longer shipped", "--json")
    after = book.gate("g1", [book.run(FLAT[:11], day=11)] * 3)

    assert ({}, {"device_time_ns": [book.key(11)]}) == (json.loads(text)["accepted"], json.loads(text)["retired"])
    assert after.status() == 0


@pytest.mark.parametrize("asked", ["default without some: 11 benchmarks deselected", "gate", "of tests/kernels"])
def test_accept_leaves_what_the_night_was_not_asked_for(book: Any, run: Run, asked: str) -> None:
    """A pattern fits more than a part of the suite has: the rest keeps its baseline, and a regression of it blocks."""
    book.calm(8)
    book.save("part", book.run((30.0,), day=10, selection=asked))
    _, text = run("accept", "op/*", "--reason", "wanted", "--who", "kim", "--json")
    said = json.loads(text)
    after = book.gate("g1", [book.run((30.0,) * 2 + FLAT[2:], day=11)] * 3)
    none = run("accept", "*/11", "--night", "part", "--reason", "wanted", "--who", "kim")

    assert ({"device_time_ns": [book.key(0)]}, {}) == (said["accepted"], said["retired"])
    assert [book.key(number) for number in range(1, 12)] == said["left"]["device_time_ns"]
    assert (20, {book.pair(1): "REGRESSED"}) == (after.status(), book.labels(after))
    assert none[0] == 21
    assert f"night part was not asked for {book.key(11)} (selection {asked}), so it says nothing of it" in none[1]


def accepted_too_early(book: Any, nights: int) -> None:
    """Write a regressed level, and accept it; then nights of that level, which are judged by it."""
    book.calm(8)
    for number in range(2):
        book.gate(f"g{number}", [book.run(SLOW, day=10 + number)] * 3)
    book.ledger.accept("g1", [book.pair(0)], "why", "kim")
    for number in range(nights):
        book.gate(f"h{number}", [book.run(SLOW, day=15 + number)] * 3)


@pytest.mark.parametrize("nights", [0, 2])
def test_a_withdrawn_acceptance_judges_as_before_it(book: Any, run: Run, nights: int) -> None:
    """The level is REGRESSED again, as on the night that was accepted, and what was judged by it is no baseline."""
    accepted_too_early(book, nights)
    with_it = book.session("tonight", [book.run(SLOW, day=30)] * 3)
    assert book.labels(with_it) == {}
    status, text = run("accept", "*/00", "--withdraw", "--reason", "too early", "--who", "kim")
    after = book.gate("tonight", [book.run(SLOW, day=30)] * 3)
    (verdict,) = [each for each in after.verdicts if each.outcome is Outcome.REGRESSED]
    since = [
        f"judged by that level, so no baseline: night 2026-01-{16 + number} (h{number})" for number in range(nights)
    ]

    assert [f"no longer accepted with night 2026-01-12 (g1): {book.pair(0)}", *since] == text.splitlines()
    assert (0, (book.pair(0), "g0", 8)) == (status, (verdict.pair, verdict.since, verdict.nights))
    still = book.gate("mended", [book.run(day=31)] * 3)
    assert (book.labels(still), still.status()) == ({}, 0)


def test_what_was_judged_before_an_acceptance_stays_a_baseline(book: Any, run: Run) -> None:
    """An older night was accepted by mistake: the nights since have not been judged by it."""
    book.calm(4)
    for number in range(4):
        book.gate(f"g{number}", [book.run(day=10 + number)] * 3)
    before = book.session("tonight", [book.run(day=30)] * 3).verdicts
    book.ledger.accept("n1", [book.pair(0)], "why", "kim")
    assert before != book.session("tonight", [book.run(day=30)] * 3).verdicts
    text = run("accept", "*", "--withdraw", "--reason", "the wrong night", "--json")[1]

    assert {"n1": {"device_time_ns": [book.key(0)]}} == json.loads(text)["withdrawn"]
    assert json.loads(text)["no_baseline"] == {}
    assert before == book.session("tonight", [book.run(day=30)] * 3).verdicts


def test_an_acceptance_that_has_become_unreadable_is_withdrawn(
    book: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index knows it by its size and time; what cannot be looked up makes a night no baseline rather than one."""
    accepted_too_early(book, 1)
    book.ledger.nights()
    load = History.load_record

    def without_rights(file: Any) -> Any:
        if "accepted" in (document := load(file)):
            raise HistoryError(f"{file.path}: Permission denied")
        return document

    monkeypatch.setattr(History, "load_record", staticmethod(without_rights))
    status, text = run("accept", "*/00", "--withdraw", "--reason", "too early", "--who", "kim")

    assert (status, text.count("no longer accepted with night"), text.count("no baseline: night")) == (0, 1, 1)


def test_a_withdrawn_level_can_be_accepted_again(book: Any, run: Run) -> None:
    """Of what was said by hand of one night the last holds; what is retired and withdrawn is MISSING again."""
    accepted_too_early(book, 0)
    run("accept", "*/00", "--withdraw", "--reason", "too early")
    run("accept", "*/00", "--reason", "in time")
    assert book.labels(book.session("tonight", [book.run(SLOW, day=30)] * 3)) == {}

    for arguments, said in ((["--reason", "gone"], {}), (["--withdraw", "--reason", "not gone"], {"MISSING"})):
        book.gate(f"part{len(said)}", [book.run(SLOW[:11], day=30)] * 3)
        run("accept", "*/11", *arguments)
        assert set(said) == set(book.labels(book.session("whole", [book.run(SLOW[:11], day=31)] * 3)).values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["zzz"], "no benchmark whose level is accepted has the key 'zzz'; known: op/mine/fp32/00"),
        (["*/03"], "no benchmark whose level is accepted has the key '*/03'; known: op/mine/fp32/00"),
        (["*", "--night", "n3"], "no level with night 'n3' is accepted, so there is none to withdraw"),
        (["*", "--metric", "launches"], "these benchmarks have no metric 'launches'"),
    ],
)
def test_withdraw_refuses_what_is_not_accepted(book: Any, run: Run, arguments: list[str], said: str) -> None:
    """One sentence, and nothing is written."""
    accepted_too_early(book, 0)
    records = book.history.records(book.machine)
    status, text = run("accept", *arguments, "--withdraw", "--reason", "why")

    assert (status, len(text.splitlines())) == (21, 1)
    assert said in text
    assert records == book.history.records(book.machine)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["op/mine/fp32/0x"],
            "no benchmark of the history has the key 'op/mine/fp32/0x'; did you mean 'op/mine/",
        ),
        (["op/mine/fp32/00", "zzz*"], "no benchmark of the history has the key 'zzz*'; known: op/mine"),
        (["*", "--metric", "device_time"], "no metric 'device_time'; did you mean 'device_time_ns'?"),
        (["*", "--night", "n9"], "h200-sxm has no night 'n9'; known: n0, n1, n2."),
        (["*", "--machine", "a100"], "no run of 'a100'; it has h200-sxm (9 runs)"),
        (["*", "--machine", "../x"], "'../x' is no machine"),
        (["*", "--who", " "], "an acceptance has a reason and somebody who gives it"),
        (["op/mine/fp32/03", "--night", "n2"], "op/mine/fp32/03 device_time_ns is INVALID (throttled)"),
    ],
)
def test_accept_refuses_what_it_does_not_know(book: Any, run: Run, arguments: list[str], said: str) -> None:
    """With the nearest that is known; nothing is remembered."""
    book.calm(2)
    book.save("n2", *[book.run(invalid={book.key(3): ["throttled"]})] * 3)
    status, text = run("accept", *arguments, "--reason", "why")

    assert (status, len(text.splitlines())) == (21, 1)
    assert said in text
    assert book.history.records(book.machine) == []


def test_several_machines_must_be_told_apart(book: Any, run: Run) -> None:
    """And none at all is said too."""
    assert "it has no runs; save a first run" in run("show")[1]
    book.calm(1)
    replace(book, machine="a100").calm(1)
    status, text = run("show")

    assert status == 21
    assert "it has a100 (3 runs), h200-sxm (3 runs); say which with --machine" in text
    assert run("show", "--machine", "a100")[0] == 0


@pytest.mark.parametrize("command", [["show"], ["accept", "*/00", "--reason", "wanted"]], ids=["show", "accept"])
def test_of_several_machines_this_one_is_taken(book: Any, run: Run, command: list[str]) -> None:
    """Without --machine; which one that is, is said."""
    book.calm(1)
    replace(book, machine=(own := machine.identify().slug)).calm(1)
    status, text = run(*command)

    assert status == 0
    assert f"fuseproof {command[0]}: the nights of {own}, this machine; for another give --machine" in text


def test_without_torch_several_machines_must_be_told_apart(
    book: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only torch knows which GPU this is: where it is absent or broken, somebody must say."""
    book.calm(1)
    replace(book, machine=machine.identify().slug).calm(1)
    for fault in (ImportError("no torch"), OSError("libcudart.so.13: cannot open shared object file")):

        def broken(fault: Exception = fault) -> None:
            raise fault

        monkeypatch.setattr(machine, "identify", broken)
        assert "say which with --machine" in run("show")[1]


# --- what it needs ---


def test_the_commands_need_neither_torch_nor_pytest(book: Any) -> None:
    """A laptop with copied files, numpy and scipy is enough."""
    book.calm(3)
    code = """if True:
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {"torch", "pytest", "pytest_benchmark", "pynvml", "apex"}:
                    raise ImportError(f"{name} is blocked")

        sys.meta_path.insert(0, Blocker())
        from fuseproof.cli import main

        raise SystemExit(main(sys.argv[1:]))
    """
    environ = {"PYTHONPATH": str(Path(fuseproof.__file__).parent.parent), "PATH": "/usr/bin:/bin", "USER": "kim"}
    paths = [str(path) for path in files(book)]
    for arguments in (["check", *paths], ["show"], ["show", "*/00"], ["accept", "*/00", "--reason", "why"]):
        child = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=book.root.parent,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (child.returncode, child.stderr) == (0, "")


def test_check_asks_for_the_files_of_a_folder(run: Run, tmp_path: Path) -> None:
    """A folder is one sentence too, and says what to give instead."""
    assert run("check", tmp_path) == (
        21,
        f"fuseproof check: {tmp_path}: is a folder; give the files in it, or move it out of the history\n",
    )


def test_a_reader_that_has_seen_enough_is_no_error(book: Any) -> None:
    """`fuseproof show | head -1`: no traceback, and the status that a shell gives to a closed pipe."""
    book.calm(3)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        environ = {**os.environ, "PYTHONPATH": str(Path(fuseproof.__file__).parent.parent)}
        command = [sys.executable, "-m", "fuseproof", "show", "--history", str(book.root)]
        child = subprocess.run(command, env=environ, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    assert (child.returncode, child.stderr) == (141, "")


def test_ctrl_c_is_no_traceback(book: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is interrupted while it reads ends as a shell says it."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "nights", interrupted)
    book.calm(3)
    assert run("show") == (130, "")


@pytest.mark.parametrize("command", ["check", "show", "accept"])
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """--help fits a terminal and ends with 0."""
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])

    said = capsys.readouterr().out
    assert (ended.value.code, f"usage: fuseproof {command}" in said) == (0, True)
    assert "%%" not in said
