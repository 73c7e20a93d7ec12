"""The FP64 oracle against values by hand, 50-digit arithmetic and finite differences: nothing of torch's own."""

import ast
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

from fuseproof import oracle
from fuseproof.oracle import AdamHyper, layer_norm, rms_norm

PLAIN = AdamHyper(lr=0.1, betas=(0.5, 0.75), eps=0.0, weight_decay=0.0, decoupled=False)
USUAL = AdamHyper(lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, decoupled=True)
ZERO = torch.zeros(1, dtype=torch.float64)


def adam_update(*args):
    """Return (update, exp_avg, exp_avg_sq) after the step."""
    result = oracle.adam_update(*args)
    return result.update, result.exp_avg, result.exp_avg_sq


def replaced(hyper, **changes):
    """Return `hyper` with some attributes changed."""
    return AdamHyper(**{**vars(hyper), **changes})


def one(value):
    """Return one float64 element."""
    return torch.tensor([value], dtype=torch.float64)


# --- Adam ---


@pytest.mark.parametrize("decoupled", [False, True], ids=["l2", "decoupled"])
@pytest.mark.parametrize("gradient", [3e-4, -7.0], ids=["small", "large"])
def test_first_step_is_lr_times_the_sign(gradient, decoupled):
    """Without eps and decay, the first update is the learning rate against the gradient's sign, whatever its size."""
    hyper = AdamHyper(lr=0.01, betas=(0.9, 0.999), eps=0.0, weight_decay=0.0, decoupled=decoupled)
    update, _, _ = adam_update(one(5.0), one(gradient), ZERO, ZERO, 1, hyper)

    assert update.item() == pytest.approx(-0.01 * np.sign(gradient), rel=1e-14)


def test_two_steps_by_hand():
    """With betas 1/2 and 3/4 and gradients 2, then -1: m is 1, then 0; v is 1, then 1; the second update is 0."""
    update, m, v = adam_update(one(5.0), one(2.0), ZERO, ZERO, 1, PLAIN)

    # m / (1 - 1/2) = 2 and v / (1 - 3/4) = 4: update -0.1 * 2 / 2
    assert (m.item(), v.item(), update.item()) == (1.0, 1.0, pytest.approx(-0.1, rel=1e-15))
    update, m, v = adam_update(one(4.9), one(-1.0), m, v, 2, PLAIN)

    assert (m.item(), v.item(), update.item()) == (0.0, 1.0, 0.0)


def test_third_step_by_hand():
    """After m = 0, v = 1, a gradient of 4: m = 2, v = 19/4; corrections 7/8 and 37/64."""
    update, m, v = adam_update(one(4.9), one(4.0), ZERO, one(1.0), 3, PLAIN)

    assert (m.item(), v.item()) == (2.0, 4.75)
    assert update.item() == pytest.approx(-0.1 * (16 / 7) / (304 / 37) ** 0.5, rel=1e-14)


def test_decoupled_decay_shrinks_the_parameter():
    """AdamW: lr times decay of the parameter on top of Adam's update; the moments do not see it."""
    hyper = replaced(PLAIN, weight_decay=0.25, decoupled=True)
    update, m, v = adam_update(one(8.0), one(2.0), ZERO, ZERO, 1, hyper)

    assert (m.item(), v.item()) == (1.0, 1.0)
    assert update.item() == pytest.approx(-0.1 - 0.1 * 0.25 * 8, rel=1e-15)


def test_l2_decay_joins_the_gradient():
    """L2: decay times parameter is added to the gradient before the moments, so the first update keeps its size."""
    hyper = replaced(PLAIN, weight_decay=0.25, decoupled=False)
    update, m, v = adam_update(one(8.0), one(2.0), ZERO, ZERO, 1, hyper)

    assert (m.item(), v.item()) == (2.0, 4.0)  # of a gradient of 2 + 0.25 * 8 = 4
    assert update.item() == pytest.approx(-0.1, rel=1e-15)


def test_eps_stands_outside_the_root_after_the_correction():
    """A gradient of eps halves the first update; inside the root, or before the correction, it would not be a half."""
    hyper = replaced(PLAIN, eps=1e-3)
    update, _, _ = adam_update(one(0.0), one(1e-3), ZERO, ZERO, 1, hyper)

    assert update.item() == pytest.approx(-0.05, rel=1e-14)


@pytest.mark.parametrize("decoupled", [False, True], ids=["l2", "decoupled"])
def test_ten_steps_in_fifty_digits(decoupled):
    """Ten steps of random gradients agree with 50-digit arithmetic to 1e-13, in parameter and moments."""
    hyper = replaced(USUAL, decoupled=decoupled, weight_decay=0.1)
    gradients = np.random.default_rng(0).normal(0, 1e-3, (10, 4))
    param = torch.tensor([0.02, -0.3, 1e-4, 2.0], dtype=torch.float64)
    m = v = torch.zeros(4, dtype=torch.float64)
    with mpmath.workdps(50):
        number = mpmath.mpf
        lr, eps, decay = number(hyper.lr), number(hyper.eps), number(hyper.weight_decay)
        b1, b2 = map(number, hyper.betas)
        p_, m_, v_ = [number(value.item()) for value in param], [number(0)] * 4, [number(0)] * 4
        for step, gradient in enumerate(gradients, 1):
            update, m, v = adam_update(param, torch.tensor(gradient), m, v, step, hyper)
            param = param + update
            for i in range(4):
                g = number(float(gradient[i])) + (0 if decoupled else decay * p_[i])
                m_[i] = b1 * m_[i] + (1 - b1) * g
                v_[i] = b2 * v_[i] + (1 - b2) * g**2
                move = lr * (m_[i] / (1 - b1**step)) / (mpmath.sqrt(v_[i] / (1 - b2**step)) + eps)
                p_[i] -= move + (lr * decay * p_[i] if decoupled else 0)
        wanted = [torch.tensor([float(value) for value in values], dtype=torch.float64) for values in (p_, m_, v_)]

    torch.testing.assert_close(param, wanted[0], rtol=1e-13, atol=0)
    torch.testing.assert_close(m, wanted[1], rtol=1e-12, atol=0)
    torch.testing.assert_close(v, wanted[2], rtol=1e-13, atol=0)


def test_betas_in_fp32_change_the_bias_correction_by_1e_5():
    """1 - 0.999^2 with beta2 in FP32 is 1.3e-5 too small: the second update shrinks by 6.4e-6, no moment moves."""
    state = (one(0.0), one(1e-3), one(1e-4), one(1e-9), 2)
    hyper = replaced(USUAL, eps=0.0, weight_decay=0.0)
    exact, rounded = adam_update(*state, hyper), adam_update(*state, replaced(hyper, bias_dtype=torch.float32))
    beta2 = float(np.float32(0.999))

    assert (1 - beta2**2) / (1 - 0.999**2) - 1 == pytest.approx(-1.3e-5, rel=0.05)
    assert (rounded[0] / exact[0]).item() - 1 == pytest.approx(-6.4e-6, rel=0.05)
    assert torch.equal(rounded[1], exact[1])
    assert torch.equal(rounded[2], exact[2])


def test_hyper_parameters_in_fp32_change_the_second_moment_by_1e_5():
    """1 - beta2 with beta2 in FP32 is 1.3e-5 smaller than 0.001: so is the first exp_avg_sq."""
    state = (one(0.0), one(1e-3), ZERO, ZERO, 1)
    exact, rounded = adam_update(*state, USUAL), adam_update(*state, replaced(USUAL, dtype=torch.float32))

    assert (rounded[2] / exact[2]).item() - 1 == pytest.approx(-1.3e-5, rel=0.05)


@pytest.mark.parametrize("name", ["lr", "eps", "weight_decay"])
def test_each_hyper_parameter_is_rounded(name):
    """lr, eps and decay too are taken in the record's dtype."""
    state = (one(3.0), one(1e-3), ZERO, ZERO, 1)
    hyper = AdamHyper(lr=0.125, betas=(0.5, 0.75), eps=0.125, weight_decay=0.125, decoupled=True)
    third = replaced(hyper, **{name: 0.1})
    rounded = replaced(third, dtype=torch.float32)
    same = replaced(hyper, dtype=torch.float32)

    assert torch.equal(adam_update(*state, hyper)[0], adam_update(*state, same)[0])
    expected = adam_update(*state, replaced(hyper, **{name: float(np.float32(0.1))}))[0]
    assert torch.equal(adam_update(*state, rounded)[0], expected)
    assert not torch.equal(adam_update(*state, third)[0], expected)


def test_inputs_are_widened_and_kept():
    """FP32 state goes in as it is; results are float64, and no input is written."""
    inputs = [torch.tensor([value], dtype=torch.float32) for value in (0.1, 0.2, 0.3, 0.4)]
    kept = [each.clone() for each in inputs]
    results = adam_update(*inputs, 3, USUAL)

    assert [result.dtype for result in results] == [torch.float64] * 3
    assert all(torch.equal(each, copy) for each, copy in zip(inputs, kept, strict=True))
    assert all(map(torch.equal, results, adam_update(*(each.double() for each in inputs), 3, USUAL)))


def test_terms_by_hand():
    """L2 decay cancels half of the gradient and the old exp_avg the rest: the terms keep the size that rounds."""
    # g = -3 + 0.25 * 8 = -1, of terms 5; m = (1 - 1) / 2 = 0, of terms 3; v = (4 * 3 + 1) / 4, of terms (12 + 5) / 4
    hyper = replaced(PLAIN, weight_decay=0.25)
    result = oracle.adam_update(one(8.0), one(-3.0), one(1.0), one(4.0), 1, hyper)

    assert (result.exp_avg.item(), result.exp_avg_sq.item(), result.update.item()) == (0.0, 3.25, 0.0)
    assert (result.exp_avg_terms.item(), result.exp_avg_sq_terms.item()) == (3.0, 4.25)
    assert result.update_terms.item() == pytest.approx(0.1 * 3 / 0.5 / (3.25 / 0.25) ** 0.5 * 4.25 / 3.25, rel=1e-14)


def test_terms_of_decoupled_decay_by_hand():
    """AdamW's decay is a term of the update and none of the moments, whose terms are gradient and old moment."""
    hyper = replaced(PLAIN, weight_decay=0.25, decoupled=True)
    result = oracle.adam_update(one(-8.0), one(2.0), one(-4.0), ZERO, 1, hyper)

    assert (result.exp_avg.item(), result.exp_avg_terms.item()) == (-1.0, 3.0)
    assert result.exp_avg_sq.item() == result.exp_avg_sq_terms.item() == 1.0
    assert result.update_terms.item() == pytest.approx(0.1 * 3 / 0.5 / 2 + 0.1 * 0.25 * 8, rel=1e-14)


@pytest.mark.parametrize(("beta1", "terms"), [(0.0, 2.0 + 4.0), (0.25, 1.5 + 3.0), (0.75, 0.5 + 3.0)])
def test_terms_of_exp_avg_hold_for_both_of_its_forms(beta1, terms):
    """In m + (1 - beta1) * (g - m) the old m is rounded in a product with 1 - beta1, whatever beta1 leaves of it."""
    hyper = replaced(PLAIN, betas=(beta1, 0.75), weight_decay=0.0)
    result = oracle.adam_update(one(8.0), one(2.0), one(-4.0), ZERO, 1, hyper)

    assert result.exp_avg_terms.item() == terms


@pytest.mark.parametrize("decoupled", [False, True], ids=["l2", "decoupled"])
def test_terms_without_cancellation_are_the_values(decoupled):
    """Where all terms have one sign, the budgets are relative to the values themselves."""
    hyper = replaced(USUAL, decoupled=decoupled)
    result = oracle.adam_update(one(0.5), one(1e-3), one(1e-4), one(1e-9), 2, hyper)

    assert result.exp_avg_terms.item() == pytest.approx(result.exp_avg.item(), rel=1e-14)
    assert result.exp_avg_sq_terms.item() == pytest.approx(result.exp_avg_sq.item(), rel=1e-14)
    assert result.update_terms.item() == pytest.approx(-result.update.item(), rel=1e-14)


def test_nothing_to_update_has_no_terms():
    """A zero gradient over zero state: no update, and no NaN among the scales."""
    result = oracle.adam_update(one(0.5), ZERO, ZERO, ZERO, 1, replaced(USUAL, weight_decay=0.0))

    assert [value.item() for value in vars(result).values()] == [0.0] * 6


# --- LayerNorm ---


@pytest.fixture
def tensors():
    """x with a mean that is large beside its spread, and gamma, beta, dy: 6 rows of 8."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    return 10 + 0.3 * normal(6, 8), 1 + 0.2 * normal(8), 0.2 * normal(8), normal(6, 8)


EPS = 1e-2  # large enough to matter


def by_mpmath(x, gamma, beta, dy):
    """LayerNorm and its derivative in 50 digits, element by element, from the Jacobian."""
    number = mpmath.mpf
    rows, hidden = x.shape
    y, dx = np.zeros((rows, hidden)), np.zeros((rows, hidden))
    dgamma, dbeta = [number(0)] * hidden, [number(0)] * hidden
    gamma_, beta_ = ([number(value) for value in each.tolist()] for each in (gamma, beta))
    for row in range(rows):
        x_, dy_ = ([number(value) for value in each[row].tolist()] for each in (x, dy))
        mean = mpmath.fsum(x_) / hidden
        std = mpmath.sqrt(mpmath.fsum((value - mean) ** 2 for value in x_) / hidden + number(EPS))
        for j in range(hidden):
            y[row, j] = gamma_[j] * (x_[j] - mean) / std + beta_[j]
            dgamma[j] += dy_[j] * (x_[j] - mean) / std
            dbeta[j] += dy_[j]
            # d x_hat_i / d x_j = (delta_ij - 1/H) / std - (x_i - mean) (x_j - mean) / (H std^3)
            dx[row, j] = mpmath.fsum(
                gamma_[i]
                * dy_[i]
                * (((i == j) - number(1) / hidden) / std - (x_[i] - mean) * (x_[j] - mean) / (hidden * std**3))
                for i in range(hidden)
            )
    return {"y": y, "dx": dx, "dgamma": [float(each) for each in dgamma], "dbeta": [float(each) for each in dbeta]}


@pytest.mark.parametrize("quantity", ["y", "dx", "dgamma", "dbeta"])
def test_layer_norm_in_fifty_digits(quantity, tensors):
    """Forward and backward agree with 50-digit arithmetic from the Jacobian to 1e-12 of the terms."""
    with mpmath.workdps(50):
        wanted = torch.tensor(np.array(by_mpmath(*tensors)[quantity]), dtype=torch.float64)

    torch.testing.assert_close(getattr(layer_norm(*tensors, EPS), quantity), wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("quantity", ["dx", "dgamma", "dbeta"])
def test_gradients_are_the_slopes_of_y(quantity, tensors):
    """Central differences of sum(dy * y) give the gradients: forward and backward belong together."""
    position = {"dx": 0, "dgamma": 1, "dbeta": 2}[quantity]
    result = getattr(layer_norm(*tensors, EPS), quantity)
    step = 1e-6
    slopes = torch.empty_like(result)
    for index in np.ndindex(*result.shape):
        values = []
        for sign in (1, -1):
            moved = [each.clone() for each in tensors]
            moved[position][index] += sign * step
            values.append((moved[3] * layer_norm(*moved, EPS).y).sum().item())
        slopes[index] = (values[0] - values[1]) / (2 * step)

    torch.testing.assert_close(result, slopes, rtol=0, atol=1e-7)


def test_layer_norm_by_hand():
    """The row 1, 3 has mean 2 and biased variance 1: x_hat is -1, 1 with eps 0; gamma 2, beta 5 give 3, 7."""
    x = torch.tensor([[1.0, 3.0]])
    result = layer_norm(x, torch.tensor([2.0, 2.0]), torch.tensor([5.0, 5.0]), torch.tensor([[1.0, 0.0]]), 0.0)

    assert result.y.tolist() == [[3.0, 7.0]]
    assert result.dgamma.tolist() == [-1.0, 0.0]
    assert result.dbeta.tolist() == [1.0, 0.0]
    assert result.dx.tolist() == [[0.0, 0.0]]  # two elements: x_hat is a sign, it does not move with x


def test_statistics_and_means_by_hand():
    """Mean 2 and rstd 1 are what a forward saves; g = gamma dy = 6, 0 has mean 3, and g x_hat has mean -3."""
    x = torch.tensor([[1.0, 3.0]])
    result = layer_norm(x, torch.tensor([2.0, -2.0]), torch.tensor([-5.0, 5.0]), torch.tensor([[3.0, 0.0]]), 0.0)

    assert (result.mean.tolist(), result.rstd.tolist(), result.x_hat.tolist()) == ([[2.0]], [[1.0]], [[-1.0, 1.0]])
    assert (result.g.tolist(), result.mean_g.tolist(), result.mean_gx.tolist()) == ([[6.0, 0.0]], [[3.0]], [[-3.0]])


@pytest.mark.parametrize("centre", [0.0, 1e5], ids=["centred", "large_mean"])
def test_statistics_in_extended_precision(centre):
    """Mean and rstd, and with them y, agree with long doubles where the mean is 1e5 times the spread."""
    generator = np.random.default_rng(7)
    x = torch.tensor(centre + generator.normal(size=(5, 1001)))
    ones, zeros = torch.ones(1001), torch.zeros(1001)
    result = layer_norm(x, ones, zeros, torch.zeros_like(x), EPS)
    wide = x.numpy().astype(np.longdouble)
    assert np.finfo(wide.dtype).eps < 1e-18, "no extended precision here: the test says nothing"
    mean = wide.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(((wide - mean) ** 2).mean(-1, keepdims=True) + EPS)
    # FP64 keeps 16 digits of x, so 11 of what is left beside a mean of 1e5.
    for got, expected, digits in (
        (result.mean, mean, 1e-15),
        (result.rstd, rstd, 1e-11),
        (result.y, (wide - mean) * rstd, 1e-10),
    ):
        torch.testing.assert_close(got, torch.tensor(expected.astype(np.float64)), rtol=digits, atol=digits)


def test_layer_norm_widens_half_precision(tensors):
    """BF16 inputs are taken as they are, and all arithmetic is float64."""
    halves = [each.bfloat16() for each in tensors]
    result, wanted = layer_norm(*halves, EPS), layer_norm(*(each.double() for each in halves), EPS)

    for name in vars(wanted):
        assert getattr(result, name).dtype == torch.float64
        assert torch.equal(getattr(result, name), getattr(wanted, name))


# --- RMSNorm ---


def rms_norm_by_mpmath(x, gamma, dy):
    """RMSNorm and its derivative in 50 digits, element by element, from the Jacobian."""
    number = mpmath.mpf
    rows, hidden = x.shape
    y, dx, dgamma = np.zeros((rows, hidden)), np.zeros((rows, hidden)), [number(0)] * hidden
    gamma_ = [number(value) for value in gamma.tolist()]
    for row in range(rows):
        x_, dy_ = ([number(value) for value in each[row].tolist()] for each in (x, dy))
        rms = mpmath.sqrt(mpmath.fsum(value**2 for value in x_) / hidden + number(EPS))
        for j in range(hidden):
            y[row, j] = gamma_[j] * x_[j] / rms
            dgamma[j] += dy_[j] * x_[j] / rms
            dx[row, j] = mpmath.fsum(
                gamma_[i] * dy_[i] * ((i == j) / rms - x_[i] * x_[j] / (hidden * rms**3)) for i in range(hidden)
            )
    return {"y": y, "dx": dx, "dgamma": [float(each) for each in dgamma]}


@pytest.mark.parametrize("quantity", ["y", "dx", "dgamma"])
def test_rms_norm_in_fifty_digits(quantity, tensors):
    """Forward and backward agree with 50-digit arithmetic from the Jacobian to 1e-12 of the terms."""
    x, gamma, _, dy = tensors
    with mpmath.workdps(50):
        wanted = torch.tensor(np.array(rms_norm_by_mpmath(x, gamma, dy)[quantity]), dtype=torch.float64)

    torch.testing.assert_close(getattr(rms_norm(x, gamma, dy, EPS), quantity), wanted, rtol=1e-12, atol=1e-13)


def test_rms_norm_by_hand():
    """The row 1, 7 has mean square 25: x_hat is 0.2, 1.4; gamma 2 gives 0.4, 2.8; there is no centring and no beta."""
    result = rms_norm(torch.tensor([[1.0, 7.0]]), torch.tensor([2.0, 2.0]), torch.tensor([[1.0, 0.0]]), 0.0)

    assert result.y.tolist() == [pytest.approx([0.4, 2.8])]
    assert result.dgamma.tolist() == pytest.approx([0.2, 0.0])
    # g = 2, 0; mean of g x_hat = 0.2; dx = (g - 0.2 x_hat) / 5
    assert result.dx.tolist() == [pytest.approx([(2 - 0.2 * 0.2) / 5, -0.2 * 1.4 / 5])]
    assert (result.mean.tolist(), result.mean_g.tolist()) == ([[0.0]], [[0.0]])
    assert result.rstd.tolist() == [[pytest.approx(0.2)]]


@pytest.mark.parametrize("quantity", ["dx", "dgamma"])
def test_gradients_of_rms_norm_are_the_slopes_of_y(quantity, tensors):
    """Central differences of sum(dy * y) give the gradients."""
    x, gamma, _, dy = tensors
    position = {"dx": 0, "dgamma": 1}[quantity]
    result = getattr(rms_norm(x, gamma, dy, EPS), quantity)
    step = 1e-6
    slopes = torch.empty_like(result)
    for index in np.ndindex(*result.shape):
        values = []
        for sign in (1, -1):
            moved = [x.clone(), gamma.clone()]
            moved[position][index] += sign * step
            values.append((dy * rms_norm(*moved, dy, EPS).y).sum().item())
        slopes[index] = (values[0] - values[1]) / (2 * step)

    torch.testing.assert_close(result, slopes, rtol=0, atol=1e-7)


# --- independence ---


def test_oracle_shares_nothing_with_what_it_judges():
    """An oracle that called torch's optimizers or normalizations, or a candidate, would repeat their faults."""
    tree = ast.parse(Path(oracle.__file__).read_text(encoding="utf-8"))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}

    assert imported == {"__future__.annotations", "dataclasses.dataclass", "functools.cache", "torch"}
    assert names.isdisjoint(
        {"optim", "nn", "functional", "_fused_adam_", "native_layer_norm", "var", "std", "import_module"}
    )
