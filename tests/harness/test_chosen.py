"""The candidates that somebody names."""

import pytest

from fuseproof.candidates import ADAM, KERNEL_SETS, LAYER_NORM, RMS_NORM
from fuseproof.candidates.chosen import ChoiceError, chosen, contested

GATHERED = {"adam": ADAM, "layer_norm": LAYER_NORM, "rms_norm": RMS_NORM, "kernels": KERNEL_SETS}


def test_kinds_with_two_names_are_contested():
    """`apex` and `torch` are norms and kernel sets; of Adams only one of them is; the Adams stay as they are."""
    found = chosen(GATHERED, ("apex", "torch"))
    assert contested(GATHERED, ("apex", "torch")) == {"layer_norm", "rms_norm", "kernels"}
    assert [list(found[kind]) for kind in ("layer_norm", "rms_norm", "kernels")] == [["apex", "torch"]] * 3
    assert found["adam"] is ADAM


def test_who_is_named_takes_part():
    """Variants that a night leaves out, and kernel sets that are not the default."""
    found = chosen(GATHERED, ("torch_compiled", "torch_fused", "apex", "torch"))
    assert not ADAM["torch_compiled"].nightly
    assert found["adam"]["torch_compiled"].nightly
    assert all(kernels.brought for kernels in found["kernels"].values())


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("apx", "torch"), "there is no candidate 'apx'; did you mean 'apex'? known: adam: torch_loop, "),
        (("zzz", "torch"), "there is no candidate 'zzz'; known: adam: torch_loop, "),
        (("torch_fused", "primitive"), "no two of torch_fused, primitive are of one kind; adam: torch_loop, "),
    ],
)
def test_names_that_cannot_be_compared(names, said):
    """One sentence, with the nearest name and all that are known, of each kind."""
    with pytest.raises(ChoiceError) as caught:
        chosen(GATHERED, names)
    assert said in str(caught.value)
    for kind, records in GATHERED.items():
        assert f"{kind}: {', '.join(records)}" in str(caught.value)
