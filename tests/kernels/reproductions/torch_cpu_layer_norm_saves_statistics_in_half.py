"""LayerNorm on a CPU saves rstd in the input's dtype: with a tiny eps it is infinite in FP16, and dx is NaN."""

import torch

x = torch.tensor([[1e-3, 2e-3, 3e-3, 4e-3]]).half().mul(1e-2).requires_grad_()
y = torch.nn.functional.layer_norm(x, (4,), eps=1e-12)
(dx,) = torch.autograd.grad(y, x, torch.tensor([[1.0, 0.0, 0.0, 0.0]]).half())
mean, rstd = torch.native_layer_norm(x, (4,), None, None, 1e-12)[1:]
print(f"torch {torch.__version__}: rstd {rstd.item()} in {rstd.dtype}, dx {dx.tolist()}")
assert rstd.dtype == torch.float32, "rstd is saved in half precision"
