"""Which cases of a test of `adam` run here: a fixture for modules whose tests all ask for `adam`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch

from fuseproof.candidates import AdamCandidate, AdamSettings
from fuseproof.defects import find_defect, load_defects

__all__ = ["DTYPES", "MODES", "adam_case", "settings_in_mode"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODES = ("l2", "decoupled")
# Half a minute for every new set of shapes: a dozen cases of its own, and no others.
_COMPILED = frozenset({"test_compiled_update_matches_fp64"})
_COMPILED_ELSEWHERE = "compiled candidates have test_compiled_update_matches_fp64, the others all the other tests"
_defects = cache(load_defects)


@pytest.fixture(autouse=True)
def adam_case(
    request: pytest.FixtureRequest, adam: AdamCandidate, device: torch.device, pytestconfig: pytest.Config
) -> Iterator[None]:
    """Skip what cannot run, expect the failures that `adam_defects.toml` beside the test lists, synchronise after."""
    mode = request.node.callspec.params.get("mode")
    if reason := adam.unavailable(device):
        pytest.skip(reason)
    if mode is not None and mode not in adam.decay_modes:
        pytest.skip(f"{adam.name} has no {mode} weight decay")
    if adam.compiled != (request.node.originalname in _COMPILED):
        pytest.skip(_COMPILED_ELSEWHERE)
    if adam.compiled and not pytestconfig.option.fuseproof_full:
        pytest.skip(f"{adam.name} runs only with --full")
    table = _defects(request.path.with_name("adam_defects.toml"))
    known = find_defect(table, adam.name, device.type, request.node.originalname, request.node.callspec.id)
    if known:
        request.applymarker(pytest.mark.xfail(reason=known.reason(), strict=True, raises=AssertionError))
    if adam.compiled:
        torch.compiler.reset()  # after a few sets of shapes the compiler gives up, and eager code runs in silence
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)  # tensors are small, and workers share the cores
    yield
    torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # an error is blamed on the test that caused it


def settings_in_mode(mode: str, **values: object) -> AdamSettings:
    """Return settings with a kind of weight decay by its name."""
    return AdamSettings(decoupled=mode == "decoupled", **values)  # type: ignore[arg-type]
