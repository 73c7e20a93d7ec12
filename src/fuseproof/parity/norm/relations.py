"""What must hold between two runs of a norm, whatever the right values are."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuseproof.candidates import NormCandidate
from fuseproof.parity import ParityError, spacing
from fuseproof.parity.bits import same_bits
from fuseproof.parity.norm.bounds import oracle, wanted
from fuseproof.parity.norm.checks import ALIGNED, build, case_of, run
from fuseproof.parity.norm.regimes import REGIMES, SEED, NormInputs

__all__ = [
    "check_copied_rows",
    "check_one_row_alone",
    "check_permuted_rows",
    "check_repeated",
    "check_scaled",
    "check_shifted",
]

_ALONE = (0, 17, 36)
# More rows than a grid has blocks, which is 65,535, each as long as a warp that reads vectors of 16 bytes in FP32.
_COPIES, _LONG = 65_536 // ALIGNED[0] + 1, (37, 128)


def _inputs(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> NormInputs:
    return REGIMES["usual"].inputs(ALIGNED[:1], ALIGNED[1:], dtype, device).of(candidate.kind)


def _assert_same(quantity: str, one: torch.Tensor, other: torch.Tensor, case: str) -> None:
    if not same_bits(one, other):
        differ = int((one != other).sum())
        size = (one.double() - other.double()).abs().max().item()
        raise ParityError(f"{quantity}: {differ} of {one.numel()} elements differ, by {size:.3g} at most ({case})")


def check_permuted_rows(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Compare rows in another order with the rows, bit by bit.

    Raises:
        ParityError: where a row stands changes what comes of it.

    """
    inputs = _inputs(candidate, dtype, device)
    order = torch.randperm(len(inputs.x), generator=torch.Generator().manual_seed(SEED)).to(device)
    plain, permuted = run(candidate, inputs), run(candidate, replace(inputs, x=inputs.x[order], dy=inputs.dy[order]))
    case = case_of(candidate, inputs, "rows in another order")
    _assert_same("y", permuted.y, plain.y[order], case)
    _assert_same("dx", permuted.dx, plain.dx[order], case)


def check_copied_rows(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Compare copies of rows, of which there are more than a grid has blocks, with the first ones, bit by bit.

    Raises:
        ParityError: where a row stands changes what comes of it.

    """
    few = REGIMES["usual"].inputs(_LONG[:1], _LONG[1:], dtype, device).of(candidate.kind)
    inputs = replace(few, x=few.x.repeat(_COPIES, 1), dy=few.dy.repeat(_COPIES, 1))
    outputs = run(candidate, inputs, watch=False)  # copies of the inputs take longer than the norm
    case = case_of(candidate, inputs, f"the same {len(few.x)} rows {_COPIES} times")
    for quantity in ("y", "dx"):
        values = getattr(outputs, quantity)
        _assert_same(quantity, values, values[: len(few.x)].repeat(_COPIES, 1), case)


def check_one_row_alone(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Compare rows by themselves with the same rows in a batch, bit by bit.

    Raises:
        ParityError: what comes of a row depends on how many rows there are.

    """
    inputs = _inputs(candidate, dtype, device)
    module = build(candidate, inputs)
    whole = run(candidate, inputs, module)
    for row in _ALONE:
        only = slice(row, row + 1)
        alone = run(candidate, replace(inputs, x=inputs.x[only].clone(), dy=inputs.dy[only].clone()), module)
        case = case_of(candidate, inputs, f"row {row} alone and in a batch")
        _assert_same("y", alone.y, whole.y[only], case)
        _assert_same("dx", alone.dx, whole.dx[only], case)


def check_scaled(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Compare x and eps with 4 x and 16 eps, by which no bit of y may change, and dx by its exponent only.

    Raises:
        ParityError: y or dx depends on the scale of x.

    """
    inputs = _inputs(candidate, dtype, device)
    plain, scaled = run(candidate, inputs), run(candidate, replace(inputs, x=4 * inputs.x, eps=16 * inputs.eps))
    case = case_of(candidate, inputs, "x times 4, eps times 16")
    _assert_same("y", scaled.y, plain.y, case)
    exact = scaled.dx.abs() >= torch.finfo(dtype).tiny / torch.finfo(dtype).eps  # no subnormal is near
    _assert_same("dx", torch.where(exact, 4 * scaled.dx, 0.0), torch.where(exact, plain.dx, 0.0), case)


def check_shifted(candidate: NormCandidate, dtype: torch.dtype, device: torch.device) -> None:
    """Compare LayerNorm of x with that of x + 8, by which y and dx may change by their budgets only.

    Raises:
        ParityError: y or dx depends on the mean of x.

    """
    inputs = _inputs(candidate, dtype, device)
    inputs = replace(inputs, x=(8 * inputs.x).round().clamp(-32, 32) / 8)  # neither loses a bit by the shift
    further = replace(inputs, x=inputs.x + 8)
    plain, shifted = run(candidate, inputs), run(candidate, further)
    wants = [wanted(candidate, each, oracle(candidate.kind, each), dtype) for each in (inputs, further)]
    for quantity in ("y", "dx"):
        one, other = getattr(plain, quantity).double(), getattr(shifted, quantity).double()
        # Half precision that is rounded in between may differ by two units, FP32 by what its arithmetic may be off.
        room = sum(each[quantity].tolerance + each[quantity].extra for each in wants) + 2 * spacing(one, dtype)
        if bool((beyond := (one - other).abs() > room).any()):
            far = ((one - other).abs() / room).max().item()
            raise ParityError(
                f"{quantity}: {int(beyond.sum())} of {one.numel()} elements move with the mean of x, "
                f"by {far:.3g} x their budgets at most ({case_of(candidate, inputs, 'x and x + 8')})"
            )


def check_repeated(candidate: NormCandidate, dtype: torch.dtype, device: torch.device, runs: int) -> None:
    """Run more rows than a grid has blocks, again and again: all bits are those of the first run.

    Raises:
        ParityError: a run differs: there is a race, or something uninitialised is read.

    """
    inputs = REGIMES["usual"].inputs((65_537,), (8,), dtype, device).of(candidate.kind)
    module = build(candidate, inputs)
    first = run(candidate, inputs, module)
    returned = [quantity for quantity in ("y", "dx", "dgamma", "dbeta") if getattr(first, quantity) is not None]

    def differing() -> torch.Tensor:
        """Run again, and leave on the device what differs: to ask after each run would wait for it."""
        again = run(candidate, inputs, module, watch=False)
        pairs = ((getattr(again, quantity), getattr(first, quantity)) for quantity in returned)
        return torch.stack([(_bits(one) != _bits(other)).sum() for one, other in pairs])

    differ = torch.stack([differing() for _ in range(1, runs)]).cpu()
    for quantity, in_runs in zip(returned, differ.unbind(1), strict=True):
        if bool(in_runs.any()):
            worst, elements = int(in_runs.argmax()), getattr(first, quantity).numel()
            words = f"run {worst + 2} of {runs}, {int(in_runs.count_nonzero())} of which are not as the first"
            raise ParityError(
                f"{quantity}: {int(in_runs[worst])} of {elements} elements differ ({case_of(candidate, inputs, words)})"
            )


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[values.dtype.itemsize])
