"""Plans: what makes two numbers comparable must not change by accident, which would cut a history off in silence."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fuseproof.candidates import ADAM, KERNEL_SETS, LAYER_NORM
from fuseproof.clock import DeviceClock, IterationClock
from fuseproof.counts import ProfilerClock
from fuseproof.ladder import STAGES
from fuseproof.measure import _method_hash
from fuseproof.plans import adam_plan, ladder_plan, norm_plan
from fuseproof.workload import SIZES

CUDA = torch.device("cuda")
# The newest night of the method in use. Who changes the method on purpose measures a new night and names it here.
STORED = "0007_20261129T174535Z_3d413954_17429fe2.json"
HISTORY = Path(__file__).parents[2] / "bench_history" / "nvidia-h200"
RECORDS = {
    record["key"]: record
    for benchmark in json.loads((HISTORY / STORED).read_text(encoding="utf-8"))["benchmarks"]
    for record in [benchmark["extra_info"]["fuseproof"]]
}
CLOCKS = {
    "kernel": SimpleNamespace(describe=lambda: {"clock": DeviceClock.name, "flush_bytes": DeviceClock.flush_bytes}),
    "profiled": SimpleNamespace(describe=lambda: {"clock": ProfilerClock.name}),
    "iteration": SimpleNamespace(describe=lambda: {"clock": IterationClock.name}),
}


def plan_of(key):
    """Return the plan that a key was measured by."""
    op, candidate, dtype, shape = key.split("/")
    if op == "adam_step":
        return adam_plan(ADAM[candidate], shape, CUDA)
    if op == "iteration":
        stage, kernels = candidate.split("@")
        return ladder_plan(STAGES[stage], KERNEL_SETS[kernels], SIZES[shape], CUDA)
    rows, hidden = map(int, shape.split("x"))
    return norm_plan(LAYER_NORM[candidate], rows, hidden, dtype, CUDA, backward=op.endswith("_bwd"))


@pytest.mark.parametrize("key", RECORDS)
def test_what_was_stored_is_still_comparable(key):
    """Key and method of every benchmark of a stored night are what they would be today."""
    plan = plan_of(key)

    assert str(plan.key) == key
    assert _method_hash(plan, CLOCKS[plan.clock]) == RECORDS[key]["method"]
