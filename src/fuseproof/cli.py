"""The `fuseproof` command: one function for each subcommand, which adds itself."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from fuseproof import __version__, apex_probe, calibrate, machine, nightly, preflight
from fuseproof.gate.commands import add_accept, add_check, add_show
from fuseproof.requirements import HARDWARE, requirement_fault, requirements
from fuseproof.statuses import INTERRUPTED, READER_GONE, UNANSWERED, USAGE_ERROR
from fuseproof.upgrade import command as upgrade
from fuseproof.upgrade import versus


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; its exit status."""
    parser = argparse.ArgumentParser(
        prog="fuseproof",
        description="Are the fused kernels still right, and is nothing slower or hungrier, on this GPU?",
    )
    parser.add_argument("--version", action="version", version=f"fuseproof {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for add in (_add_doctor, calibrate.add, nightly.add, upgrade.add, versus.add, add_check):
        add(commands)
    for add_reader in (add_show, add_accept):
        add_reader(commands, _this_machine)
    arguments = parser.parse_args(argv)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that lacks a character shows its number
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # `fuseproof show | head`: whoever read it has seen enough
        _mute()
        return READER_GONE
    except OSError as error:  # a full disk, wherever it is met: what subcommands can say more of, they have said
        try:
            sys.stdout.flush()
        except OSError:
            _mute()
        where = f"{error.filename}: " if error.filename else ""
        said = f"fuseproof {arguments.command}: {where}{error.strerror or error}; mend that, and run it again"
        print(said, file=sys.stderr)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _this_machine() -> str | None:
    """Return this machine's folder of the history; None where torch, which knows the GPU, is absent or broken."""
    try:
        return machine.identify().slug
    except (ImportError, OSError, RuntimeError):
        return None


def _mute() -> None:
    """Let the standard output go nowhere: Python would complain again as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _add_doctor(commands: Any) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what is missing or broken on this machine, and how to mend it",
        description="Look at the GPU, its driver, torch and NVIDIA Apex, and say in one sentence each what is missing "
        "or broken and how to mend it.",
        epilog="Exit status: 0 if nothing is broken (a GPU or Apex may be missing: what needs them is skipped), "
        f"{UNANSWERED} if something is there and does not work, or what --require names is not there.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: header, broken, findings")
    parser.add_argument("--require", default="", metavar="WHAT[,WHAT]", help="cuda, apex: what must be there too")
    parser.set_defaults(run=_doctor)


def _doctor(arguments: argparse.Namespace) -> int:
    required = requirements(arguments.require)
    if fault := requirement_fault(required, HARDWARE):
        print(f"fuseproof doctor: {fault}.", file=sys.stderr)
        return USAGE_ERROR
    os.environ.pop(apex_probe.VOUCHED, None)  # the doctor looks for himself
    report = preflight.examine()
    print(report.to_json() if arguments.json else f"{report.header_line()}\n{report.to_text()}")
    unmet = preflight.unmet(required)
    for sentence in unmet:
        print(f"required: {sentence}", file=sys.stderr)
    return UNANSWERED if report.broken or unmet else 0


if __name__ == "__main__":
    raise SystemExit(main())
