"""From kernel text to PTX and machine code, without a driver: the one place that knows numba-cuda.

`compile_ptx` makes PTX of a kernel's text, `assemble` machine code of PTX for one architecture.
Neither needs a GPU. Everything here is imported when first used, and `missing()` says why it cannot
be; numba-cuda raises all kinds of errors when a library it wants is not there.
"""

import ast
import functools
import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from everyo.compile import cache as disk

LOCK = threading.Lock()
DTYPES = {
    "f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "u32": "uint32",
    "u64": "uint64", "b8": "bool",
}  # fmt: skip
THREADS = 256  # the bound that every kernel is compiled for
OLDEST = (8, 0)  # the architecture that IR is made for; PTX is made for the device's own


@dataclass(frozen=True)
class Code:
    """A compiled kernel: its symbol and its PTX."""

    name: str
    ptx: str


@functools.cache
def missing() -> str | None:
    """Why kernels cannot be compiled for a GPU here, or None."""
    if find_spec("numba_cuda") is None:
        return "numba-cuda is not installed; pip install 'everyo[cuda]'"
    try:
        compile_ptx("def kernel(p0):\n    st(p0, u64(0), f32(1))\n", ("f32*",), (9, 0))
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return (
            f"the CUDA compiler is not usable ({type(error).__name__}: {first}); "
            "pip install 'everyo[cuda]'"
        )
    return None


def compile_ptx(text: str, params: tuple[str, ...], cc: tuple[int, int]) -> Code:
    """The PTX of a kernel. `params` are kinds: "f32*" a pointer, "u64" a number."""
    key = (text, params, cc)
    if key not in _CODE:
        with LOCK:
            if key not in _CODE:
                _CODE[key] = _kept(text, params, cc)
    return _CODE[key]


_CODE: dict[Any, Code] = {}


def _kept(text: str, params: tuple[str, ...], cc: tuple[int, int]) -> Code:
    """The PTX from disk, or compiled now and kept there."""
    name = disk.key(f"{version()} {_sources()} sm_{cc[0]}{cc[1]} {params}\n{text}")
    stored = disk.load(name)
    if stored is not None:
        return Code(stored.symbol, stored.code.decode())
    made = _compile(text, params, cc)
    disk.store(name, text, disk.Stored(made.name, made.ptx.encode()))
    return made


@functools.cache
def _sources() -> str:
    """A hash of the modules that kernels are made with, besides those that the cache knows."""
    digest = hashlib.sha256()
    for name in ("prelude.py", "trig.py", "toolchain.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()


def _compile(text: str, params: tuple[str, ...], cc: tuple[int, int]) -> Code:
    """No contraction of a * b + c: what was written is what is computed; `mad` says so itself."""
    library = _library(text, params)
    (ptx,) = library.get_asm_strs(cc=cc)
    entry = re.search(r"\.entry\s+([\w$]+)", ptx)
    assert entry is not None
    # One name for every kernel: the mangled one is long and says nothing that the text does not.
    return Code("kernel", re.sub(re.escape(entry[1]) + r"\b", "kernel", ptx).replace(
        f"{entry[1]}_param", "kernel_param"))  # fmt: skip


@functools.lru_cache(maxsize=1)  # what comes before PTX is the same for all architectures
def _library(text: str, params: tuple[str, ...]) -> Any:
    """LLVM's IR of a kernel."""
    from numba.cuda import types
    from numba.cuda.compiler import compile_cuda, kernel_fixup
    from numba.cuda.cudadrv import nvvm

    from everyo.compile.cuda import prelude

    names = prelude.scope(text)
    exec(compile(_constants(text, names), "<kernel>", "exec"), names)
    kinds = [prelude.KINDS[p.rstrip("*")] for p in params]
    args = tuple(
        types.CPointer(kind) if p.endswith("*") else kind
        for p, kind in zip(params, kinds, strict=True)
    )
    options = {"fastmath": False, "opt": 3, "fma": False}
    made = compile_cuda(names["kernel"], types.void, args, nvvm_options=options, cc=OLDEST)
    library = made.library
    function = library.get_function(made.fndesc.llvm_func_name)
    library._entry_name = made.fndesc.llvm_func_name
    kernel_fixup(function, False)
    nvvm.set_launch_bounds(function, THREADS)
    return library


def _constants(text: str, names: dict[str, Any]) -> ast.Module:
    """The text with every typed literal as a global constant: Numba resolves each cast as a call,
    and literals are most of them. The constants are added to the names."""
    made: dict[tuple[str, str], str] = {}

    class Fold(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            name = getattr(node.func, "id", "")
            kind = DTYPES.get("f32" if name == "f16" else name)
            if kind is None or not _is_literal(node.args[0]):
                return node
            key = (kind, ast.unparse(node.args[0]))
            if key not in made:
                made[key] = f"literal{len(made)}"
                value = eval(key[1], {"np": np})
                value = value % 2**64 if kind[0] == "u" else value
                names[made[key]] = np.array(value).astype(kind)[()]
            constant = ast.copy_location(ast.Name(made[key], ast.Load()), node)
            if name != "f16":
                return constant
            node.args = [constant]  # NVVM has no constants of 16 bits: converted from float32
            return node

    return ast.fix_missing_locations(Fold().visit(ast.parse(text)))


def _is_literal(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_literal(node.operand)
    return isinstance(node, ast.Constant) or ast.unparse(node) in ("np.inf", "np.nan")


def assemble(code: Code, cc: tuple[int, int]) -> bytes:
    """Machine code (a cubin) of a kernel."""
    return link([code], cc)


def link(codes: Sequence[Code], cc: tuple[int, int]) -> bytes:
    """Machine code of several kernels of different names, in one cubin."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    sources = [ObjectCode.from_ptx(code.ptx.encode(), name=code.name) for code in codes]
    options = LinkerOptions(arch=f"sm_{cc[0]}{cc[1]}")
    return bytes(Linker(*sources, options=options).link("cubin").code)


@functools.cache
def version() -> str:
    """What the machine code depends on besides the text."""
    names = ("numba", "numba-cuda", "nvidia-nvvm", "nvidia-nvjitlink")
    return " ".join(f"{name} {metadata.version(name)}" for name in names)
