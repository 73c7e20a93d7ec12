"""Parameters and state of before are put back, and the next step goes on from the later masters."""

import copy

import torch
from apex.optimizers import FusedAdam

param = torch.zeros(4, device="cuda", requires_grad=True)
param.grad = torch.ones_like(param)
fused = FusedAdam([param], lr=0.1, capturable=True, master_weights=True)
before = copy.deepcopy(fused.state_dict())
for _ in range(10):
    fused.step()
with torch.no_grad():
    param.zero_()
fused.load_state_dict(before)
fused.step()

print(f"one step from 0 with lr 0.1 ends at {param[0].item():.3f}, which should be -0.100")
assert abs(param[0].item() + 0.1) < 1e-3
