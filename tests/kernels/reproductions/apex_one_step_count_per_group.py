"""The second parameter's first gradient comes at step 6: its first update should be lr."""

import torch
from apex.optimizers import FusedAdam

early, late = (torch.zeros(1, device="cuda", requires_grad=True) for _ in range(2))
optimizer = FusedAdam([early, late], lr=1.0)
for step in range(1, 7):
    early.grad = torch.ones(1, device="cuda")
    late.grad = torch.ones(1, device="cuda") if step == 6 else None
    optimizer.step()

print(f"the late parameter's first update is {-late.item():.2f} lr")
assert abs(late.item() + 1) < 1e-3
