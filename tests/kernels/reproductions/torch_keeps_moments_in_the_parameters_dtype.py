"""A hundred steps of gradient 1e-3 in FP16: its square is 0 in the exp_avg_sq that torch keeps in FP16."""

import torch

param = torch.zeros(4, dtype=torch.float16, requires_grad=True)
optimizer = torch.optim.Adam([param], lr=1e-3, fused=True)
for _ in range(100):
    param.grad = torch.full_like(param, 1e-3)
    optimizer.step()
moved = -param.mean().item()

print(f"exp_avg_sq: {optimizer.state[param]['exp_avg_sq'].tolist()}; moved by {moved:.4f}, which should be 0.1")
assert abs(moved - 0.1) < 0.01
