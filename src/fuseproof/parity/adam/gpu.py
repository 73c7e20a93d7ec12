"""What only a GPU can show: CUDA graphs, streams, another current device, more elements than 32 bits count."""

from __future__ import annotations

import torch

from fuseproof.candidates import AdamCandidate
from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import check_regime
from fuseproof.parity.adam.regimes import REGIMES, SEED, make_params, settings_in_mode, usual_settings
from fuseproof.parity.bits import differing
from fuseproof.parity.measures import DTYPES, ParityError
from fuseproof.parity.server import spend

__all__ = ["check_huge", "check_on_another_device", "check_on_side_stream", "check_replayed", "huge_bytes"]

_USUAL = REGIMES["mixed_signs"]
_WARM_UP, _REPLAYS = 3, 5
_HUGE = 2**31 + 8
_LATE_CYCLES = 20_000_000  # about 10 ms: longer than a step takes on the host
_ENDS = 8  # elements at each end, and on both sides of the 2^31st, that are looked at


def check_replayed(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Capture a step, replay it with new gradients: each replay is the step that would have been next.

    A candidate that no graph may capture refuses to be captured.

    Raises:
        ParityError: a replay computes or counts what the oracle does not, or capturing moves anything.

    """
    settings = usual_settings(candidate, DTYPES[dtype])
    params = make_params(_USUAL, DTYPES[dtype], device, SEED)
    adam = CheckedAdam(candidate, [Group(params, settings)], f"{dtype}, CUDA graph, seed {SEED}")
    _USUAL.set_gradients(params, 1, SEED)
    fixed = [param.grad for param in params]  # a graph reads where the gradients were when it was captured
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for step in range(1, _WARM_UP + 1):
            _set_in_place(params, fixed, step)
            adam.step()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            adam.optimizer.step()
    except RuntimeError as error:
        if candidate.capturable:
            raise
        if "CUDA error" in str(error):  # not its own refusal: what torch keeps for the capture may be out of order
            spend()
        return
    for step in range(_WARM_UP + 1, _WARM_UP + _REPLAYS + 1):
        _set_in_place(params, fixed, step)
        adam.step(by=graph.replay)
    adam.finish()


def _set_in_place(params: list[torch.Tensor], fixed: list[torch.Tensor | None], step: int) -> None:
    _USUAL.set_gradients(params, step, SEED)
    for param, grad in zip(params, fixed, strict=True):
        assert grad is not None
        assert param.grad is not None
        grad.copy_(param.grad)
        param.grad = grad


def check_on_another_device(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Run over parameters on the second GPU while the first one is the current device.

    Raises:
        ParityError: a step is wrong there.

    """
    other = torch.device("cuda", 1)
    with torch.cuda.device(device):
        check_regime(candidate, _USUAL, usual_settings(candidate, DTYPES[dtype]), DTYPES[dtype], other)
    torch.cuda.synchronize(other)


def check_on_side_stream(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Step on a stream on which the gradients come late: the end has the bits of steps that need not wait.

    Raises:
        ParityError: it has not: some launch went to another stream and did not wait.

    """
    settings = usual_settings(candidate, DTYPES[dtype])
    ends = []
    for late in (False, True):
        params = make_params(_USUAL, DTYPES[dtype], device, SEED)
        optimizer = candidate.build(params, settings)
        stream = torch.cuda.Stream(device) if late else torch.cuda.current_stream(device)
        for step in range(1, 4):
            _USUAL.set_gradients(params, step, SEED)
            grads = [param.grad for param in params if param.grad is not None]
            values = [grad.clone() for grad in grads]
            torch.cuda.synchronize(device)
            with torch.cuda.stream(stream):
                for grad in grads:
                    grad.zero_()
                if late:
                    torch.cuda._sleep(_LATE_CYCLES)
                for grad, value in zip(grads, values, strict=True):
                    grad.copy_(value)
                optimizer.step()
            torch.cuda.synchronize(device)
        ends.append(params)
    if wrong := differing(*ends):
        raise ParityError(
            f"{candidate.name}, {dtype}: on a stream of its own the end has other bits in parameters {wrong}: "
            "something was launched on another stream than the current one"
        )


def huge_bytes(candidate: AdamCandidate, dtype: str) -> int:
    """Return how much memory `check_huge` needs: parameter, gradient, state, and what a step holds meanwhile."""
    half, full = (_HUGE * each.itemsize for each in (DTYPES[dtype], torch.float32))
    state = 2 * (full if candidate.moments == "float32" else half) + (full if candidate.master_weights else 0)
    return 2 * half + state + 4 * full


def check_huge(candidate: AdamCandidate, device: torch.device, dtype: str) -> None:
    """Take a step over one tensor of 2^31 + 8 elements: its ends and those about the 2^31st move like the others.

    Raises:
        ParityError: some do not.

    """
    param = torch.ones(_HUGE, dtype=DTYPES[dtype], device=device).requires_grad_()
    param.grad = torch.full_like(param, 0.5, requires_grad=False)
    mode = "decoupled" if "decoupled" in candidate.decay_modes else "l2"
    candidate.build([param], settings_in_mode(mode, lr=0.25)).step()
    for name, start in (("first", 0), ("2^31st", 2**31 - _ENDS // 2), ("last", _HUGE - _ENDS)):
        values = param.detach()[start : start + _ENDS].float()
        # A first step is lr against the gradient's sign; one unit of BF16 at 0.75 for all roundings.
        if not bool(((values - 0.75).abs() <= 2.0**-8).all()):
            raise ParityError(
                f"{candidate.name}, {dtype}: after a step the {_ENDS} elements about the {name} of {_HUGE} are "
                f"{values.tolist()}; all should be 0.75"
            )
