"""What the command line asks of pytest-benchmark's storage, taken over before pytest-benchmark reads it.

It would load and save by itself, but its folder name does not know the GPU, its write is not atomic and its comparison
goes by test names. So everything goes through `history`; its own table and JSON stay as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from fuseproof.history import History
from fuseproof.run_file import NIGHT, night_fault

__all__ = ["Asked", "take_over"]

_DEFAULT_STORAGE = "file://./.benchmarks"


@dataclass(frozen=True)
class Asked:
    """What the command line asked of pytest-benchmark's storage.

    Attributes:
        compare: None (not asked), True (the newest run), or a run number, glob or path.
        label: None (do not save), or the name given to ``--benchmark-save``; empty for ``--benchmark-autosave``.

    """

    compare: str | bool | None
    label: str | None


def take_over(config: pytest.Config, history_root: Path) -> tuple[Asked, History]:
    """Take pytest-benchmark's storage options, so that it neither loads nor saves by itself.

    Raises:
        pytest.UsageError: the options cannot be meant as given; the message shows the mend.

    """
    option = config.option
    if not config.pluginmanager.hasplugin("benchmark"):
        raise pytest.UsageError("fuseproof needs pytest-benchmark, which is blocked here; run without -p no:benchmark.")
    storage: str = option.benchmark_storage
    if storage == _DEFAULT_STORAGE:
        storage = str(history_root)
    elif storage.startswith("file://"):
        storage = storage.removeprefix("file://")
    elif "://" in storage:
        raise pytest.UsageError(f"--benchmark-storage={storage}: fuseproof keeps its history in files; give a folder.")
    try:
        Path(storage).resolve()  # as pytest-benchmark does
    except (OSError, RuntimeError, ValueError) as error:
        raise pytest.UsageError(f"{storage!r}: no history can be there ({error}); give another folder.") from None
    compare = None if option.benchmark_compare == [] else option.benchmark_compare
    autosave, name = option.benchmark_autosave, option.benchmark_save
    asked = Asked(compare, name or ("" if autosave else None))
    _refuse_unsaid_comparisons(config, asked)
    option.benchmark_compare, option.benchmark_autosave, option.benchmark_save = [], None, None
    option.benchmark_storage = f"file://{storage}"
    if option.benchmark_columns is None:
        option.benchmark_columns = ["min", "median", "iqr", "outliers", "rounds"]
    return asked, History(Path(storage))


def _refuse_unsaid_comparisons(config: pytest.Config, asked: Asked) -> None:
    option = config.option
    compare = asked.compare
    if compare == "":
        raise pytest.UsageError("--benchmark-compare= names no run; leave out the = for the newest run.")
    path = compare.partition("::")[0] if isinstance(compare, str) else ""
    if os.path.exists(path) and not path.endswith(".json"):  # noqa: PTH110 - Path.exists raises for a very long name
        raise pytest.UsageError(
            f"--benchmark-compare took {compare!r} as the name of a run; put the path first: "
            f"pytest {compare} --benchmark-compare"
        )
    if option.benchmark_compare_fail and compare is None:
        raise pytest.UsageError("--benchmark-compare-fail needs --benchmark-compare.")
    if asked.compare is None and asked.label is None:
        return
    if (night := os.environ.get(NIGHT)) and (fault := night_fault(night)):
        raise pytest.UsageError(f"{NIGHT}: {fault}.")
    what = "--benchmark-compare" if asked.compare else "--benchmark-save/--benchmark-autosave"
    if getattr(option, "dist", "no") != "no" or hasattr(config, "workerinput"):
        raise pytest.UsageError(f"{what}: nothing is timed under pytest-xdist; run without -n (or with -n 0).")
    if option.benchmark_disable and not option.benchmark_enable:
        raise pytest.UsageError(f"{what}: nothing is timed with --benchmark-disable; run without it.")
    if option.benchmark_skip and not option.benchmark_only:
        raise pytest.UsageError(f"{what}: nothing is timed with --benchmark-skip; run without it.")
