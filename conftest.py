"""This repository's short option names; fixtures that others need live in the package."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add short names for the plugin's options."""
    group = parser.getgroup("fuseproof")
    group.addoption("--full", action="store_true", dest="fuseproof_full", help="short for --fuseproof-full")
    group.addoption("--coverage", action="store_true", dest="fuseproof_coverage", help="short for --fuseproof-coverage")
    for name, metavar in (("require", "WHAT"), ("adam", "NAME=MODULE:ATTR"), ("layer-norm", "NAME=MODULE:ATTR")):
        group.addoption(
            f"--{name}",
            action="store" if name == "require" else "append",
            dest=f"fuseproof_{name.replace('-', '_')}",
            default="" if name == "require" else None,
            metavar=metavar,
            help=f"short for --fuseproof-{name}",
        )
