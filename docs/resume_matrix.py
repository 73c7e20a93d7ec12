"""Print who goes on with whose state on this machine, as Markdown: ``python docs/resume_matrix.py``.

Pairs run in a child, which a new one follows where it has ended or spoiled its CUDA context: on a GPU a kernel that
trusts a wrong state goes astray in memory.
"""

import sys
import tempfile
from pathlib import Path

import torch

from fuseproof import machine
from fuseproof.candidates import ADAM, adam_candidate
from fuseproof.parity import ParityError
from fuseproof.parity.adam.life import LOADED, resume_by_another
from fuseproof.parity.forks import fork_server

HEADS = {
    "whole": "Whole, with the saved groups, which bring flags along (so that a fused one is unfused from then on):",
    "state_alone": "The state alone, into groups of one's own:",
}
SHORT = {"the same bits": "bits", "the same but for roundings": "roundings"}


def note(path: str, source: str, target: str, device: str, dtype: str, loaded: str) -> None:
    """Write what comes of one pair."""
    try:
        said = resume_by_another(adam_candidate(source), adam_candidate(target), torch.device(device), dtype, loaded)
    except ParityError:
        said = "**another way**"
    Path(path).write_text(SHORT.get(said, said.split(":")[0]), encoding="utf-8")


def outcome(source: str, target: str, device: str, dtype: str, loaded: str) -> str:
    """Ask a child."""
    with tempfile.TemporaryDirectory() as folder:
        said, stderr = Path(folder) / "said", Path(folder) / "stderr"
        pair = {"source": source, "target": target, "device": device, "dtype": dtype, "loaded": loaded}
        fork_server().run("resume_matrix", "note", {"path": str(said), **pair}, str(stderr), 120)
        return said.read_text(encoding="utf-8") if said.exists() else "**its process died**"


def main() -> None:
    """Print a table for each way to load."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    names = [name for name, each in ADAM.items() if not each.compiled and each.unavailable(device) is None]
    software = machine.inventory()
    print(
        f"{machine.identify().slug}, " + ", ".join(f"{k} {software[k]}" for k in ("torch", "apex") if software.get(k))
    )
    for loaded in LOADED:
        print(f"\n{HEADS[loaded]}\n\n| state of \\ goes on | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
        for source in names:
            cells = []
            for target in names:
                print(f"{loaded}: {source} to {target}", file=sys.stderr, flush=True)
                dtypes = () if source == target else ("fp32", "bf16")
                said = dict.fromkeys(outcome(source, target, str(device), dtype, loaded) for dtype in dtypes)
                cells.append(" / ".join(said))
            print(f"| {source} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
