"""An environment is found, asked what it has, and refused in one sentence: real interpreters, some of them spoiled."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import packaging
import pytest
from packaging.requirements import Requirement

import fuseproof
from fuseproof import machine
from fuseproof.preflight import Finding
from fuseproof.upgrade import environment as module
from fuseproof.upgrade import probe
from fuseproof.upgrade.environment import Environment, UpgradeError, examine, require_same_machine, resolve

PACKAGE = Path(fuseproof.__file__).parent
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Return this interpreter, examined."""
    return examine(resolve("new", sys.executable), tmp_path_factory.mktemp("empty"))


def refusal(environment, folder):
    """Return the sentence by which an environment is refused; one line, with its name in front."""
    with pytest.raises(UpgradeError) as refused:
        examine(environment, folder)
    sentence = str(refused.value)

    assert sentence.startswith(f"{environment.name}: ")
    assert "\n" not in sentence
    assert "Traceback" not in sentence
    return sentence


# --- which one is meant ---


@pytest.fixture(scope="module")
def venv(tmp_path_factory):
    """Return a virtual environment with nothing in it."""
    folder = tmp_path_factory.mktemp("venvs") / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def test_a_virtual_environment_by_its_folder_and_by_its_interpreter(venv):
    """Both mean the same, and its link is not followed: that would be the Python that it was made with."""
    python = venv / "bin" / "python"

    assert resolve("old", str(venv)).python == str(python)
    assert resolve("old", str(python)).python == str(python)
    assert resolve("old", "bare", folder=venv.parent).python == str(python)
    assert resolve("old", "bare/bin/python", folder=venv.parent).python == str(python)


def test_a_bare_name_is_looked_for_on_the_path(venv, monkeypatch, tmp_path):
    """As a shell would, also where a folder that is no environment has the same name."""
    monkeypatch.setenv("PATH", str(venv / "bin"))
    (tmp_path / "python3").mkdir()

    assert resolve("old", "python3", folder=tmp_path).python == str(venv / "bin" / "python3")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("", "no environment is named"),
        ("/nowhere/bin/python", "/nowhere/bin/python does not exist"),
        ("~nobody-of-that-name/venv", "~nobody-of-that-name/venv does not exist"),
        ("nopython", "nor a command nopython on PATH exists"),
        ("folder", "has no bin/python, so it is no virtual environment"),
        ("./file", "cannot be started as a program"),
    ],
    ids=["empty", "absent_path", "nobody", "absent_name", "plain_folder", "plain_file"],
)
def test_what_is_no_interpreter_is_refused(given, words, tmp_path):
    """One sentence says what is wrong, and what to give instead."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("not a program")
    with pytest.raises(
        UpgradeError, match=r"^new: .*; give an interpreter or the folder of a virtual environment\.$"
    ) as no:
        resolve("new", given, folder=tmp_path)

    assert words in str(no.value)


# --- what it has ---


def test_this_interpreter_has_what_it_has(here):
    """Inventory, machine, packages and findings are those that this process sees."""
    assert here.inventory == machine.inventory()
    assert here.machine_slug == machine.identify().slug
    assert here.versions["pytest"] == pytest.__version__
    assert here.versions["python"] == machine.inventory()["python"]
    assert "gpu" in {finding.what for finding in here.findings}


def test_variables_that_change_results_are_seen(tmp_path):
    """What is given is set there, and what changes times is listed whether given or inherited."""
    found = examine(resolve("new", sys.executable, {"OMP_NUM_THREADS": "3"}), tmp_path)

    assert found.variables["OMP_NUM_THREADS"] == "3"


def test_a_bare_environment_lacks_everything(venv, tmp_path):
    """All that is missing is named at once; torch apart, then the clone, since no registry has fuseproof."""
    sentence = refusal(resolve("old", str(venv), {"PYTHONPATH": ""}), tmp_path)

    assert "lacks pytest, pytest-benchmark, fuseproof, torch, pytest-xdist," in sentence
    assert sentence.endswith(
        ": install torch there, see https://pytorch.org/get-started/locally/; then install this repository there: "
        f"`{venv}/bin/python -m pip install -e '{ROOT}[tests]'`."
    )


@pytest.fixture
def lacking(monkeypatch):
    """Return a maker of the refusal of an environment that lacks these modules."""

    def make(folder, *missing):
        def run(command, *_, **__):
            Path(command[3]).write_text(json.dumps({"missing": missing}))
            return 1, ""

        monkeypatch.setattr(module, "run_process", run)
        return refusal(Environment("old", "/old/python"), folder)

    return make


def test_an_environment_that_lacks_torch_alone(lacking, tmp_path):
    """Which build of torch is wanted, the repository does not know."""
    sentence = lacking(tmp_path, "torch")

    assert sentence.endswith("lacks torch: install torch there, see https://pytorch.org/get-started/locally/.")


def test_a_fuseproof_whose_clone_is_not_known(lacking, monkeypatch, tmp_path):
    """Installed from a wheel, it has no folder to name: the sentence says where to run the command."""
    monkeypatch.setattr(fuseproof, "__file__", str(tmp_path / "site-packages" / "fuseproof" / "__init__.py"))
    sentence = lacking(tmp_path, "filelock")

    assert sentence.endswith(
        "lacks filelock: install this repository there, in the folder of its clone: "
        "`/old/python -m pip install -e '.[tests]'`."
    )


def test_a_program_that_is_no_python(tmp_path):
    """It is told by what it does not answer."""
    assert "does not answer as Python does" in refusal(resolve("old", "/bin/echo"), tmp_path)


def test_an_interpreter_that_has_gone_since(tmp_path):
    """Between naming it and asking it, it may be removed."""
    assert "cannot start /gone/python" in refusal(Environment("old", "/gone/python"), tmp_path)


@pytest.fixture
def first(tmp_path):
    """Return a folder that comes first on the import path, and the environment that has it there."""
    folder = tmp_path / "first"
    folder.mkdir()
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return folder, resolve("new", sys.executable, {"PYTHONPATH": path})


def test_another_version_of_fuseproof(first, tmp_path):
    """Numbers of two versions are not compared."""
    folder, environment = first
    shutil.copytree(PACKAGE, folder / "fuseproof")
    init = folder / "fuseproof" / "__init__.py"
    init.write_text(init.read_text().replace(fuseproof.__version__, "0.0.7"))

    assert f"has fuseproof 0.0.7 and this is {fuseproof.__version__}: " in refusal(environment, tmp_path)


def test_other_sources_of_the_same_version(first, tmp_path):
    """Two checkouts call themselves alike, and measure differently."""
    folder, environment = first
    shutil.copytree(PACKAGE, folder / "fuseproof")
    with (folder / "fuseproof" / "clock.py").open("a") as stream:
        stream.write("\n# changed\n")

    assert f"with other sources ({folder / 'fuseproof'}) than this one ({PACKAGE})" in refusal(environment, tmp_path)


def test_the_same_sources_elsewhere_are_the_same(first, tmp_path):
    """Where a copy lies, and what Python has compiled of it, is of no importance."""
    folder, environment = first
    shutil.copytree(PACKAGE, folder / "fuseproof")
    shutil.rmtree(folder / "fuseproof" / "__pycache__", ignore_errors=True)

    assert examine(environment, tmp_path).name == "new"


def test_fuseproof_that_is_not_installed(venv, tmp_path):
    """Python finds it on its path; pytest finds a plugin by what the installation says of it."""
    for name in ("pytest", "xdist", "pytest_benchmark", "filelock", "numpy", "scipy", "pynvml", "torch"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "packaging").symlink_to(Path(packaging.__file__).parent)
    (tmp_path / "fuseproof").symlink_to(PACKAGE)
    environment = resolve("old", str(venv), {"PYTHONPATH": str(tmp_path)})

    assert f"can import fuseproof ({tmp_path / 'fuseproof'}) and has not installed it" in refusal(environment, tmp_path)


@pytest.mark.parametrize(
    ("torch", "words"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "fails at importing torch: it was killed by SIGSEGV",
        ),
        ("raise OSError('libcudart.so.13: cannot open')", "ended with status 1: OSError: libcudart.so.13: cannot open"),
        ("import sys; print('hello'); sys.exit(0)", "fails at importing torch: it ended with status 0"),
    ],
    ids=["crash", "error", "exit"],
)
def test_a_torch_that_cannot_be_imported(torch, words, first, tmp_path):
    """However it ends the process, it is said at what."""
    folder, environment = first
    (folder / "torch.py").write_text(torch)

    assert words in refusal(environment, tmp_path)


def test_a_torch_that_hangs(first, tmp_path, monkeypatch):
    """It is ended, and said so."""
    folder, environment = first
    (folder / "torch.py").write_text("import time; time.sleep(600)")
    monkeypatch.setattr(module, "_LIMIT_S", 3.0)

    assert "fails at importing torch: it did not end" in refusal(environment, tmp_path)


def test_too_old_a_pytest_benchmark(first, tmp_path, monkeypatch):
    """What fuseproof requires is required of every environment."""
    folder, environment = first
    info = folder / "pytest_benchmark-4.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pytest-benchmark\nVersion: 4.0.0\n")
    monkeypatch.setattr(module, "_requirements", lambda: ["pytest-benchmark>=5.3.1", "pytest<1; extra == 'tests'"])

    assert "pytest-benchmark is 4.0.0 and fuseproof needs >=5.3.1: upgrade it there." in refusal(environment, tmp_path)


def test_all_that_fuseproof_depends_on_is_looked_for():
    """The probe's list is pyproject.toml's."""
    depends = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]

    assert {Requirement(each).name for each in depends} | {"fuseproof"} == set(probe.NEEDED.values())


def test_an_answer_that_cannot_be_read(tmp_path, monkeypatch):
    """A probe that says too little is no answer."""
    told = {"missing": [], "doing": None, "findings": [["gpu.ok"]], "inventory": {}}
    monkeypatch.setattr(module, "_ask", lambda *_: told)

    assert "gave no answer that can be read" in refusal(Environment("old", sys.executable), tmp_path)


# --- both ---


def test_two_environments_on_one_machine(here):
    """That is all that is asked."""
    require_same_machine(here, dataclasses.replace(here, environment=Environment("old", "python")))


def test_one_environment_sees_no_gpu(here):
    """The sentence says what each sees, and in the doctor's words why."""
    hidden = Finding("gpu.hidden", "missing", "CUDA_VISIBLE_DEVICES is empty: unset it.")
    old = dataclasses.replace(here, environment=Environment("old", "python"), machine_slug="nvidia-h200", findings=())
    new = dataclasses.replace(here, machine_slug="cpu-epyc-2c", findings=(hidden,))
    with pytest.raises(UpgradeError) as refused:
        require_same_machine(old, new)

    assert str(refused.value).startswith(
        "old sees nvidia-h200; new sees cpu-epyc-2c (CUDA_VISIBLE_DEVICES is empty: unset it.): only environments"
    )
