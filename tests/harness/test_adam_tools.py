"""What the checks of Adam are made of: rounding once, bounds that are carried on, bits, the table of defects."""

import re
from pathlib import Path

import pytest
import torch

from fuseproof.oracle import AdamHyper
from fuseproof.parity import Budget, ParityError, assert_rounded, round_to, spacing
from fuseproof.parity.adam.bounds import Tracked, advance
from fuseproof.parity.adam.regimes import REGIMES, make_params
from fuseproof.parity.bits import changes, contents, is_zero, same_bits
from fuseproof.parity.defects import Defect, DefectTableError, Seen, find_defect, load_defects
from fuseproof.parity.faults import FAULTS

KERNEL_TESTS = Path(__file__).parents[1] / "kernels"
HALVES = [torch.bfloat16, torch.float16]
ALL = [*HALVES, torch.float32]
NONE = Budget(1.0, "none")


def numbers(*values):
    """Return float64 elements."""
    return torch.tensor(values, dtype=torch.float64)


# --- rounding ---


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_numbers_of_a_dtype_are_their_own_roundings(dtype):
    """Every half-precision number, and as many of FP32: subnormals, infinities and NaN too."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32)
    exact = (bits << 16).view(torch.float32) if dtype == torch.float32 else bits.to(torch.int16).view(dtype)

    exact = exact.double()
    rounded = round_to(exact, dtype)

    assert torch.equal(rounded.isnan(), exact.isnan())
    assert torch.equal(rounded[~rounded.isnan()], exact[~exact.isnan()])


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_ties_go_to_even_and_what_is_beside_them_does_not(dtype):
    """Half a unit above 1 is rounded down, a unit and a half up, and 2^-50 beside a tie decides it."""
    eps, little = torch.finfo(dtype).eps, 2.0**-50
    values = numbers(1 + eps / 2, 1 + 1.5 * eps, 1 + eps / 2 + little, 1 + 1.5 * eps - little)

    assert round_to(values, dtype).tolist() == [1.0, 1 + 2 * eps, 1 + eps, 1 + eps]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rounding_through_fp32_would_round_twice(dtype):
    """torch's own conversion loses what is beside the tie: that is why there is another here."""
    beside = numbers(1 + torch.finfo(dtype).eps / 2 + 2.0**-50)

    assert beside.to(dtype).item() == 1.0
    assert round_to(beside, dtype).item() > 1.0


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_beyond_the_range_is_infinite(dtype):
    """Half a unit beyond the greatest number it is infinite, just below that it is the greatest."""
    info = torch.finfo(dtype)
    half = spacing(numbers(info.max), dtype).item() / 2
    values = numbers(info.max + 0.999 * half, info.max + 1.001 * half, -2 * info.max)

    assert round_to(values, dtype).tolist() == [info.max, torch.inf, -torch.inf]


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_spacing_of_subnormals_is_that_of_the_least_normal(dtype):
    """Below the least normal number the distances stay."""
    info = torch.finfo(dtype)

    assert spacing(numbers(1.0, 1.999, 2.0), dtype).tolist() == [info.eps, info.eps, 2 * info.eps]
    assert spacing(numbers(info.tiny, info.tiny / 2, 0.0), dtype).tolist() == [info.tiny * info.eps] * 3


@pytest.mark.parametrize(
    ("stored", "expected", "tolerance", "right"),
    [
        pytest.param(1.0, 1.0 + 2**-9, 0.0, True, id="rounded"),
        pytest.param(1.0 + 2**-7, 1.0 + 2**-9, 0.0, False, id="rounded-the-wrong-way"),
        pytest.param(1.0 + 2**-7, 1.0 + 2**-8 - 2**-20, 2**-19, True, id="within-tolerance-of-a-tie"),
        pytest.param(1.0 + 2**-7, 1.0 + 2**-8 - 2**-18, 2**-19, False, id="tie-out-of-reach"),
        pytest.param(float("nan"), float("nan"), 0.0, True, id="nan-in-both"),
        pytest.param(float("nan"), float("inf"), 0.0, True, id="inf-less-inf"),
        pytest.param(float("nan"), 1.0, 1.0, False, id="nan"),
        pytest.param(1.0, float("nan"), 1.0, False, id="nan-lost"),
        pytest.param(float("inf"), 1.0, 1.0, False, id="inf"),
        pytest.param(float("inf"), 3.5e38, 0.0, True, id="beyond-the-range"),
        pytest.param(5.0, 1.0, float("inf"), True, id="nothing-can-be-said"),
    ],
)
def test_stored_value_is_a_rounding(stored, expected, tolerance, right):
    """BF16 values near 1 are 2^-7 apart."""
    arguments = torch.tensor([stored]).bfloat16(), numbers(expected), numbers(tolerance), NONE, "case"
    if right:
        assert_rounded("param", *arguments)
    else:
        with pytest.raises(ParityError, match=r"param: 1 of 1 elements beyond the budget; worst at 0: got .* \(case\)"):
            assert_rounded("param", *arguments)


def test_shapes_are_compared_before_values():
    """Broadcasting would hide a wrong shape."""
    with pytest.raises(ParityError, match=r"param: shape \(2,\), expected \(1,\)"):
        assert_rounded("param", torch.zeros(2), numbers(0.0), numbers(0.0), NONE, "case")


# --- bounds ---


@pytest.mark.parametrize("decoupled", [False, True], ids=["l2", "decoupled"])
def test_carried_errors_bound_what_they_carry(decoupled):
    """From a state that is off by as much as its errors say, the oracle stays within the errors of its next steps."""
    generator = torch.Generator().manual_seed(4)
    hyper = AdamHyper(1e-2, (0.9, 0.99), 1e-6, 0.1, decoupled)
    one, other = numbers(*range(-50, 50)) / 50, numbers(*range(-50, 50)) / 50
    signs = torch.randn(3, 100, generator=generator, dtype=torch.float64).sign()
    state = Tracked.exact(one, other / 9, other.square() / 7)
    errors = [1e-4 * state.param.abs(), 1e-5 + 0 * other, 0.3 * state.exp_avg_sq]
    state = Tracked(state.param, state.exp_avg, state.exp_avg_sq, *errors, state.update)
    off = Tracked.exact(
        *(
            value + sign * error
            for value, sign, error in zip(list(vars(state).values())[:3], signs, errors, strict=True)
        )
    )
    for step in range(3, 8):
        grad = torch.randn(100, generator=generator, dtype=torch.float64)
        state, off = (advance(each, grad, step, hyper, 0.0, torch.float32) for each in (state, off))

        for name in ("param", "exp_avg", "exp_avg_sq"):
            assert ((getattr(off, name) - getattr(state, name)).abs() <= getattr(state, f"{name}_error")).all(), name


def test_regimes_are_the_same_every_time_and_differ_from_each_other():
    """Same seed, same bits; each says what it catches; each has gradients of its own."""
    seen = []
    for regime in REGIMES.values():
        pair = [make_params(regime, torch.float32, torch.device("cpu"), 1) for _ in range(2)]
        for params in pair:
            regime.set_gradients(params, 2, 1)
        assert all(map(same_bits, *pair))
        assert regime.catches
        seen.append((regime.lr, [None if p.grad is None else p.grad.tolist() for p in pair[0]], pair[0][0].tolist()))

    assert all(one != other for i, one in enumerate(seen) for other in seen[:i])


# --- bits ---


def test_bits_are_compared():
    """NaN is itself, -0 is not 0, another dtype or shape is another thing."""
    nan, zero = torch.tensor([float("nan")]), torch.zeros(1)

    assert same_bits(nan, nan.clone())
    assert not same_bits(zero, -zero)
    assert not same_bits(zero, zero.double())
    assert not same_bits(zero, torch.zeros(1, 1))


def test_changes_are_named():
    """Changed, gone and of another type are changes; what is new is not; copies do not follow."""
    live = torch.ones(2)
    before = contents({"a": live, "b": 1.0, "c": live, "d": None, "e": 1})
    live[0] = 2

    assert changes(before, contents({"a": live, "b": 1.0, "d": None, "e": 1.0, "f": 3})) == ["a", "c", "e"]
    assert is_zero(torch.zeros(2))
    assert not is_zero(live)


# --- defects ---

SEEN = Seen("test_x|test_y", "bf16-.*", ("mine",), ("cpu",))
DEFECT = Defect("slow", "Slow", (1,), ("mine",), ("cpu",), "seen on a Tuesday.", "torch 2.13", "slow.py", (SEEN,))
ENTRY = """
[[defect]]
id = "slow"
title = "Slow"
faults = [1]
candidates = ["mine", "yours"]
devices = ["cpu"]
evidence = "seen on a Tuesday."
since = "torch 2.13"
reproduction = "slow.py"
raises = ["KeyError"]
[[defect.seen]]
test = "test_x"
cases = ".*"
candidates = ["mine"]
"""


@pytest.mark.parametrize(
    ("candidate", "device", "test", "case", "known"),
    [
        ("mine", "cpu", "test_x", "mine-bf16-huge", True),
        ("mine", "cpu", "test_y", "bf16-", True),
        ("mine", "cpu", "test_xx", "mine-bf16-huge", False),
        ("mine", "cpu", "test_x", "mine-fp32-bf16-", False),
        ("mine", "cuda", "test_x", "mine-bf16-huge", False),
        ("yours", "cpu", "test_x", "yours-bf16-huge", False),
        ("mine", "cpu", "test_x", "mine", False),
    ],
)
def test_defects_are_found_by_the_whole_id(candidate, device, test, case, known):
    """Neither a part of a name nor another device is a known defect."""
    assert (find_defect((DEFECT,), candidate, device, test, case) is DEFECT) == known


def test_no_table_is_no_defects(tmp_path):
    """A repository without known defects has no file."""
    assert load_defects(tmp_path / "none.toml") == ()


def test_a_place_may_be_narrower_than_its_defect(tmp_path):
    """What is not said at a place is what is said of the defect."""
    table = tmp_path / "table.toml"
    table.write_text(ENTRY)
    (defect,) = load_defects(table)

    assert defect.seen == (Seen("test_x", ".*", ("mine",), ("cpu",)),)
    assert defect.exceptions() == (KeyError,)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        pytest.param("title", "titel", "defect slow: unknown key titel; known are candidates, ", id="unknown-key"),
        pytest.param('title = "Slow"\n', "", "defect slow: it lacks title; add it.", id="no-title"),
        pytest.param('test = "test_x"\n', "", "defect slow, seen: it lacks test; add it.", id="no-test"),
        pytest.param("KeyError", "CudaError", "raises names 'CudaError', which is no exception", id="no-exception"),
        pytest.param("faults = [1]", "faults = [1", "mend the file.", id="no-toml"),
        pytest.param(ENTRY, ENTRY * 2, "slow is there twice", id="twice"),
    ],
)
def test_a_table_that_cannot_be_read(tmp_path, old, new, said):
    """One sentence names the file, the entry and the mend."""
    assert old in ENTRY
    table = tmp_path / "table.toml"
    table.write_text(ENTRY.replace(old, new))
    with pytest.raises(DefectTableError, match=re.escape(said)) as caught:
        load_defects(table)

    assert str(caught.value).startswith(str(table))
    assert "\n" not in str(caught.value)


TABLES = [
    pytest.param(defect, table, id=defect.id)
    for table in sorted(KERNEL_TESTS.glob("*_defects.toml"))
    for defect in load_defects(table)
]


@pytest.mark.parametrize(("defect", "table"), TABLES)
def test_every_listed_defect_has_its_tests(defect, table):
    """A test that was renamed leaves no entry behind."""
    names = set(re.findall(r"^def (test_\w+)", "".join(p.read_text() for p in KERNEL_TESTS.glob("test_*.py")), re.M))
    for seen in defect.seen:
        alternatives = re.sub(r"^test_\((.*)\)$", r"\1", seen.test).split("|")

        assert {f"test_{each.removeprefix('test_')}" for each in alternatives} <= names


@pytest.mark.parametrize(("defect", "table"), TABLES)
def test_every_listed_defect_can_be_looked_into(defect, table):
    """It has a kind, a build in which it was seen, and a program that shows it."""
    assert defect.faults
    assert set(defect.faults) <= FAULTS.keys()
    assert defect.since
    assert (table.parent / "reproductions" / defect.reproduction).is_file()
