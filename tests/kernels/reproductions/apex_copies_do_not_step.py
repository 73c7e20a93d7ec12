"""A copy of a FusedAdam cannot step."""

import copy

import torch
from apex.optimizers import FusedAdam

param = torch.ones(4, device="cuda", requires_grad=True)
copied, (same,) = copy.deepcopy((FusedAdam([param]), [param]))
same.grad = torch.ones_like(same)
copied.step()
