"""Kernels that are slower by a known time: what `fuseproof upgrade` finds of it can be compared with what is there.

Both arms spin after each call, one of them longer by what its variable SPUN_MORE_NS says; so kernels and launches are
equal and the true size of the slow-down is known. With PYTHONPATH=docs/examples:

    fuseproof upgrade --from python --to python --to-env SPUN_MORE_NS='fp32/10m:1000000' -k spun --no-parity \
        --adam spun=spun_kernels:SpunAdam --layer-norm spun_norm=spun_kernels:SpunLayerNorm

SPUN_MORE_NS names benchmarks by dtype and shape, as their keys do, and nanoseconds: `fp32/gpt2_small:15000
bf16/8192x1024:600`. `python docs/examples/spun_kernels.py more FOLDER 2` prints it for 2 % of what the kernels took in
a finished comparison, and `python docs/examples/spun_kernels.py found FOLDER` what another one has found of it.
With SPUN_WRONG=1 the Adam's steps are 0.1 % too long: parity must say so.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

BASE_NS = 5000.0  # of both arms: the longer spin is a longer one, not one kernel more
CYCLES_PER_NS = 1.98  # an H200's SM clock under light load; a record's `spin_sm_clock_mhz` says what it was
PARAMETER_SETS = {124439808: "gpt2_small", 354823168: "gpt2_medium", 128000: "2000x64", 10011120: "10m"}
DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
OPS = ("adam_step", "layer_norm_fwd")  # forward and backward together spin as long as the forward alone
VARIABLE = "SPUN_MORE_NS"
TIME = "device_time_ns"


def _more_ns(text: str) -> dict[str, float]:
    words = [word.rpartition(":") for word in text.split()]
    return {name: float(nanoseconds) for name, _, nanoseconds in words}


MORE_NS = _more_ns(os.environ.get(VARIABLE, ""))


def _spin(device: torch.device, what: str) -> None:
    spin_ns = BASE_NS + MORE_NS.get(what, 0.0)
    if device.type == "cuda":
        torch.cuda._sleep(round(spin_ns * CYCLES_PER_NS))
        return
    end_ns = time.perf_counter_ns() + spin_ns
    while time.perf_counter_ns() < end_ns:
        pass


class SpunAdam(torch.optim.Adam):
    """torch's Adam and a spin."""

    fuseproof_dtypes = ("fp32",)  # as torch's it rounds after each operation, which half precision does not bear

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        wrong = 1.001 if os.environ.get("SPUN_WRONG") else 1.0
        super().__init__(params, lr=lr * wrong, betas=betas, eps=eps, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take a step, then spin."""
        loss = super().step(closure)
        params = [param for group in self.param_groups for param in group["params"]]
        name = PARAMETER_SETS.get(sum(param.numel() for param in params), "")
        _spin(params[0].device, f"fp32/{name}")
        return loss


class SpunLayerNorm(torch.nn.LayerNorm):
    """torch's LayerNorm, and a spin after its forward."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5) -> None:
        super().__init__(normalized_shape, eps=eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalize (rows, hidden), then spin."""
        y = super().forward(x)
        _spin(x.device, f"{DTYPES[x.dtype]}/{'x'.join(map(str, x.shape))}")
        return y


class SpunFP32LayerNorm(SpunLayerNorm):
    """The same for FP32 alone: what torch sums in BF16 on a CPU is too far off to be timed."""

    fuseproof_dtypes = ("fp32",)


def _times(folder: Path, arm: str) -> dict[str, dict[str, float]]:
    """Return each spun kernel's device time by key and pair, in an arm of a comparison's folder."""
    times: dict[str, dict[str, float]] = {}
    for path in sorted(folder.glob(f"[0-9]*-{arm}.json")):
        for benchmark in json.loads(path.read_text(encoding="utf-8"))["benchmarks"]:
            record = benchmark["extra_info"]["fuseproof"]
            if "/spun" in record["key"] and TIME in record["metrics"]:
                times.setdefault(record["key"], {})[path.name.partition("-")[0]] = record["metrics"][TIME]
    return times


def _named(key: str) -> str:
    return "/".join(key.split("/")[2:])


def more(folder: Path, percent: float) -> str:
    """Return SPUN_MORE_NS for a slow-down of so many percent of what Adam's steps and the norms' forwards took."""
    wanted = {
        _named(key): statistics.median(times.values()) * percent / 100
        for key, times in _times(folder, "old").items()
        if key.split("/")[0] in OPS
    }
    return " ".join(f"{name}:{nanoseconds:.0f}" for name, nanoseconds in sorted(wanted.items()))


def found(folder: Path) -> list[str]:
    """Return a line for each spun kernel: the slow-down that is there, the one that was seen, and the difference."""
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    there_ns = _more_ns(plan["arms"]["new"]["set"].get(VARIABLE, ""))
    old, new = _times(folder, "old"), _times(folder, "new")
    lines = []
    for key in sorted(old.keys() & new.keys()):
        base_ns = statistics.median(old[key].values())
        there = math.log1p(there_ns.get(_named(key), 0.0) / base_ns)
        pairs = old[key].keys() & new[key].keys()
        seen = statistics.median(math.log(new[key][pair] / old[key][pair]) for pair in pairs)
        size = f"{base_ns / 1000:.1f} us, {len(pairs)} pairs"
        lines.append(f"{key} ({size}): there {there:+.2%}, seen {seen:+.2%}, error {seen - there:+.2%}")
    return lines


def main() -> None:
    """Print what a comparison's folder says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    sizes = commands.add_parser("more", help="SPUN_MORE_NS for a slow-down of so many percent")
    sizes.add_argument("folder", type=Path)
    sizes.add_argument("percent", type=float)
    seen = commands.add_parser("found", help="what was there and what was seen")
    seen.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    lines = [more(arguments.folder, arguments.percent)] if arguments.command == "more" else found(arguments.folder)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
