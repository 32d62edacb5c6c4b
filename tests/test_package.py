"""The package as a whole: imports go one way, versions agree, the README tells the truth."""

import ast
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import everyo as eo
from everyo import _version

ROOT = Path(__file__).parents[1]
PACKAGE = Path(eo.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# exceptions <- core <- ops <- nn, optim <- training and the rest; compile sees core and ops.
MAY_IMPORT = {
    "_version": set(),
    "exceptions": set(),
    "logging": set(),
    "cuda": {"exceptions"},
    "core": {"exceptions", "cuda"},
    "ops": {"exceptions", "core"},
    "nn": {"exceptions", "core", "ops"},
    "optim": {"exceptions", "core", "ops"},
    "compile": {"_version", "exceptions", "core", "ops", "cuda"},
    "data": {"exceptions"},
    "datasets": {"exceptions", "data"},
    "config": {"exceptions"},
}


def unit_of(path):
    """The part of the package that a file belongs to: `core`, `ops`, `exceptions` …"""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_units(source, module):
    """The parts of the package that a module imports, anywhere in its code."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")[: -node.level]
                base = ".".join([*parts, base]).rstrip(".")
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "everyo":
                yield rest[0] if rest else "everyo"


def wrong_imports(source, module):
    unit = module.split(".")[1]
    allowed = MAY_IMPORT[unit] | {unit}
    return sorted(set(imported_units(source, module)) - allowed)


def constrained_files():
    files = sorted(PACKAGE.rglob("*.py"))
    return [f for f in files if unit_of(f) in MAY_IMPORT]


@pytest.mark.parametrize("path", constrained_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    assert wrong_imports(path.read_text(encoding="utf-8"), module) == []


@pytest.mark.parametrize(
    ("source", "module", "found"),
    [
        ("from everyo.compile import ir", "everyo.core.tensor", ["compile"]),
        ("def f():\n    import everyo.nn.layers", "everyo.ops.reduce", ["nn"]),
        ("from everyo import optim", "everyo.nn.module", ["optim"]),
        ("from ..compile import ir", "everyo.nn.module", ["compile"]),
        ("from .. import compile", "everyo.nn.module", ["compile"]),
        ("import everyo as eo", "everyo.core.op", ["everyo"]),
        ("from everyo.core import op\nfrom . import layers", "everyo.nn.module", []),
        ("import numpy, logging\nfrom everyo.exceptions import EveryOError", "everyo.core.op", []),
    ],
)
def test_the_import_checker_sees_every_form(source, module, found):
    assert wrong_imports(source, module) == found


def in_fresh_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent
    )


def test_importing_the_package_imports_no_compiler_and_no_optional_package():
    run = in_fresh_python("import everyo, sys; print(*sys.modules)")
    assert run.returncode == 0, run.stderr
    top_level = {name.split(".")[0] for name in run.stdout.split()}
    assert {"everyo", "numpy"} <= top_level
    heavy = {"numba", "llvmlite", "matplotlib", "scipy", "onnx", "onnxruntime", "yaml", "mpi4py"}
    assert top_level & (heavy | {"cuda", "numba_cuda"}) == set()


def test_code_for_the_cpu_imports_nothing_of_cuda():
    code = """
import sys, numpy as np, everyo as eo
model = eo.Linear(3, 2, seed=0)
optimizer = eo.Adam(model.parameters())
@eo.compile
def step(x):
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    return loss
for _ in range(3):
    step(np.ones((4, 3), np.float32))
print(*sys.modules)
"""
    run = in_fresh_python(code)
    assert run.returncode == 0, run.stderr
    loaded = set(run.stdout.split())
    assert "everyo.compile.rows" in loaded
    parts = {tuple(name.split(".")[:3]) for name in loaded}
    assert not {p for p in parts if p[0] in ("cuda", "numba_cuda") or p[2:] == ("cuda",)}


def test_eager_code_does_not_wait_for_the_rest_of_the_package():
    run = in_fresh_python("import everyo, sys; print(*sys.modules)")
    loaded = set(run.stdout.split())
    assert "everyo.nn.layers" in loaded
    assert loaded & {*eo._LAZY, "everyo.compile.trace", "everyo.compile.ir"} == set()


def test_each_name_that_is_loaded_late_is_loaded_by_itself():
    code = "import importlib, everyo; "
    code += "print([n for n in everyo._HOME if getattr(importlib.import_module(everyo._HOME[n]), n)"
    code += " is not getattr(everyo, n)])"
    run = in_fresh_python(code)
    assert run.stdout.strip() == "[]", run.stderr


def test_type_checkers_see_the_names_that_are_loaded_late():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {(n.module, alias.name) for n in block.body for alias in n.names}
    modules = {(m, name) for m, names in eo._LAZY.items() for name in names}
    modules |= {("everyo", m.removeprefix("everyo.")) for m in eo._LAZY if m.count(".") == 1}
    assert seen == modules


WITHOUT_POSIX = """
import os, sys, numpy
for name in ("getuid", "fork", "register_at_fork", "sched_getaffinity", "killpg", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
import everyo as eo
for name in eo.__all__:
    getattr(eo, name)
model = eo.Linear(3, 2, seed=0)
optimizer = eo.Adam(model.parameters())
eo.CrossEntropyLoss()(model(eo.ones(4, 3)), numpy.array([0, 1, 0, 1])).backward()
optimizer.step()
print(model.weight.shape)
"""


def test_eager_code_runs_where_there_is_no_posix():
    run = in_fresh_python(WITHOUT_POSIX)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "(3, 2)"


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'tensr'"):
        eo.tensr  # noqa: B018


def test_modules_behind_the_functions_compile_and_abs_are_reachable():
    # `everyo.compile` is the function once the package is imported; its modules stay importable
    run = in_fresh_python("from everyo.compile import ir; print(ir.Graph.__name__)")
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "Graph"


def test_public_names_exist_and_are_listed_once():
    assert len(eo.__all__) == len(set(eo.__all__))
    assert [name for name in eo.__all__ if not hasattr(eo, name)] == []


def test_every_name_that_is_imported_for_users_is_public():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names = {alias.asname or alias.name for n in imports for alias in n.names}
    assert {n for n in names if not n.startswith("_")} | {"var", "__version__"} == set(eo.__all__)


def test_versions_agree():
    assert eo.__version__ == _version.__version__
    assert ".".join(str(part) for part in _version.VERSION_INFO) == eo.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    latest = next(line for line in changelog.splitlines() if line.startswith("## "))
    assert latest == f"## {eo.__version__}"
    assert "version" in PROJECT["dynamic"]


def test_the_installed_version_is_this_one():
    try:
        installed = metadata.version("everyo")
    except metadata.PackageNotFoundError:
        pytest.skip("the package runs from its source tree, it is not installed")
    assert installed == eo.__version__


def test_two_dependencies_and_no_more():
    names = {requirement.split(">")[0] for requirement in PROJECT["dependencies"]}
    assert names == {"numpy", "numba"}


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").exists()


# The README


def readme_test_command():
    after = README.split("<!-- test command -->\n```sh\n")
    assert len(after) == 2, "one marked test command"
    return after[1].split("\n```\n<!-- end -->")[0]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_ci_runs_exactly_the_test_command_of_the_readme():
    run = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--print"], capture_output=True, text=True, cwd="/"
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == readme_test_command()
    assert "pytest" in readme_test_command()


def test_the_test_command_installs_extras_that_exist():
    extras = readme_test_command().split("[")[1].split("]")[0].split(",")
    assert set(extras) <= set(PROJECT["optional-dependencies"])
    assert "test" in extras


def python_blocks():
    return [block.split("\n```")[0] for block in README.split("```python\n")[1:]]


def test_readme_examples_run_in_order_and_print_what_they_say(capsys):
    scope = {}
    for number, code in enumerate(python_blocks()):
        exec(compile(code, f"README.md, example {number + 1}", "exec"), scope)
        printed = capsys.readouterr().out.splitlines()
        promised = [
            line.split("  # ")[1]
            for line in code.splitlines()
            if line.startswith("print(") and "  # " in line
        ]
        assert len(printed) == len([s for s in code.splitlines() if s.startswith("print(")])
        assert printed[: len(promised)] == promised


def test_readme_links_lead_somewhere():
    targets = [part.split(")")[0] for part in README.split("](")[1:]]
    local = [target for target in targets if "://" not in target]
    assert local
    assert [target for target in local if not (ROOT / target).exists()] == []
