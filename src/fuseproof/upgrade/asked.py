"""What the command lines of `upgrade` and `versus` have in common, read and checked."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fuseproof.config import load_settings
from fuseproof.gate.settings import margin
from fuseproof.tables import ConfigError
from fuseproof.upgrade.environment import Examined
from fuseproof.upgrade.lanes import VISIBLE
from fuseproof.upgrade.plan import UpgradePlan
from fuseproof.verdicts.rules import Kind, Rule

__all__ = ["Asked", "about", "add_common", "variables"]

_BROUGHT = ("adam", "layer-norm")


@dataclass(frozen=True)
class Asked:
    """What is measured, and how it is judged.

    Attributes:
        root: the repository, whose pyproject.toml configures fuseproof.
        tests: from there.
        keyword, mark: of pytest.
        arguments: more of pytest's.
        tolerance: as given.
        rules: how metrics are judged.
        most: pairs at most.
        everything: all benchmarks take part in all pairs.
        budget_s: for the pairs, None for as long as it takes.
        gpus: how many, or "all".
        folder: where finished pairs are kept.

    """

    root: Path
    tests: tuple[str, ...]
    keyword: str
    mark: str
    arguments: tuple[str, ...]
    tolerance: str
    rules: tuple[Rule, ...]
    most: int
    everything: bool
    budget_s: float | None
    gpus: str
    folder: Path

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Asked:
        """Return what a command line says.

        Raises:
            ConfigError: no tests, no configuration, or a value that cannot be meant.

        """
        tests = [Path(each) for each in arguments.tests or ["tests"]]
        for path in tests:
            if not path.exists():
                where = "" if arguments.tests else "; give the folder of the benchmarks, or run it where ./tests is"
                raise ConfigError(f"{path}: there are no tests{where}")
        root, rules = _configured(tests[0])
        if outside := [path for path in tests if not path.resolve().is_relative_to(root)]:
            raise ConfigError(
                f"{outside[0]}: lies outside of {root}, where {tests[0]} is; give tests of one repository"
            )
        brought = [
            (f"--fuseproof-{kind}", getattr(arguments, kind.replace("-", "_"))) for kind in ("adam", "layer-norm")
        ]
        more = [f"{option}={spec}" for option, specs in brought for spec in specs or ()]
        return cls(
            root,
            tuple(path.resolve().relative_to(root).as_posix() for path in tests),
            arguments.keyword,
            arguments.mark,
            (*more, *_words(arguments.pytest)),
            arguments.tolerance,
            _judged(rules, arguments.tolerance),
            _most(arguments),
            arguments.no_early_stop,
            _budget_s(arguments.budget),
            arguments.gpus,
            Path(arguments.folder),
        )

    @property
    def tolerance_ln(self) -> float:
        """The largest difference in device time that is none, where nothing else is said of a benchmark."""
        return next((rule.tolerance_ln for rule in self.rules if rule.metric == "device_time_ns"), 0.0)

    def plan(
        self, kind: str, machine: str, arms: Mapping[str, Mapping[str, Any]], candidates: Sequence[str] = ()
    ) -> UpgradePlan:
        """Return the plan of what is measured; `arms` as `about` says of each."""
        return UpgradePlan(
            kind,
            machine,
            arms,
            self.tests,
            self.keyword,
            self.mark,
            self.arguments,
            tuple(candidates),
            self.tolerance,
        )


def about(examined: Examined) -> dict[str, Any]:
    """Return what must be the same of an environment for its processes to be gone on with."""
    environment = examined.environment
    return {
        "python": environment.python,
        "set": dict(environment.variables),
        "inventory": dict(examined.inventory),
        "variables": dict(examined.variables),
        "package": {name: each for name, each in examined.versions.items() if name not in examined.inventory},
    }


def add_common(parser: argparse.ArgumentParser, folder: str, mark: str) -> None:
    """Add the options that both subcommands take."""
    parser.add_argument("-k", dest="keyword", default="", metavar="EXPR", help="which of them, as for pytest")
    parser.add_argument("-m", dest="mark", default=mark, metavar="MARK", help=f"which of them ({mark or 'all'})")
    parser.add_argument(
        "--tolerance",
        default="",
        metavar="'1 %'",
        help="the largest difference in time that is none (the gate's)",
    )
    parser.add_argument(
        "--pairs",
        default="24",
        metavar="N",
        help="at most so many: 4, 8, 12, 16 or 24 (24); 4 prove no difference below 25 %%",
    )
    parser.add_argument(
        "--no-early-stop", action="store_true", help="measure everything in all --pairs pairs, also what is decided"
    )
    parser.add_argument("--budget", metavar="MINUTES", help="start no pair that would not end within so many")
    parser.add_argument("--gpus", default="all", metavar="N", help="how many GPUs work side by side (all)")
    parser.add_argument("--folder", default=folder, help=f"where finished pairs are kept and found again ({folder})")
    for kind in _BROUGHT:
        parser.add_argument(
            f"--{kind}", action="append", metavar="NAME=MODULE:ATTR", help="bring your own, as for pytest; repeatable"
        )
    parser.add_argument(
        "--pytest", action="append", metavar="ARGS", help="more arguments of pytest, as a shell would split them"
    )


def variables(option: str, given: Sequence[str] | None) -> Mapping[str, str]:
    """Return what `K=V K=V` sets.

    Raises:
        ConfigError: it is no such word, or what it sets is the pairs' own.

    """
    found: dict[str, str] = {}
    for word in given or ():
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ConfigError(f"{option} {word}: write it as NAME=VALUE")
        if name == VISIBLE:
            raise ConfigError(f"{option} {word}: both arms of a pair run on one GPU; set it for the whole command")
        found[name] = value
    return found


def _configured(tests: Path) -> tuple[Path, tuple[Rule, ...]]:
    start = tests.resolve()
    for folder in (start, *start.parents):
        if folder.is_dir() and (settings := load_settings(folder)) is not None:
            return folder, settings.gate.rules
    raise ConfigError(f"{tests}: no pyproject.toml above it has a [tool.fuseproof] table; add one to its repository")


def _judged(rules: tuple[Rule, ...], tolerance: str) -> tuple[Rule, ...]:
    if not tolerance:
        return rules
    parsed = margin(tolerance)
    if parsed is None or parsed[1] or not parsed[0]:
        raise ConfigError(f"--tolerance {tolerance}: give a percentage such as '1 %'")
    return tuple(replace(rule, tolerance_ln=parsed[0]) if rule.kind is Kind.STOCHASTIC else rule for rule in rules)


def _most(arguments: argparse.Namespace) -> int:
    from fuseproof.verdicts.looks import LOOKS

    text: str = arguments.pairs
    count = int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else 0
    if count < LOOKS[0] or count > LOOKS[-1] or (count not in LOOKS and not arguments.no_early_stop):
        raise ConfigError(
            f"--pairs {text}: looks are taken after {', '.join(map(str, LOOKS))} pairs; give one of these"
        )
    return count


def _budget_s(minutes: str | None) -> float | None:
    if minutes is None:
        return None
    try:
        seconds = 60 * float(minutes)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise ConfigError(f"--budget {minutes}: give minutes, more than none")
    return seconds


def _words(given: Sequence[str] | None) -> list[str]:
    words: list[Any] = []
    for text in given or ():
        try:
            words += shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"--pytest {text}: {error}") from None
    return words
