"""A norm of an empty batch: an error of CUDA, which the next call of anything meets."""

import torch
from apex.normalization import FusedLayerNorm

x = torch.empty(0, 64, device="cuda", requires_grad=True)
error = ""
try:
    FusedLayerNorm(64).cuda()(x).sum().backward()
    torch.ones(1, device="cuda").add_(1).item()
except RuntimeError as raised:
    error = str(raised).splitlines()[0]

print(f"after LayerNorm of no rows torch.ones says: {error or 'nothing'}")
assert not error
