"""A capturable FusedAdam of a parameter on the second of two GPUs, while the first one is current: two steps."""

import torch
from apex.optimizers import FusedAdam

param = torch.ones(4, device="cuda:1", requires_grad=True)
param.grad = torch.ones_like(param)
optimizer = FusedAdam([param], lr=0.25, capturable=True)
said = "no error"
try:
    for _ in range(2):
        optimizer.step()
    torch.cuda.synchronize("cuda:1")
except RuntimeError as error:
    said = str(error).splitlines()[0]

print(f"after two steps: {said}")
assert said == "no error"
