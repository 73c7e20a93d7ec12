"""Whether each Adam's own kernel runs, and how many bytes its step moves."""

import pytest

from fuseproof.parity import DTYPES
from fuseproof.parity.adam.paths import check_kernel, check_kernel_after_loading, check_traffic

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def needs_a_name(adam, device):
    """Skip where nothing says which kernel it should be."""
    if device.type not in adam.kernels:
        pytest.skip(f"{adam.name} has no kernel for many tensors on {device.type} that its record names")


@by_dtype
def test_its_kernel_runs(adam, dtype, device):
    """A fused kernel that is not called falls back in silence: twenty tensors are one launch of it, of any dtype."""
    needs_a_name(adam, device)
    check_kernel(adam, device, dtype)


@pytest.mark.fault(13)
@by_dtype
def test_its_kernel_runs_after_loading_a_checkpoint_of_another(adam, dtype, device):
    """Whoever switches to a fused Adam in the middle of a training has the fused one from then on."""
    needs_a_name(adam, device)
    check_kernel_after_loading(adam, device, dtype)


@by_dtype
def test_a_fused_step_moves_each_element_once(adam, dtype, device):
    """Parameter, gradient and moments are read once, and all but the gradient written once."""
    if adam.own_kernels:
        pytest.skip("its kernels are called past torch's dispatcher, which counts the bytes")
    check_traffic(adam, device, dtype)
