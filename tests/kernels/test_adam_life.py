"""Every Adam through its life: saved, copied and resumed, gradients cleared, parameters frozen, a closure."""

import inspect

import pytest
import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.parity import DTYPES
from fuseproof.parity.adam.apart import run_apart
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.life import (
    LOADED,
    WAYS,
    check_going_back,
    check_resumed,
    check_resumed_by_another,
    check_state_dict,
)
from fuseproof.parity.adam.loading import LOADERS, check_loaded
from fuseproof.parity.adam.long import check_late_steps, check_moved, check_settings_by_hand
from fuseproof.parity.adam.loop import (
    check_cleared_state,
    check_clipped_params,
    check_exchanged_param,
    check_one_buffer,
)
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, usual_settings
from fuseproof.parity.bits import copies, differing

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

USUAL = REGIMES["mixed_signs"]
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def call(check, *arguments):
    """Ask here."""
    check(*arguments)


def apart_if_it_trusts(adam):
    """Return how to ask an implementation that has loaded a state: apart, if its kernels trust what it has loaded."""
    return run_apart if adam.own_kernels else call


def skip_with_masters(adam):
    """Skip where masters are what moves: they are written over what a loop has written into parameters."""
    if adam.master_weights:
        pytest.skip(f"{adam.name} keeps masters, which do not see what is written into parameters")


@pytest.mark.fault(13)
# torch warns once for a capturable optimizer that is never captured, and again for its copy.
@pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True:UserWarning")
@pytest.mark.parametrize("way", WAYS)
@by_dtype
def test_resumed_equals_uninterrupted(adam, dtype, way, device):
    """Saved before the first step, before and after a parameter's late first gradient: the end has the same bits."""
    loads = way in {"by_state_dict", "by_file"}
    (apart_if_it_trusts(adam) if loads else call)(check_resumed, adam, device, dtype, way)


@pytest.mark.fault(13)
@pytest.mark.parametrize("loaded", LOADED)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_resumed_by_another(adam: AdamCandidate, other_adam: AdamCandidate, dtype, loaded, device):
    """The state of any other implementation is gone on with, or refused by an error: never a wrong step in silence."""
    if other_adam.name == adam.name:
        pytest.skip("test_resumed_equals_uninterrupted loads an implementation's own state")
    if other_adam.compiled:
        pytest.skip("what torch.compile makes of Adam keeps the state that torch_foreach keeps")
    if DTYPES[dtype] not in other_adam.dtypes:
        pytest.skip(f"{other_adam.name} is not meant for {dtype}")
    if reason := other_adam.unavailable(device):
        pytest.skip(reason)
    apart_if_it_trusts(adam)(check_resumed_by_another, adam, device, dtype, other_adam.reference, loaded)


@pytest.mark.fault(13)
@pytest.mark.parametrize("loader", LOADERS)
@by_dtype
def test_loaded_by_one_that_was_built_otherwise(adam, dtype, loader, device):
    """Each parameter has its own moments, the saved settings count and none is lost, wherever parameters lie."""
    apart_if_it_trusts(adam)(check_loaded, adam, device, dtype, loader)


@pytest.mark.fault(13)
@by_dtype
def test_a_state_dict_is_no_step(adam, dtype, device):
    """Asking for the state, and loading it into the same optimizer, changes no bit and no later step."""
    apart_if_it_trusts(adam)(check_state_dict, adam, device, dtype)


@pytest.mark.fault(13, 34)
@by_dtype
def test_going_back_to_an_earlier_state(adam, dtype, device):
    """After a loss that ran away a loop loads the last good state into the running optimizer: the same steps again."""
    apart_if_it_trusts(adam)(check_going_back, adam, device, dtype)


@pytest.mark.fault(2)
@pytest.mark.parametrize("to_none", [True, False], ids=["to_none", "to_zero"])
@by_dtype
def test_cleared_gradients(adam, dtype, to_none, device):
    """A step without gradients leaves all alone; over zeros it goes on by its momentum."""
    dtype = DTYPES[dtype]
    params = make_params(USUAL, dtype, device, SEED)
    checked = CheckedAdam(adam, [Group(params, usual_settings(adam, dtype))], f"{dtype}, zero_grad, seed {SEED}")
    for step in range(1, 4):
        USUAL.set_gradients(params, step, SEED)
        checked.step()
        for param in params:
            param.grad = None if to_none else torch.zeros_like(param.grad)
        kept = copies(params)
        checked.step()

        assert len(differing(params, kept)) == (0 if to_none else len(params))
    checked.finish()


@pytest.mark.fault(19)
@pytest.mark.parametrize("to_none", [True, False], ids=["to_none", "to_zero"])
@by_dtype
def test_zero_grad_takes_set_to_none(adam, dtype, to_none, device):
    """As torch's optimizers do, whose loops say ``zero_grad(set_to_none=...)``."""
    params = make_params(USUAL, DTYPES[dtype], device, SEED, ((5, 3),))
    optimizer = adam.build(params, usual_settings(adam, DTYPES[dtype]))
    USUAL.set_gradients(params, 1, SEED)
    optimizer.zero_grad(set_to_none=to_none)

    assert params[0].grad is None if to_none else not params[0].grad.count_nonzero()


@pytest.mark.fault(15)
@by_dtype
def test_settings_changed_by_hand(adam, dtype, device):
    """lr, betas, eps and decay that a training loop writes into the groups are used in the next step."""
    check_settings_by_hand(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(34)
@by_dtype
def test_parameters_that_have_moved_in_memory(adam, dtype, device):
    """Whoever gives a parameter other memory (``param.data = ...``, as sharding does) finds its update there."""
    check_moved(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(34)
@by_dtype
def test_gradients_copied_into_one_buffer(adam, dtype, device):
    """Where ``param.grad`` is the same tensor in every step, the step goes by what is in it now."""
    check_one_buffer(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(34)
@by_dtype
def test_parameters_that_are_clipped_between_steps(adam, dtype, device):
    """What a loop writes into a parameter is where the next step starts."""
    skip_with_masters(adam)
    check_clipped_params(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(34)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_parameter_exchanged_in_its_group(adam, dtype, device):
    """Whoever puts a grown parameter and its state in another's place finds it moved by the next step."""
    skip_with_masters(adam)
    run_apart(check_exchanged_param, adam, device, dtype)


@pytest.mark.fault(34)
@by_dtype
def test_a_state_that_is_cleared(adam, dtype, device):
    """After ``optimizer.state.clear()`` the next step is a first one."""
    check_cleared_state(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(11)
@by_dtype
def test_after_two_thousand_steps(adam, dtype, device):
    """A counter in half precision or a byte stops or wraps at 256 or 2,048: the correction of step 2,201 shows it."""
    check_late_steps(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@by_dtype
def test_a_closure_is_called_once_with_gradients_on(adam, dtype, device):
    """``step(closure)`` evaluates it before the update, with autograd on, and returns its loss."""
    params = make_params(USUAL, DTYPES[dtype], device, SEED, ((5, 3),))
    optimizer, calls = adam.build(params, usual_settings(adam, DTYPES[dtype])), []
    if "closure" not in inspect.signature(optimizer.step).parameters:
        pytest.skip(f"{adam.name} takes no closure")

    def closure():
        calls.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss

    before = params[0].detach().clone()
    loss = optimizer.step(closure)

    assert calls == [True]
    assert loss.item() == before.square().sum().item()
    assert not torch.equal(before, params[0])


@pytest.mark.fault(18)
@by_dtype
def test_autograd_is_told_that_parameters_were_written(adam, dtype, device):
    """Backward through values that a step has overwritten is an error, not a gradient of other values."""
    params = make_params(USUAL, DTYPES[dtype], device, SEED, ((5, 3),))
    optimizer = adam.build(params, usual_settings(adam, DTYPES[dtype]))
    loss, right = params[0].square().sum(), 2 * params[0].detach()
    USUAL.set_gradients(params, 1, SEED)
    optimizer.step()
    params[0].grad = None
    try:
        loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # noqa: PT017  # either is right
    else:
        assert torch.equal(params[0].grad, right)


@pytest.mark.fault(19)
@by_dtype
def test_sparse_gradients(adam, dtype, device):
    """A sparse gradient is refused by that word, or does what the dense one does."""
    ends = []
    for sparse in (False, True):
        params = make_params(USUAL, DTYPES[dtype], device, SEED, ((5, 3),))
        optimizer = adam.build(params, usual_settings(adam, DTYPES[dtype]))
        USUAL.set_gradients(params, 1, SEED)
        params[0].grad = params[0].grad.to_sparse() if sparse else params[0].grad
        try:
            optimizer.step()
        except RuntimeError as error:
            assert sparse and "sparse" in str(error)  # noqa: PT017, PT018  # either is right
            return
        ends.append(params[0].detach())

    assert torch.allclose(*ends)
