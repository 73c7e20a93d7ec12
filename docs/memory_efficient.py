"""How far off dx and dgamma are where x_hat is computed from y: a table by |beta| / |gamma|, to be pasted into a page.

``python docs/memory_efficient.py`` on a machine with Apex; without it, torch's LayerNorm alone shows how to read it.
"""

from dataclasses import replace

import torch

from fuseproof.candidates import LAYER_NORM
from fuseproof.parity import DTYPES
from fuseproof.parity.norm import REGIMES, run
from fuseproof.parity.norm.bounds import oracle

RATIOS = (0.1, 1.0, 10.0, 100.0, 1000.0)
NORMS = ("torch", "apex", "apex_memory_efficient")


def errors(norm, dtype, ratio, device):
    """Return the relative rms errors of dx and dgamma with gammas near 1 and betas of that size."""
    regime = replace(REGIMES["usual"], beta=lambda noise, _: ratio * noise)
    inputs = regime.inputs((512,), (1024,), dtype, device)
    outputs, right = run(norm, inputs), oracle(norm.kind, inputs)
    pairs = ((outputs.dx, right.dx), (outputs.dgamma, right.dgamma))
    return [float((got.double() - wanted).norm() / wanted.norm()) for got, wanted in pairs]


def main():
    """Print the table."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    norms = [LAYER_NORM[name] for name in NORMS if LAYER_NORM[name].unavailable(device) is None]
    print(f"| dtype | abs(beta) / abs(gamma) | {' | '.join(f'{norm.name}: dx, dgamma' for norm in norms)} |")
    print("|---|---|" + "---|" * len(norms))
    for name, dtype in DTYPES.items():
        for ratio in RATIOS:
            cells = ("{:.1e}, {:.1e}".format(*errors(norm, dtype, ratio, device)) for norm in norms)
            print(f"| {name} | {ratio:g} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
