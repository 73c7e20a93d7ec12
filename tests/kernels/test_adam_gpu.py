"""Every Adam where only a GPU can show a fault; in a child where that may spoil the CUDA context."""

import os
import tempfile
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from fuseproof.gpu import session_devices
from fuseproof.parity import DTYPES, ParityError
from fuseproof.parity.adam.apart import run_apart
from fuseproof.parity.adam.gpu import (
    check_huge,
    check_on_another_device,
    check_on_side_stream,
    check_replayed,
    huge_bytes,
)

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]

by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def needs_a_gpu(device):
    """Skip where there is none."""
    if device.type != "cuda":
        pytest.skip("it needs a GPU, and none can be seen")


@pytest.mark.fault(14)
@by_dtype
def test_a_graph_replays_the_next_step(adam, dtype, device):
    """Captured once and replayed five times it is five steps, counted and corrected as such; or it refuses capture."""
    needs_a_gpu(device)
    run_apart(check_replayed, adam, device, dtype)


@pytest.mark.fault(33)
@by_dtype
def test_a_step_waits_on_its_stream(adam, dtype, device):
    """Gradients that come late on the current stream are those of the step: nothing runs on another stream."""
    needs_a_gpu(device)
    check_on_side_stream(adam, device, dtype)


@pytest.mark.fault(17)
@by_dtype
def test_parameters_on_another_than_the_current_device(adam, dtype, device):
    """With cuda:0 current, parameters on cuda:1 are updated there; a worker that was given one GPU asks for two."""
    needs_a_gpu(device)
    devices = session_devices(os.environ)
    if len(devices) < 2:
        pytest.skip(f"it needs 2 GPUs, and {len(devices)} can be seen")
    both = {"CUDA_VISIBLE_DEVICES": ",".join(devices[:2])}
    run_apart(check_on_another_device, adam, device, dtype, environ=both)


@pytest.mark.huge
@pytest.mark.fault(10)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_beyond_two_to_the_31_elements(adam, dtype, device):
    """The last elements of a tensor that 32-bit indices cannot reach move like the first."""
    needs_a_gpu(device)
    with FileLock(Path(tempfile.gettempdir()) / "fuseproof-huge.lock"):  # one at a time, whoever's worker it is
        free, needed = torch.cuda.mem_get_info(device)[0], huge_bytes(adam, dtype)
        if free < needed:
            pytest.skip(f"it needs {needed / 2**30:.0f} GiB of free GPU memory, and {free / 2**30:.0f} are free")
        try:
            run_apart(check_huge, adam, device, dtype)
        except ParityError as error:
            if "OutOfMemoryError" not in str(error):
                raise
            pytest.skip("others took the GPU memory that was free")
