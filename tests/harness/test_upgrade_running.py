"""Which pairs run where, in which order, for how long, and what becomes of them when something goes wrong."""

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fuseproof import gpu
from fuseproof.order import Order
from fuseproof.processes import ChildError
from fuseproof.storage import HistoryError
from fuseproof.tables import ConfigError
from fuseproof.unmeasured import read_unmeasured
from fuseproof.upgrade import lanes as lanes_module
from fuseproof.upgrade.asked import about
from fuseproof.upgrade.bank import Bank
from fuseproof.upgrade.child import Child
from fuseproof.upgrade.environment import Environment, Examined
from fuseproof.upgrade.lanes import Lane, lanes
from fuseproof.upgrade.plan import UpgradePlan
from fuseproof.upgrade.running import Runner
from fuseproof.upgrade.schedule import next_block

pytest_plugins = ["pytester"]

MACHINE = "h200-sxm"
ARMS = {"old": {"python": "p", "set": {}}, "new": {"python": "p", "set": {"K": "1"}}}
PLAN = UpgradePlan("upgrade", MACHINE, ARMS, ("tests",))


CPU = (Lane(0),)
GPUS = (Lane(0, {"CUDA_VISIBLE_DEVICES": "GPU-a"}), Lane(1, {"CUDA_VISIBLE_DEVICES": "GPU-b"}))


def nobody(_trials):
    """Return the tests that are undecided: none."""
    return ()


class FakeChild:
    """Measures nothing, and remembers what it was asked."""

    def __init__(self, book, tests=("a", "b"), fails=(), takes_s=0.0):
        self.book, self.tests, self.fails, self.takes_s = book, tests, Counter(fails), takes_s
        self.calls = []
        self.running = self.most = 0

    def measure(self, environment, tests, seed, variables, stop):
        """Note the call; wait; fail as often as is said of this arm and seed."""
        self.calls.append(
            SimpleNamespace(arm=environment.name, tests=tests, seed=seed, gpu=variables.get("CUDA_VISIBLE_DEVICES"))
        )
        self.running += 1
        self.most = max(self.most, self.running)
        if stop.wait(self.takes_s):
            self.running -= 1
            raise ChildError("it was ended")
        self.running -= 1
        what = (environment.name, int(seed.rpartition("-")[2]))
        if self.fails[what]:
            self.fails[what] -= 1
            raise ChildError("it was killed by SIGSEGV")
        document = self.book.document({f"op/{test}/fp32/1": {"device_time_ns": 1e5} for test in self.tests})
        document["fuseproof"] |= {"schema": 1, "machine": MACHINE, "night": "n1"}
        return {**document, "upgrade": {"seconds": 1.0, "failed": False}}


@pytest.fixture
def bank(tmp_path):
    """An empty bank."""
    bank = Bank.begin(tmp_path / "bank", PLAN)
    yield bank
    bank.end()


@pytest.fixture
def runner(book, bank):
    """Return a maker of runners of this bank."""

    def make(child=None, places=CPU, *, undecided=nobody, most=24, everything=False, **options):
        return Runner(
            bank,
            {name: Environment(name, "python") for name in ARMS},
            child or FakeChild(book),
            places,
            lambda trials: next_block(trials, undecided(trials), most, len(places), everything=everything),
            [].append,
            **options,
        )

    return make


def still(*tests, until=99):
    """Return what keeps these undecided until there are so many pairs, and both before the first look."""
    return lambda trials: (() if len(trials) >= until else tests) if len(trials) >= 4 else ("t.py::test[x]",)


def test_arms_in_abba_order(runner, book):
    """Old, new, new, old, old, ...; both arms of a pair have its seed, and no two pairs have one."""
    child = FakeChild(book)
    runner(child, undecided=still(until=4)).run()
    assert [call.arm for call in child.calls] == ["old", "new", "new", "old", "old", "new", "new", "old"]
    seeds = [call.seed for call in child.calls]
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 4


def test_looks_and_who_goes_on(runner, bank, book):
    """Four pairs of everything, named from the second on; then the undecided alone, to the next look."""
    child = FakeChild(book)
    runner(child, undecided=still("t.py::test[op/a/fp32/1]", until=8)).run()
    assert list(range(8)) == [trial.number for trial in bank.trials()]
    everything = ("t.py::test[op/a/fp32/1]", "t.py::test[op/b/fp32/1]")
    assert [()] * 2 + [everything] * 6 + [everything[:1]] * 8 == [call.tests for call in child.calls]


def test_the_time_that_is_told_is_to_the_next_look(runner):
    """What is undecided after it runs on, and how long that will take nobody knows."""
    limited, lines = runner(undecided=still(until=4)), []
    limited.say = lines.append
    limited.run()

    assert lines[-1] == "all benchmarks: pair 4 (look at 4, at most 24), about 0 s to the look"


def test_never_more_than_asked(runner, bank):
    """What stays undecided ends with the last pair."""
    runner(undecided=still("t.py::test[op/a/fp32/1]"), most=8).run()
    assert len(bank.trials()) == 8


def test_everything_in_all_pairs(runner, bank, book):
    """A bank to be judged in other ways has all benchmarks in all of its pairs, whatever is decided."""
    child = FakeChild(book)
    runner(child, undecided=still(until=4), most=10, everything=True).run()
    assert len(bank.trials()) == 10
    assert {2} == {len(call.tests) for call in child.calls[2:]}


def test_nothing_to_compare_ends_after_one_pair(runner, bank):
    """No benchmark in both environments: more pairs would have none either."""
    runner(undecided=nobody).run()
    assert len(bank.trials()) == 1


def test_failed_tests_are_collected_again(runner, bank, book):
    """Where a test has failed, the next pair runs what the command line chooses: named tests would leave it out."""
    child = FakeChild(book)
    measure = child.measure
    child.measure = lambda *call: {
        **(found := measure(*call)),
        "upgrade": {**found["upgrade"], "failed": True, "failed_tests": {"t": "w"}},
    }
    runner(child, undecided=still(until=4)).run()
    assert {()} == {call.tests for call in child.calls}


# --- one process ------------------------------------------------------------------------------------------------------


# What pytest leaves beside its order.
FAILED = 'write() { printf "%s" "$1" > "$(dirname "$FUSEPROOF_CHILD")/unmeasured.json"; }; write'


@pytest.fixture
def child_of(tmp_path):
    """Return a function that measures with an interpreter which does what a shell script says."""

    def measure(script):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        child = Child(PLAN, tmp_path, tmp_path)
        return child.measure(Environment("old", str(python)), (), "seed", {"K": "gpu"}, threading.Event())

    return measure


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'INTERNALERROR> boom'; exit 3", ChildError, "old: it ended with status 3: INTERNALERROR> boom"),
        ("echo torch >&2; kill -SEGV $$", ChildError, "old: it was killed by SIGSEGV"),
        ("echo 'ERROR: no such option'; exit 4", ConfigError, "old: pytest refuses: no such option"),
        ("exit 5", ConfigError, "old: no benchmark is selected by tests"),
        ("exit 2", ChildError, "old: it ended with status 2: it said nothing"),
        ("exit 1", ChildError, "old: it has not said which tests failed: "),
        (f"{FAILED} '[3'; exit 0", ChildError, "old: it has not said which tests failed: "),
        (f"{FAILED} '{{}}'; exit 0", ChildError, "old: it has not said which tests failed: "),
        (
            f"""{FAILED} '{{"failed": {{}}, "skipped": {{"t.py": "no Apex"}}}}'; exit 5""",
            ConfigError,
            "old: no benchmark is selected by tests; t.py is skipped: no Apex",
        ),
    ],
)
def test_a_process_that_measures_nothing(child_of, script, error, said):
    """What can be mended on the command line is a mistake; all else is a crash, which is tried again."""
    with pytest.raises(error) as caught:
        child_of(script)
    assert said in str(caught.value)


def test_all_tests_failed_or_skipped(child_of):
    """Ran to its end with nothing measured: no error, and the reason is kept, for the other environment may have it."""
    told = '{"failed": {"t.py::a": "off by 5"}, "skipped": {"t.py::b": "no Apex"}}'
    found = child_of(f"{FAILED} '{told}'; echo '1 failed, 1 skipped'; exit 1")
    assert (found["benchmarks"], found["upgrade"]["failed"]) == ([], True)
    assert found["upgrade"]["nothing"] == "1 failed, 1 skipped"
    assert found["upgrade"]["failed_tests"] == {"t.py::a": "off by 5"}
    assert found["upgrade"]["skipped_tests"] == {"t.py::b": "no Apex"}


def test_what_a_process_is_told(child_of, tmp_path):
    """The tests, the options, one process, the repository, its GPU; of the pair's seed follow order and placement."""
    nothing = '{"failed": {}, "skipped": {}}'
    order = tmp_path / "order.json"
    child_of(f"{FAILED} '{nothing}'; echo \"$K $@\" > {tmp_path}/told; cp $FUSEPROOF_CHILD {order}; exit 1")
    told = (tmp_path / "told").read_text().strip()
    assert f"gpu -m pytest {tmp_path}/tests --rootdir={tmp_path} -n0 -p no:cacheprovider -W default" == told
    seeds = json.loads(order.read_text())
    assert (seeds["seed"], seeds["placement"]) == ("seed", "seed")


UNMEASURED = {
    "test_file": """
import pytest
pytest.importorskip("no_such_module", reason="no Apex")

def test_gone(benchmark): pass
""",
    "test_each": """
import pytest

@pytest.mark.skip(reason="marked")
def test_marked(benchmark): pass

def test_called(benchmark): pytest.skip("it rains")

@pytest.mark.xfail(reason="known")
def test_expected(benchmark): raise ValueError

def test_wrong(benchmark): raise ValueError("off by 5")

def test_long(benchmark): raise ValueError("far" * 200)

def test_longer(benchmark): raise ValueError("far" * 2000)

def test_right(benchmark): benchmark(int)
""",
}


def test_a_session_says_what_it_has_not_measured(pytester, monkeypatch, tmp_path):
    """Skipped by a mark, by a call, as a whole file, expected to fail, failed: each with its reason."""
    pytester.makepyprojecttoml("[tool.fuseproof]")
    pytester.makepyfile(**UNMEASURED)
    for name, value in Order(tmp_path, (), seed="1").given().items():
        monkeypatch.setenv(name, value)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    found = read_unmeasured(tmp_path)

    assert result.ret == 1, result.stdout.str()
    assert found.failed == {
        "test_each.py::test_wrong": "ValueError: off by 5",
        "test_each.py::test_long": f"ValueError: {'far' * 200}",
        "test_each.py::test_longer": ("ValueError: " + "far" * 2000)[:4000] + "...",
    }
    assert found.skipped == {
        "test_file.py": "no Apex",
        "test_each.py::test_marked": "marked",
        "test_each.py::test_called": "it rains",
        "test_each.py::test_expected": "expected to fail: known",
    }


# --- side by side -----------------------------------------------------------------------------------------------------


def test_pairs_side_by_side(runner, bank, book):
    """Two GPUs work at a time; both arms of a pair on one of them, and ABBA on each."""
    child = FakeChild(book, takes_s=0.05)
    runner(child, GPUS, undecided=still("t.py::test[op/a/fp32/1]", until=8)).run()
    assert child.most == 2
    by_seed = {}
    for call in child.calls:
        by_seed.setdefault(call.seed, set()).add(call.gpu)
    assert len(by_seed) == 8
    assert {1} == {len(gpus) for gpus in by_seed.values()}
    assert {number: [trial.first for trial in bank.trials() if trial.gpu == number][:2] for number in (0, 1)} == {
        0: ["old", "new"],
        1: ["old", "new"],
    }


def test_gpus_get_a_share_of_the_cores_each(monkeypatch):
    """Devices as CUDA names them, cores in equal parts; one GPU has all cores."""
    monkeypatch.setattr(gpu, "gpu_uuids", lambda: ("GPU-a", "GPU-b"))
    monkeypatch.setattr(lanes_module.os, "sched_getaffinity", lambda _: set(range(9)), raising=False)
    both = lanes("all", None)
    assert [lane.variables for lane in both] == [{"CUDA_VISIBLE_DEVICES": "GPU-a"}, {"CUDA_VISIBLE_DEVICES": "GPU-b"}]
    assert [frozenset(range(4)), frozenset(range(4, 8))] == [lane.cores for lane in both]
    assert [Lane(0, {"CUDA_VISIBLE_DEVICES": "GPU-a"})] == lanes("1", None)
    assert [lane.variables for lane in lanes("all", "1")] == [{"CUDA_VISIBLE_DEVICES": "1"}]
    assert [Lane(0)] == lanes("all", "")


@pytest.mark.parametrize("asked", ["0", "-1", "some", "3", "", "1e3"])
def test_gpus_that_are_not_there(asked, monkeypatch):
    """More than there are, or no number: one sentence."""
    monkeypatch.setattr(gpu, "gpu_uuids", lambda: ("GPU-a", "GPU-b"))
    with pytest.raises(ConfigError, match=r"--gpus"):
        lanes(asked, None)


def test_a_lane_pins_its_own_thread(monkeypatch):
    """The cores are those of the thread that starts the children, and of no other."""
    pinned = []
    monkeypatch.setattr(
        lanes_module.os, "sched_setaffinity", lambda pid, cores: pinned.append((pid, cores)), raising=False
    )
    Lane(0).pin()
    Lane(1, {}, frozenset({2})).pin()
    assert [(0, frozenset({2}))] == pinned


# --- interruptions ----------------------------------------------------------------------------------------------------


def test_a_crash_is_tried_again_once(runner, bank, book):
    """A pair whose process crashes runs again as a whole, which is told."""
    once = runner(FakeChild(book, fails=[("new", 1)]), undecided=still(until=4))
    once.run()
    assert len(bank.trials()) == 4
    assert once.notes == ["pair 2 was run again: it was killed by SIGSEGV"]


def test_a_second_crash_ends_it(runner, bank, book):
    """Finished pairs stay; the pair that cannot be measured leaves nothing."""
    with pytest.raises(ChildError, match="SIGSEGV"):
        runner(FakeChild(book, fails=[("new", 2)] * 2), undecided=still(until=4)).run()
    assert [trial.number for trial in bank.trials()] == [0, 1]


def test_a_crash_on_one_gpu_ends_the_other(runner, bank, book):
    """At once, and not after the pair that runs there; that pair is not kept."""
    child = FakeChild(book, takes_s=0.01)
    slow = child.measure

    def measure(environment, tests, seed, variables, stop):
        if variables["CUDA_VISIBLE_DEVICES"] == "GPU-b":
            raise ChildError("no such GPU")
        child.takes_s = 30.0
        return slow(environment, tests, seed, variables, stop)

    child.measure = measure
    begun_s = time.monotonic()
    with pytest.raises(ChildError, match="no such GPU"):
        runner(child, GPUS).run()
    assert time.monotonic() - begun_s < 10
    assert not bank.trials()


def test_finished_pairs_are_used_again(runner, bank, book):
    """A second run starts where the first one ended, in the ABBA order of each GPU; half a pair runs again."""
    child = FakeChild(book)
    with pytest.raises(ChildError):
        runner(FakeChild(book, fails=[("new", 3)] * 2), undecided=still(until=4)).run()
    (bank.folder / "0003-old.json").write_text((bank.folder / "0001-old.json").read_text())
    runner(child, undecided=still(until=4)).run()
    assert [call.arm for call in child.calls] == ["new", "old"]
    assert [trial.number for trial in bank.trials()] == [0, 1, 2, 3]


def test_a_pair_that_would_end_too_late_is_not_started(runner, bank, book):
    """The first pair always runs; the budget is then over for the next ones, and the runner says so."""
    limited = runner(FakeChild(book), undecided=still(until=4), budget_s=0.5)  # a pair says that it took 2 s
    limited.run()
    assert (len(bank.trials()), limited.over) == (1, True)
    plenty = runner(FakeChild(book), undecided=still(until=4), budget_s=1000.0)
    plenty.run()
    assert (len(bank.trials()), plenty.over) == (4, False)


# --- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"keyword": "adam"}, "keyword was nothing and is 'adam'"),
        ({"machine": "b200"}, "machine was 'h200-sxm' and is 'b200'"),
        ({"tolerance": "2 %"}, "tolerance was nothing and is '2 %'"),
        ({"arms": {**ARMS, "new": {"python": "p", "set": {"K": "2"}}}}, "new set K was '1' and is '2'"),
        ({"arms": {**ARMS, "third": {}}}, "arms was 'old new' and is 'old new third'"),
        ({"fuseproof": "9"}, "fuseproof was '0.1.0' and is '9'"),
        ({"arguments": ("--full",)}, "arguments was nothing and is '--full'"),
    ],
)
def test_a_folder_of_another_plan_is_refused(runner, bank, changed, said):
    """One sentence says what differs, and what to do."""
    runner().run()
    bank.end()
    values = {name: getattr(PLAN, name) for name in ("kind", "machine", "arms", "tests")} | changed
    with pytest.raises(HistoryError) as caught:
        Bank.begin(bank.folder, UpgradePlan(**values))
    assert said in str(caught.value)
    assert "give another --folder" in str(caught.value)


def test_another_version_of_any_package_is_another_question():
    """A kernel's own package is upgraded between two runs: the kept pairs say nothing of what is there now."""
    versions = {"mine": "1", "torch": "2"}
    here = Examined(Environment("new", "p", {"K": "1"}), {"torch": "2.13"}, MACHINE, versions=versions)
    plans = [
        UpgradePlan("upgrade", MACHINE, {**ARMS, "new": about(each)}, ("tests",))
        for each in (here, replace(here, versions=versions | {"mine": "2"}))
    ]
    assert plans[1].difference(plans[0]) == "new package mine was '1' and is '2'"
    assert plans[0].difference(plans[0]) is None


OTHER = UpgradePlan("upgrade", MACHINE, ARMS, ("tests",), "adam")


def test_a_plan_of_nothing_gives_way(bank):
    """A mistaken -k has left its plan and nothing else: the mended command is not refused, and its plan is kept."""
    bank.end()
    begun = Bank.begin(bank.folder, OTHER)
    begun.end()

    assert begun.plan == OTHER
    assert json.loads((bank.folder / "plan.json").read_text())["seed"] == OTHER.seed


@pytest.mark.parametrize("name", ["0000-old.json", "parity-new.json"])
def test_a_plan_of_anything_does_not(bank, name):
    """Half a pair and the parity of one environment are somebody's minutes too."""
    bank.end()
    (bank.folder / name).write_text("{}")
    with pytest.raises(HistoryError, match="was begun for something else"):
        Bank.begin(bank.folder, OTHER)


def test_one_at_a_time(bank):
    """Two that measure into one folder would disturb each other."""
    with pytest.raises(HistoryError) as refused:
        Bank.begin(bank.folder, PLAN)

    said = "another fuseproof measures here; wait for it, or give another --folder"
    assert str(refused.value) == f"--folder {bank.folder}: {said}"


def test_a_folder_of_something_else_is_refused(tmp_path):
    """Whose files these are is not known."""
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(HistoryError, match=r"thesis\.tex and no plan\.json"):
        Bank.begin(tmp_path, PLAN)


WHOLE = PLAN.document()


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"schema": 2}', '{"schema": 1}', '{"schema": 1, "kind": 3}'),
        json.dumps({**WHOLE, "arms": {"old": 5, "new": {}}}),
        json.dumps({**WHOLE, "tests": [1]}),
        json.dumps({**WHOLE, "arguments": [["--full"]]}),
    ],
)
def test_a_spoiled_plan_is_refused(bank, text):
    """Cut short, of another version, incomplete: one sentence that names the file."""
    bank.end()
    (bank.folder / "plan.json").write_text(text)
    with pytest.raises(HistoryError, match=r"plan\.json"):
        Bank.begin(bank.folder, PLAN)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d.pop("upgrade"),
        lambda d: d["upgrade"].pop("seconds"),
        lambda d: d["upgrade"].update(pair=7),
        lambda d: d["fuseproof"].update(machine="b200"),
        lambda d: d["benchmarks"][0]["extra_info"]["fuseproof"]["metrics"].update(device_time_ns=-1.0),
        lambda d: d.update(benchmarks=[]),
        lambda d: d["upgrade"].update(gpu=-1),
        lambda d: d["upgrade"].update(gpu=True),
        lambda d: d["upgrade"].update(seconds=10**400),
        lambda d: d["upgrade"].update(seconds=-1.0),
        lambda d: d["upgrade"].update(failures=["x"]),
        lambda d: d["upgrade"].update(failed=True),
        lambda d: d["upgrade"].update(failed_tests={"t": 1}),
        lambda d: d["upgrade"].update(skipped_tests=["t"]),
    ],
    ids=[
        *("no block", "no seconds", "another pair", "another machine", "a negative time", "no benchmarks"),
        *("gpu below 0", "gpu true", "seconds without end", "seconds below 0", "failures in a list"),
        *("failed and nobody knows what", "failed and no words", "skipped in a list"),
    ],
)
def test_a_spoiled_process_is_refused(runner, bank, spoil):
    """A file that somebody has changed is named, and never judged."""
    runner(undecided=still(until=4)).run()
    path = bank.folder / "0002-new.json"
    document = json.loads(path.read_text())
    spoil(document)
    path.write_text(json.dumps(document))
    with pytest.raises(HistoryError, match=r"0002-new\.json"):
        bank.trials()


def test_a_thread_of_pairs_is_no_thread_of_signals(runner, bank, book):
    """Pairs run in threads that have ended when the runner has."""
    before = threading.active_count()
    runner(FakeChild(book), GPUS, undecided=still(until=4)).run()
    assert before == threading.active_count()
