"""The answer of an upgrade in all its forms, from made-up verdicts."""

import dataclasses
import html
import itertools
import json
import math
import re
import xml.etree.ElementTree as ET

import pytest

from fuseproof.preflight import Finding
from fuseproof.upgrade import report
from fuseproof.upgrade.environment import Environment, Examined
from fuseproof.upgrade.inventory import Difference, differences, in_words
from fuseproof.upgrade.outcome import Upgrade
from fuseproof.upgrade.parity_change import CaseChange, Growth, ParityChange
from fuseproof.upgrade.skipped import Skipped
from fuseproof.verdicts.verdict import Outcome, Pair, Reason, Verdict

INVENTORY = {"driver": "580", "cuda": "13.0", "torch": "2.11.0", "python": "3.12.1", "apex": "a1b2", "numpy": "2.4"}
OLD = Examined(Environment("old", "/old/bin/python"), INVENTORY, "nvidia-h200", 1, {**INVENTORY, "six": "1.16"})
NEW = dataclasses.replace(
    OLD,
    environment=Environment("new", "/new/bin/python", {"OMP_NUM_THREADS": "2"}),
    inventory={**INVENTORY, "torch": "2.13.0", "apex": "c3d4"},
    versions={**INVENTORY, "torch": "2.13.0", "six": "1.17", "einops": "0.8"},
)
QUIET = ParityChange(compared=420)


def time(key, outcome, percent, *reasons, metric="device_time_ns"):
    """Return a verdict on a time, with an interval of half a percent around it."""
    effect = math.log1p(percent / 100)
    return Verdict(Pair(key, metric), outcome, reasons, effect, (effect - 0.005, effect + 0.005), processes=8)


def exact(key, metric, outcome, detail=""):
    """Return a verdict on what is compared exactly."""
    return Verdict(Pair(key, metric), outcome, (Reason.EXACT,) if detail else (), detail=detail)


FINE = (
    time("adam/a", Outcome.PASS, 0.1),
    time("adam/b", Outcome.IMPROVED, -4, Reason.FASTER),
    exact("adam/a", "peak_bytes", Outcome.PASS),
    exact("adam/b", "peak_bytes", Outcome.PASS),
    exact("adam/a", "launches", Outcome.PASS),
)


def upgrade(*verdicts, parity=QUIET, **changes):
    """Return an upgrade of these verdicts, by default fine ones."""
    found = sorted(verdicts or FINE, key=lambda each: each.order)
    durations = {each.pair: (1000.0, 1010.0) for each in found}
    return Upgrade(OLD, NEW, found, durations, parity, **{**COURSE, **changes})


COURSE = {"pairs": 8, "seconds": 400.0, "interrupted": False, "tolerance_ln": math.log(1.01), "selection": "adam"}


# --- the sentence ---


def test_all_is_well():
    """Every number of the sentence, and the word for it."""
    said = "Switch: 0 of 2 benchmarks slower than 1 % (95 %), 1 faster, peak memory unchanged, parity: unchanged in "
    assert report.sentence(upgrade()) == f"{said}420 cases."


FAILED = CaseChange("t.py::test_x[apex]", "passed", "failed", "param: 3 of 4 beyond the budget")


SAME = ParityChange(compared=9, still_failing=(CaseChange("t.py::test_s", "failed", "failed", "it is"),))
WORSE = Growth("t.py::test_s", "param", 5.0, 505.0)
FAILS = Verdict(
    Pair("t.py::test_b", "test"), Outcome.INVALID, (Reason.FAILED,), detail="its test fails in old and new: off"
)


@pytest.mark.parametrize(
    ("verdicts", "parity", "lead", "words"),
    [
        ((time("a", Outcome.REGRESSED, 2),), QUIET, "Do not switch", "1 of 1 benchmarks slower than 1 %"),
        ((exact("a", "peak_bytes", Outcome.REGRESSED, "1 -> 2"),), QUIET, "Do not switch", "peak memory more in 1"),
        ((exact("a", "launches", Outcome.REGRESSED, "1 -> 2"),), QUIET, "Do not switch", "more launches or calls in 1"),
        ((time("a", Outcome.INCONCLUSIVE, 1, Reason.UNDECIDED),), QUIET, "Not decided", "1 undecided"),
        ((exact("a", "device_time_ns", Outcome.MISSING, "only in old"),), QUIET, "Not decided", "1 not comparable"),
        ((exact("a", "kernels_hash", Outcome.PASS, "x -> y"),), QUIET, "Switch", "other kernels in 1"),
        ((exact("a", "peak_bytes", Outcome.IMPROVED, "2 -> 1"),), QUIET, "Switch", "peak memory less in 1"),
        ((time("a", Outcome.PASS, 0),), QUIET, "Switch", "peak memory not compared"),
        ((*FINE, time("c", Outcome.NEW, 0)), QUIET, "Switch", "1 faster, 1 only in new, peak memory unchanged"),
        (FINE, ParityChange(), "Not decided", "parity: no case ran in both environments"),
        (FINE, None, "Switch", "parity was not asked for"),
        (
            FINE,
            SAME,
            "Switch, with 1 parity case that failed before and still fails",
            "parity: 1 failure in both in 9 cases",
        ),
        (FINE, dataclasses.replace(SAME, worsened=(WORSE,)), "Do not switch", "1 failure in both, 1 of them worse by"),
        (
            (*FINE, FAILS),
            SAME,
            "Not decided",
            "(95 %), 1 faster, 1 not compared, since its test fails, ",
        ),
        (FINE, ParityChange(compared=9, newly_failing=(FAILED,)), "Do not switch", "parity: 1 new failure in 9 cases"),
    ],
    ids=[
        *("slower", "hungrier", "more_launches", "undecided", "missing", "other_kernels", "less_memory"),
        *("no_memory", "only_in_new", "no_case", "no_parity", "failing_before", "worse", "failing_test", "new_failure"),
    ],
)
def test_what_the_sentence_says(verdicts, parity, lead, words):
    """Its first words agree with the exit status; what is behind them stands in it."""
    answer = report.sentence(upgrade(*verdicts, parity=parity))

    assert answer.startswith(f"{lead}: ")
    assert words in answer


def test_a_benchmark_that_fails_has_a_table_of_its_own():
    """Neither among the times nor among what is exact: it has no metric."""
    text = FORMS["terminal"](upgrade(*FINE, FAILS))

    assert "Benchmarks whose tests fail (1)" in text
    assert re.search(r"t.py::test_b +INVALID +its test fails in old and new: off", text)
    assert "3 of 3 the same in both" in text


LACKING = (Skipped("no Apex", ("t.py::a[apex]", "t.py::b[apex]")), Skipped("too small", ("t.py::c",)))


def test_what_is_skipped_in_both_is_in_the_sentence():
    """How many; and their reasons where nothing else was asked for, which is no switch."""
    some = report.sentence(upgrade(skipped=LACKING))
    alone = dataclasses.replace(upgrade(skipped=LACKING), verdicts=(), durations={})
    assert some.startswith("Switch: 0 of 2 benchmarks slower than 1 % (95 %), 1 faster, 3 skipped in both, peak memory")
    said = "Not decided: no benchmark was compared, all 3 skipped in both (no Apex; too small), peak memory"
    assert (alone.status, report.sentence(alone).startswith(said)) == (21, True)


def test_many_reasons_do_not_fill_the_sentence():
    """Three are named; all of them have a row."""
    many = tuple(Skipped(f"reason {number}", (f"t{number}",)) for number in range(5))
    one = dataclasses.replace(upgrade(skipped=many), verdicts=(), durations={})
    assert "all 5 skipped in both (reason 0; reason 1; reason 2; and 2 reasons more)" in report.sentence(one)
    assert "reason 4" in FORMS["terminal"](one)


def test_interrupted_is_in_the_sentence():
    """Whoever reads one line only knows that there was no end."""
    assert report.sentence(upgrade(interrupted=True)).endswith("; interrupted, start it again and it goes on.")


# --- the inventory ---


def test_differences_come_in_the_order_in_which_they_matter():
    """Software first, then variables, packages that are no part of it, and what the doctor says."""
    broken = dataclasses.replace(NEW, findings=(Finding("apex.absent", "missing", "Apex is not installed."),))
    found = differences(OLD, broken)

    assert [(each.kind, each.name, each.old, each.new) for each in found] == [
        ("software", "torch", "2.11.0", "2.13.0"),
        ("software", "apex", "a1b2", "c3d4"),
        ("variable", "OMP_NUM_THREADS", "not set", "2"),
        ("package", "einops", "absent", "0.8"),
        ("package", "six", "1.16", "1.17"),
        ("doctor", "apex", "not looked at", "missing: Apex is not installed."),
    ]
    assert in_words(found) == "torch 2.11.0 -> 2.13.0, apex a1b2 -> c3d4, OMP_NUM_THREADS not set -> 2, 2 packages"


def test_the_doctor_s_words_are_compared_by_what_they_say():
    """The same Apex in two folders is well in both; one that is broken is another matter."""
    well = [
        dataclasses.replace(OLD, findings=(Finding("amp_C.ok", "ok", f"`amp_C` loads (from {where})."),))
        for where in ("/a", "/b")
    ]
    broken = dataclasses.replace(OLD, findings=(Finding("amp_C.other_torch", "broken", "Rebuild it."),))

    assert differences(*well) == ()
    assert differences(well[0], broken) == (
        Difference("doctor", "amp_C", "ok: `amp_C` loads (from /a).", "broken: Rebuild it."),
    )


def test_tables_of_words_stand_to_the_left():
    """Numbers are read by their last digit, names by their first letter."""
    lines = report.terminal_lines(upgrade(time("adam/slow", Outcome.REGRESSED, 5)))

    assert "  kind      what             old      new" in lines
    assert "  package   six              1.16     1.17" in lines


def test_the_same_environment_twice():
    """Nothing differs, and that is said."""
    twin = dataclasses.replace(OLD, environment=Environment("new", "/old/bin/python"))

    assert differences(OLD, twin) == ()
    assert in_words(()) == "nothing differs"
    assert "both on nvidia-h200: nothing differs" in "\n".join(
        report.terminal_lines(dataclasses.replace(upgrade(), new=twin))
    )


def test_many_differences_are_counted():
    """Five are named, the rest is a number."""
    many = [Difference("software", f"part{i}", "1", "2") for i in range(7)]

    assert in_words(many).endswith("part4 1 -> 2, 2 more")


# --- the forms ---

EVERYTHING = ParityChange(
    old="420 cases",
    new="419 cases",
    compared=419,
    newly_failing=(FAILED,),
    newly_passing=(CaseChange("t.py::test_p", "failed", "passed", "it was"),),
    still_failing=(CaseChange("t.py::test_s", "failed", "failed", "it is"),),
    defects_gained=(CaseChange("t.py::test_g", "mended", "known", "rounds"),),
    defects_mended=(CaseChange("t.py::test_m", "known", "passed", "rounds"),),
    vanished=(CaseChange("t.py::test_v", "passed", "skipped", "apex has no kernel"),),
    appeared=(CaseChange("t.py::test_a", "absent", "passed"),),
    worsened=(Growth("t.py::test_k", "param", 5.0, 1e99),),
    failing_otherwise=(CaseChange("t.py::test_o", "failed", "failed", "it crashes"),),
    grown=(Growth("t.py::test_w", "param", 0.3, 0.9),),
    skipped=(Skipped("apex has no CPU kernel", ("t.py::test_n",)),),
    seconds=190.0,
)
FORMS = {
    "terminal": lambda one: "\n".join(report.terminal_lines(one)),
    "json": lambda one: json.dumps(report.to_json(one), allow_nan=False),
    "markdown": report.to_markdown,
    "html": report.to_html,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_everything(form):
    """The sentence first; each list of parity, each verdict that wants attention, each difference and note."""
    regressed = time("adam/slow", Outcome.REGRESSED, 5)
    notes = ("pair 3 measured nothing",)
    text = FORMS[form](upgrade(*FINE, regressed, parity=EVERYTHING, notes=notes, skipped=LACKING))
    bare = text.replace("\\", "")  # Markdown's escapes

    for test in "xpsgmvawkon":
        assert f"test_{test}" in bare
    parts = ("adam/slow", "REGRESSED", "adam/b", "2.13.0", "c3d4", "einops", "no Apex", "no CPU kernel", "t.py::c")
    for part in (*parts, *notes):
        assert part in bare
    assert bare.index("Do not switch: 1 of 3 benchmarks") < bare.index("test_x")


@pytest.mark.parametrize("form", [each for each in FORMS if each != "json"])
def test_an_interval_beyond_measure_is_a_factor(form):
    """A machine on which processes differ by a million times has no percentage that anybody could read."""
    wild = dataclasses.replace(time("adam/wild", Outcome.INCONCLUSIVE, 1200), interval_ln=(-60.0, 60.0))
    bare = html.unescape(FORMS[form](upgrade(wild)).replace("\\", ""))

    assert re.search(r"x 13\W.*< x 0.001 to > x 1000", bare)
    assert "e+" not in bare


def test_other_kernels_pass_and_are_shown():
    """They are neither worse nor better, and what they are is said."""
    text = FORMS["terminal"](upgrade(*FINE, exact("adam/a", "kernels_hash", Outcome.PASS, "now multi_tensor_apply")))

    assert "now multi_tensor_apply" in text
    assert "3 of 4 without a finding" in text


def test_the_terminal_leaves_out_what_is_quiet():
    """PASS has no row there, and long tables end with how much is left out; a page has it all."""
    slow = [time(f"adam/{number:02}", Outcome.REGRESSED, 5) for number in range(30)]
    whole = upgrade(*FINE, *slow)
    text = FORMS["terminal"](whole)

    assert "adam/a" not in FORMS["terminal"](upgrade())
    assert "adam/19" in text
    assert "adam/20" not in text
    assert "  ... and 11 more" in text  # of 30 slower and one faster
    for form in ("markdown", "html", "json"):
        assert "adam/a" in FORMS[form](whole)
        assert "adam/29" in FORMS[form](whole)


# As a check says it.
LONG = (
    "param: 1501 of 1977 elements beyond the budget; worst at element 7 of parameter 0: got 0.123456789, oracle "
    "0.123456788, error 1e-09 = 822 x budget 1.2e-12 (budget: scalars in FP32) (mine, fp32, mixed_signs, step 1; "
    'again: pytest "tests/kernels/test_adam_update.py::test_update_matches_fp64[mine-fp32-mixed_signs-l2]"); '
    "update 0.0995 % too large, the same everywhere: looks like a constant factor"
)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_failure_says_is_shown_whole(form):
    """Its nature stands at its end: on the terminal below the row, on lines as wide as a cell; else in its cell."""
    parity = ParityChange(
        compared=9,
        newly_failing=(CaseChange("t.py::test_x", "passed", "failed", LONG),),
        still_failing=(CaseChange("t.py::test_s", "failed", "failed", LONG),),
    )
    fails = dataclasses.replace(FAILS, detail=LONG)
    slow = dataclasses.replace(time("a", Outcome.REGRESSED, 5), detail=LONG)
    text = html.unescape(FORMS[form](upgrade(fails, slow, parity=parity)))
    bare = " ".join(text.replace("\\", "").split())

    assert bare.count(LONG) >= 4
    assert "..." not in bare
    if form == "terminal":
        said = [line for line in text.splitlines() if line.startswith("    ")]
        assert max(map(len, said)) <= 102
        assert len(said) > 4 * 4


def test_the_terminal_ends_what_fills_it():
    """A stranger's assertion may print a tensor on one line."""
    parity = ParityChange(compared=9, newly_failing=(CaseChange("t.py::test_x", "passed", "failed", "9 " * 5000),))

    assert len(FORMS["terminal"](upgrade(parity=parity)).splitlines()) < 50


def test_markdown_ends_a_table_that_nobody_reads():
    """A thousand rows, then how many there are more; a page has them all."""
    gone = tuple(CaseChange(f"t.py::test_{n}", "passed", "skipped", "no Apex") for n in range(1234))
    one = upgrade(parity=ParityChange(compared=1, vanished=gone))

    assert "\n... and 234 more\n" in report.to_markdown(one)
    assert "test_1233" in report.to_html(one)


NASTY = "<script>alert(1)</script>|a`b*c_d&\"'\n\x1b[31m\u202e"


@pytest.fixture
def nasty():
    """Return an upgrade whose every text from elsewhere is nasty."""
    change = CaseChange(NASTY, "passed", "failed", NASTY)
    parity = dataclasses.replace(
        EVERYTHING,
        newly_failing=(change,),
        skipped=(Skipped(NASTY, (NASTY,)),),
        grown=(Growth(NASTY, NASTY, 0.3, 0.9),),
        old=NASTY,
    )
    verdicts = (
        dataclasses.replace(time(NASTY, Outcome.REGRESSED, 5), detail=NASTY),
        exact(NASTY, "kernels_hash", Outcome.PASS, NASTY),
    )
    new = Examined(
        Environment("new", NASTY, {NASTY: NASTY}),
        {**INVENTORY, NASTY: NASTY},
        NASTY,
        findings=(Finding("apex.broken", "broken", NASTY),),
    )
    durations = {verdicts[1].pair: (NASTY, NASTY)}
    one = upgrade(*verdicts, parity=parity, notes=(NASTY,), selection=NASTY)
    return dataclasses.replace(one, new=new, durations=durations)


def test_html_escapes_everything(nasty):
    """No tag but our own, nothing that a browser would fetch or run; and it is well formed."""
    page = report.to_html(nasty)
    body = page.partition("<body>")[2].partition("</body>")[0]
    tree = ET.fromstring(f"<body>{body}</body>")

    assert {each.tag for each in tree.iter()} <= {
        *("body", "h1", "h2", "p", "ul", "li", "div", "table", "tr", "th", "td"),
        *("svg", "title", "rect", "line", "g", "text", "circle"),
    }
    assert "<script>alert(1)</script>|a`b*c_d&\"'" in "".join(tree.itertext())
    assert not re.search(r"(?i)\b(src|href|url|import|on\w+)\s*[=(]", page)
    assert "default-src" in page
    assert "\x1b" not in page


def test_markdown_keeps_its_tables(nasty):
    """A pipe or a line break in a name opens no column and no row, and markup stays text."""
    text = report.to_markdown(nasty)
    rows = [re.sub(r"\\.", "", line) for line in text.splitlines() if line.startswith("|")]

    assert {row.count("|") for row in rows} == {4, 5, 6, 9}
    for line in text.splitlines():
        assert line == "" or line[:2] in ("# ", "##", "**", "- ", "| "), line
    assert not re.search(r"(?<!\\)<", text)


def test_the_terminal_is_not_moved(nasty):
    """Neither colours nor line breaks nor a right-to-left mark come from a name."""
    lines = report.terminal_lines(nasty)

    assert all(line.isprintable() for line in lines)


def test_json_is_strict():
    """What is not finite is a text, since JSON has no number for it."""
    verdict = dataclasses.replace(time("a", Outcome.INVALID, 0), effect_ln=math.nan, interval_ln=(-math.inf, math.inf))
    document = report.to_json(dataclasses.replace(upgrade(verdict), durations={verdict.pair: (math.inf, 1.0)}))
    (found,) = json.loads(json.dumps(document, allow_nan=False))["verdicts"]

    assert (found["effect_ln"], found["interval_ln"], found["old"]) == ("nan", ["-inf", "inf"], "inf")


def drawn(*verdicts, **changes):
    """Return the picture's labels by their kind, and the ends of each benchmark's interval by its name."""
    page = report.to_html(upgrade(*verdicts, **changes))
    tree = ET.fromstring(page[page.index("<svg") : page.index("</svg>")] + "</svg>")
    labels = {kind: tree.findall(f"text[@class='{kind}']") for kind in ("tick", "tolerance")}
    lines = {group.find("text").text.split()[0]: group.find("line") for group in tree.findall("g")}
    return labels, {name: (float(each.get("x1")), float(each.get("x2"))) for name, each in lines.items()}


@pytest.mark.parametrize(
    ("percent", "ticks"),
    [
        (0.1, ["-2 %", "-1 %", "0 %", "+1 %", "+2 %", "+3 %"]),
        (4, ["-4 %", "-2 %", "0 %", "+2 %", "+4 %"]),
        (110, ["-50 %", "-20 %", "0 %", "+25 %", "+100 %"]),
        (2000, ["-90 %", "-80 %", "-50 %", "0 %", "+100 %", "+400 %", "+900 %"]),
    ],
    ids=["quiet", "some_percent", "twice", "twenty_times"],
)
def test_the_axis_of_the_picture_has_labels(percent, ticks):
    """Round percentages at their places, in order and apart; the tolerance has a line and a label on either side."""
    labels, _ = drawn(time("a", Outcome.INCONCLUSIVE, percent))
    places = [float(each.get("x")) for each in labels["tick"]]

    assert [each.text for each in labels["tick"]] == ticks
    assert min(right - left for left, right in itertools.pairwise(places)) >= 40
    assert places[ticks.index("0 %")] == pytest.approx(735)
    assert [each.text for each in labels["tolerance"]] == ["tolerance -0.99 %", "+1.00 %"]
    low, high = (float(each.get("x")) for each in labels["tolerance"])
    assert 735 - low == pytest.approx(high - 735)
    if "+1 %" in ticks:
        assert places[ticks.index("+1 %")] == pytest.approx(high)


def test_one_wild_interval_does_not_hide_the_others():
    """It runs from end to end; those of three benchmarks in four keep their size, and each change is on the axis."""
    wild = dataclasses.replace(time("wild", Outcome.INCONCLUSIVE, 4), interval_ln=(-60.0, 60.0))
    _, lines = drawn(wild, *(time(name, Outcome.PASS, 0.1) for name in "abcd"))

    assert lines["wild"] == (500, 970)
    assert lines["a"][1] - lines["a"][0] > 50


def test_a_picture_is_well_formed_whatever_it_says():
    """Less than a thousandth has a sign that is markup."""
    page = report.to_html(upgrade(dataclasses.replace(time("<a>", Outcome.PASS, 0), interval_ln=(-60.0, 60.0))))

    assert "&lt;a&gt; device_time_ns: +0.00 % (&lt; x 0.001 to &gt; x 1000)" in page


def test_the_picture_survives_what_is_not_finite():
    """A verdict without a finite interval has no line, the others have theirs."""
    endless = dataclasses.replace(time("endless", Outcome.INVALID, 1), interval_ln=(-math.inf, math.inf))
    page = report.to_html(upgrade(endless, time("usual", Outcome.REGRESSED, 5)))

    assert re.findall(r"<text x=\"0\" [^>]*>([^<]*)<", page) == ["usual device_time_ns"]
    assert "nan" not in page


def test_what_is_reported_only_is_in_the_whole_table():
    """Host time is nobody's verdict, and in the files all the same."""
    one = upgrade()
    one = dataclasses.replace(one, durations={**one.durations, Pair("adam/a", "host_time_ns"): (5e4, 6e4)})

    assert (
        "| adam/a | host\\_time\\_ns | 50.00 us | 60.00 us | +20.00 % | - | reported only |  |"
        in report.to_markdown(one)
    )
    assert report.to_json(one)["reported"] == [{"key": "adam/a", "metric": "host_time_ns", "old": 5e4, "new": 6e4}]


def test_what_became_of_host_times_is_said_in_a_sentence():
    """A new dispatch that costs every call is seen in the median; one that an arm has not measured is not counted."""
    one = upgrade()
    host = {"a": (5e4, 6e4), "b": (5e4, 1e5), "c": (5e4, 11e5), "d": (None, 6e4), "e": (0.0, 6e4)}
    more = {Pair(key, "host_time_ns"): values for key, values in host.items()}
    text = FORMS["terminal"](dataclasses.replace(one, durations={**one.durations, **more}))

    said = "host time, which is judged by nobody: +100.00 % in the median of 3 benchmarks, +20.00 % to x 22"
    assert said in " ".join(text.split())
    assert "host time" not in FORMS["terminal"](one)


def test_nothing_at_all_is_said():
    """Without verdicts and without parity nothing looks like a success."""
    empty = dataclasses.replace(upgrade(), verdicts=(), durations={}, parity=None, pairs=0)

    assert report.sentence(empty).startswith("Not decided: no benchmark was compared, ")
    assert FORMS["terminal"](empty).count("nothing was compared") == 2
    assert "nothing was measured" in report.to_markdown(empty)
