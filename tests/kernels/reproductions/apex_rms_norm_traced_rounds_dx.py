"""Traced, exported or compiled, FusedRMSNorm is other code, whose dx in BF16 is a sum of two that were rounded."""

import torch
from apex.normalization import FusedRMSNorm

generator = torch.Generator("cuda").manual_seed(0)
x, dy = (torch.randn(64, 256, device="cuda", generator=generator).bfloat16() for _ in range(2))


def dx_of(layer, x, dy):
    """Return dx in FP64."""
    x = x.detach().requires_grad_()
    layer(x).backward(dy)
    return x.grad.double()


layer = FusedRMSNorm(256).cuda().bfloat16()
right = dx_of(torch.nn.RMSNorm(256, eps=1e-5).cuda().double(), x.double(), dy.double())
wrong = []
for way in (layer, torch.jit.trace(layer, x, check_trace=False)):
    wrong.append(((dx_of(way, x, dy) - right).abs() > 2**-8 * right.abs() + 1e-5).double().mean().item())
print(f"{wrong[0]:.1%} of dx is not the right result, rounded; traced {wrong[1]:.1%}")
assert wrong[1] < 0.01
