"""A subject's own check: wrong kernels do not pass it, right ones do, however they order their arithmetic."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fuseproof.candidates import ADAM, LAYER_NORM, RMS_NORM, AdamCandidate, AdamSettings, NormCandidate
from fuseproof.parity import ParityError
from fuseproof.subjects import AdamStep, NormForward, NormForwardBackward, adam_settings, parameter_shapes
from fuseproof.subjects import adam as adam_subject

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


# --- Adam: written out, so that one thing can be wrong ---


@dataclasses.dataclass(frozen=True)
class AdamBug:
    """One thing that is wrong; the defaults are right."""

    name: str
    lr: float = 1.0  # times the learning rate asked for
    beta2: float = 0.0  # added to the one asked for
    step: int = 0  # added to the step count
    correction: bool = True
    decay: str = "as asked"  # "l2", "none", "after"
    denominator: Callable[[torch.Tensor, float, float], torch.Tensor] = lambda v, c2, eps: (v / c2).sqrt() + eps
    momentum: str = "new"  # "old", "none", "nesterov"
    amsgrad: bool = False
    skips: frozenset[int] = frozenset()  # positions of tensors, from the end
    works: bool = True
    forgets_moments: bool = False
    stores: tuple[float, float] = (1.0, 1.0)  # times exp_avg and exp_avg_sq, once the update is done


class WrittenAdam(torch.optim.Optimizer):
    """AdamW as in its paper, operation by operation, with one thing wrong."""

    names = ("exp_avg", "exp_avg_sq")

    def __init__(self, params, settings: AdamSettings, bug: AdamBug) -> None:
        super().__init__(list(params), {})
        self.settings, self.bug, self.steps = settings, bug, 0

    @torch.no_grad()
    def step(self):
        """Take one step."""
        self.steps += 1
        params = self.param_groups[0]["params"]
        for position, param in enumerate(params):
            state = self.state[param]
            if not state:
                state.update({name: torch.zeros_like(param) for name in (*self.names, "greatest")})
            if self.bug.works and position - len(params) not in self.bug.skips:
                self._update(param, param.grad, state, self.steps + self.bug.step)

    def _update(self, param, grad, state, step):
        bug, settings = self.bug, self.settings
        beta1, beta2 = settings.betas[0], settings.betas[1] + bug.beta2
        lr = settings.lr * bug.lr
        if bug.decay == "l2" or (bug.decay != "none" and not settings.decoupled):
            grad = grad + settings.weight_decay * param
        m, v = (state[name] for name in self.names)
        old = m.clone()
        m.mul_(beta1).add_(grad, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        c1, c2 = (1 - beta1**step, 1 - beta2**step) if bug.correction else (1.0, 1.0)
        if bug.amsgrad:
            v = state["greatest"].copy_(torch.maximum(state["greatest"], v))
        numerator = {
            "new": m / c1,
            "old": old / c1,
            "none": grad,
            "nesterov": (beta1 * m + (1 - beta1) * grad) / c1,
        }[bug.momentum]
        if bug.decay == "as asked" and settings.decoupled:
            param.mul_(1 - lr * settings.weight_decay)
        param.sub_(lr * numerator / bug.denominator(v, c2, settings.eps))
        if bug.decay == "after" and settings.decoupled:
            param.mul_(1 - lr * settings.weight_decay)
        if bug.forgets_moments:
            m.copy_(old)
        for name, factor in zip(self.names, bug.stores, strict=True):
            state[name].mul_(factor)


ADAM_BUGS = (
    AdamBug("no_op", works=False),
    AdamBug("lr_off_by_a_thousandth", lr=1.001),
    AdamBug("lr_off_by_a_hundred_thousandth", lr=1.00001),
    AdamBug("beta2_wrong_in_the_4th_digit", beta2=1e-4),
    AdamBug("step_count_one_ahead", step=1),
    AdamBug("no_bias_correction", correction=False),
    AdamBug("l2_instead_of_decoupled_decay", decay="l2"),
    AdamBug("no_decay", decay="none"),
    AdamBug("decay_of_the_new_parameter", decay="after"),
    AdamBug("eps_inside_the_root", denominator=lambda v, c2, eps: (v / c2 + eps).sqrt()),
    AdamBug("eps_before_the_correction", denominator=lambda v, c2, eps: (v.sqrt() + eps) / math.sqrt(c2)),
    AdamBug("no_eps", denominator=lambda v, c2, _: (v / c2).sqrt()),
    AdamBug("exp_avg_sq_not_corrected", denominator=lambda v, _, eps: v.sqrt() + eps),
    AdamBug("stale_exp_avg", momentum="old"),
    AdamBug("gradient_instead_of_exp_avg", momentum="none"),
    AdamBug("nesterov_momentum", momentum="nesterov"),
    AdamBug("amsgrad", amsgrad=True),
    AdamBug("last_tensor_skipped", skips=frozenset({-1})),
    AdamBug("a_small_tensor_skipped", skips=frozenset({-2})),
    AdamBug("exp_avg_not_stored", forgets_moments=True),
    AdamBug("exp_avg_stored_with_an_error", stores=(1.00001, 1.0)),
    AdamBug("exp_avg_sq_stored_with_an_error", stores=(1.0, 1.00001)),
)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """A small parameter set, "few": a matrix, a vector of 7 and one of 128."""
    monkeypatch.setattr(adam_subject, "PARAMETER_SETS", {"few": ((64, 33), (7,), (128,))})


BOTH = frozenset({"l2", "decoupled"})
L2 = frozenset({"l2"})


def written(bug: AdamBug, names=("exp_avg", "exp_avg_sq"), decay_modes=BOTH) -> AdamCandidate:
    """Return the candidate with that bug; its moments are stored under the given names."""
    kind = type("Named", (WrittenAdam,), {"names": names})
    return AdamCandidate(bug.name, lambda params, settings: kind(params, settings, bug), decay_modes=decay_modes)


def adam_step(candidate: AdamCandidate, steps: int = 0) -> AdamStep:
    """Return a subject that has taken so many steps."""
    subject = AdamStep(candidate, "few", CPU)
    for _ in range(steps):
        subject()
    return subject


@pytest.mark.parametrize("steps", [0, 3, 20], ids=lambda steps: f"after-{steps}-steps")
@pytest.mark.parametrize("bug", ADAM_BUGS, ids=lambda bug: bug.name)
def test_wrong_adam_is_caught(bug, steps):
    """Whether checked at once, after the passes that find the peak, or later: no time is posted for a wrong step."""
    with pytest.raises(ParityError, match=f"{bug.name}, step {max(steps, 1) + 1}"):
        adam_step(written(bug), steps).check()


@pytest.mark.parametrize(
    "bug", [bug for bug in ADAM_BUGS if bug.decay in ("as asked", "none")], ids=lambda bug: bug.name
)
def test_wrong_adam_is_caught_with_l2_decay(bug):
    """The wider scales of L2 decay, which may cancel the gradient, hide none of them."""
    with pytest.raises(ParityError, match=bug.name):
        adam_step(written(bug, decay_modes=L2), 3).check()


@pytest.mark.parametrize("bug", [bug for bug in ADAM_BUGS if bug.stores == (1.0, 1.0)], ids=lambda bug: bug.name)
def test_wrong_adam_is_caught_by_its_way_alone(bug):
    """An optimizer with state of its own is compared over its first three steps, with moments of the oracle's own.

    Errors of 1e-5 in what it stores are then below the roundings of its parameters.
    """
    with pytest.raises(ParityError, match=f"update: .*{bug.name}, step 3"):
        adam_step(written(bug, names=("mu", "nu")), 3).check()


@pytest.mark.parametrize("names", [("exp_avg", "exp_avg_sq"), ("mu", "nu")], ids=["known-state", "own-state"])
def test_stateless_no_op_is_caught(names):
    """An optimizer that makes no state at all is wrong in its update, not an error in the check."""

    class Nothing(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(list(params), {})

        def step(self):
            pass

    with pytest.raises(ParityError, match="update"):
        adam_step(AdamCandidate("nothing", lambda params, _: Nothing(params))).check()


class ReorderedAdam(torch.optim.Optimizer):
    """AdamW with other algebra: lerp for exp_avg, corrections folded into step size and eps, addcdiv, decay last."""

    def __init__(self, params, settings: AdamSettings) -> None:
        super().__init__(list(params), {})
        self.settings, self.steps = settings, 0

    @torch.no_grad()
    def step(self):
        """Take one step."""
        self.steps += 1
        settings = self.settings
        beta1, beta2 = settings.betas
        c1, root2 = 1 - beta1**self.steps, math.sqrt(1 - beta2**self.steps)
        for param in reversed(self.param_groups[0]["params"]):
            state = self.state[param]
            if not state:
                state.update(exp_avg=torch.zeros_like(param), exp_avg_sq=torch.zeros_like(param))
            m, v = state["exp_avg"], state["exp_avg_sq"]
            m.lerp_(param.grad, 1 - beta1)
            v.add_((param.grad * param.grad - v) * (1 - beta2))
            decayed = param * (settings.lr * settings.weight_decay)
            param.addcdiv_(m, v.sqrt() + settings.eps * root2, value=-settings.lr * root2 / c1).sub_(decayed)


@pytest.mark.parametrize("steps", [0, 3, 20], ids=lambda steps: f"after-{steps}-steps")
@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(written(AdamBug("written_out")), id="written-out"),
        pytest.param(written(AdamBug("own_state"), names=("mu", "nu")), id="own-state"),
        pytest.param(AdamCandidate("reordered", ReorderedAdam), id="reordered"),
    ],
)
def test_right_adam_passes(candidate, steps):
    """The budget holds for any order of the arithmetic: it is not a comparison with one implementation."""
    adam_step(candidate, steps).check()


def on_cpu(candidates):
    """Return the candidates that run here, without the compiled ones, which take a quarter of a minute."""
    return [each for name, each in candidates.items() if "compiled" not in name and each.unavailable(CPU) is None]


@pytest.mark.parametrize("steps", [0, 3, 20], ids=lambda steps: f"after-{steps}-steps")
@pytest.mark.parametrize("candidate", on_cpu(ADAM), ids=lambda each: each.name)
def test_torch_s_adam_passes(candidate, steps):
    """Each of torch's own implementations is right on a CPU."""
    adam_step(candidate, steps).check()


@pytest.mark.parametrize("steps", [0, 3], ids=lambda steps: f"after-{steps}-steps")
@pytest.mark.parametrize("candidate", [each for each in on_cpu(ADAM) if "l2" in each.decay_modes], ids=lambda c: c.name)
def test_adam_that_can_only_do_l2_is_checked_with_l2(candidate, steps):
    """Settings and oracle follow the record; of 120,000 gradients some are cancelled by decay to the last bits."""
    l2 = dataclasses.replace(candidate, decay_modes=L2)
    subject = AdamStep(l2, "tiny", CPU)
    for _ in range(steps):
        subject()

    assert not adam_settings(l2).decoupled
    subject.check()


@pytest.mark.parametrize("names", [("exp_avg", "exp_avg_sq"), ("mu", "nu")], ids=["known-state", "own-state"])
def test_written_l2_passes(names):
    """A right Adam with L2 decay passes by its moments and by its way alone."""
    AdamStep(written(AdamBug("l2"), names, L2), "tiny", CPU).check()


def test_a_check_gives_the_gradients_back():
    """The gradients of a check differ from those of the rounds; afterwards they are the rounds' again, bit by bit."""
    subject = adam_step(ADAM["torch_default"], 3)
    before = [param.grad.clone() for param in subject.params]
    pointers = [param.grad.data_ptr() for param in subject.params]
    subject.check()

    assert all(torch.equal(param.grad, each) for param, each in zip(subject.params, before, strict=True))
    assert pointers == [param.grad.data_ptr() for param in subject.params]


def test_same_seed_same_parameters():
    """Two builds have the same bits: a benchmark's input does not move between nights."""
    first, second = adam_step(ADAM["torch_loop"]), adam_step(ADAM["torch_fused"])

    assert all(map(torch.equal, first.params, second.params))
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(first.params, second.params, strict=True))
    assert len({param.flatten()[0].item() for param in first.params}) == len(first.params)


@pytest.mark.parametrize("steps", [1, 3])
def test_groups_of_a_check_are_the_whole(monkeypatch, steps):
    """A check that takes the parameters in pieces still sees the last of them."""
    monkeypatch.setattr(adam_subject, "_CHUNK_ELEMENTS", 200)
    adam_step(ADAM["torch_default"], steps).check()

    with pytest.raises(ParityError, match=r"update: 128 of (128|135) elements"):
        adam_step(written(AdamBug("last_skipped", skips=frozenset({-1}))), steps).check()


def test_parameter_shapes_of_a_model_are_its_parameters_shapes():
    """A size's name stands for the shapes of its transformer, of which no memory is taken."""
    assert parameter_shapes("tiny")[0] == (256, 64)
    assert sum(shape.numel() for shape in parameter_shapes("gpt2_small")) == 124_439_808


# --- LayerNorm: what is wrong with one is asked in test_seeded_norms.py ---


class NoSlope(torch.autograd.Function):
    """The derivative of LayerNorm without its term in x_hat."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        """Normalize."""
        centred = x - x.mean(-1, keepdim=True)
        rstd = (centred.square().mean(-1, keepdim=True) + eps).rsqrt()
        ctx.save_for_backward(centred * rstd, rstd, weight)
        return centred * rstd * weight + bias

    @staticmethod
    def backward(ctx, dy):
        """Forget a term."""
        x_hat, rstd, weight = ctx.saved_tensors
        g = dy * weight
        return rstd * (g - g.mean(-1, keepdim=True)), (dy * x_hat).sum(0), dy.sum(0), None


class WrongBackward(nn.LayerNorm):
    """A LayerNorm that is right forward and wrong backward."""

    def forward(self, x):
        """Normalize the last dimension."""
        return NoSlope.apply(x, self.weight, self.bias, self.eps)


class Stuck(nn.LayerNorm):
    """A LayerNorm whose gradient ends at its bias."""

    def forward(self, x):
        """Normalize the last dimension."""
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias.detach(), self.eps)


def wrong_backward():
    """Return a candidate whose forward is right."""
    return NormCandidate("wrong_backward", lambda hidden, eps: WrongBackward(hidden, eps=eps))


def test_forward_s_check_looks_at_the_backward_too():
    """Forward alone is timed, both are checked: a fast forward that spoils its backward posts no time."""
    with pytest.raises(ParityError, match=r"^dx: .*wrong_backward, layer_norm of 64x768 over \(768\), float32"):
        NormForward(wrong_backward(), 64, 768, torch.float32, CPU).check()


def test_a_gradient_that_is_not_there():
    """A parameter that the output does not depend on is named."""
    stuck = NormCandidate("stuck", lambda hidden, eps: Stuck(hidden, eps=eps))
    with pytest.raises(ParityError, match=r"^dbeta: the output does not depend on it at all \(stuck\)"):
        NormForward(stuck, 64, 768, torch.float32, CPU).check()


@pytest.mark.parametrize("shape", [(64, 768), (256, 128)], ids=["64x768", "256x128"])
@pytest.mark.parametrize(
    ("candidate", "dtype"),
    [
        pytest.param(each, dtype, id=f"{each.kind}-{each.name}-{name}")
        for each in on_cpu(LAYER_NORM) + on_cpu(RMS_NORM)
        for name, dtype in DTYPES.items()
        if each.unavailable(CPU, dtype) is None
    ],
)
def test_torch_s_norms_pass(candidate, dtype, shape):
    """Each of torch's own implementations is right on a CPU, in every dtype that it is meant for."""
    NormForward(candidate, *shape, dtype, CPU).check()


def test_half_precision_sums_are_a_fact_of_the_record():
    """torch on a CPU computes the backward in BF16: without that fact in its record it fails, so the fact is needed."""
    honest = dataclasses.replace(LAYER_NORM["torch"], half_backward_on=frozenset())

    NormForward(LAYER_NORM["torch"], 2048, 32, torch.bfloat16, CPU).check()
    with pytest.raises(ParityError, match=r"dx: "):
        NormForward(honest, 2048, 32, torch.bfloat16, CPU).check()


def test_norms_of_rms_kind_are_judged_as_such():
    """A LayerNorm that calls itself an RMSNorm is wrong."""
    impostor = NormCandidate("impostor", lambda hidden, eps: nn.LayerNorm(hidden, eps=eps, bias=False), kind="rms_norm")

    with pytest.raises(ParityError, match="y: "):
        NormForward(impostor, 64, 768, torch.float32, CPU).check()


def test_gamma_beta_and_dy_are_not_plain():
    """With gamma 1, beta 0 or dy 1 most bugs are invisible: each is random, and the same in every build."""
    subject, again = (NormForward(LAYER_NORM["torch"], 64, 768, torch.float32, CPU) for _ in range(2))

    for tensor in (*subject.weights, subject.dy, subject.x):
        assert tensor.std() > 0.1
    assert all(map(torch.equal, (*subject.weights, subject.dy, subject.x), (*again.weights, again.dy, again.x)))


def test_results_of_the_calls():
    """Forward returns y; forward with backward returns the gradients and accumulates none."""
    forward = NormForward(LAYER_NORM["torch"], 64, 768, torch.bfloat16, CPU)
    both = NormForwardBackward(LAYER_NORM["torch"], 64, 768, torch.bfloat16, CPU)

    assert forward().shape == (64, 768)
    assert forward().requires_grad
    assert [gradient.shape for gradient in both()] == [(64, 768), (768,), (768,)]
    assert both.x.grad is both.weights[0].grad is None
