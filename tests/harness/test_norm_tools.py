"""What the checks of norms are made of: inputs, bounds, layouts, poisoned memory, the table of dtypes, children."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fuseproof.candidates import LAYER_NORM, RMS_NORM, NormCandidate, norm_candidate
from fuseproof.candidates.brought import bring_layer_norm
from fuseproof.parity import DTYPES, ParityError, round_to
from fuseproof.parity.bits import same_bits
from fuseproof.parity.defects import load_defects
from fuseproof.parity.norm import NORM_DTYPES, REGIMES, NormInputs, NormOutputs, check, judge, run
from fuseproof.parity.norm.apart import check_empty
from fuseproof.parity.norm.bounds import AffineInHalf, Wanted, budget, oracle, trusted, wanted
from fuseproof.parity.norm.checks import build
from fuseproof.parity.norm.dtypes import DtypeCase, DtypeResult, check_dtypes, find_result, load_results
from fuseproof.parity.norm.layouts import LAYOUTS
from fuseproof.parity.norm.life import poison

CPU = torch.device("cpu")
KERNEL_TESTS = Path(__file__).parents[1] / "kernels"
TORCH = LAYER_NORM["torch"]
TORCH_ON_A_GPU = replace(TORCH, half_backward_on=frozenset())


def numbers(*values):
    """Return float64 elements."""
    return torch.tensor(values, dtype=torch.float64)


# --- inputs ---


@pytest.mark.parametrize("dtype", NORM_DTYPES.values(), ids=NORM_DTYPES)
@pytest.mark.parametrize("regime", REGIMES.values(), ids=REGIMES)
def test_inputs_are_what_their_name_says(regime, dtype):
    """They are the same every time and finite, but for what is named otherwise, and x and dy fill the shape."""
    inputs, again = (regime.inputs((4, 3), (5, 7), dtype, CPU) for _ in range(2))

    assert inputs.x.shape == inputs.dy.shape == (4, 3, 5, 7)
    assert inputs.gamma.shape == inputs.beta.shape == (5, 7)
    for name in ("x", "dy", "gamma", "beta"):
        assert same_bits(getattr(inputs, name), getattr(again, name))
        assert bool(getattr(inputs, name).isfinite().all()) == (regime.name != f"non_finite_{name}")


def test_large_means_leave_some_values():
    """A mean that is so large that all of x is one number would test nothing."""
    for dtype in NORM_DTYPES.values():
        x = REGIMES["large_mean"].inputs((37,), (257,), dtype, CPU).x

        assert all(len(row.unique()) > 8 for row in x)
        assert x.double().mean() / x.double().std() > 15


def test_inputs_of_either_kind():
    """RMSNorm is given no beta; rows are cut along normalized_shape, where there are none too."""
    inputs = REGIMES["usual"].inputs((2, 3), (4, 5), torch.float32, CPU)

    assert inputs.of("rms_norm").beta is None
    assert inputs.of("layer_norm") is inputs
    assert inputs.rows(inputs.x).shape == (6, 20)
    assert inputs.cast(torch.float16).gamma.dtype == torch.float16
    for leading, normalized in (((0,), (4,)), ((5,), (0,)), ((), (3, 4))):
        some = REGIMES["usual"].inputs(leading, normalized, torch.float32, CPU)
        assert some.rows(some.x).shape == (torch.Size(leading).numel(), torch.Size(normalized).numel())


# --- bounds ---


def test_limits_are_roundings_of_the_ends():
    """A half-precision value may be a rounding of anything within the tolerance, and of nothing else."""
    unit = torch.finfo(torch.float16).eps
    one = Wanted(numbers(1 + unit / 2 + 1e-6, 1 + unit / 4), numbers(2e-6, 2e-6))

    low, high = one.limits(torch.float16, 1.0)
    assert (low.tolist(), high.tolist()) == ([1.0, 1.0], [1 + unit, 1.0])
    low, high = one.limits(torch.float16, 0.25)
    assert (low.tolist(), high.tolist()) == ([1 + unit, 1.0], [1 + unit, 1.0])
    low, _ = Wanted(one.value, one.tolerance, 2e-6, "a record").limits(torch.float16, 0.0)
    assert low.tolist() == [1.0, 1.0]  # what a record allows is not scaled


def test_affine_in_half_allows_each_way_to_round():
    """x_hat rounded, product rounded or not, or y alone: these three and what lies between."""
    dtype, x_hat, gamma, beta = torch.bfloat16, numbers(1.2345), numbers(0.7), numbers(-0.8)
    product = gamma * round_to(x_hat, dtype)
    ways = [round_to(round_to(product, dtype) + beta, dtype), round_to(product + beta, dtype)]
    once = round_to(gamma * x_hat + beta, dtype)
    zero = numbers(0.0)
    low, high = AffineInHalf(gamma * x_hat + beta, zero, 0.0, "", x_hat, zero, gamma, beta).limits(dtype, 1.0)

    assert len({once.item(), *(way.item() for way in ways)}) > 1, "the example shows nothing"
    assert (low.item(), high.item()) == (min(*ways, once).item(), max(*ways, once).item())


def test_trusted_arithmetic_sharpens_the_budget():
    """Twice what plain FP32 arithmetic needs and a half, but never more than all."""
    one = Wanted(numbers(1.0, 2.0), numbers(1e-3, 1e-3))

    assert budget("y", one, None).factor == 1.0
    assert budget("y", one, torch.tensor([1.0, 2.0001])).factor == pytest.approx(0.7, abs=0.01)
    assert budget("y", one, torch.tensor([1.0, 2.0005])).factor == 1.0
    assert "twice what plain FP32 arithmetic needs" in budget("y", one, torch.tensor([1.0, 2.0])).reason


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("regime", REGIMES.values(), ids=REGIMES)
def test_trusted_arithmetic_is_well_within_the_bounds(kind, regime):
    """Plain FP32 arithmetic needs less than 0.7 of each tolerance: the bounds are no accident of torch's kernels."""
    candidate = (LAYER_NORM if kind == "layer_norm" else RMS_NORM)["torch"]
    inputs = regime.inputs((37,), (257,), torch.float32, CPU).of(kind)
    wants = wanted(candidate, inputs, oracle(kind, inputs), torch.float32)
    for quantity, values in trusted(kind, inputs).items():
        one = wants[quantity]
        finite = one.value.isfinite()
        error = (values.double() - one.value).abs()[finite]

        assert bool((error <= 0.7 * (one.tolerance + one.extra)[finite]).all()), quantity


def test_sums_one_after_another_are_allowed_for():
    """Sixty equal terms, added one after another in FP32, are off by 6 eps; sums of either sign by less than 1."""
    naive = torch.zeros(1)
    for _ in range(60):
        naive += 0.1
    noise = torch.randn(2, 60, 4, generator=torch.Generator().manual_seed(0))
    inputs = NormInputs(noise[0], torch.full((60, 4), 0.1), torch.ones(4), torch.zeros(4), (4,))
    dbeta = wanted(TORCH, inputs, oracle("layer_norm", inputs), torch.float32)["dbeta"]

    assert abs(naive.item() - dbeta.value[0].item()) <= (dbeta.tolerance + dbeta.extra)[0].item() < 2e-5
    mixed = replace(inputs, dy=noise[1])
    assert not wanted(TORCH, mixed, oracle("layer_norm", mixed), torch.float32)["dbeta"].extra.any()


def partial_sums(terms):
    """Return what torch's CUDA kernels make of more than 65,536 rows: sums of 32, rounded, and their sum in FP32."""
    padded = nn.functional.pad(terms, (0, 0, 0, -len(terms) % 32))
    return round_to(padded.view(-1, 32, terms.shape[1]).sum(1), torch.bfloat16).float().sum(0)


def test_partial_sums_in_half_are_a_fact_of_the_record():
    """What they are off by is beyond the bounds without that fact, and within them with it."""
    inputs = REGIMES["usual"].inputs((65_537,), (8,), torch.bfloat16, CPU)
    right = oracle("layer_norm", inputs)
    dbeta = partial_sums(inputs.dy.double())

    def within(ran_on, rows=0):
        one = wanted(TORCH, inputs, right, torch.bfloat16, ran_on, rows)["dbeta"]
        low, high = one.limits(torch.bfloat16, 1.0)
        return bool(((low <= dbeta) & (dbeta <= high)).all())

    assert dbeta[1].bfloat16().item() == -7.78125  # what an H200 gave
    assert within("cuda")
    assert not within("cuda", rows=65_536)


# --- what comes back ---


def test_a_row_with_an_infinity_may_be_nan_and_no_other():
    """RMSNorm by variance and mean has Inf less Inf in that row; NaN in a row of numbers is wrong."""
    candidate = RMS_NORM["torch"]
    inputs = REGIMES["non_finite_x"].inputs((37,), (257,), torch.float32, CPU).of("rms_norm")
    outputs = run(candidate, inputs)
    infinite = inputs.x.isinf().any(-1)
    whole = replace(outputs, y=outputs.y.masked_fill(infinite[:, None], torch.nan))

    judge(candidate, inputs, whole, "")
    whole.y[int((~infinite).nonzero()[0])] = torch.nan
    with pytest.raises(ParityError, match=r"^y: "):
        judge(candidate, inputs, whole, "")


def test_autocast_rounds_gradients_and_no_statistics():
    """rstd of inputs that were cast to BF16 is a number of FP32; one that was rounded as well is wrong."""
    inputs = REGIMES["usual"].inputs((5,), (64,), torch.float32, CPU)
    cast = inputs.cast(torch.bfloat16)
    right = oracle("layer_norm", cast)
    came = {"y": right.y.bfloat16(), "dx": right.dx.bfloat16().float(), "rstd": right.rstd.float()}
    came |= {name: getattr(right, name).bfloat16().float() for name in ("dgamma", "dbeta")}
    given = (inputs, torch.bfloat16, torch.bfloat16)

    judge(TORCH_ON_A_GPU, given[0], NormOutputs(**came), "", *given[1:])
    came["rstd"] = came["rstd"].bfloat16().float()
    with pytest.raises(ParityError, match=r"^rstd: "):
        judge(TORCH_ON_A_GPU, given[0], NormOutputs(**came), "", *given[1:])


# --- memory ---


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_hold_the_values(layout):
    """The same values, or one row of them, or one of each row, lie otherwise than row after row."""
    values = torch.randn(4, 3, 5, 7, dtype=torch.float64)
    plain = []
    for of, name in zip(LAYOUTS[layout], ("x", "dy", "parameters"), strict=True):
        laid = of(values)
        of_one = (laid[:1, :1, :1].expand_as(values), values[..., :1].expand_as(values))
        assert any(torch.equal(laid, each) for each in (values, *of_one)), name
        plain.append(laid.is_contiguous() and laid.storage_offset() == 0)
    assert not all(plain)


@pytest.mark.parametrize("dtype", NORM_DTYPES.values(), ids=NORM_DTYPES)
def test_poisoned_memory_is_nan_in_every_dtype(dtype):
    """Of the next tensors some get memory that was freed, which holds NaN in their dtype."""
    lid = poison(CPU)
    fresh = [torch.empty(2**15 // dtype.itemsize, dtype=dtype) for _ in range(8192)]  # others' tests have left holes

    assert max(float(each.isnan().double().mean()) for each in fresh) > 0.9
    del lid


def test_parameters_keep_their_layout():
    """A shifted gamma is a shifted parameter."""
    inputs = REGIMES["usual"].inputs((3,), (7,), torch.float32, CPU)
    shifted = torch.zeros(9)[1:-1].copy_(inputs.gamma)

    assert build(TORCH, replace(inputs, gamma=shifted)).weight.storage_offset() == 1


def test_inputs_that_are_written_are_named():
    """A norm that scales x in place is right, and spoils what is not its own."""

    class InPlace(nn.LayerNorm):
        """Writes its weight."""

        def forward(self, x):
            """Normalize, and scale the weight for good."""
            y = super().forward(x)
            with torch.no_grad():
                self.weight.data.mul_(2)
            return y

    inputs = REGIMES["usual"].inputs((3,), (7,), torch.float32, CPU)
    with pytest.raises(ParityError, match=r"^written, though they are inputs: weight \(in_place\)"):
        check(NormCandidate("in_place", InPlace), inputs, "written")


def test_nothing_that_a_norm_returned_is_followed_by_autograd():
    """Statistics that are outputs of an operator are: to read one as a number would be a warning, once a process."""

    def followed(y):
        mean, rstd = TORCH.statistics(y)
        return mean.requires_grad_(), rstd.requires_grad_()

    inputs = REGIMES["usual"].inputs((3,), (7,), torch.float32, CPU)
    outputs = run(replace(TORCH, statistics=followed), inputs)

    assert not any(each.requires_grad for each in vars(outputs).values())


# --- dtypes ---


def result(**values):
    """Return a result for torch on a CPU."""
    return DtypeResult((TORCH.full_name,), ("cpu",), **values)


@pytest.mark.parametrize(
    ("case", "stated", "said"),
    [
        pytest.param(DtypeCase("bf16", "bf16", "off"), result(y="fp32"), "y is torch.bfloat16, stated is fp32", id="y"),
        pytest.param(
            DtypeCase("fp32", "bf16", "off"), result(y="fp32"), "stated is y in fp32; RuntimeError: mixed", id="refused"
        ),
        pytest.param(
            DtypeCase("fp32", "fp32", "off"),
            result(y="error"),
            r"stated is an error, and y came in torch\.float32",
            id="not-refused",
        ),
        pytest.param(
            DtypeCase("fp32", "fp32", "off"), result(y="fp32", cast="bf16"), r"^y: .*beyond the budget", id="not-cast"
        ),
    ],
)
def test_dtypes_that_are_not_as_stated(case, stated, said):
    """What came instead is in the message."""
    with pytest.raises(ParityError, match=said):
        check_dtypes(TORCH, case, stated, CPU)


def test_a_refusal_must_speak_of_dtypes():
    """An error about anything else is no answer."""

    class Refuses(nn.LayerNorm):
        """Says something else."""

        def forward(self, _):
            """Refuse."""
            raise RuntimeError("out of luck")

    with pytest.raises(ParityError, match="it refuses, and does not speak of dtypes: out of luck"):
        check_dtypes(NormCandidate("refuses", Refuses), DtypeCase("fp32", "fp32", "off"), result(y="error"), CPU)


def test_a_cell_has_one_result(tmp_path):
    """None, or two, or an unknown key, are told apart."""
    one, other = result(y="input", input="bf16"), result(y="error", weight="fp16", autocast="off")

    assert find_result((one, other), TORCH.full_name, "cpu", DtypeCase("bf16", "bf16", "off")) is one
    assert find_result((one, other), TORCH.full_name, "cuda", DtypeCase("bf16", "bf16", "off")) is None
    assert find_result((one, other), TORCH.full_name, "cpu", DtypeCase("bf16", "bf16", "off", "compiled")) is None
    with pytest.raises(ValueError, match="2 results are stated for layer_norm-torch on cpu"):
        find_result((one, other), TORCH.full_name, "cpu", DtypeCase("bf16", "fp16", "off"))
    old, new = result(y="input", torch_before="2.12"), result(y="fp32", torch_from="2.12")
    by_version = [
        find_result((old, new), TORCH.full_name, "cpu", DtypeCase("bf16", "bf16", "off"), each)
        for each in ("2.9.1", "2.11.0+cu130", "2.12.0a0+git")
    ]
    assert by_version == [old, old, new]
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[result]]\ncandidates = []\ndevices = []\ny = "fp32"\nextra = 1\n')
    with pytest.raises(TypeError, match="extra"):
        load_results(wrong)


# --- in another process ---


def test_norms_are_found_by_their_reference(tmp_path, monkeypatch):
    """A child finds the suite's own by name, and a brought one by what it was brought with."""
    (tmp_path / "users_norms.py").write_text("from torch.nn import LayerNorm as Mine\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    brought = bring_layer_norm("--layer-norm", "mine=users_norms:Mine", LAYER_NORM)

    assert norm_candidate("layer_norm", brought.reference).name == "mine"
    for known in (*LAYER_NORM.values(), *RMS_NORM.values()):
        assert norm_candidate(known.kind, known.reference) is known


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_batch_in_a_process_of_its_own(dtype):
    """What is asked on CUDA runs here in the same way: only the device differs."""
    from fuseproof.parity.norm.apart import _check_shape

    _check_shape("rms_norm", "torch", [3, 0], [512], dtype, "cpu")
    check_empty(TORCH, (3, 0), (512,), dtype, CPU)


# --- defects ---


@pytest.mark.parametrize("defect", load_defects(KERNEL_TESTS / "norm_defects.toml"), ids=lambda defect: defect.id)
def test_every_listed_defect_has_its_tests(defect):
    """A test or norm that was renamed leaves no entry behind."""
    sources = "".join(path.read_text(encoding="utf-8") for path in KERNEL_TESTS.glob("test_norm_*.py"))
    names = re.findall(r"^def (test_\w+)", sources, re.M)
    known = {norm.full_name for norm in (*LAYER_NORM.values(), *RMS_NORM.values())}

    for seen in defect.seen:
        assert any(re.fullmatch(seen.test, name) for name in names), seen.test
    assert set(defect.candidates) <= known
