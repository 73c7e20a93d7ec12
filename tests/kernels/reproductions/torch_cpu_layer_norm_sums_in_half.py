"""LayerNorm on a CPU sums dbeta in the input's dtype: sums of ones stop where one is half a unit."""

import torch

layer = torch.nn.LayerNorm(64, dtype=torch.bfloat16)
x = torch.randn(4097, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
layer(x).backward(torch.ones_like(x))
print(f"torch {torch.__version__}: dbeta over 4,097 rows of ones is {layer.bias.grad[0].item()}")
assert abs(layer.bias.grad[0].item() - 4097) <= 32, "4,097 within a unit of BF16 was expected"
