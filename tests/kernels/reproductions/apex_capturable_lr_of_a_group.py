"""A capturable FusedAdam over a group with its own lr."""

import torch
from apex.optimizers import FusedAdam

param = torch.ones(4, device="cuda", requires_grad=True)
FusedAdam([{"params": [param], "lr": 1e-3}], capturable=True)
