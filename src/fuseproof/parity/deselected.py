"""Parity cases that a command line deselects: in the coverage of a run they are the reason of an empty cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import pytest

from fuseproof.parity.cases import Place, place_of

__all__ = ["DESELECTED", "record"]

DESELECTED = pytest.StashKey[set[Place]]()
_SENT = "fuseproof_deselected"  # in what a worker of xdist sends at its end


def record(config: pytest.Config) -> None:
    """Record what is deselected, here and in workers, if the coverage is asked for."""
    if config.option.fuseproof_coverage:
        config.stash[DESELECTED] = set()
        config.pluginmanager.register(_Recorder(config.stash[DESELECTED]), "fuseproof-deselected")


class _Recorder:
    def __init__(self, places: set[Place]) -> None:
        self._places = places

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        """Note where the parity tests among these stand."""
        places = map(place_of, (item for item in items if item.get_closest_marker("parity")))
        self._places.update(place for place in places if place is not None)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send it from a worker: the process that prints the coverage collects nothing."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_SENT] = [astuple(place) for place in self._places]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker has sent."""
        for fixture, candidate, faults, dtypes in getattr(node, "workeroutput", {}).get(_SENT, ()):
            self._places.add(Place(fixture, candidate, tuple(faults), tuple(dtypes)))
