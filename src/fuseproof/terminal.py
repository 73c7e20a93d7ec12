"""Lines on the terminal while a session runs; what is said at its end is the hooks' business."""

from __future__ import annotations

import pytest

__all__ = ["end_dots", "say"]


def say(config: pytest.Config, progress: str) -> None:
    """Print a line of progress at once, unless pytest was asked to be quiet."""
    if (reporter := _reporter(config)) is not None:
        reporter.ensure_newline()
        reporter.write_line(f"fuseproof: {progress}")
        reporter.flush()  # else a pipe shows it when all is over


def end_dots(config: pytest.Config) -> None:
    """End the line of pytest's dots, which it leaves open until its summary; call it when all tests have run."""
    if (reporter := _reporter(config)) is not None:
        reporter.write_line("")


def _reporter(config: pytest.Config) -> pytest.TerminalReporter | None:
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    return reporter if config.get_verbosity() >= 0 else None
