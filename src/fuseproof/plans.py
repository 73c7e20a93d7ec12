"""Plans for the suite's benchmarks: Adam's step, LayerNorm, and the stages of the ladder."""

from __future__ import annotations

import dataclasses

import torch

from fuseproof.candidates import AdamCandidate, KernelSet, NormCandidate
from fuseproof.ladder import Stage
from fuseproof.measure import Key, Plan
from fuseproof.parity import DTYPES
from fuseproof.roofline import Work, adam_work, norm_work
from fuseproof.subjects import AdamStep, NormForward, NormForwardBackward, adam_settings, parameter_shapes
from fuseproof.training import Training
from fuseproof.workload import Size, text_hash

__all__ = ["adam_plan", "ladder_plan", "norm_plan"]

# Rounds are a fixed part of the method. On an H200 they keep most kernels' benchmarks below 0.4 s (docs/measuring.md
# names the others) and a stage's below 3 s.
_KERNEL_ROUNDS = 60
_LARGE_SET_ROUNDS = 30  # a hundred million parameters: milliseconds a round
_MANY_TENSORS_ROUNDS = 10  # the host needs up to 35 ms, and the spin half as long again
_PROFILED_ROUNDS = 3
_ITERATIONS = {"tiny": 40, "launch_bound": 40, "gpt2_small": 8, "gpt2_medium": 6}
_CPU_KERNEL_ROUNDS = 20
_CPU_ITERATIONS = {"tiny": 20, "launch_bound": 5}
# By name, so that a setting which parity needs and no benchmark changes leaves the history comparable.
_HASHED_SETTINGS = ("lr", "betas", "eps", "weight_decay", "decoupled")


def adam_plan(candidate: AdamCandidate, parameter_set: str, device: torch.device) -> Plan:
    """Time one ``optimizer.step()`` over a parameter set in FP32."""
    shapes = parameter_shapes(parameter_set)
    elements = sum(shape.numel() for shape in shapes)
    if device.type == "cpu":
        rounds = _CPU_KERNEL_ROUNDS
    elif candidate.launches_per_tensor:
        rounds = _PROFILED_ROUNDS
    elif len(shapes) >= 1000:
        rounds = _MANY_TENSORS_ROUNDS
    else:
        rounds = _LARGE_SET_ROUNDS
    settings = dataclasses.asdict(adam_settings(candidate))
    return Plan(
        key=Key("adam_step", candidate.name, "fp32", parameter_set),
        build=lambda: AdamStep(candidate, parameter_set, device),
        clock="profiled" if candidate.launches_per_tensor else "kernel",
        rounds=rounds,
        work=adam_work(elements, torch.float32),
        method={
            "shapes": [list(shape) for shape in shapes],
            "settings": {name: value for name, value in settings.items() if name in _HASHED_SETTINGS},
            "inputs": AdamStep.inputs,
        },
    )


def norm_plan(
    candidate: NormCandidate, rows: int, hidden: int, dtype: str, device: torch.device, *, backward: bool
) -> Plan:
    """Time a norm forward, or forward and backward, over ``(rows, hidden)``; `dtype` is a name in `DTYPES`."""
    subject = NormForwardBackward if backward else NormForward
    return Plan(
        key=Key(candidate.kind + ("_fwd_bwd" if backward else "_fwd"), candidate.name, dtype, f"{rows}x{hidden}"),
        build=lambda: subject(candidate, rows, hidden, DTYPES[dtype], device),
        clock="kernel",
        rounds=_CPU_KERNEL_ROUNDS if device.type == "cpu" else _KERNEL_ROUNDS,
        work=norm_work(rows, hidden, DTYPES[dtype], backward, vectors=2 if candidate.kind == "layer_norm" else 1),
        method={"rows": rows, "hidden": hidden, "dtype": dtype, "inputs": subject.inputs},
    )


def ladder_plan(stage: Stage, kernels: KernelSet, size: Size, device: torch.device) -> Plan:
    """Time whole training iterations of one stage of the ladder."""
    rounds = _CPU_ITERATIONS if device.type == "cpu" else _ITERATIONS
    dimensions = {name: value for name, value in dataclasses.asdict(size).items() if isinstance(value, int)}
    return Plan(
        key=Key("iteration", f"{stage.name}@{kernels.name}", stage.precision, size.name),
        build=lambda: Training(stage, kernels, size, device),
        clock="iteration",
        rounds=rounds[size.name],
        work=Work(flops=size.matmul_flops, precision=stage.ceiling),
        method={"size": dimensions, "precision": stage.precision, "micro_batches": stage.micro_batches},
        about={
            "stage": stage.name,
            "base": stage.base,
            "kernels": kernels.name,
            "size": size.name,
            "tokens": size.tokens,
            "text": text_hash(),
        },
    )
