"""Named candidates of which nothing was measured, each with the reason that its own record gives."""

from __future__ import annotations

from collections.abc import Sequence

from fuseproof.upgrade.bank import Trial
from fuseproof.upgrade.standings import Contestant
from fuseproof.verdicts.recorded import tests_by_key

__all__ = ["absent"]

_NO_REASON = "none of its benchmarks is selected, or all are skipped or fail; `pytest -rs` says why"


def absent(trials: Sequence[Trial], names: Sequence[str], device_type: str) -> list[str]:
    """Return a sentence for each candidate that has no benchmark in any process.

    Args:
        trials: processes, at least one: of none nobody knows what they would have measured.
        names: of the candidates.
        device_type: where they ran: "cuda", "cpu".

    """
    documents = [document for trial in trials for document in trial.documents.values()]
    measured = {Contestant.of(key).name for document in documents for key in tests_by_key(document)}
    gone = [name for name in names if name not in measured] if documents else []
    return [f"{name} has no benchmark here: {_reason(name, device_type)}" for name in gone]


def _reason(name: str, device_type: str) -> str:
    """Return why the records of that name cannot run, those of all kinds; brought ones are not among them."""
    import torch  # seconds, and of no use where all candidates are there

    from fuseproof.candidates import ADAM, KERNEL_SETS, LAYER_NORM, RMS_NORM

    records = [kind[name] for kind in (ADAM, LAYER_NORM, RMS_NORM, KERNEL_SETS) if name in kind]
    reasons = dict.fromkeys(reason for each in records if (reason := each.unavailable(torch.device(device_type))))
    return "; ".join(reasons) or _NO_REASON
