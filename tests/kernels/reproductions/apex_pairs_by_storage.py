"""A channels_last gradient of a contiguous parameter: each element gets another one's gradient."""

import torch
from apex.optimizers import FusedAdam

values = torch.randn(4, 3, 5, 2, device="cuda")
param = torch.zeros_like(values, requires_grad=True)
param.grad = values.contiguous(memory_format=torch.channels_last)
FusedAdam([param], lr=1.0).step()

wrong = (param.sign() != -values.sign()).sum().item()
print(f"{wrong} of {param.numel()} elements did not go against their gradient")
assert wrong == 0
