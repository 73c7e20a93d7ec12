"""Whether a kernel is right: errors against an oracle in FP64, judged by budgets that have reasons."""

from fuseproof.parity.measures import (
    DTYPES,
    Budget,
    ParityError,
    assert_parity,
    assert_rounded,
    eps_of,
    round_to,
    spacing,
)

__all__ = ["DTYPES", "Budget", "ParityError", "assert_parity", "assert_rounded", "eps_of", "round_to", "spacing"]
