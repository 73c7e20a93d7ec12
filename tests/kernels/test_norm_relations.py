"""What holds between two runs of a LayerNorm or RMSNorm: rows in another order, alone, scaled, shifted, repeated."""

import pytest

from fuseproof.parity import DTYPES
from fuseproof.parity.norm.relations import (
    check_copied_rows,
    check_one_row_alone,
    check_permuted_rows,
    check_repeated,
    check_scaled,
    check_shifted,
)

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]

by_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.mark.fault(27)
@by_dtype
def test_rows_in_another_order(norm, dtype, device):
    """y and dx of a row have the same bits wherever it stands."""
    check_permuted_rows(norm, DTYPES[dtype], device)


@pytest.mark.fault(21, 27)
@by_dtype
def test_copies_of_rows_beyond_a_grid(norm, dtype, device):
    """Of 65,564 rows of 128 columns, the same 37 again and again, come the same y and dx each time."""
    check_copied_rows(norm, DTYPES[dtype], device)


@pytest.mark.fault(28)
@by_dtype
def test_a_row_alone_and_in_a_batch(norm, dtype, device):
    """y and dx of a row have the same bits whatever else is in the batch, unless the record says that they may not."""
    if device.type in norm.batch_dependent_on:
        pytest.skip(f"{norm.name} may sum a row in another order when there are more rows, as its record says")
    check_one_row_alone(norm, DTYPES[dtype], device)


@pytest.mark.fault(24)
@by_dtype
def test_scale_of_the_input(norm, dtype, device):
    """With x times 4 and eps times 16 y has the same bits, and dx is a quarter."""
    check_scaled(norm, DTYPES[dtype], device)


@pytest.mark.fault(23)
@by_dtype
def test_mean_of_the_input(norm, dtype, device):
    """LayerNorm does not see what is added to a whole row."""
    if norm.kind == "rms_norm":
        pytest.skip("RMSNorm sees the mean")
    check_shifted(norm, DTYPES[dtype], device)


@pytest.mark.fault(27, 32)
@by_dtype
def test_the_same_bits_again(norm, dtype, device, pytestconfig):
    """Two hundred runs over 65,537 rows end in the same bits: there is no race (20 on a CPU, without --full)."""
    runs = 200 if device.type == "cuda" or pytestconfig.option.fuseproof_full else 20
    check_repeated(norm, DTYPES[dtype], device, runs)
