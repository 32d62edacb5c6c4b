"""The steady state of a compiled function: a generated Python function that checks and runs.

After the second call of a version its checks (types, shapes and layouts of arguments, guards, the
epoch), the fetching of inputs and the storing of results are written out as straight Python for
this version alone. Whatever does not fit returns `MISS`, and the general path in
`everyo.compile.api` decides. `print(launcher.text)` shows the function.
"""

import copy
from collections.abc import Callable
from operator import is_
from sys import getrefcount
from typing import Any

import numpy as np

from everyo.compile import look, native
from everyo.compile.buffers import FREE, Pool
from everyo.core.autocast import CAST
from everyo.core.autograd import MODE, TRACES, Clock
from everyo.core.state import Epoch
from everyo.core.tensor import Tensor

MISS = object()
MOST_PATIENCE = 256  # calls
PAIRWISE = 3  # with more arguments than this, a set of their ids costs less than comparing pairs
UNPACKED = 64  # entries of a list up to which they are compared one by one
LOOKED = 3  # tensors from which on machine code looks at them, see `everyo.compile.look`

Launch = Callable[[tuple, dict], Any]


class Patience:
    """When to write a launcher again: at once if the one before was of use, else after twice as
    many calls each time; a state that moves at every call would have one written for each."""

    __slots__ = ("general", "seen", "wait")

    def __init__(self) -> None:
        self.wait, self.general, self.seen = 1, 0, 0

    def over(self, runs: int) -> bool:
        """Called after each general run; `runs` counts those and the launcher's."""
        self.general += 1
        if runs - self.seen > self.general:
            self.wait = 1
        elif self.general < self.wait:
            return False
        else:
            self.wait = min(2 * self.wait, MOST_PATIENCE)
        self.general, self.seen = 0, runs
        return True


class _NoForm(Exception):
    """This version has no straight form."""


class _Writer:
    """The lines and the constants of the generated function."""

    def __init__(self, entry: Any) -> None:
        self.entry = entry
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {
            "MISS": MISS, "CAST": CAST, "MODE": MODE, "TRACES": TRACES, "Epoch": Epoch,
            "Clock": Clock, "Tensor": Tensor,
            "ndarray": np.ndarray, "asarray": np.asarray, "count": getrefcount, "is_": is_,
            "wrap": Tensor._wrap,
            "entry": entry, "lock": entry.program.lock,
        }  # fmt: skip
        self.leaves: list[str] = []  # expressions of the dynamic arguments
        self.arrays: list[str] = []  # of their arrays
        self.looked: list[tuple[int, tuple]] = []  # arguments left to `look`, and what they are
        self.groups: dict[int, int] = {}  # arguments of one number are one object
        self.epoch = [entry.epoch]
        self.fixed: list[tuple[Tensor, Any]] = []  # tensors, and arrays whose addresses are written
        self.rebound = {id(e.owner) for e in entry.traced.effects if e.what == "data"}
        self.indent = 1

    def constant(self, value: Any) -> str:
        name = f"k{len(self.scope)}"
        self.scope[name] = value
        return name

    def __call__(self, *lines: str) -> None:
        self.lines += ["    " * self.indent + line for line in lines]

    def is_tensor(self, i: int) -> bool:
        """Whether argument i is a tensor."""
        return self.arrays[i] not in ("", self.leaves[i])

    def unless(self, condition: str) -> None:
        self(f"if not ({condition}): return MISS")

    def same_array(self, name: str, shape: tuple, dtype: np.dtype, strides: Any) -> None:
        layout = f"{name}.flags.c_contiguous" if strides is None else f"{name}.strides == {strides}"
        self.unless(
            f"{name}.shape == {shape} and {name}.dtype is {self.constant(dtype)} and {layout}"
        )


def launcher(entry: Any, key: Any) -> Launch | None:
    """The function for a verified version of calls with this key, or None if it has no such
    form."""
    w = _Writer(entry)
    traced = entry.traced
    if traced.views or traced.identical or entry.program.data_at < 0:
        return None
    if any(e.what == "attribute" for e in traced.effects) or any(
        s.kind in ("cast", "owner") for s in traced.sources
    ):
        return None
    structure, specs, grad, cast = key
    try:
        w.unless(f"MODE.grad is {grad} and CAST.dtype is {w.constant(cast)}")
        w.unless(f"Epoch.now == {w.constant(w.epoch)}[0]")
        _arguments(w, structure, specs)
        _guards(w)
        w("with lock:")  # an interrupt could come between lock.acquire() and a try
        w.indent = 2
        if w.looked:
            _look(w)
        _gradients(w)
        _run(w, _inputs(w))
        w.indent = 1
        _results(w)
    except _NoForm:
        return None
    text = "\n".join(["def launch(args, kwargs):", *w.lines])
    exec(compile(text, f"<launch {entry.name}>", "exec"), w.scope)
    launch = w.scope["launch"]
    launch.text, launch.entry, launch.epoch, launch.fixed = text, entry, w.epoch, w.fixed
    return launch


def renew(launch: Any) -> bool:
    """Whether a launcher still fits after its version has been found to fit the moved state; it is
    then good for this state as well."""
    fits = all(t._data is array for t, array in launch.fixed)
    if fits:
        launch.epoch[0] = launch.entry.epoch  # when its guards were looked at
    return fits


def _arguments(w: _Writer, structure: Any, specs: tuple) -> None:
    """Check the arguments."""
    remaining = iter(specs)
    looks = look.PLACES is not None and sum(s[0] == "t" for s in specs) >= LOOKED

    def visit(s: Any, name: str) -> None:
        if s is None:
            leaf(next(remaining), name)
            return
        kind, keys, parts = s
        same = (
            f"tuple({name}) == {w.constant(keys)}"
            if kind is dict and keys
            else f"len({name}) == {len(parts)}"
        )
        w.unless(f"type({name}) is {w.constant(kind)} and {same}")
        for i, part in enumerate(parts):
            inner = f"{name}_{i}"
            if kind is dict:
                w(f"{inner} = {name}[{w.constant(keys[i])}]")
            else:
                w(f"{inner} = {name}[{i}]")
            visit(part, inner)

    def leaf(spec: tuple, name: str) -> None:
        match spec[0]:
            case "t" if looks:
                w.groups[len(w.leaves)] = spec[-1]
                w.arrays.append(f"arrays[{len(w.looked)}]")
                w.looked.append((len(w.leaves), spec))
                w.leaves.append(name)
            case "t":
                shape, dtype, layout, requires, is_leaf, kind = spec[1:7]
                w.unless(f"type({name}) is {w.constant(kind)}")
                w(f"{name}_d = {name}._data")
                w.unless(f"type({name}_d) is ndarray")  # not one of a device
                w.same_array(f"{name}_d", shape, dtype, layout)
                w.unless(
                    f"{name}._requires_grad is {requires} and ({name}.grad_node is None) is "
                    f"{is_leaf}"
                )
                w.groups[len(w.leaves)] = spec[-1]
                w.leaves.append(name)
                w.arrays.append(f"{name}_d")
            case "a":
                w.unless(f"type({name}) is {w.constant(spec[4])}")
                if spec[4] is not np.ndarray:  # a NumPy scalar, a subclass
                    w(f"{name} = asarray({name})")
                w.same_array(name, *spec[1:4])
                w.groups[len(w.leaves)] = spec[-1]
                w.leaves.append(name)
                w.arrays.append(name)
            case "f":
                w.unless(f"type({name}) is float")
                w.leaves.append(name)
                w.arrays.append("")
            case "o":
                w.unless(f"id({name}) == {spec[1]}")
            case _:
                w.unless(f"type({name}) is {w.constant(spec[0])} and repr({name}) == {spec[1]!r}")

    _, _, ((_, _, args), (_, keys, kwargs)) = structure
    names = [f"args_{i}" for i in range(len(args))]
    if names:
        w.unless(f"len(args) == {len(args)}")
        w(f"{', '.join(names)}, = args")
    else:
        w.unless("not args")
    for part, name in zip(args, names, strict=True):
        visit(part, name)
    visit((dict, keys, kwargs), "kwargs")


def _guards(w: _Writer) -> None:
    """What Python holds, by identity: an equal but other object takes the general path."""
    entry = w.entry
    for g in entry.guards.fast:
        if g.kind == "list" and 0 < len(g.value[1]) <= UNPACKED:
            names = [f"e{i}" for i in range(len(g.value[1]))]
            w(f"entries = (*{w.constant(g.container)},)")
            w.unless(f"len(entries) == {len(names)}")
            w(f"{', '.join(names)}, = entries")
            pairs = zip(names, map(w.constant, g.value[1]), strict=True)
            w.unless(" and ".join(f"{name} is {value}" for name, value in pairs))
        else:
            w.unless(g.test(w.constant(g.container), w.constant(g.key), w.constant(g.value)))
    for container, key, value in entry.traced.statics:
        w.unless(f"{w.constant(container)}.get({w.constant(key)}, MISS) is {w.constant(value)}")
    for array, contents in entry.traced.frozen:
        w.unless(f"{w.constant(array)}.tobytes() == {w.constant(contents)}")
    looked = {i for i, _ in w.looked}
    for condition in _identities(w, [i for i in w.groups if i not in looked]):
        w.unless(condition)


def _identities(w: _Writer, leaves: list[int]) -> list[str]:
    """Conditions on which of these arguments are one object, and which the function has anyway."""
    groups: dict[int, list[str]] = {}
    for i in leaves:
        groups.setdefault(w.groups[i], []).append(w.leaves[i])
    found = [f"{first} is {other}" for first, *others in groups.values() for other in others]
    firsts = [names[0] for names in groups.values()]
    if len(firsts) > PAIRWISE:
        found.append(f"len({{{', '.join(f'id({a})' for a in firsts)}}}) == {len(firsts)}")
    else:
        found += [f"{a} is not {b}" for i, a in enumerate(firsts) for b in firsts[i + 1 :]]
    captured = w.constant(frozenset(w.entry.captured))
    among = (f"{'in' if i in w.entry.shared else 'not in'} {captured}" for i in leaves)
    return found + [f"id({w.leaves[i]}) {a}" for i, a in zip(leaves, among, strict=True)]


def _gradients(w: _Writer) -> None:
    """Which tensors have a gradient already."""
    for owner, none in w.entry.traced.grad_none:
        name = w.leaves[owner] if isinstance(owner, int) else w.constant(owner)
        w.unless(f"({name}._grad is None) is {none}")


def _look(w: _Writer) -> None:
    """The checks of arguments that machine code makes, which also notes their arrays."""
    inputs = {s.owner: i for i, s in enumerate(w.entry.traced.sources) if s.kind == "arg"}
    expected = []
    for leaf, (_, shape, dtype, layout, requires, is_leaf, kind, _) in w.looked:
        i = inputs.get(leaf, -1)
        expected.append(look.Expected(
            kind, requires, is_leaf, shape, dtype, layout, i in w.entry.written, i
        ))  # fmt: skip
    objects = np.frombuffer(w.entry.program.objects, np.int64)
    looking = w.constant(look.Look(expected, objects.ctypes.data))
    others = " and ".join(_identities(w, [i for i, _ in w.looked]))
    w("try:", f"    arrays = ({', '.join(f'{w.leaves[i]}._data' for i, _ in w.looked)})",
      "except AttributeError: return MISS",
      f"tensors = ({', '.join(w.leaves[i] for i, _ in w.looked)})",
      f"{looking}.call({looking}.address, id(tensors), id(arrays))",
      f"found = {looking}.found[0]",
      f"if found != {look.SAME} and (found == {look.MISFIT} or not ({others})):",
      f"    {looking}.forget()", "    return MISS")  # fmt: skip


def _inputs(w: _Writer) -> list[str]:
    """Fetch the inputs; expressions of the addresses of their array objects."""
    out = []
    looked = {leaf for leaf, _ in w.looked}
    for i, (source, node) in enumerate(w.entry.inputs):
        name = f"i{i}"
        strides = node.param("strides")
        layout = None if strides is None else tuple(s * node.dtype.itemsize for s in strides)
        fixed = source.kind == "data" and id(source.owner) not in w.rebound
        if fixed or source.kind == "array":  # rebinding moves the epoch, so it is the same object
            array = source.owner._data if fixed else source.owner
            if fixed:
                w.fixed.append((source.owner, array))
            w.constant(array)
            out.append(str(id(array)))
            continue
        if source.kind == "arg" and source.owner in looked:
            out.append("")  # noted already
            continue
        if source.kind == "arg" and w.arrays[source.owner]:
            if i in w.entry.written:
                w.unless(f"{w.arrays[source.owner]}.flags.writeable")
            out.append(f"id({w.arrays[source.owner]})")
            continue
        owner = (
            w.leaves[source.owner] if isinstance(source.owner, int) else w.constant(source.owner)
        )
        match source.kind:
            case "arg":
                w(f"{name} = {owner}")
            case "item":
                w(f"{name} = {owner}[{w.constant(source.key)}]")
            case "data":
                w(f"{name} = {owner}._data")
            case _:
                w(f"{name} = {owner}._grad")
        if node.shape == () and node.dtype == np.float64 and source.kind in ("arg", "item"):
            box, last = np.zeros((), node.dtype), [MISS]
            b, k = w.constant(box), w.constant(last)
            w(f"if {name} is not {k}[0]:", f"    if type({name}) is not float: return MISS",
              f"    {b}[()] = {k}[0] = {name}")  # fmt: skip
            out.append(str(id(box)))
            continue
        w.unless(f"type({name}) is ndarray")
        w.same_array(name, node.shape, node.dtype, layout)
        if i in w.entry.written:
            w.unless(f"{name}.flags.writeable")
        out.append(f"id({name})")
    return out


def _run(w: _Writer, inputs: list[str]) -> None:
    entry, program = w.entry, w.entry.program
    outputs = range(len(program.fresh))
    replaced = _replaced(w)
    for i, (shape, dtype) in enumerate(program.fresh):
        pool = entry.pools.get(i) or entry.pools.setdefault(i, Pool(shape, dtype))
        buffers = w.constant(pool.buffers)
        free = [
            f"{b} if count({b}) == {FREE}" + (f" + ({replaced[i]} is {b})" if i in replaced else "")
            for b in (f"{buffers}[0]", f"{buffers}[1]")
        ]
        w(f"o{i} = {free[0]} else {free[1]} else {w.constant(pool.take)}()")
    if _hangs(entry):
        copied = entry.copied([w.is_tensor(i) for i in range(len(w.leaves))])
        held = [
            _fetched(w, s) + ".copy()" * c for (s, _), c in zip(entry.inputs, copied, strict=True)
        ]
        w(f"held = [{', '.join(held)}]")
    objects, bound, me = map(w.constant, (program.objects, program.bound, object()))
    stores = [f"{objects}[{i}] = {address}" for i, address in enumerate(
        [*inputs, *(f"id(o{i})" for i in outputs)]) if address]  # fmt: skip
    w(*(line for line in stores if line.endswith(")")))
    w(f"if {bound}[0] is not {me}:", f"    {bound}[0] = {me}")  # else those that stay are there
    w(*(f"    {line}" for line in stores if not line.endswith(")")))
    alone = program.alone()
    if alone is None:
        w(f"if {w.constant(program.execute)}() != {native.FINE}: return MISS")
    else:
        run, address, status = map(w.constant, alone)
        w(f"{run}({address}, 0, 1)", f"if {status}[0] != {native.FINE}: return MISS")
    written = []
    for i in entry.written:
        source = entry.traced.sources[i]
        if source.kind == "data":
            written.append(w.constant(source.owner))
        elif source.kind == "arg" and w.is_tensor(source.owner):
            written.append(w.leaves[source.owner])
    if written:
        cells = " = ".join(f"{t}._cell[0]" for t in written)
        w(f"{cells} = Clock.written = Clock.tick()")


def _replaced(w: _Writer) -> dict[int, str]:
    """Outputs that become the gradient of a tensor, and expressions of the gradient before: where
    nobody else refers to that array, not even as an input, the new one is written over it."""
    return {
        e.value.index: f"{w.leaves[e.owner] if isinstance(e.owner, int) else w.constant(e.owner)}"
        "._grad"
        for e in w.entry.traced.effects
        if e.what == "grad" and e.wrap != "object" and e.value.kind == "output"
        and not e.value.path and e.value.index in w.entry.program.settled
    }  # fmt: skip


def _hangs(entry: Any) -> bool:
    """Whether results get nodes through which gradients can flow."""
    return bool(entry.traced.results and entry.grad and not entry.spent)


def _results(w: _Writer) -> None:
    entry, traced = w.entry, w.entry.traced
    inputs = [
        (w.arrays[s.owner] or w.leaves[s.owner])
        if s.kind == "arg"
        else f"{w.constant(s)}.fetch(())"
        for s in traced.sources
    ]

    def place(p: Any) -> str:
        if p.kind == "output" and not p.path:
            return f"o{p.index}"
        root = f"o{p.index}" if p.kind == "output" else inputs[p.index]
        if p.kind == "input" and traced.sources[p.index].kind == "arg_grad":
            raise _NoForm
        return f"{w.constant(p.viewed)}({root})"

    if w.rebound:  # the epoch that this version expects moves along
        moves = sum(e.what == "data" for e in traced.effects)
        w(f"Epoch.now += {moves}", f"entry.epoch = {w.constant(w.epoch)}[0] = "
          f"{w.constant(w.epoch)}[0] + {moves}")  # fmt: skip
    for e in traced.effects:
        owner = w.leaves[e.owner] if isinstance(e.owner, int) else w.constant(e.owner)
        value = w.constant(e.value) if e.wrap == "object" else place(e.value)
        value = (
            f"wrap({value})"
            if e.wrap == "tensor"
            else f"{value}.item()"
            if e.wrap == "number"
            else value
        )
        match e.what:
            case "grad":
                w(f"{owner}._grad = {value}")
            case "data":
                w(f"{owner}._data = {value}", f"{owner}._cell = [0]")
            case "item":
                w(f"{owner}[{w.constant(e.key)}] = {value}")
            case _:
                w(f"{w.constant(object.__setattr__)}({owner}, {e.key!r}, {value})")
    names = []
    for i, leaf in enumerate(traced.leaves):
        match leaf.what:
            case "object":
                value = w.constant(leaf.value)
            case "same":
                value = f"r{leaf.value}"
            case "fresh":
                value = f"{w.constant(copy.deepcopy)}({w.constant(leaf.value)})"
            case "arg":
                value = w.leaves[leaf.value]
            case "number":
                value = f"{place(leaf.place)}.item()"
            case "array":
                value = place(leaf.place)
            case _:
                if (leaf.is_leaf and leaf.requires_grad) or leaf.grad is not None:
                    raise _NoForm
                value = f"wrap({place(leaf.place)})"
        w(f"r{i} = {value}")
        names.append(f"r{i}")
    w("entry.runs += 1")
    if traced.results and entry.spent:
        for i in traced.results:
            w(f"r{i}.grad_node = {w.constant(entry.spent_node())}", f"r{i}._requires_grad = True")
    if _hangs(entry):
        _hang(w)
    w(f"return {_built(w, traced.structure, iter(names))}")


def _fetched(w: _Writer, s: Any) -> str:
    """The array of an input."""
    if s.kind == "arg" and w.arrays[s.owner]:
        return w.arrays[s.owner]
    return f"asarray({w.constant(s)}.fetch(({', '.join([*w.leaves, ''])})))"


def _hang(w: _Writer) -> None:
    """What `Entry.hang` does."""
    entry, tensors = w.entry, [name for i, name in enumerate(w.leaves) if w.is_tensor(i)]
    parents = [w.leaves[p] if isinstance(p, int) else w.constant(p) for p in entry.traced.parents]
    saved = dict.fromkeys([*parents, *map(w.constant, entry.tensors), *tensors])
    w(f"parents, cells = [{', '.join(parents)}], [{', '.join(f'{t}._cell' for t in saved)}]")
    for i in entry.traced.results:
        given = f"{i}, ({', '.join([*w.leaves, ''])}), parents, held, cells"
        w(f"r{i}.grad_node, r{i}._requires_grad = {w.constant(entry.node)}({given}), True")


def _built(w: _Writer, structure: Any, names: Any) -> str:
    if structure is None:
        return next(names)
    kind, keys, parts = structure
    inner = [_built(w, p, names) for p in parts]
    if kind is list:
        return f"[{', '.join(inner)}]"
    if kind is tuple:
        return f"({', '.join([*inner, ''])})"
    if kind is dict and all(type(k) in (str, int) for k in keys):
        return "{" + ", ".join(f"{k!r}: {v}" for k, v in zip(keys, inner, strict=True)) + "}"
    if issubclass(kind, tuple):  # with names
        return f"{w.constant(kind)}({', '.join(inner)})"
    raise _NoForm
