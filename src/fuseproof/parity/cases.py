"""A case of a parity test: its place among faults and candidates, which failure is known, what is done around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from fuseproof.parity.defects import DefectTableError, find_defect, load_defects
from fuseproof.parity.faults import FAULTS
from fuseproof.parity.measures import DTYPES

__all__ = ["ELSEWHERE", "FIXTURES", "Place", "expect_defect", "inapplicable", "place_of", "quiet_device"]

FIXTURES = ("adam", "norm")
ELSEWHERE = "compiled candidates have tests of their own, the others all the other tests"
# Half a minute for every new set of shapes: a dozen cases of their own, and but one of the others.
_COMPILED = frozenset({"test_compiled_update_matches_fp64", "test_compiled_norm_matches_fp64"})
_ALL = frozenset({"test_its_kernel_runs"})
_defects = cache(load_defects)


@dataclass(frozen=True)
class Place:
    """Where a case stands in the matrix of faults, candidates and dtypes.

    Attributes:
        fixture: which fixture its candidate comes from.
        candidate: the candidate's name.
        faults: numbers of the faults that it would show.
        dtypes: names of the dtypes in which it looks.

    """

    fixture: str
    candidate: str
    faults: tuple[int, ...]
    dtypes: tuple[str, ...]


def place_of(item: pytest.Item) -> Place | None:
    """Return the place of a case with a candidate; FP32 is what a test without dtypes looks at."""
    params = _params(item)
    fixture = next((each for each in FIXTURES if each in params), None)
    if fixture is None:
        return None
    marks = list(item.iter_markers("fault"))
    faults = sorted({number for mark in marks for number in mark.args})
    if unknown := [number for number in faults if number not in FAULTS]:
        raise pytest.UsageError(f"{item.nodeid}: there is no fault {unknown[0]}; see fuseproof.parity.faults.FAULTS.")
    record = params[fixture]
    said = {name for mark in marks for name in mark.kwargs.get("dtypes", ())}
    dtypes = (params["dtype"],) if params.get("dtype") in DTYPES else tuple(each for each in DTYPES if each in said)
    return Place(fixture, record.full_name, tuple(faults), dtypes or ("fp32",))


def _params(item: pytest.Item) -> Mapping[str, Any]:
    callspec = getattr(item, "callspec", None)
    params: Mapping[str, Any] = callspec.params if callspec else {}
    return params


def inapplicable(item: pytest.Item) -> str | None:
    """Return why a case is not one for its candidate, on whatever device; None if it is."""
    place = place_of(item)
    if place is None:
        return None
    params = _params(item)
    record, mode = params[place.fixture], params.get("mode")
    if mode is not None and mode not in record.decay_modes:
        return f"{record.name} has no {mode} weight decay"
    test = getattr(item, "originalname", None)
    if test not in _ALL and record.compiled != (test in _COMPILED):
        return ELSEWHERE
    if unmeant := [name for name in place.dtypes if DTYPES[name] not in record.dtypes]:
        return f"{record.name} is not meant for {', '.join(unmeant)}"
    reasons = [FAULTS[number].absent(record, name) for number in place.faults for name in place.dtypes]
    if reasons and all(reasons):
        return f"{record.name}: {reasons[0]}"
    return None


def expect_defect(request: pytest.FixtureRequest, candidate: str, device: torch.device, table: Path) -> bool:
    """Mark the requesting test as a strict xfail if the table lists it for this candidate and type of device.

    Returns:
        Whether it does.

    """
    try:
        defects = _defects(table)
    except DefectTableError as error:
        pytest.fail(str(error), pytrace=False)
    known = find_defect(defects, candidate, device.type, request.node.originalname, request.node.callspec.id)
    if known:
        request.applymarker(pytest.mark.xfail(reason=known.reason(), strict=True, raises=known.exceptions()))
    return known is not None


@contextmanager
def quiet_device(device: torch.device) -> Iterator[None]:
    """Use one thread, since workers share the cores; on CUDA blame an error on the test that caused it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
