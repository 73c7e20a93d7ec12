"""dx in memory-efficient mode in BF16: x_hat comes from y, which was rounded."""

import torch
from apex.normalization import FusedLayerNorm

generator = torch.Generator("cuda").manual_seed(0)
x, dy = (torch.randn(64, 256, device="cuda", generator=generator).bfloat16() for _ in range(2))
beta = torch.randn(256, device="cuda", generator=generator).bfloat16()


def dx_of(layer, x, dy):
    """Return dx in FP64."""
    x = x.detach().requires_grad_()
    layer(x).backward(dy)
    return x.grad.double()


layer = FusedLayerNorm(256, memory_efficient=True).cuda().bfloat16()
layer.bias.data.copy_(beta)
right = dx_of(torch.nn.LayerNorm(256).cuda().double(), x.double(), dy.double())
wrong = (dx_of(layer, x, dy) - right).abs() > 2**-8 * right.abs() + 1e-5
print(f"{wrong.double().mean().item():.1%} of dx is not the right result, rounded")
assert wrong.double().mean() < 0.01
