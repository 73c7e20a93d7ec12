"""Every LayerNorm and RMSNorm, forward and backward, against FP64: y, dx, dgamma, dbeta and the saved statistics."""

from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.norm import NORM_DTYPES, REGIMES, check_eps, check_regime

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]

USUAL = REGIMES["usual"]
# Besides those of gradients, by what a kind of input is for.
FAULTS_OF = {
    **dict.fromkeys(("large_mean", "rows_of_their_own"), (23,)),
    **dict.fromkeys(("constant_rows", "zero_rows_tiny_eps", "small_spread", "tiny_values_tiny_eps"), (24,)),
    **dict.fromkeys(("gamma_zero", "gamma_one_zero", "gamma_tiny", "gamma_huge", "beta_huge"), (30,)),
}
by_dtype = pytest.mark.parametrize("dtype", NORM_DTYPES)
by_half = pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.itemsize == 2])


@pytest.mark.parametrize(
    "regime",
    [
        pytest.param(regime, id=name, marks=pytest.mark.fault(22, *FAULTS_OF.get(name, ())))
        for name, regime in REGIMES.items()
    ],
)
@by_dtype
def test_norm_matches_fp64(norm, dtype, regime, device):
    """y, dx, dgamma, dbeta and what is saved for the backward, over each kind of input."""
    check_regime(norm, regime, NORM_DTYPES[dtype], device)


@pytest.mark.fault(24)
@pytest.mark.parametrize("eps", [0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3, 0.1, 1.0], ids=lambda eps: f"eps_{eps:g}")
@by_dtype
def test_eps_is_what_was_asked_for(norm, dtype, eps, device):
    """With a variance of the size of eps, a wrong eps, or one outside the root, is wrong by a third; 0 is 0."""
    check_eps(norm, eps, NORM_DTYPES[dtype], device)


@pytest.mark.fault(25)
@by_half
def test_y_is_rounded_once(norm, dtype, device):
    """Scale and shift are computed in FP32: one rounding lies between the formula and y."""
    check_regime(replace(norm, half_affine=False), USUAL, DTYPES[dtype], device)


@pytest.mark.fault(22)
@pytest.mark.parametrize("regime", ["usual", "large_mean"])
@by_half
def test_gradients_are_rounded_once(norm, dtype, regime, device):
    """The backward is computed in FP32, from statistics in FP32, sums over the rows too."""
    check_regime(replace(norm, half_backward_on=frozenset()), REGIMES[regime], DTYPES[dtype], device)


@pytest.mark.fault(30)
@by_half
def test_backward_takes_x_hat_from_x(norm, dtype, device):
    """From y, which was rounded, x_hat comes out wrong by several roundings."""
    check_regime(replace(norm, x_hat_from_output=False), USUAL, DTYPES[dtype], device)


@pytest.mark.fault(24)
@by_half
def test_statistics_are_saved_in_fp32(norm, dtype, device):
    """A saved rstd in FP16 is infinite where rows have no spread and eps is small; in BF16 it has two digits."""
    if norm.statistics is None:
        pytest.skip(f"where {norm.name} saves its statistics is not known")
    outputs = check_regime(norm, USUAL, DTYPES[dtype], device)

    assert {each.dtype for each in (outputs.mean, outputs.rstd) if each is not None} == {torch.float32}


@pytest.mark.fault(22)
@by_dtype
def test_many_elements_match_fp64(norm, dtype, device):
    """A constant that is wrong by a millionth shows in what the errors of 300,000 elements have in common."""
    check_regime(norm, USUAL, NORM_DTYPES[dtype], device, leading=(300,), normalized_shape=(1000,))


@pytest.mark.fault(31)
@pytest.mark.parametrize("regime", ["usual", "large_mean"])
@by_dtype
def test_compiled_norm_matches_fp64(norm, dtype, regime, device):
    """What ``torch.compile`` makes of a norm, with --full only."""
    check_regime(norm, REGIMES[regime], NORM_DTYPES[dtype], device)
