"""Bring your own kernel: what a user may give, and what they are told when it cannot be used."""

import sys

import pytest
import torch

from fuseproof.candidates import ADAM, LAYER_NORM, AdamSettings
from fuseproof.candidates.brought import BroughtError, bring_adam, bring_layer_norm
from fuseproof.subjects import AdamStep, NormForwardBackward

CPU = torch.device("cpu")
MODULE = """
import torch
from torch import nn


class L2Adam(torch.optim.Adam):
    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


class Switched(torch.optim.Optimizer):
    seen = []

    def __init__(self, params, lr, betas, eps, weight_decay, adam_w_mode):
        super().__init__(params, {})
        self.seen.append(adam_w_mode)


class NoBetas(torch.optim.Optimizer):
    def __init__(self, params, lr, eps, weight_decay):
        super().__init__(params, {})


class Passing(torch.optim.Adam):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class NoBias(nn.Module):
    def __init__(self, normalized_shape, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(normalized_shape))


class IgnoresBias(nn.LayerNorm):
    def forward(self, x):
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, None, self.eps)


number = 3
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    """Put the user's module, and one that does not import, on the path."""
    (tmp_path / "user_kernels.py").write_text(MODULE)
    (tmp_path / "user_broken.py").write_text("x = 1\nraise ValueError('boom')\n")
    (tmp_path / "user_exits.py").write_text("raise SystemExit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("user_kernels", "user_broken", "user_exits"):
        sys.modules.pop(name, None)


def test_a_brought_adam_is_a_candidate_like_any_other():
    """It is built with the suite's settings and passes the suite's check."""
    candidate = bring_adam("--adam", "mine=user_kernels:L2Adam", ADAM)
    assert candidate.name == "mine"
    assert candidate.unavailable(CPU) is None
    AdamStep(candidate, "10m", CPU).check()


def test_without_a_switch_the_decay_is_the_l2_term():
    """torch.optim.Adam's weight decay is added to the gradient; a class with its signature does the same."""
    assert bring_adam("--adam", "mine=user_kernels:L2Adam", ADAM).decay_modes == {"l2"}


def test_a_switch_for_the_decay_is_used():
    """`adam_w_mode` selects the mode that a case asks for."""
    candidate = bring_adam("--adam", "mine=user_kernels:Switched", ADAM)
    assert candidate.decay_modes == {"l2", "decoupled"}
    for decoupled in (True, False):
        optimizer = candidate.build([torch.ones(1)], AdamSettings(decoupled=decoupled))
        assert optimizer.seen[-1] is decoupled


def test_a_layer_norm_that_ignores_its_bias_is_told_so():
    """Its gradient does not exist; the sentence names it instead of autograd's advice."""
    candidate = bring_layer_norm("--layer-norm", "mine=user_kernels:IgnoresBias", LAYER_NORM)
    subject = NormForwardBackward(candidate, 64, 768, torch.float32, CPU)
    with torch.no_grad():
        subject.weights[1].zero_()  # else y gives it away first
    with pytest.raises(AssertionError, match="dbeta: the output does not depend on it"):
        subject.check()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        pytest.param("user_kernels:L2Adam", "write it as NAME=module:attr", id="no-name"),
        pytest.param("mine=user_kernels", "write it as NAME=module:attr", id="no-attribute"),
        pytest.param("torch_loop=user_kernels:L2Adam", "'torch_loop' is taken", id="taken-name"),
        pytest.param(
            "mine=user_missing:X", "No module named 'user_missing'; is its folder on PYTHONPATH?", id="no-module"
        ),
        pytest.param(
            "mine=user_broken:X", r"ValueError: boom \(.*user_broken\.py, line 2: raise ValueError", id="raises"
        ),
        pytest.param("mine=user_exits:X", r"SystemExit: 3 \(.*user_exits\.py, line 1", id="exits"),
        pytest.param("mine=user_kernels:L2Adm", "has no 'L2Adm'; it has .*L2Adam", id="misspelt"),
        pytest.param("mine=user_kernels:number", "is no class but 3", id="not-callable"),
        pytest.param("mine=user_kernels:NoBetas", "takes no betas", id="no-betas"),
        pytest.param("mine=user_kernels:NoBias", r"takes no params, which torch\.optim\.Adam does\.$", id="a-norm"),
        pytest.param("mine=user_kernels:Passing", "write its arguments out, since \\*args hides", id="star-args"),
    ],
)
def test_an_adam_that_cannot_be_used(spec, said):
    """One sentence names the option, the reason and the mend."""
    with pytest.raises(BroughtError, match=said) as caught:
        bring_adam("--adam", spec, ADAM)
    assert str(caught.value).startswith(f"--adam {spec}: ")
    assert "\n" not in str(caught.value)


def test_an_optimizer_is_no_layer_norm():
    """The two options are twelve characters apart."""
    with pytest.raises(BroughtError, match=r"L2Adam is no torch\.nn\.Module"):
        bring_layer_norm("--layer-norm", "mine=user_kernels:L2Adam", LAYER_NORM)


def test_a_layer_norm_without_bias_is_told_so():
    """nn.LayerNorm has both parameters, and the checks need them."""
    candidate = bring_layer_norm("--layer-norm", "mine=user_kernels:NoBias", LAYER_NORM)
    with pytest.raises(TypeError, match="NoBias has no parameter 'bias'"):
        candidate.build(8, 1e-5)
