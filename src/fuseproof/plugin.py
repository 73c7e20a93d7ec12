"""The entry point for pytest: options, and what must happen before anything else.

Installed in somebody else's repository it changes nothing, and imports no torch, until pyproject.toml has a
`[tool.fuseproof]` table; with one, `hooks` and `fixtures` are registered.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from fuseproof import apex_probe, gpu, machine, orphan
from fuseproof.config import ConfigError, Settings, load_settings
from fuseproof.phases import PHASES


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options under their long names; a repository's conftest may add short ones for the same `dest`."""
    group = parser.getgroup("fuseproof")
    group.addoption(
        "--fuseproof-full",
        action="store_true",
        dest="fuseproof_full",
        help="also run what a night cannot afford: all sizes, shapes and kernel sets",
    )
    group.addoption(
        "--fuseproof-coverage",
        action="store_true",
        dest="fuseproof_coverage",
        help="print the matrix of faults, candidates and dtypes; a cell without case and without reason fails",
    )
    group.addoption(
        "--fuseproof-parity-json",
        metavar="FILE",
        dest="fuseproof_parity_json",
        help="write what came of each parity case to this file, with its greatest errors in units of their budgets",
    )
    group.addoption(
        "--fuseproof-require",
        metavar="WHAT[,WHAT]",
        dest="fuseproof_require",
        default="",
        help="cuda, apex, baseline, gate: what must be there, or answered; its absence is an error (status 21), never "
        "a skip",
    )
    group.addoption(
        "--fuseproof-gate",
        choices=("fail", "warn", "off"),
        dest="fuseproof_gate",
        help="what --benchmark-compare does about its verdicts: end with status 20 or 21, show them only, or judge "
        "nothing; default: the configuration's mode",
    )
    group.addoption(
        "--fuseproof-gate-json",
        metavar="FILE",
        dest="fuseproof_gate_json",
        help="write the verdicts of --benchmark-compare to this file",
    )
    group.addoption(
        "--fuseproof-replicates",
        metavar="N",
        type=int,
        default=1,
        dest="fuseproof_replicates",
        help="fresh processes that measure tonight's benchmarks, this one included; `fuseproof nightly` takes as many "
        "as the configuration says",
    )
    for what, like in (("adam", "torch.optim.Adam"), ("layer-norm", "torch.nn.LayerNorm")):
        group.addoption(
            f"--fuseproof-{what}",
            action="append",
            metavar="NAME=MODULE:ATTR",
            dest=f"fuseproof_{what.replace('-', '_')}",
            help=f"bring your own: a class with the signature of {like} takes part under this name; repeatable",
        )


def _settings(config: pytest.Config) -> Settings | None:
    try:
        return load_settings(config.rootpath)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)  # before any conftest, which may touch CUDA
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """End with a parent that is killed, give a worker its GPU, and look at Apex while this process imports torch."""
    orphan.end_with_parent(os.environ)
    if _settings(early_config) is None:
        return
    PHASES.started()
    # torch's profiler writes a line to stderr at every use unless this says otherwise before torch is imported.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    gpu.mark_root(os.environ)
    gpu.pin_worker(os.environ)
    believes = apex_probe.join(os.environ) or apex_probe.VOUCHED in os.environ
    if not believes and all(map(machine.extension_file, machine.APEX_EXTENSIONS)):
        folder = tempfile.TemporaryDirectory(prefix="fuseproof-", ignore_cleanup_errors=True)
        early_config.add_cleanup(folder.cleanup)
        early_config.add_cleanup(apex_probe.abandon)  # before its folder goes
        apex_probe.start(machine.APEX_EXTENSIONS, Path(folder.name) / "apex.json")


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark reads the options that are taken over here
def pytest_configure(config: pytest.Config) -> None:
    """Register markers, and in a repository that is configured for fuseproof the hooks and fixtures.

    Raises:
        pytest.UsageError: its configuration, or an option, cannot be used.

    """
    config.addinivalue_line("markers", "fuseproof_full: runs only with --fuseproof-full")
    config.addinivalue_line("markers", "fuseproof_profiled: timed by the profiler, so after all other benchmarks")
    config.addinivalue_line("markers", "fuseproof_gate: one of the benchmarks that a night judges")
    settings = _settings(config)
    if settings is None:
        return
    config.addinivalue_line("markers", "parity: whether a result is right, not how long it takes")
    config.addinivalue_line("markers", "fault(*numbers, dtypes): the faults that a parity test would show")
    config.addinivalue_line("markers", "huge: it takes many GiB of memory, so it runs only with --fuseproof-full")
    with PHASES.phase("imports"):
        from fuseproof import asked, bookkeeping, fixtures, gating, hooks, order, selection
        from fuseproof.parity import deselected, outcomes

    if told := order.Order.take(os.environ):
        told.obey(config)
        config.stash[fixtures.PLANTS] = told.plants
        config.stash[fixtures.PLACEMENT] = told.placement
        config.stash[hooks.ORDER] = told
    wanted, history = asked.take_over(config, config.rootpath / settings.history)
    book = bookkeeping.Bookkeeper(wanted, history, selection.Selection.of(config))
    config.stash[hooks.BOOKKEEPER] = book
    try:
        config.stash[hooks.GATE] = gating.Gate.of(config, settings.gate, book)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    config.stash[hooks.CANDIDATES] = hooks.gather_candidates(config)
    outcomes.record(config)
    deselected.record(config)
    config.pluginmanager.register(fixtures, "fuseproof-fixtures")
    config.pluginmanager.register(hooks, "fuseproof-hooks")
