"""How long one step of each Adam takes."""

from collections.abc import Callable

import pytest
import torch

from fuseproof.candidates import ADAM, AdamCandidate
from fuseproof.measure import Plan
from fuseproof.plans import adam_plan

# (parameter set, where a night can afford it)
PARAMETER_SETS = {"gpt2_small": "cuda", "gpt2_medium": "cuda", "2000x64": "cuda", "10m": "cpu"}


@pytest.mark.parametrize("parameter_set", PARAMETER_SETS)
@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(each, id=each.name, marks=pytest.mark.fuseproof_profiled if each.launches_per_tensor else ())
        for each in ADAM.values()
    ],
)
def test_adam_step(
    candidate: AdamCandidate, parameter_set: str, device: torch.device, measure: Callable[[Plan], None]
) -> None:
    """One FP32 step over the parameters; every update is compared with FP64 before a time is posted."""
    if reason := candidate.unavailable(device):
        pytest.skip(reason)
    if device.type != PARAMETER_SETS[parameter_set]:
        pytest.skip(f"{parameter_set} is a parameter set for {PARAMETER_SETS[parameter_set]}")
    measure(adam_plan(candidate, parameter_set, device))
