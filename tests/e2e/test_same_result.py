"""A speed-up that changes the result is a regression: all stages of the ladder train alike."""

from collections.abc import Callable

import pytest
import torch

from fuseproof.candidates import KERNEL_SETS, AdamCandidate, KernelSet, NormCandidate, brought_kernel_set
from fuseproof.curves import BANDS, assert_same_curve, loss_curve
from fuseproof.ladder import STAGES, Stage
from fuseproof.training import Training
from fuseproof.workload import SIZES

pytestmark = pytest.mark.parity

REFERENCE = STAGES["1_adam_fp32"]
OTHERS = {name: stage for name, stage in STAGES.items() if stage is not REFERENCE}


def _train(stage: Stage, kernels: KernelSet, device: torch.device) -> Training:
    return Training(stage, kernels, SIZES["tiny"], device)


@pytest.fixture(scope="module")
def reference(device: torch.device) -> torch.Tensor:
    """The loss curve of stage 1, which no kernel set takes part in."""
    return loss_curve(_train(REFERENCE, KERNEL_SETS["torch"], device))


@pytest.mark.parametrize("stage", OTHERS.values(), ids=OTHERS)
def test_stage_trains_like_stage_1(
    stage: Stage, kernels: KernelSet, device: torch.device, reference: torch.Tensor, pytestconfig: pytest.Config
) -> None:
    """Same text, same seed: the loss curve stays within its precision's band of plain Adam and nn.LayerNorm in FP32."""
    if reason := stage.unavailable(kernels, device):
        pytest.skip(reason)
    if stage.compiled and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{stage.name} compiles for half a minute: runs only with --full")
    curve = loss_curve(_train(stage, kernels, device))
    assert_same_curve(
        curve, reference, BANDS["tf32" if stage.tf32 else stage.precision], f"{stage.name}@{kernels.name}"
    )


def test_adam_trains_like_the_loop(
    adam: AdamCandidate, device: torch.device, reference: torch.Tensor, pytestconfig: pytest.Config
) -> None:
    """Every Adam, a brought one too, trains the model in FP32 within the band of torch's default."""
    _assert_trains_alike("2_fused_adam", adam, device, reference, pytestconfig)


def test_layer_norm_trains_like_torch(
    layer_norm: NormCandidate, device: torch.device, reference: torch.Tensor, pytestconfig: pytest.Config
) -> None:
    """Every LayerNorm, a brought one too, trains the model in FP32 within the band of nn.LayerNorm."""
    _assert_trains_alike("3_fused_layer_norm", layer_norm, device, reference, pytestconfig)


def _assert_trains_alike(
    stage: str,
    candidate: AdamCandidate | NormCandidate,
    device: torch.device,
    reference: torch.Tensor,
    pytestconfig: pytest.Config,
) -> None:
    if reason := candidate.unavailable(device):
        pytest.skip(reason)
    if candidate.compiled and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{candidate.name} compiles for half a minute: runs only with --full")
    training = _train(STAGES[stage], brought_kernel_set(candidate), device)
    assert_same_curve(loss_curve(training), reference, BANDS["fp32"], candidate.name)


def _set(**values: object) -> Callable[[Training], None]:
    def change(training: Training) -> None:
        for group in training.optimizer.param_groups:
            group.update(values)

    return change


def _never_step(training: Training) -> None:
    training.optimizer.step = lambda: None


@pytest.mark.parametrize(
    ("stage", "bug"),
    [
        pytest.param("2_fused_adam", _set(lr=3e-4 * 1.01), id="fp32-lr_1_percent_high"),
        pytest.param("2_fused_adam", _set(betas=(0.9, 0.99)), id="fp32-beta2_0.99"),
        pytest.param("2_fused_adam", _set(eps=1e-5), id="fp32-eps_1e-5"),
        pytest.param("2_fused_adam", _set(weight_decay=0.1), id="fp32-weight_decay_0.1"),
        pytest.param("2_fused_adam", _never_step, id="fp32-no_step"),
        pytest.param("4_amp_bf16", _set(lr=3e-4 * 1.03), id="bf16-lr_3_percent_high"),
        pytest.param("4_amp_bf16", _never_step, id="bf16-no_step"),
    ],
)
def test_another_result_is_noticed(
    stage: str, bug: Callable[[Training], None], device: torch.device, reference: torch.Tensor
) -> None:
    """A training that differs in more than rounding leaves the band."""
    training = _train(STAGES[stage], KERNEL_SETS["torch"], device)
    bug(training)
    with pytest.raises(AssertionError, match="loss"):
        assert_same_curve(loss_curve(training), reference, BANDS[STAGES[stage].precision], stage)
