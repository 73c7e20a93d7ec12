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


# --- LayerNorm: written out, so that one thing can be wrong ---


@dataclasses.dataclass(frozen=True)
class NormBug:
    """One thing that is wrong; the defaults are right.

    Attributes:
        seen_in: dtypes where it is larger than roundings. The others are named with it.

    """

    name: str
    seen_in: frozenset[str] = frozenset(DTYPES)
    variance: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.var(-1, unbiased=False, keepdim=True)
    mean: Callable[[torch.Tensor], torch.Tensor] = lambda x: x.mean(-1, keepdim=True)
    eps: float = 1.0
    gamma: bool = True
    beta: bool = True
    dx: str = "right"  # "no mean", "no slope", "no rstd", "no gamma"
    scale: float = 1.0  # times dx
    dgamma: float = 1.0
    dbeta: float = 1.0
    last_row: bool = True  # it is worked on


class _WrittenFunction(torch.autograd.Function):
    """LayerNorm and its derivative in FP32, rounded once at the end, with one thing wrong."""

    @staticmethod
    def forward(ctx, x, gamma, beta, eps, bug):
        wide = x.float()
        mean, rstd = bug.mean(wide), (bug.variance(wide) + bug.eps * eps).rsqrt()
        x_hat = (wide - mean) * rstd
        ctx.save_for_backward(x_hat, rstd, gamma)
        ctx.bug = bug
        y = torch.zeros_like(wide)
        whole = x_hat * gamma.float() if bug.gamma else x_hat
        rows = len(y) if bug.last_row else len(y) - 1
        y[:rows] = (whole + beta.float() if bug.beta else whole)[:rows]
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x_hat, rstd, gamma = ctx.saved_tensors
        bug, dtype = ctx.bug, dy.dtype
        dy = dy.float()
        g = dy if bug.dx == "no gamma" else dy * gamma.float()
        dx = g.clone()
        if bug.dx != "no mean":
            dx -= g.mean(-1, keepdim=True)
        if bug.dx != "no slope":
            dx -= x_hat * (g * x_hat).mean(-1, keepdim=True)
        if bug.dx != "no rstd":
            dx *= rstd
        rows = len(dy) if bug.last_row else len(dy) - 1
        dgamma, dbeta = bug.dgamma * (dy * x_hat)[:rows].sum(0), bug.dbeta * dy[:rows].sum(0)
        return (bug.scale * dx).to(dtype), dgamma.to(dtype), dbeta.to(dtype), None, None


class WrittenNorm(nn.Module):
    """A LayerNorm with one thing wrong."""

    def __init__(self, hidden, eps, bug):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.eps, self.bug = eps, bug

    def forward(self, x):
        """Normalize the last dimension."""
        return _WrittenFunction.apply(x, self.weight, self.bias, self.eps, self.bug)


def without_last_column(statistic):
    """Return the statistic of all columns but the last."""
    return lambda x: statistic(x[..., :-1])


NORM_BUGS = (
    NormBug("unbiased_variance", variance=lambda x: x.var(-1, unbiased=True, keepdim=True)),
    NormBug("variance_around_zero", variance=lambda x: x.square().mean(-1, keepdim=True)),
    # eps is 1e-5 of the variance: y is off by half of that, which FP16's roundings hide, not to speak of BF16's.
    NormBug("no_eps", seen_in=frozenset({"fp32"}), eps=0.0),
    NormBug("gamma_ignored", gamma=False),
    NormBug("beta_ignored", beta=False),
    NormBug("mean_without_the_last_column", mean=without_last_column(lambda x: x.mean(-1, keepdim=True))),
    NormBug(
        "variance_without_the_last_column",
        variance=without_last_column(lambda x: x.var(-1, unbiased=False, keepdim=True)),
    ),
    NormBug(
        "statistics_without_the_last_column",
        mean=without_last_column(lambda x: x.mean(-1, keepdim=True)),
        variance=without_last_column(lambda x: x.var(-1, unbiased=False, keepdim=True)),
    ),
    NormBug("dx_without_the_mean_of_g", dx="no mean"),
    NormBug("dx_without_the_slope", dx="no slope"),
    NormBug("dx_without_rstd", dx="no rstd"),
    NormBug("dx_without_gamma", dx="no gamma"),
    NormBug("dgamma_zero", dgamma=0.0),
    NormBug("dbeta_zero", dbeta=0.0),
    NormBug("dgamma_twice", dgamma=2.0),
    # A ten-thousandth is less than a half-precision rounding.
    NormBug("dx_off_by_a_ten_thousandth", seen_in=frozenset({"fp32"}), scale=1.0001),
    NormBug("dgamma_off_by_a_hundred_thousandth", seen_in=frozenset({"fp32"}), dgamma=1.00001),
    NormBug("dbeta_off_by_a_hundred_thousandth", seen_in=frozenset({"fp32"}), dbeta=1.00001),
    NormBug("last_row_skipped", last_row=False),
)


def norm(bug: NormBug) -> NormCandidate:
    """Return the candidate with that bug."""
    return NormCandidate(bug.name, lambda hidden, eps: WrittenNorm(hidden, eps, bug))


@pytest.mark.parametrize("shape", [(64, 768), (48, 16)], ids=["64x768", "48x16"])
@pytest.mark.parametrize(
    ("bug", "dtype"),
    [
        pytest.param(bug, dtype, id=f"{bug.name}-{dtype}")
        for bug in NORM_BUGS
        for dtype in DTYPES
        if dtype in bug.seen_in
    ],
)
def test_wrong_layer_norm_is_caught(bug, dtype, shape):
    """In every dtype where it is larger than roundings, a wrong LayerNorm posts no time."""
    with pytest.raises(ParityError, match=f"{bug.name}, {shape[0]}x{shape[1]}"):
        NormForward(norm(bug), *shape, DTYPES[dtype], CPU).check()


@pytest.mark.parametrize("bug", [bug for bug in NORM_BUGS if len(bug.seen_in) < 3], ids=lambda bug: bug.name)
def test_what_half_precision_hides_is_named(bug):
    """A bug that is said to be hidden is hidden: else the list above would say less than the check does."""
    for dtype in DTYPES.keys() - bug.seen_in:
        NormForward(norm(bug), 64, 768, DTYPES[dtype], CPU).check()


def backward_only_bug():
    """Return a candidate whose forward is right."""
    return norm(NormBug("dx_wrong", dx="no slope"))


def test_forward_s_check_looks_at_the_backward_too():
    """Forward alone is timed, both are checked: a fast forward that spoils its backward posts no time."""
    with pytest.raises(ParityError, match="dx: "):
        NormForward(backward_only_bug(), 64, 768, torch.float32, CPU).check()


class Welford(nn.Module):
    """LayerNorm whose statistics come column by column (Welford 1962), as row kernels compute them."""

    def __init__(self, hidden, eps):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.eps = eps

    def statistics(self, x):
        """Return mean and biased variance of each row."""
        mean = torch.zeros_like(x[..., :1])
        squares = torch.zeros_like(mean)
        for count, column in enumerate(x.split(1, dim=-1), 1):
            delta = column - mean
            mean = mean + delta / count
            squares = squares + delta * (column - mean)
        return mean, squares / x.shape[-1]

    def forward(self, x):
        """Normalize the last dimension in FP32; round once."""
        wide = x.float()
        mean, variance = self.statistics(wide)
        return torch.addcmul(self.bias.float(), (wide - mean) * (variance + self.eps).rsqrt(), self.weight.float()).to(
            x.dtype
        )


class TwoPass(Welford):
    """LayerNorm whose statistics are sums of halves of the row, the mean corrected in a second pass."""

    def statistics(self, x):
        """Return mean and biased variance of each row."""

        def average(values):
            return sum(half.sum(-1, keepdim=True) for half in values.chunk(2, dim=-1)) / values.shape[-1]

        mean = average(x)
        mean = mean + average(x - mean)
        return mean, average((x - mean) * (x - mean))


class RoundedAffine(Welford):
    """LayerNorm that scales and shifts in the input's precision, as Apex does: three roundings instead of one."""

    def forward(self, x):
        """Normalize the last dimension in FP32, round, scale, round, shift, round."""
        wide = x.float()
        mean, variance = wide.mean(-1, keepdim=True), wide.var(-1, unbiased=False, keepdim=True)
        return ((wide - mean) * (variance + self.eps).rsqrt()).to(x.dtype) * self.weight + self.bias


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 768), (48, 16)], ids=["64x768", "48x16"])
@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(norm(NormBug("written_out")), id="written-out"),
        pytest.param(NormCandidate("welford", Welford), id="welford"),
        pytest.param(NormCandidate("two_pass", TwoPass), id="two-pass"),
    ],
)
def test_right_layer_norm_passes(candidate, shape, dtype):
    """The budgets hold for any order of the sums."""
    NormForward(candidate, *shape, DTYPES[dtype], CPU).check()


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_three_roundings_keep_y_in_its_budget(dtype):
    """y of a kernel that scales and shifts in half precision is right; only autograd's dgamma of it rounds too much."""
    subject = NormForward(NormCandidate("rounded_affine", RoundedAffine), 64, 768, DTYPES[dtype], CPU)
    right = NormForward(norm(NormBug("right")), 64, 768, DTYPES[dtype], CPU)
    subject.gradients = right.gradients
    subject.check()


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
    """torch on a CPU sums dgamma in BF16: without that fact in its record it fails, so the fact is needed."""
    honest = dataclasses.replace(LAYER_NORM["torch"], half_sums_on=frozenset())

    NormForward(LAYER_NORM["torch"], 2048, 32, torch.bfloat16, CPU).check()
    with pytest.raises(ParityError, match=r"dgamma|dbeta"):
        NormForward(honest, 2048, 32, torch.bfloat16, CPU).check()


def test_norms_of_rms_kind_are_judged_as_such():
    """A LayerNorm that calls itself an RMSNorm is wrong."""
    impostor = dataclasses.replace(norm(NormBug("impostor", beta=False)), kind="rms_norm")

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
