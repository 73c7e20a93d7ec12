"""A LayerNorm that can be made slower by a known part: torch's own, and a spin after its forward.

    SPUN_PERCENT=3 pytest tests/kernels -k spun --layer-norm spun=spun:SpunLayerNorm

makes the spin 3 % longer, and the whole by nearly as much, since the spin is far longer than the kernel. Kernels, their
names and their number are the same with and without it: nothing but the clock can tell.
"""

import os
import time

import torch

SPIN_CYCLES = 8_000_000  # of the SM's clock: 4 ms on an H200, whose longest LayerNorm of a night takes 0.5 ms
SPIN_NS = 20_000_000  # on a CPU, where that takes 10 ms


class SpunLayerNorm(torch.nn.LayerNorm):
    """LayerNorm with a spin."""

    fuseproof_dtypes = ("fp32",)

    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__(normalized_shape, eps=eps)
        self.factor = 1 + float(os.environ.get("SPUN_PERCENT", "0")) / 100

    def forward(self, x):
        """Normalise and spin."""
        y = super().forward(x)
        if x.is_cuda:
            torch.cuda._sleep(round(SPIN_CYCLES * self.factor))
        else:
            end_ns = time.perf_counter_ns() + round(SPIN_NS * self.factor)
            while time.perf_counter_ns() < end_ns:
                pass
        return y
