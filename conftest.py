"""This repository's short option names and parameters; fixtures that others need live in the package."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add short names for the plugin's options."""
    group = parser.getgroup("fuseproof")
    group.addoption("--full", action="store_true", dest="fuseproof_full", help="short for --fuseproof-full")
    group.addoption(
        "--require", dest="fuseproof_require", default="", metavar="WHAT", help="short for --fuseproof-require"
    )
