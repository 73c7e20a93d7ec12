"""y in BF16: x_hat is rounded before it is scaled, the product before it is shifted, then the sum."""

import torch
from apex.normalization import FusedLayerNorm

generator = torch.Generator("cuda").manual_seed(0)
x, gamma, beta = (
    torch.randn(*shape, device="cuda", generator=generator).bfloat16() for shape in ((64, 256), (256,), (256,))
)
layer = FusedLayerNorm(256).cuda().bfloat16()
with torch.no_grad():
    layer.weight.copy_(gamma)
    layer.bias.copy_(beta)
    y = layer(x)

right = torch.nn.functional.layer_norm(x.double(), (256,), gamma.double(), beta.double())
wrong = (y.double() - right).abs() > 2**-8 * right.abs() + 1e-5
print(f"{wrong.double().mean().item():.1%} of y is not the right result, rounded")
assert wrong.double().mean() < 0.01
