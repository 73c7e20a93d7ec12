"""Whether a kernel is right: errors against an oracle in FP64, judged by budgets that have reasons."""

from fuseproof.parity.measures import (
    DTYPES,
    Budget,
    ParityError,
    again,
    assert_parity,
    assert_rounded,
    assert_within,
    eps_of,
    round_to,
    spacing,
)

__all__ = [
    "DTYPES",
    "Budget",
    "ParityError",
    "again",
    "assert_parity",
    "assert_rounded",
    "assert_within",
    "eps_of",
    "round_to",
    "spacing",
]
