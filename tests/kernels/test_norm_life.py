"""Every LayerNorm and RMSNorm in use: saved, copied, traced, exported, half frozen, differentiated twice."""

import copy
import io
import pickle
import warnings
from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.bits import same_bits
from fuseproof.parity.norm import NORM_DTYPES, REGIMES, case_of, judge, run
from fuseproof.parity.norm.checks import ALIGNED, SHAPE, build
from fuseproof.parity.norm.life import check_second_derivative
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

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]

USUAL = REGIMES["usual"]
QUANTITIES = ("y", "dx", "dgamma", "dbeta")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)
# Besides the usual one: more columns than a block has threads, more rows than a part of the sums, and models' sizes.
WITHOUT_AUTOGRAD = (SHAPE, (5, 1025), (1000, 64), (37, 768), (37, 1024), (37, 4096))


def over(*shapes):
    """Parametrize over shapes, named by their rows and columns."""
    return pytest.mark.parametrize("shape", shapes, ids=lambda shape: "x".join(map(str, shape)))


def usual(norm, dtype, device, rows=37):
    """Return the usual inputs of so many rows."""
    return USUAL.inputs((rows,), (257,), NORM_DTYPES[dtype], device).of(norm.kind)


def assert_same(one, other):
    """Compare all that two runs returned bit by bit."""
    for quantity in QUANTITIES:
        first, second = getattr(one, quantity), getattr(other, quantity)
        assert (first is None) == (second is None), quantity
        assert first is None or same_bits(first, second), quantity


def by_state_dict(norm, module, inputs):
    """Load the state into a new module."""
    other = build(norm, replace(inputs, gamma=torch.zeros_like(inputs.gamma)))
    other.load_state_dict(module.state_dict())
    return other


def by_file(norm, module, inputs):
    """The same through bytes, onto the CPU first, as checkpoints are loaded."""
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = build(norm, replace(inputs, gamma=torch.zeros_like(inputs.gamma)))
    other.load_state_dict(torch.load(file, map_location="cpu"))
    return other


def by_deepcopy(norm, module, inputs):
    """Copy the module."""
    return copy.deepcopy(module)


def by_pickle(norm, module, inputs):
    """Pickle the module."""
    return pickle.loads(pickle.dumps(module))


@pytest.mark.fault(22)
@pytest.mark.parametrize("way", [by_state_dict, by_file, by_deepcopy, by_pickle], ids=lambda way: way.__name__)
@by_dtype
def test_a_copy_does_the_same(norm, dtype, way, device):
    """Saved and loaded, or copied, a norm returns the same bits, forward and backward."""
    inputs = usual(norm, dtype, device)
    module = build(norm, inputs)
    first = run(norm, inputs, module)

    assert_same(run(norm, inputs, way(norm, module, inputs)), first)


def test_its_state_is_torch_s(norm, device):
    """Checkpoints go from torch's norm to this one and back: the same names and shapes."""
    inputs = usual(norm, "fp32", device)
    kind = torch.nn.LayerNorm if norm.kind == "layer_norm" else torch.nn.RMSNorm
    torch_s, module = kind(257).to(device), build(norm, inputs)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    torch_s.load_state_dict(state)

    module.load_state_dict(torch_s.state_dict())
    assert all(same_bits(state[name], value) for name, value in module.state_dict().items())


@pytest.mark.fault(22)
@over(*WITHOUT_AUTOGRAD)
@by_dtype
def test_without_autograd(norm, dtype, shape, device):
    """Under no_grad and inference_mode, and in evaluation, y has the same bits, and keeps them after another call."""
    check_without_autograd(norm, DTYPES[dtype], device, shape)


@pytest.mark.fault(35)
@pytest.mark.parametrize("write", WRITES)
@by_dtype
def test_parameters_that_were_written(norm, dtype, write, device):
    """However parameters were written, the next call has the new ones: nothing of the first call is kept."""
    check_rewritten(norm, DTYPES[dtype], device, write)


@pytest.mark.fault(35)
@pytest.mark.parametrize("written", ["x", "y", "weight", "bias"])
@by_dtype
def test_written_between_forward_and_backward(norm, dtype, written, device):
    """After an in-place residual, or a step in between, come the gradients of what the forward saw, or an error."""
    if written == "bias" and norm.kind == "rms_norm":
        pytest.skip("RMSNorm has no bias")
    check_written_in_between(norm, DTYPES[dtype], device, written)


@pytest.mark.fault(22, 35)
@by_dtype
def test_batches_of_other_sizes(norm, dtype, device):
    """One module over 37, 5, 100 and 37 rows is right each time: no workspace is that of an earlier batch."""
    check_other_batches(norm, DTYPES[dtype], device)


@pytest.mark.fault(35)
@over(SHAPE, ALIGNED)
@by_dtype
def test_one_module_in_two_places(norm, dtype, shape, device):
    """Called twice before any backward, as layers that share a norm do, each call keeps its own statistics and y."""
    check_shared(norm, DTYPES[dtype], device, shape)


@pytest.mark.fault(35)
@over(SHAPE, ALIGNED)
@by_dtype
def test_backward_again(norm, dtype, shape, device):
    """Through a retained graph a second time come the same gradients, not twice as large ones."""
    check_backward_again(norm, DTYPES[dtype], device, shape)


@pytest.mark.fault(22)
@over(SHAPE, ALIGNED)
@by_dtype
def test_gradients_that_nobody_asks_for(norm, dtype, shape, device):
    """Whichever of x, weight and bias are frozen, the gradients of the others are the same."""
    check_asked_for(norm, DTYPES[dtype], device, shape)


@pytest.mark.fault(22)
@by_dtype
def test_gradients_add_up(norm, dtype, device):
    """Two backwards leave twice the gradient."""
    inputs = usual(norm, dtype, device)
    module = build(norm, inputs)
    for _ in range(2):
        module(inputs.x.clone().requires_grad_()).backward(inputs.dy)

    assert same_bits(module.get_parameter("weight").grad, 2 * run(norm, inputs).dgamma)


@pytest.mark.fault(29)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_second_derivative(norm, dtype, device):
    """A gradient penalty gets the right values or an error: never zero in silence."""
    check_second_derivative(norm, NORM_DTYPES[dtype], device)


def traced(module, x):
    """Trace the module; torch's own check asks that eager code returns the same, to a tolerance for FP32."""
    with warnings.catch_warnings():
        # It warns where Python looks at a shape, as a check of the hidden size does; the values for 37 rows decide.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return torch.jit.trace(module, x, check_trace=False)


def exported(module, x):
    """Export the module for any number of rows."""
    return torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)).module()


@pytest.mark.fault(31)
@pytest.mark.parametrize("way", [traced, exported], ids=lambda way: way.__name__)
@by_dtype
def test_other_batch_sizes_after_tracing(norm, dtype, way, device):
    """Traced or exported with 4 rows, a norm of 37 is right, forward and backward: no size was written down."""
    module = way(build(norm, usual(norm, dtype, device, rows=4)), usual(norm, dtype, device, rows=4).x)
    inputs = usual(norm, dtype, device)
    outputs = run(replace(norm, statistics=None), inputs, module)

    judge(norm, inputs, outputs, case_of(norm, inputs, way.__name__))
