"""`[tool.fuseproof.gate]` and `waivers.toml` are read strictly; whatever is wrong with them is one sentence."""

import datetime
import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseproof.config import ConfigError, load_settings
from fuseproof.gate.settings import GateSettings
from fuseproof.gate.waivers import load_waivers, unknown_waivers
from fuseproof.verdicts.rules import DEFAULT_RULES, Kind, Rule, rule_of
from fuseproof.verdicts.verdict import Pair, Waiver

ENTRY = """
[[waiver]]
key = "op/mine/fp32/00"
metric = "device_time_ns"
limit = "3 %"
reason = "new attention"
owner = "kim"
expiry = 2027-01-31
"""


def gate_of(folder: Path, text: str) -> GateSettings:
    """Return the settings of a table."""
    (folder / "pyproject.toml").write_text(f"[tool.fuseproof]\n[tool.fuseproof.gate]\n{text}")
    found = load_settings(folder)
    assert found is not None
    return found.gate


def refusal(folder: Path, text: str) -> str:
    """Return the sentence with which a table is refused."""
    with pytest.raises(ConfigError) as caught:
        gate_of(folder, text)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(str(folder / "pyproject.toml"))
    return str(caught.value)


def waivers_of(folder: Path, text: str) -> list[Waiver]:
    """Return the waivers of a text."""
    (folder / "waivers.toml").write_text(text)
    return load_waivers(folder, GateSettings())


def test_defaults_are_those_of_the_verdicts(tmp_path: Path) -> None:
    """A repository that says nothing is gated by the documented tolerances, and fails."""
    gate = gate_of(tmp_path, "")
    assert (GateSettings(), "fail", DEFAULT_RULES) == (gate, gate.mode, gate.rules)


def test_every_key_is_read(tmp_path: Path) -> None:
    """The table of the docs, in full."""
    gate = gate_of(
        tmp_path,
        """
        mode = "warn"
        replicates = 1
        trusted_python = "/opt/trusted/bin/python"
        trusted_env = { CUDA_HOME = "/opt/cuda" }
        waivers = "later.toml"
        [tool.fuseproof.gate.tolerance]
        device_time_ns = "2 %"
        peak_bytes = "1 % or 4 MiB"
        launches = "reported"
        host_time_ns = "30 %"
        [[tool.fuseproof.gate.override]]
        keys = "layer_norm*/64x*"
        tolerance = { device_time_ns = "3 %" }
        reason = "a few us"
        """,
    )
    wanted = GateSettings(
        "warn",
        1,
        "/opt/trusted/bin/python",
        {"CUDA_HOME": "/opt/cuda"},
        "later.toml",
        (
            Rule("device_time_ns", Kind.STOCHASTIC, math.log1p(0.02), 32.0),
            DEFAULT_RULES[1],
            Rule("peak_bytes", Kind.MEMORY, math.log1p(0.01), margin_bytes=4 * 2**20),
            Rule("launches", Kind.REPORTED),
            DEFAULT_RULES[4],
            Rule("host_time_ns", Kind.STOCHASTIC, math.log1p(0.3), 1.0),
            Rule("device_time_ns", Kind.STOCHASTIC, math.log1p(0.03), 32.0, keys="layer_norm*/64x*"),
        ),
    )
    assert wanted == gate


def test_the_last_rule_that_fits_wins() -> None:
    """An override stands after the metric's own rule; a metric that is reported only has no rule."""
    special = Rule("device_time_ns", Kind.STOCHASTIC, 0.05, keys="a/*")
    quiet = Rule("launches", Kind.REPORTED, keys="a/*")
    rules = (*DEFAULT_RULES, special, quiet)

    assert special == rule_of(rules, Pair("a/b", "device_time_ns"))
    assert DEFAULT_RULES[0] == rule_of(rules, Pair("b/a", "device_time_ns"))
    assert rule_of(rules, Pair("a/b", "launches")) is None
    assert rule_of(rules, Pair("a/b", "colour")) is None


def test_an_override_that_fits_nothing_is_said() -> None:
    """A pattern with a typing error would otherwise loosen nothing, in silence."""
    rule = Rule("device_time_ns", Kind.STOCHASTIC, 0.05, keys="layernorm*")
    gate = GateSettings(rules=(*DEFAULT_RULES, rule))

    assert gate.unmatched(["layernorm_fwd/apex/bf16/64x768"]) == []
    (sentence,) = gate.unmatched(["layer_norm_fwd/apex/bf16/64x768"])
    assert "'layernorm*' fits none of 1 known benchmarks" in sentence


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('mdoe = "warn"', "has no key 'mdoe'; did you mean 'mode'?"),
        ('mode = "loud"', "mode is 'loud'; it takes one of fail, warn, off."),
        ("replicates = 0", "replicates is 0; it takes a number of 1 to 50."),
        ("replicates = true", "replicates is True; it takes"),
        ('waivers = ""', "waivers is ''; it takes a non-empty string."),
        ("trusted_python = 3", "trusted_python is 3; it takes a non-empty string."),
        ("trusted_env = { A = 1 }", "trusted_env A is 1; it takes a string."),
        ('tolerance = { device_time = "1 %" }', "no key 'device_time'; did you mean 'device_time_ns'?"),
        ("tolerance = { device_time_ns = 0.01 }", "device_time_ns is 0.01; it takes a percentage such as '1 %'"),
        ('tolerance = { device_time_ns = "0 %" }', "device_time_ns is '0 %'; it takes a percentage"),
        ('tolerance = { device_time_ns = "1 MiB" }', "device_time_ns is '1 MiB'; it takes a percentage"),
        ('tolerance = { device_time_ns = "5000 %" }', "device_time_ns is '5000 %'; it takes a percentage"),
        ('tolerance = { launches = "1 %" }', "launches is '1 %'; it takes 'exact' or 'reported'."),
        ('tolerance = { peak_bytes = "1 % or 2 %" }', "peak_bytes is '1 % or 2 %'; it takes a margin"),
        ('override = "x"', "override is 'x'; write [[tool.fuseproof.gate.override]]"),
        ("[[tool.fuseproof.gate.override]]\nkeys = 'a'\nreason = 'b'", "override 1 tolerance is None; it is a table."),
        (
            "[[tool.fuseproof.gate.override]]\nkeys = 'a'\nreason = 'b'\ntolerance = {}",
            "override 1 tolerance is empty",
        ),
        (
            "[[tool.fuseproof.gate.override]]\nkeys = 'a'\ntolerance = { launches = 'exact' }",
            "override 1 reason is None; it takes a non-empty string.",
        ),
    ],
)
def test_a_faulty_table_is_refused(tmp_path: Path, text: str, said: str) -> None:
    """With the key, the value as Python reads it, and what the key takes."""
    assert said in refusal(tmp_path, text)


def test_a_gate_that_is_no_table_is_refused(tmp_path: Path) -> None:
    """`gate = true` looks like a switch; it is none."""
    (tmp_path / "pyproject.toml").write_text("[tool.fuseproof]\ngate = true\n")
    with pytest.raises(ConfigError, match=r"\[tool.fuseproof.gate\] is True; it is a table."):
        load_settings(tmp_path)


toml_values = st.one_of(
    st.booleans().map(lambda value: str(value).lower()),
    st.integers(-5, 60).map(str),
    st.sampled_from(['"1 %"', '"exact"', '"reported"', '"0.5 % or 1 MiB"', '"-1 %"', '"fail"', '""', "[]", "{}"]),
)
toml_names = st.sampled_from(["mode", "replicates", "waivers", "trusted_env", "tolerance", "override", "other"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.dictionaries(toml_names, toml_values, max_size=3))
def test_any_table_is_read_or_refused_in_one_sentence(tmp_path: Path, table: dict[str, str]) -> None:
    """No table ends in another exception than `ConfigError`."""
    text = "\n".join(f"{name} = {value}" for name, value in table.items())
    try:
        gate_of(tmp_path, text)
    except ConfigError as error:
        assert len(str(error).splitlines()) == 1  # noqa: PT017 - either way of ending is right


# --- waivers ---


def test_waivers_are_read(tmp_path: Path) -> None:
    """One entry, as the docs show it."""
    pair = Pair("op/mine/fp32/00", "device_time_ns")
    wanted = Waiver(pair, math.log1p(0.03), "new attention", "kim", datetime.date(2027, 1, 31))

    assert [wanted] == waivers_of(tmp_path, ENTRY)


def test_no_file_is_no_waiver(tmp_path: Path) -> None:
    """Most repositories have none; one that the configuration names must be there."""
    assert load_waivers(tmp_path, GateSettings()) == []
    with pytest.raises(ConfigError, match=r"leave\.toml: is missing, and .* waivers names it; restore it or remove"):
        load_waivers(tmp_path, GateSettings(waivers="leave.toml"))
    with pytest.raises(ConfigError, match=r"leave\\x00' names no file: embedded null"):
        load_waivers(tmp_path, GateSettings(waivers="leave\0"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('owner = "kim"\n', "", "waiver 1: owner is None; it takes a non-empty string."),
        ('reason = "new attention"', 'reason = " "', "waiver 1: reason is ' '; it takes a non-empty string."),
        ("2027-01-31", '"2027-01-31"', "waiver 1: expiry is '2027-01-31'; it takes a date without quotes"),
        ("2027-01-31", "2027-01-31T00:00:00", "waiver 1: expiry is datetime.datetime"),
        ('"3 %"', "3", "waiver 1: limit is 3; it takes a non-empty string."),
        ('"3 %"', '"3 MiB"', "waiver 1: limit is '3 MiB'; it takes a percentage"),
        ('"3 %"', '"-3 %"', "waiver 1: limit is '-3 %'; it takes a percentage"),
        ('"device_time_ns"', '"device_time"', "no metric 'device_time' can be waived; did you mean 'device_time_ns'?"),
        ('"device_time_ns"', '"kernels_hash"', "no metric 'kernels_hash' can be waived"),
        ('"device_time_ns"', '"host_time_ns"', "00 host_time_ns is reported and blocks nothing; remove the waiver, or"),
        ("owner", "onwer", "waiver 1 has no key 'onwer'; did you mean 'owner'?"),
        ("[[waiver]]", "[[waivers]]", "has no key 'waivers'; did you mean 'waiver'?"),
        ("[[waiver]]", "[waiver]", "write [[waiver]], once for each."),
        ("[[waiver]]", "[[waiver", "not valid TOML"),
    ],
)
def test_a_faulty_waiver_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    """The sentence names file, entry and mend."""
    assert old in ENTRY
    with pytest.raises(ConfigError) as caught:
        waivers_of(tmp_path, ENTRY.replace(old, new))
    message = str(caught.value)

    assert said in message
    assert message.startswith(str(tmp_path / "waivers.toml"))
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_waivers_that_are_no_file_are_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe that nobody writes into would be waited for, for ever."""
    make(tmp_path / "waivers.toml")
    said = "waivers.toml: cannot be read: it is no regular file; remove it, or put a file in its place."
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_waivers(tmp_path, GateSettings())


def test_two_waivers_of_one_pair_are_refused(tmp_path: Path) -> None:
    """Which of the two limits holds would be a guess."""
    with pytest.raises(ConfigError, match=r"waivers 1 and 2 are both for op/mine/fp32/00 device_time_ns"):
        waivers_of(tmp_path, ENTRY + ENTRY)


def test_a_waiver_of_nothing_is_named() -> None:
    """A benchmark that was renamed leaves its waiver behind."""
    waiver = Waiver(Pair("op/mine/fp32/00", "launches"), 0.1, "why", "who", datetime.date(2027, 1, 31))
    (sentence,) = unknown_waivers([waiver], {Pair("op/mine/fp32/01", "launches")})

    assert "the waiver of op/mine/fp32/00 launches (why, who)" in sentence
    assert "did you mean 'op/mine/fp32/01'?" in sentence
    assert unknown_waivers([waiver], {waiver.pair}) == []
