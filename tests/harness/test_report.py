"""The ladder's table and the closing lines, from hand-made benchmark objects."""

import re

import pytest

from fuseproof.report import invalid_lines, kernel_table, ladder_tables

BASES = {
    "0_textbook": None,
    "1_adam_fp32": None,
    "2_fused_adam": "1_adam_fp32",
    "3_fused_layer_norm": "2_fused_adam",
    "4_amp_bf16": "3_fused_layer_norm",
    "5_compile": "4_amp_bf16",
}


def stage(name, iteration_ms, *, size="gpt2_small", kernels="apex", invalid=(), of_matmul=None, **metrics):
    """Return the benchmark object of a stage: 8,192 tokens, quartiles 1 % around the median."""
    return {
        "stats": {"median": iteration_ms / 1e3, "q1": 0.995 * iteration_ms / 1e3, "q3": 1.005 * iteration_ms / 1e3},
        "extra_info": {
            "fuseproof": {
                "key": f"iteration/{name}@{kernels}/fp32/{size}",
                "about": {"stage": name, "base": BASES[name], "kernels": kernels, "size": size, "tokens": 8192},
                "metrics": {"iteration_time_ns": iteration_ms * 1e6, **metrics},
                "rates": {} if of_matmul is None else {"of_matmul_ceiling": of_matmul},
                "invalid": list(invalid),
            }
        },
    }


def kernel(key, invalid=()):
    """Return the benchmark object of a kernel."""
    return {"stats": {}, "extra_info": {"fuseproof": {"key": key, "invalid": list(invalid)}}}


LADDER = (
    stage("0_textbook", 250.0, device_time_ns=240e6, peak_bytes=3 * 2**30),
    stage("1_adam_fp32", 200.0, device_time_ns=190e6, peak_bytes=2 * 2**30, of_matmul=0.8),
    stage("2_fused_adam", 160.0, device_time_ns=150e6, peak_bytes=2 * 2**30),
    stage("4_amp_bf16", 40.0, device_time_ns=30e6, peak_bytes=2**30, of_matmul=0.345),
)


def cells(lines, name):
    """Return the row of that stage as a mapping from column to text."""
    header, row = (next(line for line in lines if line.startswith(start)) for start in ("stage", name))
    names = ["stage", "iteration ms", "spread", "device ms", "tokens/s", "peak MiB", "gain", "vs stage 1"]
    names += ["of matmul", "compared", "change", "peak change"]
    assert header.split() == " ".join(names).split()
    values = re.split(" {2,}", row.replace(" INVALID", "_INVALID"))
    assert len(values) == len(names)
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("benchmarks", [[], [kernel("adam_step/apex/fp32/10m")], [{"stats": {}}]], ids=len)
def test_no_stage_no_lines(benchmarks):
    """A run of kernels only, or of another repository's benchmarks, has no ladder."""
    assert ladder_tables(benchmarks, {}) == []


def test_a_row_in_full():
    """Iteration and device time in ms, tokens a second, peak in MiB, gains as factors, the share of the ceiling."""
    assert cells(ladder_tables(LADDER, {}), "4_amp_bf16") == {
        "stage": "4_amp_bf16",
        "iteration ms": "40.00",
        "spread": "1.0%",
        "device ms": "30.00",
        "tokens/s": "204,800",
        "peak MiB": "1,024.0",
        "gain": "-",  # its base, stage 3, was not run
        "vs stage 1": "5.00x",
        "of matmul": "34.5%",
        "compared": "-",
        "change": "-",
        "peak change": "-",
    }


def test_gain_is_over_the_base():
    """Stage 2 against stage 1; stages 0 and 1 have no base. All are shown against stage 1, slower ones below 1."""
    lines = ladder_tables(LADDER, {})

    assert [cells(lines, name)["gain"] for name in ("0_", "1_", "2_")] == ["-", "-", "1.25x"]
    assert [cells(lines, name)["vs stage 1"] for name in ("0_", "1_", "2_")] == ["0.80x", "1.00x", "1.25x"]


def test_gain_of_a_stage_beyond_is_over_its_own_base():
    """Not over the row above it."""
    rows = [*LADDER, stage("5_compile", 20.0)]

    assert cells(ladder_tables(rows, {}), "5_compile")["gain"] == "2.00x"


def test_what_was_not_measured_is_a_dash():
    """A CPU has no device time, an aborted profiler pass no peak: no number is better than a wrong one."""
    row = cells(ladder_tables([stage("1_adam_fp32", 200.0)], {}), "1_adam_fp32")

    assert {row[name] for name in ("device ms", "peak MiB", "gain", "of matmul", "compared", "change")} == {"-"}


def test_without_stage_1_nothing_is_compared_with_it():
    """A selection of stages (-k) may lack it."""
    lines = ladder_tables([stage("2_fused_adam", 160.0), stage("4_amp_bf16", 40.0)], {})

    assert cells(lines, "4_amp_bf16")["vs stage 1"] == "-"
    assert not any(line.startswith("total") for line in lines)


def test_rows_are_in_the_order_of_stages():
    """Whatever the order of the tests was."""
    lines = ladder_tables(LADDER[::-1], {})

    assert [line.split()[0] for line in lines if line[:1].isdigit()] == [
        "0_textbook",
        "1_adam_fp32",
        "2_fused_adam",
        "4_amp_bf16",
    ]


def test_an_invalid_stage_is_marked():
    """A number that must not be judged is not shown as if it could be."""
    lines = ladder_tables([stage("1_adam_fp32", 200.0, invalid=["throttled"]), stage("2_fused_adam", 160.0)], {})

    assert cells(lines, "1_adam_fp32")["stage"] == "1_adam_fp32_INVALID"
    assert cells(lines, "2_fused_adam")["stage"] == "2_fused_adam"


def test_compared_columns():
    """The stored time of the same key, and how much slower (+) or faster (-) this run is; other keys have none."""
    old = stage("1_adam_fp32", 160.0)
    compared = {old["extra_info"]["fuseproof"]["key"]: old}
    lines = ladder_tables(LADDER, compared)

    assert (cells(lines, "1_")["compared"], cells(lines, "1_")["change"]) == ("160.00", "+25.00 %")
    assert (cells(lines, "2_")["compared"], cells(lines, "2_")["change"]) == ("-", "-")


def test_faster_is_a_negative_change():
    """Half the time is -50 %."""
    old = stage("1_adam_fp32", 400.0)
    lines = ladder_tables(LADDER, {old["extra_info"]["fuseproof"]["key"]: old})

    assert cells(lines, "1_")["change"] == "-50.00 %"


def test_total_line():
    """The promise of the ladder in one line: speed and memory of the last stage against stage 1."""
    assert ladder_tables(LADDER, {})[-1] == (
        "total: 4_amp_bf16 is 5.00 times as fast as 1_adam_fp32, peak memory 0.50 times"
    )


def test_total_is_of_the_ladder_not_of_what_lies_beyond():
    """A compiled stage after it does not change the total."""
    lines = ladder_tables([*LADDER, stage("5_compile", 20.0, peak_bytes=2**29)], {})

    assert lines[-1].startswith("total: 4_amp_bf16 is 5.00 times")


def test_total_without_peaks():
    """Where a peak is missing, the line tells the speed alone."""
    lines = ladder_tables([stage("1_adam_fp32", 200.0, peak_bytes=2**30), stage("4_amp_bf16", 50.0)], {})

    assert lines[-1] == "total: 4_amp_bf16 is 4.00 times as fast as 1_adam_fp32"


@pytest.mark.parametrize(
    "rows", [[stage("1_adam_fp32", 200.0)], [stage("0_textbook", 250.0), stage("1_adam_fp32", 200.0)]], ids=len
)
def test_no_total_of_stage_1_alone(rows):
    """Stage 1 is not compared with itself."""
    assert not any(line.startswith("total") for line in ladder_tables(rows, {}))


def test_a_table_per_size_and_kernel_set():
    """Stages of another size or kernel set are another ladder: they never share a table or a total."""
    rows = [
        stage("1_adam_fp32", 200.0),
        stage("1_adam_fp32", 10.0, size="launch_bound"),
        stage("4_amp_bf16", 20.0, size="launch_bound"),
        stage("1_adam_fp32", 210.0, kernels="torch"),
        stage("4_amp_bf16", 40.0),
    ]
    lines = ladder_tables(rows, {})

    assert [line for line in lines if line.startswith("training ladder")] == [
        "training ladder: gpt2_small, apex kernels, 8192 tokens an iteration",
        "training ladder: launch_bound, apex kernels, 8192 tokens an iteration",
        "training ladder: gpt2_small, torch kernels, 8192 tokens an iteration",
    ]
    assert [line for line in lines if line.startswith("total")] == [
        "total: 4_amp_bf16 is 5.00 times as fast as 1_adam_fp32",
        "total: 4_amp_bf16 is 0.50 times as fast as 1_adam_fp32",
    ]


def test_columns_are_aligned():
    """Numbers end where their column's header ends, whatever their width, and no line ends in blanks."""
    lines = ladder_tables(LADDER, {})
    header = next(line for line in lines if line.startswith("stage"))
    rows = [line for line in lines if line[:1].isdigit()]
    ends = [header.index(name) + len(name) for name in ("iteration ms", "tokens/s", "vs stage 1", "change")]

    assert all(row[end - 1] != " " and row[end : end + 1] in ("", " ") for row in rows for end in ends)
    assert lines == [line.rstrip() for line in lines]


def test_invalid_lines():
    """One line a benchmark, with its key and all its reasons; valid ones, and other people's, have none."""
    benchmarks = [
        kernel("adam_step/apex/fp32/10m", ["host-bound", "throttled: sw_power_cap"]),
        kernel("adam_step/torch_fused/fp32/10m"),
        {"stats": {}, "extra_info": {}},
        stage("1_adam_fp32", 200.0, invalid=["a foreign process used the GPU"]),
    ]

    assert invalid_lines(benchmarks) == [
        "INVALID adam_step/apex/fp32/10m: host-bound; throttled: sw_power_cap",
        "INVALID iteration/1_adam_fp32@apex/fp32/gpt2_small: a foreign process used the GPU",
    ]


def timed_kernel(key, device_us, peak_bytes, q3=None):
    """Return a kernel benchmark as a run file holds it."""
    record = {
        "key": key,
        "metrics": {"device_time_ns": device_us * 1e3, "peak_bytes": peak_bytes, "launches": 3},
        "invalid": [],
    }
    stats = {"q1": device_us, "median": device_us, "q3": q3 or device_us}
    return {"extra_info": {"fuseproof": record}, "stats": stats}


def test_a_kernel_that_became_hungrier_is_seen():
    """Memory is compared beside time: twice the peak at the same time shows."""
    old, new = timed_kernel("adam_step/x/fp32/y", 10.0, 2**20), timed_kernel("adam_step/x/fp32/y", 11.0, 2**21)
    row = kernel_table([new], {"adam_step/x/fp32/y": old})[-1]
    assert re.split(" {2,}", row)[1:] == ["11.00", "0.0%", "-", "2.0", "3", "10.00", "+10.00 %", "+100.00 %"]


def test_a_change_by_more_than_ten_times_is_a_factor():
    """As everywhere where a change is shown."""
    old, new = timed_kernel("adam_step/x/fp32/y", 1.0, 2**20), timed_kernel("adam_step/x/fp32/y", 12.0, 2**31)
    row = kernel_table([new], {"adam_step/x/fp32/y": old})[-1]
    assert row.split("  ")[-1].strip() == "> x 1000"
    assert " x 12 " in row


def test_a_stage_that_became_hungrier_is_seen():
    """The ladder compares the peak too."""
    old, new = stage("1_adam_fp32", 200.0, peak_bytes=2**30), stage("1_adam_fp32", 200.0, peak_bytes=2**31)
    lines = ladder_tables([new], {new["extra_info"]["fuseproof"]["key"]: old})
    assert cells(lines, "1_")["peak change"] == "+100.00 %"


def test_noise_is_said():
    """A result whose rounds spread by more than a fifth is marked: its change says nothing."""
    assert "x noisy" in kernel_table([timed_kernel("x", 10.0, 1, q3=12.1)], {})[-1]
    assert "noisy" not in kernel_table([timed_kernel("x", 10.0, 1, q3=11.9)], {})[-1]


def test_no_kernel_no_table():
    """Stages are the ladder's."""
    assert kernel_table(LADDER, {}) == []
