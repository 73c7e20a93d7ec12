"""Which module may import what, shown by the sources and by importing with the forbidden blocked."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fuseproof

ROOT = Path(fuseproof.__file__).parent
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}

# What runs on a laptop from files alone, and what it does without.
WITHOUT_NUMPY = {"torch", "pytest", "pytest_benchmark", "numpy", "scipy"}
FROM_FILES = {
    **{
        name: {"torch", "pytest", "pytest_benchmark"}
        for name in MODULES
        if name.partition(".")[0] in {"gate", "verdicts"}
    },
    **dict.fromkeys(("digest", "history", "index", "record_schema", "report"), WITHOUT_NUMPY),
    **dict.fromkeys(("run_file", "run_schema", "statuses", "storage"), WITHOUT_NUMPY),
    # `fuseproof doctor` runs where nothing is installed properly.
    "gate.commands": WITHOUT_NUMPY | {"filelock"},
    # Read at the start of every pytest session, in repositories too that have nothing to do with us.
    **dict.fromkeys(("config", "gate.settings", "gate.waivers", "tables", "verdicts.rules"), WITHOUT_NUMPY),
}
# pytest's side: each of these is imported only by those that stand beside its name.
PYTEST_SIDE = {"fixtures": {"hooks", "plugin"}, "hooks": {"plugin"}, "plugin": set()}
LONGEST = 330


def imports(path):
    """Return the absolute names of all that a source imports, at any depth of its code."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
    return names


def imported_modules(name):
    """Return the modules of this package that one of them imports."""
    known = {f"fuseproof.{other}": other for other in MODULES}
    return {known[each] for each in imports(MODULES[name]) if each in known} - {name}


@pytest.mark.parametrize("name", [name for name in FROM_FILES if name in MODULES])
def test_module_works_from_files_alone(name):
    """The gate runs where neither torch nor a GPU is: importing it with those blocked succeeds."""
    code = f"""if True:
        import sys

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in {FROM_FILES[name]!r}:
                    raise ImportError(f"{{name}} is blocked")

        sys.meta_path.insert(0, Blocker())
        import fuseproof.{name}
    """
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT.parent), *sys.path])}
    child = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)

    assert (child.returncode, child.stderr) == (0, "")


@pytest.mark.parametrize("name", [name for name in FROM_FILES if name in MODULES])
def test_module_of_files_imports_its_like_only(name):
    """Nothing of the measuring half comes in by the back door."""
    assert imported_modules(name) <= FROM_FILES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_only_candidates_import_apex_and_liger(name):
    """One place knows other people's kernels; the preflight's probe loads them in a child, to say what is wrong."""
    foreign = {each.partition(".")[0] for each in imports(MODULES[name])} & {"apex", "liger_kernel", "amp_C"}
    allowed = name.partition(".")[0] in {"candidates", "apex_probe"}

    assert allowed or not foreign


def test_candidates_do_import_apex():
    """The test above would pass if it saw no imports at all."""
    seen = set().union(*(imports(path) for name, path in MODULES.items() if name.startswith("candidates")))

    assert "apex.optimizers" in seen


@pytest.mark.parametrize("name", MODULES)
def test_nothing_below_imports_pytest_s_side(name):
    """Imports go one way: the plugin knows what it registers, and nothing that it calls knows the plugin."""
    forbidden = {each for each, importers in PYTEST_SIDE.items() if name not in importers}

    assert imported_modules(name).isdisjoint(forbidden)


@pytest.mark.parametrize("name", PYTEST_SIDE)
def test_pytest_s_side_is_where_it_is_said_to_be(name):
    """The test above would pass for modules that have gone."""
    assert name in MODULES


def test_imports_have_no_cycle():
    """Each module can be read after those it imports."""
    graph = {name: imported_modules(name) for name in MODULES if name != "__init__"}
    while graph:
        leaves = {name for name, needed in graph.items() if not needed & graph.keys()}
        assert leaves, f"these import each other: {sorted(graph)}"
        graph = {name: needed for name, needed in graph.items() if name not in leaves}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_one_idea(name):
    """A module that has grown past 330 lines is split along a noun."""
    assert len(MODULES[name].read_text(encoding="utf-8").splitlines()) <= LONGEST


def _asks_for(function):
    return {argument.arg for argument in [*function.args.args, *function.args.kwonlyargs]}


def test_a_nights_benchmarks_are_in_files_that_say_so():
    """``-m fuseproof_gate`` looks at ``*_benchmark.py`` alone: a benchmark elsewhere would silently not be gated."""
    tests = Path(__file__).parents[1]
    found = {
        path.name: [
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef) and {"measure", "benchmark"} & _asks_for(node)
        ]
        for folder in ("e2e", "kernels")
        for path in sorted((tests / folder).glob("*.py"))
    }
    benchmarks = {name for name, functions in found.items() if functions}

    assert benchmarks
    assert benchmarks == {name for name in found if name.endswith("_benchmark.py")}
