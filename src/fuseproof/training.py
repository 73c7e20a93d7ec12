"""One training iteration of each stage of the ladder, as a user writes it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from fuseproof.candidates import AdamSettings, KernelSet
from fuseproof.ladder import Stage
from fuseproof.roofline import tf32_products
from fuseproof.workload import INIT_STD, Size, Transformer, batches

__all__ = ["Training"]

_SEED = 20261129
_SETTINGS = AdamSettings(lr=3e-4)
_CHECKED_ITERATIONS = 4
_LEAST_PROGRESS = 5e-3  # nats; four steps bring several hundredths
_Iterate = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Training:
    """A model, an optimizer and a stream of text; calling it is one training iteration.

    Args:
        stage: what differs between the steps of the ladder.
        kernels: what "fused" means.
        size: the transformer's dimensions.
        device: where it trains.

    """

    def __init__(self, stage: Stage, kernels: KernelSet, size: Size, device: torch.device) -> None:
        self.stage = stage
        self.size = size
        self.device = device
        adam = stage.adam_candidate(kernels)
        if adam is None:
            raise ValueError(f"{stage.name}: {stage.unavailable(kernels, device)}")
        with device:
            self.model = Transformer(size, stage.layer_norm_candidate(kernels).build).to(device)
        self.model.initialize(_SEED)
        self.model.checkpointing = stage.checkpointing
        if stage.compiled:
            self.model.compile()
        self.optimizer = adam.build(self.model.parameters(), _SETTINGS)
        # torch's own first scale, 2^16, overflows after some steps; a skipped step would make another loss curve.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**10, enabled=stage.autocast is torch.float16)
        self.batches = batches(size, _SEED, device)
        self.iterations = 0
        self.first_loss: torch.Tensor | None = None
        self._iterate: _Iterate = _Captured(self._train) if stage.graph else self._train

    def __call__(self) -> torch.Tensor:
        """Run one training iteration and return its loss, a 0-d tensor still on the device."""
        inputs, targets = next(self.batches)
        loss = self._iterate(inputs, targets)
        self.iterations += 1
        if self.first_loss is None:
            self.first_loss = loss.detach().clone()
        return loss

    def _train(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        pieces = self.stage.micro_batches
        with tf32_products(self.stage.tf32):
            losses = [self._backward(*piece) for piece in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True)]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return losses[0] if pieces == 1 else torch.stack(losses).sum()

    def _backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Add the gradients of one piece of the batch; return its share of the loss."""
        with self._precision():
            loss: torch.Tensor = self.model(inputs, targets)
        if self.stage.micro_batches > 1:
            loss = loss / self.stage.micro_batches
        self.scaler.scale(loss).backward()
        return loss.detach()

    def _precision(self) -> torch.autocast:
        return torch.autocast(
            self.device.type,
            dtype=self.stage.autocast,
            enabled=self.stage.autocast is not None,
            cache_enabled=not self.stage.graph,  # the cache must not outlive a capture
        )

    def check(self) -> None:
        """Raise unless training starts at the loss of a uniform guess and has brought down the loss of its first batch.

        That all stages train alike is shown by the loss curves in ``tests/e2e``.
        """
        while self.iterations < _CHECKED_ITERATIONS:
            self()
        assert self.first_loss is not None
        # Normalized features times weights of N(0, s^2) are logits of variance width * s^2; the mean of exp(logit) over
        # the vocabulary raises the loss of a uniform guess, ln vocab, by half of that.
        first, expected = self.first_loss.item(), math.log(self.size.vocab) + self.size.width * INIT_STD**2 / 2
        assert abs(first - expected) < 0.1, f"{self.stage.name}: first loss {first:.4f}, expected {expected:.4f}"
        with torch.no_grad(), self._precision():
            now = self.model(*next(batches(self.size, _SEED, self.device))).item()
        # Another batch may be easier by more than a few steps bring; on the same one nothing but training helps.
        assert now < first - _LEAST_PROGRESS, (
            f"{self.stage.name}: after {self.iterations} iterations the loss of the first batch is {now:.4f}, "
            f"it was {first:.4f}"
        )


class _Captured:
    """A training iteration in a CUDA graph: the first two calls run on a side stream, the third captures, all replay.

    Args:
        iterate: takes inputs and targets on the device, returns the loss.

    """

    _WARMUP_CALLS = 2  # gradients, optimizer state and library workspaces exist after them

    def __init__(self, iterate: _Iterate) -> None:
        self._iterate = iterate
        self._calls = 0
        self._graph = torch.cuda.CUDAGraph()

    def __call__(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self._calls += 1
        if self._calls <= self._WARMUP_CALLS:
            return self._on_side_stream(inputs, targets)
        if self._calls == self._WARMUP_CALLS + 1:
            self._inputs, self._targets = inputs.clone(), targets.clone()
            with torch.cuda.graph(self._graph):
                self._loss = self._iterate(self._inputs, self._targets)
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        self._graph.replay()
        return self._loss

    def _on_side_stream(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self._iterate(inputs, targets)
        torch.cuda.current_stream().wait_stream(stream)
        return loss
