"""dgamma and dbeta over more than 65,536 rows in half precision: sums of 32 rows are rounded before they are summed."""

import torch

rows, columns = 65_537, 8
layer = torch.nn.LayerNorm(columns, device="cuda", dtype=torch.bfloat16)
generator = torch.Generator().manual_seed(20261129)
x, dy = (torch.randn(rows, columns, generator=generator).bfloat16().cuda() for _ in range(2))
layer(x).backward(dy)

right = dy.double().sum(0)
error = (layer.bias.grad.double() - right).abs()
ulps = (error / (2**-7 * right.abs())).max().item()
print(
    f"torch {torch.__version__}: dbeta over {rows} rows is up to {error.max().item():.3g} off, {ulps:.1f} units of BF16"
)
assert (error <= 2**-8 * right.abs() + 1e-2).all(), "the right sum, rounded once, was expected"
