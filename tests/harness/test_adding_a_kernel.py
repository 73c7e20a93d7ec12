"""The code of docs/adding-a-kernel.md works as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-a-kernel.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's kernels and its test, as files."""
    path = tmp_path_factory.mktemp("kernels")
    *kernels, test = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    (path / "my_kernels.py").write_text("\n\n".join(kernels))
    (path / "test_mine.py").write_text(test)
    return path


def run(folder, *arguments, cwd):
    """Run pytest with the kernels on the path."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), *sys.path]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    session = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, check=False)

    assert session.returncode == 0, session.stdout + session.stderr
    return session.stdout


def test_a_test_of_one_s_own(folder):
    """Every regime passes in a repository that has nothing but the kernel."""
    assert re.search(r"\d\d passed", run(folder, "test_mine.py", cwd=folder))


def test_the_page_s_adam_passes_what_it_is_meant_for(folder):
    """FP32 cases pass; what asks for other dtypes is skipped, and counted by that reason."""
    cases = "mine and (mixed_signs or overflow or resumed or training or mixed_dtypes) and not mine-torch"
    text = run(
        folder,
        *("tests/kernels", "-m", "parity", "-k", cases, "--benchmark-disable", "--adam", "mine=my_kernels:PlainAdam"),
        cwd=ROOT,
    )

    assert re.search(r"parity: \d+ cases, 0 known defects, 0 new, \d+ skipped", text)
    assert re.search(r"\d+ skipped: mine is not meant for bf16", text)
