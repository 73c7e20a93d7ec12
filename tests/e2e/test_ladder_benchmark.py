"""How long a training iteration takes at each stage of the ladder, and how much memory it needs."""

from collections.abc import Callable

import pytest
import torch

from fuseproof.candidates import KernelSet, default_kernel_set
from fuseproof.ladder import STAGES, Stage
from fuseproof.measure import Plan
from fuseproof.plans import ladder_plan
from fuseproof.workload import SIZES, Size

# A night takes two sizes: one that is bound by the host and one that is bound by the device.
NIGHTLY_SIZES = {"cuda": ("launch_bound", "gpt2_small"), "cpu": ("tiny", "launch_bound")}


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(each, id=name, marks=pytest.mark.fuseproof_full if each.full else ())
        for name, each in STAGES.items()
    ],
)
@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
def test_training_iteration(
    stage: Stage,
    size: Size,
    kernels: KernelSet,
    device: torch.device,
    measure: Callable[[Plan], None],
    pytestconfig: pytest.Config,
) -> None:
    """One iteration as a user writes it: zero_grad, forward, backward, step."""
    if device.type not in size.device_types:
        pytest.skip(f"{size.name} needs a GPU")
    if reason := stage.unavailable(kernels, device):
        pytest.skip(reason)
    if not pytestconfig.option.fuseproof_full:
        if size.name not in NIGHTLY_SIZES[device.type]:
            pytest.skip(f"{size.name} runs only with --full")
        if not kernels.brought and kernels is not default_kernel_set(device):
            pytest.skip(f"{kernels.name} kernels run only with --full: Apex's are here")
    measure(ladder_plan(stage, kernels, size, device))
