"""Parity of LayerNorm and RMSNorm: y, dx, dgamma, dbeta and the saved statistics beside the oracle's."""

from fuseproof.parity.norm.checks import NormOutputs, case_of, check, check_eps, check_regime, judge, run
from fuseproof.parity.norm.regimes import NORM_DTYPES, REGIMES, NormInputs, NormRegime

__all__ = [
    "NORM_DTYPES",
    "REGIMES",
    "NormInputs",
    "NormOutputs",
    "NormRegime",
    "case_of",
    "check",
    "check_eps",
    "check_regime",
    "judge",
    "run",
]
