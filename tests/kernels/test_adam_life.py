"""Every Adam through its life: saved, copied and resumed, gradients cleared, parameters frozen, a closure."""

import copy
import inspect
import io
import pickle

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.adam import settings_in_mode
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import SEED
from fuseproof.parity.adam.regimes import REGIMES, make_params
from fuseproof.parity.bits import contents, same_bits

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

USUAL, LATE = REGIMES["mixed_signs"], REGIMES["late_gradient"]
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def usual(adam, dtype):
    """Return settings with weight decay, decoupled where the candidate can."""
    return settings_in_mode(max(adam.decay_modes, key=len), lr=USUAL.lr_for(dtype), weight_decay=0.01)


def walk(optimizer, params, steps):
    """Take these steps; a parameter has its first gradient at step 4."""
    for step in steps:
        LATE.set_gradients(params, step, SEED)
        optimizer.step()


def fresh(params):
    """Return parameters of the same bits, as a new process would load them."""
    return [param.detach().clone().requires_grad_() for param in params]


def by_state_dict(adam, optimizer, params, settings):
    """Load the state into an optimizer over new parameters."""
    new = fresh(params)
    other = adam.build(new, settings)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    return other, new


def by_file(adam, optimizer, params, settings):
    """The same through bytes, onto the CPU first, as checkpoints are loaded."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    new = fresh(params)
    other = adam.build(new, settings)
    other.load_state_dict(torch.load(file, map_location="cpu"))
    return other, new


def by_deepcopy(adam, optimizer, params, settings):
    """Copy optimizer and parameters together."""
    return copy.deepcopy((optimizer, params))


def by_pickle(adam, optimizer, params, settings):
    """Pickle optimizer and parameters together."""
    return pickle.loads(pickle.dumps((optimizer, params)))


@pytest.mark.parametrize("way", [by_state_dict, by_file, by_deepcopy, by_pickle], ids=lambda way: way.__name__)
@pytest.mark.parametrize("after", [0, 2, 5], ids=lambda after: f"after_{after}_steps")
@by_dtype
def test_resumed_equals_uninterrupted(adam, dtype, after, way, device):
    """Saved before the first step, before and after a parameter's late first gradient: the end has the same bits."""
    dtype = DTYPES[dtype]
    params, settings = make_params(LATE, dtype, device, SEED), usual(adam, dtype)
    optimizer = adam.build(params, settings)
    walk(optimizer, params, range(1, after + 1))
    other, others = way(adam, optimizer, params, settings)
    kept = [each.detach().clone() for each in params]
    walk(other, others, range(after + 1, 9))

    assert all(map(same_bits, params, kept)), "the copy moved the original"
    walk(optimizer, params, range(after + 1, 9))
    assert all(map(same_bits, params, others))


@by_dtype
def test_a_state_dict_is_no_step(adam, dtype, device):
    """Asking for the state, and loading it into the same optimizer, changes no bit and no later step."""
    dtype = DTYPES[dtype]
    params, settings = make_params(USUAL, dtype, device, SEED), usual(adam, dtype)
    twins = fresh(params)
    optimizer, twin = adam.build(params, settings), adam.build(twins, settings)
    for step in range(1, 5):
        for each, tensors in ((optimizer, params), (twin, twins)):
            USUAL.set_gradients(tensors, step, SEED)
            each.step()
        optimizer.load_state_dict(optimizer.state_dict())

    assert all(map(same_bits, params, twins))


@pytest.mark.parametrize("to_none", [True, False], ids=["to_none", "to_zero"])
@by_dtype
def test_cleared_gradients(adam, dtype, to_none, device):
    """After zero_grad a step without new gradients leaves all alone; over zeros it goes on by its momentum."""
    dtype = DTYPES[dtype]
    params = make_params(USUAL, dtype, device, SEED)
    checked = CheckedAdam(adam, [Group(params, usual(adam, dtype))], f"{dtype}, zero_grad, seed {SEED}")
    for step in range(1, 4):
        USUAL.set_gradients(params, step, SEED)
        checked.step()
        checked.optimizer.zero_grad(set_to_none=to_none)
        kept = contents({str(i): each for i, each in enumerate(params)})
        checked.step()

        assert all(to_none == same_bits(each, kept[str(i)]) for i, each in enumerate(params))
    checked.finish()


@by_dtype
def test_settings_changed_by_hand(adam, dtype, device):
    """lr and betas that a training loop writes into the groups are used in the next step."""
    dtype = DTYPES[dtype]
    params = make_params(USUAL, dtype, device, SEED)
    checked = CheckedAdam(adam, [Group(params, usual(adam, dtype))], f"{dtype}, settings by hand, seed {SEED}")
    for step, (lr, betas) in enumerate([(0.25, (0.9, 0.999)), (0.125, (0.5, 0.9)), (0.5, (0.9, 0.99))], 1):
        (group,) = checked.optimizer.param_groups
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
        group["betas"] = betas
        checked.set_lr(lr)
        checked.set_betas(betas)
        USUAL.set_gradients(params, step, SEED)
        checked.step()
    checked.finish()


@by_dtype
def test_a_closure_is_called_once_with_gradients_on(adam, dtype, device):
    """``step(closure)`` evaluates it before the update, with autograd on, and returns its loss."""
    params = make_params(USUAL, DTYPES[dtype], device, SEED, ((5, 3),))
    optimizer, calls = adam.build(params, usual(adam, DTYPES[dtype])), []
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
