"""Every LayerNorm and RMSNorm in each pair of input and weight dtypes, with and without autocast, eager and compiled.

``python tests/kernels/test_norm_dtypes.py`` writes what is stated into ``docs/norm-dtypes.md``.
"""

from pathlib import Path

import pytest
import torch

from fuseproof.candidates import LAYER_NORM, RMS_NORM
from fuseproof.parity import DTYPES
from fuseproof.parity.norm.dtypes import AUTOCAST, DtypeCase, check_dtypes, find_result, load_results

RESULTS = load_results(Path(__file__).with_name("norm_dtypes.toml"))
PAGE = Path(__file__).parents[2] / "docs" / "norm-dtypes.md"
by_autocast = pytest.mark.parametrize("autocast", [pytest.param(each, id=f"autocast_{each}") for each in AUTOCAST])
by_weight = pytest.mark.parametrize("weight", [pytest.param(each, id=f"weight_{each}") for each in DTYPES])
# Compilation takes seconds: one pair that agrees, one that does not, and autocast.
COMPILED = {
    "fp32": DtypeCase("fp32", "fp32", "off", "compiled"),
    "bf16": DtypeCase("bf16", "bf16", "off", "compiled"),
    "bf16_weight_fp32": DtypeCase("bf16", "fp32", "off", "compiled"),
    "fp32_autocast_bf16": DtypeCase("fp32", "fp32", "bf16", "compiled"),
    "bf16_autocast_bf16": DtypeCase("bf16", "bf16", "bf16", "compiled"),
}


def ask(norm, case, device):
    """Check a cell of the matrix, or say that nothing is stated for it."""
    result = find_result(RESULTS, norm.full_name, device.type, case)
    if result is None:
        pytest.skip(f"nothing is stated for {norm.full_name} on {device.type} with these dtypes")
    check_dtypes(norm, case, result, device)


@pytest.mark.fault(25)
@pytest.mark.parity
@pytest.mark.usefixtures("norm_case")
@by_autocast
@by_weight
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(norm, dtype, weight, autocast, device):
    """y has the stated dtype and the right values, or there is an error that speaks of dtypes."""
    ask(norm, DtypeCase(dtype, weight, autocast), device)


@pytest.mark.fault(25, 31)
@pytest.mark.parity
@pytest.mark.fuseproof_full
@pytest.mark.usefixtures("norm_case")
@pytest.mark.parametrize("case", COMPILED.values(), ids=COMPILED)
def test_dtypes_under_compile(norm, case, device):
    """A compiled module does what is stated for it, which may differ from the eager one."""
    ask(norm, case, device)


def page():
    """Return the page: for each norm and device a table of y by input, weight and autocast."""
    lines = [
        "# LayerNorm and RMSNorm by dtypes",
        "",
        "The dtype of y for each pair of input and weight dtypes, with and without autocast. `error`: a refusal that",
        "speaks of dtypes. In brackets: what x and the parameters are rounded to first. Gradients have the dtypes of",
        "what they belong to. `tests/kernels/test_norm_dtypes.py` checks each cell, values too, where it runs.",
        "",
        "Written by `python tests/kernels/test_norm_dtypes.py` from `tests/kernels/norm_dtypes.toml`.",
    ]
    for device in ("cpu", "cuda"):
        for norm in (*LAYER_NORM.values(), *RMS_NORM.values()):
            for words, version in versions_of(norm, device).items():
                if rows := list(rows_of(norm, device, version)):
                    lines += ["", f"## {norm.full_name}, {device}{words}", ""]
                    lines += [
                        f"| input | weight | {' | '.join(f'autocast {each}' for each in AUTOCAST)} |",
                        "|---" * 5 + "|",
                    ]
                    lines += rows
    return "\n".join([*lines, ""])


def versions_of(norm, device):
    """Return versions of torch by words for a heading: one on each side of where something changes."""
    here = [result for result in RESULTS if norm.full_name in result.candidates and device in result.devices]
    changes = {result.torch_from for result in here} - {""}
    assert changes == {result.torch_before for result in here} - {""}, (
        "what was before, or is from then on, is not stated"
    )
    if not changes:
        return {"": torch.__version__}
    (change,) = changes
    return {f", torch before {change}": "0.0", f", torch {change} and later": change}


def rows_of(norm, device, version):
    """Yield the rows of a table for which anything is stated."""
    for dtype in DTYPES:
        for weight in DTYPES:
            cells = []
            for autocast in AUTOCAST:
                case = DtypeCase(dtype, weight, autocast)
                result = find_result(RESULTS, norm.full_name, device, case, version)
                cast = (
                    ""
                    if result is None or not result.cast
                    else f" ({case.autocast if result.cast == 'autocast' else result.cast})"
                )
                cells.append("" if result is None else result.y_of(case) + cast)
            if any(cells):
                yield f"| {dtype} | {weight} | {' | '.join(cells)} |"


def test_the_page_is_what_is_stated():
    """docs/norm-dtypes.md is written by this module from the table."""
    assert PAGE.read_text(encoding="utf-8") == page()


def test_every_cell_is_stated():
    """For the suite's own norms nothing is left open where they run."""
    device_of = {norm.full_name: norm for norm in (*LAYER_NORM.values(), *RMS_NORM.values()) if not norm.compiled}
    missing = [
        (name, device, case)
        for name, norm in device_of.items()
        for device in norm.device_types
        for dtype in DTYPES
        for weight in DTYPES
        for autocast in AUTOCAST
        if DTYPES[dtype] in norm.dtypes
        and find_result(RESULTS, name, device, case := DtypeCase(dtype, weight, autocast)) is None
    ]

    assert not missing


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
