"""An environment to compare: an interpreter and variables, found, asked what it has, and refused in one sentence."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fuseproof
from fuseproof.preflight import Finding
from fuseproof.processes import ChildError, ending, last_words, run_process
from fuseproof.upgrade import probe

__all__ = ["WARNINGS", "Environment", "Examined", "UpgradeError", "examine", "require_same_machine", "resolve"]

WARNINGS = ("-W", "default")
"""What pytest is told in both: a new torch that warns is not wrong, and a suite may take warnings for errors."""

_LIMIT_S = 300.0  # importing torch from a cold network disk takes a minute or two, and so may loading Apex


class UpgradeError(Exception):
    """Two environments cannot be compared; the message is one sentence: which of them, what it lacks, the mend."""


@dataclass(frozen=True)
class Environment:
    """An interpreter with what is set for it.

    Attributes:
        name: which one, for messages: `old`, `new`.
        python: its path, not followed: a virtual environment's is a link that must be started by its own name.
        variables: set besides those of this process.

    """

    name: str
    python: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Examined:
    """An environment in which benchmarks can be run, and what it has.

    Attributes:
        environment: which one.
        inventory: the software whose change may change a number, as `fuseproof.machine.inventory` says.
        machine_slug: the machine that it sees, by its folder under `bench_history/`.
        gpus: CUDA devices that it sees.
        versions: of all that is installed, by name.
        variables: those of the environment that change results or times, where they are set.
        findings: what `fuseproof doctor` says there.

    """

    environment: Environment
    inventory: Mapping[str, str]
    machine_slug: str
    gpus: int = 0
    versions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def name(self) -> str:
        """Which one: `old`, `new`."""
        return self.environment.name


def resolve(
    name: str, given: str, variables: Mapping[str, str] | None = None, folder: Path | None = None
) -> Environment:
    """Return the environment that somebody means.

    Args:
        name: which one, for messages.
        given: an interpreter, the folder of a virtual environment, or a name to look for on PATH.
        variables: set for it besides those of this process.
        folder: what a relative path starts from; the working directory if None.

    Raises:
        UpgradeError: there is no such interpreter.

    """
    meant = "give an interpreter or the folder of a virtual environment"
    if not given:
        raise UpgradeError(f"{name}: no environment is named; {meant}.")
    home = os.path.expanduser(given)  # noqa: PTH111 - Path.expanduser raises where there is no such user
    path = Path(os.path.normpath((folder or Path.cwd()) / home))
    plain = os.sep not in given and "/" not in given
    if path.is_dir() and (not plain or _interpreter_of(path) is not None or shutil.which(given) is None):
        python = _interpreter_of(path)
        if python is None:
            raise UpgradeError(f"{name}: {path} has no bin/python, so it is no virtual environment; {meant}.")
        path = python
    elif plain and (found := shutil.which(given)):
        path = Path(found)
    elif not path.exists():
        where = f"neither {path} nor a command {given} on PATH exists" if plain else f"{path} does not exist"
        raise UpgradeError(f"{name}: {where}; {meant}.")
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UpgradeError(f"{name}: {path} cannot be started as a program; {meant}.")
    return Environment(name, str(path), dict(variables or {}))


def _interpreter_of(folder: Path) -> Path | None:
    names = ("bin/python", "bin/python3", "Scripts/python.exe")
    return next((folder / each for each in names if (folder / each).is_file()), None)


def examine(environment: Environment, folder: Path, stop: threading.Event | None = None) -> Examined:
    """Ask an environment what it has; it takes as long as importing torch there, and loading Apex.

    Args:
        environment: which one.
        folder: where its tests will be run: what lies there comes first on its import path.
        stop: ends it when it is set.

    Raises:
        UpgradeError: something is missing, or is not the same as here.

    """
    told = _ask(environment, folder, stop)
    try:
        findings = tuple(Finding(*each) for each in told["findings"])
        return Examined(
            environment,
            dict(told["inventory"]),
            told["slug"],
            told["gpus"],
            {"python": told["python"], **told["distributions"]},
            dict(told["variables"]),
            findings,
        )
    except (KeyError, TypeError, ValueError) as error:  # a probe of another version, or a file that somebody changed
        raise UpgradeError(f"{_named(environment)} gave no answer that can be read ({error!r}); try again.") from None


def _ask(environment: Environment, folder: Path, stop: threading.Event | None) -> dict[str, Any]:
    """Return what the probe has told, all of it."""
    here = Path(fuseproof.__file__).parent
    with tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True) as scratch:
        answer = Path(scratch) / "answer.json"
        text = Path(probe.__file__).read_text(encoding="utf-8")
        command = [environment.python, "-c", text, str(answer), json.dumps(_requirements())]
        try:
            status, output = run_process(command, folder, environment.variables, _LIMIT_S, stop=stop)
        except ChildError as error:
            raise UpgradeError(
                f"{environment.name}: {error}; give an interpreter or the folder of a virtual environment."
            ) from None
        try:
            told: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise UpgradeError(
                f"{environment.name}: {environment.python} does not answer as Python does: {ending(status)}: "
                f"{last_words(output)}; give an interpreter or the folder of a virtual environment."
            ) from None
    named, python = _named(environment), environment.python
    if missing := told.get("missing", list(probe.NEEDED)):
        names = [probe.NEEDED[each] for each in missing]
        mends = ["install torch there, see https://pytorch.org/get-started/locally/"] * ("torch" in names)
        mends += [_install(python)] * (names != ["torch"])
        raise UpgradeError(f"{named} lacks {', '.join(names)}: {'; then '.join(mends)}.")
    if unmet := told.get("unmet", []):
        raise UpgradeError(f"{named}: {'; '.join(unmet)}: upgrade it there.")
    if "fuseproof" in told:
        if told["fuseproof"] != fuseproof.__version__:
            raise UpgradeError(
                f"{named} has fuseproof {told['fuseproof']} and this is {fuseproof.__version__}: {_install(python)}."
            )
        if told["source"] != probe.source_hash(here):
            raise UpgradeError(
                f"{named} has fuseproof {told['fuseproof']} with other sources ({told['where']}) than this one "
                f"({here}): install the same there."
            )
        if not told["plugin"]:  # it lies on PYTHONPATH: that is enough for Python, and not for pytest
            raise UpgradeError(
                f"{named} can import fuseproof ({told['where']}) and has not installed it, so pytest does not find its "
                f"plugin: {_install(python)}."
            )
    if doing := told.get("doing", "reading what is installed"):
        raise UpgradeError(f"{named} fails at {doing}: {ending(status)}: {last_words(output)}; mend that first.")
    return told


def _named(environment: Environment) -> str:
    return f"{environment.name}: {environment.python}"


def _install(python: str) -> str:
    """Return the mend of whatever fuseproof brings: its repository, since no registry has it."""
    clone = Path(fuseproof.__file__).resolve().parents[2]
    if not (clone / "pyproject.toml").is_file():  # it is installed from a wheel, and where its clone lies is not known
        return f"install this repository there, in the folder of its clone: `{python} -m pip install -e '.[tests]'`"
    return f"install this repository there: `{python} -m pip install -e '{clone}[tests]'`"


def _requirements() -> list[str]:
    try:
        return importlib.metadata.requires("fuseproof") or []
    except importlib.metadata.PackageNotFoundError:  # run from its sources
        return []


def require_same_machine(old: Examined, new: Examined) -> None:
    """Raise where two environments do not see the same hardware: a torch without CUDA, hidden devices.

    Raises:
        UpgradeError: they see different machines; the sentence says what each says of its GPU.

    """
    if old.machine_slug == new.machine_slug:
        return
    words = [next((each.sentence for each in one.findings if each.what in ("gpu", "torch")), "") for one in (old, new)]
    said = "; ".join(
        f"{one.name} sees {one.machine_slug}{f' ({words_of})' if words_of else ''}"
        for one, words_of in zip((old, new), words, strict=True)
    )
    raise UpgradeError(f"{said}: only environments that see the same machine can be compared, mend the one that errs.")
