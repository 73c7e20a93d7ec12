"""What came of each parity case as a file, and what an upgrade changes in it: through pytest, and with a seeded bug."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuseproof.order import Order
from fuseproof.upgrade.environment import Environment, Examined, UpgradeError
from fuseproof.upgrade.parity_change import GROWTH, CaseChange, Growth, ParityChange, compare
from fuseproof.upgrade.parity_run import Case, ParityRun, measure_parity, read_run

pytest_plugins = ["pytester"]

TOML = '[tool.fuseproof]\nhistory = "bench_history"\n[tool.pytest.ini_options]\naddopts = ["--strict-markers"]\n'
TESTS = """
import os

import pytest
import torch

from fuseproof.parity import Budget, ParityError, assert_parity, assert_rounded
from fuseproof.parity.child import run_in_child

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]
DOES = {"torch_loop": "right", "torch_default": "wrong", "torch_foreach": "known", "torch_fused": "skipped",
        "torch_fused_capturable": "mended"}
ONE = torch.ones(2, dtype=torch.float64)
TWICE = Budget(2.0, "twice")


def test_one(adam):
    does = DOES[adam.name]
    if does == "skipped":
        pytest.skip("it rains")
    assert_parity("y", ONE + 0.5, ONE, ONE, TWICE, "")
    assert_parity("y", ONE + 0.25, ONE, ONE, TWICE, "")
    if does in ("wrong", "known"):
        assert_parity("dx", ONE + 5, ONE, ONE, TWICE, "this case")


@pytest.mark.skipif("not config.getoption('fuseproof_full')")
def test_full(adam):
    pass


def not_parity():
    pass
"""
DEFECTS = """
[[defect]]
id = "rounds"
title = "It rounds"
faults = [1]
candidates = ["torch_foreach", "torch_fused_capturable"]
devices = ["cpu", "cuda"]
evidence = "seen on a Tuesday"
since = "torch 2.13"
reproduction = "rounds.py"
[[defect.seen]]
test = "test_one"
cases = ".*"
"""


@pytest.fixture(autouse=True, scope="module")
def _no_worker():
    """What xdist tells its workers is not for the sessions that are started here."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PYTEST_XDIST")]:
            patch.delenv(name)
        yield


def run(pytester, *arguments, status):
    """Run pytest, with workers in a process of its own, and return what it printed."""
    common = ("-p", "no:cacheprovider", "--benchmark-disable", "--fuseproof-parity-json=parity.json")
    if "-n" in arguments:
        result = pytester.runpytest_subprocess(*common, *arguments)
    else:
        result = pytester.runpytest_inprocess(*common, *arguments, no_reraise_ctrlc=True)
    text = result.stdout.str() + result.stderr.str()

    assert result.ret == status, text
    return text


def written(pytester, *arguments, status):
    """Run pytest and return the file that it has left, by the part of a test's id that says which."""
    run(pytester, *arguments, status=status)
    document = json.loads((pytester.path / "parity.json").read_text())
    return document, {test.partition("::")[2]: case for test, case in document["tests"].items()}


# --- the file ---


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two_workers"])
def test_what_came_of_each_case(pytester, workers):
    """All outcomes, with reasons and with the greatest error of each quantity, alone and from workers."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=TESTS)
    (pytester.path / "adam_defects.toml").write_text(DEFECTS)
    document, cases = written(pytester, *workers, "-k", "test_one", status=1)
    wrong = cases["test_one[torch_default]"]

    assert (document["schema"], document["finished"]) == (2, True)
    assert cases["test_one[torch_loop]"] == {"outcome": "passed", "errors": {"y": 0.25}}
    assert wrong.pop("why").startswith("dx: 2 of 2 elements beyond the budget; worst at (0,): got 6")
    assert wrong == {"outcome": "failed", "errors": {"y": 0.25, "dx": 2.5}}
    assert cases["test_one[torch_foreach]"] == {"outcome": "known", "why": "rounds", "errors": {"y": 0.25, "dx": 2.5}}
    assert cases["test_one[torch_fused_capturable]"]["outcome"] == "mended"
    assert cases["test_one[torch_fused_capturable]"]["why"] == "rounds"
    assert cases["test_one[torch_fused]"] == {"outcome": "skipped", "why": "it rains"}
    assert cases["test_one[apex]"]["outcome"] == "skipped"


KINDS = """
import pytest
import torch

from fuseproof.parity import Budget, ParityError, assert_parity, assert_rounded
from fuseproof.parity.child import run_in_child
from fuseproof.parity.measures import assert_within

ONE = torch.ones(2, dtype=torch.float64)
ONCE = Budget(1.0, "once")


def half():
    assert_parity("from afar", ONE + 0.5, ONE, ONE, ONCE, "")


def test_no_parity():
    assert_parity("not of a case", ONE + 0.5, ONE, ONE, ONCE, "")


@pytest.mark.parity
def test_nothing():
    pass


@pytest.mark.parity
def test_child():
    run_in_child(f"{__name__}:half")


def far():
    assert_parity("from afar", ONE + 5, ONE, ONE, ONCE, "")


@pytest.mark.parity
def test_child_fails():
    run_in_child(f"{__name__}:far")


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["endless", "shape", "beyond", "below"])
def test_fails(kind):
    held = torch.tensor([1.0], dtype=torch.bfloat16)
    if kind == "endless":
        assert_parity("y", ONE * float("nan"), ONE, ONE, ONCE, "")
    if kind == "shape":
        assert_rounded("y", held, ONE, ONE, ONCE, "")
    value = torch.tensor([1.5], dtype=torch.float64)
    if kind == "beyond":
        assert_rounded("y of parameter 3 (1,)", held, value, 0.01 * value, ONCE, "")
    # The wider of two limits is what an error is told in: 0.5 of it, and beyond the narrower one.
    assert_within("y", held, value, value - 0.25, value + 1, ONCE, "")


@pytest.mark.parity
def test_expected():
    with pytest.raises(ParityError):
        assert_parity("y", ONE + 5, ONE, ONE, ONCE, "")


@pytest.mark.parity
def test_rounded():
    value, stored = torch.tensor([1.0, 3.0]).double(), torch.tensor([1.0, 3.0], dtype=torch.bfloat16)
    assert_rounded("exact", stored, value, 0.01 * value, ONCE, "")
    # A tie of BF16 is half of 2^-7 above 1: the oracle lies 0.002 above it, and 0.01 is allowed.
    near = torch.tensor([1 + 2**-8 + 0.002, 3.0], dtype=torch.float64)
    assert_rounded("near a tie", stored, near, torch.full_like(near, 0.01), ONCE, "")
    assert_rounded("w of parameter 1 (2,)", stored, value, 0.01 * value, ONCE, "")


@pytest.mark.parity
def test_infinite():
    value = torch.tensor([1.0, float("inf"), float("nan")], dtype=torch.float64)
    assert_rounded("endless", value.float(), value, torch.zeros_like(value), ONCE, "")
    largest = torch.tensor([65519.0], dtype=torch.float64)  # a little more is infinite in FP16
    assert_rounded("too large", torch.tensor([float("inf")]).half(), largest, largest / 1000, ONCE, "")


@pytest.mark.parity
@pytest.mark.parametrize("phase", ["setup", "teardown"])
def test_phase(phase, request):
    if phase == "teardown":
        request.addfinalizer(lambda: 1 / 0)


@pytest.fixture(autouse=True)
def _setup(request):
    if "setup" in request.node.name:
        raise ParityError("not even begun")
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "a_worker"])
def test_errors_of_every_kind(pytester, workers, monkeypatch):
    """Of children too; a rounding is none; what one test has noted is not said of the next; failures of all phases."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(pytester.path), *sys.path])))
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_kinds=KINDS)
    _, cases = written(pytester, *workers, "-p", "no:randomly", status=1)
    phase = cases["test_phase[teardown]"]

    assert "test_no_parity" not in cases
    assert cases["test_nothing"] == {"outcome": "passed"}
    assert cases["test_child"] == {"outcome": "passed", "errors": {"from afar": 0.5}}
    assert cases["test_child_fails"]["errors"] == {"from afar": 5.0}
    failed = {kind: cases[f"test_fails[{kind}]"]["errors"] for kind in ("endless", "shape", "beyond", "below")}
    assert failed == {"endless": {"y": 1e99}, "shape": {"y": 1e99}, "beyond": {"y": 32.0}, "below": {"y": 1.0}}
    assert cases["test_expected"] == {"outcome": "passed"}
    assert cases["test_rounded"]["errors"] == {"exact": 0.0, "near a tie": 0.2, "w": 0.0}
    assert cases["test_infinite"]["errors"] == {"endless": 0.0, "too large": 0.0}
    assert cases["test_phase[setup]"] == {"outcome": "failed", "why": "not even begun"}
    assert (phase["outcome"], phase["why"]) == ("failed", "ZeroDivisionError: division by zero")


def test_a_case_that_kills_its_worker_has_failed(pytester):
    """Nothing comes from the worker; xdist says so in its own words, and the others' cases are there."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(
        test_deadly="""
        import os
        import pytest
        pytestmark = pytest.mark.parity

        def test_deadly(): os._exit(3)

        def test_well(): pass
        """
    )
    document, cases = written(pytester, "-n", "1", status=1)

    assert document["finished"]
    assert cases["test_deadly"]["outcome"] == "failed"
    assert "crashed while running" in cases["test_deadly"]["why"]
    assert cases["test_well"] == {"outcome": "passed"}


ENDED = """
import os
import signal

import pytest

pytestmark = pytest.mark.parity


def test_first():
    {first}


def test_second():
    pass
"""


@pytest.mark.parametrize(
    ("first", "arguments", "status"),
    [
        ("assert 0", ("-x",), 1),
        ("raise KeyboardInterrupt", (), 2),
        ("pytest.exit('enough')", (), 2),
    ],
    ids=["exitfirst", "ctrl_c", "exit"],
)
def test_a_session_that_ended_early_says_so(first, arguments, status, pytester):
    """What was not run is not known: such a file is refused by whoever reads it."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_ended=ENDED.format(first=first))
    document, cases = written(pytester, *arguments, status=status)

    assert document["finished"] is False
    assert "test_second" not in cases
    with pytest.raises(UpgradeError, match=r"^old: its session ended before its last test"):
        read_run(pytester.path / "parity.json", "old")


def test_a_session_that_crashes_leaves_no_older_file(pytester):
    """Nobody takes yesterday's answer for today's."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_ended=ENDED.format(first="os._exit(9)"))
    (pytester.path / "parity.json").write_text("{}")
    result = pytester.runpytest_subprocess("--fuseproof-parity-json=parity.json")

    assert result.ret == 9
    assert not (pytester.path / "parity.json").exists()


def test_a_child_that_measures_leaves_its_parent_s_file_alone(pytester, monkeypatch, tmp_path):
    """It has the command line of the session that confirms its suspects, and this option with it."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_ended=ENDED.format(first="pass"))
    (pytester.path / "parity.json").write_text("the parent's")
    for name, value in Order(tmp_path, ()).given().items():
        monkeypatch.setenv(name, value)
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--fuseproof-parity-json=parity.json")

    assert result.ret == 0, result.stdout.str()
    assert (pytester.path / "parity.json").read_text() == "the parent's"


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(pytester):
    """One sentence, and no hundred seconds of tests for nothing."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_ended=ENDED.format(first="pass"))
    absent = run(pytester, "--fuseproof-parity-json=no/where.json", status=4)
    (pytester.path / "folder").mkdir()
    folder = run(pytester, "--fuseproof-parity-json=folder", status=4)

    assert "--fuseproof-parity-json=no/where.json: there is no folder" in absent
    assert "--fuseproof-parity-json=folder: Is a directory; name a file that can be written." in folder


def test_no_case_at_all_is_an_empty_file(pytester):
    """It is finished, and holds nothing; whoever compares says that nothing was compared."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile("def test_other(): pass")
    document, cases = written(pytester, "-m", "parity", status=5)

    assert (document["finished"], cases) == (True, {})


def test_nothing_is_computed_that_nobody_asked_for(pytester):
    """Without the option no error is noted: it costs a pass over the elements."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile("from fuseproof.parity import worst\ndef test_off(): assert not worst.collecting()")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")

    assert result.ret == 0, result.stdout.str()


# --- reading it ---

GOOD = {"schema": 2, "finished": True, "tests": {"t.py::a": {"outcome": "passed", "errors": {"y": 0.5}}}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "pytest left no "),
        ("", "is not JSON, or cut short"),
        (json.dumps(GOOD)[:-9], "is not JSON, or cut short"),
        ("[" * 100_000, "is not JSON, or cut short"),
        ("[]", "has schema 'list', this is 2"),
        (json.dumps({**GOOD, "schema": 1}), "has schema 1, this is 2; use the same fuseproof for both"),
        (json.dumps({**GOOD, "finished": "yes"}), "its session ended before its last test"),
        (json.dumps({**GOOD, "tests": []}), "has no tests"),
        (json.dumps({**GOOD, "tests": {"a": 3}}), "a is 3; it takes outcome, why and errors"),
        (json.dumps({**GOOD, "tests": {"a": {"outcome": "passed", "x": 1}}}), "it takes outcome, why and errors"),
        (json.dumps({**GOOD, "tests": {"a": {}}}), "a: outcome is None; there are failed, mended,"),
        (json.dumps({**GOOD, "tests": {"a": {"outcome": ["passed"]}}}), "a: outcome is ['passed']"),
        (json.dumps({**GOOD, "tests": {"a": {"outcome": "failed", "why": 3}}}), "a: why is a text"),
        *(
            (
                json.dumps({**GOOD, "tests": {"a": {"outcome": "passed", "errors": {"y": error}}}}),
                "a: the error of y is",
            )
            for error in (math.nan, math.inf, -1, 1.5, True, "0.5", None)
        ),
        *(
            (
                json.dumps({**GOOD, "tests": {"a": {"outcome": "failed", "errors": {"y": error}}}}),
                "a: the error of y is",
            )
            for error in (math.nan, math.inf, -1, 1e100)
        ),
    ],
)
def test_garbage_is_refused_in_one_sentence(text, words, tmp_path):
    """File, place and mend; never a traceback, and never a run that looks right."""
    path = tmp_path / "parity.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UpgradeError) as refused:
        read_run(path, "parity in old")

    assert str(refused.value).startswith("parity in old: ")
    assert "\n" not in str(refused.value)
    assert words in str(refused.value)


# --- the change ---


def parity(**cases):
    """Return a run by `name=outcome`, or `name=Case`."""
    return ParityRun({n: case if isinstance(case, Case) else Case(case) for n, case in cases.items()}, 1.0)


KINDS_OF_CHANGE = {
    ("passed", "failed"): "newly_failing",
    ("known", "failed"): "newly_failing",
    ("mended", "failed"): "newly_failing",
    ("skipped", "failed"): "newly_failing",
    (None, "failed"): "newly_failing",
    ("failed", "passed"): "newly_passing",
    ("failed", "mended"): "newly_passing",
    ("failed", "failed"): "still_failing",
    ("failed", "known"): "still_failing",
    ("passed", "known"): "defects_gained",
    ("mended", "known"): "defects_gained",
    ("known", "passed"): "defects_mended",
    ("known", "mended"): "defects_mended",
    ("passed", "skipped"): "vanished",
    ("known", "skipped"): "vanished",
    ("failed", "skipped"): "vanished",
    ("passed", None): "vanished",
    ("failed", None): "vanished",
    ("skipped", "passed"): "appeared",
    ("skipped", "known"): "appeared",
    (None, "passed"): "appeared",
    ("passed", "passed"): None,
    ("passed", "mended"): None,
    ("known", "known"): None,
    ("mended", "mended"): None,
    ("skipped", "skipped"): None,
    ("skipped", None): None,
    (None, "skipped"): None,
}
STATUS = {"newly_failing": 1, "defects_gained": 1, "vanished": 21}


@pytest.mark.parametrize(("outcomes", "kind"), KINDS_OF_CHANGE.items(), ids=lambda each: "-".join(map(str, each or [])))
def test_each_change_has_its_place_and_its_status(outcomes, kind):
    """One list for each pair of outcomes; wrong where it was not is 1, not asked any more is 21."""
    old, new = (parity(same="passed", **({} if each is None else {"case": each})) for each in outcomes)
    change = compare(old, new)
    lists = (
        "newly_failing",
        "newly_passing",
        "still_failing",
        "defects_gained",
        "defects_mended",
        "vanished",
        "appeared",
    )
    found = {each: getattr(change, each) for each in lists if getattr(change, each)}

    words = tuple(each or "absent" for each in outcomes)
    assert found == ({} if kind is None else {kind: (CaseChange("case", *words),)})
    assert change.status == STATUS.get(kind, 0)
    assert ("unchanged" in change.sentence) == (kind is None)
    asked = {"passed", "failed", "known", "mended"} & set(outcomes)
    assert [each.tests for each in change.skipped] == ([] if asked else [("case",)])


def test_cases_that_are_skipped_in_both_are_counted_with_their_reasons():
    """They say nothing of a switch, and whoever believes that Apex was compared must read that it was not."""
    lacks = Case("skipped", "no Apex")
    old = parity(a=lacks, b=Case("skipped", "no GPU"), c="passed")
    new = parity(a=lacks, b=Case("skipped", "a small GPU"), c="passed")
    change = compare(old, new)

    assert (change.status, change.sentence) == (0, "unchanged in 1 cases, 2 skipped in both")
    assert {each.reason: each.tests for each in change.skipped} == {
        "no Apex": ("a",),
        "old: no GPU; new: a small GPU": ("b",),
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [(parity(), parity()), (parity(a="passed"), parity(b="passed")), (parity(a="skipped"), parity(a="skipped"))],
    ids=["empty", "others", "skipped"],
)
def test_no_case_in_both_is_no_answer(old, new):
    """Zero cases are not zero failures."""
    change = compare(old, new)

    assert change.status == 21
    assert change.sentence == "no case ran in both environments: widen -k, or leave parity out by --no-parity"
    assert ParityChange().status == 21


def test_errors_that_grew_in_their_budgets():
    """By more than the factor, and beyond what says nothing; the greatest growth first."""

    def run_of(**errors):
        return parity(**{name: Case("passed", errors={"y": error}) for name, error in errors.items()})

    old = run_of(a=0.01, b=0.3, c=0.01, d=0.3, e=0.4)
    new = run_of(a=0.51, b=0.6, c=0.5, d=0.7, e=0.1)
    change = compare(old, new)

    assert change.grown == (Growth("d", "y", 0.3, 0.7), Growth("a", "y", 0.01, 0.51))
    assert change.status == 0
    assert change.sentence == "2 errors grown in 5 cases"
    assert compare(old, new, growth=3).grown == ()
    with pytest.raises(ValueError, match="above 1"):
        compare(old, new, growth=1)


def wrong(outcome="failed", **errors):
    """Return a run with one right case, and one that is wrong by so much."""
    return parity(same="passed", case=Case(outcome, "off", errors))


@pytest.mark.parametrize(
    ("old", "new", "growth", "words"),
    [
        ({"y": 5.0}, {"y": 505.0}, Growth("case", "y", 5.0, 505.0), "worse by up to 101 times"),
        ({"y": 5.0}, {"x": 30.0, "y": 0.1}, Growth("case", "x", 5.0, 30.0), "worse by up to 6 times"),
        ({"x": 0.5, "y": 5.0}, {"x": 3.0}, Growth("case", "x", 0.5, 3.0), "worse by up to 6 times"),
        ({"y": 5.0}, {"y": 1e99}, Growth("case", "y", 5.0, 1e99), "worse beyond measure"),
        ({"y": 5.0}, {"y": 9.0}, None, ""),
        ({"y": 5.0}, {"x": 9.0}, None, ""),
        ({"y": 1e99}, {"y": 1e99}, None, ""),
        ({"y": 500.0}, {"y": 5.0}, None, ""),
        ({}, {}, None, ""),
        ({}, {"y": 5.0}, None, ""),
    ],
)
def test_failing_in_both_and_further_off_is_newly_worse(old, new, growth, words):
    """A switch makes a wrong thing more wrong: status 1; as wrong as before: 0, and said."""
    change = compare(wrong(**old), wrong(**new))

    assert change.worsened == ((growth,) if growth else ())
    assert change.status == (1 if growth else 0)
    assert change.sentence == f"1 failure in both{words and ', 1 of them '}{words} in 2 cases"
    assert change.grown == ()


def test_what_holds_in_a_case_that_fails_in_both_has_only_grown():
    """Within its budget it is told, as anywhere else."""
    change = compare(wrong(x=0.3, y=5.0), wrong(x=0.9, y=5.0))

    assert (change.grown, change.worsened, change.status) == ((Growth("case", "x", 0.3, 0.9),), (), 0)


def test_a_known_defect_that_grows_is_told():
    """The table says that it is wrong, and nobody relies on it: no status."""
    change = compare(wrong("known", y=5.0), wrong("known", y=505.0))

    assert (change.grown, change.status) == ((Growth("case", "y", 5.0, 505.0),), 0)
    assert change.sentence == "1 error grown in 2 cases"


def test_failing_in_another_way_cannot_be_compared():
    """Off by five budgets before, and now by something that has no size, as a crash: nobody knows."""
    change = compare(wrong(y=5.0), wrong(y=0.5))

    assert change.failing_otherwise == (CaseChange("case", "failed", "failed", "off"),)
    assert (change.status, change.sentence) == (21, "1 failing in both, in another way in 2 cases")


def test_an_error_of_one_environment_only_has_not_grown():
    """A quantity that the other one lacks says nothing."""
    assert compare(parity(a=Case("passed")), parity(a=Case("passed", errors={"y": 1.0}))).grown == ()


# --- through child processes: a brought Adam that a variable spoils ---

SPOILT = """
import os

import torch


class Mine(torch.optim.Adam):
    fuseproof_dtypes = ("fp32",)

    def __init__(self, params, lr, betas, eps, weight_decay):
        factor = {"lr": 1.001, "ten_times": 1.01}.get(os.environ.get("SPOIL"), 1.0)
        super().__init__(params, lr=factor * lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def step(self):
        params = [param for group in self.param_groups for param in group["params"] if param.grad is not None]
        before = [param.detach().clone() for param in params]
        super().step()
        for param, was in zip(params, before):
            if os.environ.get("SPOIL") == "noise":
                sign = torch.ones(param.numel()).index_fill(0, torch.arange(0, param.numel(), 2), -1.0)
                with torch.no_grad():
                    param.add_((param - was) * sign.view(param.shape), alpha=9e-7)
"""
ADAM = """
import pytest
import torch

from fuseproof.parity.adam import settings_in_mode
from fuseproof.parity.adam.checks import check_regime
from fuseproof.parity.adam.regimes import REGIMES

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]
REGIME = REGIMES["mixed_signs"]


@pytest.mark.parametrize("steps", [3, 6])
def test_update(adam, steps, device):
    settings = settings_in_mode("l2", lr=REGIME.lr_for(torch.float32), weight_decay=0.0)
    check_regime(adam, REGIME, settings, torch.float32, device, steps=steps)
"""


@dataclass(frozen=True)
class Suite:
    """A folder of tests with a brought Adam, which a variable spoils."""

    root: Path

    def measure(self, name, keyword="mine", *tests, workers=0, say=lambda _: None, **variables):
        """Return what came of its cases in an environment with these variables."""
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(self.root), *sys.path]))
        examined = Examined(Environment(name, sys.executable, variables), {}, "here")
        arguments = ("--fuseproof-adam=mine=spoilt:Mine",)
        tests = tests or ("test_update.py",)
        return measure_parity(examined, tests, keyword, self.root, workers, say, arguments=arguments)


@pytest.mark.parametrize(("arguments", "failed"), [((), 0), (("-W", "error"), 1)], ids=["as_it_is", "asked_for"])
def test_a_warning_is_no_wrong_result(tmp_path, arguments, failed):
    """A new torch that warns is not wrong, though the suite takes warnings for errors; who wants that says so."""
    (tmp_path / "pyproject.toml").write_text(TOML + 'filterwarnings = ["error"]\n')
    (tmp_path / "test_warns.py").write_text(
        "import warnings, pytest\n\n@pytest.mark.parity\ndef test_it():\n    warnings.warn('it is old', stacklevel=1)\n"
    )
    examined = Examined(Environment("new", sys.executable), {}, "here")
    run = measure_parity(examined, ["test_warns.py"], "", tmp_path, 0, lambda _: None, arguments=arguments)

    outcomes = [case.outcome for case in run.cases.values()]
    assert outcomes == ["failed" if failed else "passed"]


@pytest.fixture(scope="module")
def suite(tmp_path_factory):
    """Return the suite."""
    root = tmp_path_factory.mktemp("suite")
    (root / "pyproject.toml").write_text(TOML)
    (root / "test_update.py").write_text(ADAM)
    (root / "spoilt.py").write_text(SPOILT)
    (root / "test_broken.py").write_text("import nothing_of_that_name")
    (root / "test_fatal.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    return Suite(root)


@pytest.fixture(scope="module")
def old(suite):
    """Return what came of its cases as they should be."""
    return suite.measure("old")


def test_a_seeded_bug_in_the_new_environment_fails_newly(suite, old):
    """lr * 1.001 there and not here: both cases, each with the sentence that names quantity, error and budget."""
    change = compare(old, suite.measure("new", SPOIL="lr"))

    assert [each.test for each in change.newly_failing] == [f"test_update.py::test_update[mine-{n}]" for n in (3, 6)]
    assert all(re.match(r"param: \d+ of \d+ elements beyond", each.why) for each in change.newly_failing)
    assert change.status == 1


def test_a_seeded_bug_in_both_that_is_greater_in_the_new_one_is_worse(suite):
    """lr * 1.001 here and lr * 1.01 there: failing in both, and ten times further off is no reason to switch."""
    change = compare(suite.measure("old", SPOIL="lr"), suite.measure("new", SPOIL="ten_times"))

    assert [each.test for each in change.still_failing] == [f"test_update.py::test_update[mine-{n}]" for n in (3, 6)]
    assert {each.test for each in change.worsened} == {each.test for each in change.still_failing}
    assert all(each.times == pytest.approx(10, rel=0.2) for each in change.worsened if each.quantity == "param")
    assert re.match(r"2 failures in both, 2 of them worse by up to \d+(\.\d+)? times", change.sentence)
    assert change.status == 1


def test_a_slightly_larger_error_has_grown(suite, old):
    """Some 8 eps more of noise in each update are within the budget of 12, and are told."""
    said = []
    change = compare(old, suite.measure("new", SPOIL="noise", say=said.append, workers=1))

    assert change.newly_failing == ()
    assert {(each.test, each.quantity) for each in change.grown} >= {("test_update.py::test_update[mine-6]", "param")}
    assert all(each.new > GROWTH * each.old and each.new <= 1 for each in change.grown)
    assert change.status == 0
    assert said[0] == "parity: new environment, 1 worker"
    assert said[1].startswith("parity: new environment: 2 cases, 0 known defects, 0 failed, 0 skipped in ")


def test_the_same_environment_twice_changes_nothing(suite, old):
    """Cases are seeded: neither a failure nor an error that grew."""
    change = compare(old, suite.measure("new"))

    assert change.sentence == "unchanged in 2 cases"
    assert change.status == 0


def test_a_keyword_that_matches_nothing_is_no_success(suite):
    """pytest ends with 5, the comparison with 21."""
    nothing = suite.measure("old", "nobody")
    change = compare(nothing, nothing)

    assert change.status == 21
    assert change.sentence.startswith("no case ran in both environments: widen -k")


@pytest.mark.parametrize(
    ("keyword", "test", "words"),
    [
        ("mine and", "test_update.py", "it ended with status 4: ERROR: Wrong expression passed to '-k'"),
        ("mine", "test_gone.py", "it ended with status 4: ERROR: file or directory not found: test_gone.py"),
        ("mine", "test_broken.py", "it ended with status 2: ERROR test_broken.py"),
        ("mine", "test_fatal.py", "it was killed by SIGKILL"),
    ],
    ids=["bad_keyword", "no_such_file", "broken_file", "killed"],
)
def test_a_session_that_answers_nothing_is_one_sentence(keyword, test, words, suite):
    """Which environment, how it ended, its last words, and the command that shows it."""
    with pytest.raises(UpgradeError) as refused:
        suite.measure("new", keyword, test)

    assert str(refused.value).startswith(f"parity in new: {words}")
    assert "\n" not in str(refused.value)
    assert f"; to see it: {sys.executable} -m pytest {test}" in str(refused.value)


def test_a_suite_without_fuseproof_is_one_sentence(tmp_path):
    """The option is known to pytest, and nobody is there who writes the file."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]")
    (tmp_path / "test_plain.py").write_text("def test_mine(): pass")
    examined = Examined(Environment("old", sys.executable), {}, "here")
    with pytest.raises(UpgradeError, match=r"^parity in old: pytest left no .*: is fuseproof configured"):
        measure_parity(examined, ["test_plain.py"], "", tmp_path, 0, print)


SLOW = """
import os, pathlib, time, pytest

@pytest.mark.parity
def test_slow():
    pathlib.Path("pid").write_text(str(os.getpid()))
    time.sleep(120)
"""
ASK = """
import signal
import sys
from pathlib import Path
from fuseproof.upgrade.environment import Environment, Examined
from fuseproof.upgrade.parity_run import measure_parity

signal.signal(signal.SIGINT, signal.default_int_handler)  # a session in the background ignores it
old = Examined(Environment("old", sys.executable), {{}}, "here")
measure_parity(old, ["test_slow.py"], "", Path(), {workers}, print)
"""


@pytest.fixture
def asking(pytester):
    """Return a function that starts a process which asks for parity, and waits until its case runs, and where."""

    def ask(workers):
        pytester.makepyprojecttoml(TOML)
        pytester.makepyfile(test_slow=SLOW, ask=ASK.format(workers=workers))
        parent = subprocess.Popen([sys.executable, "ask.py"], cwd=pytester.path, stderr=subprocess.PIPE, text=True)
        pid = pytester.path / "pid"
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return parent, int(pid.read_text())

    return ask


def test_ctrl_c_ends_the_child_too(asking):
    """No pytest goes on measuring when nobody waits for it."""
    parent, pid = asking(0)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=60)

    assert errors.rstrip().endswith("KeyboardInterrupt")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def runs(pid):
    """Return whether a process runs, which one that nobody has waited for does not."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a signal for it")
@pytest.mark.parametrize("workers", [0, 1], ids=["alone", "worker"])
def test_who_asks_and_is_killed_leaves_no_child(asking, workers):
    """Neither pytest nor a worker of it, whose case would take two minutes."""
    parent, pid = asking(workers)
    parent.kill()
    parent.communicate(timeout=60)
    deadline = time.monotonic() + 20
    while runs(pid) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert not runs(pid)
