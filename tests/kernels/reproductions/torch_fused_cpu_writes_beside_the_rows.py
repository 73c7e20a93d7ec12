"""A parameter that is a slice of columns: torch's fused Adam on a CPU writes what lies between its rows."""

import torch

ends = []
for fused in (False, True):
    buffer = torch.zeros(5, 13)
    param = buffer[:, 1:7].requires_grad_()
    param.grad = torch.ones(5, 6)
    torch.optim.Adam([param], lr=0.1, fused=fused).step()
    ends.append(buffer.detach())

print(f"unfused:\n{ends[0]}\nfused:\n{ends[1]}")
moved = ends[1][:, 1:7].count_nonzero().item()
print(f"{moved} of 30 elements have moved, and {ends[1].count_nonzero().item() - moved} that are none of the parameter")
assert torch.allclose(*ends)
