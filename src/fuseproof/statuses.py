"""Exit statuses: what a command or a session of pytest ends with."""

from __future__ import annotations

__all__ = [
    "CRASHED",
    "INTERRUPTED",
    "NO_TESTS",
    "READER_GONE",
    "REGRESSED",
    "TESTS_FAILED",
    "TESTS_RAN",
    "UNANSWERED",
    "USAGE_ERROR",
    "USED_WRONGLY",
]

TESTS_FAILED = 1  # pytest's
REGRESSED = 20
"""Proven slower, more memory, more launches or other kernels."""
UNANSWERED = 21
"""Not answered: INVALID, MISSING, held for a second night, a failed control, or what is required is not there."""

USAGE_ERROR = 2
"""A command that is used wrongly, as argparse has it; pytest's own is another."""
CRASHED = 3  # pytest's status of an internal error; what a signal killed has none of its own
USED_WRONGLY = 4  # pytest's, as the next
NO_TESTS = 5
TESTS_RAN = (0, TESTS_FAILED)
"""Those of a session of pytest that ran to its end."""
INTERRUPTED = 130  # as a shell says it, and the next
READER_GONE = 141
