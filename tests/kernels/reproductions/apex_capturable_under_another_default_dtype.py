"""A model made under the default dtype BF16 whose parameters are FP32: does a capturable FusedAdam step?"""

import torch
from apex.optimizers import FusedAdam

torch.set_default_dtype(torch.bfloat16)
param = torch.ones(4, device="cuda", dtype=torch.float32, requires_grad=True)
optimizer = FusedAdam([param], lr=1e-3, capturable=True)
param.grad = torch.ones_like(param)
optimizer.step()
print(f"it moved by {1 - param.mean().item():.4g}; 0.001 is right")
assert abs(1 - param.mean().item() - 1e-3) < 1e-5
