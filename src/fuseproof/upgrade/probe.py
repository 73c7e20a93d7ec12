"""What another interpreter is asked about itself. Its text is run there, with Python alone: fuseproof may be missing.

It writes what it knows after each thing that may end it, such as importing torch, so that the parent can say at what.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

__all__ = ["NEEDED", "source_hash"]

NEEDED = {
    "pytest": "pytest",
    "pytest_benchmark": "pytest-benchmark",
    "fuseproof": "fuseproof",
    "torch": "torch",
    "xdist": "pytest-xdist",
    "filelock": "filelock",
    "numpy": "numpy",
    "scipy": "scipy",
    "pynvml": "nvidia-ml-py",
}
"""Modules without which nothing can be measured, with the distributions that bring them; fuseproof brings the last."""


def source_hash(package: Path) -> str:
    """Return a hash of a package's sources: two copies of one version may differ."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _distributions() -> dict[str, str]:
    found: dict[str, str] = {}
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"] if each.metadata else None  # a folder left behind by a broken uninstallation
        if name:
            found.setdefault(str(name).lower().replace("_", "-"), str(each.version))
    return dict(sorted(found.items()))


def _unmet(requirements: list[str], found: dict[str, str]) -> list[str]:
    """Return what fuseproof requires and this environment does not have; pytest brings what can read it."""
    from packaging.requirements import Requirement

    sentences = []
    for each in map(Requirement, requirements):
        here = found.get(each.name.lower().replace("_", "-"))
        if (each.marker and not each.marker.evaluate({"extra": ""})) or here is None:
            continue  # what is absent shows when it is imported: an installation may go by another name
        if not each.specifier.contains(here, prereleases=True):
            sentences.append(f"{each.name} is {here} and fuseproof needs {each.specifier}")
    return sentences


def _ask(answer: Path, requirements: list[str]) -> None:
    told: dict[str, Any] = {"python": platform.python_version(), "distributions": _distributions()}

    def tell(**more: Any) -> None:
        told.update(more)
        part = answer.with_suffix(".part")
        part.write_text(json.dumps(told), encoding="utf-8")
        part.replace(answer)

    tell(missing=[name for name in NEEDED if importlib.util.find_spec(name) is None])
    if told["missing"]:
        return
    tell(unmet=_unmet(requirements, told["distributions"]))
    for name in NEEDED:
        tell(doing=f"importing {name}")
        importlib.import_module(name)
    fuseproof = importlib.import_module("fuseproof")
    package = Path(fuseproof.__file__ or "").parent
    plugins = importlib.metadata.entry_points(group="pytest11")
    tell(
        fuseproof=fuseproof.__version__,
        source=source_hash(package),
        where=str(package),
        plugin=any(each.value == "fuseproof.plugin" for each in plugins),
    )
    tell(doing="looking at the machine")
    machine = importlib.import_module("fuseproof.machine")
    preflight = importlib.import_module("fuseproof.preflight")
    torch = importlib.import_module("torch")
    tell(
        slug=machine.identify().slug,
        inventory=machine.inventory(),
        variables=machine.settings()["environment"],
        gpus=torch.cuda.device_count() if torch.cuda.is_available() else 0,
    )
    tell(doing="looking at Apex")
    report = preflight.examine()
    tell(findings=[[each.code, each.status, each.sentence] for each in report.findings], doing=None)


if __name__ == "__main__":
    try:
        _ask(Path(sys.argv[1]), json.loads(sys.argv[2]))
    except Exception as error:  # noqa: BLE001  # whatever it is, its words are what the parent has to show
        sys.stdout.flush()
        os.write(2, f"\n{type(error).__name__}: {error}\n".encode())
        raise SystemExit(1) from None
