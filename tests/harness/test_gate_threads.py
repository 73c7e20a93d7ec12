"""On a CPU each number of torch's threads is measured by nights of its own; beside a GPU it changes nothing."""

import re
from typing import Any

import pytest

from fuseproof.cli import main
from fuseproof.gate.keys import accept, withdraw
from fuseproof.gate.present import table_lines
from fuseproof.gate.session import GateSession
from fuseproof.verdicts.verdict import SUITE

CPU, GPU = "cpu-epyc-2c", "nvidia-h200"
STILL = (0.0,) * 11


def labels(session: GateSession) -> set[str]:
    """Return all that a session says."""
    return {verdict.label for verdict in session.verdicts}


def calm(book: Any, threads: int, first: int = 0) -> None:
    """Append eight nights with so many threads."""
    book.calm(8, first=first, settings={"threads": threads})


def run(book: Any, threads: int, percent: float = 0.0, day: int = 40) -> Any:
    """Return a process with so many threads, in which the first benchmark is slower by some %."""
    return book.run((percent, *STILL), day=day, machine=book.machine, settings={"threads": threads})


def test_another_number_of_threads_is_another_baseline_on_a_cpu(book: Any) -> None:
    """Half the threads, half the speed: no regression, and no PASS either until that number has nights of its own."""
    book.machine = CPU
    calm(book, 2)
    session = book.session("tonight", [run(book, 1, 70.0)])
    text = "\n".join(table_lines(session))

    assert ({"NEW(NO_BASELINE)"}, None) == (labels(session), session.plan())
    assert "12 keys without a baseline have nights with 2 threads, and tonight's have 1: on a CPU each number" in text
    assert "nothing to judge 12 keys by yet: `fuseproof calibrate -n 8`" in text

    calm(book, 1, first=10)
    for threads in (1, 2):
        session = book.session("tonight", [run(book, threads)])
        assert {"PASS"} == labels(session)
        assert "threads" not in "\n".join(table_lines(session))


def test_threads_beside_a_gpu_are_no_baseline_of_their_own(book: Any) -> None:
    """They move host times alone, which are reported."""
    book.machine = GPU
    calm(book, 2)

    assert {"PASS"} == labels(book.session("tonight", [run(book, 1)]))


def test_a_night_with_other_threads_holds_nothing_for_tonight(book: Any) -> None:
    """Held with two threads and slow with one: tonight is held too, for the first time; then with one again."""
    book.machine = CPU
    calm(book, 2)
    calm(book, 1, first=10)
    said = [
        labels(book.gate(f"slow{number}", [run(book, threads, 1.5, day=30 + number)]))
        for number, threads in enumerate((2, 1, 1))
    ]

    assert [{"PASS", "INCONCLUSIVE(HELD)"}] * 2 == said[:2]
    assert {"PASS", "REGRESSED"} == said[2]


def test_a_suite_held_with_other_threads_is_not_held_for_tonight(book: Any) -> None:
    """The whole suite slower with two threads, then with one: nothing was slower twice."""
    book.machine = CPU
    new = {"software": {"driver": "580", "torch": "2.12"}}
    calm(book, 2)
    calm(book, 1, first=10)
    said = []
    held = {"INCONCLUSIVE(HELD, SUITE_SHIFT)"}
    for number, threads in enumerate((2, 1, 1)):
        slow = book.run((2.0,) * 12, day=30 + number, machine=CPU, settings={"threads": threads}, **new)
        said.append({v.label for v in book.gate(f"slow{number}", [slow]).verdicts if v.pair.key == SUITE})

    assert [held, held, {"REGRESSED(SUITE_SHIFT)"}] == said


def test_a_withdrawn_level_leaves_nights_of_other_threads(book: Any) -> None:
    """What was accepted with one thread has judged no night with two."""
    book.machine = CPU
    calm(book, 2)
    calm(book, 1, first=10)
    book.gate("one", [run(book, 1, 2.5, day=30)])
    accept(book.history, CPU, [book.key(0)], None, "one", "wanted", "kim")
    book.gate("two", [run(book, 2, day=31)])
    book.gate("again", [run(book, 1, 2.5, day=32)])
    withdrawn = withdraw(book.history, CPU, [book.key(0)], None, None, "not wanted", "kim")

    assert list(withdrawn.since) == ["again"]


def test_show_compares_no_night_with_other_threads(
    book: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says which nights those are, and beside them there is no change."""
    monkeypatch.chdir(book.root.parent)
    book.machine = CPU
    for number, threads in enumerate((2, 1, 2)):
        book.save(f"n{number}", run(book, threads, 70.0 * (threads == 1), day=number))
    assert main(["show", "*/00", "--history", str(book.root)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:5]
    changes = [re.search(r"us +(\S+)", row) for row in rows]

    assert [change and change[1] for change in changes] == ["-", "-", "+0.00"]
    assert ["by another method" in row for row in rows] == [False, True, False]


def test_processes_of_one_night_with_other_threads_are_invalid(book: Any) -> None:
    """Two sessions that call themselves one night and measure two things are no night, nor a baseline later."""
    book.machine = CPU
    calm(book, 2)
    session = book.session("tonight", documents := [run(book, 2), run(book, 1)])

    assert ({"INVALID(MEASUREMENT)"}, 21) == (labels(session), session.status())
    assert session.verdicts[0].detail == "its processes do not measure the same: method, CPU model or threads differ"

    book.save("tonight", *documents)
    later = book.session("later", [run(book, 2)])
    assert {8} == {verdict.nights for verdict in later.verdicts}


@pytest.mark.parametrize("how", ["improved", "accepted", "regressed"])
def test_what_is_said_of_other_threads_moves_no_baseline(book: Any, how: str) -> None:
    """A level that begins, or is lost, with one thread is none with two: those keep their nights and their anchor."""
    book.machine = CPU
    calm(book, 2)
    calm(book, 1, first=10)
    for number in range(2):
        percent = -2.5 if how == "improved" else 2.5
        book.gate(f"one{number}", [run(book, 1, percent, day=30 + 2 * number)])
        book.gate(f"two{number}", [run(book, 2, day=31 + 2 * number)])
    if how == "accepted":
        book.ledger.accept("one1", [book.pair(0)], "wanted", "kim")
    calmly = book.session("tonight", [run(book, 2)])
    slow = book.gate("slow", [run(book, 2, 30.0)])

    assert ({"PASS"}, {10}) == (labels(calmly), {verdict.nights for verdict in calmly.verdicts})
    assert (slow.status(), book.labels(slow)[book.pair(0)]) == (20, "REGRESSED")
