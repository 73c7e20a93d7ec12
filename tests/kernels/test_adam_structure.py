"""Every Adam over all kinds of lists: counts and sizes at launch boundaries, empty tensors, groups, layouts, dtypes."""

import re
from dataclasses import replace

import pytest
import torch

from fuseproof.parity import DTYPES
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import LAYOUTS, STRUCTURES, check_layout, check_regime
from fuseproof.parity.adam.loop import check_added_group
from fuseproof.parity.adam.regimes import REGIMES, SEED, SHAPES, make_params, usual_settings
from fuseproof.parity.bits import differing

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

USUAL = REGIMES["mixed_signs"]
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def run(checked, steps=3, seed=SEED):
    """Take steps with the usual gradients."""
    for step in range(1, steps + 1):
        USUAL.set_gradients(checked.params, step, seed)
        checked.step()
    checked.finish()


@pytest.mark.parametrize(
    "structure",
    [pytest.param(each, marks=pytest.mark.fault(1 if each.startswith("empty") else 9)) for each in STRUCTURES],
)
@by_dtype
def test_every_element_of_every_tensor_moves(adam, dtype, structure, device):
    """On both sides of each boundary, with tensors without elements or dimensions anywhere, all updates are right."""
    dtype = DTYPES[dtype]
    check_regime(adam, USUAL, usual_settings(adam, dtype), dtype, device, steps=2, shapes=STRUCTURES[structure])


@pytest.mark.fault(9)
@pytest.mark.parametrize("tensors", [2000, 21_000])
def test_thousands_of_tensors(adam, tensors, device, pytestconfig):
    """Two thousand tensors are 56 launches; with --full and a GPU there are twenty-one thousand."""
    if tensors > 2000 and (device.type == "cpu" or not pytestconfig.option.fuseproof_full):
        pytest.skip("21,000 tensors take a minute: only with --full, on a GPU")
    dtype = torch.float32
    check_regime(adam, USUAL, usual_settings(adam, dtype), dtype, device, steps=1, shapes=((3,),) * tensors)


@pytest.mark.fault(9)
@pytest.mark.parametrize("beyond", [-1, 0, 1], ids=["one_less", "exactly", "one_more"])
def test_about_320_chunks(adam, beyond, device):
    """A launch has at most 320 blocks of 65,536 elements: the 321st is in another, and so is the next tensor."""
    if device.type == "cpu":
        pytest.skip("no CPU kernel has blocks: 21 M elements would say nothing more")
    shapes = ((320 * 65_536 + beyond,), (5,))
    check_regime(adam, USUAL, usual_settings(adam, torch.float32), torch.float32, device, steps=1, shapes=shapes)


@pytest.mark.fault(16)
@by_dtype
def test_groups_of_one_equal_one_group(adam, dtype, device):
    """465 groups of one tensor end in the same bits as one group of 465, whose steps are checked."""
    dtype, shapes = DTYPES[dtype], ((2,),) * 464 + ((257,),)
    settings = usual_settings(adam, dtype)
    together, split = (make_params(USUAL, dtype, device, SEED, shapes) for _ in range(2))
    run(CheckedAdam(adam, [Group(together, settings)], f"{dtype}, one group of 465, seed {SEED}"), steps=2)
    optimizer = adam.build([{"params": [param]} for param in split], settings)
    for step in (1, 2):
        USUAL.set_gradients(split, step, SEED)
        optimizer.step()

    assert not differing(together, split)


@pytest.mark.fault(16)
@by_dtype
def test_a_group_without_parameters(adam, dtype, device):
    """A group that is empty, as filters of names leave them, stops neither the one before nor the one after it."""
    dtype = DTYPES[dtype]
    first, last = (Group(make_params(USUAL, dtype, device, SEED + i), usual_settings(adam, dtype)) for i in range(2))
    run(CheckedAdam(adam, [first, Group([], first.settings), last], f"{dtype}, an empty group, seed {SEED}"))


@pytest.mark.fault(16)
@by_dtype
def test_each_group_has_its_own_settings(adam, dtype, device):
    """lr, betas, eps and decay of one group do not leak into the next."""
    dtype = DTYPES[dtype]
    first = usual_settings(adam, dtype)
    others = (
        {"lr": first.lr * 3},
        {"betas": (0.5, 0.9)},
        {"eps": 1e-2},
        {"weight_decay": 0.5},
        {"lr": 0.0},
        {"betas": (0.0, 0.99), "eps": 1.0, "weight_decay": 0.0},
    )
    settings = [first, *(replace(first, **other) for other in others)]
    groups = [Group(make_params(USUAL, dtype, device, SEED + i), each) for i, each in enumerate(settings)]
    run(CheckedAdam(adam, groups, f"{dtype}, {len(groups)} groups of different settings, seed {SEED}"))


@pytest.mark.fault(16)
@by_dtype
def test_a_group_added_later_starts_at_step_one(adam, dtype, device):
    """Parameters that join after three steps have their own first step, and their own lr, betas, eps and decay."""
    check_added_group(adam, usual_settings(adam, DTYPES[dtype]), DTYPES[dtype], device)


@pytest.mark.fault(16, dtypes=tuple(DTYPES))
def test_mixed_dtypes_in_one_group(adam, device):
    """FP32, BF16 and FP16 parameters in turn: each is updated in its own precision."""
    dtypes = list(DTYPES.values())
    params = [
        make_params(USUAL, dtypes[i % 3], device, SEED + i, (shape,))[0] for i, shape in enumerate((*SHAPES, *SHAPES))
    ]
    run(CheckedAdam(adam, [Group(params, usual_settings(adam, torch.float16))], f"mixed dtypes, seed {SEED}"))


@pytest.mark.fault(6)
@pytest.mark.parametrize("layout", LAYOUTS)
@by_dtype
def test_layouts_of_parameter_and_gradient(adam, dtype, layout, device):
    """However parameter and gradient lie in memory, the right elements are paired; or the step refuses, by a word."""
    dtype = DTYPES[dtype]
    try:
        check_layout(adam, layout, usual_settings(adam, dtype), dtype, device)
    except RuntimeError as error:
        assert re.search("layout|contiguous", str(error))  # noqa: PT017  # either is right: an error, or the result


@pytest.mark.fault(6)
@by_dtype
def test_strides_of_dimensions_of_one_do_not_matter(adam, dtype, device):
    """What a batched product leaves as a gradient: (100, 1, 1) for a shape of (2, 1, 100), which is contiguous."""
    dtype = DTYPES[dtype]
    params = make_params(USUAL, dtype, device, SEED, ((2, 1, 100),))
    group = Group(params, usual_settings(adam, dtype))
    checked = CheckedAdam(adam, [group], f"{dtype}, strides (100, 1, 1), seed {SEED}")
    for step in range(1, 4):
        USUAL.set_gradients(params, step, SEED)
        params[0].grad = torch.as_strided(params[0].grad, (2, 1, 100), (100, 1, 1))
        checked.step()
    checked.finish()


@pytest.mark.fault(6)
@by_dtype
def test_views_of_one_buffer(adam, dtype, device):
    """Parameters that are neighbours in one flat buffer move each by its own gradient; the gaps stay as they are."""
    dtype = DTYPES[dtype]
    values = make_params(USUAL, dtype, device, SEED)
    buffer = torch.full((sum(each.numel() + 1 for each in values) + 1,), 7.0, dtype=dtype, device=device)
    gaps, params, position = [buffer[:1]], [], 1
    for each in values:
        view = buffer[position : position + each.numel()].view(each.shape).copy_(each.detach())
        params.append(view.requires_grad_())
        position += each.numel() + 1
        gaps.append(buffer[position - 1 : position])
    bystanders = {f"gap {i}": gap for i, gap in enumerate(gaps)}
    run(CheckedAdam(adam, [Group(params, usual_settings(adam, dtype))], f"{dtype}, views, seed {SEED}", bystanders))

    assert all(float(gap) == 7.0 for gap in gaps)
