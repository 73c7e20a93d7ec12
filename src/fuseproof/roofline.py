"""The machine's ceilings, measured: bytes copied and matrix operations per second. Measuring them is the preheat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

__all__ = [
    "Ceilings",
    "Work",
    "adam_work",
    "measure_ceilings",
    "norm_work",
    "refuse_reduced_precision",
    "tf32_products",
]

_CEILINGS_S = {"cuda": 1.0, "cpu": 0.5}  # of measuring, which heats as well
_HEAT_S = 1.0  # more of heat alone, while the host goes on: what the first optimizer imports takes longer than that
_COPY_BYTES = {"cuda": 2**30, "cpu": 2**26}  # both beyond any cache
_MATRIX_SIDE = {"cuda": 8192, "cpu": 1024}
_PRECISIONS = {"cuda": ("fp32", "tf32", "bf16"), "cpu": ("fp32", "bf16")}


@dataclass(frozen=True)
class Work:
    """The least a call must do.

    Attributes:
        moved_bytes: each input read once, each output written once; None where the formula is not known.
        flops: floating-point operations of its matrix products; None where there are none or it is not known.
        precision: "fp32", "tf32" or "bf16", which matrix ceiling it stands under.

    """

    moved_bytes: int | None = None
    flops: int | None = None
    precision: str = "fp32"


def adam_work(elements: int, dtype: torch.dtype, state_dtype: torch.dtype = torch.float32) -> Work:
    """Return the bytes of one step over so many elements of parameters.

    Adam reads parameter, gradient and both moments and writes all but the gradient.
    """
    return Work(moved_bytes=elements * (3 * dtype.itemsize + 4 * state_dtype.itemsize))


def norm_work(rows: int, hidden: int, dtype: torch.dtype, backward: bool, vectors: int = 2) -> Work:
    """Return the bytes of one call over x of shape (rows, hidden), with its backward or without.

    A norm reads x and writes y; its backward reads x and dy and writes dx.

    Its `vectors` (LayerNorm: weight and bias; RMSNorm: weight) are read forward; backward reads the weight and writes
    a gradient for each. FP32 statistics per row (LayerNorm: mean and rstd; RMSNorm: rstd) are written and read.
    """
    statistics_bytes = rows * 4 * vectors
    forward = (2 * rows * hidden + vectors * hidden) * dtype.itemsize + statistics_bytes
    back = (3 * rows * hidden + (1 + vectors) * hidden) * dtype.itemsize + statistics_bytes
    return Work(moved_bytes=forward + (back if backward else 0))


@dataclass(frozen=True)
class Ceilings:
    """What this machine reached in this process.

    Attributes:
        copy_bytes_per_s: bytes read plus bytes written by a large copy.
        matmul_flops_per_s: by precision, a large square product of random matrices.

    """

    copy_bytes_per_s: float
    matmul_flops_per_s: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for a run's file."""
        return {"copy_bytes_per_s": self.copy_bytes_per_s, "matmul_flops_per_s": dict(self.matmul_flops_per_s)}

    def rates(self, work: Work, time_ns: float) -> dict[str, float]:
        """Return achieved GB/s and TFLOP/s, each with its fraction of the ceiling."""
        rates: dict[str, float] = {}
        if work.moved_bytes is not None:
            per_s = work.moved_bytes / (time_ns * 1e-9)
            rates |= {"gb_per_s": per_s / 1e9, "of_copy_ceiling": per_s / self.copy_bytes_per_s}
        if work.flops is not None:
            per_s = work.flops / (time_ns * 1e-9)
            rates |= {"tflop_per_s": per_s / 1e12, "of_matmul_ceiling": per_s / self.matmul_flops_per_s[work.precision]}
        return rates


@contextmanager
def tf32_products(wanted: bool) -> Iterator[None]:
    """Let FP32 matrix products use TF32 inside, if wanted; outside they stay FP32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if wanted else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _median_s(call: Callable[[], Any], seconds: float, device: torch.device) -> float:
    """Return the median duration of `call` over `seconds` of repetition, at least five calls, on the device's clock."""
    call()
    samples: list[float] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < 5 or time.perf_counter() < deadline:
        samples.append(_timed_s(call, device))
    return statistics.median(samples)


def _timed_s(call: Callable[[], Any], device: torch.device) -> float:
    if device.type == "cpu":
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def measure_ceilings(device: torch.device) -> Ceilings:
    """Heat the machine for about 2 s (CPU: 0.5 s) with copies and matrix products of random data, and time them.

    Random data, since zeros run faster than any real input does. The products also run backward once, so that the
    workspaces of the matrix library exist before any benchmark reads the memory in use. A GPU's second half is queued
    on the current stream: whoever waits for that stream waits for the heat.
    """
    generator = torch.Generator(device).manual_seed(0)
    precisions = _PRECISIONS[device.type]
    share = _CEILINGS_S[device.type] / (1 + len(precisions))
    source = torch.empty(_COPY_BYTES[device.type] // 4, device=device).normal_(generator=generator)
    target = torch.empty_like(source)
    copy_s = _median_s(partial(target.copy_, source), share, device)
    copy_rate = 2 * _COPY_BYTES[device.type] / copy_s
    del source, target
    side = _MATRIX_SIDE[device.type]
    rates = {}
    for name in precisions:
        dtype = torch.bfloat16 if name == "bf16" else torch.float32
        a, b = (torch.empty(side, side, device=device, dtype=dtype).normal_(generator=generator) for _ in range(2))
        out = torch.empty_like(a)
        with tf32_products(name == "tf32"):
            rates[name] = 2 * side**3 / _median_s(partial(torch.mm, a, b, out=out), share, device)
        _grow_workspaces(a[:256, :256], b[:256, :256])
    if device.type == "cuda":
        a, b, out = (torch.empty(side, side, device=device).normal_(generator=generator) for _ in range(3))
        for _ in range(round(_HEAT_S * rates["fp32"] / (2 * side**3))):
            torch.mm(a, b, out=out)
    return Ceilings(copy_rate, MappingProxyType(rates))


def _grow_workspaces(a: torch.Tensor, b: torch.Tensor) -> None:
    """Multiply forward and backward: the matrix library allocates a workspace for each thread that calls it."""
    a = a.detach().clone().requires_grad_()
    layer = torch.nn.functional.linear(a, b, b[0])
    layer.square().sum().backward()
    del a, layer


def refuse_reduced_precision(device: torch.device) -> None:
    """Raise unless an FP32 matrix product really is FP32.

    TF32 keeps 10 bits of the fraction: products of random data are off by about 3e-4, FP32 ones by well below 1e-5.
    Looking at the result also sees what no flag tells, such as NVIDIA_TF32_OVERRIDE.

    Raises:
        RuntimeError: it is not.

    """
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.empty(512, 512, device=device).normal_(generator=generator) for _ in range(2))
    exact = a.double() @ b.double()
    error = ((a @ b).double() - exact).norm().item() / exact.norm().item()
    if not error < 1e-5:
        raise RuntimeError(
            f"FP32 matrix products are off by {error:.1e}: TF32 or less is in use, so FP32 stages would not be FP32; "
            'unset NVIDIA_TF32_OVERRIDE and call torch.set_float32_matmul_precision("highest")'
        )
