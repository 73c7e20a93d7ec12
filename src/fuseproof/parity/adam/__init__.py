"""Parity of Adam: every step beside the oracle's, and the whole way."""

from fuseproof.parity.adam.checked import CheckedAdam, Group
from fuseproof.parity.adam.regimes import MODES, REGIMES, make_params, settings_in_mode

__all__ = ["MODES", "REGIMES", "CheckedAdam", "Group", "make_params", "settings_in_mode"]
