"""Moments of a contiguous checkpoint under a channels-last parameter: torch's fused Adam pairs the wrong elements."""

import copy

import torch

generator = torch.Generator().manual_seed(0)
start, *grads = (torch.randn(4, 3, 5, 2, generator=generator) for _ in range(3))
before = start.clone().requires_grad_()
saving = torch.optim.Adam([before], lr=0.1, fused=True)
before.grad = grads[0]
saving.step()

ends = []
for memory_format in (torch.contiguous_format, torch.channels_last):
    param = before.detach().clone(memory_format=memory_format).requires_grad_()
    loading = torch.optim.Adam([param], lr=0.1, fused=True)
    loading.load_state_dict(copy.deepcopy(saving.state_dict()))
    param.grad = grads[1].contiguous(memory_format=memory_format)
    loading.step()
    ends.append(param.detach())

wrong = ~torch.isclose(*ends)
print(f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, by up to {(ends[0] - ends[1]).abs().max():.3f}")
assert not wrong.any()
