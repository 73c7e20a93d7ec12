"""zero_grad(set_to_none=True), as every optimizer of torch takes it."""

import torch
from apex.optimizers import FusedAdam

param = torch.ones(4, device="cuda", requires_grad=True)
FusedAdam([param]).zero_grad(set_to_none=True)
