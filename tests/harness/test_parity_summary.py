"""What a session says of parity at its end, alone and from workers; the matrix of faults, candidates and dtypes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuseproof.candidates import ADAM
from fuseproof.parity.cases import Place
from fuseproof.parity.coverage import Coverage
from fuseproof.parity.faults import FAULTS

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TOML = '[tool.fuseproof]\nhistory = "bench_history"\n[tool.pytest.ini_options]\naddopts = ["--strict-markers"]\n'
# For each candidate by its place in the list: right, a known defect, wrong, skipped, a known defect that is gone, ...
TESTS = """
import pytest

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]
DOES = {"torch_loop": "right", "torch_default": "wrong", "torch_foreach": "wrong", "torch_fused": "skipped",
        "torch_fused_capturable": "right"}


@pytest.mark.fault(1)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one(adam, dtype):
    does = DOES[adam.name]
    if does == "skipped":
        pytest.skip("it rains")
    assert does == "right"


def test_without_a_mark(adam):
    pass


def not_parity():
    pass
"""
DEFECTS = """
[[defect]]
id = "rounds"
title = "It rounds"
faults = [1]
candidates = ["torch_default", "torch_fused_capturable"]
devices = ["cpu", "cuda"]
evidence = "seen on a Tuesday"
since = "torch 2.13"
reproduction = "rounds.py"
[[defect.seen]]
test = "test_one"
cases = ".*"
"""


def run(pytester, *arguments, status):
    """Run pytest in a process of its own and return what it printed."""
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-disable", *arguments)
    text = result.stdout.str()

    assert result.ret == status, text
    return text


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two_workers"])
def test_cases_are_counted(pytester, workers):
    """Right, known, new, mended and skipped by reason: the same whether one process ran them or two."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=TESTS)
    (pytester.path / "adam_defects.toml").write_text(DEFECTS)
    text = run(pytester, *workers, status=1)

    mended = "2 mended upstream: remove it from the table"
    assert f"parity: 13 cases, 2 known defects, 2 new, {mended}, 17 skipped" in text
    assert re.search(r"^ +2 skipped: it rains$", text, re.M)
    assert text.count("skipped: apex has no CPU kernel") == 1
    assert (
        text.count("[XPASS(strict)] mended upstream: remove it from the table: known defect rounds: seen on a Tuesday")
        == 2
    )


def test_a_table_that_cannot_be_read_is_one_sentence(pytester):
    """It fails every test that asks, without a traceback."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=TESTS)
    (pytester.path / "adam_defects.toml").write_text(DEFECTS.replace("title", "titel"))
    text = run(pytester, "-k", "test_one and torch_loop", status=1)

    assert "adam_defects.toml: defect rounds: unknown key titel; known are" in text
    assert "Traceback" not in text


ALL_FAULTS = """
import pytest

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("adam_case")]


@pytest.mark.fault({faults}, dtypes=("fp32", "bf16", "fp16"))
def test_compiled_update_matches_fp64(adam):
    pass


@pytest.mark.fault({faults}, dtypes=("fp32", "bf16", "fp16"))
def test_one(adam):
    pass
"""


@pytest.mark.parametrize(("left_out", "status"), [((), 0), ((6,), 1)], ids=["all", "not_6"])
def test_coverage_of_a_run(pytester, left_out, status):
    """Each cell holds cases or a reason; one that does not fails the run, with a sentence."""
    faults = [number for number, fault in FAULTS.items() if "adam" in fault.fixtures and number not in left_out]
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=ALL_FAULTS.format(faults=", ".join(map(str, faults))))
    text = run(pytester, "--fuseproof-coverage", status=status)

    assert "| 1 a tensor without elements in the list | 1 | 1 | 1 | 1 | 1 |" in text
    assert "a: has no CPU kernel" in text
    hole = (
        "fault 6 (parameter and gradient in different memory formats): no case asks torch_loop in fp32, and no reason"
    )
    assert (hole in text) == bool(status)


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "two_workers"])
def test_what_the_command_line_leaves_out_is_no_hole(pytester, workers):
    """Cases that take many GiB have a run of their own; what this one deselects is its reason."""
    numbers = [number for number, fault in FAULTS.items() if "adam" in fault.fixtures and number != 6]
    tests = ALL_FAULTS.format(faults=", ".join(map(str, numbers)))
    of_6 = ALL_FAULTS.format(faults="6").rpartition("\n\n@")[2].replace("test_one", "test_six")
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=f"{tests}\n\n@{of_6}")
    text = run(pytester, "--fuseproof-coverage", "-k", "not six", *workers, status=0)

    assert re.search(r"^(\w+): deselected by the command line$", text, re.M)


def test_an_unknown_fault_is_one_sentence(pytester):
    """A mark with a number that nobody knows is a mistake."""
    pytester.makepyprojecttoml(TOML)
    pytester.makepyfile(test_adam=ALL_FAULTS.format(faults="99"))
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "--benchmark-disable")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "there is no fault 99; see fuseproof.parity.faults.FAULTS" in result.stderr.str()
    assert "Traceback" not in result.stderr.str()


# --- the matrix ---

RECORDS = {"adam": [ADAM["torch_loop"], ADAM["apex_master"]]}


def cell(coverage, fault, candidate):
    """Return what the table shows."""
    lines = coverage.markdown().splitlines()
    (head,) = (line for line in lines if line.startswith("| fault |"))
    (row,) = (line for line in lines if line.startswith(f"| {fault} "))
    column = [each.strip() for each in head.split("|")].index(candidate)
    return row.split("|")[column].strip()


def test_a_cell_holds_numbers_or_a_reason():
    """Cases of each dtype, known defects in brackets; one number where all are the same; else a letter."""
    coverage = Coverage(RECORDS)
    for dtype in ("fp32", "bf16", "fp16"):
        coverage.add(Place("adam", "torch_loop", (1, 2), (dtype,)))
        coverage.add(Place("adam", "apex_master", (1,), (dtype,)), "apex_master has no CPU kernel")
    coverage.add(Place("adam", "torch_loop", (2,), ("bf16",)), defect=True)

    assert cell(coverage, 1, "torch_loop") == "1"
    assert cell(coverage, 2, "torch_loop") == "1 / 2 (1) / 1"
    assert cell(coverage, 1, "apex_master") == "a"
    assert cell(coverage, 3, "apex_master") == "c / **?** / **?**"
    assert "a: has no CPU kernel" in coverage.markdown()
    assert "b: keeps no masters" in coverage.markdown()


def test_what_cannot_be_there_is_no_hole():
    """Of fault 3 only half precision with masters is asked; of what nobody tests here, nothing."""
    coverage = Coverage(RECORDS)
    coverage.add(Place("adam", "torch_loop", (1,), ("fp32",)))
    holes = [hole for hole in coverage.holes() if hole.startswith("fault 3 ")]

    assert [re.search(r"asks (\w+) in (\w+)", hole).groups() for hole in holes] == [
        ("apex_master", "bf16"),
        ("apex_master", "fp16"),
    ]
    assert not [hole for hole in coverage.holes() if re.match(r"fault (2\d|3[0-2]) ", hole)]
    assert Coverage(RECORDS).holes() == []


# --- a brought Adam, from the command line ---

BROUGHT = """
import torch


class Tilted(torch.optim.Adam):
    fuseproof_dtypes = ("fp32",)

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, lr=1.001 * lr, betas=betas, eps=eps, weight_decay=weight_decay)
"""


def test_a_brought_adam_with_a_wrong_constant_is_told_what_it_looks_like(tmp_path):
    """lr * 1.001 fails by a sentence that names the nature, and dtypes that it is not meant for are skipped."""
    (tmp_path / "tilted.py").write_text(BROUGHT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), *sys.path]))
    session = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/kernels/test_adam_update.py", "-p", "no:cacheprovider", "-q"),
            *("--adam", "mine=tilted:Tilted", "-k", "test_update_matches_fp64 and mine and mixed_signs"),
        ],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert session.returncode == 1, session.stdout + session.stderr
    assert "update 0.0995 % too large, the same everywhere: looks like a constant factor" in session.stdout
    assert "parity: 1 cases, 0 known defects, 1 new, 5 skipped" in session.stdout
    assert "1 skipped: mine is not meant for bf16" in session.stdout
