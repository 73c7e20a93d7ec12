"""Every LayerNorm and RMSNorm over shapes on both sides of each boundary: rows, columns, dimensions, parameters."""

from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.norm import REGIMES, check, check_regime
from fuseproof.parity.norm.apart import check_beyond_2_to_31, check_empty, check_refused
from fuseproof.parity.norm.life import check_written
from fuseproof.parity.norm.regimes import SEED

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]

USUAL = REGIMES["usual"]
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def around(*centres):
    """Return each of the numbers with its neighbours, by their name."""
    return {f"around_{centre}": (centre - 1, centre, centre + 1) for centre in centres}


# Sums over rows are cut into parts of 16, 32, 64, 128, 256 and 512 rows; a grid has at most 65,535 blocks.
ROWS = {"few": (1, 2, 3, 5), **around(16, 32, 64, 128, 256, 512, 1024)}
# Rows to columns, aligned and not. Blocks that take four rows each reach 262,140, those that take sixteen 1,048,560.
MANY_ROWS = {65_535: 8, 65_536: 5, 65_537: 8, 131_073: 5, 262_145: 8, 1_048_577: 5}
# More rows than a part of the sums and more columns than a block, with tails and without; one row that is all there is.
ROWS_AND_COLUMNS = {
    "1000x1025": (1000, 1025),
    "2049x770": (2049, 770),
    "520x2048": (520, 2048),
    "4096x768": (4096, 768),
    "1x256": (1, 256),
}
# Rows are read by 32 lanes, 128 threads, and vectors of 2, 4 and 8; Apex's half kernel by 8 x 128. Odd ones in between,
# and hidden sizes of language models, for some of which there are kernels of their own.
COLUMNS = {
    **around(*(2**k for k in range(1, 17))),
    "usual": (100, 768, 1000, 1536, 3000),
    "models": (1280, 1600, 2304, 2560, 3072, 3584, 3840, 5120, 6144, 7168, 12_288),
}
OTHER_HIDDEN = {"half": 32, "one_more": 65, "twice": 128}  # where 64 is right
DIMENSIONS = {
    "1d_of_1": ((), (64,)),
    "2d": ((3,), (64,)),
    "3d": ((2, 3), (65,)),
    "4d": ((2, 1, 3), (64,)),
    "5d": ((2, 1, 3, 2), (33,)),
    "all_of_2d": ((), (3, 7)),
    "2_of_3d": ((5,), (3, 7)),
    "2_of_4d": ((2, 3), (8, 4)),
    "3_of_3d": ((), (2, 3, 7)),
    "3_of_4d": ((5,), (4, 3, 8)),
    "3_of_5d": ((2, 3), (2, 3, 5)),
    "dimensions_of_1": ((1, 3, 1), (1, 8)),
    "one_element": ((4,), (1, 1, 1)),
}
EMPTY = {
    "no_rows": ((0,), (64,)),
    "no_rows_in_between": ((3, 0), (512,)),
    "no_rows_2_dimensions": ((0,), (4, 8)),
    "no_columns": ((5,), (0,)),
}


def skip_dimensions(norm, normalized_shape):
    """Skip where the norm has fewer dimensions than that."""
    if len(normalized_shape) > norm.normalized_dims:
        pytest.skip(f"{norm.name} normalizes over {norm.normalized_dims} dimension only")


def skip_millions_on_a_cpu(rows, device):
    """Skip so many rows where no grid has to reach them."""
    if rows > 2**20 and device.type == "cpu":
        pytest.skip("no CPU kernel has a grid: a million rows would say nothing more")


@pytest.mark.fault(22)
@pytest.mark.parametrize("rows", ROWS)
@by_dtype
def test_rows(norm, dtype, rows, device):
    """Every row is normalized, and counts in dgamma and dbeta, however many there are."""
    for each in ROWS[rows]:
        check_regime(norm, USUAL, DTYPES[dtype], device, leading=(each,), normalized_shape=(33,))


@pytest.mark.fault(21, 22)
@pytest.mark.parametrize("rows", MANY_ROWS)
@by_dtype
def test_rows_beyond_a_grid(norm, dtype, rows, device):
    """On both sides of 65,535 and 131,072 rows the last ones are normalized and count too, in sums that are in FP32."""
    skip_millions_on_a_cpu(rows, device)
    norm = replace(norm, half_partials_on=frozenset())
    check_regime(norm, USUAL, DTYPES[dtype], device, leading=(rows,), normalized_shape=(MANY_ROWS[rows],))


@pytest.mark.fault(21)
@pytest.mark.parametrize("rows", MANY_ROWS)
@by_dtype
def test_the_last_of_many_rows_counts(norm, dtype, rows, device):
    """With a gradient in the last row alone, dgamma and dbeta are that row's."""
    skip_millions_on_a_cpu(rows, device)
    check_regime(norm, REGIMES["dy_last_row"], DTYPES[dtype], device, leading=(rows,), normalized_shape=(5,))


@pytest.mark.fault(22)
@pytest.mark.parametrize("rows", [2048, 4097])
@by_dtype
def test_sums_over_many_rows_do_not_stop(norm, dtype, rows, device):
    """A sum of ones in BF16 stops at 256, in FP16 at 2,048: dbeta of ones is the number of rows."""
    check_regime(norm, REGIMES["dy_ones"], DTYPES[dtype], device, leading=(rows,), normalized_shape=(8,))


@pytest.mark.fault(22, 26)
@pytest.mark.parametrize("columns", COLUMNS)
@by_dtype
def test_columns(norm, dtype, columns, device):
    """Every column is read and written, whatever vectors and blocks rows are cut into."""
    for each in COLUMNS[columns]:
        check_regime(norm, USUAL, DTYPES[dtype], device, leading=(5,), normalized_shape=(each,))


@pytest.mark.fault(22)
@pytest.mark.parametrize("shape", ROWS_AND_COLUMNS)
@by_dtype
def test_rows_and_columns(norm, dtype, shape, device):
    """Sums over many rows have every column, those in the last block of columns too."""
    rows, columns = ROWS_AND_COLUMNS[shape]
    check_regime(norm, USUAL, DTYPES[dtype], device, leading=(rows,), normalized_shape=(columns,))


@pytest.mark.fault(23)
@pytest.mark.parametrize("columns", [8192, 65_536])
def test_large_mean_of_long_rows(norm, columns, device):
    """With a mean of 1e5 standard deviations y is off by 4 eps of it at most, however long the row is."""
    check_regime(norm, REGIMES["large_mean"], torch.float32, device, leading=(5,), normalized_shape=(columns,))


@pytest.mark.fault(22)
@pytest.mark.parametrize("dimensions", DIMENSIONS)
@by_dtype
def test_dimensions(norm, dtype, dimensions, device):
    """Of tensors with one to five dimensions the last one to three are normalized together."""
    leading, normalized_shape = DIMENSIONS[dimensions]
    skip_dimensions(norm, normalized_shape)
    check_regime(norm, USUAL, DTYPES[dtype], device, leading=leading, normalized_shape=normalized_shape)


@pytest.mark.fault(22)
@pytest.mark.parametrize("hidden", OTHER_HIDDEN)
def test_another_hidden_size_is_refused(norm, hidden, device):
    """Rows of another length than the parameters are an error, and not cut into pieces or put together."""
    check_refused(norm, device, hidden=64, given=OTHER_HIDDEN[hidden])


@pytest.mark.fault(22)
@pytest.mark.parametrize("left_out", ["elementwise_affine", "bias"])
@pytest.mark.parametrize("regime", ["usual", "large_mean", "dy_one_sign"])
@by_dtype
def test_without_parameters(norm, dtype, regime, left_out, device):
    """Without its parameters, or without bias alone, a norm is one with gamma 1 and beta 0."""
    if left_out not in norm.leaves_out:
        pytest.skip(f"{norm.name} takes no {left_out}=False")
    for rows, columns in ((37, 257), (5, 1025), (1000, 64)):
        inputs = REGIMES[regime].inputs((rows,), (columns,), DTYPES[dtype], device).of(norm.kind)
        inputs = replace(inputs, beta=None, gamma=None if left_out == "elementwise_affine" else inputs.gamma)
        check(norm, inputs, f"{left_out}=False, {regime}, seed {SEED}")


@pytest.mark.fault(20)
@pytest.mark.filterwarnings("ignore:var\\(\\). degrees of freedom")  # what torch.var says of nothing
@pytest.mark.parametrize("empty", EMPTY)
@by_dtype
def test_no_rows(norm, dtype, empty, device):
    """Of an empty batch comes an empty result and zero gradients; the next call finds CUDA as it was."""
    leading, normalized_shape = EMPTY[empty]
    skip_dimensions(norm, normalized_shape)
    check_empty(norm, leading, normalized_shape, dtype, device)


@pytest.mark.fault(32)
@pytest.mark.parametrize(
    "shape", [(1, 3), (5, 33), (37, 257), (300, 1000)], ids=lambda shape: "x".join(map(str, shape))
)
@by_dtype
def test_all_is_written(norm, dtype, shape, device):
    """Memory that holds NaN before holds results afterwards: no element is left out, none is read too soon."""
    check_written(norm, shape[:1], shape[1:], DTYPES[dtype], device)


@pytest.mark.fault(21)
@pytest.mark.huge
@pytest.mark.fuseproof_full
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_beyond_two_to_the_31_elements(norm, dtype, device):
    """Rows that 32-bit indices cannot reach are normalized, and count in dgamma and dbeta."""
    if device.type == "cpu":
        pytest.skip("2^31 elements are for a GPU: on a CPU they take minutes")
    if torch.cuda.mem_get_info(device)[0] < 60 * 2**30:
        pytest.skip("2^31 elements with their gradients and FP64 copies need 60 GiB of free GPU memory")
    check_beyond_2_to_31(norm, dtype)
