"""Memory held beside a benchmark: by chance, the same in both arms of a pair, and only as long as it measures."""

import weakref

import pytest
import torch

from fuseproof import measure, placement
from fuseproof.measure import Key, Measurements, Plan
from fuseproof.order import Order
from fuseproof.placement import hold

GPU = torch.device("cuda")
CPU = torch.device("cpu")
MIB = 2**20


@pytest.fixture
def sizes(monkeypatch):
    """Return what sizes are held for a seed and a key, on any machine."""

    def empty(size, *, dtype, device):
        assert (dtype, device) == (torch.uint8, GPU)
        return size

    monkeypatch.setattr(placement.torch, "empty", empty)
    return lambda seed, key="op/candidate/fp32/64": tuple(hold(seed, key, GPU))


def test_both_arms_hold_the_same_and_each_pair_its_own(sizes):
    """The seed of the pair and the key decide: over pairs a benchmark lies in many places."""
    assert sizes("night-1") == sizes("night-1")
    assert sizes("night-1") != sizes("night-1", "op/candidate/bf16/64")
    assert len({sizes(f"night-{number}") for number in range(100)}) > 90  # one piece of the same size may come twice


def test_little_is_held(sizes):
    """At least one piece, together less than half a GiB, none that a benchmark could reuse whole pages of."""
    drawn = [sizes(f"night-{number}") for number in range(300)]

    assert {len(pieces) for pieces in drawn} == set(range(1, 9))
    assert all(MIB < size < 64 * MIB for pieces in drawn for size in pieces)
    assert all(size % MIB for pieces in drawn for size in pieces)
    assert max(map(sum, drawn)) < 512 * MIB


@pytest.mark.parametrize(("seed", "device"), [("", GPU), ("night-1", CPU)], ids=["no-seed", "cpu"])
def test_nothing_is_held_without_a_reason(seed, device):
    """Nights lie where they come to lie; and a CPU's pages are nobody's business."""
    assert hold(seed, "op/candidate/fp32/64", device) == []


class Piece:
    """Something that can be asked whether it lives."""


class Subject:
    """Notes at each call whether what is held is alive."""

    def __init__(self, held):
        self.held, self.alive = held, []

    def __call__(self):
        """Note it."""
        self.alive.append(tuple(reference() is not None for reference in self.held))

    def check(self):
        """Nothing to check."""


class Rounds:
    """What pytest-benchmark's fixture does, without a table or a file of this."""

    disabled = False
    fullname = "test_op.py::test_op[a]"

    def __init__(self):
        self.extra_info = {}

    def pedantic(self, target, args, rounds, iterations):
        """Run the rounds."""
        for _ in range(rounds * iterations):
            target(*args)


def test_it_is_held_from_building_to_the_last_round(monkeypatch):
    """Not allocated after the tensors that it is to move, gone before the next benchmark is built; profiled alike."""
    held, subjects = [], []

    def noted(seed, key, device):
        assert (seed, key, device) == ("night-1", "op/candidate/fp32/64", CPU)
        assert len(subjects) == len(held)
        piece = Piece()
        held.append(weakref.ref(piece))
        return [piece]

    def build():
        assert held
        subjects.append(Subject(held))
        return subjects[-1]

    monkeypatch.setattr(measure, "hold", noted)
    plan = Plan(Key("op", "candidate", "fp32", "64"), build, "kernel", rounds=3)
    measurements = Measurements(CPU, placement="night-1")
    measurements.run(plan, Rounds())
    assert held[0]() is None
    assert list(measurements.profile_pending()) == [("test_op.py::test_op[a]", None)]

    timed, profiled = subjects
    assert len(timed.alive) >= 3
    assert {(True,)} == set(timed.alive)
    assert {(False, True)} == set(profiled.alive)
    assert [reference() for reference in held] == [None, None]


def test_a_child_is_told_its_placement(tmp_path):
    """It goes the way of the order."""
    environ = Order(tmp_path, (), placement="night-1").given()
    told = Order.take(environ)

    assert told is not None
    assert told.placement == "night-1"
    assert environ == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU's memory")
def test_it_is_memory_of_the_gpu():
    """It takes what it says, and gives it back."""
    before = torch.cuda.memory_allocated()
    pieces = hold("night-1", "op/candidate/fp32/64", GPU)
    assert torch.cuda.memory_allocated() - before >= sum(piece.numel() for piece in pieces) >= MIB
    del pieces
    assert torch.cuda.memory_allocated() == before
