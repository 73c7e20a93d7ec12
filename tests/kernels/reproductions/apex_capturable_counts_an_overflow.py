"""Two groups, an overflow in the first step, then a good step: both groups have taken one step."""

import torch
from apex.optimizers import FusedAdam

params = [torch.zeros(4, device="cuda", requires_grad=True) for _ in range(2)]
optimizer = FusedAdam([{"params": [param]} for param in params], lr=0.1, capturable=True)
scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
for factor in (float("inf"), 1.0):
    optimizer.zero_grad()
    loss = sum(factor * param.sum() for param in params)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

counts = [group["step"].item() for group in optimizer.param_groups]
print(f"steps counted by the groups: {counts}")
assert counts == [1, 1]
