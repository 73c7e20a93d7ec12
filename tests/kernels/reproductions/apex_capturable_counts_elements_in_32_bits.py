"""A capturable FusedAdam over 2^31 + 8 elements, in 28 GiB of GPU memory: does the step end without a CUDA error?"""

import torch
from apex.optimizers import FusedAdam

param = torch.ones(2**31 + 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
param.grad = torch.ones_like(param, requires_grad=False)
optimizer = FusedAdam([param], lr=0.25, capturable=True)
said = "no error"
try:
    optimizer.step()
    torch.cuda.synchronize()
except RuntimeError as error:
    said = str(error).splitlines()[0]

print(f"after a step over {param.numel()} elements: {said}")
assert said == "no error"
assert param[0].item() == param[-1].item() == 0.75
