"""Can this machine do what it is meant to do? What is missing or broken, said in one sentence each, with its mend.

A fault gets a name only on positive evidence (a file, a version, a symbol, CUDA's own words); anything else is quoted.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Final, Literal

from fuseproof import apex_probe, gpu, machine
from fuseproof.phases import PHASES

_GET_APEX: Final = (
    "as the README of https://github.com/NVIDIA/apex says, or use NVIDIA's NGC PyTorch container, which ships it"
)
_GET_TORCH: Final = "https://pytorch.org/get-started/locally/"
_USERS: Final = {"amp_C": "FusedAdam", "fused_layer_norm_cuda": "FusedLayerNorm"}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: `code` is `<what>.<how it is>`, `sentence` what it is and how to mend it."""

    code: str
    status: Literal["ok", "missing", "broken"]
    sentence: str

    @property
    def what(self) -> str:
        """The thing: `gpu`, `torch`, `apex` or one of Apex's extension modules."""
        return self.code.partition(".")[0]


@dataclass(frozen=True)
class Report:
    """All findings, and what pytest's header says about the machine."""

    hardware: str
    software: str
    findings: tuple[Finding, ...]

    @property
    def broken(self) -> bool:
        """Whether something is there and does not work; what is merely absent is not broken."""
        return any(finding.status == "broken" for finding in self.findings)

    def about(self, *whats: str) -> list[Finding]:
        """The findings about some things."""
        return [finding for finding in self.findings if finding.what in whats]

    def header_line(self) -> str:
        """Hardware, driver, CUDA, torch and Apex in one line."""
        looked_at = self.about("apex", *machine.APEX_EXTENSIONS)
        unwell = [finding for finding in looked_at if finding.status != "ok"]
        if not looked_at:
            apex = "not looked at (see `fuseproof doctor`)"
        elif not unwell:
            apex = f"{'+'.join(machine.APEX_EXTENSIONS)} (sha {machine.apex_hash()})"
        elif unwell[0].code == "apex.absent":
            apex = "absent"
        else:
            apex = f"{', '.join(finding.code for finding in unwell)} (see `fuseproof doctor`)"
        return f"fuseproof: {self.hardware}, {self.software}, apex {apex}"

    def to_text(self) -> str:
        """One line for each finding, then the upshot."""
        lines = [f"{finding.status:8}{finding.code}: {finding.sentence}" for finding in self.findings]
        broken = sum(finding.status == "broken" for finding in self.findings)
        if broken:
            upshot = f"{broken} broken: see above for the mend."
        elif all(finding.status == "ok" for finding in self.findings):
            upshot = "Everything is well."
        else:
            upshot = "Nothing is broken; what needs the missing parts is skipped."
        return "\n".join([*lines, upshot])

    def to_json(self) -> str:
        """The same as an object: `header`, `broken`, `findings`."""
        findings = [asdict(finding) for finding in self.findings]
        return json.dumps({"header": self.header_line(), "broken": self.broken, "findings": findings}, indent=2)


@cache
def examine() -> Report:
    """Look at GPU, driver, torch and Apex. Apex is loaded in a child process, as a broken extension may kill it."""
    try:
        import torch
    except (ImportError, OSError) as error:
        sentence = f"torch cannot be loaded ({_first_line(error)}): reinstall it, see {_GET_TORCH}."
        return Report("no torch", f"Python {sys.version.split()[0]}", (Finding("torch.broken", "broken", sentence),))
    driver = gpu.ask(gpu.nvml(), "nvmlSystemGetDriverVersion")
    here = machine.identify()
    hardware = here.gpu_model or f"no GPU ({here.cpu_model}, {here.cpu_cores} cores)"
    if here.mig_profile:
        hardware += f" MIG {here.mig_profile}"
    parts = [f"driver {driver}" if driver else "", f"CUDA {torch.version.cuda}" if torch.version.cuda else ""]
    software = ", ".join([part for part in parts if part] + [f"torch {torch.__version__}"])
    return Report(hardware, software, (_examine_gpu(driver, hardware), *_examine_apex()))


@cache
def apex_missing_reason() -> str | None:
    """Why Apex's kernels cannot be used here, or None if they can be loaded."""
    findings = examine().about("torch", "apex", *machine.APEX_EXTENSIONS)
    return " ".join(finding.sentence for finding in findings if finding.status != "ok") or None


def vouches() -> str | None:
    """What lets later processes believe that Apex runs: this one's fingerprint, if it does run here."""
    looked_at = examine().about("apex", *machine.APEX_EXTENSIONS)
    runs = {finding.what for finding in looked_at if finding.status == "ok"}
    return machine.fingerprint() if runs == set(machine.APEX_EXTENSIONS) else None


def unmet(requirements: Sequence[str]) -> list[str]:
    """One sentence for each thing that stands against `--require=cuda,apex`; none where all is there.

    Raises:
        ValueError: for a requirement other than `cuda` and `apex`.
    """
    needs = {"cuda": ("torch", "gpu"), "apex": ("torch", "gpu", "apex", *machine.APEX_EXTENSIONS)}
    if unknown := set(requirements) - set(needs):
        raise ValueError(f"unknown requirement {', '.join(sorted(unknown))}; there are {', '.join(needs)}")
    findings = [finding for need in requirements for finding in examine().about(*needs[need])]
    return list(dict.fromkeys(finding.sentence for finding in findings if finding.status != "ok"))


def _examine_gpu(driver: str | None, hardware: str) -> Finding:
    import torch

    running, cuda = _running(), torch.version.cuda
    if gpu.visible_uuid() is not None:
        return Finding(
            "gpu.ok", "ok", f"{running} can use {hardware} ({_this_sm()}) with driver {driver or 'unknown'}."
        )
    if failure := gpu.nvml_failure():
        sentence = (
            f"The NVIDIA driver does not answer ({failure}): reboot after a driver upgrade, or reinstall the driver."
        )
        return Finding("gpu.broken", "broken", sentence)
    if driver is None:
        return Finding("gpu.absent", "missing", f"No NVIDIA driver is here: {running} runs on the CPU.")
    if cuda is None:
        sentence = (
            f"{running} is a CPU build, but NVIDIA driver {driver} is here: "
            f"install a CUDA build of torch instead, see {_GET_TORCH}."
        )
        return Finding("torch.cpu_build", "broken", sentence)
    if not gpu.gpu_uuids():
        return Finding("gpu.absent", "missing", f"NVIDIA driver {driver} is here, but it finds no GPU: attach one.")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not gpu.visible_device("gw0", visible, gpu.gpu_uuids()):
        sentence = f"CUDA_VISIBLE_DEVICES={visible!r} hides all GPUs from {running}: unset it."
        return Finding("gpu.hidden", "missing", sentence)
    supported = gpu.ask(gpu.nvml(), "nvmlSystemGetCudaDriverVersion") or 0
    if 0 < supported // 1000 < int(cuda.partition(".")[0]):
        sentence = (
            f"Driver {driver} knows CUDA up to {supported // 1000}.{supported % 1000 // 10}, {running} needs {cuda}: "
            "upgrade the driver or install a torch for that CUDA."
        )
        return Finding("torch.driver_too_old", "broken", sentence)
    try:
        torch.cuda.init()
        said = "it gives no reason"
    except RuntimeError as error:
        said = _first_line(error)
    return Finding("torch.broken", "broken", f"{running} finds no GPU although driver {driver} lists one: {said}.")


def _examine_apex() -> Iterable[Finding]:
    spec = importlib.util.find_spec("apex")
    if spec is None or spec.origin is None:  # a folder without __init__.py, such as a checkout's parent, is not Apex
        yield Finding("apex.absent", "missing", f"Apex is not installed: install it {_GET_APEX}.")
        return
    package = Path(spec.origin).parent
    if not (package / "optimizers").is_dir() and not (package / "optimizers.py").exists():
        yield Finding("apex.wrong_project", "broken", _wrong_project(package))
        return
    files = {name: machine.extension_file(name) for name in machine.APEX_EXTENSIONS}
    for name in [name for name, file in files.items() if file is None]:
        stray = next(package.parent.glob(f"{name}.*.so"), None)
        if stray:
            yield Finding(
                f"{name}.other_python",
                "broken",
                f"`{name}` was built for another Python ({stray.name}) than the running {sys.version.split()[0]}: "
                f"rebuild Apex {_GET_APEX}.",
            )
        else:
            yield Finding(
                f"{name}.missing",
                "broken",
                f"Apex in {package} was built without its CUDA extension `{name}`, which {_USERS[name]} needs: "
                f"install it with its CUDA extensions {_GET_APEX}.",
            )
    yield from _probe_all({name: file for name, file in files.items() if file is not None})


def _wrong_project(package: Path) -> str:
    try:
        metadata = importlib.metadata.metadata("apex")
    except importlib.metadata.PackageNotFoundError:
        said = f"in {package} has no `apex.optimizers`"
    else:
        said = f'{metadata["Version"]} in {package} is another project ("{metadata["Summary"]}")'
    return f"The package `apex` {said}, it is not NVIDIA's: uninstall it and install NVIDIA Apex {_GET_APEX}."


def _probe_all(files: dict[str, Path]) -> Iterable[Finding]:
    """Load and run all extensions in one child; after one that fails, the rest in another."""
    if apex_probe.VOUCHED in os.environ and machine.fingerprint() == os.environ[apex_probe.VOUCHED]:
        for name in files:
            yield Finding(f"{name}.ok", "ok", f"`{name}` has run in another process of the same software here.")
        return
    names = list(files)
    while names:
        with PHASES.phase("waiting for Apex"):
            told, failure = apex_probe.outcome(names)
        if not told["torch"]:
            yield Finding("torch.broken", "broken", f"{_running()} fails on this machine: {failure}; see {_GET_TORCH}.")
            return
        for name in told["done"]:
            names.remove(name)
            does = "loads and runs" if told["torch"] == ["runs on the GPU"] else "loads"
            built_for = f"from {files[name]}, sha {machine.apex_hash()}, built for {_architectures(files[name])}"
            yield Finding(f"{name}.ok", "ok", f"`{name}` {does} ({built_for}).")
        if names:
            name = names.pop(0)
            how, sentence = _diagnose(name, files[name], name in told["loaded"], failure)
            yield Finding(f"{name}.{how}", "broken", sentence)


def _diagnose(name: str, file: Path, loaded: bool, failure: str) -> tuple[str, str]:
    """What is wrong with the extension at which the child stopped: its name and the sentence."""
    import torch

    symbol = re.search(r"undefined symbol: (\S*(?:c10|2at|torch)\S*)", failure)
    library = re.search(r"(lib(?:cudart|c10_cuda|torch_cuda)\.so[.\d]*): cannot open shared object", failure)
    rebuild = f"rebuild Apex {_GET_APEX}."
    if symbol:
        built = f"`{name}` was built against {_built_for_torch()}, but {_running()} is running"
        return "other_torch", f"{built} (undefined symbol {symbol[1]}): {rebuild}"
    if library and torch.version.cuda is None:
        return "needs_cuda_torch", (
            f"`{name}` needs {library[1]}, but {_running()} is a CPU build: install a CUDA build, see {_GET_TORCH}."
        )
    if library:
        has = f"{_running()} has CUDA {torch.version.cuda}"
        return "other_cuda", f"`{name}` was built for another CUDA (it needs {library[1]}), but {has}: {rebuild}"
    if loaded and "no kernel image is available" in failure:
        built = f"`{name}` has no kernel for this GPU ({_this_sm()}), it was built for {_architectures(file)}"
        return "no_kernel", f"{built}: {rebuild}"
    what = "loads, but its first call fails" if loaded else "cannot be loaded"
    return "broken", f"`{name}` (from {file}) {what}: {failure}; reinstall Apex {_GET_APEX}."


def _running() -> str:
    import torch

    return f"torch {torch.__version__}"


def _built_for_torch() -> str:
    """The torch that Apex's metadata names, if it names another than the running one."""
    import torch

    try:
        distribution = importlib.metadata.distribution("apex")
    except importlib.metadata.PackageNotFoundError:
        return "another torch"
    recorded = " ".join([distribution.version, *(distribution.requires or [])])
    named = re.search(r"(?:\btorch ?==|\+torch)(\d[\w.+]*)", recorded)
    return f"torch {named[1]}" if named and named[1] != str(torch.__version__) else "another torch"


def _architectures(file: Path) -> str:
    """The GPU architectures in an extension, as CUDA's `cuobjdump` lists them."""
    toolkit = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin"
    tool = shutil.which("cuobjdump") or shutil.which("cuobjdump", path=toolkit)
    if tool is None:
        return "unknown architectures (there is no cuobjdump to list them)"
    listed = subprocess.run([tool, "--list-elf", file], capture_output=True, text=True, check=False).stdout
    return ", ".join(sorted(set(re.findall(r"sm_\d+[af]?", listed)))) or "unknown architectures"


def _this_sm() -> str:
    import torch

    major, minor = torch.cuda.get_device_capability(0)
    return f"sm_{major}{minor}"


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
