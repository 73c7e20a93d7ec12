"""What is asked of an Adam beside its steps: kernels, checkpoints, a scaler. Each question can be answered wrongly."""

import copy
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from fuseproof.candidates import ADAM, AdamCandidate, AdamSettings
from fuseproof.candidates.record import Kernel
from fuseproof.parity import ParityError
from fuseproof.parity.adam import amp
from fuseproof.parity.adam.amp import check_scale_invariance, check_training, check_two_optimizers
from fuseproof.parity.adam.apart import run_apart
from fuseproof.parity.adam.checks import check_regime
from fuseproof.parity.adam.gpu import huge_bytes
from fuseproof.parity.adam.life import (
    WAYS,
    check_resumed,
    check_resumed_by_another,
    check_state_dict,
    resume_by_another,
)
from fuseproof.parity.adam.paths import check_kernel, check_kernel_after_loading, check_traffic
from fuseproof.parity.adam.regimes import REGIMES, usual_settings
from fuseproof.parity.launch import launched_by

CPU = torch.device("cpu")
FUSED = ADAM["torch_fused"]
PLAIN = ADAM["torch_loop"]


@pytest.fixture(autouse=True)
def one_thread():
    """Tensors are small, and workers share the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def built_by(kind, like=FUSED, **facts):
    """Return a record of a class of torch's AdamW, with the facts of another."""

    def build(params, settings):
        usual = {name: getattr(settings, name) for name in ("lr", "betas", "eps", "weight_decay")}
        return kind(params, **usual, fused=True)

    return replace(like, name=kind.__name__, build=build, decay_modes=frozenset({"decoupled"}), **facts)


# --- kernels ---


def test_operators_of_a_call_are_seen():
    """By their names and numbers, with the bytes that they read and write."""
    x = torch.ones(8)
    launched = launched_by(lambda: x.add_(x).view(2, 4), CPU)

    assert launched.names == {"aten::add_": 1, "aten::view": 1}
    assert launched.traffic_bytes == 3 * 8 * 4


def test_a_candidate_that_falls_back_is_caught():
    """Its numbers are right; its kernel never ran."""
    fallen = replace(PLAIN, name="fallen", kernels=FUSED.kernels)
    with pytest.raises(ParityError, match=r"_fused_adamw\?_\$ never ran: the candidate has fallen back to other op"):
        check_kernel(fallen, CPU, "fp32")


class OneByOne(torch.optim.AdamW):
    """A fused kernel for each tensor."""

    def step(self):
        """Take the tensors one at a time."""
        for group in self.param_groups:
            params = group["params"]
            for param in params:
                group["params"] = [param]
                super().step()
            group["params"] = params


def test_a_kernel_for_each_tensor_is_caught():
    """Fused over elements, but not over tensors."""
    with pytest.raises(ParityError, match=r"ran 20 times and \d+ operators in all, expected 1 and at most 20"):
        check_kernel(built_by(OneByOne), CPU, "fp32")


def test_passes_over_memory_are_counted():
    """The loop moves three times what a step must; to be called one kernel it may not."""
    assert check_traffic(PLAIN, CPU, "fp32") == pytest.approx(21 / 7, rel=0.01)
    with pytest.raises(ParityError, match=r"moves 3 times the bytes that it must; 1\.14 are allowed"):
        check_traffic(replace(PLAIN, kernels={"cpu": Kernel("aten::")}), CPU, "fp32")


class KeepsItsKernel(torch.optim.AdamW):
    """What torch's own does not."""

    def load_state_dict(self, state_dict):
        """Load, and stay fused."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.update(fused=True, foreach=False)


def test_a_kernel_that_stays_after_loading_passes():
    """The check that torch's fused Adam fails can be passed."""
    check_kernel_after_loading(built_by(KeepsItsKernel), CPU, "fp32")
    with pytest.raises(ParityError, match="fallen back"):
        check_kernel_after_loading(FUSED, CPU, "fp32")


# --- checkpoints ---


class Forgetful(KeepsItsKernel):
    """A loaded state starts at step one again."""

    def load_state_dict(self, state_dict):
        """Load, and forget the count."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            state["step"].zero_()


class Refusing(KeepsItsKernel):
    """It loads nothing."""

    def load_state_dict(self, state_dict):  # noqa: ARG002  # it takes what it refuses
        """Refuse."""
        raise ValueError("this is no checkpoint of mine")


class Sharing(KeepsItsKernel):
    """A copy keeps the original's moments."""

    def __deepcopy__(self, memo):
        """Copy all but the state."""
        state, self.state = self.state, defaultdict(dict)
        other = object.__new__(type(self))
        memo[id(self)] = other
        other.__dict__.update(copy.deepcopy(self.__dict__, memo))
        params = zip(self.param_groups[0]["params"], other.param_groups[0]["params"], strict=True)
        self.state = state
        other.state.update({new: state[old] for old, new in params if old in state})
        return other


@pytest.mark.parametrize("way", ["by_state_dict", "by_file"])
def test_a_count_that_is_lost_by_loading_is_caught(way):
    """By whatever way the state has gone."""
    with pytest.raises(
        ParityError, match=rf"other bits in parameters \[.*\], off by .* \(Forgetful, fp32, {way} after 2"
    ):
        check_resumed(built_by(Forgetful), CPU, "fp32", way)
    with pytest.raises(ParityError, match="step 2 differs after its own state was loaded"):
        check_state_dict(built_by(Forgetful), CPU, "fp32")


def test_a_copy_that_shares_its_state_is_caught():
    """Steps of the copy change the original's later steps."""
    with pytest.raises(ParityError, match=r"Sharing, fp32, by_deepcopy after \d steps"):
        check_resumed(built_by(Sharing), CPU, "fp32", "by_deepcopy")


@pytest.mark.parametrize("way", WAYS)
def test_a_right_one_may_go_every_way(way):
    """Torch's fused Adam."""
    check_resumed(FUSED, CPU, "bf16", way)


@pytest.mark.parametrize(
    ("source", "target", "loaded", "outcome"),
    [
        pytest.param(PLAIN, FUSED, "whole", "the same bits", id="flags-brought-along"),
        pytest.param(PLAIN, FUSED, "state_alone", "the same but for roundings", id="another-kernel"),
        pytest.param(PLAIN, built_by(Refusing), "whole", "refused: ValueError: this is no checkpoint", id="refused"),
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_outcomes_of_another_s_state(source, target, loaded, outcome, dtype):
    """The three that are right."""
    assert resume_by_another(source, target, CPU, dtype, loaded).startswith(outcome)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_another_s_state_gone_on_with_wrongly_is_caught(dtype):
    """Without an error it goes another way."""
    with pytest.raises(ParityError, match="Forgetful with the state of torch_loop goes another way, without an error"):
        check_resumed_by_another(built_by(Forgetful), CPU, dtype, "torch_loop", "whole")


# --- settings, masters ---


def test_bias_correction_that_is_not_switched_off_is_caught():
    """torch's Adam always corrects."""
    settings = usual_settings(FUSED, torch.float32, bias_correction=False)
    with pytest.raises(ParityError, match="elements beyond the budget"):
        check_regime(FUSED, REGIMES["mixed_signs"], settings, torch.float32, CPU)


@pytest.mark.parametrize("name", ["torch_fused", "apex", "apex_master"])
def test_memory_that_is_needed_for_two_to_the_31_elements(name):
    """More with FP32 moments than with half ones, and more with masters; less than an H200 has."""
    order = ["torch_fused", "apex", "apex_master"]
    needed = [huge_bytes(ADAM[each], "bf16") / 2**30 for each in order]

    assert needed == sorted(set(needed))
    assert 40 < huge_bytes(ADAM[name], "bf16") / 2**30 < 100


# --- under a scaler ---


class Scaled(torch.optim.AdamW):
    """A fused Adam whose step can be bent by the scale."""

    def bend(self, scale):  # noqa: ARG002  # a bent one looks at it
        """Return what lr is multiplied by."""
        return 1.0

    def step(self):
        """Bend, step, and bend back."""
        rates = [group["lr"] for group in self.param_groups]
        scale = getattr(self, "grad_scale", None)
        for group in self.param_groups if scale is not None else ():
            group["lr"] *= self.bend(float(scale))
        super().step()
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate


class ScaleRounds(Scaled):
    """Unscaling rounds, so little that each step is right as far as its budget goes."""

    def bend(self, scale):
        """Be off by one unit for large scales."""
        return 1.0 + (1e-7 if scale > 2.0**12 else 0.0)


def test_a_scale_that_leaves_its_trace_is_caught():
    """One rounding is within every budget; that it depends on the scale is not."""
    with pytest.raises(ParityError, match="scale 65536 ends in other bits than scale 1"):
        check_scale_invariance(built_by(ScaleRounds), AdamSettings(eps=1e-3), CPU, torch.float32)
    check_scale_invariance(built_by(Scaled), AdamSettings(eps=1e-3), CPU, torch.float32)


class OverflowOfAll(Scaled):
    """One optimizer's overflow stops the other one."""

    overflowed = False

    def step(self):
        """Look at the last overflow of any."""
        if getattr(self, "found_inf", None) is not None:
            type(self).overflowed |= bool(self.found_inf)
            self.found_inf = torch.tensor(float(self.overflowed))
        super().step()


def test_an_overflow_that_stops_another_optimizer_is_caught():
    """The second of two has no overflow in a step in which the first has one."""
    with pytest.raises(ParityError, match=r"(first|second) of two"):
        check_two_optimizers(built_by(OverflowOfAll), AdamSettings(), CPU)
    check_two_optimizers(FUSED, AdamSettings(), CPU)


def test_a_training_that_ends_elsewhere_is_caught(monkeypatch):
    """Each step is right, and the loss is not where the plain Adam's is."""
    monkeypatch.setattr(amp, "_plain_loss", lambda *_: 0.5)
    with pytest.raises(
        ParityError, match=r"the loss is 1\.\d+ with torch_fused and 0\.5 with torch's plain Adam: more"
    ):
        check_training(FUSED, CPU, torch.bfloat16)


# --- apart ---


def test_a_check_on_a_cpu_runs_here():
    """A context can be spoiled on a GPU only."""
    seen = []

    def check(candidate: AdamCandidate, device: torch.device, *arguments):
        seen.append((candidate.name, device, arguments))

    run_apart(check, FUSED, CPU, "fp32")

    assert seen == [("torch_fused", CPU, ("fp32",))]
