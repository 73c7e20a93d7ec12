# ruff: noqa: ARG002  # a bug takes what its right counterpart takes
"""Wrong Adams: each is caught through the front door, in each dtype where it can be seen at all; right ones pass.

``python tests/harness/test_seeded_adams.py`` writes who is caught by what into ``docs/seeded-adams.md``.
"""

import copy
import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuseproof.candidates import ADAM, AdamCandidate, AdamSettings, Arithmetic
from fuseproof.parity import ParityError
from fuseproof.parity.adam.amp import Scaling, check_scaled
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import LAYOUTS, STRUCTURES, check_layout, check_overflowing_squares, check_regime
from fuseproof.parity.adam.life import check_going_back
from fuseproof.parity.adam.loading import LOADERS, check_loaded
from fuseproof.parity.adam.long import (
    check_late_steps,
    check_lr_tensor,
    check_moved,
    check_schedule,
    check_settings_by_hand,
)
from fuseproof.parity.adam.loop import (
    check_added_group,
    check_cleared_state,
    check_clipped_params,
    check_default_dtype,
    check_exchanged_param,
    check_one_buffer,
)
from fuseproof.parity.adam.regimes import REGIMES, make_params
from fuseproof.parity.adam.trusted import check_trusted

CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TABLE = Path(__file__).parents[2] / "docs" / "seeded-adams.md"
SEEDED = runpy.run_path(str(Path(__file__).with_name("seeded_table.py")))


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are small, and workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# --- a right Adam in pieces, so that each bug below is one piece ---


class Right(torch.optim.Optimizer):
    """Adam and AdamW as in their papers: FP32 arithmetic and moments, a step count for each parameter."""

    moments = torch.float32

    def __init__(self, params, settings):
        super().__init__(
            params,
            {
                "lr": settings.lr,
                "betas": settings.betas,
                "eps": settings.eps,
                "weight_decay": settings.weight_decay,
            },
        )
        self.decoupled = settings.decoupled

    @torch.no_grad()
    def step(self):
        """Take one step."""
        for group in self.param_groups:
            for param in self.worked_on(group["params"]):
                if param.grad is not None:
                    self.one(param, param.grad, group)

    def load_state_dict(self, state_dict):
        """Keep moments in the dtype in which they were saved, which torch's own loading casts to the parameter's."""
        super().load_state_dict(state_dict)
        params = [param for group in self.param_groups for param in group["params"]]
        for position, saved in state_dict["state"].items():
            self.state[params[position]] = copy.deepcopy(saved)

    def worked_on(self, params):
        """Return the parameters that this step works on."""
        return params

    def one(self, param, grad, group):
        """Update one parameter."""
        state = self.state[param]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(param, dtype=self.moments, requires_grad=False)
        state["step"] += 1
        p, g = param.detach().float(), self.gradient(grad.float(), param.detach().float(), group)
        old = state["exp_avg"].float(), state["exp_avg_sq"].float()
        m, v = self.averages(*old, g, *group["betas"])
        update = self.update(p, g, old[0], m, v, self.count(state["step"], state), group)
        for name, value in (("exp_avg", m), ("exp_avg_sq", v)):
            state[name].copy_(value)
        self.store(param, self.moved(p, update, group), p)

    def gradient(self, g, p, group):
        """Return the gradient with what L2 decay adds."""
        return g if self.decoupled else g + group["weight_decay"] * p

    def averages(self, m, v, g, beta1, beta2):
        """Return the new moments."""
        return beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g

    def count(self, step, state):
        """Return the step that the bias correction takes."""
        return step

    def update(self, p, g, old, m, v, step, group):
        """Return what is added to the parameter, without decoupled decay."""
        beta1, beta2 = group["betas"]
        return (
            -group["lr"]
            / (1 - beta1**step)
            * self.numerator(g, old, m, beta1)
            / self.denominator(v, 1 - beta2**step, group["eps"])
        )

    def numerator(self, g, old, m, beta1):
        """Return what is divided."""
        return m

    def denominator(self, v, correction, eps):
        """Return what it is divided by."""
        return (v / correction).sqrt() + eps

    def moved(self, p, update, group):
        """Return the new parameter."""
        return p * (1 - group["lr"] * group["weight_decay"]) + update if self.decoupled else p + update

    def store(self, param, new, old):
        """Write the parameter."""
        param.copy_(new)


SCALER = "a GradScaler is for FP32 parameters"
HALVES = frozenset({"bf16", "fp16"})
FP32 = frozenset({"fp32"})
BOTH = frozenset({"l2", "decoupled"})


def record_of(kind, name, **facts):
    """Return the record of a class; its moments are FP32, its hyper-parameters FP64."""
    facts = {"moments": "float32", **facts}
    return AdamCandidate(name, lambda params, settings: kind(params, settings), **facts)


BUGS = SEEDED["Bugs"](record_of, DTYPES)
bug = BUGS.add


# --- constants and formula ---


@bug()
class NoOp(Right):
    """Nothing moves, the counter does."""

    def store(self, param, new, old):
        """Do nothing."""


@bug()
class RateOffByAThousandth(Right):
    """lr * 1.001."""

    def update(self, *args):
        """Scale."""
        return 1.001 * super().update(*args)


@bug()
class RateOffByAHundredThousandth(Right):
    """lr * 1.00001."""

    def update(self, *args):
        """Scale."""
        return 1.00001 * super().update(*args)


@bug(FP32, "a millionth of an update is less than the roundings of FP32 arithmetic before a half-precision tie")
class RateOffByAMillionth(Right):
    """lr * 1.000001: no element leaves its budget by much, the mean does."""

    def update(self, *args):
        """Scale."""
        return 1.000001 * super().update(*args)


@bug()
class OppositeSign(Right):
    """It climbs."""

    def update(self, *args):
        """Negate."""
        return -super().update(*args)


@bug()
class BetasSwapped(Right):
    """beta1 for exp_avg_sq, beta2 for exp_avg."""

    def one(self, param, grad, group):
        """Swap."""
        super().one(param, grad, {**group, "betas": group["betas"][::-1]})


@bug()
class Beta2WrongInTheFourthDigit(Right):
    """0.9991 instead of 0.999."""

    def averages(self, m, v, g, beta1, beta2):
        """Shift."""
        return super().averages(m, v, g, beta1, beta2 + 1e-4)


@bug()
class WeightOfTheGradientOffByAHundredThousandth(Right):
    """1 - beta1 with an error of 1e-5."""

    def averages(self, m, v, g, beta1, beta2):
        """Scale."""
        return beta1 * m + (1 - beta1) * 1.00001 * g, beta2 * v + (1 - beta2) * g * g


@bug()
class SquareOfTheAverage(Right):
    """exp_avg_sq averages exp_avg's squares instead of the gradient's."""

    def averages(self, m, v, g, beta1, beta2):
        """Take the wrong square."""
        new = beta1 * m + (1 - beta1) * g
        return new, beta2 * v + (1 - beta2) * new * new


@bug()
class EpsInsideTheRoot(Right):
    """sqrt(v + eps)."""

    def denominator(self, v, correction, eps):
        """Move eps."""
        return (v / correction + eps).sqrt()


@bug()
class EpsBeforeTheCorrection(Right):
    """(sqrt(v) + eps) / sqrt(correction): TensorFlow's epsilon-hat."""

    def denominator(self, v, correction, eps):
        """Move eps."""
        return (v.sqrt() + eps) / math.sqrt(correction)


@bug()
class NoEps(Right):
    """eps left out."""

    def denominator(self, v, correction, eps):
        """Leave eps out; zero by zero is 0."""
        return (v / correction).sqrt() + 1e-30


@bug()
class NoBiasCorrection(Right):
    """Neither moment is corrected."""

    def count(self, step, state):
        """Go so far that nothing is left to correct."""
        return 10**6


@bug()
class SecondMomentNotCorrected(Right):
    """Only exp_avg is corrected."""

    def denominator(self, v, correction, eps):
        """Forget the correction."""
        return v.sqrt() + eps


@bug()
class StepOneAhead(Right):
    """The bias correction counts from 2."""

    def count(self, step, state):
        """Add one."""
        return step + 1


@bug()
class StepOneBehind(Right):
    """The first two steps are both step 1."""

    def count(self, step, state):
        """Take one off."""
        return max(1, step - 1)


@bug()
class StepCountOfTheGroup(Right):
    """One counter for all parameters: a late gradient starts in the middle of it."""

    def count(self, step, state):
        """Count the steps of the parameter that has had most."""
        return max(other["step"] for other in self.state.values())


@bug()
class CountsTwice(Right):
    """The update is right and the counter runs ahead, as after a checkpoint it will matter."""

    def one(self, param, grad, group):
        """Hide the right count from the state."""
        state = self.state[param]
        hidden = state.pop("hidden", 0)
        if state:
            state["step"] = hidden
        super().one(param, grad, group)
        state["hidden"] = state["step"]
        state["step"] *= 2


# --- momentum ---


@bug()
class Nesterov(Right):
    """It looks ahead: NAdam without its schedule."""

    def numerator(self, g, old, m, beta1):
        """Look ahead."""
        return beta1 * m + (1 - beta1) * g


@bug()
class NoMomentum(Right):
    """The gradient instead of exp_avg: RMSProp with exp_avg kept for show."""

    def numerator(self, g, old, m, beta1):
        """Take the gradient, scaled as at the first step."""
        return (1 - beta1) * g


@bug()
class StaleExpAvg(Right):
    """The update takes exp_avg of the step before."""

    def numerator(self, g, old, m, beta1):
        """Take the old one."""
        return old


@bug()
class Amsgrad(Right):
    """The greatest exp_avg_sq so far."""

    def update(self, p, g, old, m, v, step, group):
        """Keep the greatest, by the gradient's identity."""
        kept = self.__dict__.setdefault("greatest", {})
        key = tuple(p.shape)
        kept[key] = torch.maximum(kept.get(key, torch.zeros_like(v)), v)
        return super().update(p, g, old, m, kept[key], step, group)


@bug()
class AbsoluteGradientInExpAvg(Right):
    """Right as long as all gradients are positive."""

    def averages(self, m, v, g, beta1, beta2):
        """Lose the sign."""
        return super().averages(m, v, g.abs(), beta1, beta2)


# --- weight decay ---


@bug()
class DecayModesSwapped(Right):
    """L2 where AdamW was asked for, and the other way round."""

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.decoupled = not self.decoupled


@bug()
class NoDecay(Right):
    """Weight decay left out."""

    def __init__(self, params, settings):
        super().__init__(params, replace(settings, weight_decay=0.0))


@bug()
class DecayOfTheNewParameter(Right):
    """(p + update) * (1 - lr * decay)."""

    def moved(self, p, update, group):
        """Decay last."""
        return (p + update) * (1 - group["lr"] * group["weight_decay"]) if self.decoupled else p + update


@bug()
class DecayWithoutLr(Right):
    """p * (1 - decay)."""

    def moved(self, p, update, group):
        """Forget lr."""
        return p * (1 - group["weight_decay"]) + update if self.decoupled else p + update


@bug()
class DecayOfExpAvg(Right):
    """L2 decay joins exp_avg and not exp_avg_sq."""

    def averages(self, m, v, g, beta1, beta2):
        """Square the bare gradient."""
        return super().averages(m, v, g, beta1, beta2)[0], beta2 * v + (1 - beta2) * self.bare * self.bare

    def gradient(self, g, p, group):
        """Keep the bare gradient."""
        self.bare = g
        return super().gradient(g, p, group)


@bug()
class DecayTwice(Right):
    """Both kinds of decay at once."""

    def gradient(self, g, p, group):
        """Decay by L2 too."""
        return g + group["weight_decay"] * p


# --- state ---


@bug()
class ExpAvgNotStored(Right):
    """exp_avg stays zero."""

    def one(self, param, grad, group):
        """Take exp_avg back."""
        super().one(param, grad, group)
        self.state[param]["exp_avg"].zero_()


@bug()
class StateResetEveryThirdStep(Right):
    """As after a checkpoint that was not loaded."""

    def one(self, param, grad, group):
        """Forget."""
        if self.state[param].get("step", 0) == 2:
            self.state[param].clear()
        super().one(param, grad, group)


@bug()
class ExpAvgSqRoundedToBf16(Right):
    """Stored in FP32, with the digits of BF16."""

    def one(self, param, grad, group):
        """Round."""
        super().one(param, grad, group)
        v = self.state[param]["exp_avg_sq"]
        v.copy_(v.bfloat16())


@bug(
    frozenset({"fp16"}),
    "in FP32 nothing is wrong; in BF16 parameters' own roundings are larger: 1.04 times the error of FP32 moments",
    record={"moments": "parameter"},
)
class MomentsInTheParametersDtypeAsRecorded(Right):
    """The record says so, so that each step is right as far as its own state goes."""

    def one(self, param, grad, group):
        """Round the moments."""
        self.moments = param.dtype
        super().one(param, grad, group)


@bug(HALVES, "in FP32 the parameter's dtype is FP32")
class MomentsInTheParametersDtype(Right):
    """The record says FP32."""

    def one(self, param, grad, group):
        """Round the moments."""
        self.moments = param.dtype
        super().one(param, grad, group)


@bug()
class StateNotZeroAtFirst(Right):
    """Memory that was not cleared."""

    def one(self, param, grad, group):
        """Start from something."""
        if not self.state[param]:
            self.state[param].update(
                step=0, exp_avg=torch.zeros_like(param).float(), exp_avg_sq=torch.full_like(param, 1e-4).float()
            )
        super().one(param, grad, group)


@bug()
class OneExpAvgForEqualShapes(Right):
    """Buffers keyed by shape."""

    def one(self, param, grad, group):
        """Share."""
        super().one(param, grad, group)
        shared = self.__dict__.setdefault("shared", {}).setdefault(tuple(param.shape), self.state[param]["exp_avg"])
        self.state[param]["exp_avg"] = shared


# --- what is worked on ---


@bug()
class ZeroGradientsSkipped(Right):
    """An element without gradient keeps its moments, as in sparse Adam."""

    def averages(self, m, v, g, beta1, beta2):
        """Keep."""
        new_m, new_v = super().averages(m, v, g, beta1, beta2)
        return torch.where(g == 0, m, new_m), torch.where(g == 0, v, new_v)


@bug()
class AbsentGradientsTakenAsZero(Right):
    """A parameter without gradient goes on by its momentum."""

    @torch.no_grad()
    def step(self):
        """Fill in zeros."""
        for group in self.param_groups:
            for param in group["params"]:
                self.one(param, torch.zeros_like(param) if param.grad is None else param.grad, group)


@bug()
class TailSkipped(Right):
    """Elements after the last multiple of four stay."""

    def store(self, param, new, old):
        """Write all but the tail."""
        flat = new.flatten()
        tail = flat.numel() - flat.numel() % 4
        flat[tail:] = old.flatten()[tail:]
        param.copy_(flat.view(param.shape))


@bug()
class LastTensorSkipped(Right):
    """An off-by-one in the list."""

    def worked_on(self, params):
        """Drop the last."""
        return params[:-1]


@bug()
class TensorsAfterThe36thSkipped(Right):
    """One launch and no second."""

    def worked_on(self, params):
        """Stop."""
        return params[:36]


@bug()
class ElementsAfter65536Skipped(Right):
    """One chunk of a tensor and no second."""

    def store(self, param, new, old):
        """Write the first chunk."""
        flat = new.flatten()
        flat[65_536:] = old.flatten()[65_536:]
        param.copy_(flat.view(param.shape))


@bug()
class EmptyTensorEndsTheList(Right):
    """What comes after a tensor without elements stays."""

    def worked_on(self, params):
        """Stop at an empty one."""
        empty = [position for position, param in enumerate(params) if param.numel() == 0]
        return params[: empty[0]] if empty else params


@bug()
class GradientReadInMemoryOrder(Right):
    """A channels-last gradient is paired with the wrong elements."""

    def gradient(self, g, p, group):
        """Read the storage from its beginning."""
        strides = p.stride() if p.dim() == 4 else g.stride()
        return super().gradient(torch.as_strided(g, g.shape, strides), p, group)


@bug()
class NeighbourWritten(Right):
    """One element beyond the end of a parameter."""

    def store(self, param, new, old):
        """Write past the end where the storage goes on."""
        param.copy_(new)
        end = param.storage_offset() + param.numel()
        if param.untyped_storage().nbytes() > end * param.element_size():
            torch.as_strided(param, (1,), (1,), end).fill_(1)


@bug()
class NanTakenAsZero(Right):
    """It hides a broken training."""

    def gradient(self, g, p, group):
        """Clean."""
        return super().gradient(g.nan_to_num(0.0, 0.0, 0.0), p, group)


@bug()
class GradientsClipped(Right):
    """Nobody asked for that."""

    def gradient(self, g, p, group):
        """Clip."""
        return super().gradient(g.clamp(-1, 1), p, group)


# --- what is written ---


@bug()
class GradientZeroed(Right):
    """It clears gradients for the user."""

    def one(self, param, grad, group):
        """Clear."""
        super().one(param, grad, group)
        grad.zero_()


@bug()
class L2DecayWrittenToTheGradient(Right):
    """grad.add_ instead of grad.add."""

    def one(self, param, grad, group):
        """Write."""
        if not self.decoupled:
            grad.add_(param, alpha=group["weight_decay"])
        decay, group["weight_decay"] = group["weight_decay"], 0.0 if not self.decoupled else group["weight_decay"]
        super().one(param, grad, group)
        group["weight_decay"] = decay


@bug()
class LrShrinks(Right):
    """It has a schedule of its own."""

    @torch.no_grad()
    def step(self):
        """Take one step and shrink."""
        super().step()
        for group in self.param_groups:
            group["lr"] *= 0.9999


# --- rounding ---


@bug(HALVES, "in FP32 nothing is cut off")
class Truncated(Right):
    """Towards zero, as a shift of the bits does."""

    def store(self, param, new, old):
        """Cut."""
        stored = new.to(param.dtype)
        beyond = stored.float().abs() > new.abs()
        param.copy_(torch.where(beyond, torch.nextafter(stored, torch.zeros_like(stored)), stored))


@bug(HALVES, "in FP32 both are FP32")
class UpdateRoundedToo(Right):
    """The update is rounded to the parameter's dtype before it is added."""

    def moved(self, p, update, group):
        """Round in between."""
        return super().moved(p, update.to(self.dtype).float(), group)

    def one(self, param, grad, group):
        """Note the dtype."""
        self.dtype = param.dtype
        super().one(param, grad, group)


@bug()
class Fp32HyperParametersUnrecorded(Right):
    """Betas in FP32, as fused kernels take them, under a record that says FP64."""

    def __init__(self, params, settings):
        betas = tuple(float(torch.tensor(beta)) for beta in settings.betas)
        super().__init__(params, replace(settings, betas=betas))


# --- masters ---


class RightMasters(Right):
    """Half-precision parameters are roundings of FP32 masters, which are what moves."""

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.param_groups_master = [
            {"params": [param.detach().clone().float() for param in group["params"]]} for group in self.param_groups
        ]

    def add_param_group(self, param_group):
        """Give a group that joins its masters."""
        super().add_param_group(param_group)
        if hasattr(self, "param_groups_master"):
            masters = [param.detach().clone().float() for param in self.param_groups[-1]["params"]]
            self.param_groups_master.append({"params": masters})

    def state_dict(self):
        """Save the masters too."""
        return {**super().state_dict(), "masters": copy.deepcopy(self.param_groups_master)}

    def load_state_dict(self, state_dict):
        """Load the masters too."""
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "masters"})
        self.param_groups_master = copy.deepcopy(state_dict["masters"])

    def one(self, param, grad, group):
        """Update the master, then the parameter."""
        (position,) = (i for i, other in enumerate(group["params"]) if other is param)
        (owner,) = (i for i, other in enumerate(self.param_groups) if other is group)
        master = self.param_groups_master[owner]["params"][position]
        self.write(param, master, grad, group)

    def write(self, param, master, grad, group):
        """Step the master with the parameter's state."""
        super().one(master, grad, group)
        self.state[param] = self.state.pop(master)
        param.copy_(master)

    def step(self):
        """Give the masters their state."""
        for group, masters in zip(self.param_groups, self.param_groups_master, strict=True):
            for param, master in zip(group["params"], masters["params"], strict=True):
                if self.state.get(param) and param.grad is not None:
                    self.state[master] = self.state.pop(param)
        super().step()


MASTERS = {"master_weights": True}


@bug(record=MASTERS)
class MasterDoesNotMove(RightMasters):
    """The parameter moves, what it is rounded from does not."""

    def write(self, param, master, grad, group):
        """Put the master back."""
        old = master.clone()
        super().write(param, master, grad, group)
        master.copy_(old)


@bug(record=MASTERS)
class ParameterIsNotItsMaster(RightMasters):
    """The update goes into the parameter by its own rounding."""

    def write(self, param, master, grad, group):
        """Add the master's update to the parameter."""
        old, kept = master.clone(), param.detach().float()
        super().write(param, master, grad, group)
        param.copy_(kept + (master - old))


# --- under a GradScaler ---


class RightScaled(Right):
    """It unscales by itself, and does nothing at an overflow, as fused kernels do."""

    _step_supports_amp_scaling = True

    def step(self):
        """Take one step."""
        if not getattr(self, "found_inf", None):
            super().step()

    def gradient(self, g, p, group):
        """Unscale."""
        return super().gradient(g / (getattr(self, "grad_scale", None) or 1.0), p, group)


ONLY_FP32 = (FP32, SCALER)


@bug(*ONLY_FP32)
class NotUnscaled(RightScaled):
    """Invisible but for eps and decay: Adam does not see a constant factor."""

    def gradient(self, g, p, group):
        """Forget the scale."""
        return Right.gradient(self, g, p, group)


@bug(*ONLY_FP32)
class UnscaledTwice(RightScaled):
    """Divided by the scale, and by it again."""

    def gradient(self, g, p, group):
        """Divide twice."""
        return super().gradient(g / (getattr(self, "grad_scale", None) or 1.0), p, group)


@bug(*ONLY_FP32)
class UnscaledOnceMore(RightScaled):
    """Right with the scaler alone; gradients that the loop has unscaled are divided again."""

    def gradient(self, g, p, group):
        """Divide by the scale that was, whoever has done it already."""
        unscaled = hasattr(self, "found_inf") and self.grad_scale is None
        return super().gradient(g / 1024.0 if unscaled else g, p, group)


@bug(*ONLY_FP32)
class FirstOverflowCounted(RightScaled):
    """An overflow in the first step is a step to all groups but the first, as in Apex's capturable form."""

    def count(self, step, state):
        """Be one ahead in later groups."""
        return step + state.get("ahead", 0)

    def step(self):
        """Note an overflow before the first step."""
        if getattr(self, "found_inf", None):
            for group in self.param_groups[1:]:
                for param in group["params"]:
                    self.early = getattr(self, "early", set()) | ({param} - self.state.keys())
        super().step()

    def one(self, param, grad, group):
        """Hand the note to the state."""
        super().one(param, grad, group)
        self.state[param].setdefault("ahead", int(param in getattr(self, "early", ())))


@bug(*ONLY_FP32)
class OverflowIgnored(RightScaled):
    """found_inf is not read."""

    def step(self):
        """Take one step whatever is found."""
        Right.step(self)


@bug(*ONLY_FP32)
class OverflowCounted(RightScaled):
    """Nothing moves at an overflow but the counter."""

    def step(self):
        """Count."""
        if getattr(self, "found_inf", None):
            for state in self.state.values():
                state["step"] += 1
        super().step()


@bug(*ONLY_FP32)
class UnscaledGradientsWritten(RightScaled):
    """The unscaled gradients are written back, and the record does not say so."""

    def step(self):
        """Take one step and write."""
        super().step()
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None and getattr(self, "grad_scale", None) and not self.found_inf:
                    param.grad.div_(self.grad_scale)


@bug(*ONLY_FP32)
class OverflowIgnoredBeyondAChunk(RightScaled):
    """found_inf is read by the first block of a tensor: what lies beyond 65,536 elements decays."""

    def step(self):
        """Go on beyond the first chunk."""
        if getattr(self, "found_inf", None):
            for group in self.param_groups:
                for param in group["params"]:
                    param.detach().flatten()[65_536:].mul_(0.999)
        super().step()


@bug(*ONLY_FP32)
class OverflowIgnoredInTheSecondLaunch(RightScaled):
    """found_inf is read by the first launch, of 36 tensors."""

    def step(self):
        """Go on in the second launch."""
        if getattr(self, "found_inf", None):
            with torch.no_grad():
                for group in self.param_groups:
                    for param in group["params"][36:]:
                        param.mul_(0.999)
        super().step()


@bug(*ONLY_FP32)
class NotUnscaledBeyondAChunk(RightScaled):
    """The scale is read by the first block of a tensor."""

    def gradient(self, g, p, group):
        """Leave what lies beyond 65,536 elements scaled."""
        g = g.clone()
        g.flatten()[65_536:] *= getattr(self, "grad_scale", None) or 1.0
        return super().gradient(g, p, group)


# --- by size, alignment, dtype and group ---


def kept_from(start, new, old):
    """Return the new values with the old ones from a position on."""
    flat = new.flatten()
    flat[start:] = old.flatten()[start:]
    return flat.view(new.shape)


@bug()
class SecondBlockOfTwoSkipped(Right):
    """One block of 2,048 elements where there should be two; of three and more the loop is right."""

    def store(self, param, new, old):
        """Write the first block."""
        param.copy_(kept_from(2048, new, old) if 2048 < param.numel() <= 4096 else new)


@bug()
class TailBehindAGradientOnEightBytesSkipped(Right):
    """Where the gradient is aligned for vectors of two and not of four, two of four elements are left at the end."""

    def one(self, param, grad, group):
        """Note the address."""
        self.address = grad.data_ptr()
        super().one(param, grad, group)

    def store(self, param, new, old):
        """Write whole vectors of four."""
        whole = param.numel() // 4 * 4
        param.copy_(kept_from(whole, new, old) if self.address % 16 == 8 else new)


@bug()
class TailBehindAParameterOnEightBytesSkipped(Right):
    """The same of the parameter's address."""

    def store(self, param, new, old):
        """Write whole vectors of four."""
        whole = param.numel() // 4 * 4
        param.copy_(kept_from(whole, new, old) if param.data_ptr() % 16 == 8 else new)


@bug(frozenset({"bf16"}), "in the others eps is where it belongs")
class EpsInsideTheRootInBf16(Right):
    """One instantiation of a template is older than the others."""

    def one(self, param, grad, group):
        """Note the dtype."""
        self.dtype = param.dtype
        super().one(param, grad, group)

    def denominator(self, v, correction, eps):
        """Move eps."""
        if self.dtype == torch.bfloat16:
            return (v / correction + eps).sqrt()
        return super().denominator(v, correction, eps)


@bug()
class DenominatorByAnIntrinsic(Right):
    """An approximate root of 11 bits."""

    def denominator(self, v, correction, eps):
        """Approximate."""
        return super().denominator(v, correction, eps) * (1 + 2.0**-11)


@bug()
class DecayOfMatricesOnly(Right):
    """Vectors are biases and norms, which many do not decay; nobody asked for that."""

    def moved(self, p, update, group):
        """Decay what has two dimensions."""
        return super().moved(p, update, group if p.dim() > 1 else {**group, "weight_decay": 0.0})


@bug()
class StepOneBehindInTheSecondGroup(Right):
    """The counter of all groups but the first is read before it is raised."""

    def one(self, param, grad, group):
        """Note the group."""
        self.later = group is not self.param_groups[0]
        super().one(param, grad, group)

    def count(self, step, state):
        """Take one off."""
        return max(1, step - 1) if self.later else step


# --- in a long training ---


@bug()
class PowerOfBetaInFp16(Right):
    """A running product, rounded to FP16 each step."""

    def denominator(self, v, correction, eps):
        """Round, as the product is by then."""
        return super().denominator(v, max(1 - float(torch.tensor(1 - correction).half()), 2.0**-11), eps)


@bug(HALVES, "FP32 counts to 2^24")
class StepCountInTheParametersDtype(Right):
    """In BF16 256 + 1 is 256, in FP16 2,048 + 1 is 2,048."""

    def one(self, param, grad, group):
        """Note the dtype."""
        self.dtype = param.dtype
        super().one(param, grad, group)

    def count(self, step, state):
        """Stop where the next number is none."""
        return min(step, {torch.bfloat16: 256, torch.float16: 2048}.get(self.dtype, step))


@bug()
class StepCountInFp16(Right):
    """Whatever the parameter is."""

    def count(self, step, state):
        """Stop where the next number is none."""
        return min(step, 2048)


@bug()
class StepCountInAByte(Right):
    """256 is 0 again."""

    def count(self, step, state):
        """Wrap."""
        return (step - 1) % 255 + 1


@bug()
class NoCorrectionAfterAThousandSteps(Right):
    """It is nearly 1 by then, but for a beta2 near 1."""

    def count(self, step, state):
        """Go so far that nothing is left to correct."""
        return step if step <= 1000 else 10**6


class OfConstruction(Right):
    """A setting is read where the optimizer is made, and what a loop writes into the group is ignored."""

    setting = ""

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.kept = [group[self.setting] for group in self.param_groups]

    def one(self, param, grad, group):
        """Take the old setting."""
        (owner,) = (i for i, other in enumerate(self.param_groups) if other is group)
        settings = {self.setting: self.kept[owner]} if owner < len(self.kept) else {}
        super().one(param, grad, {**group, **settings})


@bug()
class DecayOfConstruction(OfConstruction):
    """Weight decay, for which there are schedules too."""

    setting = "weight_decay"


@bug()
class EpsOfConstruction(OfConstruction):
    """eps."""

    setting = "eps"


@bug()
class MomentsOfTheFirstStep(Right):
    """Their addresses are kept from the first step on; a state that is loaded lies elsewhere."""

    def one(self, param, grad, group):
        """Take the moments that were there first."""
        if state := self.state[param]:
            first = {name: state[name] for name in ("exp_avg", "exp_avg_sq")}
            state.update(self.__dict__.setdefault("first", {}).setdefault(param, first))
        super().one(param, grad, group)


@bug()
class StepCountSurvivesLoading(Right):
    """A counter of its own, which loading does not set back."""

    def one(self, param, grad, group):
        """Count."""
        counts = self.__dict__.setdefault("counts", {})
        counts[param] = counts.get(param, 0) + 1
        self.counted = counts[param]
        super().one(param, grad, group)

    def count(self, step, state):
        """Take it."""
        return self.counted


@bug()
class ParametersOfTheFirstStep(Right):
    """Their addresses are kept from the first step on; memory that they are given later is not written."""

    def store(self, param, new, old):
        """Write to where it was."""
        self.__dict__.setdefault("memory", {}).setdefault(param, param.detach()).copy_(new)


# --- between steps, and loaded elsewhere ---


@bug()
class MomentsByPlaceInTheGroup(Right):
    """Loading takes a parameter's place in its group for its number: the second group gets the first one's moments."""

    def load_state_dict(self, state_dict):
        """Load, and load again by place."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for place, param in enumerate(group["params"]):
                saved = state_dict["state"].get(place)
                if saved and saved["exp_avg"].shape == param.shape:
                    self.state[param] = copy.deepcopy(saved)


@bug()
class LoadingKeepsItsOwnSettings(Right):
    """lr, betas, eps and decay stay those of construction."""

    def load_state_dict(self, state_dict):
        """Load the state alone."""
        own = [{name: group[name] for name in TAKEN} for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, settings in zip(self.param_groups, own, strict=True):
            group.update(settings)


@bug()
class SavesWhatItKnowsAlone(Right):
    """What a scheduler has put into the groups, initial_lr, is not saved."""

    def state_dict(self):
        """Leave out what is none of its settings."""
        saved = super().state_dict()
        known = {*TAKEN, "params"}
        groups = [{name: each[name] for name in each if name in known} for each in saved["param_groups"]]
        return {**saved, "param_groups": groups}


@bug()
class LoadedMomentsInMemoryOrder(Right):
    """A channels-last parameter walks its contiguous, loaded moments as if they were channels-last too."""

    def one(self, param, grad, group):
        """Take moments of other strides for such as the parameter's."""
        state = self.state[param]
        for name in ("exp_avg", "exp_avg_sq") if state else ():
            if state[name].stride() != param.stride() and param.dim() == 4:
                state[name] = torch.as_strided(state[name], param.shape, param.stride()).clone()
        super().one(param, grad, group)


@bug()
class GradientRowsTakenAsPacked(Right):
    """A gradient that is a slice of columns is read on where its row ends."""

    def one(self, param, grad, group):
        """Read on."""
        if grad.dim() == 2 and grad.stride(1) == 1 and grad.stride(0) > grad.shape[1]:
            grad = torch.as_strided(grad, grad.shape, (grad.shape[1], 1))
        super().one(param, grad, group)


@bug()
class ParameterRowsTakenAsPacked(Right):
    """A parameter that is a slice of columns is written on where its row ends."""

    def store(self, param, new, old):
        """Write packed rows."""
        if param.dim() == 2 and param.stride(1) == 1 and param.stride(0) > param.shape[1]:
            param = torch.as_strided(param, param.shape, (param.shape[1], 1))
        param.copy_(new)


@bug()
class LastTensorOfALaunchLosesItsChunks(Right):
    """A launch is sent when its 36th place is filled, with the first chunk of what is there."""

    def worked_on(self, params):
        """Note who is in a last place."""
        self.last = params[35::36]
        return params

    def store(self, param, new, old):
        """Write one chunk of it."""
        param.copy_(kept_from(65_536, new, old) if any(param is each for each in self.last) else new)


@bug()
class L2DecayOfTheFirstChunkAlone(Right):
    """Beyond 65,536 elements L2 decay is left out; decoupled decay is not."""

    def gradient(self, g, p, group):
        """Leave it out."""
        return kept_from(65_536, super().gradient(g, p, group), g)


@bug()
class NothingDoneAtLrZero(Right):
    """The first step of a warm-up is lost on the moments."""

    def one(self, param, grad, group):
        """Return early."""
        if float(group["lr"]) != 0.0:
            super().one(param, grad, group)


@bug()
class LrTensorReadOnce(Right):
    """The number of an lr tensor is kept as long as it is the same tensor."""

    def one(self, param, grad, group):
        """Take the first number."""
        lr = group["lr"]
        if isinstance(lr, torch.Tensor):
            lr = self.__dict__.setdefault("numbers", {}).setdefault(id(lr), float(lr))
        super().one(param, grad, {**group, "lr": lr})


class OfTheFirstGroup(Right):
    """A group that is added later is worked on with settings of the first one."""

    settings = ()

    def __init__(self, params, settings):
        super().__init__(params, settings)
        self.first = list(self.param_groups)

    def one(self, param, grad, group):
        """Take them."""
        if not any(group is each for each in self.first):
            group = {**group, **{name: self.first[0][name] for name in self.settings}}
        super().one(param, grad, group)


@bug()
class DecayOfTheFirstGroup(OfTheFirstGroup):
    """Its weight decay."""

    settings = ("weight_decay",)


@bug()
class BetasOfTheFirstGroup(OfTheFirstGroup):
    """Its betas."""

    settings = ("betas",)


@bug()
class EpsOfTheFirstGroup(OfTheFirstGroup):
    """Its eps."""

    settings = ("eps",)


@bug()
class GradientOfTheFirstStep(Right):
    """A copy of a gradient is kept as long as ``param.grad`` is the same tensor, whatever is in it."""

    def one(self, param, grad, group):
        """Take the copy."""
        kept = self.__dict__.setdefault("copies", {})
        if param not in kept or kept[param][0] is not grad:
            kept[param] = (grad, grad.clone())
        super().one(param, kept[param][1], group)


@bug()
class StateOfTheAbsentDropped(Right):
    """A parameter that has had no gradient for two steps begins again."""

    @torch.no_grad()
    def step(self):
        """Drop, and step."""
        absent = self.__dict__.setdefault("absent", {})
        for group in self.param_groups:
            for param in group["params"]:
                absent[param] = absent.get(param, 0) + 1 if param.grad is None else 0
                if absent[param] == 2:
                    self.state.pop(param, None)
        super().step()


@bug()
class ParametersOfItsOwn(Right):
    """It moves a copy of its own and writes that: what a loop has written in between is lost."""

    def one(self, param, grad, group):
        """Put the copy back first, where the memory is the same."""
        kept = self.__dict__.setdefault("kept", {})
        if param in kept and kept[param][0] == param.data_ptr():
            param.copy_(kept[param][1])
        super().one(param, grad, group)
        kept[param] = (param.data_ptr(), param.detach().clone())

    def load_state_dict(self, state_dict):
        """Forget the copies."""
        super().load_state_dict(state_dict)
        self.kept = {}


@bug(FP32, "the check is of FP32 parameters, whose moments in half precision no record admits")
class MomentsInTheDefaultDtype(Right):
    """``torch.zeros`` without a dtype."""

    @property
    def moments(self):
        """Return it; as the record says where nobody has changed it."""
        return torch.get_default_dtype()


@bug()
class StateKeptOnTheSide(Right):
    """``state`` is a view of what it keeps elsewhere, and clearing it clears nothing."""

    def one(self, param, grad, group):
        """Bring back what was cleared."""
        kept = self.__dict__.setdefault("aside", {})
        if param in kept and not self.state[param]:
            self.state[param] = kept[param]
        super().one(param, grad, group)
        kept[param] = self.state[param]


@bug()
class ParametersListedOnce(Right):
    """The list of a group is that of the first step: who is put into it later does not move."""

    def worked_on(self, params):
        """Return the first list of as many."""
        return self.__dict__.setdefault("lists", {}).setdefault(id(params), list(params))


@bug(frozenset({"fp32", "bf16"}), "a gradient of 1e25 is none of FP16")
class RootByItsReciprocal(Right):
    """v * rsqrt(v): zero times infinity where the square has overflowed."""

    def denominator(self, v, correction, eps):
        """Multiply."""
        v = v / correction
        return torch.where(v == 0, 0.0, v * v.rsqrt()) + eps


@bug(*ONLY_FP32)
class AbsentCountedUnderAScaler(RightScaled):
    """A parameter without gradient is counted a step ahead, under a scaler alone."""

    @torch.no_grad()
    def step(self):
        """Step and count."""
        super().step()
        if getattr(self, "found_inf", None) is not None and not self.found_inf:
            for group in self.param_groups:
                for param in group["params"]:
                    if param.grad is None and self.state.get(param):
                        self.state[param]["step"] += 1


# --- the front door ---


def check_groups(candidate, settings, dtype):
    """Run a candidate over two groups of other settings."""
    usual, others = REGIMES["mixed_signs"], replace(settings, lr=settings.lr / 2, betas=(0.5, 0.99))
    groups = [Group(make_params(usual, dtype, CPU, seed), each) for seed, each in enumerate((settings, others))]
    checked = CheckedAdam(candidate, groups, "two groups")
    for step in range(1, 4):
        usual.set_gradients(checked.params, step, 1)
        checked.step()
    checked.finish()


def battery(candidate, dtype_name, seed=20261129):
    """Yield (name, check) of what the parity tests ask of every Adam, the cheap ones first."""
    dtype = DTYPES[dtype_name]
    decays = {mode: mode == "decoupled" for mode in sorted(candidate.decay_modes)}
    for regime in REGIMES.values():
        for mode, decoupled in decays.items():
            settings = AdamSettings(lr=regime.lr_for(dtype), weight_decay=0.1, decoupled=decoupled)
            yield (
                f"{regime.name}-{mode}",
                lambda r=regime, s=settings: check_regime(candidate, r, s, dtype, CPU, seed=seed),
            )
    usual = REGIMES["mixed_signs"]
    settings = AdamSettings(lr=usual.lr_for(dtype), weight_decay=0.1)
    for name in (
        "37_tensors",
        "65537_elements",
        "36th_of_65537_elements",
        "empty_first",
        "empty_between",
        "around_powers_of_2",
    ):
        yield (
            name,
            lambda n=name: check_regime(
                candidate, usual, settings, dtype, CPU, seed=seed, steps=2, shapes=STRUCTURES[n]
            ),
        )
    decaying = replace(settings, decoupled=False)
    yield (
        "l2_decay_of_65541_elements",
        lambda: check_regime(candidate, usual, decaying, dtype, CPU, seed=seed, steps=1, shapes=((65_541,),)),
    )
    yield "two_groups", lambda: check_groups(candidate, settings, dtype)
    for name in (
        "gradient_channels_last",
        "gradient_padded_rows",
        "parameter_padded_rows",
        "both_shifted",
        "gradient_shifted_by_8_bytes",
        "parameter_shifted_by_8_bytes",
    ):
        assert name in LAYOUTS
        yield name, lambda n=name: check_layout(candidate, n, settings, dtype, CPU)
    if dtype_name == "fp32":
        scaled = AdamSettings(weight_decay=0.1, eps=1e-3)
        yield "grad_scaler", lambda: check_scaled(candidate, scaled, CPU, Scaling())
        yield "grad_scaler_unscale", lambda: check_scaled(candidate, scaled, CPU, Scaling("unscale_clip"))
        overflows = dict.fromkeys((1, 4), (-1, -1, math.inf))
        absent = Scaling(present="absent_gradients")
        yield "absent_under_a_scaler", lambda: check_scaled(candidate, scaled, CPU, absent)
        yield "overflow", lambda: check_scaled(candidate, scaled, CPU, Scaling(overflows=overflows))
        boundaries = {"overflow_beyond_a_chunk": ((131_073,), (65_537,)), "overflow_beyond_a_launch": ((5, 3),) * 74}
        for name, shapes in boundaries.items():
            yield name, lambda s=shapes: check_scaled(candidate, scaled, CPU, Scaling(overflows=overflows, shapes=s))
    yield "settings_by_hand", lambda: check_settings_by_hand(candidate, settings, dtype, CPU)
    yield "moved_in_memory", lambda: check_moved(candidate, settings, dtype, CPU)
    yield "warm_up_from_0", lambda: check_schedule(candidate, settings, dtype, CPU, "warm_up_from_0")
    yield "lr_tensor", lambda: check_lr_tensor(candidate, dtype, CPU, CPU)
    for check in (check_added_group, check_one_buffer, check_clipped_params, check_cleared_state):
        if not (candidate.master_weights and check is check_clipped_params):
            name = check.__name__.removeprefix("check_")
            yield name, lambda c=check: c(candidate, settings, dtype, CPU)
    if not candidate.master_weights:
        yield "exchanged_param", lambda: check_exchanged_param(candidate, CPU, dtype_name)
    if dtype_name == "fp32":
        yield "default_dtype", lambda: check_default_dtype(candidate, settings, torch.bfloat16, CPU)
    if dtype_name != "fp16":
        yield "overflowing_squares", lambda: check_overflowing_squares(candidate, settings, dtype, CPU)
    for name in LOADERS:
        yield f"loaded_{name}", lambda n=name: check_loaded(candidate, CPU, dtype_name, n)
    yield "going_back", lambda: check_going_back(candidate, CPU, dtype_name)
    if dtype_name != "fp32":
        yield (
            "as_with_fp32_state",
            lambda: check_trusted(candidate, CPU, REGIMES["small_gradients"], dtype, seed=seed, steps=100),
        )
    yield (
        "300000_elements",
        lambda: check_regime(
            candidate, usual, replace(settings, weight_decay=0.0), dtype, CPU, seed=seed, steps=2, shapes=((300, 1000),)
        ),
    )
    yield "late_steps", lambda: check_late_steps(candidate, settings, dtype, CPU)


LAST = {"as_with_fp32_state", "300000_elements", "late_steps"}


def caught_by(name, dtype, first=""):
    """Yield (name of the check, what it says) of the checks that catch a bug.

    The long ones are asked only if no other sees it; `first` is the one that is asked first.
    """
    caught = False
    checks = battery(BUGS[name].candidate(), dtype)
    for check_name, check in sorted(checks, key=lambda each: each[0] != first):
        if check_name in LAST and caught:
            continue
        try:
            check()
        except ParityError as error:
            caught = True
            yield check_name, str(error)


def cells():
    """Return every bug in every dtype; those of scalers only where there are scalers."""
    return [
        pytest.param(name, dtype, id=f"{name}-{dtype}")
        for name, each in BUGS.items()
        for dtype in DTYPES
        if dtype in each.seen_in or each.why_hidden != SCALER
    ]


FIRST_CHECKS = SEEDED["first_checks"](TABLE, DTYPES, BUGS)


@pytest.mark.parametrize(("name", "dtype"), cells())
def test_wrong_adam_is_caught_where_it_can_be_seen(name, dtype):
    """In each dtype that a bug is said to be seen in it is caught, in the others by nothing: the list is true."""
    first = FIRST_CHECKS.get((name, dtype), "")  # by the page; where that does not catch it all are asked
    caught = next(caught_by(name, dtype, first), None)

    assert (caught is not None) == (dtype in BUGS[name].seen_in), caught


def test_there_are_at_least_thirty():
    """And each that is hidden somewhere says why."""
    assert len(BUGS) >= 30
    assert all(each.why_hidden for each in BUGS.values() if each.seen_in != BUGS.everywhere)


@pytest.mark.parametrize(
    ("name", "dtype", "check", "words"),
    [
        pytest.param(*case, id="-".join(case[:3]))
        for case in (
            ("rate_off_by_a_thousandth", "fp32", "mixed_signs-l2", "update 0.0995 % too large, the same everywhere"),
            ("betas_swapped", "fp32", "mixed_signs-l2", "exp_avg 99 % too small, the same everywhere: looks like"),
            ("step_one_ahead", "fp32", "mixed_signs-l2", "it agrees with step 2 (ours: 1)"),
            ("no_bias_correction", "bf16", "mixed_signs-l2", "it agrees with no bias correction"),
            ("decay_modes_swapped", "fp16", "mixed_signs-decoupled", "it agrees with the other kind of weight decay"),
            ("no_decay", "fp32", "mixed_signs-decoupled", "it agrees with no weight decay"),
            ("no_op", "fp32", "one_sign-decoupled", "did not move at all"),
            ("opposite_sign", "bf16", "mixed_signs-l2", "it agrees with the opposite sign"),
            ("step_count_of_the_group", "fp32", "late_gradient-l2", "it agrees with step 4 (ours: 1)"),
            ("elements_after65536_skipped", "fp32", "65537_elements", "element 65536 of 65537 on moved: looks like a"),
            ("gradient_zeroed", "fp32", "mixed_signs-l2", "the step wrote what is not its own: gradient 0"),
            ("counts_twice", "fp32", "mixed_signs-l2", "its counter says step 2, ours 1"),
            ("moments_in_the_parameters_dtype", "bf16", "mixed_signs-l2", "moments are kept in {torch.bfloat16}"),
            ("state_not_zero_at_first", "fp32", "mixed_signs-l2", "exp_avg_sq: "),
            ("neighbour_written", "fp32", "both_shifted", "neighbours of a parameter in its storage were written"),
            (
                "parameter_rows_taken_as_packed",
                "fp32",
                "parameter_padded_rows",
                "neighbours of a parameter in its stor",
            ),
            ("loading_keeps_its_own_settings", "bf16", "loaded_built_with_other_settings", "after loading the groups"),
            ("weight_of_the_gradient_off_by_a_hundred_thousandth", "fp32", "mixed_signs-l2", "exp_avg: "),
            ("fp32_hyper_parameters_unrecorded", "bf16", "mixed_signs-l2", "exp_avg_sq: "),
            ("rate_off_by_a_millionth", "fp32", "300000_elements", "bias: updates are "),
            ("moments_in_the_parameters_dtype_as_recorded", "fp16", "as_with_fp32_state", "after 100 steps parameters"),
            ("unscaled_once_more", "fp32", "grad_scaler_unscale", "update 94.1 % too small"),
            ("first_overflow_counted", "fp32", "overflow", "it agrees with step 3 (ours: 2)"),
        )
    ],
)
def test_the_message_names_the_fault(name, dtype, check, words):
    """The reader learns what it looks like, not only that it is wrong."""
    with pytest.raises(ParityError) as caught:
        dict(battery(BUGS[name].candidate(), dtype))[check]()

    assert words in str(caught.value)


# --- by the whole way alone, and between the steps ---


def hiding(kind):
    """Return the class with its state under names that nobody knows."""

    class Hiding(kind):
        def one(self, param, grad, group):
            """Rename before and after."""
            state = self.state[param]
            for hidden, name in (("mu", "exp_avg"), ("nu", "exp_avg_sq"), ("t", "step")):
                if hidden in state:
                    state[name] = state.pop(hidden)
            super().one(param, grad, group)
            for hidden, name in (("mu", "exp_avg"), ("nu", "exp_avg_sq"), ("t", "step")):
                state[hidden] = state.pop(name)

    return Hiding


BY_THEIR_WAY = (
    "no_op",
    "rate_off_by_a_thousandth",
    "opposite_sign",
    "betas_swapped",
    "eps_inside_the_root",
    "no_bias_correction",
    "step_one_ahead",
    "nesterov",
    "stale_exp_avg",
    "amsgrad",
    "decay_modes_swapped",
    "exp_avg_not_stored",
    "tail_skipped",
    "truncated",
)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(n, d, id=f"{n}-{d}") for n in BY_THEIR_WAY for d in DTYPES if d in BUGS[n].seen_in],
)
def test_wrong_adam_with_state_of_its_own_is_caught_by_its_way(name, dtype):
    """Where the state has unknown names, where the parameters end up is enough."""
    candidate = record_of(hiding(BUGS[name].kind), name, moments="parameter")
    settings = AdamSettings(lr=REGIMES["mixed_signs"].lr_for(DTYPES[dtype]), weight_decay=0.1)
    with pytest.raises(
        ParityError, match=r"^trajectory of parameter \d \(\d+(,|, 33)\): .* after step 6 by its whole way"
    ):
        check_regime(candidate, REGIMES["mixed_signs"], settings, DTYPES[dtype], CPU)


class HalfMoments(Right):
    """Right arithmetic over moments that are stored in the parameter's dtype, as torch's fused Adam has them."""

    def one(self, param, grad, group):
        """Store moments like the parameter."""
        self.moments = param.dtype
        super().one(param, grad, group)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [Right, HalfMoments])
def test_right_adam_with_state_of_its_own_passes(kind, dtype):
    """Its moments may be FP32 or the parameter's: nothing says which, so the way may be either's, but for FP16."""
    checks = dict(battery(record_of(hiding(kind), "hiding", moments="parameter"), dtype))
    beside_fp32 = checks.pop("as_with_fp32_state", None)
    for check in (check for name, check in checks.items() if name != "overflow" and "scaler" not in name):
        check()
    if beside_fp32 and kind is HalfMoments and dtype == "fp16":
        with pytest.raises(ParityError, match="after 100 steps parameters are off by"):
            beside_fp32()
    elif beside_fp32:
        beside_fp32()


def meddled(what):
    """Take a step, meddle, take another."""
    params = make_params(REGIMES["mixed_signs"], torch.float32, CPU, 1)
    watched = torch.zeros(2)
    checked = CheckedAdam(RIGHT["written_out"], [Group(params, AdamSettings())], "meddled", {"watched": watched})
    for step in (1, 2):
        REGIMES["mixed_signs"].set_gradients(params, step, 1)
        checked.step(by=(lambda: (checked.optimizer.step(), what(checked, watched))) if step == 2 else None)
    return checked


def test_a_bystander_is_watched():
    """A tensor that the optimizer does not know may not be written either."""
    with pytest.raises(ParityError, match="the step wrote what is not its own: watched"):
        meddled(lambda _, watched: watched.fill_(1))


def test_state_between_two_steps_is_watched():
    """What changes after a step and before the next is nobody's update."""
    checked = meddled(lambda *_: None)
    checked.optimizer.state[checked.params[3]]["exp_avg"].add_(1e-6)
    with pytest.raises(ParityError, match="changed between two steps: parameter 3, exp_avg"):
        checked.step()


def test_state_before_the_first_step_is_watched():
    """Moments that are there before the first step are zero."""

    class Warm(Right):
        """Starts from somebody else's moments."""

        def __init__(self, params, settings):
            super().__init__(params, settings)
            for param in self.param_groups[0]["params"]:
                self.state[param] = {"step": 0} | {
                    name: torch.full_like(param, 1e-3, requires_grad=False) for name in ("exp_avg", "exp_avg_sq")
                }

    with pytest.raises(ParityError, match=r"parameter 0 \(48, 33\): its moments are not zero before its first step"):
        check_regime(record_of(Warm, "warm"), REGIMES["mixed_signs"], AdamSettings(), torch.float32, CPU)


def test_a_skipped_step_leaves_all_alone():
    """At an overflow a parameter that moves is named."""
    checked = meddled(lambda *_: None)
    with pytest.raises(ParityError, match="the step wrote what is not its own: parameter 0, parameter 0, exp_avg"):
        checked.step(skipped=True)


# --- right ones ---


class Reordered(Right):
    """Other algebra: lerp, fused multiply-add, corrections folded into step size and eps, decay last, from the back."""

    def worked_on(self, params):
        """Turn the order round."""
        return params[::-1]

    def averages(self, m, v, g, beta1, beta2):
        """Interpolate."""
        return torch.lerp(m, g, 1 - beta1), v + (g * g - v) * (1 - beta2)

    def update(self, p, g, old, m, v, step, group):
        """Fold."""
        beta1, beta2 = group["betas"]
        root2 = math.sqrt(1 - beta2**step)
        return m * (-group["lr"] * root2 / (1 - beta1**step)) / (v.sqrt() + group["eps"] * root2)

    def moved(self, p, update, group):
        """Decay as a part of the update."""
        decay = group["lr"] * group["weight_decay"] if self.decoupled else 0.0
        return torch.addcmul(p, torch.ones_like(p), update - decay * p)


class FusedMultiplyAdd(Right):
    """Products that are not rounded before they are added, as kernels compile them: FP64, rounded where they store."""

    def averages(self, m, v, g, beta1, beta2):
        """Round the sums only."""
        m, v = super().averages(m.double(), v.double(), g.double(), beta1, beta2)
        return m.float(), v.float()

    def moved(self, p, update, group):
        """Round the sum only."""
        return super().moved(p.double(), update.double(), group).float()


class Float32HyperParameters(Right):
    """lr, betas, eps and decay in FP32, as the record says."""

    def one(self, param, grad, group):
        """Round."""
        rounded = {name: torch.as_tensor(group[name], dtype=torch.float32).double().tolist() for name in TAKEN}
        super().one(param, grad, {**group, **rounded})


TAKEN = ("lr", "betas", "eps", "weight_decay")
FLOAT32 = Arithmetic(hyper=torch.float32, bias_betas=torch.float32)
RIGHT = {
    "written_out": record_of(Right, "written_out"),
    "reordered": record_of(Reordered, "reordered"),
    "fused_multiply_add": record_of(FusedMultiplyAdd, "fused_multiply_add"),
    "float32_hyper": record_of(Float32HyperParameters, "float32_hyper", arithmetic_on={"cpu": FLOAT32}),
    "masters": record_of(RightMasters, "masters", master_weights=True),
    "unscales_itself": record_of(RightScaled, "unscales_itself"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", RIGHT)
def test_right_adam_passes_everything(name, dtype):
    """Another order of the arithmetic, or FP32 hyper-parameters under a record that says so, is not a fault."""
    for _, check in battery(RIGHT[name], dtype):
        check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("candidate", [*RIGHT.values(), ADAM["torch_fused"]], ids=lambda each: each.name)
def test_no_false_alarm_in_twenty_seeds(candidate, dtype):
    """Right ones pass whatever the random numbers are."""
    regimes = list(REGIMES.values())
    for seed in range(20):
        regime = regimes[seed % len(regimes)]
        settings = AdamSettings(lr=regime.lr_for(DTYPES[dtype]), weight_decay=0.1, decoupled=seed % 2 == 1)
        check_regime(candidate, regime, settings, DTYPES[dtype], CPU, seed=seed)


# --- the table ---


def row(name):
    """Return the row of a bug."""
    bug = BUGS[name]
    asked = [dtype in bug.seen_in or bug.why_hidden != SCALER for dtype in DTYPES]
    caught = [caught_by(name, dtype) if ask else () for dtype, ask in zip(DTYPES, asked, strict=True)]
    return SEEDED["row"](name, [[check for check, _ in each] for each in caught], bug.why_hidden)


def test_the_table_has_every_bug():
    """docs/seeded-adams.md is written by this module; a bug that it lacks, or has too many, is not in the table."""
    assert SEEDED["seen_in"](TABLE, DTYPES, BUGS) == {name: set(each.seen_in) for name, each in BUGS.items()}


def table():
    """Return the page."""
    checks = len(list(battery(RIGHT["written_out"], "fp32")))
    text = f"""
{len(BUGS)} Adams, each with one thing wrong, go through {checks} checks of the parity tests (fewer in half
precision): every regime with both kinds of weight decay, launch boundaries, memory layouts, a GradScaler,
settings that change, what loops do between steps, states that are loaded.
A cell holds how many of the checks catch the bug, and the first that does; or why nothing can. Right Adams
with another order of the arithmetic pass all of them. The checks over 300,000 elements, over a hundred
steps beside FP32 state and after 2,200 steps are asked only where no other catches anything.
"""
    module = "tests/harness/test_seeded_adams.py"
    return SEEDED["page"]("Wrong Adams, and what catches them", text, module, DTYPES, map(row, BUGS))


if __name__ == "__main__":
    torch.set_num_threads(1)
    TABLE.write_text(table(), encoding="utf-8")
