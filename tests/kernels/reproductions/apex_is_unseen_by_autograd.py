"""Backward after a step through values that the step has overwritten: an error, or a gradient of other values?"""

import torch
from apex.optimizers import FusedAdam

param = torch.full((1,), 3.0, device="cuda", requires_grad=True)
optimizer = FusedAdam([param], lr=1.0)
loss = param.square().sum()
param.grad = torch.ones_like(param)
optimizer.step()
param.grad = None
try:
    loss.backward()
    said = f"no error, gradient {param.grad.item()}, which should be 6"
except RuntimeError as error:
    said = f"refused: {error}"

print(f"version {param._version}: {said}")
assert said.startswith("refused")
