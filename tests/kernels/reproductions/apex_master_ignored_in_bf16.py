"""BF16 parameters with masters, lr far below half a unit, 50 steps: the master should move by 50 lr."""

import torch
from apex.optimizers import FusedAdam

moved = {}
for dtype in (torch.float16, torch.bfloat16):
    param = torch.ones(4, device="cuda", dtype=dtype, requires_grad=True)
    optimizer = FusedAdam([param], lr=1e-5, capturable=True, master_weights=True)
    for _ in range(50):
        param.grad = torch.ones_like(param)
        optimizer.step()
    moved[dtype] = 1 - optimizer.param_groups_master[0]["params"][0].mean().item()

print(f"the master moved by {moved}, which should be 5e-4")
assert abs(moved[torch.float16] - 5e-4) < 1e-5
assert abs(moved[torch.bfloat16] - 5e-4) < 1e-5
