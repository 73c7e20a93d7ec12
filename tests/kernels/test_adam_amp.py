"""Every Adam under a GradScaler: scaled gradients, overflows anywhere, unscaling and clipping. FP32 parameters."""

import math
from dataclasses import replace

import pytest

from fuseproof.parity.adam import MODES, settings_in_mode
from fuseproof.parity.adam.checks import check_overflow, check_scaled

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

# (tensor, element) in the shapes of the regimes: two groups, of two and of three tensors.
PLACES = {
    "first_element": (0, 0),
    "last_of_the_first_group": (1, -1),
    "first_of_the_second_group": (2, 0),
    "only_element": (3, 0),
    "last_element": (-1, -1),
}


def writing(adam):
    """Return the record with leave to write unscaled gradients: a test of its own says who does so."""
    return replace(adam, writes=frozenset({"grad"}))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("eps", [1e-8, 1e-3], ids=lambda eps: f"eps_{eps:g}")
@pytest.mark.parametrize("unscale", [False, True], ids=["scaled", "unscaled_and_clipped"])
def test_scaled_gradients_give_the_unscaled_update(adam, unscale, eps, mode, device):
    """Unscaled exactly once, whoever does it: gradients of the size of eps show it, and so does L2 decay."""
    check_scaled(writing(adam), settings_in_mode(mode, eps=eps, weight_decay=0.1), device, unscale=unscale)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan], ids=["inf", "minus_inf", "nan"])
@pytest.mark.parametrize("place", PLACES)
def test_nothing_moves_at_an_overflow(adam, place, value, device):
    """Wherever the overflow is, no parameter, moment or counter moves, the scale halves, and the next step is right."""
    tensor, element = PLACES[place]
    settings = settings_in_mode(max(adam.decay_modes, key=len), weight_decay=0.1)
    check_overflow(writing(adam), settings, device, tensor=tensor, element=element, value=value)


def test_gradients_under_a_scaler_are_written_only_if_the_record_says_so(adam, device):
    """A loop that reads gradients after the step, to log their norm, must know whether they are scaled."""
    check_scaled(adam, settings_in_mode(max(adam.decay_modes, key=len), weight_decay=0.1), device)
