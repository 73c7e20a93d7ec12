"""A capturable FusedAdam saved, loaded onto the CPU, and stepped: its kernel gets the address of a CPU tensor."""

import io

import torch
from apex.optimizers import FusedAdam

param = torch.ones(4, device="cuda", requires_grad=True)
param.grad = torch.ones_like(param)
first, second = (FusedAdam([param], capturable=True) for _ in range(2))
first.step()
file = io.BytesIO()
torch.save(first.state_dict(), file)
file.seek(0)
second.load_state_dict(torch.load(file, map_location="cpu"))

(group,) = second.param_groups
print(f"step is on {group['step'].device}, lr on {group['lr'].device}")
assert group["step"].device == group["lr"].device == param.device
