"""Every Adam under a GradScaler: scaled gradients, overflows anywhere, unscaling and clipping in every order."""

import math
import re
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.adam import MODES, settings_in_mode
from fuseproof.parity.adam.amp import (
    ORDERS,
    Scaling,
    check_scale_invariance,
    check_scaled,
    check_training,
    check_two_optimizers,
)
from fuseproof.parity.adam.regimes import usual_settings

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

# (tensor, element) in the shapes of the regimes: two groups, of two and of three tensors.
PLACES = {
    "first_element": (0, 0),
    "last_of_the_first_group": (1, -1),
    "first_of_the_second_group": (2, 0),
    "only_element": (3, 0),
    "last_element": (-1, -1),
}
# Two groups: both beyond a chunk of 65,536 elements, or both beyond a launch of 36 tensors.
BOUNDARIES = {"beyond_a_chunk": ((131_073,), (65_537,)), "beyond_a_launch": ((5, 3),) * 74}
by_dtype = pytest.mark.parametrize("dtype", DTYPES)
by_order = pytest.mark.parametrize("order", ORDERS)
by_value = pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=["inf", "minus_inf", "nan"])


def writing(adam):
    """Return the record with leave to write unscaled gradients: a test of its own says who does so."""
    return replace(adam, writes=frozenset({"grad"}))


@contextmanager
def what_the_scaler_can():
    """Skip what torch's GradScaler itself refuses: FP16 gradients that it should unscale, on CUDA those of BF16."""
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        if not re.search("unscale FP16 gradients|_amp_.*not implemented for 'BFloat16'", str(error)):
            raise
        pytest.skip(f"torch's GradScaler refuses: {str(error).rstrip('.')}")


def check(adam, settings, device, scaling, dtype="fp32"):
    """Run it where torch's scaler can."""
    with what_the_scaler_can():
        check_scaled(writing(adam), settings, device, scaling, DTYPES[dtype])


@pytest.mark.fault(5)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eps", [1e-8, 1e-3], ids=lambda eps: f"eps_{eps:g}")
@by_order
@by_dtype
def test_scaled_gradients_give_the_unscaled_update(adam, dtype, order, eps, mode, device):
    """Unscaled exactly once, whoever does it: gradients of the size of eps show it, and so does L2 decay."""
    settings = settings_in_mode(mode, eps=eps, weight_decay=0.1)
    check(adam, settings, device, Scaling(order), dtype)


@pytest.mark.fault(7)
@by_value
@pytest.mark.parametrize("place", PLACES)
@by_dtype
def test_nothing_moves_at_an_overflow(adam, dtype, place, value, device):
    """Wherever the overflow is, no parameter, moment or counter moves, the scale halves, and the next step is right."""
    settings = usual_settings(adam, DTYPES[dtype])
    check(adam, settings, device, Scaling(overflows=dict.fromkeys((1, 4), (*PLACES[place], value))), dtype)


@pytest.mark.fault(7, 12)
@by_order
@by_dtype
def test_an_overflow_in_every_order_of_unscaling_and_clipping(adam, dtype, order, device):
    """An overflow that is unscaled, clipped to NaN, or clipped while it is scaled is one: nothing moves."""
    settings = usual_settings(adam, DTYPES[dtype])
    overflows = {1: (-1, -1, math.inf), 3: (0, 0, math.nan), 4: (2, 0, -math.inf)}
    check(adam, settings, device, Scaling(order, overflows, steps=6), dtype)


@pytest.mark.fault(5, 7, 9)
@pytest.mark.parametrize("shapes", BOUNDARIES)
@by_dtype
def test_every_chunk_and_launch_reads_scale_and_overflow(adam, dtype, shapes, device):
    """What a kernel looks up once a launch or block reaches the last element: all unscaled, nothing at an overflow."""
    overflows = {2: (0, 0, math.inf), 4: (-1, -1, math.nan)}
    settings = usual_settings(adam, DTYPES[dtype], eps=1e-3)
    check(adam, settings, device, Scaling(overflows=overflows, shapes=BOUNDARIES[shapes]), dtype)


@pytest.mark.fault(2, 12)
@by_dtype
def test_absent_gradients_under_a_scaler(adam, dtype, device):
    """A parameter without gradient waits for its next one under a scaler too, and is not counted."""
    scaling = Scaling(present="absent_gradients", overflows={3: (1, 0, math.inf)}, steps=6)
    check(adam, usual_settings(adam, DTYPES[dtype]), device, scaling, dtype)


@pytest.mark.fault(12)
@by_value
@pytest.mark.parametrize("order", ["unscale", "unscale_clip"])
@by_dtype
def test_what_is_not_finite_after_unscaling_goes_on_as_in_the_unfused_adam(adam, dtype, order, value, device):
    """The scaler has looked before: the scale stays, and NaN or Inf is where the gradient had it, nowhere else."""
    check(adam, usual_settings(adam, DTYPES[dtype]), device, Scaling(order, late={3: (0, 0, value)}), dtype)


@pytest.mark.fault(12)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_norm_that_overflows_clips_to_zero(adam, dtype, device):
    """Finite gradients of 1e25 have an infinite norm in FP32: clipped by it they are zeros, and moments decay."""
    check(adam, usual_settings(adam, DTYPES[dtype]), device, Scaling("unscale_clip", gradients=1e25), dtype)


@pytest.mark.fault(12)
@by_dtype
def test_three_hundred_steps_with_a_growing_scale(adam, dtype, device):
    """The scale doubles every twenty steps, and falls where it is given an overflow or makes one."""
    overflows = {50: (0, 0, math.inf), 51: (1, -1, math.nan), 170: (-1, 0, -math.inf)}
    scaling = Scaling(overflows=overflows, growth_interval=20, steps=300)
    check(adam, usual_settings(adam, DTYPES[dtype]), device, scaling, dtype)


@pytest.mark.fault(5)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_scale_does_not_matter(adam, dtype, device):
    """Scales of 1, 2^10 and 2^16 end in the same bits."""
    settings = usual_settings(adam, DTYPES[dtype], eps=1e-3)
    with what_the_scaler_can():
        check_scale_invariance(writing(adam), settings, device, DTYPES[dtype])


@pytest.mark.fault(7)
def test_two_optimizers_share_a_scaler(adam, device):
    """Where one overflows the other takes its step."""
    check_two_optimizers(writing(adam), usual_settings(adam, torch.float32), device)


@pytest.mark.fault(12)
@pytest.mark.parametrize("autocast", ["fp16", "bf16"])
def test_training_ends_where_the_plain_adam_s_does(adam, autocast, device):
    """A small model under autocast and a scaler that overflows at first: 300 right steps, and the same loss."""
    check_training(writing(adam), device, DTYPES[autocast])


def test_gradients_under_a_scaler_are_written_only_if_the_record_says_so(adam, device):
    """A loop that reads gradients after the step, to log their norm, must know whether they are scaled."""
    check_scaled(adam, usual_settings(adam, torch.float32), device, Scaling())
