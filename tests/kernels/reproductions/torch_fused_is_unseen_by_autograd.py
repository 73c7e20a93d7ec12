"""Backward after a step through values that the step has overwritten: an error, or a gradient of other values?"""

import torch

for fused in (False, True):
    param = torch.full((1,), 3.0, requires_grad=True)
    optimizer = torch.optim.Adam([param], lr=1.0, fused=fused)
    loss = param.square().sum()
    param.grad = torch.ones(1)
    optimizer.step()
    param.grad = None
    try:
        loss.backward()
        said = f"no error, gradient {param.grad.item()}, which should be 6"
    except RuntimeError as error:
        said = f"refused: {str(error)[:90]} ..."
    print(f"fused={fused}, version {param._version}: {said}")
assert said.startswith("refused")
