"""The protocol that measures the gate on a machine: what it makes of values whose noise is known."""

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest

PROTOCOL = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "gate_protocol.py"))


def written(folder: Path, processes: int, benchmarks: int, sd: float, plants: float = 0.0) -> Path:
    """Write processes of normal noise; planted ones see each slow-down by the factor `plants` of its size."""
    generator = np.random.default_rng(20261129)
    folder.mkdir(exist_ok=True)
    for number in range(processes):
        records = []
        for place, error in enumerate(generator.normal(0, sd, benchmarks)):
            key = f"op/candidate/fp32/{place:02d}"
            record = {"key": key, "method": "m", "metrics": {"device_time_ns": 1e5 * 1.2**place * math.exp(error)}}
            if plants:
                size_ln = PROTOCOL["PLANTED_LN"][(place + number) % 3]
                seen = math.exp(size_ln * plants)
                record["plant"] = {"size_ln": size_ln, "base_ns": 1e6, "planted_ns": 1e6 * seen}
            records.append({"extra_info": {"fuseproof": record}})
        document = {
            "process": {"copy": "ABBA"[number % 4], "lease": f"day{number % 2}", "seconds": 25.0},
            "datetime": "2027-01-31T00:00:00+00:00",
            "fuseproof": {"software": {"torch": "2"}},
            "benchmarks": records,
        }
        (folder / f"{'planted' if plants else 'aa'}-{number:04d}.json").write_text(json.dumps(document))
    return folder


def line(folder: Path, *words: str) -> str:
    """Return the report's line that holds all words."""
    (found,) = [each for each in PROTOCOL["evaluate"](folder) if all(word in each for word in words)]
    return str(found)


def test_quiet_processes_are_not_blocked_and_additions_are_found(tmp_path: Path) -> None:
    """0.1 % between processes: no A/A night blocks, 5 % of decisions lie above their limit, +2 % is found in pairs."""
    folder = written(tmp_path / "folder", processes=24, benchmarks=10, sd=0.001)
    report = list(PROTOCOL["evaluate"](folder))
    assert report[0] == "24 A/A processes of 10 benchmarks in 2 leases, 25.0 s each"
    (above,) = (each for each in report if "one-sided 5 % limit" in each)
    share = float(above.rpartition("(")[2].removesuffix("%)"))
    assert 2 <= share <= 8  # of 240 decisions: 5 +- 1.4
    for way in ("alone", "in pairs"):
        assert any(each.startswith(f"{way}: blocked or held 0 times in 0 of 24 A/A nights") for each in report)
    (found,) = (each for each in report if each.startswith("in pairs: +2 % added"))
    assert found.endswith("(100.0%)")


def test_noisy_processes_find_nothing(tmp_path: Path) -> None:
    """3 % between processes: an added 2 % is not found, and the share that is gateable says so."""
    folder = written(tmp_path / "folder", processes=16, benchmarks=10, sd=0.03)
    assert "gateable 0%" in line(folder, "in pairs: blocked")
    assert "(0.0%)" in line(folder, "in pairs: +1.5 % added")


@pytest.mark.parametrize(("factor", "close"), [(1.0, "60 of 60"), (0.7, "0 of 60")], ids=["seen", "too-small"])
def test_planted_slow_downs_are_compared_with_their_size(tmp_path: Path, factor: float, close: str) -> None:
    """Each of 18 processes of ten benchmarks carries 1, 2 or 3 %: sixty of each; 3 % seen as 2.1 % is not close."""
    folder = written(tmp_path / "folder", processes=16, benchmarks=10, sd=0.001)
    written(folder, processes=18, benchmarks=10, sd=0.001, plants=factor)
    assert f"within 0.3 %: {close}" in line(folder, "planted +3%")


def test_too_few_processes_judge_nothing(tmp_path: Path) -> None:
    """The report says so instead of numbers."""
    assert list(PROTOCOL["evaluate"](written(tmp_path / "folder", 3, 4, 0.001))) == [
        "3 A/A processes: fewer than 16 judge nothing"
    ]
