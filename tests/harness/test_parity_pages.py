"""The pages of known defects and of coverage say what the tables and the tests say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the pages anew, in another process: the tests are collected for it."""
    folder = tmp_path_factory.mktemp("pages")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    subprocess.run([sys.executable, str(DOCS / "parity_pages.py"), str(folder)], env=environ, check=True)
    return folder


@pytest.mark.parametrize("page", ["apex-defects.md", "coverage.md"])
def test_the_page_is_as_it_would_be_written(written, page):
    """A defect, a reproduction, a fault or a test that has changed since is on it: python docs/parity_pages.py."""
    assert (written / page).read_text(encoding="utf-8") == (DOCS / page).read_text(encoding="utf-8")
