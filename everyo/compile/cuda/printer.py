"""Device kernel -> the text of a Python function that numba-cuda compiles.

Values, indices and folds are spelled as on the CPU (`emit.Printer`); what differs are pointers, the
loops that threads share, folds across lanes, and that a lane may take several neighbours at a time:
then each statement of the loop is printed once per neighbour, with names of its own, and what lies
side by side in memory moves 16 bytes at a time.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from everyo.compile.cuda.heads import Text
from everyo.compile.cuda.lower import WARP, side_by_side
from everyo.compile.cuda.statements import (
    Across,
    DeviceKernel,
    First,
    Leave,
    Once,
    Rows,
    Spread,
    Sync,
)
from everyo.compile.emit import Printer, expression
from everyo.compile.ir import BOOL
from everyo.compile.program import (
    KINDS,
    Clamp,
    Counter,
    Digit,
    Extent,
    Finish,
    Fold,
    Index,
    Let,
    Literal,
    Load,
    Start,
    Store,
    Value,
)


def emit(kernel: DeviceKernel) -> Text:
    """The text of a kernel; its parameters are its slots outside of shared memory."""
    slots = {i: s for i, s in enumerate(kernel.slots) if i not in kernel.shared}
    counts = {i: s.what == "count" for i, s in slots.items()}
    names = tuple(f"{'n' if count else 'p'}{i}" for i, count in counts.items())
    kinds = tuple("u64" if counts[i] else f"{KINDS[s.dtype]}*" for i, s in slots.items())
    return Text(DevicePrinter(kernel).text(), names, kinds, kernel.blocks, kernel.threads)


class DevicePrinter(Printer):
    def __init__(self, kernel: DeviceKernel) -> None:
        self.device, self.slots = kernel, kernel.slots
        self.copies = _copies(kernel)

    def text(self) -> str:
        """The body of the kernel."""
        lines = [*self.places(), *self.pointers(), *self.body(self.device.body)]
        return "".join(f"    {line}\n" for line in lines)

    def places(self) -> Iterator[str]:
        """Who this thread is: its number, its team, its lane in the team, and the threads it talks
        to."""
        team = self.device.team
        yield "thread = u32(cuda.threadIdx.x)"
        if team >= self.device.threads:
            yield "chunk, lane, chunks = block, thread, blocks"
        else:
            per = self.device.threads // team
            yield f"chunk = u32(block * u32({per}) + thread // u32({team}))"
            yield f"lane = u32(thread % u32({team}))"
            yield f"chunks = u32(blocks * u32({per}))"
        if 1 < team < WARP:
            yield f"mask = u32(u32({2**team - 1}) << (thread % u32({WARP}) - lane))"

    def pointers(self) -> Iterator[str]:
        per = max(1, self.device.threads // self.device.team)
        for k, slot in enumerate(self.slots):
            if k in self.device.shared:
                yield f"s{k} = cuda.shared.array({slot.elements * per}, t_{KINDS[slot.dtype]})"
                yield f"p{k} = at(s{k}, thread // u32({self.device.team}) * u32({slot.elements}))"
            elif slot.per_chunk:
                yield f"p{k} = at(p{k}, chunk * u64({slot.elements}))"
        if self.device.team > WARP:
            words = {(_traded(a.dtype), i) for a in _every(self.device.body, Across)
                     for i in range(1 + a.pair)}  # fmt: skip
            for kind, i in sorted(words):
                warps = self.device.threads // WARP
                yield f"w_{kind}{'e' * i} = cuda.shared.array({warps}, t_{kind})"

    def index(self, index: Index) -> str:
        terms = [v if s == 1 else f"{v} * u64({s})" for v, s in index.terms]
        if index.offset or not terms:
            terms.append(f"u64({index.offset})")
        return " + ".join(terms)

    def bound(self, b: int | str) -> str:
        return f"u32({b})" if isinstance(b, int) else b

    def body(self, body: Iterable[Any]) -> Iterator[str]:
        for s in body:
            yield from self.statement(s)

    def statement(self, s: Any) -> Iterator[str]:
        match s:
            case Load():
                yield f"{s.name} = ld(p{s.slot}, {self.index(s.index)})"
            case Store():
                yield f"st(p{s.slot}, {self.index(s.index)}, {self.value(s.value)})"
            case Digit():
                text = s.of if s.divisor == 1 else f"{s.of} // u32({s.divisor})"
                yield f"{s.name} = u32({text}" + (f" % u32({s.size}))" if s.size else ")")
            case Clamp():
                last = f"i64({int(s.size) - 1})"
                yield f"{s.name} = u64(max(i64(0), min({self.value(s.value)}, {last})))"
            case Extent():
                yield f"{s.name} = u32(n{s.slot})"
            case Start():
                for k in range(self.copies.get(s.name, 1)):
                    for name in (_copy(s.name, k), *((_low(_copy(s.name, k)),) if s.pair else ())):
                        yield f"{name} = {self.value(s.value)}"
            case Finish():
                yield f"{s.name} = pair_total({s.pair}, {_low(s.pair)})"
            case Fold() if s.how == "pair":
                yield self.join(s.name, s.op, s.name, self.value(s.value), None)
            case Rows():
                yield f"{s.var} = chunk"
                yield f"while {s.var} < u32({s.stop}):"
                yield from self.indented(self.body(s.body))
                yield f"    {s.var} = u32({s.var} + chunks)"
            case Leave():
                yield f"if chunk >= u32({s.teams}):"
                yield "    return"
            case First():
                yield self.first(s)
                yield from self.indented(self.body(s.body))
            case Once():
                yield from self.once(s)
            case Sync():
                yield from self.sync()
            case Across():
                yield from self.across(s)
            case Spread():
                yield from self.spread(s)
            case _:
                yield from super().statement(s)

    def indented(self, lines: Iterable[str]) -> Iterator[str]:
        return (f"    {line}" for line in lines)

    # -- loops -----------------------------------------------------------------------------------

    def spread(self, s: Spread) -> Iterator[str]:
        """The loop over what this lane takes of a row, or this thread of everything."""
        v = s.vector
        grid = s.over == "grid"
        start = f"chunk * u32({self.device.team}) + lane" if grid else "lane"
        team = f"u32({self.device.team})" if not grid else f"chunks * u32({self.device.team})"
        stop = self.bound(s.stop)
        if v > 1 and s.tail:
            yield f"whole = u32({stop} - {stop} % u32({v}))"
        yield f"{s.var} = u32(({start}) * u32({v}))" if v > 1 else f"{s.var} = u32({start})"
        yield f"while {s.var} < {'whole' if v > 1 and s.tail else stop}:"
        body = self.vector_body(s) if v > 1 else self.body(s.body)
        yield from self.indented(body)
        step = f"{team} * u32({v})" if v > 1 else team
        yield f"    {s.var} = u32({s.var} + {step})"
        if v > 1 and s.tail:
            yield f"{s.var} = u32(whole + {start})"
            yield f"if {s.var} < {stop}:"
            yield from self.indented(self.body(s.body))

    def vector_body(self, s: Spread) -> Iterator[str]:
        own = _defined(s.body) | {f.name for f in _every(s.body, Fold)}
        digits = [x for x in s.body if isinstance(x, Digit)]
        rest = tuple(x for x in s.body if not isinstance(x, Digit))
        for d in digits:
            yield from self.statement(d)
        for k in range(1, s.vector):
            yield f"{_copy(s.last, k)} = u32({s.last} + u32({k}))"
        yield from self.copied(rest, s, own)

    def copied(self, body: Iterable[Any], loop: Spread, own: set[str]) -> Iterator[str]:
        """Statements, once for each of the neighbours that a lane takes at a time."""
        v = loop.vector
        for s in body:
            together = (
                isinstance(s, Load | Store)
                and s.slot in self.device.vectors
                and side_by_side(s, loop.last, v, self.device.loose)
            )
            if isinstance(s, Rows):
                yield f"{s.var} = chunk"
                yield f"while {s.var} < u32({s.stop}):"
                yield from self.indented(self.copied(s.body, loop, own))
                yield f"    {s.var} = u32({s.var} + chunks)"
            elif isinstance(s, First):
                yield self.first(s)
                yield from self.indented(self.copied(s.body, loop, own))
            elif isinstance(s, Start):
                yield from self.statement(s)
            elif not isinstance(s, Load | Let | Counter | Clamp | Finish | Store | Fold):
                yield from self.statement(s)
            elif isinstance(s, Load) and together:
                names = ", ".join(str(_renamed(s.name, k, own)) for k in range(v))
                yield f"{names} = ld{v}(p{s.slot}, {self.index(s.index)})"
            elif isinstance(s, Store) and together:
                values = ", ".join(self.value(_renamed(s.value, k, own)) for k in range(v))
                yield f"st{v}(p{s.slot}, {self.index(s.index)}, ({values}))"
            else:
                for k in range(v):
                    yield from self.statement(_rename(s, k, own | {loop.last}))

    # -- lanes -----------------------------------------------------------------------------------

    def first(self, s: First) -> str:
        return f"if {' and '.join(f'{i} == u32(0)' for i in s.indices)}:"

    def once(self, s: Once) -> Iterator[str]:
        tests = ["lane == u32(0)"] if self.device.team > 1 else []
        tests += ["chunk == u32(0)"] if s.alone else []
        if tests:
            yield f"if {' and '.join(tests)}:"
            yield from self.indented(self.body(s.body))
        else:
            yield from self.body(s.body)

    def sync(self) -> Iterator[str]:
        if self.device.team > WARP:
            yield "cuda.syncthreads()"
        elif self.device.team > 1:
            yield f"cuda.syncwarp({self.mask()})"

    def mask(self) -> str:
        return "mask" if self.device.team < WARP else f"u32({2**WARP - 1})"

    def across(self, s: Across) -> Iterator[str]:
        """First the copies of this lane, then lanes by halves, then warps in order."""
        count = self.copies.get(s.name, 1)
        while count > 1:
            count //= 2
            for k in range(count):
                other = _copy(s.name, k + count)
                yield self.join(_copy(s.name, k), s.op, _copy(s.name, k), other, s)
        step = min(WARP, self.device.team) // 2
        names = (s.name, _low(s.name)) if s.pair else (s.name,)
        kind = _traded(s.dtype)
        while step:
            for name in names:
                moved = f"cuda.shfl_xor_sync({self.mask()}, {self.outgoing(name, s)}, {step})"
                yield f"o{name} = {self.incoming(moved, s)}"
            yield self.join(s.name, s.op, s.name, f"o{s.name}", s)
            step //= 2
        if self.device.team <= WARP:
            return
        yield f"if thread % u32({WARP}) == u32(0):"
        for i, name in enumerate(names):
            yield f"    w_{kind}{'e' * i}[thread // u32({WARP})] = {self.outgoing(name, s)}"
        yield "cuda.syncthreads()"
        for w in range(self.device.threads // WARP):
            for i, name in enumerate(names):
                got = self.incoming(f"w_{kind}{'e' * i}[{w}]", s)
                yield f"{name} = {got}" if w == 0 else f"o{name} = {got}"
            if w:
                yield self.join(s.name, s.op, s.name, f"o{s.name}", s)
        yield "cuda.syncthreads()"

    def outgoing(self, name: str, s: Across) -> str:
        return f"i32({name})" if s.dtype == BOOL else name

    def incoming(self, text: str, s: Across) -> str:
        return f"{text} != i32(0)" if s.dtype == BOOL else text

    def join(self, name: str, op: str, a: str, b: str, s: Across | None) -> str:
        """name = op(a, b) of accumulators; s is None if b is a single number to be added."""
        if s is None:
            return f"{name}, {_low(name)} = pair_add({a}, {_low(a)}, {b})"
        if s.pair:
            return f"{name}, {_low(name)} = pair_join({a}, {_low(a)}, {b}, {_low(b)})"
        return f"{name} = {expression(op, [a, b], s.dtype, s.dtype)}"


def _low(name: str) -> str:
    """The second word of an accumulator."""
    return f"{name}e"


def _copy(name: str, k: int) -> str:
    """The name that the k-th neighbour of a lane uses."""
    return f"{name}_{k}" if k else name


def _traded(dtype: Any) -> str:
    """The type in which lanes hand values over."""
    return "i32" if dtype == BOOL else KINDS[dtype]


def _every(body: Iterable[Any], kind: Any) -> Iterator[Any]:
    for s in body:
        if isinstance(s, kind):
            yield s
        if isinstance(s, Spread | Rows | Once | First):
            yield from _every(s.body, kind)


def _copies(kernel: DeviceKernel) -> dict[str, int]:
    """How many copies each accumulator has that a vector loop folds into."""
    loops = [s for s in _every(kernel.body, Spread) if s.vector > 1]
    return {f.name: s.vector for s in loops for f in _every(s.body, Fold)}


def _defined(body: Iterable[Any]) -> set[str]:
    """The names that a loop's body gives to what differs between neighbours."""
    out: set[str] = set()
    for s in body:
        if isinstance(s, Load | Let | Counter | Finish | Clamp | Start):
            out.add(s.name)
        elif isinstance(s, Rows | Once | First):
            out |= _defined(s.body)
    return out


def _renamed(v: Value, k: int, own: set[str]) -> Value:
    if isinstance(v, Literal):
        return v
    name = v[:-1] if v.endswith("e") and v[:-1] in own else v
    if name not in own:
        return v
    return _copy(name, k) + ("e" if name != v else "")


def _rename(s: Any, k: int, own: set[str]) -> Any:
    """A statement as the k-th neighbour executes it."""

    def index(i: Index) -> Index:
        return Index(tuple((str(_renamed(v, k, own)), stride) for v, stride in i.terms), i.offset)

    match s:
        case Let():
            args = tuple(_renamed(a, k, own) for a in s.args)
            return replace(s, name=_copy(s.name, k), args=args)
        case Counter():
            return replace(s, name=_copy(s.name, k), index=index(s.index))
        case Load():
            return replace(s, name=str(_renamed(s.name, k, own)), index=index(s.index))
        case Store():
            return replace(s, index=index(s.index), value=_renamed(s.value, k, own))
        case Fold():
            return replace(s, name=_copy(s.name, k), value=_renamed(s.value, k, own))
        case Finish():
            return replace(s, name=_copy(s.name, k), pair=str(_renamed(s.pair, k, own)))
        case Clamp():
            return replace(s, name=_copy(s.name, k), value=_renamed(s.value, k, own))
    return s
