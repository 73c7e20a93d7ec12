"""Parity in both environments: once each, on which GPUs, and what an interrupted upgrade goes on with."""

import dataclasses
import json
import signal
import threading

import pytest

from fuseproof.history import HistoryError
from fuseproof.upgrade import parity_kept as module
from fuseproof.upgrade.asked import Asked
from fuseproof.upgrade.bank import Bank
from fuseproof.upgrade.environment import Environment, Examined, UpgradeError
from fuseproof.upgrade.parity_kept import parity
from fuseproof.upgrade.parity_run import Case, ParityRun

OLD, NEW = (Examined(Environment(name, f"/{name}/python"), {}, "nvidia-h200", 4) for name in ("old", "new"))


@pytest.fixture
def asked(tmp_path):
    """Return what is asked."""
    return Asked(tmp_path, ("tests",), "adam", "", ("--more",), "", (), 24, False, None, "all", tmp_path / "kept")


@pytest.fixture
def bank(asked):
    """Return an empty bank."""
    one = Bank.begin(asked.folder, asked.plan("upgrade", "nvidia-h200", {"old": {}, "new": {}}))
    yield one
    one.end()


@pytest.fixture
def measured(monkeypatch):
    """Return the calls that measure parity; each answers at once, as an environment in which one case fails in new."""
    calls = []

    def measure(examined, tests, keyword, folder, workers, say, **more):
        calls.append({"name": examined.name, "tests": tests, "keyword": keyword, "workers": workers, **more})
        outcome = Case("failed", "wrong") if examined.name == "new" else Case("passed", errors={"y": 0.5})
        return ParityRun({"t.py::a": outcome}, 9.0)

    monkeypatch.setattr(module, "measure_parity", measure)
    return calls


def of_gpus(monkeypatch, asked, uuids, **changes):
    """Return what is asked where these GPUs are."""
    monkeypatch.setattr("fuseproof.gpu.gpu_uuids", lambda: uuids)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return dataclasses.replace(asked, **changes)


@pytest.mark.parametrize(
    ("count", "gpus", "visible"),
    [
        (0, "all", [None, None]),
        (1, "all", ["GPU-0", "GPU-0"]),
        (2, "all", ["GPU-0", "GPU-1"]),
        (4, "all", ["GPU-0,GPU-2", "GPU-1,GPU-3"]),
        (4, "1", ["GPU-0", "GPU-0"]),
    ],
    ids=["cpu", "one", "two", "four", "one_of_four"],
)
def test_which_gpus_each_environment_has(count, gpus, visible, asked, bank, measured, monkeypatch):
    """All of those asked for, one after the other; from two on a half each, at the same time."""
    asked = of_gpus(monkeypatch, asked, [f"GPU-{number}" for number in range(count)], gpus=gpus)
    change = parity(asked, bank, (OLD, NEW), 8, print)
    calls = sorted(measured, key=lambda call: call["name"], reverse=True)
    at_once = [isinstance(call["stop"], threading.Event) for call in calls]

    assert [call["name"] for call in calls] == ["old", "new"]
    assert [call["variables"].get("CUDA_VISIBLE_DEVICES") for call in calls] == visible
    assert at_once == [visible[0] != visible[1]] * 2
    assert (calls[0]["keyword"], calls[0]["workers"], calls[0]["tests"]) == ("adam", 8, [str(asked.root / "tests")])
    assert "--more" in calls[0]["arguments"]
    assert [each.test for each in change.newly_failing] == ["t.py::a"]


def test_what_is_kept_is_not_measured_again(asked, bank, measured, monkeypatch):
    """The second time nothing runs, and the answer is the same, errors and reasons too."""
    asked, said = of_gpus(monkeypatch, asked, []), []
    first = parity(asked, bank, (OLD, NEW), 0, said.append)
    again = parity(asked, bank, (OLD, NEW), 0, said.append)

    assert len(measured) == 2
    assert again == first
    assert again.newly_failing[0].why == "wrong"
    assert said == [
        f"parity: old environment: 1 cases, 0 known defects, 0 failed, 0 skipped, as kept in {bank.folder}",
        f"parity: new environment: 1 cases, 0 known defects, 1 failed, 0 skipped, as kept in {bank.folder}",
    ]


def test_no_case_ends_before_the_pairs(asked, bank, monkeypatch):
    """Nothing that is measured could decide; what a mistaken -k leaves does not hold the folder for it."""
    asked = of_gpus(monkeypatch, asked, [])
    monkeypatch.setattr(module, "measure_parity", lambda *_, **__: ParityRun({}, 9.0))
    with pytest.raises(UpgradeError, match=r"^no parity case fits tests -k 'adam': widen it, or give --no-parity$"):
        parity(asked, bank, (OLD, NEW), 0, print)

    assert not list(bank.folder.glob("parity-*"))


@pytest.mark.parametrize(
    ("old", "new", "warned"),
    [("skipped", "skipped", True), ("skipped", "failed", False), ("passed", "passed", False)],
    ids=["none_ran", "newly_wrong", "ran"],
)
def test_cases_that_ran_nowhere_are_told_before_the_pairs(old, new, warned, asked, bank, monkeypatch):
    """The answer is then 'Not decided' whatever is measured, unless the new environment is newly wrong."""
    asked, lines = of_gpus(monkeypatch, asked, []), []
    outcomes = {"old": old, "new": new}
    monkeypatch.setattr(
        module, "measure_parity", lambda examined, *_, **__: ParityRun({"t.py::a": Case(outcomes[examined.name])}, 9.0)
    )
    parity(asked, bank, (OLD, NEW), 0, lines.append)

    assert warned == any("so the answer will be 'Not decided': widen -k, or give --no-parity" in line for line in lines)


def test_one_environment_is_kept_if_the_other_fails(asked, bank, measured, monkeypatch):
    """An interruption costs at most the environment that was being measured."""
    asked, measure = of_gpus(monkeypatch, asked, []), module.measure_parity

    def fail_in_new(examined, *arguments, **more):
        if examined.name == "new":
            raise UpgradeError("parity in new: it was killed by SIGKILL")
        return measure(examined, *arguments, **more)

    monkeypatch.setattr(module, "measure_parity", fail_in_new)
    with pytest.raises(UpgradeError):
        parity(asked, bank, (OLD, NEW), 0, print)
    monkeypatch.setattr(module, "measure_parity", measure)
    parity(asked, bank, (OLD, NEW), 0, print)

    assert [call["name"] for call in measured] == ["old", "new"]


@pytest.mark.parametrize(
    ("ends_in", "said"),
    [
        ("old", "interrupted in parity: nothing of it is kept; the same command starts it again"),
        ("new", "interrupted in parity: that of old is kept; the same command goes on with the rest"),
    ],
    ids=["in_old", "in_new"],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl_c", "sigterm"])
def test_an_interruption_says_what_is_kept(number, ends_in, said, asked, bank, measured, monkeypatch):
    """One line, by either signal; the command then ends as an interrupted one does."""
    asked, measure, lines = of_gpus(monkeypatch, asked, []), module.measure_parity, []

    def interrupted(examined, *arguments, **more):
        if examined.name == ends_in:
            signal.raise_signal(number)
        return measure(examined, *arguments, **more)

    monkeypatch.setattr(module, "measure_parity", interrupted)
    with pytest.raises(KeyboardInterrupt):
        parity(asked, bank, (OLD, NEW), 0, lines.append)

    assert lines[-1] == said


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-20],
        lambda text: text[:0],
        lambda text: f"[{text}]",
        lambda text: text.replace('"schema":2', '"schema":7'),
        lambda text: text.replace("passed", "pissed"),
        lambda text: json.dumps({**json.loads(text), "seconds": "long"}),
        lambda text: json.dumps({**json.loads(text), "seconds": None}),
        lambda text: json.dumps({**json.loads(text), "seconds": float("nan")}),
    ],
    ids=["cut", "empty", "list", "schema", "outcome", "seconds", "no_seconds", "nan_seconds"],
)
def test_a_kept_file_that_somebody_spoiled_is_one_sentence(spoil, asked, bank, measured, monkeypatch):
    """It names the file; nothing is taken from it."""
    asked = of_gpus(monkeypatch, asked, [])
    parity(asked, bank, (OLD, NEW), 0, print)
    path = bank.folder / "parity-old.json"
    path.write_text(spoil(path.read_text()))
    with pytest.raises((UpgradeError, HistoryError)) as refused:
        parity(asked, bank, (OLD, NEW), 0, print)

    assert "parity-old.json" in str(refused.value)
    assert "\n" not in str(refused.value)
