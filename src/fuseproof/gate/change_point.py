"""Where a series of nights changed its level: for a reader to look at. It locates, and blocks nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = ["NEEDS_RUPTURES", "change_points"]

NEEDS_RUPTURES = "change points are not looked for: ruptures is not installed; `pip install '.[trends]'` in the clone"

LEAST_NIGHTS = 10  # below that one series in nine without a change was given one
_LEAST_LEVEL = 3  # nights: a level that lasts for two is an outlier
_PENALTY = 6.0  # times ln n, in variances: of 100 series without a change 7 were given one at 10 nights, 0 from 60 on
_FLOOR_LN = 1e-5  # 0.001 %: a series of equal values has a change when it leaves them
_HAMPEL = 5  # nights about each one, whose median says what is an outlier
_HAMPEL_SDS = 3.0
_NORMAL_MAD = 1.4826


def change_points(values_ln: Sequence[float]) -> list[int] | None:
    """Return the positions with which a new level begins; None where ruptures is not installed.

    Exact search for piecewise constant means (Killick et al. 2012, PELT; `ruptures.KernelCPD` with a linear kernel).
    The standard deviation is taken from the differences of neighbours, outliers are clipped at 3 of them from the
    median of five (Hampel). Nights that resemble the night before give points where nothing has changed.
    """
    try:
        import ruptures  # half a second, and an extra: only where it is asked for
    except ImportError:
        return None
    values = np.asarray(values_ln, dtype=np.float64)
    if len(values) < LEAST_NIGHTS:
        return []
    steps = np.diff(values)
    sd = max(_FLOOR_LN, float(np.median(np.abs(steps - np.median(steps)))) * _NORMAL_MAD / np.sqrt(2))
    around = np.lib.stride_tricks.sliding_window_view(np.pad(values, _HAMPEL // 2, mode="edge"), _HAMPEL)
    middle = np.median(around, axis=1)
    clipped = np.clip(values, middle - _HAMPEL_SDS * sd, middle + _HAMPEL_SDS * sd) / sd
    search = ruptures.KernelCPD(kernel="linear", min_size=_LEAST_LEVEL).fit(clipped[:, None])
    return [int(end) for end in search.predict(pen=_PENALTY * np.log(len(values)))[:-1]]
