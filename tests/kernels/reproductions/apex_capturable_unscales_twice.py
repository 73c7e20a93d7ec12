"""GradScaler, unscale_, clip, step, with eps comparable with the gradient: the gradient is unscaled once more."""

import torch
from apex.optimizers import FusedAdam

moved = {}
for name in ("torch", "apex"):
    param = torch.zeros(4, device="cuda", requires_grad=True)
    kind = {"torch": torch.optim.AdamW, "apex": FusedAdam}[name]
    options = {"torch": {"weight_decay": 0.0}, "apex": {"capturable": True}}[name]
    optimizer = kind([param], lr=0.1, eps=1e-3, **options)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    scaler.scale((param * 5e-4).sum()).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_([param], 1.0)
    scaler.step(optimizer)
    moved[name] = -param.mean().item()

print(f"torch moved by {moved['torch']:.5f}, Apex by {moved['apex']:.5f}")
assert abs(moved["apex"] / moved["torch"] - 1) < 1e-3
