"""An empty tensor at the end of the list: nothing before it is updated."""

import torch
from apex.optimizers import FusedAdam

params = [torch.ones(size, device="cuda", requires_grad=True) for size in (100, 0)]
for param in params:
    param.grad = torch.ones_like(param)
FusedAdam(params, lr=0.1).step()

print(f"after a step the 100 elements are {params[0].unique().tolist()}")
assert (params[0] < 1).all()
