"""The least a call must do, what the machine can do, and the refusal of FP32 that is not FP32."""

import pytest
import torch

from fuseproof import roofline
from fuseproof.roofline import (
    Ceilings,
    Work,
    adam_work,
    measure_ceilings,
    norm_work,
    refuse_reduced_precision,
)

CPU = torch.device("cpu")
MACHINE = Ceilings(copy_bytes_per_s=4e12, matmul_flops_per_s={"fp32": 50e12, "bf16": 800e12})


# --- work, counted by hand ---


@pytest.mark.parametrize(
    ("dtype", "state_dtype", "bytes_per_element"),
    [
        # reads p, g, m, v; writes p, m, v
        pytest.param(torch.float32, torch.float32, 4 * 4 + 3 * 4, id="fp32"),
        pytest.param(torch.bfloat16, torch.float32, (2 + 2 + 4 + 4) + (2 + 4 + 4), id="bf16-with-fp32-moments"),
        pytest.param(torch.bfloat16, torch.bfloat16, 4 * 2 + 3 * 2, id="bf16-with-bf16-moments"),
    ],
)
def test_adam_moves_each_tensor_once(dtype, state_dtype, bytes_per_element):
    """Four tensors in, three out: 28 bytes an element in FP32."""
    assert Work(moved_bytes=1000 * bytes_per_element) == adam_work(1000, dtype, state_dtype)


def test_adam_s_moments_are_fp32_unless_said_otherwise():
    """The fused kernels keep FP32 moments beside BF16 parameters."""
    assert adam_work(10, torch.bfloat16) == adam_work(10, torch.bfloat16, torch.float32)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2), (torch.float16, 2)], ids=str)
def test_layer_norm_moves_each_tensor_once(dtype, size):
    """Over 5 rows of 3: x, gamma, beta to y, mean, rstd; backward x, dy, gamma, mean, rstd to three gradients."""
    forward = (15 + 3 + 3) * size + 15 * size + (5 + 5) * 4
    backward = (15 + 15 + 3) * size + (5 + 5) * 4 + (15 + 3 + 3) * size

    assert Work(moved_bytes=forward) == norm_work(5, 3, dtype, backward=False)
    assert Work(moved_bytes=forward + backward) == norm_work(5, 3, dtype, backward=True)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=str)
def test_rms_norm_has_one_vector_and_one_statistic(dtype, size):
    """Over 5 rows of 3: gamma alone, and rstd alone for each row."""
    forward = (15 + 3) * size + 15 * size + 5 * 4
    backward = (15 + 15 + 3) * size + 5 * 4 + (15 + 3) * size

    assert Work(moved_bytes=forward) == norm_work(5, 3, dtype, backward=False, vectors=1)
    assert Work(moved_bytes=forward + backward) == norm_work(5, 3, dtype, backward=True, vectors=1)


# --- rates ---


def test_moved_bytes_give_a_share_of_the_copy_ceiling():
    """2 GB in 1 ms are 2,000 GB/s, half of 4 TB/s."""
    rates = MACHINE.rates(Work(moved_bytes=2 * 10**9), time_ns=1e6)

    assert rates == pytest.approx({"gb_per_s": 2000, "of_copy_ceiling": 0.5})


@pytest.mark.parametrize(("precision", "share"), [("fp32", 0.8), ("bf16", 0.05)])
def test_flops_give_a_share_of_their_precision_s_ceiling(precision, share):
    """40 TFLOP/s are most of an FP32 ceiling and little of a BF16 one."""
    rates = MACHINE.rates(Work(flops=40 * 10**9, precision=precision), time_ns=1e6)

    assert rates == pytest.approx({"tflop_per_s": 40, "of_matmul_ceiling": share})


def test_no_rate_without_a_formula():
    """What is not known is not shown; what is known of both kinds is shown of both."""
    assert MACHINE.rates(Work(), 1e6) == {}
    assert set(MACHINE.rates(Work(moved_bytes=1, flops=1), 1e6)) == {
        "gb_per_s",
        "of_copy_ceiling",
        "tflop_per_s",
        "of_matmul_ceiling",
    }


# --- ceilings ---


@pytest.fixture
def quick(monkeypatch):
    """A short preheat over small operands."""
    monkeypatch.setattr(roofline, "_CEILINGS_S", {"cpu": 0.03})
    monkeypatch.setattr(roofline, "_COPY_BYTES", {"cpu": 2**22})
    monkeypatch.setattr(roofline, "_MATRIX_SIDE", {"cpu": 256})


def test_ceilings_are_positive(quick):
    """A machine copies and multiplies, in FP32 and in BF16; a run's file holds both as plain numbers."""
    ceilings = measure_ceilings(CPU)

    assert ceilings.copy_bytes_per_s > 1e8
    assert set(ceilings.matmul_flops_per_s) == {"fp32", "bf16"}
    assert min(ceilings.matmul_flops_per_s.values()) > 1e8
    assert ceilings.to_json() == {
        "copy_bytes_per_s": ceilings.copy_bytes_per_s,
        "matmul_flops_per_s": dict(ceilings.matmul_flops_per_s),
    }
    assert type(ceilings.to_json()["matmul_flops_per_s"]) is dict


def test_ceilings_come_from_bytes_and_operations(quick, monkeypatch):
    """Copying reads and writes; a product of side n is 2 n^3 operations: here each takes one second."""
    monkeypatch.setattr(roofline, "_timed_s", lambda *_: 1.0)
    ceilings = measure_ceilings(CPU)

    assert ceilings.copy_bytes_per_s == 2 * 2**22
    assert dict(ceilings.matmul_flops_per_s) == {"fp32": 2 * 256**3, "bf16": 2 * 256**3}


def test_ceilings_do_not_move_the_random_state(quick):
    """Measuring the machine draws from its own generator: a test's random numbers do not depend on it."""
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    measure_ceilings(CPU)
    refuse_reduced_precision(CPU)

    assert torch.equal(torch.rand(3), expected)


def test_a_ceiling_is_a_median_of_at_least_five_calls(monkeypatch):
    """A slow first call, or one call that takes all the time there is, is no ceiling."""
    times = iter([9.0, 1.0, 2.0, 1.0, 9.0])
    monkeypatch.setattr(roofline, "_timed_s", lambda *_: next(times))

    assert roofline._median_s(lambda: None, 0.0, CPU) == 2.0


# --- precision ---


def through(dtype):
    """Return a matrix product that rounds FP32 operands to `dtype` first, as a tensor core does."""
    exact = torch.Tensor.__matmul__

    def product(a, b):
        return exact(a, b) if a.dtype != torch.float32 else exact(a.to(dtype).float(), b.to(dtype).float())

    return product


def tf32_product(a, b):
    """Multiply with the operands cut to the 10 bits of fraction that TF32 keeps."""
    if a.dtype != torch.float32:
        return torch.mm(a, b)
    cut = [(each.view(torch.int32) & ~0x1FFF).view(torch.float32) for each in (a, b)]
    return torch.mm(*cut)


def test_fp32_products_are_accepted():
    """A CPU multiplies in FP32."""
    refuse_reduced_precision(CPU)


@pytest.mark.parametrize(
    "product",
    [
        pytest.param(tf32_product, id="tf32"),
        pytest.param(through(torch.bfloat16), id="bf16"),
        pytest.param(through(torch.float16), id="fp16"),
        pytest.param(lambda a, b: torch.mm(a, b) * float("nan"), id="nan"),
    ],
)
def test_products_in_less_than_fp32_are_refused(product, monkeypatch):
    """An FP32 stage that multiplies in less is another stage: no number of it is worth keeping."""
    monkeypatch.setattr(torch.Tensor, "__matmul__", product)

    with pytest.raises(RuntimeError, match=r"FP32 matrix products are off by .*unset NVIDIA_TF32_OVERRIDE"):
        refuse_reduced_precision(CPU)


def test_the_refusal_names_the_error(monkeypatch):
    """BF16 operands are off by about 2e-3: the sentence lets one tell which precision it was."""
    monkeypatch.setattr(torch.Tensor, "__matmul__", through(torch.bfloat16))

    with pytest.raises(RuntimeError, match=r"off by [1-4]\.\de-03:"):
        refuse_reduced_precision(CPU)
