"""The element-wise judgement: what passes, what fails, and what a failure says."""

import pytest
import torch

from fuseproof.parity import Budget, ParityError, assert_parity, eps_of

HALF = Budget(0.5, "half a unit, rounded once")


def within(actual, expected, scale, budget=HALF):
    """Compare lists of numbers."""
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (actual, expected, scale)]
    return assert_parity("update", *tensors, budget, "apex, step 3")


def test_returns_the_worst_ratio():
    """The greatest error in units of its own budget, not the greatest error."""
    assert within([1.3, 102.0], [1.0, 100.0], [1.0, 10.0]) == pytest.approx(0.6)


def test_exactly_at_the_budget_passes():
    """The budget itself is allowed."""
    assert within([1.5], [1.0], [1.0]) == 1.0


def test_just_beyond_the_budget_fails():
    """One more bit is not."""
    with pytest.raises(ParityError):
        within([1.5000000000000002], [1.0], [1.0])


def test_each_element_has_its_own_scale():
    """An error that a large element may show is too much for a small one beside it."""
    with pytest.raises(ParityError, match=r"1 of 2 elements beyond the budget; worst at \(1,\)"):
        within([100.4, 1.4], [100.0, 1.0], [1.0, 0.1])


def test_low_precision_is_compared_in_float64():
    """A candidate's BF16 value is compared as it stands, not the oracle rounded to BF16."""
    third = torch.tensor([1 / 3], dtype=torch.float64)
    rounded = third.bfloat16()
    ratio = assert_parity("y", rounded, third, third * eps_of(torch.bfloat16), Budget(0.5, "rounded once"), "case")

    assert ratio == pytest.approx(abs(rounded.item() - 1 / 3) / (0.5 * eps_of(torch.bfloat16) / 3))


@pytest.mark.parametrize(
    ("dtype", "spacing"), [(torch.float32, 2**-23), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)], ids=str
)
def test_eps_is_the_spacing_at_one(dtype, spacing):
    """The next number above 1 is 1 + eps."""
    one = torch.ones((), dtype=dtype)

    assert spacing == eps_of(dtype)
    assert torch.nextafter(one, 2 * one).double().item() == 1 + spacing


@pytest.mark.parametrize(
    ("actual", "expected", "scale"),
    [
        pytest.param([1.0, float("nan")], [1.0, 1.0], [1.0, 1.0], id="nan"),
        pytest.param([1.0, float("inf")], [1.0, 1.0], [1.0, 1.0], id="inf"),
        pytest.param([1.0, -float("inf")], [1.0, 1.0], [1.0, 1.0], id="minus-inf"),
        pytest.param([1.0, 2.0], [1.0, float("nan")], [1.0, 1.0], id="nan-in-the-oracle"),
        pytest.param([1.0, 2.0], [1.0, 2.1], [1.0, float("nan")], id="nan-in-the-scale"),
        pytest.param([1.0, float("nan")], [1.0, 2.1], [1.0, float("inf")], id="nan-under-an-infinite-scale"),
        pytest.param([1.0, float("nan")], [1.0, float("nan")], [1.0, 1.0], id="nan-in-both"),
        pytest.param([0.0, 1e-300], [0.0, 0.0], [0.0, 0.0], id="error-where-the-scale-is-zero"),
        pytest.param([0.0, 0.1], [0.0, 0.0], [1.0, -1.0], id="negative-scale"),
        pytest.param([0.0, float("inf")], [0.0, 0.0], [1.0, float("inf")], id="inf-under-an-infinite-scale"),
    ],
)
def test_never_passes(actual, expected, scale):
    """What cannot be compared is a failure at its element, whatever its neighbours are."""
    with pytest.raises(ParityError, match=r"1 of 2 elements beyond the budget; worst at \(1,\)"):
        within(actual, expected, scale)


def test_no_error_passes_at_scale_zero():
    """Nothing may be off where the scale is zero, and nothing is."""
    assert within([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]) == 0.0


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        pytest.param((2, 3), (3, 2), id="transposed"),
        pytest.param((3,), (1, 3), id="would-broadcast"),
        pytest.param((0,), (3,), id="empty"),
    ],
)
def test_shapes_must_agree(actual, expected):
    """Broadcasting would hide a wrong shape."""
    wanted = torch.zeros(expected, dtype=torch.float64)
    with pytest.raises(ParityError) as caught:
        assert_parity("dgamma", torch.zeros(actual), wanted, wanted + 1, HALF, "case 7")

    assert str(caught.value) == f"dgamma: shape {actual}, expected {expected} (case 7)"


def test_nothing_to_compare_passes():
    """An empty tensor has no error."""
    assert within([], [], []) == 0.0


def test_a_scalar_is_compared():
    """A 0-d tensor has one element."""
    with pytest.raises(ParityError, match=r"1 of 1 elements beyond the budget; worst at \(\)"):
        within(2.0, 1.0, 1.0)


def test_message_is_enough_to_act_on():
    """Quantity, how many, where, both values, error, ratio, budget with its reason, and the case."""
    actual = torch.tensor([[0.0, 0.0], [0.0, 3.0]])
    expected = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ParityError) as caught:
        assert_parity("exp_avg", actual, expected, torch.full_like(expected, 0.5), HALF, "apex, step 3")

    assert str(caught.value) == (
        "exp_avg: 1 of 4 elements beyond the budget; worst at (1, 1): got 3, oracle 1, error 2 = 8 x budget 0.25 "
        "(budget: half a unit, rounded once) (apex, step 3)"
    )


def test_a_parity_error_is_an_assertion():
    """pytest reports it as a failure, not as an error of the harness."""
    assert issubclass(ParityError, AssertionError)
