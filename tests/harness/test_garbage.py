"""Garbage of benchmarks is freed at once, and what was imported is not looked through for it."""

import gc
import sys
import types
import weakref

import pytest

from fuseproof.garbage import Garbage


class Cycle:
    """What only a collection frees."""

    def __init__(self):
        self.own = self


@pytest.fixture
def _thawed():
    """Leave the collector to the other tests as it was."""
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_thawed")
def test_what_outlives_a_collection_is_freed_by_a_later_one():
    """Only a collection after an import lets what lives on stay for good: a benchmark's tensors never do."""
    garbage = Garbage()
    garbage.collect()
    subject = Cycle()
    seen = weakref.ref(subject)
    garbage.collect()
    assert seen() is subject

    del subject
    garbage.collect()
    assert seen() is None


@pytest.mark.usefixtures("_thawed")
def test_what_was_imported_is_left_alone(monkeypatch):
    """The first optimizer imports eight hundred modules; looking through them takes a tenth of a second each time."""
    garbage = Garbage()
    garbage.collect()
    frozen = gc.get_freeze_count()
    garbage.collect()
    assert gc.get_freeze_count() == frozen > 100_000

    monkeypatch.setitem(sys.modules, "imported_just_now", types.ModuleType("imported_just_now"))
    kept = [[] for _ in range(1000)]
    garbage.collect()
    assert gc.get_freeze_count() >= frozen + len(kept)
