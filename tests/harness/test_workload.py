"""The transformer, its text, the ladder's stages, and an iteration's own check."""

import dataclasses
import itertools
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fuseproof import workload
from fuseproof.candidates import ADAM, KERNEL_SETS, LAYER_NORM, AdamCandidate, KernelSet
from fuseproof.ladder import STAGES, Stage
from fuseproof.training import Training
from fuseproof.workload import SIZES, Size, Transformer, batches, text_hash

CPU = torch.device("cpu")
TORCH = KERNEL_SETS["torch"]
TINY = SIZES["tiny"]


# --- sizes ---


@pytest.mark.parametrize(
    ("name", "millions"),
    [("gpt2_small", 124.4), ("gpt2_medium", 354.8), ("launch_bound", 11.4), ("tiny", 0.12)],
)
def test_parameters_of_a_size(name, millions):
    """The sizes are GPT-2's, to the parameter: 124.4 M and 354.8 M (Radford et al. 2019, tied embeddings)."""
    with torch.device("meta"):
        model = Transformer(SIZES[name], LAYER_NORM["torch"].build)

    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(millions * 1e6, rel=1e-3 * 5)


def test_tokens_of_an_iteration():
    """A batch of sequences: 8 of 1,024 tokens."""
    assert SIZES["gpt2_small"].tokens == 8192


def test_flops_by_hand():
    """One layer of width 4, vocabulary 10, 2 sequences of 3 tokens: forward and backward, causal half of attention."""
    size = Size("hand", layers=1, width=4, heads=1, context=3, vocab=10, batch=2)
    qkv, out, up, down = 4 * 12, 4 * 4, 4 * 16, 16 * 4
    head = 10 * 4
    per_token = 2 * (qkv + out + up + down + head)
    scores_and_mix = 2 * (3 * 4) + 2 * (3 * 4)  # q against 3 keys of width 4, and the mix of 3 values, without a mask
    forward = 6 * (per_token + scores_and_mix / 2)

    assert size.matmul_flops == 3 * forward


@pytest.mark.parametrize("name", ["tiny", "gpt2_small"])
def test_flops_of_the_matrix_products_as_torch_counts_them(name):
    """What torch's counter sees in forward and backward, less the attention, is 6 per weight and token."""
    size = SIZES[name]
    with torch.device("meta"):
        model = Transformer(size, LAYER_NORM["torch"].build)
        tokens = torch.zeros(size.batch, size.context, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens, tokens).backward()
    counted = {str(operator): flops for operator, flops in counter.get_flop_counts()["Global"].items()}
    products = sum(flops for operator, flops in counted.items() if operator in ("aten.mm", "aten.addmm"))

    assert products == size.matmul_flops - 6 * size.tokens * size.layers * size.context * size.width


# --- model ---


def test_first_loss_is_that_of_a_uniform_guess():
    """An untrained model knows nothing: its loss is ln of the vocabulary."""
    model = Transformer(TINY, LAYER_NORM["torch"].build)
    model.initialize(0)
    inputs, targets = next(batches(TINY, 0, CPU))

    assert model(inputs, targets).item() == pytest.approx(math.log(256), abs=0.2)


def test_no_token_sees_the_future():
    """Changing the last input changes no earlier prediction: the loss of the first tokens stays, bit by bit."""
    model = Transformer(TINY, LAYER_NORM["torch"].build)
    model.initialize(0)
    seen = []
    model.norm.register_forward_hook(lambda *args: seen.append(args[-1].detach()))
    inputs, targets = next(batches(TINY, 0, CPU))
    changed = inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 256
    model(inputs, targets)
    model(changed, targets)

    assert torch.equal(seen[0][:, :-1], seen[1][:, :-1])
    assert not torch.equal(seen[0][:, -1], seen[1][:, -1])


def test_initialization_depends_on_the_seed_only():
    """Matrices are N(0, 0.02), biases 0, gammas 1; one seed gives one model, whatever its LayerNorm is."""
    first, second, other = (Transformer(TINY, LAYER_NORM[name].build) for name in ("torch", "primitive", "torch"))
    torch.rand(7)  # the global generator has no part in it
    first.initialize(1)
    second.initialize(1)
    other.initialize(2)

    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not torch.equal(first.token.weight, other.token.weight)
    assert first.token.weight.std().item() == pytest.approx(0.02, rel=0.03)
    for name, parameter in first.named_parameters():
        if parameter.ndim == 1:
            assert parameter.unique().tolist() == [0.0 if name.endswith("bias") else 1.0]


def test_checkpointing_changes_no_gradient():
    """Computing activations again in the backward pass gives the same bits with less memory."""
    gradients = []
    for checkpointing in (False, True):
        model = Transformer(TINY, LAYER_NORM["torch"].build)
        model.initialize(0)
        model.checkpointing = checkpointing
        model(*next(batches(TINY, 0, CPU))).backward()
        gradients.append([parameter.grad for parameter in model.parameters()])

    assert all(map(torch.equal, *gradients))


# --- text ---


def first_batches(count, seed):
    """Return the first batches of that seed."""
    return list(itertools.islice(batches(TINY, seed, CPU), count))


def test_same_seed_same_batches():
    """Every stage and every night sees the same text in the same order; another seed sees another."""
    first, again, other = first_batches(5, 1), first_batches(5, 1), first_batches(5, 2)

    for (a, b), (c, d) in zip(first, again, strict=True):
        assert torch.equal(a, c)
        assert torch.equal(b, d)
    assert not torch.equal(first[0][0], other[0][0])
    assert not torch.equal(first[0][0], first[1][0])


def test_targets_are_the_next_tokens():
    """Each target is the input one place further on."""
    for inputs, targets in first_batches(20, 3):
        assert inputs.shape == targets.shape == (TINY.batch, TINY.context)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_tokens_are_the_bytes_of_english_text():
    """Tokens are bytes, below 256 and mostly letters and spaces: a vocabulary of any size in use has rows for them."""
    tokens = torch.cat([inputs for inputs, _ in first_batches(50, 4)]).flatten()

    assert tokens.dtype == torch.int64
    assert tokens.min() >= 0
    assert tokens.max() < 256 <= min(size.vocab for size in SIZES.values())
    letters = [byte for byte in range(256) if chr(byte).isascii() and (chr(byte).isalpha() or chr(byte) == " ")]
    assert torch.isin(tokens, torch.tensor(letters)).double().mean() > 0.7
    assert b" the " in bytes(tokens.tolist())  # in the order of reading


def test_batches_do_not_end(monkeypatch):
    """After the last of its seeded places the stream starts again from the first."""
    stream = batches(dataclasses.replace(TINY, context=4, batch=1), 0, CPU)
    seen = [next(stream)[0] for _ in range(1025)]

    assert torch.equal(seen[0], seen[1024])
    assert not torch.equal(seen[0], seen[1])


def test_batches_do_not_touch_the_random_state():
    """Drawing text leaves the global generator alone: dropout or a test's own numbers do not depend on it."""
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    first_batches(2, 0)

    assert torch.equal(torch.rand(2), expected)


def test_text_is_named_by_its_hash(monkeypatch):
    """Another Python release ships another text, and its hash says so."""
    before = text_hash()
    monkeypatch.setattr(workload, "_text", lambda: b"another text")
    text_hash.cache_clear()
    try:
        assert len(before) == 12
        assert text_hash() != before
    finally:
        monkeypatch.undo()
        text_hash.cache_clear()


# --- stages ---


def differences(stage: Stage, base: Stage):
    """Return the names of what differs between two stages, other than their names and bases."""
    one, other = (
        {field.name: getattr(each, field.name) for field in dataclasses.fields(Stage)} for each in (stage, base)
    )
    return {name for name in one if one[name] != other[name]} - {"name", "base"}


@pytest.mark.parametrize("stage", [stage for stage in STAGES.values() if stage.base], ids=lambda stage: stage.name)
def test_a_stage_differs_from_its_base_by_one_thing(stage):
    """So what a stage gains has one cause."""
    assert len(differences(stage, STAGES[stage.base])) == 1


def test_the_ladder_is_a_chain():
    """Stages 2 to 4 build on the one before; what lies beyond builds on stage 3 or 4, nothing on the textbook."""
    assert [(name, stage.base) for name, stage in STAGES.items() if not stage.full] == [
        ("0_textbook", None),
        ("1_adam_fp32", None),
        ("2_fused_adam", "1_adam_fp32"),
        ("3_fused_layer_norm", "2_fused_adam"),
        ("4_amp_bf16", "3_fused_layer_norm"),
    ]
    assert {stage.base for stage in STAGES.values() if stage.full} <= {"3_fused_layer_norm", "4_amp_bf16"}


def test_each_stage_stands_under_the_ceiling_of_its_products():
    """A TF32 product is not measured against what FP32 can do; FP16 and BF16 share their units."""
    ceilings = {name: stage.ceiling for name, stage in STAGES.items()}

    assert {name for name, ceiling in ceilings.items() if ceiling == "fp32"} == {
        "0_textbook",
        "1_adam_fp32",
        "2_fused_adam",
        "3_fused_layer_norm",
    }
    assert {name for name, ceiling in ceilings.items() if ceiling == "tf32"} == {"5_tf32"}


def test_no_token_of_the_text_stands_in_a_long_run():
    """Indentation would make tied embeddings start below the loss of a uniform guess."""
    inputs, targets = next(batches(SIZES["tiny"], 1, torch.device("cpu")))

    assert (inputs == targets).float().mean() < 0.1


def test_first_stages_are_what_users_start_from():
    """Stage 0 is the guides' Adam and primitive LayerNorm, stage 1 torch as users get it: nothing fused by a set."""
    assert (STAGES["0_textbook"].adam, STAGES["0_textbook"].layer_norm) == ("torch_loop", "primitive")
    assert (STAGES["1_adam_fp32"].adam, STAGES["1_adam_fp32"].layer_norm) == ("torch_default", "torch")
    for name in ("0_textbook", "1_adam_fp32"):
        assert STAGES[name].autocast is None


def test_fused_comes_from_the_kernel_set():
    """What a stage calls fused is the set's; what it names itself stays, whatever the set is."""
    apex = KERNEL_SETS["apex"]

    assert STAGES["2_fused_adam"].adam_candidate(apex) is ADAM["apex"]
    assert STAGES["2_fused_adam"].layer_norm_candidate(apex) is LAYER_NORM["torch"]
    assert STAGES["3_fused_layer_norm"].layer_norm_candidate(apex) is LAYER_NORM["apex"]
    assert STAGES["1_adam_fp32"].adam_candidate(apex) is ADAM["torch_default"]


def test_a_captured_stage_trains_with_the_capturable_form():
    """A CUDA graph cannot capture every Adam: the set names the one it can, and a stage without one says so."""
    (graph,) = [stage for stage in STAGES.values() if stage.graph]

    for kernels in KERNEL_SETS.values():
        assert graph.adam_candidate(kernels).capturable
    without = dataclasses.replace(TORCH, capturable_adam=None)
    assert graph.unavailable(without, torch.device("cuda")) == "torch_fused has no form that a CUDA graph may capture"


# --- one iteration, and its check ---


STAGE = Stage("as_written", None, adam="torch_default", layer_norm="torch")
FUSED_STAGE = Stage("as_written", None)


def ladder_stages():
    """Return the stages that a CPU can train, without the compiled one, which takes a quarter of a minute."""
    return [stage for stage in STAGES.values() if not stage.compiled and stage.unavailable(TORCH, CPU) is None]


@pytest.mark.parametrize("stage", ladder_stages(), ids=lambda stage: stage.name)
def test_every_stage_trains(stage):
    """A right iteration passes its own check, whatever its precision and kernels."""
    Training(stage, TORCH, TINY, CPU).check()


def wrong_adam(step):
    """Return a kernel set whose Adam's `step` is the given function of the optimizer and its real step."""

    def build(params, settings):
        optimizer = ADAM["torch_default"].build(params, settings)
        optimizer.step = lambda real=optimizer.step: step(optimizer, real)
        return optimizer

    return KernelSet("wrong", AdamCandidate("wrong", build), LAYER_NORM["torch"])


def negated(optimizer, real):
    """Walk uphill."""
    for group in optimizer.param_groups:
        for param in group["params"]:
            param.grad.neg_()
    real()


@pytest.mark.parametrize("calls_before", [0, 3], ids=["at-once", "after-the-memory-pass"])
@pytest.mark.parametrize(
    "step",
    [pytest.param(lambda *_: None, id="no-op"), pytest.param(negated, id="uphill")],
)
def test_an_optimizer_that_does_not_learn_is_caught(step, calls_before):
    """The loss must come down: a fast optimizer that does nothing posts no time."""
    subject = Training(FUSED_STAGE, wrong_adam(step), TINY, CPU)
    for _ in range(calls_before):
        subject()
    with pytest.raises(AssertionError, match="the loss of the first batch is"):
        subject.check()


def test_a_model_that_starts_elsewhere_is_caught(monkeypatch):
    """Ten times too large weights: the first loss is not that of a uniform guess."""
    monkeypatch.setattr(workload, "INIT_STD", 0.2)
    with pytest.raises(AssertionError, match=r"first loss \d\.\d+, expected 5\.5580"):
        Training(STAGE, TORCH, TINY, CPU).check()


def test_a_loss_that_is_nan_is_caught():
    """NaN is not below anything."""

    def poison(optimizer, real):
        real()
        optimizer.param_groups[0]["params"][0].data[:] = float("nan")

    with pytest.raises(AssertionError, match="the loss of the first batch is nan"):
        Training(FUSED_STAGE, wrong_adam(poison), TINY, CPU).check()


def test_micro_batches_give_the_same_first_loss():
    """Gradients of four pieces accumulate to the batch's: loss and first step are those of the whole batch."""
    whole = Training(STAGE, TORCH, TINY, CPU)
    pieces = Training(dataclasses.replace(STAGE, micro_batches=4), TORCH, TINY, CPU)
    first = [whole().item(), pieces().item()]

    assert first[0] == pytest.approx(first[1], rel=1e-6)
    gradients = [
        torch.cat([parameter.grad.flatten() for parameter in each.model.parameters()]) for each in (whole, pieces)
    ]
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()


def test_gradients_do_not_accumulate_over_iterations():
    """Each iteration starts from no gradient: with a learning rate of zero, equal batches give equal gradients."""
    subject = Training(STAGE, TORCH, TINY, CPU)
    subject.optimizer.param_groups[0]["lr"] = 0.0
    batch = next(subject.batches)
    subject.batches = itertools.repeat(batch)
    gradients = []
    for _ in range(2):
        subject()
        gradients.append(subject.model.token.weight.grad.clone())

    assert torch.equal(*gradients)
