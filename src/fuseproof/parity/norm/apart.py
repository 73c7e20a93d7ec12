"""Checks of norms that can spoil a CUDA context, or end their process, in one of their own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from fuseproof.candidates import NormCandidate, norm_candidate
from fuseproof.parity import ParityError, assert_within
from fuseproof.parity.child import ProcessEndedError, run_in_child
from fuseproof.parity.norm.bounds import Wanted, budget, oracle, wanted
from fuseproof.parity.norm.checks import build, case_of, check, run
from fuseproof.parity.norm.regimes import NORM_DTYPES, REGIMES, SEED, NormInputs

__all__ = ["check_beyond_2_to_31", "check_empty", "check_refused"]

_HIDDEN = 1024
_CHUNK_ROWS = 2**16  # FP64 copies of 512 MiB


def check_empty(
    candidate: NormCandidate, leading: Sequence[int], normalized_shape: Sequence[int], dtype: str, device: torch.device
) -> None:
    """Run a candidate over no rows: nothing comes of them, and zero gradients for the parameters.

    Args:
        candidate: which norm.
        leading, normalized_shape: one of the numbers is 0.
        dtype: a name in `fuseproof.parity.norm.NORM_DTYPES`.
        device: where; on CUDA in a process of its own.

    Raises:
        ParityError: a wrong shape or value, or an error of CUDA, which a later call would meet.

    """
    arguments = (candidate.kind, candidate.reference, list(leading), list(normalized_shape), dtype, device.type)
    if device.type == "cuda":
        run_in_child(f"{__name__}:_check_shape", *arguments)
    else:
        _check(candidate, tuple(leading), tuple(normalized_shape), dtype, device)


def check_beyond_2_to_31(candidate: NormCandidate, dtype: str) -> None:
    """Run a candidate over 2^31 + 1024 elements on a GPU with 60 GiB: all of y and dx, and both sums.

    Raises:
        ParityError: what 32-bit indices cannot reach is wrong, or CUDA said so.

    """
    run_in_child(f"{__name__}:_check_chunks", candidate.kind, candidate.reference, dtype)


def check_refused(candidate: NormCandidate, device: torch.device, hidden: int, given: int) -> None:
    """Give an FP32 norm of `hidden` columns rows of `given`: an error, on CUDA in a process of its own.

    That its process ends is as loud as an error: a binding whose C++ library is linked into it may not outlive an
    exception that it means to throw.

    Raises:
        ParityError: something comes of them.

    """
    if device.type == "cuda":
        with suppress(ProcessEndedError):
            run_in_child(f"{__name__}:_check_rows", candidate.kind, candidate.reference, hidden, given, device.type)
    else:
        _refused(candidate, hidden, given, device)


def _check_rows(kind: str, reference: str, hidden: int, given: int, device: str) -> None:
    _refused(norm_candidate(kind, reference), hidden, given, torch.device(device))


def _refused(candidate: NormCandidate, hidden: int, given: int, device: torch.device) -> None:
    inputs = REGIMES["usual"].inputs((4,), (hidden,), torch.float32, device).of(candidate.kind)
    module = build(candidate, inputs)
    x = REGIMES["usual"].inputs((4,), (given,), torch.float32, device).x
    try:
        y = module(x)
    except (RuntimeError, ValueError, AssertionError):
        return
    case = case_of(candidate, inputs, f"given 4x{given}")
    raise ParityError(f"rows of {given} are taken by a norm of {hidden}: y is {tuple(y.shape)} ({case})")


def _check_shape(kind: str, reference: str, leading: list[int], normalized: list[int], dtype: str, device: str) -> None:
    _check(norm_candidate(kind, reference), tuple(leading), tuple(normalized), dtype, torch.device(device))


def _check(
    candidate: NormCandidate, leading: tuple[int, ...], normalized: tuple[int, ...], dtype: str, device: torch.device
) -> None:
    inputs = REGIMES["usual"].inputs(leading, normalized, NORM_DTYPES[dtype], device).of(candidate.kind)
    try:
        check(candidate, inputs, "no rows")
    except RuntimeError as error:
        raise ParityError(f"{type(error).__name__}: {error} ({case_of(candidate, inputs, 'no rows')})") from None


def _check_chunks(kind: str, reference: str, dtype: str) -> None:
    candidate, device = norm_candidate(kind, reference), torch.device("cuda")
    small = REGIMES["usual"].inputs((1,), (_HIDDEN,), NORM_DTYPES[dtype], device).of(kind)
    generator = torch.Generator(device).manual_seed(SEED)
    x, dy = (
        torch.empty(2**31 // _HIDDEN + 1, _HIDDEN, dtype=small.x.dtype, device=device).normal_(generator=generator)
        for _ in range(2)
    )
    whole = NormInputs(x, dy, small.gamma, small.beta, small.normalized_shape, small.eps)
    case = case_of(candidate, whole, f"seed {SEED}")
    outputs = run(candidate, whole, build(candidate, whole), watch=False)
    # Of value and tolerance the sum; of what the record allows besides, the sum and the sum of squares.
    sums = {quantity: torch.zeros(4, _HIDDEN, dtype=torch.float64, device=device) for quantity in ("dgamma", "dbeta")}
    for start in range(0, len(x), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        part = NormInputs(x[chunk], dy[chunk], small.gamma, small.beta, small.normalized_shape, small.eps)
        wants = wanted(candidate, part, oracle(kind, part), x.dtype, rows=len(x))
        for quantity, stored in (("y", outputs.y[chunk]), ("dx", outputs.dx[chunk])):
            _assert_wanted(quantity, stored, wants[quantity], f"{case}, rows from {start}")
        for quantity, total in sums.items():
            one, extra = wants[quantity], wants[quantity].extra + torch.zeros_like(wants[quantity].value)
            total += torch.stack([one.value, one.tolerance, extra, extra.square()])
    for quantity, (value, tolerance, extra, squares) in sums.items():
        if (stored := getattr(outputs, quantity)) is not None:
            independent = device.type in candidate.half_partials_on
            wanted_sum = Wanted(value, tolerance, squares.sqrt() if independent else extra)
            _assert_wanted(quantity, stored, wanted_sum, case)


def _assert_wanted(quantity: str, stored: torch.Tensor, one: Wanted, case: str) -> None:
    low, high = (each.flatten() for each in one.limits(stored.dtype, 1.0))
    assert_within(quantity, stored.flatten(), one.value.flatten(), low, high, budget(quantity, one, None), case)
