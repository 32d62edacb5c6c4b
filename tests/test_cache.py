"""The disk cache: damage, strangers and stale code are misses; writers may die; no Numba needed."""

import ast
import contextlib
import ctypes
import itertools
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import everyo as eo
from everyo.cli.main import main
from everyo.compile import cache, code, elf

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="object code is cached on Linux")

NAME = "0123456789abcdef0123456789abcdef01234567"
OTHER = NAME[::-1]
STORED = cache.Stored("kernel_of_a_test", bytes(random.Random(0).randbytes(700)))


def text(number):
    """A kernel that stores a number."""
    return f"def kernel(P, chunk, chunks):\n    st0(p_i64(P[0]), usz(0), i64({number}))\n"


def run(function):
    """The number that a kernel stores."""
    out = np.zeros(1, np.int64)
    table = np.array([out.ctypes.data], np.int64)
    function.native()(table.ctypes.data, 0, 1)
    return int(out[0])


def fresh():
    """The functions of a process that has just started."""
    return code.Code(code._native)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache folder of this test."""
    where = tmp_path / "kernels"
    monkeypatch.setenv("EVERYO_CACHE_DIR", str(where))
    return where


def listed(folder):
    """The names of the files in the folder but for the one that only counts."""
    return sorted({p.name for p in folder.iterdir()} - {cache._COUNTER})


def pages(folder):
    """The room that the kernels and texts in the folder take."""
    return sum(cache._pages(info.st_size) for _, info in cache._files(folder))


def python(script, *arguments, **environment):
    """Start a process that runs a script with this library."""
    root = str(Path(eo.__file__).parents[1])
    env = {**os.environ, "PYTHONPATH": root, **environment}
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def output(process):
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return text.split()


# Damage


def passes(data):
    """Whether the content of a file goes through the checks."""
    try:
        return cache.parse(NAME, data) is not None
    except UnicodeDecodeError:
        return True


def accepted_damage(data):
    """The kinds of damage to the content of a file that are not noticed."""
    found = []
    flips = [*range(96), *range(96, len(data), 7), len(data) - 1]
    for i, bit in itertools.product(flips, range(8)):
        changed = bytearray(data)
        changed[i] ^= 1 << bit
        if passes(bytes(changed)):
            found.append(("flipped", i, bit))
    for n in range(len(data)):
        if passes(data[:n]):
            found.append(("cut", n))
        if n % 16 == 0 and passes(data[:n] + bytes(len(data) - n)):
            found.append(("zeroed", n))
    for longer in (data + b"\0", data + data):
        if passes(longer):
            found.append(("longer", len(longer)))
    return found


def test_what_was_packed_is_read():
    assert cache.parse(NAME, cache.pack(NAME, STORED)) == STORED


def test_every_damage_is_a_miss():
    assert accepted_damage(cache.pack(NAME, STORED)) == []


def test_a_cache_without_checksums_is_caught(monkeypatch):
    monkeypatch.setattr(cache, "_digest", lambda name, body: bytes(32))
    assert accepted_damage(cache.pack(NAME, STORED))


def test_an_entry_under_another_name_is_a_miss():
    assert cache.parse(OTHER, cache.pack(NAME, STORED)) is None


DAMAGE = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "zeroed": lambda data: bytes(len(data)),
    "half zeroed": lambda data: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
    "something else": lambda data: b"\x80\x05K\x07.",
}


def test_a_damaged_file_is_compiled_anew_and_replaced(folder):
    function = fresh().function(text(41))
    (path,) = folder.glob("*.kernel")
    good = path.read_bytes()
    assert run(function) == run(fresh().function(text(41))) == 41
    for damage in DAMAGE.values():
        path.write_bytes(damage(good))
        assert run(fresh().function(text(41))) == 41
        assert cache.load(path.stem) is not None


# Whose files


def test_a_folder_that_others_can_write_is_not_used(folder):
    folder.mkdir()
    for mode in (0o777, 0o770, 0o702):
        folder.chmod(mode)
        assert cache.folder() is None
        assert "another user" in cache.report().reason
    folder.chmod(0o700)
    assert cache.folder() == folder


def test_a_file_that_others_can_write_is_a_miss(folder):
    cache.store(NAME, "", STORED)
    path = folder / f"{NAME}.kernel"
    assert cache.load(NAME) == STORED
    for mode in (0o666, 0o620, 0o602):
        path.chmod(mode)
        assert cache.load(NAME) is None
    path.chmod(0o644)
    assert cache.load(NAME) == STORED


def test_what_belongs_to_others_is_not_used(folder, monkeypatch):
    cache.store(NAME, "", STORED)
    info = os.stat(folder / f"{NAME}.kernel")
    assert cache._ours(info)
    monkeypatch.setattr(os, "getuid", lambda: info.st_uid + 1)
    assert not cache._ours(info)
    assert cache.folder() is None and cache.load(NAME) is None


def test_links_are_not_followed(folder, tmp_path, monkeypatch):
    cache.store(NAME, "", STORED)
    path = folder / f"{NAME}.kernel"
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.load(NAME) is None
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.setenv("EVERYO_CACHE_DIR", str(tmp_path / "link"))
    assert cache.folder() is None


def test_new_files_are_the_users_alone(folder):
    cache.store(NAME, "the text", STORED)
    assert (folder.stat().st_mode | 0o700) & 0o777 == 0o700
    assert {p.stat().st_mode & 0o077 for p in folder.iterdir()} == {0}
    assert (folder / f"{NAME}.py").read_text() == "the text"


# Where it is, and when it is off


@pytest.mark.parametrize("value", ["off", "OFF", "0", "", "none"])
def test_the_cache_can_be_switched_off(value, monkeypatch):
    monkeypatch.setenv("EVERYO_CACHE_DIR", value)
    assert cache.folder() is None
    assert "EVERYO_CACHE_DIR" in cache.report().reason
    assert cache.clear() == 0
    assert run(fresh().function(text(7))) == 7


def no_home():
    raise RuntimeError("Could not determine home directory.")


NOWHERE = {
    "below a file": lambda m, path: m.setenv("EVERYO_CACHE_DIR", str(path / "file" / "kernels")),
    "in a system folder": lambda m, path: m.setenv("EVERYO_CACHE_DIR", "/proc/nowhere"),
    "an odd name": lambda m, path: m.setenv("EVERYO_CACHE_DIR", "x" * 5000),
    "no home": lambda m, path: m.setattr(Path, "home", no_home),
    "a home that is nowhere": lambda m, path: m.setenv("HOME", "/proc/nowhere"),
}


@pytest.mark.parametrize("case", NOWHERE)
def test_without_a_usable_folder_there_is_no_cache_and_no_error(case, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERYO_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    NOWHERE[case](monkeypatch, tmp_path)
    assert cache.folder() is None and cache.report().folder is None
    assert run(fresh().function(text(8))) == 8
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_can_only_be_read_is_read(folder, monkeypatch):
    cache.store(NAME, "", STORED)
    path = folder / f"{NAME}.kernel"
    os.utime(path, (0, 0))

    def refused(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(os, "replace", refused)
    assert cache.load(NAME) == STORED
    cache.store(OTHER, "", STORED)
    assert cache.load(OTHER) is None
    assert listed(folder) == sorted([path.name, path.with_suffix(".py").name])


def test_the_users_cache_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.delenv("EVERYO_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.folder() == tmp_path / "x" / "everyo"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path / "h"))
    assert cache.folder() == tmp_path / "h" / ".cache" / "everyo"


@pytest.mark.parametrize("platform", ["win32", "darwin"])
def test_elsewhere_the_cache_is_off(platform, folder, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delattr(os, "getuid")
    assert cache.folder() is None and "Linux" in cache.report().reason
    assert run(fresh().function(text(9))) == 9


# Size


def name(i):
    return f"{i:040x}"


def test_the_least_recently_used_are_pruned(folder, monkeypatch):
    monkeypatch.setattr(cache, "CAP_BYTES", 40 * cache.PAGE)
    now = time.time() - 1000
    for i in range(70):
        cache.store(name(i), "text", cache.Stored("k", bytes(2000)))
        for path in folder.glob(f"{name(i)}.*"):
            os.utime(path, (now + i, now + i))
        assert pages(folder) <= 40
    kept = [i for i in range(70) if cache.load(name(i)) is not None]
    assert kept == list(range(kept[0], 70)) and 15 <= len(kept) <= 20


def test_all_files_are_looked_at_only_after_a_quarter_of_the_cap_was_written(folder, monkeypatch):
    """However many processes have stored how few kernels each."""
    looks = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or scandir(path))
    monkeypatch.setattr(cache, "CAP_BYTES", 400 * cache.PAGE)
    for i in range(600):
        cache.store(name(i), "text", cache.Stored("k", bytes(2000)))
    assert 8 <= len(looks) <= 1 + 1200 // 100
    assert pages(folder) <= 400
    before = len(looks)
    for _ in range(40):  # the same kernel again and again, as many processes may store it
        cache.store(name(0), "text", cache.Stored("k", bytes(2000)))
    assert len(looks) <= before + 1


@pytest.mark.parametrize("length", [None, 0, 3, 10_000], ids=["gone", "empty", "low", "high"])
def test_a_counter_that_is_wrong_is_put_right(length, folder, monkeypatch):
    monkeypatch.setattr(cache, "CAP_BYTES", 100 * cache.PAGE)
    for i in range(20):
        cache.store(name(i), "text", cache.Stored("k", bytes(2000)))
    counter = folder / cache._COUNTER
    assert counter.stat().st_size == 40
    if length is None:
        counter.unlink()
    else:
        os.truncate(counter, length)
    for i in range(20, 200):
        cache.store(name(i), "text", cache.Stored("k", bytes(2000)))
    assert pages(folder) <= counter.stat().st_size <= 100


def test_pruning_removes_what_dead_writers_left_and_nothing_foreign(folder, monkeypatch):
    cache.store(NAME, "", STORED)
    kept = [".writing-1-2", "notes.py", "model.kernel", "README"]
    for file in [*kept, ".writing-3-4"]:
        (folder / file).write_text("x")
    old = time.time() - 2 * cache.STALE_SECONDS
    for file in (".writing-3-4", "notes.py", "README"):
        os.utime(folder / file, (old, old))
    monkeypatch.setattr(cache, "CAP_BYTES", 0)
    cache._prune(folder)
    assert listed(folder) == sorted(kept)
    monkeypatch.undo()
    monkeypatch.setenv("EVERYO_CACHE_DIR", str(folder))
    cache.store(NAME, "", STORED)
    assert cache.clear() == 1
    assert sorted(os.listdir(folder)) == sorted(kept[1:])


# Several processes

WRITER = """
import sys
from everyo.compile import cache
print("ready", flush=True)
i = 0
while True:
    i += 1
    cache.store(f"{i % 5:040x}", "text" * 1000, cache.Stored(f"k{i}", bytes([i % 256]) * 300_000))
"""


def test_killed_writers_leave_a_usable_cache(folder):
    for i in range(6):
        writer = python(WRITER)
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.01 + 0.013 * i)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        found = list(folder.glob("*.kernel"))
        for path in found:
            stored = cache.load(path.stem)
            assert stored is not None and len(set(stored.code)) == 1
    assert found
    cache.store(NAME, "", STORED)
    assert cache.load(NAME) == STORED
    assert cache.report().kernels == len(found) + 1


PRUNER = """
import os, sys, time
from everyo.compile import cache
cache.CAP_BYTES = 200 * cache.PAGE
looks, scandir = [], os.scandir
os.scandir = lambda path: looks.append(path) or scandir(path)
first, count = int(sys.argv[1]), int(sys.argv[2])
print("ready", flush=True)
for i in range(first, first + count):
    cache.store(f"{i:040x}", "text", cache.Stored("k", bytes(2000)))
print(len(looks))
"""


def test_processes_that_prune_at_once_keep_to_the_cap(folder):
    writers = [python(PRUNER, str(1000 * i), "200") for i in range(4)]
    looks = [int(output(w)[-1]) for w in writers]
    stores = 4 * 200
    assert sum(looks) < stores / 4  # 50 pages, 25 stores, but several may look at once
    assert pages(folder) <= 200 + 4 * 2 * 25
    assert all(cache.load(p.stem) is not None for p in folder.glob("*.kernel"))


def test_killed_pruners_leave_a_cache_that_is_pruned(folder, monkeypatch):
    for i in range(6):
        writer = python(PRUNER, str(10**6 * i), "1000000")
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.1 + 0.013 * i)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        assert pages(folder) <= 210
    monkeypatch.setattr(cache, "CAP_BYTES", 200 * cache.PAGE)
    for i in range(200):
        cache.store(name(10**8 + i), "text", STORED)
    assert pages(folder) <= 200
    assert cache.load(name(10**8 + 199)) == STORED


SAME = """
import sys
import numpy as np, everyo as eo
f = eo.compile(lambda x: (eo.exp(x) / (1 + x * x)).sum())
print(float(f(eo.tensor(np.arange(5.0))).item()), not {"numba", "llvmlite"} & set(sys.modules))
"""


def test_processes_that_compile_the_same_at_once_leave_the_cache_intact(folder):
    x = np.arange(5.0)
    want = float((np.exp(x) / (1 + x * x)).sum())
    results = [output(p) for p in [python(SAME) for _ in range(8)]]
    assert all(abs(float(value) - want) < 1e-9 * want for value, _ in results)
    assert all(cache.load(p.stem) is not None for p in folder.glob("*.kernel"))
    assert not list(folder.glob(".writing*"))
    value, light = output(python(SAME))
    assert value == results[0][0]
    assert light == str(platform.machine() == "x86_64")  # everything was found and linked


# Stale


def key_of(monkeypatch, change):
    """The key of a text after a change, and before it."""
    before = cache.key("text")
    change(monkeypatch)
    cache.surroundings.cache_clear()
    return before, cache.key("text")


def changed_module(m):
    prelude, *rest = cache.made_with()
    assert prelude.name == "prelude.py"

    class Changed:
        def read_bytes(self):
            return prelude.read_bytes() + b"\n"

    m.setattr(cache, "made_with", lambda: [Changed(), *rest])


CHANGES = {
    "version": lambda m: m.setattr(cache, "__version__", "0.0"),
    "numba": lambda m: m.setattr(cache, "_version", lambda package: "0.1"),
    "numpy": lambda m: m.setattr(np, "__version__", "9.9"),
    "python": lambda m: m.setattr(sys, "version", "9.9"),
    "helpers": changed_module,
    "processor": lambda m: m.setattr(cache, "_processor", lambda: "another"),
    "settings": lambda m: m.setenv("NUMBA_OPT", "1"),
    "integers of the BLAS": lambda m: m.setattr(cache, "BLAS", None),
}


@pytest.fixture
def surroundings():
    cache.surroundings.cache_clear()
    yield
    cache.surroundings.cache_clear()


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_changes_machine_code_changes_the_key(what, monkeypatch, surroundings):
    before, after = key_of(monkeypatch, CHANGES[what])
    assert before != after and cache._OURS.fullmatch(f"{after}.kernel")
    assert cache.key("text") != cache.key("text ")


def test_numbas_own_settings_file_changes_the_key(monkeypatch, surroundings, tmp_path):
    def change(m):
        (tmp_path / ".numba_config.yaml").write_text("opt: 0\n")

    monkeypatch.chdir(tmp_path)
    before, after = key_of(monkeypatch, change)
    assert before != after


def test_the_number_of_threads_does_not_change_the_key(monkeypatch, surroundings):
    before, after = key_of(monkeypatch, lambda m: m.setenv("NUMBA_NUM_THREADS", "1"))
    assert before == after


def imported(module, seen):
    """The modules of `everyo.compile` that a module imports, and so on."""
    here = Path(cache.__file__).parent
    for node in ast.walk(ast.parse((here / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("everyo.compile"):
            tail = node.module.split(".")[2:]
            for name in tail or [a.name for a in node.names]:
                if name not in seen and (here / f"{name}.py").exists():
                    seen.add(name)
                    imported(name, seen)
    return seen


def test_every_module_that_kernels_are_made_with_is_in_the_key():
    names = {path.stem for path in cache.made_with()}
    assert all(path.exists() for path in cache.made_with())
    assert imported("prelude", {"prelude"}) <= names


# What may be stored


def object_file(declared):
    """Object code of a function that calls `declared`."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(
        f"declare i32 @{declared}(i32)\n"
        f"define i32 @caller(i32 %x) {{\n %y = call i32 @{declared}(i32 %x)\n ret i32 %y\n}}"
    )
    return llvm.Target.from_default_triple().create_target_machine().emit_object(module)


def test_the_names_that_object_code_needs_are_read():
    assert elf.undefined(object_file("abs")) == {"abs"}


def test_code_that_needs_what_other_processes_lack_is_neither_stored_nor_linked():
    assert code._linkable(object_file("abs"))
    unknown = object_file("no_such_function_anywhere")
    assert not code._linkable(unknown)
    assert code._link(cache.Stored("caller", unknown)) is None


LINKED = {
    "arithmetic": "define double @f(double %x) {\n %y = fmul double %x, %x\n ret double %y\n}",
    "constants": "define double @f(double %x) {\n %y = fadd double %x, 0x3FD5555555555555\n"
                 " %z = fmul double %y, 0x400921FB54442D18\n ret double %z\n}",
    "a function of the process": "declare double @fabs(double) nobuiltin\n"
                 "define double @f(double %x) {\n %y = call double @fabs(double %x) nobuiltin\n"
                 " %z = fadd double %y, 1.5\n ret double %z\n}",
    "a function of its own": "define double @g(double %x) noinline {\n"
                 " %y = fdiv double 1.0, %x\n ret double %y\n}\ndefine double @f(double %x) {\n"
                 " %y = call double @g(double %x)\n %z = fadd double %y, %x\n ret double %z\n}",
    "a table": "@t = internal constant [3 x double] [double 1.0, double 2.0, double 4.0]"
                 "\ndefine double @f(double %x) {\n %i = fptosi double %x to i64\n"
                 " %j = and i64 %i, 1\n"
                 " %p = getelementptr [3 x double], [3 x double]* @t, i64 0, i64 %j\n"
                 " %y = load double, double* %p\n ret double %y\n}",
    "memory": "@m = common global double 0.0\n@n = global double 3.0\n"
                 "define double @f(double %x) {\n %a = load double, double* @m\n"
                 " %b = load double, double* @n\n %c = fadd double %a, %x\n"
                 " store double %c, double* @m\n %d = fmul double %b, %c\n ret double %d\n}",
}  # fmt: skip


@pytest.mark.skipif(platform.machine() != "x86_64", reason="LLVM links on other processors")
@pytest.mark.parametrize("optimised", [0, 3])
@pytest.mark.parametrize("what", LINKED)
def test_code_linked_here_is_what_llvm_links(what, optimised):
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    made = llvm.Target.from_default_triple().create_target_machine(opt=optimised, codemodel="large")
    compiled = made.emit_object(llvm.parse_assembly(LINKED[what]))
    address, memory = elf.link(compiled, "f", code._find)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), made)
    engine.add_object_file(llvm.ObjectFileRef.from_data(compiled))
    engine.finalize_object()
    kind = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
    mine, theirs = kind(address), kind(engine.get_function_address("f"))
    for x in (0.0, -1.5, 2.0, 3.0, 1e300):
        if what != "a function of its own" or x:
            assert mine(x) == theirs(x), x
    with pytest.raises(elf.NotLinkable):
        elf.link(compiled, "no such name", code._find)
    del memory


def test_what_is_no_object_code_of_this_machine_is_not_linked():
    good = object_file("abs")
    other = good[:18] + b"\xbe\x00" + good[20:]  # made for a GPU
    for wrong in (b"", b"\x7fELF", b"no object file at all" * 20, other, good[:70], good[:-1000]):
        assert not code._linkable(wrong)


def test_any_bytes_are_judged_without_an_error():
    good, draw = object_file("abs"), random.Random(0)
    for _ in range(2000):
        changed = bytearray(good)
        for _ in range(draw.randrange(1, 6)):
            changed[draw.randrange(len(good))] = draw.randrange(256)
        assert code._linkable(bytes(changed)) in (True, False)
        with contextlib.suppress(elf.NotLinkable):
            elf.link(bytes(changed), "caller", code._find)


def test_functions_without_cache_leave_no_kernel(folder, monkeypatch):
    x = eo.tensor(np.linspace(0.1, 1, 5))
    for wanted in (False, True):
        monkeypatch.setattr(code.NATIVE, "known", weakref.WeakValueDictionary())
        f = eo.compile(lambda x: eo.tanh(x) * x, cache=wanted)
        np.testing.assert_allclose(f(x).numpy(), np.tanh(x.numpy()) * x.numpy(), rtol=1e-12)
        texts = [p.read_text() for p in folder.glob("*.py")]
        assert any("tanh" in t for t in texts) is wanted


# The command


def test_cache_info_and_clear(folder, capsys):
    assert main(["cache", "info"]) == 0
    assert f"{folder}: 0 kernels" in capsys.readouterr().out
    cache.store(NAME, "", STORED)
    assert main(["cache", "info", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["folder"] == str(folder) and facts["kernels"] == 1 and facts["off"] is None
    assert 700 < facts["bytes"] < facts["limit"]
    assert main(["cache", "clear"]) == 0
    assert "1 kernels removed" in capsys.readouterr().out
    assert main(["cache", "clear", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"removed": 0}


def test_cache_info_says_why_the_cache_is_off(monkeypatch, capsys):
    monkeypatch.setenv("EVERYO_CACHE_DIR", "off")
    assert main(["cache", "info"]) == 0
    assert "The cache is off: switched off by EVERYO_CACHE_DIR." in capsys.readouterr().out
    assert main(["cache", "info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["folder"] is None
