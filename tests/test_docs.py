"""The documentation: every snippet runs, every generated page is fresh."""

import doctest
import importlib
import pkgutil
import re
import runpy
from pathlib import Path

import pytest

import everyo
from everyo.core.namespace import TENSORS
from everyo.core.op import OPS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def snippets(page: Path) -> list[tuple[int, str]]:
    """The Python blocks of a page with the line each begins at."""
    text = page.read_text(encoding="utf-8")
    return [(text.count("\n", 0, m.start(1)), m[1]) for m in BLOCK.finditer(text)]


@pytest.fixture
def ops_as_before():
    """Takes back the ops that a page defines."""
    names = set(OPS)
    yield
    for name in set(OPS) - names:
        del OPS[name]
        delattr(TENSORS, name)


NEEDS = {"plot_": "matplotlib", "world()": "mpi4py"}  # words of a page -> optional package


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p)], ids=lambda p: p.name)
def test_every_snippet_of_a_page_runs_in_order(page, ops_as_before, monkeypatch, tmp_path, capsys):
    text = page.read_text(encoding="utf-8")
    for package in {package for words, package in NEEDS.items() if words in text}:
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as for a program in that folder
    scope = {"__name__": "page"}
    for line, code in snippets(page):
        padded = "\n" * line + code  # errors name the line of the page
        exec(compile(padded, str(page), "exec"), scope)


def test_no_python_on_a_page_is_left_out():
    """Blocks are run, or are what a program printed: commands, text, the stages of the compiler."""
    for page in PAGES:
        kinds = set(re.findall(r"^```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        shown = {"py", "asm"} if page.name == "how-it-works.md" else set()
        assert kinds <= {"", "python", "sh", "text", "json"} | shown, page.name


def test_every_example_in_a_docstring_runs():
    names = [m.name for m in pkgutil.walk_packages(everyo.__path__, "everyo.")]
    tried = 0
    for name in names:
        if name.startswith(("everyo.core", "everyo.ops")):
            result = doctest.testmod(importlib.import_module(name))
            assert result.failed == 0, name
            tried += result.attempted
    assert tried > 0


def test_the_page_of_ops_is_fresh():
    page = runpy.run_path(str(ROOT / "docs" / "generate_ops.py"))["page"]
    written = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")
    assert written == page(), "run: python docs/generate_ops.py"


@pytest.fixture(scope="module")
def how_it_works():
    return runpy.run_path(str(ROOT / "docs" / "generate_how_it_works.py"), run_name="generator")


def test_the_page_of_the_stages_is_fresh(how_it_works):
    written = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    made = how_it_works["page"](written, lambda name: name != "assembly")  # depends on LLVM
    assert written == made, "run: python docs/generate_how_it_works.py"


def test_the_figure_of_the_stages_is_fresh(how_it_works):
    written = how_it_works["FIGURE"].read_text(encoding="utf-8")
    assert written == how_it_works["figure"](), "run: python docs/generate_how_it_works.py"


def test_the_update_is_vector_code_that_computes_what_was_written(how_it_works):
    if not how_it_works["X86"]:
        pytest.skip("the assembly on the page is for x86")
    loop = how_it_works["assembly"]()
    assert "vmulps" in loop and "vsubps" in loop
    assert not re.search("vfn?m(add|sub)", loop)


def test_every_page_links_to_what_exists():
    for page in PAGES[1:]:  # the readme's links are the package's tests
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
