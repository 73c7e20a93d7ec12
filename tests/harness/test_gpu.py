"""Which GPU an xdist worker gets, and what makes a measurement INVALID."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fuseproof import gpu

GPUS = ("GPU-aaaa", "GPU-bbbb", "GPU-cccc")
THROTTLED_BY_HEAT = 0x40 | 0x8
QUIET = gpu.GpuState(
    sm_clock_mhz=1980,
    temperature_c=50,
    power_w=320.5,
    throttle_reasons=(),
    foreign_processes=(),
)


class NVMLError(Exception):
    """NVML's one kind of exception."""


def fake_nvml(**answers):
    """A `pynvml` whose functions answer with the given values; those not given are not supported by this board."""

    def unsupported(*_):
        raise NVMLError

    functions = {
        "nvmlDeviceGetPowerUsage": unsupported,
        "nvmlDeviceGetTemperature": unsupported,
        "nvmlDeviceGetClockInfo": unsupported,
        "nvmlDeviceGetComputeRunningProcesses": unsupported,
        **{name: value if callable(value) else (lambda *_, value=value: value) for name, value in answers.items()},
    }
    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        **functions,
    )


@pytest.fixture
def board(monkeypatch):
    """Puts a board with the given NVML answers where the first visible GPU would be."""

    def put(**answers):
        monkeypatch.setattr(gpu, "device", lambda: gpu.Device(fake_nvml(**answers), "handle", "board"))

    return put


@pytest.fixture
def gpus(monkeypatch):
    """Lets NVML list the given UUIDs."""
    return lambda *uuids: monkeypatch.setattr(gpu, "gpu_uuids", lambda: uuids)


@pytest.fixture
def processes(board):
    """Lets NVML list the given process ids on the GPU."""
    return lambda *pids: board(nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=pid) for pid in pids])


@pytest.fixture
def child():
    """A process that this one started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@pytest.fixture
def grandchild():
    """A process whose parent this one started."""
    code = """if True:
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "input()"])
        print(child.pid, flush=True)
        child.wait()
    """
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline())
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("worker", "inherited", "uuids", "expected"),
    [
        pytest.param("gw0", None, GPUS, "GPU-aaaa", id="first-of-nvml"),
        pytest.param("gw5", None, GPUS, "GPU-cccc", id="wraps-around"),
        pytest.param("gw1", "2,0", GPUS, "0", id="indices-verbatim"),
        pytest.param("gw1", "GPU-cc,GPU-bb", GPUS, "GPU-bb", id="short-uuids-verbatim"),
        pytest.param("gw3", "MIG-1,MIG-2", ("MIG-1", "MIG-2", "MIG-3"), "MIG-2", id="mig"),
        pytest.param("gw1", " 1 , 2 ", GPUS, "2", id="whitespace"),
        pytest.param("gw1", "0,-1,2", GPUS, "0", id="ends-at-minus-one"),
        pytest.param("gw1", "0,9,2", GPUS, "0", id="ends-at-an-index-beyond-the-gpus"),
        pytest.param("gw1", "0,9,2", (), "9", id="any-index-where-nvml-is-silent"),
        pytest.param("gw1", "5,6", ("MIG-1", "MIG-2"), "6", id="mig-instances-do-not-bound-indices"),
        pytest.param("gw1", "GPU-aaaa,1", GPUS, "GPU-aaaa", id="ends-where-the-kind-changes"),
        pytest.param("gw1", "1,1", GPUS, "", id="a-repeated-entry-hides-all"),
        pytest.param("gw0", "", GPUS, "", id="empty-stays-empty"),
        pytest.param("gw0", "-1", GPUS, "", id="minus-one-hides-all"),
        pytest.param("gw0", "NoDevFiles", GPUS, "", id="words-hide-all"),
        pytest.param("gw2", None, (), "", id="no-gpu"),
        pytest.param("remote", "2,0", GPUS, "2", id="worker-without-a-number"),
    ],
)
def test_worker_gets_its_gpu_of_those_cuda_would_show(worker, inherited, uuids, expected):
    """Worker n gets the (n mod count)-th entry that CUDA honours in what it inherited, else of NVML's list."""
    assert expected == gpu.visible_device(worker, inherited, uuids)


def test_pinning_writes_the_environment(gpus):
    """A worker is pinned through CUDA_VISIBLE_DEVICES, by UUID, as indices mean another GPU to CUDA than to NVML."""
    gpus(*GPUS)
    environ = {"PYTEST_XDIST_WORKER": "gw1"}

    assert gpu.pin_worker(environ) == "GPU-bbbb"
    assert environ["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"


def test_pinned_once(gpus):
    """A second call, or one in a child that thinks itself another worker, changes nothing."""
    gpus(*GPUS)
    environ = {"PYTEST_XDIST_WORKER": "gw1", "CUDA_VISIBLE_DEVICES": "0,1"}
    gpu.pin_worker(environ)
    pinned = dict(environ)

    assert None is gpu.pin_worker(environ)
    assert pinned == environ
    environ["PYTEST_XDIST_WORKER"] = "gw0"
    assert None is gpu.pin_worker(environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("environ", "uuids", "expected"),
    [
        pytest.param({}, GPUS, list(GPUS), id="all"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, GPUS, ["1"], id="one"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, GPUS, [], id="none"),
        pytest.param({"PYTEST_XDIST_WORKER": "gw1"}, GPUS, [GPUS[1], GPUS[0], *GPUS[2:]], id="worker"),
        pytest.param(
            {"PYTEST_XDIST_WORKER": "gw3", "CUDA_VISIBLE_DEVICES": "0,1"}, GPUS, ["1", "0"], id="worker-of-some"
        ),
        pytest.param({}, ("MIG-1", "MIG-2"), ["MIG-1"], id="mig"),
        pytest.param({"PYTEST_XDIST_WORKER": "gw1"}, ("MIG-1", "MIG-2"), ["MIG-2"], id="worker-mig"),
        pytest.param({}, (), [], id="no-nvml"),
    ],
)
def test_a_worker_knows_the_gpus_of_its_session(environ, uuids, expected, gpus):
    """What needs two GPUs is for a child that sees two, its worker's first."""
    gpus(*uuids)
    gpu.pin_worker(environ)

    assert gpu.session_devices(environ) == expected


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"CUDA_VISIBLE_DEVICES": "0,1"}, id="no-xdist"),
        pytest.param({"PYTEST_XDIST_WORKER": "gw1"}, id="no-nvml"),
    ],
)
def test_not_pinned(environ, gpus):
    """Outside xdist, and where neither NVML nor the environment names a GPU, the environment stays as it is."""
    gpus()
    before = dict(environ)

    assert None is gpu.pin_worker(environ)
    assert before == environ


def test_pinning_imports_no_torch():
    """Pinning comes before torch: whatever touches CUDA first fixes which GPUs a process sees."""
    code = "import os, sys; from fuseproof import gpu; gpu.pin_worker(os.environ); print('torch' in sys.modules)"
    environ = {
        **os.environ,
        "PYTEST_XDIST_WORKER": "gw1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    child = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)

    assert child.stdout == "False\n"


def test_split_gpus_are_listed_by_instance(monkeypatch):
    """Of a GPU in MIG mode, CUDA uses the instances: they are what workers share, beside whole GPUs."""
    modes, names = {"board0": [1, 1], "board1": [0, 0]}, {"slot0": "MIG-1", "slot2": "MIG-2", "board1": "GPU-bbbb"}

    def instance(_, slot):
        if f"slot{slot}" not in names:
            raise NVMLError
        return f"slot{slot}"

    module = fake_nvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: f"board{index}",
        nvmlDeviceGetMigMode=lambda board: modes[board],
        nvmlDeviceGetMaxMigDeviceCount=3,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetUUID=lambda handle: names[handle],
    )
    monkeypatch.setattr(gpu, "nvml", lambda: module)

    assert gpu.gpu_uuids() == ("MIG-1", "MIG-2", "GPU-bbbb")


@pytest.mark.parametrize(
    ("prefix", "expected_board"), [pytest.param("GPU-", "GPU-1234", id="gpu"), pytest.param("MIG-", "parent", id="mig")]
)
def test_gpu_is_found_by_uuid(prefix, expected_board, monkeypatch):
    """The first visible GPU is not NVML's first: it is looked up by UUID, and a MIG instance leads to its board."""

    def by_uuid(uuid):
        if not uuid.startswith(prefix):
            raise NVMLError
        return uuid

    module = fake_nvml(nvmlDeviceGetHandleByUUID=by_uuid, nvmlDeviceGetDeviceHandleFromMigDeviceHandle="parent")
    monkeypatch.setattr(gpu, "nvml", lambda: module)
    monkeypatch.setattr(gpu, "visible_uuid", lambda: "1234")
    gpu.device.cache_clear()
    try:
        assert gpu.Device(module, f"{prefix}1234", expected_board) == gpu.device()
    finally:
        gpu.device.cache_clear()


def test_snapshot_reads_the_board(board):
    """A snapshot holds clocks, temperature and power in the units of its fields' names."""
    board(
        nvmlDeviceGetClockInfo=lambda _, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetTemperature=50,
        nvmlDeviceGetPowerUsage=320_500,
        nvmlDeviceGetCurrentClocksEventReasons=0,
    )

    assert replace(QUIET, foreign_processes="not checked") == gpu.snapshot()


def test_snapshot_without_support_is_empty(board):
    """What a board or driver does not support is None, and never an error."""
    board()

    assert gpu.GpuState(None, None, None, None, "not checked") == gpu.snapshot()


def test_no_snapshot_without_a_gpu(monkeypatch):
    """Without a GPU there is no state, and nothing that it could spoil."""
    monkeypatch.setattr(gpu, "device", lambda: None)

    assert None is gpu.snapshot()
    assert gpu.spoiled(None, None) == []


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"]
)
def test_throttle_reasons_are_words(board, function):
    """Reasons are worded under NVML's new and old name; an idle GPU and chosen clocks (bits 1, 2) are none."""
    board(**{function: 0x1 | 0x2 | 0x4 | THROTTLED_BY_HEAT})

    assert gpu.snapshot().throttle_reasons == ("sw_power_cap", "hw_slowdown", "hw_thermal_slowdown")


def test_own_processes_are_not_foreign(processes, child, grandchild, monkeypatch):
    """This process and its descendants are ours, and init's other children are not."""
    monkeypatch.setattr(gpu, "_sees_all_processes", lambda: True)
    monkeypatch.delenv(gpu.ROOT_PID, raising=False)
    processes(os.getpid(), child, grandchild)

    assert gpu.snapshot().foreign_processes == ()


def test_siblings_below_the_root_are_not_foreign(processes, child, grandchild, monkeypatch):
    """A process below the session's root is ours even if we did not start it, such as another xdist worker."""
    monkeypatch.setattr(gpu, "_sees_all_processes", lambda: True)
    me = os.getpid()
    monkeypatch.setenv(gpu.ROOT_PID, str(me))
    monkeypatch.setattr(gpu.os, "getpid", lambda: child)
    processes(child, grandchild)

    assert gpu.snapshot().foreign_processes == ()


def test_other_process_is_foreign(processes, child, monkeypatch):
    """A living process outside the session is foreign, under init or anybody else."""
    monkeypatch.setenv(gpu.ROOT_PID, str(child))
    monkeypatch.setattr(gpu.os, "getpid", lambda: child)
    processes(child, 1)

    assert gpu.snapshot().foreign_processes == (1,)


def test_ended_process_is_not_foreign(processes, monkeypatch):
    """NVML may still list a process that has just ended, such as an isolated test's: it is nobody's any more."""
    monkeypatch.setattr(gpu, "_sees_all_processes", lambda: True)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    processes(os.getpid(), ended.pid)

    assert gpu.snapshot().foreign_processes == ()


def test_not_checked_if_we_are_not_listed(processes):
    """If NVML does not list us, its process ids are another namespace's, and nobody can be accused."""
    processes(1)

    assert gpu.snapshot().foreign_processes == "not checked"


def test_not_checked_inside_a_container(processes, monkeypatch):
    """In a container, finding only ourselves proves nothing: processes outside it are hidden."""
    monkeypatch.setattr(gpu, "_sees_all_processes", lambda: False)
    processes(os.getpid())

    assert gpu.snapshot().foreign_processes == "not checked"


def test_root_is_marked_once():
    """The outermost process of a session is its root; its children keep it."""
    environ = {}
    gpu.mark_root(environ)
    assert {"FUSEPROOF_ROOT_PID": str(os.getpid())} == environ

    environ["FUSEPROOF_ROOT_PID"] = "7"
    gpu.mark_root(environ)
    assert environ == {"FUSEPROOF_ROOT_PID": "7"}


@pytest.mark.parametrize(
    "reason", ["hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"]
)
def test_throttling_spoils(reason):
    """Throttling seen at either end makes what lies between INVALID, and the message says how hot the GPU was."""
    hot = replace(QUIET, throttle_reasons=("sw_power_cap", reason), temperature_c=91)
    expected = [f"the GPU was throttled ({reason}) at 91 °C"]

    assert expected == gpu.spoiled(QUIET, hot)
    assert expected == gpu.spoiled(hot, QUIET)


def test_foreign_process_spoils():
    """Another process on the GPU makes a measurement INVALID, and the message names it."""
    assert gpu.spoiled(replace(QUIET, foreign_processes=(72,)), replace(QUIET, foreign_processes=(71, 72))) == [
        "another process used the GPU (pid 71, 72)"
    ]


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(QUIET, id="quiet"),
        pytest.param(replace(QUIET, throttle_reasons=("sw_power_cap",)), id="power-cap"),
        pytest.param(replace(QUIET, throttle_reasons=None, temperature_c=None), id="not-reported"),
        pytest.param(replace(QUIET, foreign_processes="not checked"), id="not-checked"),
    ],
)
def test_does_not_spoil(state):
    """A power cap is a big matrix product's normal state; what is unknown is recorded, not held against a number."""
    assert gpu.spoiled(state, QUIET) == []
    assert gpu.spoiled(QUIET, state) == []


@pytest.mark.parametrize(
    ("clocks_mhz", "moved"),
    [
        ([1980.0] * 60, False),
        ([1980.0] * 55 + [1200.0] * 5, False),  # a few rounds; the median does not see them
        ([1980.0] * 40 + [1700.0] * 20, True),
        ([1980.0 - 1.6 * each for each in range(60)], False),  # 3.9 % between the deciles
        ([1980.0 - 2.4 * each for each in range(60)], True),
        ([1980.0, 1000.0], False),
        ([], False),
    ],
    ids=["steady", "few-rounds", "drop", "small-drift", "drift", "two-rounds", "no-spin"],
)
def test_rounds_at_different_clocks_are_invalid(clocks_mhz, moved):
    """More than 5 % between the middle 80 % of the rounds is said with both clocks."""
    reasons = gpu.clock_moved(clocks_mhz)

    assert moved == bool(reasons)
    assert all("MHz during the rounds" in reason for reason in reasons)
