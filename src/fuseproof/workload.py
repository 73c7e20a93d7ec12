"""The transformer that the ladder trains, its sizes, and its text."""

from __future__ import annotations

import hashlib
import pydoc_data.topics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

__all__ = ["INIT_STD", "SIZES", "Size", "Transformer", "batches", "text_hash"]

NormFactory = Callable[[int, float], nn.Module]

_NORM_EPS = 1e-5
INIT_STD = 0.02  # GPT-2 (Radford et al. 2019)


@dataclass(frozen=True)
class Size:
    """Dimensions of the decoder and of one batch.

    Attributes:
        name: as in keys and tables.
        layers, width, heads: depth, model dimension, attention heads.
        context: tokens per sequence.
        vocab: rows of the embedding; the text uses the first 256 of them.
        batch: sequences per iteration.
        device_types: where a night can afford it.

    """

    name: str
    layers: int
    width: int
    heads: int
    context: int
    vocab: int
    batch: int
    device_types: frozenset[str] = frozenset({"cuda", "cpu"})

    @property
    def tokens(self) -> int:
        """Tokens in one iteration."""
        return self.batch * self.context

    @property
    def matmul_flops(self) -> int:
        """Floating-point operations of the matrix products of one iteration (forward and backward).

        6 per weight and token (Kaplan et al. 2020, section 2.1), the tied embedding counted once as output
        projection, plus the causal half of the attention products: 6 * layers * context * width per token.
        """
        weights = self.layers * 12 * self.width**2 + self.vocab * self.width
        return 6 * self.tokens * (weights + self.layers * self.context * self.width)


_CUDA = frozenset({"cuda"})

SIZES: Mapping[str, Size] = MappingProxyType(
    {
        size.name: size
        for size in (
            Size("tiny", layers=2, width=64, heads=2, context=64, vocab=256, batch=4),
            Size("launch_bound", layers=4, width=256, heads=4, context=256, vocab=32_000, batch=4),
            Size("gpt2_small", 12, 768, 12, context=1024, vocab=50_257, batch=8, device_types=_CUDA),
            Size("gpt2_medium", 24, 1024, 16, context=1024, vocab=50_257, batch=8, device_types=_CUDA),
        )
    }
)


class _Block(nn.Module):
    """Pre-norm attention and MLP, each added to the residual stream."""

    def __init__(self, size: Size, norm: NormFactory) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm_1 = norm(size.width, _NORM_EPS)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.attention_out = nn.Linear(size.width, size.width)
        self.norm_2 = norm(size.width, _NORM_EPS)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        q, k, v = (
            part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attention_out(mixed.transpose(1, 2).reshape(batch, context, width))
        out: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm_2(x))))
        return out


class Transformer(nn.Module):
    """A GPT-2-like decoder with tied embeddings; LayerNorm comes from a factory.

    Args:
        size: dimensions.
        norm: ``(normalized_shape, eps)`` to a LayerNorm module with `weight` and `bias`.

    Attributes:
        checkpointing: compute each block's activations again in the backward pass instead of keeping them.

    """

    def __init__(self, size: Size, norm: NormFactory) -> None:
        super().__init__()
        self.token = nn.Embedding(size.vocab, size.width)
        self.position = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(_Block(size, norm) for _ in range(size.layers))
        self.norm = norm(size.width, _NORM_EPS)
        self.checkpointing = False

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean cross-entropy of `targets` given `inputs`; both int64 ``(batch, context)``."""
        x = self.token(inputs) + self.position.weight[: inputs.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        logits = functional.linear(self.norm(x), self.token.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Fill matrices from N(0, 0.02) in the order of `parameters()`; vectors keep LayerNorm's ones and zeros.

        One generator on the parameters' device makes the start the same for every stage of a machine.
        """
        generator = torch.Generator(self.token.weight.device).manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, INIT_STD, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()


@cache
def _text() -> bytes:
    """Return English prose that ships with Python: the topics of its online help, without their indentation.

    Where a token often follows itself, tied embeddings start below the loss of a uniform guess.
    """
    return " ".join(" ".join(text.split()) for _, text in sorted(pydoc_data.topics.topics.items())).encode()


@cache
def text_hash() -> str:
    """Return a hash of the text; it differs between Python releases, so results say which text they saw."""
    return hashlib.sha256(_text()).hexdigest()[:12]


def batches(size: Size, seed: int, device: torch.device) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (inputs, targets) for ever, int64 ``(batch, context)``: windows of the text at seeded places.

    The tokens are on `device` before the first batch; drawing one costs a gather, no transfer from the host.
    """
    tokens = torch.frombuffer(bytearray(_text()), dtype=torch.uint8).to(device).long()
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(size.context + 1, device=device)
    starts = torch.randint(len(tokens) - size.context - 1, (1024, size.batch, 1), generator=generator).to(device)
    while True:
        for start in starts:
            piece = tokens[start + window]
            yield piece[:, :-1], piece[:, 1:]
