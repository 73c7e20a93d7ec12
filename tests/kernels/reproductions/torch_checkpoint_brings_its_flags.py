"""load_state_dict turns a fused Adam into the unfused one that wrote the checkpoint."""

import torch

param = torch.ones(4, requires_grad=True)
param.grad = torch.ones(4)
plain = torch.optim.Adam([param], foreach=False)
plain.step()

fused = torch.optim.Adam([param], fused=True)
fused.load_state_dict(plain.state_dict())

print(f"built with fused=True, now {fused.param_groups[0]['fused']}")
assert fused.param_groups[0]["fused"]
