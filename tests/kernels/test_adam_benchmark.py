"""How long one step of each Adam takes."""

from collections.abc import Callable

import pytest
import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.measure import Plan
from fuseproof.plans import adam_plan
from fuseproof.subjects import parameter_shapes

# Each with the kind of machine whose night can afford it.
PARAMETER_SETS = {"gpt2_small": "cuda", "gpt2_medium": "cuda", "2000x64": "cuda", "10m": "cpu"}


@pytest.mark.parametrize("parameter_set", PARAMETER_SETS)
def test_adam_step(
    adam: AdamCandidate,
    parameter_set: str,
    device: torch.device,
    measure: Callable[[Plan], None],
    pytestconfig: pytest.Config,
) -> None:
    """One FP32 step over the parameters; every update is compared with FP64 before a time is posted."""
    if device.type != PARAMETER_SETS[parameter_set]:
        pytest.skip(f"{parameter_set} is a parameter set for {PARAMETER_SETS[parameter_set]}")
    if not adam.nightly and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{adam.name} runs only with --full")
    if reason := adam.unavailable(device, len(parameter_shapes(parameter_set))):
        pytest.skip(reason)
    measure(adam_plan(adam, parameter_set, device))
