"""Replicates in, verdicts with reason codes out: plain functions over recorded data, without torch or pytest.

`nightly` is the front door for nights, `looks` for upgrades, `controls` for the controls of a gated session; `recorded`
turns run files into nights. The words are in `verdict`, the formulas on arrays in `noise` and `bounds`.
"""
