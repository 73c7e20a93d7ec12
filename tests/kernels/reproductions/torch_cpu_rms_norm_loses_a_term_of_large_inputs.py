"""RMSNorm on a CPU: dx of inputs about 1e15 lacks the term in x_hat, whose factor underflows."""

import torch

generator = torch.Generator().manual_seed(0)
x = (1e15 * torch.randn(8, 64, generator=generator)).requires_grad_()
dy = torch.randn(8, 64, generator=generator) + 1
(dx,) = torch.autograd.grad(torch.nn.functional.rms_norm(x, (64,)), x, dy)
exact = x.detach().double().requires_grad_()
y = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True))
(wanted,) = torch.autograd.grad(y, exact, dy.double())
error = ((dx - wanted).norm() / wanted.norm()).item()
print(f"torch {torch.__version__}: dx is off by {error:.2%}")
assert error < 1e-5, "the term in x_hat is missing"
