"""Where in a GPU's memory a benchmark lies: drawn anew for each pair of processes, the same for both of its arms.

On an H200 the same kernel in the same process takes up to 2 % longer or shorter where its tensors have other physical
pages (LayerNorm's backward, 65536 x 256: 420 to 428 us over 16 places, each true to 0.1 %; docs/verdicts.md, section
12). Where they lie follows from all that was allocated before, so a torch that allocates one buffer more moves every
benchmark: two environments would differ by it in each of their pairs, and no number of pairs would average it out. Held
beside a benchmark, some memory of random sizes moves it as well: by chance, and otherwise in the next pair.
"""

from __future__ import annotations

import random

import torch

__all__ = ["hold"]

_MOST_PIECES = 8
_MIB = 2**20
_MOST_MIB = 63  # eight of them are less than half a GiB
_ODD_BYTES = 512  # more than whole MiB: the pages after a piece are not where they would be


def hold(seed: str, key: str, device: torch.device) -> list[torch.Tensor]:
    """Allocate what a benchmark has beside it, for as long as the result is kept.

    Args:
        seed: of the pair; empty: nothing is held, the benchmark lies where it comes to lie.
        key: of the benchmark, which has sizes of its own.
        device: where; only a CUDA device has physical memory that kernels notice.

    Returns:
        1 to 8 tensors of bytes, of 1 to 63 MiB each; none without a seed or on a CPU.

    """
    if not seed or device.type != "cuda":
        return []
    drawn = random.Random(f"{seed} {key}")  # not for secrets: the same in both arms of a pair
    sizes = [drawn.randint(1, _MOST_MIB) * _MIB + _ODD_BYTES for _ in range(drawn.randint(1, _MOST_PIECES))]
    return [torch.empty(size, dtype=torch.uint8, device=device) for size in sizes]
