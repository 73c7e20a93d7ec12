"""add_param_group: the new group is never updated."""

import torch
from apex.optimizers import FusedAdam

first, second = (torch.ones(4, device="cuda", requires_grad=True) for _ in range(2))
optimizer = FusedAdam([first], lr=0.1)
optimizer.add_param_group({"params": [second]})
for param in (first, second):
    param.grad = torch.ones_like(param)
optimizer.step()

print(f"first {first.tolist()}, second {second.tolist()}")
assert (second < 1).all()
