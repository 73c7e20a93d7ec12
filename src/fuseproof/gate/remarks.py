"""What a reader of tonight's verdicts must know besides: the baseline was measured otherwise, or elsewhere."""

from __future__ import annotations

from itertools import compress

from fuseproof.gate.session import GateSession
from fuseproof.verdicts.night import NOT_RECORDED
from fuseproof.verdicts.recorded import THREADS
from fuseproof.verdicts.verdict import Outcome

__all__ = ["remarks"]


def remarks(session: GateSession) -> list[str]:
    """Return one sentence for each way in which the baseline is another's: selection, board, method, threads."""
    return _other_selections(session) + _other_boards(session) + _other_methods(session)


def _other_selections(session: GateSession) -> list[str]:
    """Say if the newest nights of the baseline were asked for something else: what ran beside a benchmark matters."""
    newest = {position for each in session.screening.screened for position in each.family.reference}
    asked = {session.screening.history[position].selection for position in newest}
    other = sorted(asked - {session.screening.tonight.selection, NOT_RECORDED})
    if not other or session.screening.tonight.selection == NOT_RECORDED:
        return []
    shown = ", ".join(selection or "default" for selection in other)
    return [
        f"the baseline's newest nights were asked for something else ({shown}): what a process measures besides can "
        "move a benchmark by 1 %; calibrate what the nights run"
    ]


def _other_boards(session: GateSession) -> list[str]:
    """Say if most of a baseline is of other GPUs of the model: what tonight's is faster by hides a slow-down."""
    judged, foreign = set[str](), set[str]()
    for each in session.screening.screened:
        judged |= {pair.key for pair in compress(each.family.pairs, each.judged)}
        foreign |= {pair.key for pair in compress(each.family.pairs, each.judged & each.family.foreign)}
    if not foreign:
        return []
    return [
        f"{len(foreign)} of {len(judged)} keys were judged by nights of other GPUs of this model, which differ by some "
        "percent: a faster one hides a slow-down; run the old software on this one and `fuseproof accept` that night"
    ]


def _other_methods(session: GateSession) -> list[str]:
    """Say if what has no baseline has nights that measured it otherwise: a slow-down hides behind another method."""
    new = {verdict.pair.key for verdict in session.verdicts if verdict.outcome is Outcome.NEW}
    tonight = session.screening.tonight
    threads = tonight.host.get(THREADS)
    alike: set[str] = set()
    others: set[str] = set()
    theirs = threads
    for night in session.screening.history:
        apart = {key for key in new if night.methods.get(key) not in (None, tonight.methods.get(key))}
        if night.host.get(THREADS, threads) == threads:
            alike |= apart
        elif apart:
            theirs = night.host[THREADS]
            others |= apart
    sentences = []
    if alike:
        more = f" and {len(alike) - 1} keys more" if len(alike) > 1 else ""
        sentences.append(
            "no baseline but nights by another method (clock, rounds, shapes) or on another CPU model, which hide any "
            f"change: {min(alike)}{more}; compare by hand, or calibrate"
        )
    if others:
        sentences.append(
            f"{len(others)} keys without a baseline have nights with {theirs} threads, and tonight's have {threads}: "
            "on a CPU each number has a baseline of its own; set OMP_NUM_THREADS to theirs, or calibrate"
        )
    return sentences
