"""What a candidate is: frozen records with the facts about an implementation that an oracle must know."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import nn

from fuseproof.oracle import AdamHyper

__all__ = [
    "ALL_DTYPES",
    "CUDA",
    "HALVES",
    "AdamCandidate",
    "AdamSettings",
    "Arithmetic",
    "Kernel",
    "NormCandidate",
    "by_name",
    "compiler_missing_reason",
]

CUDA = frozenset({"cuda"})
ANYWHERE = frozenset({"cuda", "cpu"})
HALVES = frozenset({torch.bfloat16, torch.float16})
_MOST_COMPILED_TENSORS = 40
ALL_DTYPES = HALVES | {torch.float32}


@dataclass(frozen=True)
class AdamSettings:
    """Hyper-parameters of Adam, under the names of ``torch.optim.Adam``.

    Attributes:
        lr, betas, eps, weight_decay: as there.
        decoupled: AdamW's weight decay instead of an L2 term in the gradient.
        bias_correction: whether moments are corrected; only some implementations can leave it out.

    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = True
    bias_correction: bool = True


def _always() -> None:
    return None


@dataclass(frozen=True)
class Arithmetic:
    """What an oracle must know of an Adam's arithmetic on one kind of device.

    Attributes:
        hyper: the dtype in which update and moments take lr, betas, eps and decay.
        bias_betas: the dtype in which the betas enter ``1 - beta ** step``; 1 - 0.999^2 with beta2 in FP32 is off by
            1.3e-5.
        power_ulps: by how many FP32 ulps that power may be off; 0 where it is computed in FP64.

    """

    hyper: torch.dtype = torch.float64
    bias_betas: torch.dtype = torch.float64
    power_ulps: float = 0.0


_IN_FLOAT64 = Arithmetic()


@dataclass(frozen=True)
class Kernel:
    """What a fused implementation launches.

    Attributes:
        name: regular expression found in the full name of the kernel, on a CPU of the operator.
        launches: how many of them update some tensors that fit into one; None: as many as it has operations.

    """

    name: str
    launches: int | None = 1


@dataclass(frozen=True)
class AdamCandidate:
    """One implementation of Adam.

    Attributes:
        name: its name in keys, ids and tables.
        build: parameters and settings to an optimizer.
        device_types: where it runs: "cuda", "cpu".
        dtypes: of the parameters, for which it is meant.
        decay_modes: which weight decay it can do.
        arithmetic_on: its arithmetic by device type, where it does not take its hyper-parameters in FP64.
        moments: dtype of exp_avg and exp_avg_sq: always FP32, or the parameter's.
        step_count: whose steps the bias correction counts: each parameter's own, or its group's.
        capturable: a CUDA graph may capture its step.
        master_weights: it keeps FP32 copies of half-precision parameters.
        writes: what `step()` may write besides parameters, moments and counters.
        launches_per_tensor: it launches kernels tensor by tensor; the host cannot run ahead of the device.
        compiled: it goes through ``torch.compile``: half a minute for every new set of shapes.
        kernels: by device type, the kernel that updates many tensors at once.
        switches_correction: it takes `bias_correction`.
        own_kernels: a wrong state can lead its kernels astray in memory: what may do so runs in a child on a GPU.
        brought: ``NAME=module:attr``, by which it was brought; empty for the suite's own.
        nightly: a night times it; variants are timed with ``--fuseproof-full`` only.
        missing: why it is not available in this environment, or None.

    """

    name: str
    build: Callable[[Iterable[torch.Tensor], AdamSettings], torch.optim.Optimizer]
    device_types: frozenset[str] = ANYWHERE
    dtypes: frozenset[torch.dtype] = ALL_DTYPES
    decay_modes: frozenset[Literal["l2", "decoupled"]] = frozenset({"l2", "decoupled"})
    arithmetic_on: Mapping[str, Arithmetic] = field(default_factory=dict)
    moments: Literal["float32", "parameter"] = "parameter"
    step_count: Literal["parameter", "group"] = "parameter"
    capturable: bool = False
    master_weights: bool = False
    writes: frozenset[Literal["grad"]] = frozenset()
    launches_per_tensor: bool = False
    compiled: bool = False
    kernels: Mapping[str, Kernel] = field(default_factory=dict)
    switches_correction: bool = False
    own_kernels: bool = False
    brought: str = ""
    nightly: bool = True
    missing: Callable[[], str | None] = _always

    @property
    def reference(self) -> str:
        """What `adam_candidate` finds it by."""
        return self.brought or self.name

    @property
    def full_name(self) -> str:
        """Its name among candidates of all kinds that a fixture has."""
        return self.name

    def arithmetic(self, device: torch.device) -> Arithmetic:
        """Return what an oracle must know of its arithmetic on `device`."""
        return self.arithmetic_on.get(device.type, _IN_FLOAT64)

    def hyper(self, settings: AdamSettings, device: torch.device) -> AdamHyper:
        """Return `settings` as an oracle takes them, with the rounding that they get in its arithmetic on `device`."""
        arithmetic = self.arithmetic(device)
        return AdamHyper(
            settings.lr,
            settings.betas,
            settings.eps,
            settings.weight_decay,
            settings.decoupled,
            arithmetic.hyper,
            arithmetic.bias_betas,
            settings.bias_correction,
        )

    def unavailable(self, device: torch.device, tensors: int = 1) -> str | None:
        """Return why this candidate cannot run on `device` over so many tensors, or None."""
        if self.compiled and tensors > _MOST_COMPILED_TENSORS:
            return f"{self.name} is compiled for at most {_MOST_COMPILED_TENSORS} tensors: more take minutes"
        return _unavailable(self.name, self.device_types, self.missing, device)


@dataclass(frozen=True)
class NormCandidate:
    """One implementation of LayerNorm or RMSNorm.

    Attributes:
        name: its name in keys, ids and tables.
        build: normalized_shape and eps to a module with `weight` and, for LayerNorm, `bias`; besides
            ``elementwise_affine=False`` and ``bias=False`` where `leaves_out` has them.
        kind: which of the two it is.
        device_types: where it runs: "cuda", "cpu".
        dtypes: of the input, in which it is meant to be used.
        normalized_dims: how many dimensions a normalized_shape may have.
        leaves_out: the arguments of ``nn.LayerNorm`` that it takes besides, by which it has no parameters or no bias.
        half_affine: with half-precision weights it may round x_hat to their dtype before it scales and shifts.
        x_hat_from_output: backward computes x_hat from the stored, rounded y instead of from x.
        half_backward_on: device types where the backward of half-precision inputs rounds what it computes in between
            to that precision, the sums of dgamma and dbeta over the rows too.
        half_partials_on: device types where, beyond 65,536 rows, dgamma and dbeta of half-precision inputs are sums of
            sums over parts of the rows that were rounded to that precision.
        batch_dependent_on: device types where the bits of a row may depend on how many rows there are.
        statistics: y to the mean, if there is one, and the rstd that were saved for the backward; None: not known.
        kernels: what the names of its CUDA kernels match; None: not known.
        compiled: it goes through ``torch.compile``.
        brought: ``NAME=module:attr``, by which it was brought; empty for the suite's own.
        nightly: a night times it; variants are timed with ``--fuseproof-full`` only.
        missing: why it is not available in this environment, or None.

    """

    name: str
    build: Callable[..., nn.Module]
    kind: Literal["layer_norm", "rms_norm"] = "layer_norm"
    device_types: frozenset[str] = ANYWHERE
    dtypes: frozenset[torch.dtype] = ALL_DTYPES
    normalized_dims: int = 3
    leaves_out: frozenset[Literal["elementwise_affine", "bias"]] = frozenset()
    compiled: bool = False
    half_affine: bool = False
    x_hat_from_output: bool = False
    half_backward_on: frozenset[str] = frozenset()
    half_partials_on: frozenset[str] = frozenset()
    batch_dependent_on: frozenset[str] = frozenset()
    statistics: Callable[[torch.Tensor], tuple[torch.Tensor | None, torch.Tensor]] | None = None
    kernels: str | None = None
    brought: str = ""
    nightly: bool = True
    missing: Callable[[], str | None] = _always

    @property
    def reference(self) -> str:
        """What `norm_candidate` finds it by."""
        return self.brought or self.name

    @property
    def full_name(self) -> str:
        """Its name among norms of both kinds."""
        return f"{self.kind}-{self.name}"

    def unavailable(self, device: torch.device, dtype: torch.dtype = torch.float32) -> str | None:
        """Return why this candidate cannot run on `device` in `dtype`, or None."""
        if dtype not in self.dtypes:
            return f"{self.name} is not meant for {dtype}"
        return _unavailable(self.name, self.device_types, self.missing, device)


def _unavailable(
    name: str, device_types: frozenset[str], missing: Callable[[], str | None], device: torch.device
) -> str | None:
    if device.type not in device_types:
        return f"{name} has no {device.type.upper()} kernel"
    return missing()


def compiler_missing_reason() -> str | None:
    """Return why ``torch.compile`` cannot work here, or None: it needs a C++ compiler, on a GPU too."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) or shutil.which("clang++"):
        return None
    return f"torch.compile needs a C++ compiler, and neither {compiler} nor clang++ is here"


def by_name(*records: Any) -> Mapping[str, Any]:
    """Return the records as a read-only mapping by their names."""
    return MappingProxyType({record.name: record for record in records})
