"""The GPU this process uses: which one an xdist worker gets, and what state it is in around a measurement.

Nothing here needs a GPU, NVML or torch to be imported; without them `pin_worker` and `snapshot` have nothing to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

PINNED: Final = "FUSEPROOF_PINNED"
_GIVEN: Final = "FUSEPROOF_GIVEN_DEVICES"
ROOT_PID: Final = "FUSEPROOF_ROOT_PID"
NOT_CHECKED: Final = "not checked"

# NVML's reasons for a clock below its maximum, by bit. Left out: 0x1 (the GPU is idle) and 0x2 (a clock was chosen by
# whoever runs the machine): neither is throttling.
THROTTLE_REASONS: Final = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
# A GPU under a large matrix product is at its power cap all the time: that is its normal speed, so it is recorded only.
SPOILING: Final = ("hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")

_CLOCK_SPREAD: Final = 0.05
_LEAST_ROUNDS: Final = 10  # fewer have no deciles

# The inode of the first process namespace of a Linux kernel (PROC_PID_INIT_INO). Containers have another one.
_INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"


@dataclass(frozen=True)
class Device:
    """NVML's handles for one visible GPU. For a MIG instance, `board` is the GPU it is a part of."""

    nvml: Any
    handle: Any
    board: Any

    def ask(self, function: str, *args: Any) -> Any:
        """What the board answers to NVML's `function`, or None where this board or driver does not support it."""
        return ask(self.nvml, function, self.board, *args)


@dataclass(frozen=True)
class GpuState:
    """One look at the GPU. A field that this board or driver does not report is None."""

    sm_clock_mhz: int | None
    temperature_c: int | None
    power_w: float | None
    throttle_reasons: tuple[str, ...] | None
    foreign_processes: tuple[int, ...] | Literal["not checked"]


def visible_device(worker: str, inherited: str | None, uuids: Sequence[str]) -> str:
    """The value of CUDA_VISIBLE_DEVICES which gives an xdist worker one GPU; empty where there is none to give.

    Args:
        worker: xdist's worker id; `gw3` gets the (3 mod n)-th GPU. An id without a number gets the first.
        inherited: CUDA_VISIBLE_DEVICES as the worker found it, None where unset. Its entries are kept verbatim.
        uuids: what NVML lists, used where nothing was inherited.
    """
    devices = list(uuids) if inherited is None else _visible(inherited, uuids)
    number = re.search(r"\d+$", worker)
    return devices[(int(number[0]) if number else 0) % len(devices)] if devices else ""


def visible_devices(inherited: str | None) -> list[str]:
    """The GPUs that CUDA can use here, as entries of CUDA_VISIBLE_DEVICES, which is `inherited`; no torch is needed."""
    uuids = gpu_uuids()
    return list(uuids) if inherited is None else _visible(inherited, uuids)


def _visible(inherited: str, uuids: Sequence[str]) -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES which CUDA honours: up to the first invalid one, none if one is repeated."""
    # Where NVML lists MIG instances, their number says nothing about the number of GPUs.
    boards = len(uuids) if uuids and all(uuid.startswith("GPU-") for uuid in uuids) else None
    devices: list[str] = []
    for token in (part.strip() for part in inherited.split(",")):
        by_uuid = re.match(r"GPU-|MIG-", token)
        if by_uuid is None and not (token.isdecimal() and (boards is None or int(token) < boards)):
            break
        if devices and (by_uuid[0] if by_uuid else "") != _prefix(devices[0]):
            break
        if token in devices:
            return []
        devices.append(token)
    return devices


def _prefix(token: str) -> str:
    return token[:4] if token.startswith(("GPU-", "MIG-")) else ""


def pin_worker(environ: MutableMapping[str, str]) -> str | None:
    """Give an xdist worker one GPU through CUDA_VISIBLE_DEVICES. Call it before anything touches CUDA.

    Only the first call in a worker and its children acts: FUSEPROOF_PINNED says what it chose. Outside xdist, or where
    it cannot be known which GPUs there are, nothing changes.

    Returns:
        The new CUDA_VISIBLE_DEVICES, or None where it was left alone.
    """
    worker = environ.get("PYTEST_XDIST_WORKER")
    if not worker or PINNED in environ:
        return None
    inherited = environ.get("CUDA_VISIBLE_DEVICES")
    uuids = gpu_uuids()
    if inherited is None and not uuids:
        return None
    device = visible_device(worker, inherited, uuids)
    environ["CUDA_VISIBLE_DEVICES"] = device
    environ[PINNED] = f"{worker}={device}"
    environ[_GIVEN] = ",".join(uuids) if inherited is None else inherited
    return device


def session_devices(environ: Mapping[str, str]) -> list[str]:
    """The GPUs of the whole session as CUDA_VISIBLE_DEVICES names them, the one that this worker was given first.

    One process can use the first MIG instance only, so of those there is one. Empty where it cannot be known.
    """
    uuids = gpu_uuids()
    given = environ.get(_GIVEN if PINNED in environ else "CUDA_VISIBLE_DEVICES")
    devices = list(uuids) if given is None else _visible(given, uuids)
    if PINNED in environ:
        devices.sort(key=lambda each: each != environ["CUDA_VISIBLE_DEVICES"])
    return devices[:1] if devices and devices[0].startswith("MIG-") else devices


def mark_root(environ: MutableMapping[str, str]) -> None:
    """Make this process the root of the session, unless a parent already is: its descendants are not foreign."""
    environ.setdefault(ROOT_PID, str(os.getpid()))


def nvml() -> Any:
    """The initialised `pynvml` module, or None without an NVIDIA driver that answers."""
    return _start_nvml()[0]


def nvml_failure() -> str | None:
    """NVML's words where an NVIDIA driver is here but does not answer, as after an upgrade without a reboot."""
    return _start_nvml()[1]


@cache
def _start_nvml() -> tuple[Any, str | None]:
    try:
        import pynvml
    except ImportError:
        return None, None
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return None, None
    except pynvml.NVMLError as error:
        return None, str(error)
    return pynvml, None


def ask(module: Any, function: str, *args: Any) -> Any:
    """The answer of one NVML function, or None where the driver, the board or `pynvml` does not support it."""
    call: Callable[..., Any] | None = getattr(module, function, None)
    if call is None:
        return None
    try:
        return call(*args)
    except module.NVMLError:
        return None


def gpu_uuids() -> tuple[str, ...]:
    """UUIDs of what CUDA can use, in NVML's order: each GPU, or the MIG instances of a GPU that is split."""
    module = nvml()
    uuids: list[str | None] = []
    for index in range(ask(module, "nvmlDeviceGetCount") or 0):
        board = ask(module, "nvmlDeviceGetHandleByIndex", index)
        mig_mode = ask(module, "nvmlDeviceGetMigMode", board)
        if mig_mode and mig_mode[0]:
            slots = range(ask(module, "nvmlDeviceGetMaxMigDeviceCount", board) or 0)
            instances = [ask(module, "nvmlDeviceGetMigDeviceHandleByIndex", board, slot) for slot in slots]
            uuids += [ask(module, "nvmlDeviceGetUUID", instance) for instance in instances if instance is not None]
        else:
            uuids.append(ask(module, "nvmlDeviceGetUUID", board))
    return tuple(uuid for uuid in uuids if uuid)


@cache
def visible_uuid() -> str | None:
    """UUID of the first GPU that torch sees, as torch writes it (without a prefix); None if it sees none."""
    import torch

    with warnings.catch_warnings():
        # A driver that is too old makes torch warn here; `fuseproof doctor` says it with the mend.
        warnings.filterwarnings("ignore", message="CUDA initialization", category=UserWarning)
        return str(torch.cuda.get_device_properties(0).uuid) if torch.cuda.is_available() else None


@cache
def device() -> Device | None:
    """NVML's handles for the first GPU that torch sees: by UUID, since CUDA_VISIBLE_DEVICES renumbers."""
    module, uuid = nvml(), visible_uuid()
    if module is None or uuid is None:
        return None
    for prefix in ("GPU-", "MIG-"):
        handle = ask(module, "nvmlDeviceGetHandleByUUID", prefix + uuid.removeprefix(prefix))
        if handle is not None:
            board = ask(module, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle) if prefix == "MIG-" else handle
            return Device(module, handle, handle if board is None else board)
    return None


def snapshot() -> GpuState | None:
    """The state of the GPU now; None without a GPU or NVML. Some NVML queries, no CUDA call after the first time."""
    gpu = device()
    if gpu is None:
        return None
    milliwatts = gpu.ask("nvmlDeviceGetPowerUsage")
    bits = gpu.ask("nvmlDeviceGetCurrentClocksEventReasons")
    if bits is None:  # the name before driver 535
        bits = gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons")
    processes = ask(gpu.nvml, "nvmlDeviceGetComputeRunningProcesses", gpu.handle)
    return GpuState(
        sm_clock_mhz=gpu.ask("nvmlDeviceGetClockInfo", gpu.nvml.NVML_CLOCK_SM),
        temperature_c=gpu.ask("nvmlDeviceGetTemperature", gpu.nvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1000,
        throttle_reasons=None if bits is None else tuple(word for bit, word in THROTTLE_REASONS.items() if bits & bit),
        foreign_processes=NOT_CHECKED if processes is None else _foreign([process.pid for process in processes]),
    )


def spoiled(before: GpuState | None, after: GpuState | None) -> list[str]:
    """Why what was measured between two looks at the GPU is INVALID: throttling, or a process of somebody else.

    A power cap alone is no reason, nor is a list of processes that could not be checked: both stay in the record.
    """
    states = [state for state in (before, after) if state is not None]
    throttled = {word for state in states for word in state.throttle_reasons or () if word in SPOILING}
    reasons = []
    if throttled:
        hottest = max((state.temperature_c for state in states if state.temperature_c is not None), default=None)
        at = "" if hottest is None else f" at {hottest} °C"
        reasons.append(f"the GPU was throttled ({', '.join(sorted(throttled))}){at}")
    foreign = {pid for state in states if state.foreign_processes != NOT_CHECKED for pid in state.foreign_processes}
    if foreign:
        pids = ", ".join(map(str, sorted(foreign)))
        reasons.append(f"another process used the GPU (pid {pids})")
    return reasons


def clock_moved(clocks_mhz: Sequence[float]) -> list[str]:
    """Why what was measured in rounds at these SM clocks is INVALID: between the middle 80 % lies more than 5 %.

    On an H200 the spin reads its clock up to 1 % off (the events' steps, in a spin of 50 us) and boost steps are 0.8 %.
    """
    if len(clocks_mhz) < _LEAST_ROUNDS:
        return []
    deciles = statistics.quantiles(clocks_mhz, n=10, method="inclusive")
    if deciles[-1] <= deciles[0] * (1 + _CLOCK_SPREAD):
        return []
    return [f"the SM clock moved between {deciles[0]:.0f} and {deciles[-1]:.0f} MHz during the rounds"]


def _foreign(pids: Iterable[int]) -> tuple[int, ...] | Literal["not checked"]:
    """Those of the GPU's processes which do not belong to this session.

    NVML may list a container's processes under the host's numbers, or hide those outside the container. So its list is
    trusted only if one of our own is in it, and finding nobody else only if all processes can be seen from here.
    """
    alive = [pid for pid in pids if _is_alive(pid)]
    foreign = tuple(pid for pid in alive if not _is_ours(pid))
    if len(foreign) == len(alive) or not (foreign or _sees_all_processes()):
        return NOT_CHECKED
    return foreign


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _is_ours(pid: int) -> bool:
    return not {os.getpid(), int(os.environ.get(ROOT_PID, os.getpid()))}.isdisjoint(lineage(pid))


def lineage(pid: int) -> Iterable[int]:
    """A process and its ancestors, as far as /proc tells."""
    while pid > 0:
        yield pid
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return
        pid = int(stat.rpartition(")")[2].split()[1])  # the command before it may hold spaces and parentheses


def _sees_all_processes() -> bool:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink()) == _INITIAL_PID_NAMESPACE
    return False
