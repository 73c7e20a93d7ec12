"""What differs between two environments: software, packages, variables, and what the doctor finds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fuseproof.machine import ABSENT
from fuseproof.preflight import Finding
from fuseproof.upgrade.environment import Examined

__all__ = ["Difference", "differences", "in_words"]

_FIRST: Final = (
    "driver",
    "cuda",
    "cudnn",
    "torch",
    "torch_git",
    "triton",
    "apex",
    "python",
)  # what an upgrade is about
_UNSET: Final = "not set"
_SHOWN = 5


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same.

    Attributes:
        kind: `software` (which may change a number), `variable`, `package`, or `doctor`.
        name: which.
        old, new: what each environment has.

    """

    kind: str
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.name} {self.old} -> {self.new}"


def differences(old: Examined, new: Examined) -> tuple[Difference, ...]:
    """Return what differs, in the order in which it may change a result: software, variables, packages, findings."""
    names = [*_FIRST, *sorted({*old.inventory, *new.inventory} - {*_FIRST})]
    found = [*_differ("software", names, old.inventory, new.inventory, ABSENT)]
    was, now = ({**each.variables, **each.environment.variables} for each in (old, new))
    found += _differ("variable", sorted({*was, *now}), was, now, _UNSET)
    packages = sorted({*old.versions, *new.versions} - {*old.inventory, *new.inventory})
    found += _differ("package", packages, old.versions, new.versions, ABSENT)
    return (*found, *_findings(old, new))


def _findings(old: Examined, new: Examined) -> list[Difference]:
    """Return what the doctor finds in another state; where a file lies that is well in both is of no importance."""
    was, now = ({each.what: each for each in one.findings} for one in (old, new))
    return [
        Difference("doctor", what, _said(was.get(what)), _said(now.get(what)))
        for what in sorted({*was, *now})
        if what not in was or what not in now or was[what].code != now[what].code
    ]


def _said(finding: Finding | None) -> str:
    return "not looked at" if finding is None else f"{finding.status}: {finding.sentence}"


def _differ(
    kind: str, names: Iterable[str], old: Mapping[str, str], new: Mapping[str, str], absent: str
) -> list[Difference]:
    pairs = ((name, old.get(name, absent), new.get(name, absent)) for name in names)
    return [Difference(kind, name, before, after) for name, before, after in pairs if before != after]


def in_words(found: Iterable[Difference]) -> str:
    """Return the differences that matter most in a few words; `nothing differs` where there is none."""
    found = list(found)
    named = [each for each in found if each.kind in ("software", "variable") and each.name != "torch_git"]
    parts = [str(each) for each in named[:_SHOWN]]
    parts += [f"{len(named) - _SHOWN} more"] if len(named) > _SHOWN else []
    packages = sum(each.kind == "package" for each in found)
    parts += [f"{packages} package{'s' * (packages != 1)}"] if packages else []
    doctor = sum(each.kind == "doctor" for each in found)
    parts += [f"the doctor says otherwise of {doctor}"] if doctor and not parts else []
    return ", ".join(parts) or "nothing differs"
