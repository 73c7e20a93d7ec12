"""Every Adam, step by step and over its whole way, against FP64: updates, moments, counters, and what it may write."""

from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.adam import MODES, settings_in_mode
from fuseproof.parity.adam.checks import check_overflowing_squares, check_regime
from fuseproof.parity.adam.long import SCHEDULES, check_lr_tensor, check_schedule
from fuseproof.parity.adam.loop import check_default_dtype
from fuseproof.parity.adam.regimes import REGIMES, SEED, Regime, make_params, usual_settings
from fuseproof.parity.adam.trusted import check_trusted
from fuseproof.parity.bits import differing

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

USUAL = REGIMES["mixed_signs"]
by_dtype = pytest.mark.parametrize("dtype", DTYPES)
by_mode = pytest.mark.parametrize("mode", MODES)
# What stands at the edge of its range; the other settings are the usual ones.
EDGES = {
    "beta1_0": {"betas": (0.0, 0.999)},
    "beta2_0": {"betas": (0.9, 0.0)},
    "betas_0": {"betas": (0.0, 0.0)},
    "betas_near_1": {"betas": (0.999, 0.99999)},
    "beta1_above_beta2": {"betas": (0.99, 0.9)},
    "eps_0": {"eps": 0.0},
    "eps_1e-3": {"eps": 1e-3},
    "eps_1": {"eps": 1.0},
    "lr_0": {"lr": 0.0},
    "lr_1e-20": {"lr": 1e-20},
    "lr_1": {"lr": 1.0},
    "lr_1_decay_1": {"lr": 1.0, "weight_decay": 1.0},
}


@by_mode
@pytest.mark.parametrize(
    "regime", [pytest.param(each, id=each.name, marks=pytest.mark.fault(*each.faults)) for each in REGIMES.values()]
)
@by_dtype
def test_update_matches_fp64(adam, dtype, regime, mode, device):
    """Six steps of each kind of gradients, with weight decay: each step from its own state, and the whole way."""
    dtype = DTYPES[dtype]
    settings = settings_in_mode(mode, lr=regime.lr_for(dtype), weight_decay=0.1)
    check_regime(adam, regime, settings, dtype, device)


@pytest.mark.fault(8)
@by_mode
@pytest.mark.parametrize("decay", [0.0, 0.01, 1.0], ids=lambda decay: f"decay_{decay:g}")
@by_dtype
def test_weight_decay_matches_fp64(adam, dtype, decay, mode, device):
    """No decay, the usual and a strong one (0.1 is in every regime); L2 decay is in the moments, decoupled is not."""
    dtype = DTYPES[dtype]
    regime = REGIMES["large_params"]
    check_regime(adam, regime, settings_in_mode(mode, lr=USUAL.lr_for(dtype), weight_decay=decay), dtype, device)


@pytest.mark.fault(11)
@by_mode
@pytest.mark.parametrize("edge", EDGES)
@by_dtype
def test_hyper_parameters_at_their_edges(adam, dtype, edge, mode, device):
    """Betas, eps and lr at the edges of their ranges are used as they are; none of them makes a NaN."""
    dtype = DTYPES[dtype]
    settings = replace(settings_in_mode(mode, lr=USUAL.lr_for(dtype), weight_decay=0.01), **EDGES[edge])
    checked = check_regime(adam, USUAL, settings, dtype, device)

    assert all(param.isfinite().all() for param in checked.params)


@pytest.mark.fault(8, 9)
@by_mode
@by_dtype
def test_weight_decay_reaches_every_chunk(adam, dtype, mode, device):
    """Beyond 65,536 elements parameters decay as before them, by either kind of decay."""
    dtype = DTYPES[dtype]
    settings = settings_in_mode(mode, lr=USUAL.lr_for(dtype), weight_decay=0.1)
    check_regime(adam, USUAL, settings, dtype, device, steps=1, shapes=((65_541,),))


@pytest.mark.fault(11)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_squares_that_overflow_make_no_nan(adam, dtype, device):
    """The square of a gradient of 1e25 is infinite in FP32, and no parameter is by that."""
    check_overflowing_squares(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(11)
@pytest.mark.parametrize("eps", [1e-8, 1e-3, 1.0], ids=lambda eps: f"eps_{eps:g}")
@by_dtype
def test_the_first_twenty_steps_at_each_eps(adam, dtype, eps, device):
    """Where the bias correction changes most, eps is outside the root and after the correction."""
    dtype = DTYPES[dtype]
    check_regime(adam, REGIMES["small_gradients"], usual_settings(adam, dtype, eps=eps), dtype, device, steps=20)


@pytest.mark.fault(11)
@by_dtype
def test_without_bias_correction(adam, dtype, device):
    """Where the correction can be left out, it is."""
    if not adam.switches_correction:
        pytest.skip(f"{adam.name} always corrects its moments")
    dtype = DTYPES[dtype]
    check_regime(adam, USUAL, usual_settings(adam, dtype, bias_correction=False), dtype, device)


@pytest.mark.fault(3)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_masters_gather_what_parameters_lose(adam, dtype, device):
    """Fifty steps far below half a unit: each moves the master, and the parameter is what the master rounds to."""
    dtype = DTYPES[dtype]
    steady = Regime("steady", "masters that are not used", gradients=lambda noise, _: noise.sign())
    check_regime(adam, steady, usual_settings(adam, dtype, lr=1e-5, weight_decay=0.0), dtype, device, steps=50)


@by_dtype
def test_many_elements_match_fp64(adam, dtype, device):
    """A constant that is wrong by a millionth shows in the mean of 300,000 updates; no decay blurs it."""
    dtype = DTYPES[dtype]
    settings = usual_settings(adam, dtype, weight_decay=0.0)
    check_regime(adam, USUAL, settings, dtype, device, steps=3, shapes=((300, 1000), (1001,)))


@pytest.mark.fault(15)
@pytest.mark.parametrize("schedule", SCHEDULES)
@by_dtype
def test_the_scheduled_lr_is_the_lr_used(adam, dtype, schedule, device):
    """Whatever a scheduler sets, betas too, is used in the very next step."""
    check_schedule(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device, schedule)


@pytest.mark.fault(15)
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")  # Apex makes a tensor of a tensor
@pytest.mark.parametrize("where", ["host", "device"])
@by_dtype
def test_lr_as_a_tensor(adam, dtype, where, device):
    """A 0-d tensor as lr is used at the value of each step and never written, or refused with a word about lr."""
    try:
        check_lr_tensor(adam, DTYPES[dtype], device, torch.device("cpu") if where == "host" else device)
    except (TypeError, ValueError) as error:
        assert "lr" in str(error)  # noqa: PT017  # either is right: an error, or the result


@pytest.mark.fault(4)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_moments_are_kept_in_float32(adam, dtype, device):
    """In half precision exp_avg_sq loses what small gradients add, and in FP16 underflows to zero."""
    dtype = DTYPES[dtype]
    settings = usual_settings(adam, dtype)
    check_regime(replace(adam, moments="float32"), USUAL, settings, dtype, device, steps=2)


@pytest.mark.parametrize("default", ["bf16", "fp16"])
def test_the_default_dtype_does_not_matter(adam, default, device):
    """Who makes models under ``torch.set_default_dtype`` has FP32 moments for FP32 parameters all the same."""
    check_default_dtype(adam, usual_settings(adam, torch.float32), DTYPES[default], device)


@pytest.mark.fault(4)
@pytest.mark.parametrize("regime", ["mixed_signs", "small_gradients", "tiny_gradients"])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_is_as_right_as_with_fp32_state(adam, dtype, regime, device):
    """After a hundred steps parameters are off by at most twice what FP32 arithmetic and state, rounded once, leave."""
    check_trusted(adam, device, REGIMES[regime], DTYPES[dtype], seed=SEED, steps=100)


@by_dtype
def test_the_same_bits_twice(adam, dtype, device):
    """Two runs from the same bits end in the same bits: there is no race, and nothing uninitialised is read."""
    ends = []
    for _ in range(2):
        params = make_params(USUAL, DTYPES[dtype], device, SEED)
        optimizer = adam.build(params, usual_settings(adam, DTYPES[dtype]))
        for step in range(1, 5):
            USUAL.set_gradients(params, step, SEED)
            optimizer.step()
        ends.append(params)

    assert not differing(*ends)


@pytest.mark.fault(2, 8)
@by_mode
@pytest.mark.parametrize("regime", ["mixed_signs", "late_gradient"])
@by_dtype
def test_compiled_update_matches_fp64(adam, dtype, regime, mode, device):
    """What ``torch.compile`` makes of Adam, with --full only: a dozen cases."""
    dtype = DTYPES[dtype]
    settings = settings_in_mode(mode, lr=USUAL.lr_for(dtype), weight_decay=0.1)
    check_regime(adam, REGIMES[regime], settings, dtype, device)
