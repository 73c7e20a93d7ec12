"""Adam in BF16 is not Adam in FP32, rounded: torch rounds after every operation. In FP16 it divides by zero."""

import torch

torch.manual_seed(0)
half = torch.randn(1000).bfloat16().requires_grad_()
full = half.detach().float().requires_grad_()
half.grad = torch.randn(1000).bfloat16() / 32
full.grad = half.grad.float()
for param in (half, full):
    torch.optim.Adam([param], lr=0.1, foreach=False).step()
right = (half == full.bfloat16()).float().mean().item()

small = torch.ones(4, dtype=torch.float16, requires_grad=True)
small.grad = torch.full_like(small, 1e-3)
torch.optim.Adam([small], lr=0.1, foreach=False).step()

print(f"BF16: {right:.0%} are the rounded result; FP16, gradients 1e-3: {small.tolist()}")
assert right > 0.99
assert small.isfinite().all()
