"""Every LayerNorm and RMSNorm over strided, shifted, expanded and transposed inputs, gradients and parameters."""

import pytest

from fuseproof.parity import DTYPES
from fuseproof.parity.norm.layouts import LAYOUTS, check_layout

pytestmark = [pytest.mark.parity, pytest.mark.usefixtures("norm_case")]


@pytest.mark.fault(26)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(norm, dtype, layout, device):
    """However x, dy and the parameters lie in memory, the right elements are read."""
    check_layout(norm, layout, DTYPES[dtype], device)
