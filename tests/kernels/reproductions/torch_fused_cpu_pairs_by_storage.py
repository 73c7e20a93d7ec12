"""A parameter and a gradient of different strides: torch's fused Adam on a CPU pairs the wrong elements."""

import torch

ends = []
for fused in (False, True):
    param = torch.zeros(2, 3, requires_grad=True)
    param.grad = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]]).t()
    torch.optim.Adam([param], lr=0.1, fused=fused).step()
    ends.append(param.detach())

print(f"unfused:\n{ends[0]}\nfused:\n{ends[1]}")
assert torch.allclose(*ends)
