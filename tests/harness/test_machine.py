"""The machine's name in the history, what is recorded beside a number, and when timing is refused."""

import hashlib
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fuseproof import gpu, machine, preflight
from fuseproof.bookkeeping import Bookkeeper

CPU = "AMD EPYC"


@pytest.fixture
def h200(monkeypatch):
    """A machine whose first visible GPU is an H200, or a part of one."""

    def put(torch_name="NVIDIA H200", nvml_name="NVIDIA H200", uuid="1234"):
        module = SimpleNamespace(
            NVMLError=LookupError,
            nvmlDeviceGetName=lambda _: nvml_name,
            nvmlDeviceGetEnforcedPowerLimit=lambda _: 700_000,
            nvmlDeviceGetUUID={"board": f"GPU-{uuid}", "handle": f"MIG-{uuid}"}.get,
        )
        monkeypatch.setattr(gpu, "visible_uuid", lambda: uuid)
        monkeypatch.setattr(gpu, "device", lambda: gpu.Device(module, "handle", "board"))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name=torch_name))
        machine.identify.cache_clear()

    yield put
    machine.identify.cache_clear()


@pytest.fixture
def extensions(tmp_path, monkeypatch):
    """Puts extension modules of the given contents where `import` finds them."""

    def put(**contents):
        for name, content in contents.items():
            (tmp_path / f"{name}.py").write_text(content)
        machine.apex_hash.cache_clear()

    monkeypatch.syspath_prepend(tmp_path)
    yield put
    machine.apex_hash.cache_clear()


@pytest.mark.parametrize(
    ("gpu_model", "mig_profile", "cpu_model", "expected"),
    [
        pytest.param("NVIDIA H200", None, CPU, "nvidia-h200", id="gpu"),
        pytest.param("NVIDIA H200", "1g.18gb", CPU, "nvidia-h200-mig-1g.18gb", id="mig"),
        pytest.param("NVIDIA H200", "1g.18gb+me", CPU, "nvidia-h200-mig-1g.18gb-me", id="mig-with-media-engine"),
        pytest.param("NVIDIA A100-SXM4-80GB", None, CPU, "nvidia-a100-sxm4-80gb", id="a100"),
        pytest.param(None, None, "AMD EPYC", "cpu-amd-epyc-2c", id="cpu"),
        pytest.param(None, None, "AMD EPYC 9654 96-Core Processor", "cpu-amd-epyc-9654-2c", id="amd"),
        pytest.param(
            None,
            None,
            "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz",
            "cpu-intel-xeon-platinum-8480c-2c",
            id="intel-without-its-clock",
        ),
    ],
)
def test_slug(gpu_model, mig_profile, cpu_model, expected):
    """A machine's folder is named by its GPU and MIG profile, else by its CPU and cores."""
    assert expected == machine.slug(gpu_model, mig_profile, cpu_model, 2)


def test_whole_gpu(h200):
    """A GPU machine is known by its GPU; UUID and power limit are recorded beside it."""
    h200()
    here = machine.identify()

    assert (here.slug, here.kind) == ("nvidia-h200", "cuda")
    assert (
        here.gpu_model,
        here.mig_profile,
        here.gpu_uuid,
        here.power_limit_w,
    ) == ("NVIDIA H200", None, "1234", 700.0)


@pytest.mark.parametrize("who_knows", ["torch_name", "nvml_name"])
def test_mig_instance(h200, who_knows):
    """A MIG instance is another machine than the whole GPU, whether torch or only NVML says so."""
    h200(**{who_knows: "NVIDIA H200 MIG 1g.18gb"})
    here = machine.identify()

    assert (here.slug, here.gpu_model, here.mig_profile) == ("nvidia-h200-mig-1g.18gb", "NVIDIA H200", "1g.18gb")


def test_two_boards_of_one_model_are_one_machine(h200):
    """The UUID is no part of the slug: a replaced board keeps its history."""
    h200()
    first = machine.identify()
    h200(uuid="5678")

    assert first.gpu_uuid != machine.identify().gpu_uuid
    assert first.slug == machine.identify().slug
    assert first.board_id != machine.identify().board_id


def test_a_mig_instance_is_on_the_board_that_it_is_a_part_of(h200, monkeypatch):
    """Instances are made anew at each boot: theirs would be another board each night. NVML may not know the GPU's."""
    h200()
    whole = machine.identify().board_id
    monkeypatch.setattr(gpu, "visible_uuid", lambda: "of the instance")
    machine.identify.cache_clear()
    assert whole == machine.identify().board_id != ""
    orphan = gpu.Device(gpu.device().nvml, "handle", "handle")
    monkeypatch.setattr(gpu, "device", lambda: orphan)
    machine.identify.cache_clear()
    assert machine.identify().board_id == ""


@pytest.mark.parametrize(("uuid", "said"), [("1234", True), (None, False)], ids=["gpu", "cpu"])
def test_a_run_says_which_board_it_was(monkeypatch, uuid, said):
    """By a hash; a CPU has none."""
    monkeypatch.setattr(gpu, "visible_uuid", lambda: uuid)
    monkeypatch.setattr(gpu, "device", lambda: None)
    monkeypatch.setattr(machine, "_gpu_names", lambda: ("NVIDIA H200", None))
    monkeypatch.setattr(machine, "inventory", dict)
    monkeypatch.setattr(machine, "settings", dict)
    monkeypatch.setattr(preflight, "vouches", lambda: "")
    machine.identify.cache_clear()
    block = Bookkeeper.block(SimpleNamespace(stamp=dict), {})
    machine.identify.cache_clear()

    assert ("board" in block) == said
    assert "1234" not in json.dumps(block)


def test_host_name_stays_private(monkeypatch):
    """A machine can be told from another, but its record does not hold the host's name."""
    monkeypatch.setattr(machine.platform, "node", lambda: "secret-host")
    machine.identify.cache_clear()
    secret = machine.identify()
    monkeypatch.setattr(machine.platform, "node", lambda: "other-host")
    machine.identify.cache_clear()
    other = machine.identify()
    machine.identify.cache_clear()

    assert "secret" not in repr(secret)
    assert secret.host_id != other.host_id


def test_cores_are_the_usable_ones(monkeypatch):
    """A process that is confined to some cores runs on a smaller machine."""
    monkeypatch.setattr(gpu, "visible_uuid", lambda: None)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    machine.identify.cache_clear()
    here = machine.identify()
    machine.identify.cache_clear()

    assert here.cpu_cores == 3
    assert here.slug.endswith("-3c")


def test_inventory_names_what_changes_under_test():
    """The inventory has each piece of software as words, `absent` included, and can be committed."""
    inventory = machine.inventory()

    assert {
        "driver",
        "cuda",
        "torch",
        "torch_git",
        "cudnn",
        "triton",
        "apex",
        "python",
        "numpy",
        "pytest",
        "pytest-benchmark",
    } == set(inventory) - {"liger-kernel"}
    assert pytest.__version__ == inventory["pytest"]
    assert torch.__version__ == inventory["torch"]
    assert all(type(value) is str and os.sep not in value for value in inventory.values())


def test_apex_is_known_by_its_binaries(extensions):
    """Apex's version is always 0.1: a rebuild shows in the hash of its extensions, which are not imported for it."""
    extensions(amp_C="raise SystemExit('imported')", fused_layer_norm_cuda="2")
    first = machine.apex_hash()
    extensions(fused_layer_norm_cuda="3")
    second = machine.apex_hash()
    extensions(fused_layer_norm_cuda="2")

    assert first == machine.apex_hash() == machine.inventory()["apex"]
    assert first != second
    expected = hashlib.sha256(b"amp_C 28\nraise SystemExit('imported')fused_layer_norm_cuda 1\n2").hexdigest()[:12]
    assert expected == first


def test_settings_survive_torchs_two_sets_of_switches():
    """torch raises on its old TF32 readings once the new switches are used: the settings are read all the same."""
    code = (
        "import json, torch; from fuseproof import machine; torch.backends.cuda.matmul.fp32_precision = 'tf32'; "
        "print(json.dumps(machine.settings()))"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_FOO": "2"}
    environ["TORCHINDUCTOR_CACHE_DIR"] = "/private/place"
    child = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    settings = json.loads(child.stdout)

    assert tuple(settings[key] for key in ("float32_matmul_precision", "matmul_fp32_precision", "threads")) == (
        "mixed",
        "tf32",
        1,
    )
    assert {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_FOO": "2"}.items() <= settings["environment"].items()
    assert "PATH" not in settings["environment"]
    assert "/private/place" not in child.stdout  # the file is committed


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        pytest.param({"environ": {"CUDA_LAUNCH_BLOCKING": "1"}}, "CUDA_LAUNCH_BLOCKING", id="launch-blocking"),
        pytest.param({"environ": {"CUDA_INJECTION64_PATH": "/x/lib.so"}}, "CUDA_INJECTION64_PATH", id="injection"),
        pytest.param({"environ": {"NV_SANITIZER_INJECTION_PORT_BASE": "1"}}, "NV_SANITIZER", id="compute-sanitizer"),
        pytest.param({"environ": {"LD_PRELOAD": "/a/b.so:/lib/libasan.so.8"}}, "libasan.so.8", id="asan"),
        pytest.param({"environ": {"LD_PRELOAD": "/lib/libtsan.so.2"}}, "libtsan.so.2", id="tsan"),
        pytest.param({"process_status": "Name:\tx\nTracerPid:\t77\n"}, "process 77", id="debugger"),
        pytest.param({"modules": {"pydevd"}}, "pydevd", id="python-debugger"),
        pytest.param({"environ": {"NVIDIA_TF32_OVERRIDE": "1"}}, "NVIDIA_TF32_OVERRIDE=1", id="tf32"),
        pytest.param(
            {"environ": {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}}, "TORCH_ALLOW_TF32_CUBLAS", id="torch-tf32"
        ),
    ],
)
def test_timing_is_refused(situation, expected):
    """Under anything that bends times or precision, timing is refused, in one sentence that names it and the mend."""
    [refusal] = machine.timing_refusals(**{"environ": {}, "process_status": "", "modules": (), **situation})

    assert expected in refusal
    assert refusal.endswith(("unset it.", "run without it.", "detach it."))


def test_timing_is_allowed():
    """Harmless values of the same variables refuse nothing."""
    environ = {
        "CUDA_LAUNCH_BLOCKING": "0",
        "LD_PRELOAD": "/lib/libjemalloc.so.2",
        "NVIDIA_TF32_OVERRIDE": "0",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "0",
    }

    assert machine.timing_refusals(environ, "TracerPid:\t0\n", {"sys"}) == []


def test_timing_looks_at_this_process(monkeypatch):
    """Without arguments it is this process that is judged."""
    before = machine.timing_refusals()
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    monkeypatch.setitem(sys.modules, "pydevd", SimpleNamespace())

    assert len({*before, *machine.timing_refusals()}) >= 2


def test_identity_needs_no_torch_to_be_imported():
    """Importing the module imports neither torch nor NVML: a history is read without them."""
    code = "import sys; import fuseproof.machine; print({'torch', 'pynvml'} & set(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)

    assert child.stdout == "set()\n"
