"""A finite gradient of 1e25, whose square FP32 cannot hold: what does a fused step make of its parameter?"""

import torch

moved = {}
for name in ("foreach", "fused"):
    param = torch.ones(64, device="cuda", requires_grad=True)
    optimizer = torch.optim.AdamW([param], lr=1e-3, **{name: True})
    param.grad = torch.where(torch.arange(64, device="cuda") % 2 == 0, 1e25, 1.0)
    optimizer.step()
    moved[name] = int((~param.isfinite()).sum())
    print(
        f"{name}: {moved[name]} of 64 parameters infinite or NaN, exp_avg_sq {optimizer.state[param]['exp_avg_sq'][:2]}"
    )
assert moved["foreach"] == 0
assert moved["fused"] == 0
