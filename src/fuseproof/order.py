"""What a parent tells a child: a fresh process of pytest that measures, and neither compares, gates nor saves."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from fuseproof.unmeasured import UnmeasuredRecorder

if TYPE_CHECKING:
    import pytest

__all__ = ["Order"]

ORDER = "FUSEPROOF_CHILD"


@dataclass(frozen=True)
class Order:
    """What a parent tells a child.

    Attributes:
        storage: folder for its results.
        tests: what to run, as arguments of pytest; empty: what the child's command line says.
        plants: slow-downs to plant beside their results, by key: logarithms of ratios.
        seed: the child runs its benchmarks in the random order that follows from it, and nothing else; empty: in the
            usual order, whatever is collected.
        candidates: names; only these take part, those too that a night cannot afford. Empty: all.
        placement: what memory is held beside each benchmark follows from it (`placement.hold`); empty: none.

    """

    storage: Path
    tests: tuple[str, ...]
    plants: Mapping[str, float] = field(default_factory=dict)
    seed: str = ""
    candidates: tuple[str, ...] = ()
    placement: str = ""

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> Order | None:
        """Return the order that this process was started with, once: its own descendants must not find it."""
        if (path := environ.pop(ORDER, None)) is None:
            return None
        told = json.loads(Path(path).read_text(encoding="utf-8"))
        lists = {name: tuple(told[name]) for name in ("tests", "candidates")}
        return cls(Path(path).parent, plants=told["plants"], seed=told["seed"], placement=told["placement"], **lists)

    def given(self) -> dict[str, str]:
        """Write it down and return the variable that a child finds it by: a thousand tests are too long for one."""
        path = self.storage / "order.json"
        told = {name: value for name, value in asdict(self).items() if name != "storage"}
        path.write_text(json.dumps(told), encoding="utf-8")
        return {ORDER: str(path)}

    def obey(self, config: pytest.Config) -> None:
        """Make this session a child: nothing is compared, gated or written but its results and why others have none."""
        option = config.option
        option.benchmark_json = option.xmlpath = option.basetemp = None
        option.fuseproof_parity_json = None
        option.benchmark_compare, option.benchmark_compare_fail = [], []
        option.benchmark_autosave, option.benchmark_save = True, None
        option.benchmark_storage = f"file://{self.storage}"
        option.fuseproof_gate, option.fuseproof_gate_json, option.fuseproof_require = "off", None, ""
        option.fuseproof_replicates = 1
        config.pluginmanager.register(UnmeasuredRecorder(self.storage), "fuseproof-unmeasured")
        if self.tests:
            config.args[:] = self.tests

    def turn(self, test: str) -> str:
        """Return what benchmarks are sorted by: their turns do not depend on which others run."""
        return hashlib.sha256(f"{self.seed} {test}".encode()).hexdigest()
