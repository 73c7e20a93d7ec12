"""The programs that show known defects to their maintainers: each fails where its defect is said to be."""

import os
import re
import runpy
from pathlib import Path

import pytest
import torch

from fuseproof.candidates import ADAM, LAYER_NORM, RMS_NORM
from fuseproof.gpu import session_devices
from fuseproof.parity.defects import load_defects
from fuseproof.parity.forks import fork_server

pytestmark = pytest.mark.parity

LONGEST_S = 120
HERE = Path(__file__).parent
CANDIDATES = {record.full_name: record for record in (*ADAM.values(), *LAYER_NORM.values(), *RMS_NORM.values())}
DEFECTS = [defect for table in sorted(HERE.glob("*_defects.toml")) for defect in load_defects(table)]


@pytest.mark.parametrize(
    "defect",
    [pytest.param(each, id=each.id, marks=[pytest.mark.huge] if each.memory_gib else []) for each in DEFECTS],
)
def test_the_program_shows_the_defect(defect, device, tmp_path, pytestconfig):
    """It ends with the error by which the defect shows; one that passes says that the defect is mended upstream."""
    if device.type not in defect.devices:
        pytest.skip(f"seen on {', '.join(defect.devices)} only")
    reasons = [CANDIDATES[name].unavailable(device) for name in defect.candidates]
    if all(reasons):
        pytest.skip(reasons[0])
    if defect.memory_gib and not pytestconfig.option.fuseproof_full:
        pytest.skip("tensors of many GiB: only with --full")
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < defect.memory_gib * 2**30:
        pytest.skip(f"it needs {defect.memory_gib} GiB of free GPU memory")
    program = HERE / "reproductions" / defect.reproduction
    if device.type == "cpu":
        with pytest.raises(defect.exceptions()):
            runpy.run_path(str(program))
    else:  # it may spoil the CUDA context
        said = tmp_path / "stderr"
        environ = None
        if defect.gpus > 1:
            devices = session_devices(os.environ)[: defect.gpus]
            if len(devices) < defect.gpus:
                pytest.skip(f"it needs {defect.gpus} GPUs, and {len(devices)} can be seen")
            environ = {"CUDA_VISIBLE_DEVICES": ",".join(devices)}
        for alone in (False, True):  # what is unexpected counts only where nothing has run in its process before
            ended = fork_server().run(
                *("runpy", "run_path", {"path_name": str(program)}, str(said), LONGEST_S), alone=alone, environ=environ
            )
            *_, last = said.read_text().splitlines() or [""]
            shown = ended.status != 0 and re.match("|".join(defect.raises), last)
            if shown or not ended.calls:
                break

        assert ended.status != 0, f"mended upstream: remove {defect.id} from the table"
        assert shown, said.read_text()
