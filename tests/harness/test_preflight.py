"""`fuseproof doctor` in prepared situations: packages of the kind that users have, found through PYTHONPATH."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import fuseproof
from fuseproof import apex_probe, cli, preflight

NVIDIA = "PyTorch Extensions written by NVIDIA"

# As much of torch, NVML and Apex as the doctor touches. What they compute is what the real ones would.
TORCH = """
import os
__version__ = {torch!r}

class version:
    cuda = {cuda!r}

class Tensor:
    def __init__(self, values): self.values = values
    def item(self): return self.values[0]
    def view(self, *shape): return self
    def tolist(self): return [self.values]

def ones(count, device): return Tensor([1.0] * count)
def arange(end, device): return Tensor([float(i) for i in range(int(end))])

class nn:
    Parameter = staticmethod(lambda tensor: tensor)

class cuda:
    class properties: name, uuid = "NVIDIA H200", "1234"
    is_available = staticmethod(lambda: {gpu!r} and os.environ.get("CUDA_VISIBLE_DEVICES") != "")
    get_device_properties = staticmethod(lambda index: cuda.properties)
    get_device_capability = staticmethod(lambda index: (9, 0))
    @staticmethod
    def init(): raise RuntimeError("CUDA error: unknown error\\nCUDA kernel errors might be reported later.")
"""
NVML = """
class NVMLError(Exception): pass
class NVMLError_LibraryNotFound(NVMLError): pass
class NVMLError_DriverNotLoaded(NVMLError): pass
def nvmlInit():
    if {mismatch!r}: raise NVMLError("Driver/library version mismatch")
    if not {driver!r}: raise NVMLError_LibraryNotFound
nvmlSystemGetDriverVersion = lambda: {driver!r}
nvmlSystemGetCudaDriverVersion = lambda: {driver_cuda!r}
nvmlDeviceGetCount = lambda: {gpus!r}
nvmlDeviceGetHandleByIndex = lambda index: index
nvmlDeviceGetUUID = lambda handle: "GPU-1234"
"""
OPTIMIZERS = """
class FusedAdam:
    def __init__(self, params, lr): self.params, self.lr = params, lr
    def step(self):
        import amp_C
        for p in self.params: p.values = amp_C.step(p.values, self.lr)
"""
NORMALIZATION = """
class FusedLayerNorm:
    def __init__(self, hidden): pass
    def cuda(self): return self
    def __call__(self, rows):
        import fused_layer_norm_cuda
        return type(rows)(fused_layer_norm_cuda.forward(rows.values))
"""
ADAM_KERNEL = "def step(values, lr): return [value - lr for value in values]"
LAYER_NORM_KERNEL = """
def forward(row):
    mean = sum(row) / len(row)
    return [(x - mean) / (sum((y - mean) ** 2 for y in row) / len(row)) ** 0.5 for x in row]
"""
NO_KERNEL_IMAGE = """
def step(values, lr):
    raise RuntimeError("CUDA error: no kernel image is available for execution on the device\\nCompile with DSA.")
"""
UNDEFINED_SYMBOL = "raise ImportError('amp_C.so: undefined symbol: _ZN3c104cuda9SetDeviceEa')"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@dataclass(frozen=True)
class Hardware:
    """What torch and NVML report."""

    torch: str = "2.11.0+cu130"
    cuda: str | None = "13.0"
    gpu: bool = True
    driver: str | None = "580.159"
    driver_cuda: int = 13000
    gpus: int = 1
    mismatch: bool = False


H200 = Hardware()
LAPTOP = Hardware(torch="2.13.0+cpu", cuda=None, gpu=False, driver=None, gpus=0)


@dataclass(frozen=True)
class Diagnosis:
    """What `fuseproof doctor --json` printed, and its status."""

    status: int
    header: str
    broken: bool
    findings: list[dict[str, str]]

    @property
    def codes(self):
        """The findings' codes and statuses."""
        return {finding["code"]: finding["status"] for finding in self.findings}

    def sentence(self, code):
        """What is said about one code."""
        [sentence] = [finding["sentence"] for finding in self.findings if finding["code"] == code]
        return sentence


@pytest.fixture
def site(tmp_path):
    """A folder of packages."""
    return tmp_path / "site"


@pytest.fixture
def install(site):
    """Writes files into the folder of packages."""

    def write(files):
        for name, text in files.items():
            path = site / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return write


@pytest.fixture
def metadata(site):
    """Writes the metadata of an installed distribution called `apex`."""

    def write(summary=NVIDIA, version="0.1", requires=""):
        folder = site / f"apex-{version}.dist-info"
        folder.mkdir(parents=True)
        text = f"Metadata-Version: 2.1\nName: apex\nVersion: {version}\nSummary: {summary}\n"
        (folder / "METADATA").write_text(text + (f"Requires-Dist: {requires}\n" if requires else ""))

    return write


@pytest.fixture
def apex(site, metadata):
    """Installs NVIDIA's Apex with the given extension modules (None: not built)."""

    def write(amp_C=ADAM_KERNEL, fused_layer_norm_cuda=LAYER_NORM_KERNEL, **recorded):
        metadata(**recorded)
        for package, text in {"": "", "optimizers": OPTIMIZERS, "normalization": NORMALIZATION}.items():
            folder = site / "apex" / package
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "__init__.py").write_text(text)
        for name, text in {"amp_C": amp_C, "fused_layer_norm_cuda": fused_layer_norm_cuda}.items():
            if text is not None:
                (site / f"{name}.py").write_text(text)

    return write


@pytest.fixture
def run_doctor(site, tmp_path):
    """Runs the command on the given hardware; only the prepared packages are to be found."""

    def run(*arguments, hardware=H200, **environ):
        site.mkdir(exist_ok=True)
        (site / "pynvml.py").write_text(NVML.format(**vars(hardware)))
        if not (site / "torch.py").exists():
            (site / "torch.py").write_text(TORCH.format(**vars(hardware)))
        clean = {name: value for name, value in os.environ.items() if name not in ("CUDA_VISIBLE_DEVICES", "CUDA_HOME")}
        path = os.pathsep.join([str(site), str(Path(fuseproof.__file__).parents[1])])
        return subprocess.run(
            # -S: without the packages of the real environment.
            [sys.executable, "-S", "-P", "-m", "fuseproof.cli", "doctor", *arguments],
            env={**clean, "PYTHONPATH": path, "PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path), **environ},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def examine(run_doctor, site):
    """Returns the codes of what a process finds that was started with some fingerprints and has the one "mine"."""

    def run(vouched):
        run_doctor()  # writes torch and NVML
        code = (
            "import os; from fuseproof import machine, preflight; machine.fingerprint = lambda: 'mine'; "
            "print([finding.code for finding in preflight.examine().findings], preflight.vouches())"
        )
        path = os.pathsep.join([str(site), str(Path(fuseproof.__file__).parents[1])])
        command = [sys.executable, "-S", "-P", "-c", code]
        environ = {**os.environ, "PYTHONPATH": path, apex_probe.VOUCHED: vouched}
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout

    return run


@pytest.fixture
def doctor(run_doctor):
    """What the doctor says, read from its JSON."""

    def run(**situation):
        child = run_doctor("--json", **situation)
        assert child.stderr == ""
        return Diagnosis(child.returncode, **json.loads(child.stdout))

    return run


def test_all_well(doctor, apex, site):
    """With GPU and Apex in order nothing is broken, and the header names all that changes under test."""
    apex()
    diagnosis = doctor()

    assert diagnosis.status == 0
    assert diagnosis.codes == {"gpu.ok": "ok", "amp_C.ok": "ok", "fused_layer_norm_cuda.ok": "ok"}
    assert re.fullmatch(
        r"fuseproof: NVIDIA H200, driver 580\.159, CUDA 13\.0, torch 2\.11\.0\+cu130, "
        r"apex amp_C\+fused_layer_norm_cuda \(sha [0-9a-f]{12}\)",
        diagnosis.header,
    )
    assert f"loads and runs (from {site}/amp_C.py, sha " in diagnosis.sentence("amp_C.ok")
    assert "sm_90" in diagnosis.sentence("gpu.ok")


def test_wrong_apex(doctor, metadata, install):
    """PyPI's `apex` is told from NVIDIA's by what it contains, and named by its own summary."""
    metadata(summary="Pyramid toolkit to add login", version="0.9.10")
    install({"apex/__init__.py": "from pyramid.session import UnencryptedCookieSession"})
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"gpu.ok": "ok", "apex.wrong_project": "broken"}
    sentence = diagnosis.sentence("apex.wrong_project")
    assert 'is another project ("Pyramid toolkit to add login")' in sentence
    assert "uninstall it and install NVIDIA Apex as the README of https://github.com/NVIDIA/apex says" in sentence
    assert "NGC" in sentence


def test_package_without_metadata_is_not_apex(doctor, install):
    """A package that merely is called apex is not taken for NVIDIA's."""
    install({"apex/__init__.py": ""})

    assert "has no `apex.optimizers`" in doctor().sentence("apex.wrong_project")


def test_folder_called_apex_is_not_apex(doctor, site):
    """A folder without a package, such as the parent of a checkout, counts as no Apex."""
    (site / "apex" / "tests").mkdir(parents=True)

    assert doctor().codes == {"gpu.ok": "ok", "apex.absent": "missing"}


def test_python_only_build(doctor, apex):
    """A build without CUDA extensions is broken: each missing one is named with what needs it."""
    apex(amp_C=None, fused_layer_norm_cuda=None)
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {
        "gpu.ok": "ok",
        "amp_C.missing": "broken",
        "fused_layer_norm_cuda.missing": "broken",
    }
    assert "`amp_C`, which FusedAdam needs" in diagnosis.sentence("amp_C.missing")
    assert "`fused_layer_norm_cuda`, which FusedLayerNorm needs" in diagnosis.sentence("fused_layer_norm_cuda.missing")
    assert "apex amp_C.missing, fused_layer_norm_cuda.missing (see `fuseproof doctor`)" in diagnosis.header


def test_half_a_build(doctor, apex):
    """One missing extension does not keep the other from being looked at."""
    apex(amp_C=None)

    assert doctor().codes == {"gpu.ok": "ok", "amp_C.missing": "broken", "fused_layer_norm_cuda.ok": "ok"}


def test_built_for_another_python(doctor, apex, install):
    """An extension file that this Python cannot import is not reported as never built."""
    apex(amp_C=None)
    install({"amp_C.cpython-36m-x86_64-linux-gnu.so": ""})

    assert "another Python (amp_C.cpython-36m-x86_64-linux-gnu.so)" in doctor().sentence("amp_C.other_python")


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        pytest.param({}, "built against another torch, but torch 2.11.0+cu130 is running", id="not-recorded"),
        pytest.param({"requires": "torch==2.9.1"}, "built against torch 2.9.1, but", id="pinned"),
        pytest.param({"version": "0.1+torch2.8.0"}, "built against torch 2.8.0, but", id="in-the-version"),
        pytest.param({"requires": "torch>=2.0"}, "built against another torch, but", id="a-lower-bound-says-nothing"),
    ],
)
def test_built_for_another_torch(doctor, apex, recorded, expected):
    """An undefined symbol of torch's means another torch; which one is said only if the metadata tells."""
    apex(amp_C=UNDEFINED_SYMBOL, **recorded)
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"gpu.ok": "ok", "amp_C.other_torch": "broken", "fused_layer_norm_cuda.ok": "ok"}
    sentence = diagnosis.sentence("amp_C.other_torch")
    assert expected in sentence
    assert "_ZN3c104cuda9SetDeviceEa" in sentence
    assert "rebuild Apex" in sentence


def test_built_for_another_cuda(doctor, apex):
    """A CUDA runtime of another version that cannot be found means a build for that CUDA."""
    apex(amp_C="raise ImportError('libcudart.so.12: cannot open shared object file: No such file or directory')")

    sentence = doctor().sentence("amp_C.other_cuda")
    assert "it needs libcudart.so.12), but torch 2.11.0+cu130 has CUDA 13.0: rebuild" in sentence


def test_no_kernel_for_this_gpu(doctor, apex, tmp_path):
    """CUDA's own words, in a first call, mean a build for other GPUs: which those are is read from the binary."""
    apex(amp_C=NO_KERNEL_IMAGE)
    tool = tmp_path / "bin" / "cuobjdump"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho ELF file 1: $2.1.sm_80.cubin; echo ELF file 2: $2.2.sm_86.cubin\n")
    tool.chmod(0o755)
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"gpu.ok": "ok", "amp_C.no_kernel": "broken", "fused_layer_norm_cuda.ok": "ok"}
    assert "this GPU (sm_90), it was built for sm_80, sm_86: rebuild Apex as" in diagnosis.sentence("amp_C.no_kernel")


@pytest.mark.parametrize("script", [None, "#!/bin/sh\n"], ids=["no-cuobjdump", "nothing-listed"])
def test_architectures_are_not_guessed(doctor, apex, tmp_path, script):
    """Where CUDA's tool is absent or lists nothing, nothing is claimed about the architectures."""
    apex(amp_C=NO_KERNEL_IMAGE)
    if script:
        tool = tmp_path / "bin" / "cuobjdump"
        tool.parent.mkdir()
        tool.write_text(script)
        tool.chmod(0o755)

    assert "built for unknown architectures" in doctor().sentence("amp_C.no_kernel")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        pytest.param(DIES, "cannot be loaded: its process died of SIGSEGV", id="dies-at-import"),
        pytest.param(f"def step(values, lr):\n    {DIES}", "first call fails: its process died of SIGSEGV", id="dies"),
        pytest.param("raise ImportError('no idea')", "cannot be loaded: ImportError: no idea", id="import-error"),
        pytest.param("undefined symbol", "cannot be loaded: SyntaxError: invalid syntax", id="not-a-module"),
        pytest.param(
            "raise ImportError('undefined symbol: png_read')",
            "cannot be loaded: ImportError: undefined",
            id="not-torchs",
        ),
        pytest.param("raise SystemExit('bye')", "cannot be loaded: bye", id="exits"),
        pytest.param("step = lambda values, lr: values", "gives 1.0, not 0.5", id="computes-nothing"),
    ],
)
def test_broken_extension(doctor, apex, kernel, expected):
    """An extension that dies, raises or computes nothing is broken, in its own words, and the other one is tried."""
    apex(amp_C=kernel)
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"gpu.ok": "ok", "amp_C.broken": "broken", "fused_layer_norm_cuda.ok": "ok"}
    assert expected in diagnosis.sentence("amp_C.broken")


def test_layer_norm_that_gives_nan_is_broken(doctor, apex):
    """Output memory that no kernel wrote may hold anything, NaN included: it is not taken for a result."""
    apex(fused_layer_norm_cuda="forward = lambda row: [float('nan')] * 8")

    assert "normalised to nan" in doctor().sentence("fused_layer_norm_cuda.broken")


def test_no_gpu(doctor):
    """A machine without GPU, driver and Apex lacks them, but is not broken."""
    diagnosis = doctor(hardware=LAPTOP)

    assert diagnosis.status == 0
    assert diagnosis.codes == {"gpu.absent": "missing", "apex.absent": "missing"}
    assert "no GPU" in diagnosis.header
    assert diagnosis.header.endswith("torch 2.13.0+cpu, apex absent")


def test_apex_without_a_gpu_is_loaded_but_not_run(doctor, apex):
    """On a build machine without a GPU, extensions that load are well: nothing is claimed about their kernels."""
    apex(amp_C=NO_KERNEL_IMAGE)
    diagnosis = doctor(hardware=Hardware(gpu=False, driver=None))

    assert diagnosis.status == 0
    assert diagnosis.sentence("amp_C.ok").startswith("`amp_C` loads (from")


@pytest.mark.parametrize(
    ("hardware", "environ", "code", "status", "expected"),
    [
        pytest.param(
            Hardware(torch="2.12.0+cpu", cuda=None, gpu=False),
            {},
            "torch.cpu_build",
            21,
            "torch 2.12.0+cpu is a CPU build, but NVIDIA driver 580.159 is here",
            id="torch-replaced-by-a-cpu-build",
        ),
        pytest.param(
            Hardware(gpu=False, driver="550.54", driver_cuda=12040),
            {},
            "torch.driver_too_old",
            21,
            "Driver 550.54 knows CUDA up to 12.4, torch 2.11.0+cu130 needs 13.0",
            id="driver-too-old",
        ),
        pytest.param(
            Hardware(gpu=False, mismatch=True),
            {},
            "gpu.broken",
            21,
            "does not answer (Driver/library version mismatch): reboot",
            id="driver-upgraded-without-a-reboot",
        ),
        pytest.param(Hardware(gpu=False, gpus=0), {}, "gpu.absent", 0, "finds no GPU", id="driver-without-gpu"),
        pytest.param(H200, {"CUDA_VISIBLE_DEVICES": ""}, "gpu.hidden", 0, "unset it", id="gpu-hidden"),
        pytest.param(
            Hardware(gpu=False), {}, "torch.broken", 21, "lists one: CUDA error: unknown error.", id="no-evidence"
        ),
    ],
)
def test_torch_without_a_gpu(doctor, hardware, environ, code, status, expected):
    """Why torch has no GPU is told from versions and counts; where they say nothing, CUDA is quoted."""
    diagnosis = doctor(hardware=hardware, **environ)

    assert diagnosis.status == status
    assert set(diagnosis.codes) == {code, "apex.absent"}
    assert expected in diagnosis.sentence(code)


def test_extension_that_needs_a_cuda_torch(doctor, apex):
    """Where torch is a CPU build, Apex's missing library is torch's fault: rebuilding Apex would not mend it."""
    apex(amp_C="raise ImportError('libc10_cuda.so: cannot open shared object file: No such file')")
    sentence = doctor(hardware=Hardware(torch="2.12.0+cpu", cuda=None, gpu=False)).sentence("amp_C.needs_cuda_torch")

    assert "install a CUDA build" in sentence
    assert "rebuild" not in sentence


def test_torch_that_fails_on_the_gpu_is_not_blamed_on_apex(doctor, apex, install):
    """If torch itself has no kernel for the GPU, the finding is about torch and stays the only one."""
    apex()
    fails = "def ones(*_, **__): raise RuntimeError('no kernel image is available for execution on the device')"
    install({"torch.py": TORCH.format(**vars(H200)) + fails})
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"gpu.ok": "ok", "torch.broken": "broken"}
    assert "torch 2.11.0+cu130 fails on this machine: RuntimeError: no kernel image" in diagnosis.sentence(
        "torch.broken"
    )


def test_torch_that_cannot_be_loaded(doctor, install):
    """The doctor comes even where torch cannot be loaded."""
    install({"torch.py": "raise ImportError('libcudnn.so.9: cannot open shared object file')"})
    diagnosis = doctor()

    assert diagnosis.status == 21
    assert diagnosis.codes == {"torch.broken": "broken"}
    assert diagnosis.header.endswith("apex not looked at (see `fuseproof doctor`)")
    assert "(libcudnn.so.9: cannot open shared object file)" in diagnosis.sentence("torch.broken")


def test_noise_of_packages_is_not_output(doctor, apex):
    """What an extension prints disturbs neither the probe nor the JSON."""
    apex(amp_C=f"print('hello', end='')\n{ADAM_KERNEL.replace('return', 'print(0, end=str()); return')}")

    assert doctor().codes["amp_C.ok"] == "ok"


def test_extension_that_hangs(apex, install, site, monkeypatch):
    """An extension that never answers is broken as well."""
    apex(amp_C="import time; time.sleep(60)")
    install({"torch.py": TORCH.format(**vars(LAPTOP))})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(apex_probe, "_TIMEOUT_S", 2)

    assert apex_probe.outcome(["amp_C"])[1] == "no answer within 2 s"


def test_text_ends_with_the_upshot(run_doctor, apex):
    """The plain output is the header, a line for each finding, and what they come to."""
    apex()
    lines = run_doctor().stdout.splitlines()

    assert lines[0].startswith("fuseproof: NVIDIA H200")
    assert [line.split()[:2] for line in lines[1:-1]] == [
        ["ok", "gpu.ok:"],
        ["ok", "amp_C.ok:"],
        ["ok", "fused_layer_norm_cuda.ok:"],
    ]
    assert lines[-1] == "Everything is well."


def test_help_documents_the_status(run_doctor):
    """What the exit status means can be read on the command line."""
    text = " ".join(run_doctor("--help").stdout.split())

    assert "Exit status: 0 if nothing is broken" in text
    assert "21 if something is there and does not work" in text


@pytest.mark.parametrize("arguments", [[], ["surgeon"], ["doctor", "--xml"]], ids=["none", "command", "option"])
def test_wrong_usage(arguments, capsys):
    """Wrong usage keeps argparse's status 2 and shows how it is done."""
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)

    assert ended.value.code == 2
    assert "usage: fuseproof" in capsys.readouterr().err


WELL = preflight.Finding("gpu.ok", "ok", "The GPU is well.")
NO_GPU = preflight.Finding("gpu.absent", "missing", "No GPU.")
NO_APEX = preflight.Finding("apex.absent", "missing", "No Apex.")
NO_ADAM = preflight.Finding("amp_C.missing", "broken", "No amp_C.")
CPU_TORCH = preflight.Finding("torch.cpu_build", "broken", "A CPU torch.")


@pytest.fixture
def found(monkeypatch):
    """Lets the examination find the given things."""

    def put(*findings):
        report = preflight.Report("no GPU", "torch", findings)
        monkeypatch.setattr(preflight, "examine", lambda: report)
        preflight.apex_missing_reason.cache_clear()

    yield put
    preflight.apex_missing_reason.cache_clear()


@pytest.mark.parametrize(
    ("requirements", "findings", "expected"),
    [
        pytest.param(["cuda", "apex"], [WELL], [], id="all-met"),
        pytest.param(["cuda"], [NO_GPU, NO_APEX], ["No GPU."], id="cuda-is-not-apex"),
        pytest.param(["apex"], [NO_GPU, NO_APEX], ["No GPU.", "No Apex."], id="apex-needs-a-gpu"),
        pytest.param(["cuda", "apex"], [CPU_TORCH, NO_ADAM], ["A CPU torch.", "No amp_C."], id="each-said-once"),
        pytest.param([], [NO_GPU], [], id="nothing-required"),
    ],
)
def test_unmet_requirements(found, requirements, findings, expected):
    """Each requirement gives the sentences of what stands against it, once."""
    found(*findings)

    assert preflight.unmet(requirements) == expected


def test_unknown_requirement(found):
    """A misspelt requirement is an error: it must not be taken as met."""
    found(WELL)
    with pytest.raises(ValueError, match="unknown requirement cudda; there are cuda, apex"):
        preflight.unmet(["cudda"])


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        pytest.param([NO_GPU], None, id="a-gpu-is-another-matter"),
        pytest.param([NO_GPU, NO_APEX], "No Apex.", id="absent"),
        pytest.param([CPU_TORCH, NO_ADAM], "A CPU torch. No amp_C.", id="broken"),
    ],
)
def test_reason_to_skip_apex(found, findings, expected):
    """Apex's cases are skipped for the reasons the doctor gives; having no GPU is for their device to say."""
    found(*findings)

    assert preflight.apex_missing_reason() == expected


# --- what an earlier process has found --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vouched", "codes"),
    [
        pytest.param("mine", "['gpu.ok', 'amp_C.ok', 'fused_layer_norm_cuda.ok'] mine", id="believed"),
        pytest.param("other", "['gpu.ok', 'amp_C.broken', 'fused_layer_norm_cuda.ok'] None", id="other-software"),
        pytest.param("", "['gpu.ok', 'amp_C.broken', 'fused_layer_norm_cuda.ok'] None", id="nobody"),
    ],
)
def test_a_process_of_the_same_software_is_believed(examine, apex, vouched, codes):
    """No child is started then: the extension that would kill it is not loaded at all."""
    apex(amp_C="import os\nos.abort()")

    assert examine(vouched).strip() == codes


def test_the_doctor_believes_nobody(run_doctor, apex):
    """Who asks how this machine is wants it looked at now."""
    apex(amp_C="import os\nos.abort()")

    assert run_doctor(**{apex_probe.VOUCHED: "anything"}).returncode == 21


def test_a_run_vouches_for_those_after_it():
    """By a variable of theirs; a run without Apex vouches for nothing."""
    assert apex_probe.vouched_by({"fuseproof": {"vouches": "a"}}) == {apex_probe.VOUCHED: "a"}
    assert apex_probe.vouched_by({"fuseproof": {}}) == apex_probe.vouched_by({"benchmarks": []}) == {}


@pytest.fixture
def _worker():
    """Leave nothing of a controller behind in this process."""
    yield
    apex_probe.join({apex_probe.SHARED: "/nowhere/apex.json"})
    apex_probe.outcome(())  # forgets it


@pytest.mark.usefixtures("_worker")
def test_a_worker_hears_of_its_controllers_child(tmp_path, monkeypatch):
    """One child for all of a session's workers, whatever it found; of other extensions a worker asks its own."""
    names = ["no_such_extension"]
    shared = tmp_path / "apex.json"
    apex_probe.start(names, shared)
    environ = {apex_probe.SHARED: os.environ[apex_probe.SHARED]}
    assert apex_probe.join(environ)
    assert environ == {}  # what a worker starts is no worker of this controller
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", pytest.fail)
        heard = apex_probe.outcome(names)
    assert heard[0]["error"] == ["ModuleNotFoundError: No module named 'no_such_extension'"]
    assert heard == apex_probe.outcome(names)  # the controller's own
    apex_probe.abandon()
    assert apex_probe.SHARED not in os.environ

    shared.write_text(json.dumps([["others"], {}, "nothing"]))
    assert apex_probe.join({apex_probe.SHARED: str(shared)})
    assert apex_probe.outcome(names) == heard


@pytest.mark.usefixtures("_worker")
def test_a_worker_whose_controller_is_gone_asks_itself(tmp_path):
    """With its folder goes the hope for its file."""
    assert apex_probe.join({apex_probe.SHARED: str(tmp_path / "gone" / "apex.json")})
    assert apex_probe.outcome(["no_such_extension"])[0]["loaded"] == []


def test_a_session_with_workers_asks_one_child(tmp_path, site, apex):
    """Importing torch and starting CUDA takes it some seconds; each worker would wait for a child of its own."""
    log = tmp_path / "loaded"
    apex(amp_C=f"open({str(log)!r}, 'a').write('x')")
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[tool.fuseproof]\n")
    (project / "test_it.py").write_text(
        "import pytest\nfrom fuseproof import preflight\n\n"
        "@pytest.mark.parametrize('number', range(4))\ndef test_it(number):\n"
        "    assert 'amp_C.ok' in [finding.code for finding in preflight.examine().findings]\n"
    )
    path = os.pathsep.join([str(Path(fuseproof.__file__).parents[1]), str(site)])
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "each", "-p", "no:cacheprovider"]
    environ = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    ended = subprocess.run(
        command, cwd=project, env={**environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stdout
    assert "8 passed" in ended.stdout
    assert log.read_text() == "x"
