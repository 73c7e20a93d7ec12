"""This repository's short option names, and which benchmarks its nights judge; fixtures live in the package."""

from pathlib import Path
from typing import Any

import pytest

from fuseproof.selection import GATE_MARK


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add short names for the plugin's options."""
    group = parser.getgroup("fuseproof")
    group.addoption("--full", action="store_true", dest="fuseproof_full", help="short for --fuseproof-full")
    group.addoption("--coverage", action="store_true", dest="fuseproof_coverage", help="short for --fuseproof-coverage")
    modes = ("fail", "warn", "off")
    group.addoption("--gate", choices=modes, dest="fuseproof_gate", help="short for --fuseproof-gate")
    group.addoption("--gate-json", metavar="FILE", dest="fuseproof_gate_json", help="short for --fuseproof-gate-json")
    for name, metavar in (("require", "WHAT"), ("adam", "NAME=MODULE:ATTR"), ("layer-norm", "NAME=MODULE:ATTR")):
        group.addoption(
            f"--{name}",
            action="store" if name == "require" else "append",
            dest=f"fuseproof_{name.replace('-', '_')}",
            default="" if name == "require" else None,
            metavar=metavar,
            help=f"short for --fuseproof-{name}",
        )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the eleven thousand cases of parity alone where the night's benchmarks alone are asked for."""
    if config.option.markexpr.strip() != GATE_MARK or collection_path.suffix != ".py":
        return None
    return not collection_path.stem.endswith("_benchmark") or None


@pytest.hookimpl(tryfirst=True)  # before -m looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the night's share of the benchmarks: ``-m fuseproof_gate``."""
    for item in items:
        choice = GATE.get(getattr(item, "originalname", ""))
        if choice is not None and choice(**item.callspec.params):  # type: ignore[attr-defined]
            item.add_marker(GATE_MARK)


# 43 keys on an H200 with Apex. A stage takes 0.4 to 2.6 s there and as long again to be profiled where an iteration
# takes 0.16 s, so of gpt2_small's the last of the ladder alone; a kernel 0.1 to 1 s, but tensor by tensor, or in many
# launches over 2,000 tensors, 1 to 4 s: fused ones only. Adam and LayerNorm from primitives, and gpt2_medium's
# parameters, say nothing of a fused kernel that the others do not.


def _iteration(stage: Any, size: Any, kernels: Any, **_: Any) -> bool:
    if stage.full or stage.name == "0_textbook" or kernels.brought:
        return False
    return size.name in {"tiny", "launch_bound"} or (size.name == "gpt2_small" and stage.name == "4_amp_bf16")


def _adam_step(adam: Any, parameter_set: str) -> bool:
    if adam.launches_per_tensor or not adam.nightly:
        return False
    return parameter_set in {"gpt2_small", "10m"} or (
        parameter_set == "2000x64" and adam.name not in {"torch_default", "torch_foreach"}
    )


def _layer_norm(layer_norm: Any, shape: Any, dtype: str, **_: Any) -> bool:
    return layer_norm.nightly and layer_norm.name != "primitive" and not shape.full and dtype != "fp16"


GATE = {"test_training_iteration": _iteration, "test_adam_step": _adam_step, "test_layer_norm": _layer_norm}
