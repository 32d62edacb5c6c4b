"""Kernel text -> LLVM: a translator for the small language that kernels are written in.

The texts are Python that Numba accepts too, but they need none of what makes Numba slow to start:
every type is said where a value arises, every loop is a range, every call is a cast or an intrinsic
of the prelude. So one walk over the syntax tree emits the code, in a tenth of the time. The rules
are Numba's: whole numbers without a cast are int64, narrower ones widen in arithmetic, division and
remainder round down and give 0 for a divisor of 0, `and` and `or` do not evaluate what they need
not. What would convert silently (a float32 beside a float64, an unsigned beside a signed word) is
an error here.
"""

import ast
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types

from everyo.compile import prelude
from everyo.compile.half import HALF, from_bits, to_bits
from everyo.compile.intrinsics import BIT, DOUBLE, FLOAT, I32, I64, Word
from everyo.compile.ir import IRError

ABREAST = 4  # vectors side by side in long loops of arithmetic
INT, WORD, SINGLE, BOOL = types.int64, types.uint64, types.float32, types.boolean
INTEGERS = {types.int32: 32, INT: 64, WORD: 64}
FLOATS = {SINGLE: FLOAT, types.float64: DOUBLE, HALF: FLOAT}
REGISTERS = {types.int32: I32, INT: I64, WORD: I64, BOOL: BIT, **FLOATS}
_CASTS = {
    np.float32: SINGLE, np.float64: types.float64, np.int32: types.int32, np.int64: INT,
    np.uint64: WORD, np.uintp: WORD, np.bool_: BOOL,
}  # fmt: skip
_FLOATING = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
_WHOLE = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_", ast.BitOr: "or_",
    ast.BitXor: "xor", ast.LShift: "shl",
}  # fmt: skip
_LOGICAL = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor"}
_SIGNS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip


class Value(NamedTuple):
    """A value and its Numba type; of a tuple, `code` is the list of its parts."""

    kind: Any
    code: Any


class Number(NamedTuple):
    """A number as it stands in the text: it takes the type of what is beside it."""

    value: int | float


Operand = Value | Number


def translate(text: str, name: str, triple: str) -> ir.Module:
    """The module with the kernel of a text, as the function `name`, for a machine."""
    return _Translator(text, name, triple).module


class _Memory:
    """How a type lies in memory, in the form that the prelude asks Numba for."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def as_data(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        if self.kind == BOOL:
            return builder.zext(value, ir.IntType(8))
        if self.kind == HALF:
            return to_bits(Word(builder, value)).value
        return value

    def from_data(self, builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
        if self.kind == BOOL:
            return builder.trunc(value, BIT)
        if self.kind == HALF:
            return from_bits(Word(builder, value)).value
        return value


class _Context:
    """What an intrinsic of the prelude asks of Numba's context."""

    class _Models(dict):
        def __missing__(self, kind: Any) -> _Memory:
            return self.setdefault(kind, _Memory(kind))

    data_model_manager = _Models()

    def get_data_type(self, kind: Any) -> ir.Type:
        return {BOOL: ir.IntType(8), HALF: ir.IntType(16)}.get(kind) or REGISTERS[kind]

    def get_dummy_value(self) -> None:
        return None

    def make_tuple(self, builder: ir.IRBuilder, kind: Any, values: Any) -> list[ir.Value]:
        return list(values)


_CONTEXT = _Context()


class _Translator:
    """One kernel. Variables live in slots of the entry block, which LLVM turns into registers."""

    def __init__(self, text: str, name: str, triple: str) -> None:
        (definition,) = ast.parse(text).body
        assert isinstance(definition, ast.FunctionDef)
        self.text = text
        self.names = prelude.scope(text)
        self.module = ir.Module(name=name)
        self.module.triple = triple
        kind = ir.FunctionType(ir.VoidType(), [I64.as_pointer(), I64, I64])
        function = ir.Function(self.module, kind, name)
        function.attributes.add("nounwind")
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))
        self.variables: dict[str, tuple[Any, ir.Value]] = {}
        self.loops: list[tuple[ir.Block, ir.Block]] = []  # where `continue` and `break` go
        start = self._block("start")
        for k, argument in zip((types.CPointer(INT), INT, INT), function.args, strict=True):
            self._assign(definition.args.args[len(self.variables)].arg, Value(k, argument))
        self.builder.branch(start)
        self.builder.position_at_end(start)
        self._body(definition.body)
        if not self.builder.block.is_terminated:
            self.builder.ret_void()

    # ------------------------------------------------------------------ statements

    def _body(self, body: list[ast.stmt]) -> None:
        for s in body:
            if self.builder.block.is_terminated:  # after a break or a return
                return
            self._statement(s)

    def _statement(self, s: ast.stmt) -> None:
        match s:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self._assign(name, self._value(s.value))
            case ast.Assign(targets=[ast.Tuple(elts=targets)]):
                if isinstance(s.value, ast.Tuple):
                    parts = [self._value(v) for v in s.value.elts]
                else:
                    whole = self._typed(self._value(s.value))
                    parts = [Value(whole.kind.dtype, c) for c in whole.code]
                for target, part in zip(targets, parts, strict=True):
                    assert isinstance(target, ast.Name)
                    self._assign(target.id, part)
            case ast.Assign(targets=[ast.Subscript(value=array, slice=index)]):
                at = self._element(array, index)
                self.builder.store(self._as(self._value(s.value), at.kind.dtype), at.code)
            case ast.AugAssign(target=ast.Name(id=name)):
                result = self._binary(s.op, self._name(name), self._value(s.value), s)
                self._assign(name, result)
            case ast.Expr():
                self._value(s.value)
            case ast.If():
                self._if(s)
            case ast.While():
                self._while(s)
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id=walk))):
                self._for(name, s, walk)
            case ast.Break():
                self.builder.branch(self.loops[-1][1])
            case ast.Continue():
                self.builder.branch(self.loops[-1][0])
            case ast.Return(value=None):
                self.builder.ret_void()
            case _:
                raise self._unknown(s)

    def _assign(self, name: str, value: Operand) -> None:
        value = self._typed(value)
        if name not in self.variables:
            with self.builder.goto_entry_block():
                slot = self.builder.alloca(value.code.type, name=name)
            self.variables[name] = value.kind, slot
        kind, slot = self.variables[name]
        self.builder.store(self._as(value, kind), slot)

    def _if(self, s: ast.If) -> None:
        then, other, end = (self._block(n) for n in ("then", "else", "end"))
        self._branch(s.test, then, other)
        for block, body in ((then, s.body), (other, s.orelse)):
            self.builder.position_at_end(block)
            self._body(body)
            if not self.builder.block.is_terminated:
                self.builder.branch(end)
        self.builder.position_at_end(end)

    def _while(self, s: ast.While) -> None:
        head, body, end = (self._block(n) for n in ("while", "body", "end"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        self._branch(s.test, body, end)
        self._loop(s.body, body, head, end)

    def _for(self, name: str, s: ast.For, walk: str) -> None:
        assert isinstance(s.iter, ast.Call)
        if walk not in ("range", "abreast"):
            raise self._unknown(s)
        given = [self._value(a) for a in s.iter.args]
        first, last, step = {1: (Number(0), *given, Number(1)), 2: (*given, Number(1))}.get(
            len(given), tuple(given)
        )
        kind = next((v.kind for v in given if isinstance(v, Value)), INT)
        start, stop, by = (self._as(v, kind) for v in (first, last, step))
        signed = kind != WORD
        with self.builder.goto_entry_block():
            counter = self.builder.alloca(REGISTERS[kind])
        self.builder.store(start, counter)
        head, body, following, end = (self._block(n) for n in ("for", "body", "next", "end"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        compare = self.builder.icmp_signed if signed else self.builder.icmp_unsigned
        self.builder.cbranch(compare("<", self.builder.load(counter), stop), body, end)
        self.builder.position_at_end(body)
        self._assign(name, Value(kind, self.builder.load(counter)))
        self._loop(s.body, body, following, end)
        self.builder.position_at_end(following)
        flags = ("nsw",) if signed else ("nuw",)  # what is below `stop` can be counted on
        self.builder.store(self.builder.add(self.builder.load(counter), by, flags=flags), counter)
        again = self.builder.branch(head)
        if walk == "abreast":
            again.set_metadata("llvm.loop", self._side_by_side())
        self.builder.position_at_end(end)

    def _side_by_side(self) -> ir.MDValue:
        """What tells LLVM to compute ABREAST vectors in every turn of a loop. It would take two of
        a long body, in which each instruction waits for the one before, and so would the processor.
        """
        count = self.module.add_metadata(["llvm.loop.interleave.count", ir.Constant(I32, ABREAST)])
        loop = ir.MDValue(self.module, [], name=str(len(self.module.metadata)))
        loop.operands = (loop, count)  # as it names itself, it is of this loop alone
        return loop

    def _loop(self, body: list[ast.stmt], block: ir.Block, again: ir.Block, end: ir.Block) -> None:
        self.builder.position_at_end(block)
        self.loops.append((again, end))
        self._body(body)
        self.loops.pop()
        if not self.builder.block.is_terminated:
            self.builder.branch(again)
        self.builder.position_at_end(end)

    def _branch(self, test: ast.expr, then: ir.Block, other: ir.Block) -> None:
        """Go where a condition says; `and`, `or` and `not` are ways, not values."""
        match test:
            case ast.BoolOp(op=op, values=[*firsts, last]):
                for v in firsts:
                    block = self._block("also")
                    if isinstance(op, ast.And):
                        self._branch(v, block, other)
                    else:
                        self._branch(v, then, block)
                    self.builder.position_at_end(block)
                self._branch(last, then, other)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self._branch(operand, other, then)
            case _:
                self.builder.cbranch(self._truth(self._value(test)), then, other)

    def _block(self, name: str) -> ir.Block:
        return self.builder.append_basic_block(name)

    # ------------------------------------------------------------------ expressions

    def _value(self, e: ast.expr) -> Operand:
        match e:
            case ast.Constant(value=bool(value)):
                return Value(BOOL, ir.Constant(BIT, int(value)))
            case ast.Constant(value=int(value) | float(value)):
                return Number(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=ast.Name(id="np"), attr="inf" | "nan"):
                return Number(float(e.attr))
            case ast.UnaryOp():
                return self._unary(e)
            case ast.BinOp():
                return self._binary(e.op, self._value(e.left), self._value(e.right), e)
            case ast.Compare(ops=[op], comparators=[right]):
                return self._compare(op, self._value(e.left), self._value(right), e)
            case ast.BoolOp() | ast.IfExp():
                return self._either(e)
            case ast.Subscript(value=array, slice=index):
                at = self._element(array, index)
                return Value(at.kind.dtype, self.builder.load(at.code))
            case ast.Call(func=ast.Name(id=name), keywords=[]):
                return self._call(name, [self._value(a) for a in e.args], e)
        raise self._unknown(e)

    def _name(self, name: str) -> Value:
        kind, slot = self.variables[name]
        return Value(kind, self.builder.load(slot))

    def _element(self, array: ast.expr, index: ast.expr) -> Value:
        """The pointer to an element of a pointer."""
        base = self._value(array)
        assert isinstance(base, Value)
        at = self._value(index)
        word = self._as(at, at.kind if isinstance(at, Value) else INT)
        return Value(base.kind, self.builder.gep(base.code, [word]))

    def _unary(self, e: ast.UnaryOp) -> Operand:
        v = self._value(e.operand)
        if isinstance(v, Number):
            if isinstance(e.op, ast.USub):
                return Number(-v.value)
            raise self._unknown(e)
        match e.op:
            case ast.USub() if v.kind in FLOATS:
                return Value(v.kind, self.builder.fneg(v.code))
            case ast.USub():
                return Value(INT, self.builder.neg(self._wide(v)))
            case ast.Not():
                return Value(BOOL, self.builder.not_(self._truth(v)))
            case ast.Invert() if v.kind in INTEGERS:
                return Value(v.kind, self.builder.not_(v.code))
        raise self._unknown(e)

    def _binary(self, op: ast.operator, a: Operand, b: Operand, e: ast.AST) -> Operand:
        kind, x, y = self._together(a, b, e)
        if kind in FLOATS and type(op) in _FLOATING:
            return Value(kind, getattr(self.builder, _FLOATING[type(op)])(x, y))
        if kind == BOOL and type(op) in _LOGICAL:
            return Value(kind, getattr(self.builder, _LOGICAL[type(op)])(x, y))
        if kind in (INT, WORD):
            if type(op) in _WHOLE:
                return Value(kind, getattr(self.builder, _WHOLE[type(op)])(x, y))
            match op:
                case ast.RShift():
                    shift = self.builder.ashr if kind == INT else self.builder.lshr
                    return Value(kind, shift(x, y))
                case ast.FloorDiv() | ast.Mod():
                    return Value(kind, self._divided(kind, x, y, isinstance(op, ast.Mod)))
        raise self._unknown(e)

    def _divided(self, kind: Any, x: ir.Value, y: ir.Value, rest: bool) -> ir.Value:
        """x // y or x % y, rounded down; 0 where y is."""
        b, zero = self.builder, ir.Constant(I64, 0)
        none = b.icmp_signed("==", y, zero)
        safe = b.select(none, ir.Constant(I64, 1), y)
        if kind == WORD:
            out = b.urem(x, safe) if rest else b.udiv(x, safe)
        else:
            q, r = b.sdiv(x, safe), b.srem(x, safe)
            apart = b.icmp_signed("<", b.xor(r, safe), zero)
            down = b.and_(b.icmp_signed("!=", r, zero), apart)
            out = (
                b.select(down, b.add(r, safe), r)
                if rest
                else b.select(down, b.sub(q, ir.Constant(I64, 1)), q)
            )
        return b.select(none, zero, out)

    def _compare(self, op: ast.cmpop, a: Operand, b: Operand, e: ast.AST) -> Value:
        sign = _SIGNS[type(op)]
        if isinstance(a, Value) and isinstance(b, Value) and a.kind == b.kind == types.int32:
            return Value(BOOL, self.builder.icmp_signed(sign, a.code, b.code))  # fills a vector
        kind, x, y = self._together(a, b, e, comparing=True)
        if kind in FLOATS:
            compare: Any = (
                self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
            )
        else:
            compare = self.builder.icmp_signed if kind == INT else self.builder.icmp_unsigned
        return Value(BOOL, compare(sign, x, y))

    def _either(self, e: ast.BoolOp | ast.IfExp) -> Value:
        """A value by one of two ways."""
        then, other, end = (self._block(n) for n in ("then", "else", "end"))
        if isinstance(e, ast.IfExp):
            ways: list[Callable[[], Operand]] = [
                lambda: self._value(e.body), lambda: self._value(e.orelse),
            ]  # fmt: skip
            self._branch(e.test, then, other)
        else:
            ways = [lambda k=k: Value(BOOL, ir.Constant(BIT, k)) for k in (1, 0)]  # type: ignore[misc]
            self._branch(e, then, other)
        found = []
        for block, way in zip((then, other), ways, strict=True):
            self.builder.position_at_end(block)
            value = self._typed(way())
            found.append((value, self.builder.block))
            self.builder.branch(end)
        self.builder.position_at_end(end)
        (a, _), (b, _) = found
        if a.kind != b.kind:
            raise IRError(f"{a.kind} or {b.kind} in `{ast.unparse(e)}`")
        phi = self.builder.phi(a.code.type)
        for value, block in found:
            phi.add_incoming(value.code, block)
        return Value(a.kind, phi)

    def _call(self, name: str, args: list[Operand], e: ast.AST) -> Operand:
        function = self.names.get(name)
        if function in _CASTS:
            return Value(_CASTS[function], self._cast(args[0], _CASTS[function]))
        if function is None and name == "abs":
            v = self._typed(args[0])
            kind = ir.FunctionType(v.code.type, [v.code.type])
            fabs = self.module.declare_intrinsic("llvm.fabs", [v.code.type], kind)
            return Value(v.kind, self.builder.call(fabs, [v.code]))
        if function is None and name in ("min", "max"):
            result, x, y = self._together(args[0], args[1], e)
            compare = self.builder.icmp_signed if result == INT else self.builder.icmp_unsigned
            first = compare("<" if name == "min" else ">", x, y)
            return Value(result, self.builder.select(first, x, y))
        if function is None:
            raise self._unknown(e)
        typed = [self._typed(a) for a in args]
        signature, code = function._defn(None, *(v.kind for v in typed))
        values = [
            self._as(a if isinstance(a, Number) else v, k)
            for a, v, k in zip(args, typed, signature.args, strict=True)
        ]
        return Value(signature.return_type, code(_CONTEXT, self.builder, signature, values))

    # ------------------------------------------------------------------ types

    def _typed(self, v: Operand) -> Value:
        """A value; a bare number is an int64 or a float64."""
        if isinstance(v, Value):
            return v
        kind = INT if isinstance(v.value, int) else types.float64
        return Value(kind, self._as(v, kind))

    def _as(self, v: Operand, kind: Any) -> ir.Value:
        """The LLVM value of an operand that has this type, or is a number or a word that fits."""
        if isinstance(v, Number):
            return ir.Constant(REGISTERS[kind], _constant(v.value, kind))
        if v.kind == kind or {v.kind, kind} == {INT, WORD}:
            return v.code
        if v.kind == types.int32 and kind == INT:
            return self.builder.sext(v.code, I64)
        raise IRError(f"{v.kind} where {kind} is needed in\n{self.text}")

    def _wide(self, v: Value) -> ir.Value:
        return self.builder.sext(v.code, I64) if v.kind == types.int32 else v.code

    def _together(
        self, a: Operand, b: Operand, e: ast.AST, comparing: bool = False
    ) -> tuple[Any, ir.Value, ir.Value]:
        """The type in which two operands meet, and both in it."""
        if isinstance(a, Number) and isinstance(b, Number):
            kind = INT if isinstance(a.value, int) and isinstance(b.value, int) else types.float64
            return kind, self._as(a, kind), self._as(b, kind)
        kinds = {v.kind for v in (a, b) if isinstance(v, Value)}
        numbers = [v.value for v in (a, b) if isinstance(v, Number)]
        if types.int32 in kinds:
            kinds = (kinds - {types.int32}) | {INT}
        kind = kinds.pop()
        fits = not kinds and all(
            isinstance(n, int) and (kind == INT or (comparing and kind == WORD and n >= 0))
            for n in numbers
        )
        if not fits:
            raise IRError(f"operands of two types in `{ast.unparse(e)}` of\n{self.text}")
        x, y = (self._as(v, kind) if isinstance(v, Number) else self._wide(v) for v in (a, b))
        return kind, x, y

    def _truth(self, v: Operand) -> ir.Value:
        v = self._typed(v)
        if v.kind == BOOL:
            return v.code
        return self.builder.icmp_signed("!=", v.code, ir.Constant(v.code.type, 0))

    def _cast(self, v: Operand, kind: Any) -> ir.Value:
        if isinstance(v, Number):
            return ir.Constant(REGISTERS[kind], _constant(v.value, kind))
        b, target = self.builder, REGISTERS[kind]
        if v.kind in FLOATS and kind in FLOATS:
            if v.code.type == target:
                return v.code
            return b.fpext(v.code, target) if target == DOUBLE else b.fptrunc(v.code, target)
        if kind == BOOL:
            if v.kind in FLOATS:
                return b.fcmp_unordered("!=", v.code, ir.Constant(v.code.type, 0.0))
            return self._truth(v)
        if v.kind in FLOATS:
            return b.fptoui(v.code, target) if kind == WORD else b.fptosi(v.code, target)
        signed = v.kind in (INT, types.int32)
        if kind in FLOATS:
            return b.sitofp(v.code, target) if signed else b.uitofp(v.code, target)
        width = v.code.type.width
        if width == target.width:
            return v.code
        if width > target.width:
            return b.trunc(v.code, target)
        return b.sext(v.code, target) if signed else b.zext(v.code, target)

    def _unknown(self, node: ast.AST) -> IRError:
        return IRError(f"kernels have no `{ast.unparse(node)}`, which is in\n{self.text}")


def _constant(value: int | float, kind: Any) -> int | float:
    """A number as a constant of a type, with its rounding."""
    if kind == SINGLE:
        (value,) = struct.unpack("f", struct.pack("f", value))
    if kind in FLOATS:
        return float(value)
    return int(value)
