"""Did the fused kernel run? Each LayerNorm and RMSNorm with a record of its kernels, once per way to launch them."""

import re

import pytest
import torch

from fuseproof.counts import short_kernel_name
from fuseproof.parity.norm import NORM_DTYPES, REGIMES
from fuseproof.parity.norm.checks import build
from fuseproof.tracing import trace_rounds

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]

# (rows, columns): aligned and unaligned rows, more rows than a grid has blocks, columns beyond a block's.
PATHS = {
    "aligned": (64, 768),
    "unaligned": (64, 257),
    "many_rows": (65_537, 64),
    "long_rows": (8, 16_384),
}


def launched(call):
    """Return the names of the kernels that a call launches; copies and fills of memory are none."""
    call()
    (trace,) = trace_rounds(call, 1, None)
    return [short_kernel_name(name) for name, _, _ in trace.kernels if not name.startswith(("Memset", "Memcpy"))]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_fused_kernel_ran(norm, dtype, path, device):
    """Forward and backward launch the kernels of the record and no others: nothing fell back in silence."""
    if device.type == "cpu":
        pytest.skip("a CPU launches no kernels")
    if norm.kernels is None:
        pytest.skip(f"what the kernels of {norm.name} are called is not known")
    rows, columns = PATHS[path]
    inputs = REGIMES["usual"].inputs((rows,), (columns,), NORM_DTYPES[dtype], device).of(norm.kind)
    module = build(norm, inputs)
    x = inputs.x.detach().requires_grad_()

    forward = launched(lambda: module(x))
    both = launched(lambda: torch.autograd.grad(module(x), (x, *module.parameters()), inputs.dy))

    assert 1 <= len(forward) <= 2, f"forward launches {forward}"
    assert len(both) > len(forward), f"forward and backward launch {both}"
    others = [name for name in both if not re.fullmatch(norm.kernels, name)]
    assert not others, f"{norm.full_name} launches {others}, which are not {norm.kernels}"
