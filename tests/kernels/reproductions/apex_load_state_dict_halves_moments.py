"""A BF16 parameter resumed by its state dict: FP32 moments come back as BF16, and the kernel takes them for FP32."""

import torch
from apex.optimizers import FusedAdam

param = torch.ones(1000, device="cuda", dtype=torch.bfloat16, requires_grad=True)
param.grad = torch.ones_like(param)
first, second = FusedAdam([param]), FusedAdam([param])
first.step()
second.load_state_dict(first.state_dict())

saved, loaded = (each.state[param]["exp_avg"].dtype for each in (first, second))
print(f"exp_avg was {saved}, loaded it is {loaded}")
assert loaded == torch.float32
