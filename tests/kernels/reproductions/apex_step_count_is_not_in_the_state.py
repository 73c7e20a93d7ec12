"""The state of torch's Adam after ten steps, loaded into FusedAdam's own groups: its next step is lr again."""

import torch
from apex.optimizers import FusedAdam

param = torch.zeros(4, device="cuda", requires_grad=True)
param.grad = torch.ones_like(param)
plain = torch.optim.AdamW([param], lr=0.1, weight_decay=0.0)
for _ in range(10):
    plain.step()
fused = FusedAdam([param], lr=0.1)
state = plain.state_dict()
state["param_groups"] = fused.state_dict()["param_groups"]
fused.load_state_dict(state)
before = param[0].item()
fused.step()

moved = before - param[0].item()
print(f"the next step moved by {moved:.3f}, which should be 0.1")
assert abs(moved - 0.1) < 1e-3
