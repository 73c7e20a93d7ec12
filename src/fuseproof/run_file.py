"""The name of a run's file: all that listing, ordering and picking runs look at."""

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from pathlib import Path

NAME_FORM = "<number>_<YYYYMMDDTHHMMSSZ>_<night>_<uid>[_<label>].json"

NIGHT = "FUSEPROOF_NIGHT"
"""The environment variable that makes several processes one night: its name, of 0-9 and a-z."""

_CLOCKS_APART = timedelta(hours=1)  # hosts of one history that keep no common time differ by minutes
_NIGHT = re.compile(r"[0-9a-z]{1,32}")
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# Nine digits at most: a stray name with a hundred would make the next number too long for a file name, for ever.
_NAME = re.compile(
    r"(?P<number>[0-9]{4}|[1-9][0-9]{4,8})_(?P<written>[0-9]{8}T[0-9]{6}Z)"
    r"_(?P<night>[0-9a-z]{1,32})_(?P<uid>[0-9a-z]{1,32})(_(?P<label>[0-9A-Za-z._-]+))?\.json"
)


@dataclass(frozen=True)
class RunFile:
    """One file of the history, known from its name alone; `written` is in UTC, to the second."""

    path: Path
    machine: str
    number: int
    written: datetime
    night: str
    uid: str
    label: str | None

    @classmethod
    def parse(cls, path: Path, machine: str) -> "RunFile | None":
        """Read a name of the form NAME_FORM; None for any other."""
        match = _NAME.fullmatch(path.name)
        if match is None:
            return None
        try:
            written = datetime.fromisoformat(match["written"])
        except ValueError:  # the 31st of February
            return None
        return cls(path, machine, int(match["number"]), written, match["night"], match["uid"], match["label"])

    @property
    def order(self) -> tuple[datetime, int, str]:
        """Oldest first. Merged hosts repeat numbers, so the time comes first and the uid breaks ties."""
        return self.written, self.number, self.uid


def new_name(number: int, night: str, label: str | None) -> str:
    """Name a run written now; its uid keeps it apart from the same number on another host of this kind of machine."""
    slug = re.sub(r"[^0-9A-Za-z._-]+", "-", label or "").strip("-")[:80]
    stem = f"{number:04d}_{datetime.now(UTC).strftime(_TIME_FORMAT)}_{night}_{secrets.token_hex(4)}"
    return f"{stem}_{slug}.json" if slug else f"{stem}.json"


def matches(path: Path, machine: str, spec: str) -> bool:
    """Whether `spec` picks this file: a run number, a glob over names that may stop early, or "<machine>/<either>"."""
    folder, _, name = spec.rpartition("/")
    if folder and not fnmatchcase(machine, folder):
        return False
    if name.isascii() and name.isdigit():
        return path.name.partition("_")[0] == name.lstrip("0").zfill(4)
    return bool(name) and (fnmatchcase(path.name, name) or fnmatchcase(path.name, f"{name}*.json"))


def night_fault(night: str) -> str | None:
    """Return why this is no name of a night; None where it is one."""
    return None if _NIGHT.fullmatch(night) else f"the night {night!r} is not 1 to 32 of 0-9 and a-z"


def dated_ahead(files: Iterable[RunFile]) -> list[str]:
    """Return a sentence on files of the future, if there are any: they would count as the newest."""
    ahead = [file for file in files if file.written > datetime.now(UTC) + _CLOCKS_APART]
    if not ahead:
        return []
    last = max(ahead, key=lambda file: file.order).path.name
    return [
        f"{len(ahead)} run(s) are dated ahead of this machine's clock, the last {last}: "
        "nights are ordered by time, so set the clock, or move runs with a wrong date out of the history"
    ]
