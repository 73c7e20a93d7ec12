"""A captured step of a FusedAdam that is not capturable, replayed: an error, or the next step?"""

import torch
from apex.optimizers import FusedAdam

ends = []
for captured in (False, True):
    param = torch.zeros(4, device="cuda", requires_grad=True)
    param.grad = torch.ones_like(param)
    optimizer = FusedAdam([param], lr=0.1, betas=(0.5, 0.5))
    step = optimizer.step
    optimizer.step()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            optimizer.step()
        step = graph.replay
    for _ in range(3):
        param.grad.mul_(2)
        step()
    ends.append(param[0].item())

print(f"four steps: {ends[0]:.4f}; one, and three replays: {ends[1]:.4f}")
assert abs(ends[0] / ends[1] - 1) < 1e-5
