"""Which machine this is, what software is on it, and what would spoil a timing here.

torch and NVML are imported inside the functions that ask them, so that reading a history needs neither.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from fuseproof import gpu

APEX_EXTENSIONS: Final = ("amp_C", "fused_layer_norm_cuda")
ABSENT: Final = "absent"

# Environment variables that change results or times; of TORCHINDUCTOR_* all but folders as well.
_RECORDED: Final = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
_TF32_OVERRIDES: Final = ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE")
_PRELOADED_TOOLS: Final = re.compile(r"sanitizer|lib[alt]san|libubsan|TreeLauncher", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """The hardware that a number was measured on.

    Attributes:
        slug: the machine's folder under `bench_history/`; the same after a reboot and for two boards of one model.
        kind: `cuda` if torch can use a GPU, else `cpu`.
        cpu_cores: the cores that this process may use.
        power_limit_w: the power cap in force, as a board's owner may lower it.
        host_id: a hash, so that a host can be told from another without its name in a public history.
        board_id: a hash of the GPU's UUID, of a MIG instance that of the GPU it is a part of; empty if not known.
    """

    slug: str
    kind: Literal["cuda", "cpu"]
    gpu_model: str | None
    mig_profile: str | None
    gpu_uuid: str | None
    cpu_model: str
    cpu_cores: int
    power_limit_w: float | None
    host_id: str
    board_id: str = ""


@cache
def identify() -> Machine:
    """This machine."""
    cpu_model, cpu_cores = _cpu_model(), _cpu_cores()
    gpu_model = mig_profile = power_limit_w = None
    if gpu.visible_uuid() is not None:
        gpu_model, mig_profile = _gpu_names()
    if board := gpu.device():
        milliwatts = board.ask("nvmlDeviceGetEnforcedPowerLimit")
        power_limit_w = None if milliwatts is None else milliwatts / 1000
    return Machine(
        slug=slug(gpu_model, mig_profile, cpu_model, cpu_cores),
        kind="cuda" if gpu_model else "cpu",
        gpu_model=gpu_model,
        mig_profile=mig_profile,
        gpu_uuid=gpu.visible_uuid(),
        cpu_model=cpu_model,
        cpu_cores=cpu_cores,
        power_limit_w=power_limit_w,
        host_id=_hash(platform.node()),
        board_id=_hash(uuid) if (uuid := _board_uuid()) else "",
    )


def described() -> dict[str, Any]:
    """What files of pytest-benchmark hold as `machine_info`: nothing that names the host or changes at a boot."""
    return {
        "node": identify().host_id,
        "cpu": {"brand_raw": identify().cpu_model, "count": os.cpu_count()},
        "machine": platform.machine(),
        "system": platform.system(),
        "release": platform.release(),
        "python_implementation": platform.python_implementation(),
        "python_version": platform.python_version(),
        "python_compiler": platform.python_compiler(),
    }


def _board_uuid() -> str | None:
    """UUID of the GPU without its prefix. Not a MIG instance's: instances are made anew at each boot."""
    if (board := gpu.device()) is None:
        return gpu.visible_uuid()
    uuid: str | None = board.ask("nvmlDeviceGetUUID")
    return uuid.removeprefix("GPU-") if uuid and uuid.startswith("GPU-") else None


def _hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def slug(gpu_model: str | None, mig_profile: str | None, cpu_model: str, cpu_cores: int) -> str:
    """The folder name of a machine: `nvidia-h200`, `nvidia-h200-mig-1g.18gb`, `cpu-amd-epyc-2c`."""
    if gpu_model:
        return _dashed(f"{gpu_model} mig {mig_profile}" if mig_profile else gpu_model)
    # "Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", "AMD EPYC 9654 96-Core Processor": the model alone
    model = re.sub(r"\((?:r|tm)\)|@.*|\bcpu\b|\bprocessor\b|\b\d+-core\b", " ", cpu_model, flags=re.IGNORECASE)
    return _dashed(f"cpu {model} {cpu_cores}c")


def _dashed(words: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", words.lower()).strip("-.")


def _gpu_names() -> tuple[str, str | None]:
    """Model and MIG profile. Of "NVIDIA H200 MIG 1g.18gb", torch may know the first part only."""
    import torch

    name = torch.cuda.get_device_properties(0).name
    board = gpu.device()
    names = (name, (board and gpu.ask(board.nvml, "nvmlDeviceGetName", board.handle)) or "")
    profiles = [match[1] for match in (re.search(r"\bMIG (.+)", name) for name in names) if match]
    return re.sub(r"\s*\bMIG .+", "", name), profiles[0] if profiles else None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return match[1].strip() if match else platform.processor() or platform.machine()


def _cpu_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def inventory() -> dict[str, str]:
    """The software whose change may change a number: name to version, `absent` for what is not there. No paths."""
    import torch

    driver = gpu.ask(gpu.nvml(), "nvmlSystemGetDriverVersion")
    cudnn = torch.backends.cudnn.version()
    versions = {
        "driver": str(driver or ABSENT),
        "cuda": torch.version.cuda or ABSENT,
        "torch": str(torch.__version__),
        "torch_git": torch.version.git_version or "unknown",
        "cudnn": str(cudnn or ABSENT),
        "triton": _version("triton", "pytorch-triton"),
        "apex": apex_hash() or ABSENT,
        "python": platform.python_version(),
        "numpy": _version("numpy"),
        "pytest": _version("pytest"),
        "pytest-benchmark": _version("pytest-benchmark"),
    }
    if (liger := _version("liger-kernel")) != ABSENT:
        versions["liger-kernel"] = liger
    return versions


def fingerprint() -> str:
    """A hash of hardware and software: what has run in one process of this fingerprint runs in another."""
    return hashlib.sha256(json.dumps([identify().slug, inventory()], sort_keys=True).encode()).hexdigest()[:16]


def _version(*distributions: str) -> str:
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return ABSENT


def extension_file(name: str) -> Path | None:
    """The file that `import name` would load, found without loading it."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module that something put into sys.modules by hand
        return None
    return Path(spec.origin) if spec and spec.origin and spec.has_location else None


@cache
def apex_hash() -> str | None:
    """SHA-256 (first 12 digits) of the Apex extension modules that we use, since Apex's version is always 0.1.

    None if neither is there.
    """
    found = [(name, path) for name in APEX_EXTENSIONS if (path := extension_file(name))]
    digest = hashlib.sha256()
    for name, path in found:
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12] if found else None


def settings() -> dict[str, Any]:
    """What changes results or times besides hardware and software; of the environment, only what is set."""
    import torch

    try:
        matmul_precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # torch refuses to say once its old and new switches disagree; the new ones are read below
        matmul_precision = "mixed"
    return {
        "float32_matmul_precision": matmul_precision,
        # The readings behind `allow_tf32`, which itself raises once the new switches are used.
        "matmul_fp32_precision": torch.backends.cuda.matmul.fp32_precision,
        "cudnn_conv_fp32_precision": torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        "cudnn_rnn_fp32_precision": torch.backends.cudnn.rnn.fp32_precision,  # type: ignore[attr-defined]
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name in _RECORDED or (name.startswith("TORCHINDUCTOR_") and not name.endswith("_DIR"))
        },
    }


def timing_refusals(
    environ: Mapping[str, str] | None = None,
    process_status: str | None = None,
    modules: Collection[str] | None = None,
) -> list[str]:
    """Why nothing should be timed in this process now: one sentence for each reason, with its mend.

    Args:
        environ: the environment; this process's if None.
        process_status: the text of `/proc/<pid>/status`; this process's if None.
        modules: the names of the imported modules; this process's if None.
    """
    environ = os.environ if environ is None else environ
    modules = sys.modules if modules is None else modules
    if process_status is None:
        own = Path("/proc/self/status")
        process_status = own.read_text() if own.exists() else ""
    refusals = []
    if environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        refusals.append(
            "CUDA_LAUNCH_BLOCKING is set: every launch waits for its kernel, host time swallows device time; unset it."
        )
    if tools := _injected_tools(environ):
        refusals.append(
            f"A sanitizer or profiler is loaded ({', '.join(tools)}): calls and kernels are slower by unknown factors; "
            "run without it."
        )
    tracer = re.search(r"^TracerPid:\s*(\d+)", process_status, re.MULTILINE)
    if tracer and int(tracer[1]):
        refusals.append(
            f"A debugger or tracer (process {tracer[1]}) is attached: it stops this process at system calls; detach it."
        )
    if "pydevd" in modules:
        refusals.append(
            "A Python debugger (pydevd) is loaded: it traces each line that launches a kernel; run without it."
        )
    refusals += [
        f"{name}=1 is set: matrix products of the FP32 stages would run in TF32, not in FP32; unset it."
        for name in _TF32_OVERRIDES
        if environ.get(name) == "1"
    ]
    return refusals


def _injected_tools(environ: Mapping[str, str]) -> list[str]:
    tools = [name for name in sorted(environ) if name == "CUDA_INJECTION64_PATH" or name.startswith("NV_SANITIZER")]
    preloaded = re.split(r"[ :]", environ.get("LD_PRELOAD", ""))
    return tools + [Path(library).name for library in preloaded if _PRELOADED_TOOLS.search(library)]
