"""FP16, gradients of 1e-3, 100 steps: capturable and plain FusedAdam should go the same way."""

import torch
from apex.optimizers import FusedAdam

moved = {}
for capturable in (False, True):
    param = torch.zeros(4, device="cuda", dtype=torch.float16, requires_grad=True)
    optimizer = FusedAdam([param], lr=1e-3, capturable=capturable)
    for _ in range(100):
        param.grad = torch.full_like(param, 1e-3)
        optimizer.step()
    moved[capturable] = -param.mean().item()

print(f"plain moved by {moved[False]:.4f}, capturable by {moved[True]:.4f}; both should move by 0.1")
assert abs(moved[False] - 0.1) < 0.01
assert abs(moved[True] - 0.1) < 0.01
