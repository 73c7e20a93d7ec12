"""How long each LayerNorm and RMSNorm takes, forward and with its backward."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from fuseproof.candidates import NormCandidate
from fuseproof.measure import Plan
from fuseproof.parity import DTYPES
from fuseproof.plans import norm_plan


@dataclass(frozen=True)
class Shape:
    """Input of a norm, and where a night can afford it."""

    rows: int
    hidden: int
    device_types: tuple[str, ...] = ("cuda",)
    full: bool = False

    @property
    def name(self) -> str:
        """The shape in ids and keys."""
        return f"{self.rows}x{self.hidden}"


SHAPES = (
    Shape(64, 768, ("cuda", "cpu")),
    Shape(2048, 1024, ("cpu",)),
    Shape(8192, 1024),
    Shape(8192, 4096),
    Shape(65536, 256),
    Shape(8192, 768, full=True),
    Shape(8192, 1600, full=True),
    Shape(4096, 8192, full=True),
    Shape(1024, 16384, full=True),
    Shape(131072, 128, full=True),
)


def _only_full(condition: bool) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.fuseproof_full,) if condition else ()


over_shapes = pytest.mark.parametrize(
    "shape", [pytest.param(each, id=each.name, marks=_only_full(each.full)) for each in SHAPES]
)
over_dtypes = pytest.mark.parametrize(
    "dtype", [pytest.param(each, id=each, marks=_only_full(each == "fp16")) for each in DTYPES]
)
over_directions = pytest.mark.parametrize("backward", [pytest.param(False, id="fwd"), pytest.param(True, id="fwd_bwd")])


def _plan(candidate: NormCandidate, shape: Shape, dtype: str, device: torch.device, backward: bool) -> Plan:
    if device.type not in shape.device_types:
        pytest.skip(f"{shape.name} is a shape for {', '.join(shape.device_types)}")
    if reason := candidate.unavailable(device, DTYPES[dtype]):
        pytest.skip(reason)
    return norm_plan(candidate, shape.rows, shape.hidden, dtype, device, backward=backward)


@over_directions
@over_shapes
@over_dtypes
def test_layer_norm(
    layer_norm: NormCandidate,
    dtype: str,
    shape: Shape,
    backward: bool,
    device: torch.device,
    measure: Callable[[Plan], None],
    pytestconfig: pytest.Config,
) -> None:
    """LayerNorm over (rows, hidden); y, dx, dgamma and dbeta are compared with FP64 before a time is posted."""
    if not layer_norm.nightly and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{layer_norm.name} runs only with --full")
    measure(_plan(layer_norm, shape, dtype, device, backward))


@pytest.mark.fuseproof_full
@over_directions
@over_shapes
@over_dtypes
def test_rms_norm(
    rms_norm: NormCandidate,
    dtype: str,
    shape: Shape,
    backward: bool,
    device: torch.device,
    measure: Callable[[Plan], None],
) -> None:
    """RMSNorm over (rows, hidden); y, dx and dgamma are compared with FP64 before a time is posted."""
    measure(_plan(rms_norm, shape, dtype, device, backward))
