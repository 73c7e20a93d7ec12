"""The subcommands `check`, `show` and `accept`: they read files, and need neither torch nor pytest nor a GPU.

Whatever is not Python's own is imported when one of them runs: `fuseproof doctor` works where it is broken.
"""

from __future__ import annotations

import argparse
import datetime
import getpass
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuseproof.config import ConfigError, Settings, load_settings
from fuseproof.gate.waivers import load_waivers
from fuseproof.statuses import UNANSWERED, USAGE_ERROR
from fuseproof.storage import HistoryError, shown

if TYPE_CHECKING:
    from fuseproof.history import History

__all__ = ["add_accept", "add_check", "add_show"]

_STATUSES = (
    "Exit status: 20 if something is REGRESSED and no waiver covers it; 21 if the question cannot be answered: "
    "INVALID, MISSING, HELD for a second night, a failed control, files that cannot be used, and with --require=gate "
    "also NEW, INCONCLUSIVE and UNGATEABLE; 2 for wrong usage or a configuration that cannot be used; else 0."
)
_STATUSES_OF_QUESTIONS = (
    "Exit status: 0; 21 if the history cannot be used or has no such benchmark, metric or night; 2 for wrong usage or "
    "a configuration that cannot be used."
)


def add_check(commands: Any) -> None:
    """Add `fuseproof check`."""
    parser = commands.add_parser(
        "check",
        help="judge the newest night of some run files, from the files alone",
        description="Judge the newest night of the files given by the other nights among them or, if all are of one "
        "night, by the history. Its first processes screen, as many as `replicates` says; further ones confirm. "
        "Of a night that its own session has judged all screen, and what that session left confirms. "
        "Nothing is run and nothing is written. The controls of the night's own session (a planted slow-down, "
        "processes of one arm) are judged again by what it left with its verdicts, beside the runs or in the history; "
        "of a night that left nothing that is said.",
        epilog=_STATUSES,
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a run of bench_history, or a copy of one")
    parser.add_argument(
        "--whole-suite", action="store_true", help="the night was asked for everything: what is gone is MISSING"
    )
    parser.add_argument("--require", choices=["gate"], help="be certain: NEW, INCONCLUSIVE and UNGATEABLE are 21 too")
    parser.add_argument("--everything", action="store_true", help="a line for each verdict, PASS too")
    _add_places(parser, "print one JSON object: status, summary, judged, known, verdicts, controls, set_aside")
    parser.set_defaults(run=_explained(_check))


def add_show(commands: Any, this_machine: Callable[[], str | None]) -> None:
    """Add `fuseproof show`; `this_machine` says whose folder is this machine's, or None where that cannot be told."""
    parser = commands.add_parser(
        "show",
        help="how well each benchmark can be gated, or the nights of one",
        description="Without KEY: each benchmark with its baseline, its noise between nights and between processes, "
        "and the slow-down that a night would find in 95 % of cases, by the history alone and in pairs. With KEY: "
        "each night's value, spread and verdict, where the level changed, and nights that have not seen the slow-down "
        "that they had planted.",
        epilog=_STATUSES_OF_QUESTIONS,
    )
    parser.add_argument("key", nargs="?", metavar="KEY", help="a benchmark's key, or a pattern such as 'adam_step/*'")
    parser.add_argument("--metric", help="only this metric, such as device_time_ns")
    _add_machine(parser)
    _add_places(parser, "print one JSON object: benchmarks, or series by key and metric and unseen_plants")
    parser.set_defaults(run=_explained(_show), this_machine=this_machine)


def add_accept(commands: Any, this_machine: Callable[[], str | None]) -> None:
    """Add `fuseproof accept`; `this_machine` as for `show`."""
    parser = commands.add_parser(
        "accept",
        help="accept a night's level as the new baseline",
        description="Say that a changed level is wanted. The newest night becomes the first of a new baseline for "
        "these benchmarks; one that this night was asked for and does not have is retired, and no longer MISSING; one "
        "that it was not asked for (-k, another selection) is left as it is. --withdraw "
        "takes the newest acceptance of these benchmarks back: they are judged as before it, and nights that were "
        "judged by it are no baseline for them.",
        epilog=_STATUSES_OF_QUESTIONS,
    )
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a benchmark's key, or a pattern such as 'adam_step/*'")
    parser.add_argument("--withdraw", action="store_true", help="take an acceptance back")
    parser.add_argument("--reason", required=True, help="why this level is wanted, or no longer; it is kept")
    parser.add_argument("--metric", help="only this metric; else all of the benchmark")
    parser.add_argument("--night", help="a night by its name; else the newest")
    parser.add_argument("--who", help="who accepts; else the name of the user")
    _add_machine(parser)
    _add_places(
        parser, "print one JSON object: night, accepted, retired, left, reason, who, notes; or withdrawn, no_baseline"
    )
    parser.set_defaults(run=_explained(_accept), this_machine=this_machine)


def _add_places(parser: argparse.ArgumentParser, json_help: str) -> None:
    parser.add_argument("--history", type=Path, metavar="DIR", help="the history; else that of ./pyproject.toml")
    parser.add_argument("--json", action="store_true", help=json_help)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", metavar="NAME", help="whose nights; else this machine's, or the only ones")


def _explained(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Return the command with one sentence on stderr, and no traceback, for whatever is wrong with files."""

    def explained(arguments: argparse.Namespace) -> int:
        try:
            return run(arguments)
        except (HistoryError, ConfigError) as error:
            print(f"fuseproof {arguments.command}: {error}", file=sys.stderr)
            return USAGE_ERROR if isinstance(error, ConfigError) else UNANSWERED

    return explained


def _settings() -> Settings:
    return load_settings(Path.cwd()) or Settings()


def _history(arguments: argparse.Namespace) -> History:
    from fuseproof.history import History

    return History(arguments.history or Path(_settings().history))


def _machine(arguments: argparse.Namespace, history: History) -> str:
    machines = history.machines()
    if arguments.machine is not None:
        history.folder(arguments.machine)
        if arguments.machine not in machines:
            raise HistoryError(f"{shown(history.root)}: no run of {arguments.machine!r}; it has {_listed(machines)}")
        return str(arguments.machine)
    if len(machines) > 1 and (own := arguments.this_machine()) in machines:
        said = f"the nights of {own}, this machine; for another give --machine"
        print(f"fuseproof {arguments.command}: {said}", file=sys.stderr)
        return str(own)
    if len(machines) != 1:
        mend = "; say which with --machine" if machines else "; save a first run with pytest --benchmark-autosave"
        raise HistoryError(f"{shown(history.root)}: it has {_listed(machines)}{mend}")
    return next(iter(machines))


def _listed(machines: dict[str, int]) -> str:
    return ", ".join(f"{name} ({count} runs)" for name, count in machines.items()) or "no runs"


def _check(arguments: argparse.Namespace) -> int:
    from fuseproof.gate import present
    from fuseproof.gate.checking import checked
    from fuseproof.run_file import RunFile, dated_ahead

    named = (RunFile.parse(path, "") for path in arguments.files)
    for sentence in dated_ahead(file for file in named if file is not None):
        print(f"fuseproof check: {sentence}", file=sys.stderr)
    settings = _settings()
    waivers = load_waivers(Path(), settings.gate)
    session = checked(
        arguments.files,
        settings.gate,
        waivers,
        _history(arguments),
        datetime.date.today(),
        whole_suite=arguments.whole_suite,
    )
    status = session.status(required_gate=arguments.require == "gate")
    if arguments.json:
        print(json.dumps({"status": status, **present.to_json(session)}))
    else:
        print("\n".join(present.table_lines(session, everything=arguments.everything)))
    return status


def _show(arguments: argparse.Namespace) -> int:
    from fuseproof.gate import trend
    from fuseproof.gate.keys import chosen
    from fuseproof.gate.ledger import Ledger

    history = _history(arguments)
    ledger = Ledger(history, _machine(arguments, history))
    document: dict[str, Any]
    if arguments.key is None:
        found = trend.powers(_settings().gate, nights := ledger.nights())
        known = sorted({pair.metric for night in nights for pair in night.pairs})
        if arguments.metric not in (None, *known):
            said = f"no benchmark here has a metric {arguments.metric!r}; known are {', '.join(known) or 'none'}"
            raise HistoryError(said)
        found = [each for each in found if arguments.metric in (None, each.metric)]
        lines, document = trend.power_lines(found), {"benchmarks": trend.to_json(found)}
    else:
        nights = ledger.nights(everything=True)
        pairs = chosen(
            [arguments.key],
            arguments.metric,
            {pair for night in nights for pair in {*night.pairs, *night.marks}},
        )
        shown_series = {pair: trend.series(nights, pair) for pair in pairs}
        lines = [line for pair, (points, _) in shown_series.items() for line in trend.series_lines(pair, points)]
        asleep = ledger.unseen_plants()
        lines += [f"control failed: plant of night {night}: {detail}" for night, detail in asleep.items()]
        lines += dict.fromkeys(note for _, note in shown_series.values() if note is not None)
        tables = [
            {"key": pair.key, "metric": pair.metric, "nights": trend.to_json(points)}
            for pair, (points, _) in shown_series.items()
        ]
        document = {"series": tables, "unseen_plants": asleep}
    if arguments.json:
        print(json.dumps(document | {"set_aside": ledger.set_aside}))
    else:
        print("\n".join([*lines, *(f"set aside: {sentence}" for sentence in ledger.set_aside)]))
    return 0


def _accept(arguments: argparse.Namespace) -> int:
    from fuseproof.gate.keys import accept, withdraw

    history = _history(arguments)
    machine = _machine(arguments, history)
    who = arguments.who or _user()
    do = withdraw if arguments.withdraw else accept
    done = do(history, machine, arguments.keys, arguments.metric, arguments.night, reason=arguments.reason, who=who)
    print(json.dumps(done.document()) if arguments.json else "\n".join(done.lines()))
    return 0


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        raise ConfigError("this system does not know your name; give it with --who.") from None
