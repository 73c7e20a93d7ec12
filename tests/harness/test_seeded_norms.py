# ruff: noqa: ARG002  # a bug takes what its right counterpart takes
"""Wrong norms: each is caught through the front door, in each dtype where it can be seen at all; right ones pass.

``python tests/harness/test_seeded_norms.py`` writes who is caught by what into ``docs/seeded-norms.md``.
"""

import runpy
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from fuseproof.candidates import LAYER_NORM, RMS_NORM, NormCandidate
from fuseproof.parity import DTYPES, ParityError
from fuseproof.parity.norm import REGIMES, check_eps, check_regime
from fuseproof.parity.norm.apart import check_empty, check_refused
from fuseproof.parity.norm.checks import ALIGNED, SHAPE
from fuseproof.parity.norm.layouts import LAYOUTS, check_layout
from fuseproof.parity.norm.life import check_second_derivative, check_written
from fuseproof.parity.norm.relations import (
    check_copied_rows,
    check_one_row_alone,
    check_permuted_rows,
    check_repeated,
    check_scaled,
    check_shifted,
)
from fuseproof.parity.norm.reuse import (
    WRITES,
    check_asked_for,
    check_backward_again,
    check_other_batches,
    check_rewritten,
    check_shared,
    check_without_autograd,
    check_written_in_between,
)

CPU = torch.device("cpu")
SEED = 20261129
TABLE = Path(__file__).parents[2] / "docs" / "seeded-norms.md"
SEEDED = runpy.run_path(str(Path(__file__).with_name("seeded_table.py")))
SHAPES = {
    "1x1": (1, 1),
    "5x1025": (5, 1025),
    "1000x64": (1000, 64),
    "65537x5": (65_537, 5),
    "1000x1025": (1000, 1025),
    "262145x4": (262_145, 4),
    "5x5120": (5, 5120),
    "4096x128": (4096, 128),
    "1x256": (1, 256),
}
LAYOUTS_OF_BUGS = (
    "x_columns_last",
    "x_slice_of_columns",
    "dy_columns_last",
    "dy_slice_of_columns",
    "dy_one_row",
    "dy_one_column",
    "all_shifted",
    "dy_shifted_by_8_bytes",
)


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are small, and workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- a right norm in pieces, so that each bug below is one piece ---


class Function(torch.autograd.Function):
    """A norm whose arithmetic is a module's, forward and backward."""

    @staticmethod
    def forward(ctx, x, gamma, beta, norm):
        """Return y; save what the backward needs."""
        rows = x.reshape(-1, gamma.numel())
        flat = gamma.flatten(), torch.zeros_like(gamma).flatten() if beta is None else beta.flatten()
        y, mean, rstd = norm.rows_forward(norm.read(rows), *flat)
        ctx.norm, ctx.shapes = norm, (gamma.shape, None if beta is None else beta.shape)
        y = norm.store(y, x.dtype).view(x.shape)
        mean, rstd = norm.kept(mean, x.dtype), norm.kept(rstd, x.dtype)
        norm.save(ctx, x, gamma, beta, y, mean, rstd)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy):
        """Return dx, dgamma and dbeta."""
        return Function.gradients(ctx, dy)

    @staticmethod
    def gradients(ctx, dy):
        """Return what the backward does."""
        x, gamma, beta, y, mean, rstd = ctx.norm.saved(ctx)
        norm, (gamma_shape, beta_shape) = ctx.norm, ctx.shapes
        columns = gamma.numel()
        rows, grads = norm.read(x.reshape(-1, columns)), norm.read_dy(dy, columns)
        norm.asked = ctx.needs_input_grad
        mean, rstd = norm.kept_again(mean.float(), rstd.float())
        x_hat = norm.x_hat_again(rows, mean, rstd, y.reshape(-1, columns), gamma.flatten(), beta)
        g = norm.scaled(grads, gamma.flatten().float())
        dx = norm.dx(g, x_hat, rstd).to(x.dtype).view(x.shape)
        dgamma = norm.dgamma(grads, x_hat, rstd).to(gamma.dtype).view(gamma_shape)
        dbeta = None if beta is None else norm.dbeta(grads, x_hat, gamma.flatten().float()).to(beta.dtype)
        return dx, dgamma, dbeta if dbeta is None else dbeta.view(beta_shape), None


class Right(nn.Module):
    """LayerNorm in FP32, rounded once at its end; RMSNorm with `rms`."""

    function = Function
    rms = False

    def __init__(self, normalized_shape, eps, elementwise_affine=True, bias=True):
        super().__init__()
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else normalized_shape
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = None if self.rms else nn.Parameter(torch.zeros(shape))

    def forward(self, x):
        """Normalize over the last dimensions."""
        self.refuse(x)
        return self.function.apply(x, self.weight, self.bias, self)

    def refuse(self, x):
        """Raise unless the last dimensions of x are those of gamma."""
        if x.shape[x.dim() - self.weight.dim() :] != self.weight.shape:
            raise ValueError(f"x of {tuple(x.shape)} does not end in {tuple(self.weight.shape)}")

    def save(self, ctx, *tensors):
        """Keep x, gamma, beta, y, mean and rstd for the backward."""
        ctx.save_for_backward(*tensors)

    def saved(self, ctx):
        """Return what was kept."""
        return ctx.saved_tensors

    def read(self, rows):
        """Return x as it is computed with."""
        return rows.float()

    def read_dy(self, dy, columns):
        """Return dy as it is computed with."""
        return dy.reshape(-1, columns).float()

    def rows_forward(self, x, gamma, beta):
        """Return y in FP32, mean and rstd of each row."""
        mean = self.mean(x)
        rstd = self.rstd(self.variance(x, mean), self.eps)
        x_hat = self.x_hat(x, mean, rstd)
        return self.affine(x_hat, gamma.float(), beta.float()), mean, rstd

    def mean(self, x):
        """Return the mean of each row."""
        return torch.zeros_like(x[:, :1]) if self.rms else x.mean(-1, keepdim=True)

    def variance(self, x, mean):
        """Return the biased variance of each row, or the mean square."""
        return (x - mean).square().mean(-1, keepdim=True)

    def rstd(self, variance, eps):
        """Return what x is multiplied with."""
        return (variance + eps).rsqrt()

    def x_hat(self, x, mean, rstd):
        """Return x, normalized."""
        return (x - mean) * rstd

    def affine(self, x_hat, gamma, beta):
        """Return y in FP32."""
        return x_hat * gamma + beta

    def store(self, y, dtype):
        """Return y as it is stored."""
        return y.to(dtype)

    def kept(self, statistic, dtype):
        """Return a statistic as it is saved."""
        return statistic

    def kept_again(self, mean, rstd):
        """Return the statistics in the backward."""
        return mean, rstd

    def x_hat_again(self, x, mean, rstd, y, gamma, beta):
        """Return x_hat in the backward."""
        return self.x_hat(x, mean, rstd)

    def scaled(self, dy, gamma):
        """Return the gradient of x_hat."""
        return dy * gamma

    def dx(self, g, x_hat, rstd):
        """Return the gradient of x."""
        return rstd * (g - self.mean_of_g(g) - self.slope(g, x_hat))

    def mean_of_g(self, g):
        """Return what the mean's derivative takes off."""
        return 0.0 if self.rms else g.mean(-1, keepdim=True)

    def slope(self, g, x_hat):
        """Return what the variance's derivative takes off."""
        return x_hat * (g * x_hat).mean(-1, keepdim=True)

    def dgamma(self, dy, x_hat, rstd):
        """Return the gradient of gamma."""
        return self.summed(dy * x_hat)

    def dbeta(self, dy, x_hat, gamma):
        """Return the gradient of beta."""
        return self.summed(dy)

    def summed(self, values):
        """Return the sum over the rows."""
        return values.sum(0)


class RightRms(Right):
    """RMSNorm in FP32, rounded once at its end."""

    rms = True


HALVES = frozenset({"bf16", "fp16"})
FP32 = frozenset({"fp32"})
ONLY_HALVES = (HALVES, "in FP32 it is the right thing")


def statistics_of(y):
    """Return mean and rstd where `Function` saves them."""
    return y.grad_fn.saved_tensors[-2:]


def record_of(kind, name, **facts):
    """Return the record of a class, which does not say where its statistics are: outputs are enough."""
    return NormCandidate(name, kind, kind="rms_norm" if kind.rms else "layer_norm", **facts)


BUGS = SEEDED["Bugs"](record_of, DTYPES)
bug = BUGS.add


# --- statistics ---


@bug()
class OnePassVariance(Right):
    """The mean of squares less the square of the mean: what is left where the mean is large is noise."""

    def variance(self, x, mean):
        """Cancel."""
        return (x.square().mean(-1, keepdim=True) - mean * mean).clamp(min=0)


@bug()
class UnbiasedVariance(Right):
    """Divided by one less than the columns."""

    def variance(self, x, mean):
        """Scale."""
        return super().variance(x, mean) * x.shape[-1] / max(1, x.shape[-1] - 1)


@bug()
class VarianceAroundZero(Right):
    """The mean square in place of the variance."""

    def variance(self, x, mean):
        """Forget the mean."""
        return x.square().mean(-1, keepdim=True)


@bug()
class MeanNotSubtracted(Right):
    """The variance is right, x is not centred."""

    def x_hat(self, x, mean, rstd):
        """Forget the mean."""
        return x * rstd


@bug()
class MeanOfTheRowBefore(Right):
    """An index that is off by one."""

    def mean(self, x):
        """Shift."""
        return super().mean(x).roll(1, 0)


@bug()
class RstdOfTheRowAfter(Right):
    """An index that is off by one, the other way."""

    def rstd(self, variance, eps):
        """Shift."""
        return super().rstd(variance, eps).roll(-1, 0)


@bug()
class MeanWithoutTheLastColumn(Right):
    """A loop that ends too soon."""

    def mean(self, x):
        """Drop a column."""
        return super().mean(x[:, :-1] if x.shape[1] > 1 else x)


@bug()
class VarianceWithoutTheLastColumn(Right):
    """A loop that ends too soon."""

    def variance(self, x, mean):
        """Drop a column."""
        return super().variance(x[:, :-1] if x.shape[1] > 1 else x, mean)


@bug()
class StatisticsOfWholeVectorsOnly(Right):
    """Columns after the last multiple of four do not count."""

    def rows_forward(self, x, gamma, beta):
        """Drop the tail."""
        whole = x[:, : max(1, x.shape[1] // 4 * 4)]
        mean = self.mean(whole)
        rstd = self.rstd(self.variance(whole, mean), self.eps)
        return self.affine(self.x_hat(x, mean, rstd), gamma.float(), beta.float()), mean, rstd


@bug()
class StatisticsOfTheWholeBatch(Right):
    """BatchNorm's habit: the mean of all rows."""

    def mean(self, x):
        """Take them all."""
        return super().mean(x).mean(0, keepdim=True).expand(len(x), 1)


@bug(*ONLY_HALVES)
class StatisticsInHalf(Right):
    """Mean and variance of half precision are computed in it."""

    def read(self, rows):
        """Note the dtype."""
        self.dtype = rows.dtype
        return super().read(rows)

    def mean(self, x):
        """Round."""
        return super().mean(x).to(self.dtype).float()

    def variance(self, x, mean):
        """Round."""
        return super().variance(x, mean).to(self.dtype).float()


@bug()
class RstdRoundedToBf16(Right):
    """Statistics kept in half precision for both passes."""

    def rstd(self, variance, eps):
        """Round."""
        return super().rstd(variance, eps).bfloat16().float()


@bug()
class RstdRoundedToFp16(Right):
    """The same with three more digits."""

    def rstd(self, variance, eps):
        """Round."""
        return super().rstd(variance, eps).half().float()


@bug()
class RstdOffByAHundredThousandth(Right):
    """An approximate root."""

    def rstd(self, variance, eps):
        """Scale."""
        return super().rstd(variance, eps) * 1.00001


@bug(FP32 | {"fp16"}, "of so many elements none is so near to a tie of BF16")
class RstdOffByAMillionth(Right):
    """Eight units of its last place."""

    def rstd(self, variance, eps):
        """Scale."""
        return super().rstd(variance, eps) * 1.000001


# --- eps ---


@bug()
class NoEps(Right):
    """Without it rows of zeros are divided by zero."""

    def rstd(self, variance, eps):
        """Leave it out."""
        return super().rstd(variance, 0.0)


@bug()
class EpsOutsideTheRoot(Right):
    """Added to the standard deviation."""

    def rstd(self, variance, eps):
        """Move it."""
        return 1 / (variance.sqrt() + eps)


@bug()
class EpsTenTimesTooSmall(Right):
    """1e-6, another library's default."""

    def rstd(self, variance, eps):
        """Shrink it."""
        return super().rstd(variance, eps / 10)


@bug()
class EpsFixed(Right):
    """1e-5 whatever is asked for."""

    def rstd(self, variance, eps):
        """Ignore the argument."""
        return super().rstd(variance, 1e-5)


@bug()
class EpsInFp16(Right):
    """Below 6e-8 it is zero, and 1e-5 is off by a thousandth."""

    def rstd(self, variance, eps):
        """Round it."""
        return super().rstd(variance, float(torch.tensor(eps).half()))


# --- scale and shift ---


@bug()
class GammaIgnored(Right):
    """Gradients of gamma there are."""

    def affine(self, x_hat, gamma, beta):
        """Leave it out."""
        return x_hat + beta


@bug()
class BetaIgnored(Right):
    """Gradients of beta there are."""

    def affine(self, x_hat, gamma, beta):
        """Leave it out."""
        return x_hat * gamma


@bug()
class GammaPlusOne(Right):
    """Weights that are stored around zero, as in Gemma."""

    def affine(self, x_hat, gamma, beta):
        """Add one."""
        return x_hat * (1 + gamma) + beta


@bug()
class BetaBeforeGamma(Right):
    """Shift, then scale."""

    def affine(self, x_hat, gamma, beta):
        """Swap."""
        return (x_hat + beta) * gamma


@bug()
class GammaLosesItsSign(Right):
    """Right as long as gamma is positive, as it is at first."""

    def affine(self, x_hat, gamma, beta):
        """Lose it."""
        return x_hat * gamma.abs() + beta


@bug(FP32 | {"fp16"}, "in BF16 gamma is BF16")
class GammaRoundedToBf16(Right):
    """A cast too many."""

    def affine(self, x_hat, gamma, beta):
        """Round."""
        return x_hat * gamma.bfloat16().float() + beta


@bug(*ONLY_HALVES)
class XHatRounded(Right):
    """Scaled and shifted in half precision, and the record does not say so."""

    def affine(self, x_hat, gamma, beta):
        """Round."""
        return x_hat.to(self.dtype).float() * gamma + beta

    def read(self, rows):
        """Note the dtype."""
        self.dtype = rows.dtype
        return super().read(rows)


@bug(*ONLY_HALVES, record={"half_affine": True})
class XHatRoundedToFourBitsLess(XHatRounded):
    """The record allows a rounding to the dtype, not a coarser one."""

    def affine(self, x_hat, gamma, beta):
        """Round the significand."""
        bits = {torch.bfloat16: 4, torch.float16: 7, torch.float32: 23}[self.dtype]
        significand, exponent = torch.frexp(x_hat)
        return super().affine(torch.ldexp((significand * 2**bits).round() / 2**bits, exponent), gamma, beta)


@bug(*ONLY_HALVES)
class Truncated(Right):
    """Towards zero, as a shift of the bits does."""

    def store(self, y, dtype):
        """Cut."""
        stored = y.to(dtype)
        return torch.where(stored.float().abs() > y.abs(), torch.nextafter(stored, torch.zeros_like(stored)), stored)


@bug(*ONLY_HALVES)
class OutputInFp32(Right):
    """y of half precision comes in FP32."""

    def store(self, y, dtype):
        """Keep it."""
        return y


@bug(FP32 | {"fp16"}, "in BF16 it is the right dtype")
class OutputInBf16(Right):
    """An autocast that was not asked for."""

    def store(self, y, dtype):
        """Cast."""
        return y.bfloat16()


# --- rows and columns ---


@bug()
class LastRowNotWritten(Right):
    """What the memory held before stays."""

    def store(self, y, dtype):
        """Leave it out."""
        out = torch.empty(y.shape, dtype=dtype)
        out[:-1] = y[:-1]
        return out


@bug()
class RowsBeyond65535AreZero(Right):
    """A grid has that many blocks and no loop."""

    def store(self, y, dtype):
        """Stop."""
        y = super().store(y, dtype)
        y[65_535:] = 0
        return y


@bug()
class ColumnsBeyond1024AreZero(Right):
    """A block has that many threads and no loop."""

    def store(self, y, dtype):
        """Stop."""
        y = super().store(y, dtype)
        y[:, 1024:] = 0
        return y


@bug()
class TailOfEachRowNotScaled(Right):
    """Columns after the last multiple of four take another way."""

    def affine(self, x_hat, gamma, beta):
        """Forget gamma there."""
        y, tail = super().affine(x_hat, gamma, beta), x_hat.shape[1] // 4 * 4
        y[:, tail:] = x_hat[:, tail:]
        return y


@bug()
class NanTakenAsZero(Right):
    """It hides a broken training."""

    def read(self, rows):
        """Clean."""
        return super().read(rows).nan_to_num(0.0, 0.0, 0.0)


@bug()
class OneNanForAll(Right):
    """Rows are centred around the mean of all first, which changes nothing, but for a NaN."""

    def mean(self, x):
        """Shift by what is common, and back."""
        common = x.mean()
        return super().mean(x - common) + common


# --- dx ---


@bug()
class DxWithoutTheMeanOfG(Right):
    """RMSNorm's derivative."""

    def mean_of_g(self, g):
        """Leave it out."""
        return 0.0


@bug()
class DxWithoutTheSlope(Right):
    """The derivative of a variance that is constant."""

    def slope(self, g, x_hat):
        """Leave it out."""
        return 0.0


@bug()
class DxWithoutRstd(Right):
    """The derivative by x_hat."""

    def dx(self, g, x_hat, rstd):
        """Leave it out."""
        return super().dx(g, x_hat, 1.0)


@bug()
class DxIgnoresGamma(Right):
    """Right as long as gamma is one, as it is at first."""

    def scaled(self, dy, gamma):
        """Leave it out."""
        return dy


@bug()
class DxZero(Right):
    """Nothing flows back."""

    def dx(self, g, x_hat, rstd):
        """Stop."""
        return torch.zeros_like(g)


@bug()
class DxOffByATenThousandth(Right):
    """Wrong by less than a half-precision rounding."""

    def dx(self, g, x_hat, rstd):
        """Scale."""
        return super().dx(g, x_hat, rstd) * 1.0001


@bug()
class DxOfAClampedGamma(Right):
    """A gamma below 1e-5 is 1e-5, as if something were divided by it."""

    def scaled(self, dy, gamma):
        """Clamp."""
        return dy * torch.where(gamma < 0, gamma.clamp(max=-1e-5), gamma.clamp(min=1e-5))


@bug(FP32 | {"bf16"}, "its range ends where the cube of rstd is 1e-13 yet")
class DxByTheCubeOfRstd(RightRms):
    """Which underflows where x is large."""

    def dx(self, g, x_hat, rstd):
        """Multiply in another order."""
        x = x_hat / rstd
        return rstd * g - x * (rstd**3 * (g * x).mean(-1, keepdim=True))


@bug()
class OtherEpsInTheBackward(Right):
    """rstd is computed again, with another library's eps."""

    def x_hat_again(self, x, mean, rstd, y, gamma, beta):
        """Compute it."""
        return super().x_hat_again(x, mean, super().rstd(self.variance(x, mean), 1e-6), y, gamma, beta)


@bug(*ONLY_HALVES)
class StatisticsSavedInHalf(Right):
    """The forward is right, and the backward uses them."""

    def kept(self, statistic, dtype):
        """Round."""
        return statistic.to(dtype)


@bug()
class XHatFromTheOutput(Right):
    """It saves memory, and the record does not say so."""

    def x_hat_again(self, x, mean, rstd, y, gamma, beta):
        """Undo scale and shift."""
        return (y.float() - beta.flatten().float()) / gamma.float()


@bug(FP32 | {"fp16"}, "in BF16 dy is BF16")
class DyRoundedToBf16(Right):
    """A cast too many."""

    def read_dy(self, dy, columns):
        """Round."""
        return super().read_dy(dy, columns).bfloat16().float()


@bug()
class NanInDyTakenAsZero(Right):
    """It hides an overflow from the scaler."""

    def read_dy(self, dy, columns):
        """Clean."""
        return super().read_dy(dy, columns).nan_to_num(0.0, 0.0, 0.0)


@bug(record={"statistics": statistics_of})
class StandardDeviationSaved(Right):
    """Where rstd is said to be saved; its own backward knows."""

    def rows_forward(self, x, gamma, beta):
        """Save another number."""
        y, mean, rstd = super().rows_forward(x, gamma, beta)
        return y, mean, 1 / rstd

    def x_hat_again(self, x, mean, rstd, y, gamma, beta):
        """Use it."""
        return self.x_hat(x, mean, 1 / rstd)

    def dx(self, g, x_hat, rstd):
        """Use it."""
        return super().dx(g, x_hat, 1 / rstd)


# --- dgamma and dbeta ---


@bug()
class DgammaZero(Right):
    """Nothing is learned."""

    def dgamma(self, dy, x_hat, rstd):
        """Stop."""
        return torch.zeros_like(dy[0]) if len(dy) else super().dgamma(dy, x_hat, rstd)


@bug()
class DbetaIsDgamma(Right):
    """The wrong pointer."""

    def dbeta(self, dy, x_hat, gamma):
        """Mix up."""
        return self.summed(dy * x_hat)


@bug()
class DgammaIsDbeta(Right):
    """The wrong pointer, the other way."""

    def dgamma(self, dy, x_hat, rstd):
        """Mix up."""
        return self.summed(dy)


@bug()
class DbetaTimesGamma(Right):
    """The gradient of x_hat is summed."""

    def dbeta(self, dy, x_hat, gamma):
        """Scale."""
        return self.summed(dy * gamma)


@bug()
class DgammaOverTheWrongAxis(Right):
    """The matrix is read as its transpose would lie in memory."""

    def dgamma(self, dy, x_hat, rstd):
        """Turn it."""
        return (dy * x_hat).reshape(dy.shape[1], len(dy)).sum(1)


@bug()
class DgammaWithoutRstd(Right):
    """dy times the centred x."""

    def dgamma(self, dy, x_hat, rstd):
        """Leave it out."""
        return self.summed(dy * (x_hat / rstd))


@bug()
class MeanInsteadOfSum(Right):
    """Gradients are averaged over the rows."""

    def summed(self, values):
        """Divide."""
        return super().summed(values) / max(1, len(values))


@bug()
class LastRowNotSummed(Right):
    """A loop that ends too soon."""

    def summed(self, values):
        """Drop a row."""
        return super().summed(values[:-1])


@bug()
class RowsBeyond65535NotSummed(Right):
    """A grid has that many blocks and no loop."""

    def summed(self, values):
        """Stop."""
        return super().summed(values[:65_535])


@bug()
class RowsBeyond512NotSummed(Right):
    """One block of rows and no second."""

    def summed(self, values):
        """Stop."""
        return super().summed(values[:512])


@bug(*ONLY_HALVES)
class SummedInHalf(Right):
    """Each partial sum is rounded."""

    def read_dy(self, dy, columns):
        """Note the dtype."""
        self.dtype = dy.dtype
        return super().read_dy(dy, columns)

    def summed(self, values):
        """Add up in half precision."""
        total = torch.zeros(values.shape[1], dtype=self.dtype)
        for part in values.split(16):
            total += part.sum(0).to(self.dtype)
        return total.float()


@bug()
class DgammaOffByAHundredThousandth(Right):
    """Wrong by less than FP32 sums of many rows usually are."""

    def dgamma(self, dy, x_hat, rstd):
        """Scale."""
        return super().dgamma(dy, x_hat, rstd) * 1.00001


# --- memory, other runs and other uses ---


@bug()
class XReadInMemoryOrder(Right):
    """Strides are not looked at."""

    def forward(self, x):
        """Read the storage from its beginning."""
        return super().forward(torch.as_strided(x, x.shape, torch.empty(x.shape).stride()) if dense(x) else x)


@bug()
class DyReadInMemoryOrder(Right):
    """Strides are not looked at in the backward."""

    def read_dy(self, dy, columns):
        """Read the storage from its beginning."""
        return super().read_dy(
            torch.as_strided(dy, dy.shape, torch.empty(dy.shape).stride()) if dense(dy) else dy, columns
        )


def dense(values):
    """Whether the storage has an element for each of the tensor's."""
    return values.untyped_storage().nbytes() >= values.numel() * values.element_size()


@bug()
class DxWrittenIntoDy(Right):
    """It saves memory, and spoils what is not its own."""

    def read_dy(self, dy, columns):
        """Write."""
        wide = super().read_dy(dy, columns).clone()
        if dense(dy):
            dy.zero_()
        return wide


@bug()
class RaceBetweenRows(Right):
    """Now and then a late row gets what another left."""

    runs = 0

    def store(self, y, dtype):
        """Mix up in every third run of many rows."""
        y = super().store(y, dtype)
        RaceBetweenRows.runs += 1
        if len(y) > 65_535 and RaceBetweenRows.runs % 3 == 0:
            y[-1] = y[0]
        return y


@bug(record={"half_affine": True})
class OtherWayForFewRows(XHatRounded):
    """With and without a rounding of x_hat are both allowed by the record, and are not the same bits."""

    def rstd(self, variance, eps):
        """Take another root in FP32."""
        rstd = super().rstd(variance, eps)
        return torch.nextafter(rstd, 2 * rstd) if len(variance) < 8 else rstd

    def affine(self, x_hat, gamma, beta):
        """Round x_hat or not."""
        return super().affine(x_hat, gamma, beta) if len(x_hat) < 8 else Right.affine(self, x_hat, gamma, beta)


@bug()
class EmptyBatchRefused(Right):
    """A grid without blocks is an error."""

    def forward(self, x):
        """Refuse."""
        if x.numel() == 0:
            raise RuntimeError("CUDA error: invalid configuration argument")
        return super().forward(x)


class TwiceDifferentiable(Function):
    """Its backward can be differentiated, as if the saved statistics were constants."""

    @staticmethod
    def backward(ctx, dy):
        """Differentiate through the gradients."""
        return Function.gradients(ctx, dy)


@bug(FP32, "gradient penalties are checked in FP32")
class SecondDerivativeOfConstantStatistics(Right):
    """Silently wrong, where an error would be right."""

    function = TwiceDifferentiable


# --- RMSNorm ---


@bug()
class RmsCentred(RightRms):
    """LayerNorm without its beta."""

    def mean(self, x):
        """Subtract it."""
        return x.mean(-1, keepdim=True)


@bug()
class RmsOfTheVariance(RightRms):
    """The variance in place of the mean square."""

    def variance(self, x, mean):
        """Centre."""
        return super().variance(x, x.mean(-1, keepdim=True))


@bug()
class RmsSumInsteadOfMean(RightRms):
    """The norm of the row."""

    def variance(self, x, mean):
        """Add up."""
        return super().variance(x, mean) * x.shape[-1]


@bug()
class RmsWithoutTheLastColumn(RightRms):
    """A loop that ends too soon."""

    def variance(self, x, mean):
        """Drop a column."""
        return super().variance(x[:, :-1] if x.shape[1] > 1 else x, mean)


@bug()
class RmsGammaPlusOne(RightRms):
    """Weights that are stored around zero, as in Gemma."""

    def affine(self, x_hat, gamma, beta):
        """Add one."""
        return x_hat * (1 + gamma)


@bug()
class RmsDxWithoutTheSlope(RightRms):
    """The derivative of a mean square that is constant."""

    def slope(self, g, x_hat):
        """Leave it out."""
        return 0.0


@bug()
class RmsDxWithTheMeanOfG(RightRms):
    """LayerNorm's derivative."""

    def mean_of_g(self, g):
        """Take it off."""
        return g.mean(-1, keepdim=True)


@bug()
class RmsOtherEps(RightRms):
    """1e-6, another library's default."""

    def rstd(self, variance, eps):
        """Shrink it."""
        return super().rstd(variance, eps / 10)


# --- vectors and alignment ---


def from_an_aligned_address(values):
    """Return values as a load of 16 bytes reads them that drops the last bits of an address."""
    back = values.data_ptr() % 16 // values.element_size()
    if not values.is_contiguous() or back > values.storage_offset():
        return values
    return torch.as_strided(values.detach(), values.shape, values.stride(), values.storage_offset() - back)


def by_vectors(columns, values):
    """Whether a kernel that looks at the columns alone reads vectors of 16 bytes."""
    return columns % (16 // values.element_size()) == 0


@bug()
class XReadFromAlignedAddresses(Right):
    """Vectors divide a row, and nobody looked at where the first row begins."""

    def read(self, rows):
        """Round the address down."""
        return super().read(from_an_aligned_address(rows) if by_vectors(rows.shape[1], rows) else rows)


@bug()
class GammaReadFromAlignedAddresses(Right):
    """The same of gamma, which may be a view of a flat buffer."""

    def rows_forward(self, x, gamma, beta):
        """Round the address down."""
        read = from_an_aligned_address(gamma) if by_vectors(len(gamma), gamma) else gamma
        return super().rows_forward(x, read, beta)


@bug()
class DyReadInMemoryOrderByVectors(Right):
    """Strides are looked at where columns are read one by one only."""

    def read_dy(self, dy, columns):
        """Read the storage from its beginning."""
        if not by_vectors(columns, dy) or not dense(dy):
            return super().read_dy(dy, columns)
        return super().read_dy(torch.as_strided(dy, dy.shape, torch.empty(dy.shape).stride()), columns)


@bug()
class TailOfDyOnEightBytesDropped(Right):
    """Where dy is aligned for vectors of two and not of four, what is left of four is left out."""

    def read_dy(self, dy, columns):
        """Drop it."""
        wide = super().read_dy(dy, columns).clone()
        if dy.data_ptr() % 16 == 8:
            wide[:, columns // 4 * 4 :] = 0
        return wide


# --- rows and columns at once, and sizes of blocks ---


@bug()
class RowsBeyond262140AreZero(Right):
    """Four rows a block, 65,535 blocks."""

    def store(self, y, dtype):
        """Stop."""
        y = super().store(y, dtype)
        y[4 * 65_535 :] = 0
        return y


@bug()
class SecondBlockOfColumnsNotSummedInTheSecondOfRows(Right):
    """Right for many rows, right for many columns."""

    def summed(self, values):
        """Leave a corner out."""
        total = super().summed(values)
        total[1024:] -= super().summed(values[512:, 1024:])
        return total


@bug()
class TailOfColumnsNotSummedForManyRows(Right):
    """Sums in two steps, the second of which knows whole warps of columns only."""

    def summed(self, values):
        """Take the tail of the first step."""
        total, whole = super().summed(values), values.shape[1] // 32 * 32
        if len(values) > 512 and whole > 256:
            total[whole:] = super().summed(values[:512, whole:])
        return total


@bug()
class DgammaOffByTwoThousandthsBeyondAThousandColumns(Right):
    """A second kernel for long rows."""

    def dgamma(self, dy, x_hat, rstd):
        """Scale."""
        return super().dgamma(dy, x_hat, rstd) * (1.002 if dy.shape[1] > 1000 else 1.0)


@bug()
class GradientsSwappedUpToSixtyFourColumns(Right):
    """A kernel for short rows with its pointers in another order."""

    def dgamma(self, dy, x_hat, rstd):
        """Take the other."""
        return self.summed(dy) if dy.shape[1] <= 64 else super().dgamma(dy, x_hat, rstd)

    def dbeta(self, dy, x_hat, gamma):
        """Take the other."""
        return self.summed(dy * x_hat) if dy.shape[1] <= 64 else super().dbeta(dy, x_hat, gamma)


@bug()
class CountOfTheLastWarp(Right):
    """A warp that is not full counts as full."""

    def variance(self, x, mean):
        """Divide by whole warps."""
        columns = x.shape[1]
        return super().variance(x, mean) * columns / (-(-columns // 32) * 32)


# --- more of eps, roots and roundings ---


@bug()
class EpsOfZeroIsTheDefault(Right):
    """``eps or 1e-5``."""

    def rstd(self, variance, eps):
        """Take the default."""
        return super().rstd(variance, eps or 1e-5)


@bug()
class EpsAtMostATenth(Right):
    """Clamped."""

    def rstd(self, variance, eps):
        """Clamp."""
        return super().rstd(variance, min(eps, 0.1))


@bug()
class VarianceAtLeastEps(Right):
    """A maximum where there should be a sum."""

    def rstd(self, variance, eps):
        """Clamp."""
        return variance.clamp(min=max(eps, 1e-30)).rsqrt()


@bug()
class RstdByAnIntrinsic(Right):
    """An approximate root of 11 bits."""

    def rstd(self, variance, eps):
        """Approximate."""
        return super().rstd(variance, eps) * (1 + 2.0**-11)


@bug()
class MeanSavedInBf16(Right):
    """Whatever x is: rstd is saved as it should be."""

    def kept_again(self, mean, rstd):
        """Round."""
        return mean.bfloat16().float(), rstd


@bug(*ONLY_HALVES)
class RoundedTwice(Right):
    """By way of a number with three digits more."""

    def store(self, y, dtype):
        """Round to twelve or fifteen bits first."""
        bits = {torch.bfloat16: 11, torch.float16: 14}.get(dtype, 24)
        significand, exponent = torch.frexp(y)
        return super().store(torch.ldexp((significand * 2**bits).round() / 2**bits, exponent), dtype)


@bug(*ONLY_HALVES)
class MeanOfGRounded(Right):
    """A sum of the backward goes through shared memory in half precision."""

    def read_dy(self, dy, columns):
        """Note the dtype."""
        self.dtype = dy.dtype
        return super().read_dy(dy, columns)

    def mean_of_g(self, g):
        """Round."""
        return super().mean_of_g(g).to(self.dtype).float()


# --- between calls ---


@bug()
class GammaOfTheFirstCall(Right):
    """Widened once and kept: no step of an optimizer is seen."""

    def affine(self, x_hat, gamma, beta):
        """Take the first one."""
        return super().affine(x_hat, self.__dict__.setdefault("first", gamma.clone()), beta)


@bug()
class StatisticsInTheModule(Right):
    """One workspace: what a second call writes, the first one's backward reads."""

    def rows_forward(self, x, gamma, beta):
        """Keep."""
        y, *self.workspace = super().rows_forward(x, gamma, beta)
        return y, *self.workspace

    def kept_again(self, mean, rstd):
        """Take what is there."""
        return self.workspace


@bug()
class OutputBufferOfTheModule(Right):
    """y lies in memory that the next call of that shape writes again."""

    def store(self, y, dtype):
        """Write into it."""
        y = super().store(y, dtype)
        buffers = self.__dict__.setdefault("buffers", {})
        return buffers.setdefault((y.shape, dtype), torch.empty_like(y)).copy_(y).detach()


@bug()
class SecondBackwardAddsUp(Right):
    """Partial sums that belong to the graph and are not cleared."""

    def dgamma(self, dy, x_hat, rstd):
        """Add to what was there for that x_hat, which is that of the graph."""
        sums = self.__dict__.setdefault("partial", {})
        key = (float(x_hat.sum()), dy.shape) if len(dy) else None
        sums[key] = sums.get(key, 0) + super().dgamma(dy, x_hat, rstd)
        return sums[key].clone()


@bug()
class DbetaOfAFrozenInput(Right):
    """Where dx is not asked for another kernel runs, and leaves dbeta as it was."""

    def dbeta(self, dy, x_hat, gamma):
        """Leave it."""
        right = super().dbeta(dy, x_hat, gamma)
        return right if self.asked[0] else torch.zeros_like(right)


@bug()
class DgammaForAFrozenGamma(Right):
    """Where gamma is frozen its gradient is handed out as the next one's."""

    def dbeta(self, dy, x_hat, gamma):
        """Mix up."""
        return super().dbeta(dy, x_hat, gamma) if self.asked[1] else self.summed(dy * x_hat)


@bug()
class InferenceOf1024Columns(Right):
    """Without autograd another kernel runs, with no loop over the columns."""

    def store(self, y, dtype):
        """Stop."""
        y = super().store(y, dtype)
        if not self.training_call:
            y[:, 1024:] = 0
        return y

    def forward(self, x):
        """Note whether gradients will be asked for."""
        self.training_call = torch.is_grad_enabled()
        return super().forward(x)


@bug()
class StatisticsInTheModuleByVectors(Right):
    """The same of a kernel that reads by vectors alone."""

    def rows_forward(self, x, gamma, beta):
        """Keep."""
        y, *self.workspace = super().rows_forward(x, gamma, beta)
        return y, *self.workspace

    def kept_again(self, mean, rstd):
        """Take what is there."""
        return self.workspace if self.bias.numel() % 8 == 0 else (mean, rstd)


@bug()
class SecondBackwardByVectorsReadsAnotherX(Right):
    """dx is written where x was saved, by the kernel that reads by vectors."""

    def saved(self, ctx):
        """Return another x the second time."""
        x, *others = super().saved(ctx)
        ctx.before, again = True, getattr(ctx, "before", False)
        return x.roll(1, -1) if again and x.shape[-1] % 4 == 0 else x, *others


@bug()
class DbetaOfAFrozenGammaByVectors(Right):
    """Where gamma is frozen dbeta is not summed, by the kernel that reads by vectors."""

    def dbeta(self, dy, x_hat, gamma):
        """Leave it."""
        right = super().dbeta(dy, x_hat, gamma)
        return right if self.asked[1] or dy.shape[1] % 4 else torch.zeros_like(right)


@bug()
class DgammaOfAFrozenInputByVectors(Right):
    """Where dx is not asked for, as in a first norm, rstd is left out, by the kernel that reads by vectors."""

    def dgamma(self, dy, x_hat, rstd):
        """Divide."""
        return super().dgamma(dy, x_hat if self.asked[0] or dy.shape[1] % 16 else x_hat / rstd, rstd)


@bug()
class XIsNotSaved(Right):
    """It is kept past autograd, which then does not see that it was written."""

    def save(self, ctx, x, *others):
        """Keep."""
        ctx.x = x
        ctx.save_for_backward(*others)

    def saved(self, ctx):
        """Take what is there."""
        return ctx.x, *ctx.saved_tensors


@bug()
class GammaIsNotSaved(Right):
    """It is the module's, which a step in between writes."""

    def save(self, ctx, x, gamma, *others):
        """Leave it."""
        ctx.save_for_backward(x, *others)

    def saved(self, ctx):
        """Take what is there."""
        x, *others = ctx.saved_tensors
        return x, self.weight.detach(), *others


@bug()
class ParametersKeptByTheirVersion(Right):
    """Widened again where autograd has counted a write: what is written through ``.data`` is not counted."""

    def affine(self, x_hat, gamma, beta):
        """Take what was there at that version."""
        version = self.weight._version, self.bias._version
        if self.__dict__.get("version") != version:
            self.version, self.wide = version, (gamma.clone(), beta.clone())
        return super().affine(x_hat, *self.wide)


@bug()
class RowsOfTheFirstBatchSummed(Right):
    """A workspace of the first batch's size: what a later one has more is lost."""

    def summed(self, values):
        """Leave the others out."""
        return super().summed(values[: self.__dict__.setdefault("first", len(values))])


@bug()
class RowsOfALargerBatchSummedToo(Right):
    """Partial sums of a batch before, which was larger, are still there."""

    def dgamma(self, dy, x_hat, rstd):
        """Add them."""
        before, now = self.__dict__.get("partial", dy[:0]), dy * x_hat
        self.partial = now
        return self.summed(torch.cat([now, before[len(now) :]]) if before.shape[1:] == now.shape[1:] else now)


@bug()
class OutputBufferWithoutAutograd(Right):
    """Without autograd y lies in memory that the next call writes again."""

    def forward(self, x):
        """Write into it."""
        y = super().forward(x)
        if torch.is_grad_enabled():
            return y
        key = (y.shape, y.dtype, torch.is_inference_mode_enabled())
        return self.__dict__.setdefault("buffers", {}).setdefault(key, torch.empty_like(y)).copy_(y)


@bug()
class KeptByTheMemoryOfX(Right):
    """Without autograd y is kept for an input of the same memory, which may hold the next batch by then."""

    def forward(self, x):
        """Look it up."""
        if torch.is_grad_enabled():
            return super().forward(x)
        held, key = self.__dict__.setdefault("held", {}), (x.data_ptr(), x.shape, x.dtype)
        if key not in held:
            held[key] = super().forward(x)
        return held[key].clone()


@bug()
class InferenceOf768ColumnsUnbiased(Right):
    """Without autograd another kernel runs, which divides by one less than the columns of a model."""

    def variance(self, x, mean):
        """Scale."""
        return super().variance(x, mean) * (768 / 767 if x.shape[1] == 768 and not self.training_call else 1.0)

    def forward(self, x):
        """Note whether gradients will be asked for."""
        self.training_call = torch.is_grad_enabled()
        return super().forward(x)


# --- rows further apart than they are long ---


def side_by_side(rows):
    """Return rows as if one began where the other ends."""
    if len(rows) > 1 and rows.stride(-1) == 1 and rows.stride(0) > rows.shape[1]:
        return rows.as_strided(rows.shape, (rows.shape[1], 1))
    return rows


@bug()
class XReadSideBySide(Right):
    """The distance between rows is taken to be the hidden size."""

    def read(self, rows):
        """Ignore it."""
        return super().read(side_by_side(rows))


@bug()
class XReadSideBySideInTheBackward(Right):
    """The same in the backward alone: x is saved as it lies."""

    def saved(self, ctx):
        """Ignore the distance."""
        x, gamma, *others = super().saved(ctx)
        return side_by_side(x.reshape(-1, gamma.numel())).view(x.shape), gamma, *others


@bug()
class DyReadSideBySide(Right):
    """The same of gradients, as what is cut from wider ones has."""

    def read_dy(self, dy, columns):
        """Ignore the distance."""
        return super().read_dy(side_by_side(dy.reshape(-1, columns)), columns)


@bug()
class OneNumberOfEachRowTakenForAll(Right):
    """A dy that is expanded along the columns is taken for one that is expanded along all."""

    def read_dy(self, dy, columns):
        """Take the first row."""
        rows = dy.reshape(-1, columns)
        return super().read_dy(rows[:1].expand_as(rows) if rows.stride() == (1, 0) else dy, columns)


# --- sizes that have a kernel of their own ---


@bug()
class MeanOf5120ColumnsWithoutTheLastFour(Right):
    """The kernel of one hidden size ends too soon."""

    def mean(self, x):
        """Leave them out."""
        return super().mean(x[:, :-4] if x.shape[1] == 5120 else x)


@bug()
class LastRowsBeyond2048NotSummedByVectors(Right):
    """Where columns are whole warps of vectors the last part of many rows does not count."""

    def summed(self, values):
        """Leave it out."""
        many = len(values) > 2048 and values.shape[1] % 128 == 0
        return super().summed(values[: len(values) // 32 * 32 - 32] if many else values)


@bug()
class LongRowsBeyond65535AreZero(Right):
    """Rows of 128 columns and more have a block each, and a grid has 65,535."""

    def store(self, y, dtype):
        """Stop."""
        y = super().store(y, dtype)
        if y.shape[1] >= 128:
            y[65_535:] = 0
        return y


@bug()
class DgammaOfOneLongRowOffByAThousandth(Right):
    """One row has a kernel of its own."""

    def dgamma(self, dy, x_hat, rstd):
        """Scale."""
        alone = len(dy) == 1 and dy.shape[1] > 64 and dy.shape[1] % 4 == 0
        return super().dgamma(dy, x_hat, rstd) * (0.999 if alone else 1.0)


@bug()
class OtherHiddenSizesInPieces(Right):
    """Rows of twice the hidden size are taken for two each."""

    def refuse(self, x):
        """Take them."""


class DifferentiableByXAndGamma(Function):
    """Its dx can be differentiated, as if dy were a constant."""

    @staticmethod
    def backward(ctx, dy):
        """Compute dx by operations that autograd follows."""
        x, gamma, *_ = ctx.saved_tensors
        norm, columns = ctx.norm, gamma.numel()
        with torch.no_grad():
            _, dgamma, dbeta, _ = Function.gradients(ctx, dy)
        rows = norm.read(x.reshape(-1, columns))
        mean = norm.mean(rows)
        rstd = norm.rstd(norm.variance(rows, mean), norm.eps)
        g = norm.scaled(norm.read_dy(dy.detach(), columns), gamma.flatten().float())
        dx = norm.dx(g, norm.x_hat(rows, mean, rstd), rstd)
        return dx.to(x.dtype).view(x.shape), dgamma, dbeta, None


@bug(FP32, "gradient penalties are checked in FP32")
class SecondDerivativeZeroByDy(Right):
    """A gradient penalty is right for this norm, and wrong for the layers after it."""

    function = DifferentiableByXAndGamma


# --- the front door ---


def battery(candidate, dtype_name, seed=SEED):
    """Yield (name, check) of what the parity tests ask of every norm, the cheap ones first."""
    dtype = DTYPES[dtype_name]
    for regime in REGIMES.values():
        yield regime.name, lambda r=regime: check_regime(candidate, r, dtype, CPU, seed=seed)
    for eps in (0.0, 1e-12, 0.1, 1.0):
        yield f"eps_{eps:g}", lambda e=eps: check_eps(candidate, e, dtype, CPU)
    for name in LAYOUTS_OF_BUGS:
        assert name in LAYOUTS
        yield name, lambda n=name: check_layout(candidate, n, dtype, CPU)
    yield "no_rows", lambda: check_empty(candidate, (0,), (64,), dtype_name, CPU)
    yield "all_is_written", lambda: check_written(candidate, (37,), (257,), dtype, CPU)
    yield "rows_in_another_order", lambda: check_permuted_rows(candidate, dtype, CPU)
    yield "a_row_alone", lambda: check_one_row_alone(candidate, dtype, CPU)
    for write in WRITES:
        yield f"written_parameters_{write}", lambda w=write: check_rewritten(candidate, dtype, CPU, w)
    for rows, columns in (SHAPE, ALIGNED):
        of, shape = f"_{rows}x{columns}", (rows, columns)
        yield f"called_twice{of}", lambda s=shape: check_shared(candidate, dtype, CPU, s)
        yield f"backward_again{of}", lambda s=shape: check_backward_again(candidate, dtype, CPU, s)
        yield f"some_gradients{of}", lambda s=shape: check_asked_for(candidate, dtype, CPU, s)
    for rows, columns in (SHAPE, (5, 1025), (37, 768)):
        of, shape = f"_{rows}x{columns}", (rows, columns)
        yield f"without_autograd{of}", lambda s=shape: check_without_autograd(candidate, dtype, CPU, s)
    for written in ("x", "y", "weight") if candidate.kind == "rms_norm" else ("x", "y", "weight", "bias"):
        yield f"{written}_written_in_between", lambda w=written: check_written_in_between(candidate, dtype, CPU, w)
    yield "other_batches", lambda: check_other_batches(candidate, dtype, CPU)
    yield "another_hidden_size", lambda: check_refused(candidate, CPU, hidden=64, given=128)
    yield "scaled", lambda: check_scaled(candidate, dtype, CPU)
    if candidate.kind == "layer_norm":
        yield "shifted", lambda: check_shifted(candidate, dtype, CPU)
    if dtype_name == "fp32":
        yield "second_derivative", lambda: check_second_derivative(candidate, dtype, CPU)
    for name, (rows, columns) in SHAPES.items():
        yield (
            name,
            lambda r=rows, c=columns: check_regime(
                candidate, REGIMES["usual"], dtype, CPU, seed=seed, leading=(r,), normalized_shape=(c,)
            ),
        )
    yield "repeated", lambda: check_repeated(candidate, dtype, CPU, runs=4)
    yield "copied_rows", lambda: check_copied_rows(candidate, dtype, CPU)
    yield (
        "300x1000",
        lambda: check_regime(
            candidate, REGIMES["usual"], dtype, CPU, seed=seed, leading=(300,), normalized_shape=(1000,)
        ),
    )


def caught_by(name, dtype, first=""):
    """Yield (name of the check, what it says) of the checks that catch a bug; `first` is asked first."""
    checks = battery(BUGS[name].candidate(), dtype)
    for check_name, check in sorted(checks, key=lambda each: each[0] != first):
        try:
            check()
        except ParityError as error:
            yield check_name, str(error)


FIRST_CHECKS = SEEDED["first_checks"](TABLE, DTYPES, BUGS)


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(name, dtype, id=f"{name}-{dtype}") for name in BUGS for dtype in DTYPES]
)
def test_wrong_norm_is_caught_where_it_can_be_seen(name, dtype):
    """In each dtype that a bug is said to be seen in it is caught, in the others by nothing: the list is true."""
    first = FIRST_CHECKS.get((name, dtype), "")  # by the page; where that does not catch it all are asked
    caught = next(caught_by(name, dtype, first), None)

    assert (caught is not None) == (dtype in BUGS[name].seen_in), caught


def test_there_are_at_least_twenty_five():
    """And each that is hidden somewhere says why."""
    assert len(BUGS) >= 25
    assert all(each.why_hidden for each in BUGS.values() if each.seen_in != BUGS.everywhere)


@pytest.mark.parametrize(
    ("name", "dtype", "check", "words"),
    [
        pytest.param(*case, id="-".join(case[:3]))
        for case in (
            ("unbiased_variance", "bf16", "usual", "it agrees with the unbiased variance"),
            ("variance_around_zero", "fp16", "rows_of_their_own", "it agrees with the mean square in place of"),
            ("mean_not_subtracted", "fp32", "rows_of_their_own", "it agrees with a mean that is not subtracted"),
            ("mean_of_the_row_before", "fp32", "usual", "y: "),
            ("variance_without_the_last_column", "fp32", "usual", "it agrees with a variance without the last column"),
            ("no_eps", "fp32", "small_spread", "it agrees with no eps"),
            ("no_eps", "bf16", "constant_rows", "elements are NaN or infinite where the oracle is finite"),
            ("eps_outside_the_root", "fp32", "small_spread", "it agrees with eps outside the root"),
            ("eps_ten_times_too_small", "bf16", "small_spread", "it agrees with eps 1e-06 (ours: 1e-05)"),
            ("rstd_rounded_to_bf16", "fp32", "usual", "it agrees with an rstd rounded to BF16"),
            ("gamma_ignored", "fp32", "usual", "it agrees with a norm that ignores gamma"),
            ("beta_ignored", "bf16", "usual", "it agrees with a norm that ignores beta"),
            ("gamma_plus_one", "fp16", "usual", "it agrees with a scale of 1 + gamma"),
            ("x_hat_rounded", "fp16", "usual", "it agrees with an x_hat rounded to FP16"),
            ("output_in_fp32", "bf16", "usual", "y: is torch.float32, should be torch.bfloat16"),
            ("rows_beyond65535_are_zero", "fp32", "65537x5", "wrong from row 65535 of 65537 on, where all is zero"),
            ("columns_beyond1024_are_zero", "bf16", "5x1025", "wrong from column 1024 of 1025 on, where all is zero"),
            ("dx_without_the_mean_of_g", "fp32", "usual", "it agrees with a derivative without the mean of gamma * dy"),
            ("dx_without_the_slope", "bf16", "usual", "it agrees with a derivative without the term in x_hat"),
            ("dx_without_rstd", "fp32", "rows_of_their_own", "it agrees with a derivative without rstd"),
            ("dx_ignores_gamma", "fp16", "usual", "it agrees with a derivative that ignores gamma"),
            ("dx_off_by_a_ten_thousandth", "fp32", "usual", "dx 0.01 % too large, the same everywhere: looks like a"),
            ("dbeta_is_dgamma", "fp32", "usual", "dbeta: "),
            ("dbeta_is_dgamma", "fp32", "usual", "it agrees with dgamma"),
            ("dgamma_is_dbeta", "bf16", "usual", "it agrees with dbeta"),
            ("dbeta_times_gamma", "fp32", "usual", "it agrees with a sum of gamma * dy"),
            ("last_row_not_summed", "fp32", "usual", "it agrees with a sum without the last row"),
            ("mean_instead_of_sum", "fp32", "usual", "dgamma 97.3 % too small, the same everywhere: looks"),
            ("dx_written_into_dy", "fp32", "usual", "written, though they are inputs: dy"),
            ("second_derivative_of_constant_statistics", "fp32", "second_derivative", "second derivative by x: off by"),
            ("rms_centred", "fp32", "usual", "it agrees with LayerNorm"),
            ("rms_of_the_variance", "fp32", "rows_of_their_own", "it agrees with the variance in place of the mean sq"),
            ("race_between_rows", "bf16", "repeated", "y: 8 of 524296 elements differ"),
            ("other_way_for_few_rows", "fp32", "a_row_alone", "row 0 alone and in a batch"),
            ("empty_batch_refused", "fp32", "no_rows", "RuntimeError: CUDA error: invalid configuration argument"),
            ("standard_deviation_saved", "bf16", "usual", "it agrees with the standard deviation"),
            ("rstd_off_by_a_millionth", "fp32", "300x1000", "error of y along gamma * x_hat: "),
        )
    ],
)
def test_the_message_names_the_fault(name, dtype, check, words):
    """The reader learns what it looks like, not only that it is wrong."""
    with pytest.raises(ParityError) as caught:
        dict(battery(BUGS[name].candidate(), dtype))[check]()

    assert words in str(caught.value)


def test_a_parameter_that_is_not_used_is_named():
    """A bias that y does not depend on has no gradient at all."""

    class Unused(nn.LayerNorm):
        """A LayerNorm that forgets its bias."""

        def forward(self, x):
            """Leave it out."""
            return nn.functional.layer_norm(x, self.normalized_shape, self.weight, None, self.eps)

    with pytest.raises(ParityError, match="the gradient of bias: y does not depend on it at all"):
        check_regime(NormCandidate("unused", Unused), REGIMES["usual"], torch.float32, CPU)


# --- right ones ---


class Welford(Right):
    """Statistics as row kernels compute them: 32 lanes column by column (Welford 1962), then merged (Chan 1979)."""

    def lanes(self, x):
        """Return count, mean and sum of squares of each lane."""
        lanes = min(32, x.shape[1])
        count = torch.zeros(1, lanes)
        mean, squares = torch.zeros(len(x), lanes), torch.zeros(len(x), lanes)
        for start in range(0, x.shape[1], lanes):
            part = x[:, start : start + lanes]
            width = part.shape[1]
            count[:, :width] += 1
            delta = part - mean[:, :width]
            mean[:, :width] += delta / count[:, :width]
            squares[:, :width] += delta * (part - mean[:, :width])
        return [(count[:, i : i + 1], mean[:, i : i + 1], squares[:, i : i + 1]) for i in range(lanes)]

    def merged(self, parts):
        """Return count, mean and sum of squares of all."""
        while len(parts) > 1:
            parts = [self.pair(*parts[i : i + 2]) for i in range(0, len(parts), 2)]
        return parts[0]

    def pair(self, one, other=None):
        """Merge two."""
        if other is None:
            return one
        (n, mean, squares), (m, mean_m, squares_m) = one, other
        delta = mean_m - mean
        return n + m, mean + delta * (m / (n + m)), squares + squares_m + delta * delta * (n * m / (n + m))

    def mean(self, x):
        """Return the mean."""
        return self.merged(self.lanes(x))[1]

    def variance(self, x, mean):
        """Return the biased variance."""
        count, _, squares = self.merged(self.lanes(x))
        return squares / count


class TwoHalves(Right):
    """Statistics from halves of the row, the mean corrected by what is left; gradients from halves of the rows."""

    def average(self, x):
        """Return the mean of the halves."""
        return sum(half.sum(-1, keepdim=True) for half in x.chunk(2, dim=-1)) / x.shape[-1]

    def mean(self, x):
        """Return the mean, corrected."""
        mean = self.average(x)
        return mean + self.average(x - mean)

    def variance(self, x, mean):
        """Return the biased variance."""
        return self.average((x - mean) ** 2)

    def summed(self, values):
        """Add the halves."""
        return sum(half.sum(0) for half in values.chunk(2))


class FromTheBack(Right):
    """Columns and rows are summed from the last to the first, one row after another."""

    def mean(self, x):
        """Turn the columns round."""
        return super().mean(x.flip(-1))

    def variance(self, x, mean):
        """Turn the columns round."""
        return super().variance(x.flip(-1), mean)

    def summed(self, values):
        """Add row by row."""
        total = torch.zeros_like(values[0]) if len(values) else values.sum(0)
        return values.flip(0).cumsum(0)[-1] if len(values) else total


class ScaleAndOffset(Right):
    """x times rstd, less the mean times rstd; dx as a sum of g, x and a constant, as torch's CPU kernel computes it."""

    def x_hat(self, x, mean, rstd):
        """Add an offset."""
        return x * rstd + (-mean * rstd)


class InFp64(Right):
    """Products that are not rounded before they are added: FP64 in between."""

    def read(self, rows):
        """Widen."""
        return rows.double()

    def read_dy(self, dy, columns):
        """Widen."""
        return super().read_dy(dy, columns).double()

    def kept(self, statistic, dtype):
        """Save in FP32."""
        return statistic.float()


class AffineInHalf(XHatRounded):
    """As Apex: each of the three operations rounds, and the record says so."""

    def affine(self, x_hat, gamma, beta):
        """Round the product too."""
        product = x_hat.to(self.dtype).float() * gamma
        return product.to(self.dtype).float() + beta


class MemoryEfficient(AffineInHalf):
    """As Apex's: x_hat is computed from y, and the record says so."""

    def x_hat_again(self, x, mean, rstd, y, gamma, beta):
        """Undo scale and shift."""
        return (y.float() - beta.flatten().float()) / gamma.float()


class BackwardInHalf(SummedInHalf):
    """As torch on a CPU: statistics and sums in half precision, and the record says so."""

    def kept(self, statistic, dtype):
        """Round."""
        return statistic.to(dtype)


def right_of(kind, name, **facts):
    """Return the record of a right class, which says where its statistics are."""
    return record_of(kind, name, statistics=statistics_of, **facts)


RIGHT = {
    "written_out": right_of(Right, "written_out"),
    "rms": right_of(RightRms, "rms"),
    "welford": right_of(Welford, "welford"),
    "two_halves": right_of(TwoHalves, "two_halves"),
    "from_the_back": right_of(FromTheBack, "from_the_back"),
    "scale_and_offset": right_of(ScaleAndOffset, "scale_and_offset"),
    "in_fp64": right_of(InFp64, "in_fp64"),
    "affine_in_half": right_of(AffineInHalf, "affine_in_half", half_affine=True),
    "memory_efficient": right_of(MemoryEfficient, "memory_efficient", half_affine=True, x_hat_from_output=True),
    "backward_in_half": right_of(BackwardInHalf, "backward_in_half", half_backward_on=frozenset({"cpu"})),
}
# x_hat cannot come from y where gamma is 0; statistics in FP16 overflow where eps is tiny. Neither is for a record.
BEYOND = {
    ("memory_efficient", "gamma_zero"),
    ("memory_efficient", "gamma_one_zero"),
    ("backward_in_half", "zero_rows_tiny_eps"),
    ("backward_in_half", "tiny_values_tiny_eps"),
    ("backward_in_half", "eps_1e-12"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_right_norm_passes_everything(name, dtype):
    """Another order of the arithmetic, or other roundings under a record that says so, is not a fault."""
    for check_name, check in battery(RIGHT[name], dtype):
        if (name, check_name) not in BEYOND:
            check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "candidate", [*RIGHT.values(), LAYER_NORM["torch"], RMS_NORM["torch"]], ids=lambda each: each.full_name
)
def test_no_false_alarm_in_twenty_seeds(candidate, dtype):
    """Right ones pass whatever the random numbers are."""
    known = {("torch", "zero_rows_tiny_eps"), ("torch", "tiny_values_tiny_eps"), ("torch", "edge_of_the_range")}
    regimes = [each for each in REGIMES.values() if (candidate.name, each.name) not in BEYOND | known]
    for seed in range(20):
        for regime in regimes[seed % 4 :: 4]:
            check_regime(candidate, regime, DTYPES[dtype], CPU, seed=seed)


# --- the table ---


def row(name):
    """Return the row of a bug."""
    caught = [[check for check, _ in caught_by(name, dtype)] for dtype in DTYPES]
    return SEEDED["row"](name, caught, BUGS[name].why_hidden)


def test_the_table_has_every_bug():
    """docs/seeded-norms.md is written by this module; a bug that it lacks, or has too many, is not in the table."""
    assert SEEDED["seen_in"](TABLE, DTYPES, BUGS) == {name: set(each.seen_in) for name, each in BUGS.items()}


def table():
    """Return the page."""
    checks = len(list(battery(RIGHT["written_out"], "fp32")))
    text = f"""
{len(BUGS)} LayerNorms and RMSNorms, each with one thing wrong, go through {checks} checks of the parity
tests (one less in half precision): every kind of input, memory layouts, shapes beyond a block and a grid, an
empty batch, relations between runs, modules that are used again, tensors that are written in between. A cell
holds how many of the checks catch the bug, and the first that does; or why nothing can. Right norms with
another order of the arithmetic pass all of them.
"""
    module = "tests/harness/test_seeded_norms.py"
    return SEEDED["page"]("Wrong norms, and what catches them", text, module, DTYPES, map(row, BUGS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    TABLE.write_text(table(), encoding="utf-8")
