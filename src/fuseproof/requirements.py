"""What `--require` may ask for: at the command line of pytest, of a night and of the doctor."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["HARDWARE", "REQUIREMENTS", "requirement_fault", "requirements"]

HARDWARE = ("apex", "cuda")
REQUIREMENTS = (*HARDWARE, "baseline", "gate")


def requirements(text: str) -> list[str]:
    """Return what an option asks for, comma by comma."""
    return [each.strip() for each in text.split(",") if each.strip()]


def requirement_fault(
    asked: Iterable[str], known: Iterable[str] = REQUIREMENTS, *, option: str = "--require"
) -> str | None:
    """Return one sentence about the first requirement that is none, or None; `option` is who asks."""
    unknown = sorted(set(asked) - {*known})
    return f"{option}={unknown[0]}: known are {', '.join(sorted(known))}" if unknown else None
