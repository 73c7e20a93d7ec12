"""The script that runs two nights from end to end: what it sets up, and when it calls a night right."""

import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from fuseproof.config import load_settings

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "two_nights.py"))
CLEAN = SCRIPT["Gated"]("clean", 0)
PLANTED = SCRIPT["Gated"]("planted", 20, {"fp32/64x768": 600.0})
SLOWED, OTHER = "layer_norm_fwd/spun_norm/fp32/64x768", "layer_norm_fwd/torch/fp32/64x768"


def document(status: int, outcomes: dict[str, str], members: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the verdicts of a night, as its JSON file holds them."""
    return {
        "status": status,
        "summary": "gate: ...",
        "verdicts": [
            {
                "key": key,
                "metric": "device_time_ns",
                "outcome": outcome,
                "effect_ln": math.log(1.03),
                "baseline": 20_000.0,
                "members": [{"key": member} for member in members] if key == "*" else [],
            }
            for key, outcome in outcomes.items()
        ],
    }


@pytest.mark.parametrize(
    ("night", "found", "right"),
    [
        pytest.param(CLEAN, document(0, {SLOWED: "PASS", OTHER: "PASS"}), True, id="clean"),
        pytest.param(CLEAN, document(20, {SLOWED: "REGRESSED", OTHER: "PASS"}), False, id="a-false-alarm"),
        pytest.param(CLEAN, document(21, {SLOWED: "INCONCLUSIVE", OTHER: "PASS"}), False, id="held"),
        pytest.param(PLANTED, document(20, {SLOWED: "REGRESSED", OTHER: "PASS"}), True, id="planted"),
        pytest.param(PLANTED, document(0, {SLOWED: "PASS", OTHER: "PASS"}), False, id="not-seen"),
        pytest.param(PLANTED, document(20, {SLOWED: "REGRESSED", OTHER: "REGRESSED"}), False, id="another-blamed"),
        pytest.param(PLANTED, document(20, {"*": "REGRESSED", SLOWED: "PASS"}, (SLOWED,)), True, id="as-a-shift"),
        pytest.param(PLANTED, document(20, {"*": "REGRESSED", SLOWED: "PASS"}, (OTHER,)), False, id="a-wrong-shift"),
    ],
)
def test_a_night_is_right_if_it_blames_what_was_slowed_alone(night: Any, found: dict[str, Any], right: bool) -> None:
    """The status is half of it: a planted night that blames somebody else would end with 20 too."""
    assert SCRIPT["is_right"](night, found) == right


def test_what_a_night_said_stands_beside_what_was_there() -> None:
    """20 us that became 0.62 us longer were slowed by 3.1 %, and 3 % found is near enough; others are left out."""
    lines = list(SCRIPT["told"](PLANTED, document(20, {SLOWED: "REGRESSED", OTHER: "PASS"}), {"fp32/64x768": 620.0}))
    assert lines == [
        "planted night: status 20, as it must: gate: ...",
        f"  REGRESSED {SLOWED} device_time_ns: found +3.00%, there +3.10%",
        "  of 1 that were slowed, 1 found within 0.3 % of what was there",
    ]
    far = list(SCRIPT["told"](PLANTED, document(20, {SLOWED: "REGRESSED"}), {"fp32/64x768": 700.0}))
    assert far[-1] == "  of 1 that were slowed, 0 found within 0.3 % of what was there"


def test_the_spin_is_a_share_of_what_the_forward_took(tmp_path: Path) -> None:
    """3 % of the history's median, for the candidate's forwards alone; a night that was judged is no history."""
    folder = tmp_path / "bench_history" / "machine"
    folder.mkdir(parents=True)
    times = {"history1": 9_000.0, "history2": 10_000.0, "history3": 30_000.0, "planted": 1.0}
    for night, time_ns in times.items():
        records = [
            {"extra_info": {"fuseproof": {"key": key, "metrics": {"device_time_ns": time_ns}}}}
            for key in (SLOWED, OTHER, SLOWED.replace("_fwd", "_fwd_bwd"))
        ]
        (folder / f"0001_20270131T000000Z_{night}_abc.json").write_text(json.dumps({"benchmarks": records}))
    more_ns = SCRIPT["slowed_by"](tmp_path, 3.0)
    assert more_ns == {"fp32/64x768": 300.0}
    assert SCRIPT["Gated"]("planted", 20, more_ns).variable == "fp32/64x768:300"


def test_the_folder_is_a_repository_with_a_trusted_environment(tmp_path: Path) -> None:
    """Its configuration is this repository's with the gate's table; the candidate lies beside the tests."""
    folder = tmp_path / "nights"
    SCRIPT["prepare"](folder, sys.executable, 3)
    settings = load_settings(folder)
    assert settings is not None
    assert (settings.gate.trusted_python, settings.gate.replicates) == (sys.executable, 3)
    assert settings.gate.trusted_env == {"SPUN_MORE_NS": ""}
    assert (folder / "spun_kernels.py").exists()
    assert (folder / "tests" / "kernels" / "test_norm_benchmark.py").exists()
