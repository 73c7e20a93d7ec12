"""Rows beyond 2^31 elements of a FusedLayerNorm, in 13 GiB of GPU memory: whose mean and variance are theirs?"""

import torch
from apex.normalization import FusedLayerNorm

hidden, rows = 1024, 2**21 + 1
# 2^31 elements before the last row of x, where 32-bit indices lead, is the first row of this.
memory = torch.zeros(2**21 + rows, hidden, device="cuda", dtype=torch.float16)
memory[0] = torch.linspace(100, 200, hidden)
x = memory[-rows:]
x[-1] = torch.linspace(-1, 1, hidden)
norm = FusedLayerNorm(hidden).to(device="cuda", dtype=torch.float16)
with torch.no_grad():
    alone, among = norm(x[-1:].clone())[0], norm(x)[-1]

print(f"the last of {rows} rows begins with {among[:3].tolist()}, by itself with {alone[:3].tolist()}")
assert torch.allclose(among, alone, atol=1e-2)
