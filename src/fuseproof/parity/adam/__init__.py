"""Parity of Adam: every step beside the oracle's, and the whole way."""

from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.checks import check_regime
from fuseproof.parity.adam.regimes import MODES, REGIMES, make_params, settings_in_mode, usual_settings

__all__ = [
    "MODES",
    "REGIMES",
    "CheckedAdam",
    "Group",
    "check_regime",
    "make_params",
    "settings_in_mode",
    "usual_settings",
]
