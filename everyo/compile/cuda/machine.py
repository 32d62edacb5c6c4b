"""Runs a PTX kernel on the CPU: every register is an array with one element per thread of the grid.

The threads with the lowest program counter run together up to the next branch, label or barrier, so
that what diverged meets again. Checked on the way: bounds, alignment, reads of memory that was
never written, races within shared and global memory, barriers and shuffles that not everybody
reaches. Counted: requests and 32-byte sectors of global memory, bank conflicts of shared memory.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.compile.cuda import lanes
from everyo.compile.cuda.access import Accesses
from everyo.compile.cuda.lanes import bits
from everyo.compile.cuda.memory import SHARED_AT, DeviceMemory, Threads
from everyo.compile.cuda.ptx import STORED, TYPES, Instruction, Kernel, PTXError, names_of

WARP = 32
STEPS = 10**7  # instructions after which a launch counts as endless
ADDRESS = re.compile(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]")
WAITING = ("shfl", "vote", "match")  # with bar.warp: all lanes of the mask take part


class Launch(Accesses):
    """One launch: `run()` executes it on the memory and returns itself, with `counts`."""

    def __init__(
        self,
        kernel: Kernel,
        memory: DeviceMemory,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[int | float],
        checks: bool = True,
    ) -> None:
        self.kernel, self.memory, self.checks = kernel, memory, checks
        g, b = ([*grid, 1, 1][:3], [*block, 1, 1][:3])
        blocks, per_block = int(np.prod(g)), int(np.prod(b))
        if kernel.threads and per_block > kernel.threads:
            raise PTXError(f"{per_block} threads a block, compiled for {kernel.threads}")
        self.count = blocks * per_block
        self.threads = Threads(blocks, per_block)
        self.per_block = per_block
        thread = np.arange(self.count)
        self.tid, self.block = thread % per_block, self.threads.block
        self.lane = self.tid % WARP
        self.warp = self.block * -(-per_block // WARP) + self.tid // WARP
        self.special = self._special(g, b)
        self.args = self._arguments(args)
        self.registers: dict[str, np.ndarray] = {}
        self.prepare(blocks, self.count)
        self.counts: Counter[str] = Counter()
        self.targets = set(kernel.labels.values())

    def _special(self, grid: Sequence[int], block: Sequence[int]) -> dict[str, np.ndarray]:
        out = {"%laneid": self.lane, "%warpid": self.tid // WARP}
        t, c = self.tid, self.block
        for axis, name in enumerate("xyz"):
            out["%tid." + name], t = t % block[axis], t // block[axis]
            out["%ctaid." + name], c = c % grid[axis], c // grid[axis]
            out["%ntid." + name] = np.full(self.count, block[axis])
            out["%nctaid." + name] = np.full(self.count, grid[axis])
        return {name: a.astype(np.uint32) for name, a in out.items()}

    def _arguments(self, args: Sequence[int | float]) -> dict[str, Any]:
        if len(args) != len(self.kernel.params):
            raise PTXError(f"{len(args)} arguments for {len(self.kernel.params)} parameters")
        pairs = zip(self.kernel.params, args, strict=True)
        return {
            name: np.array(int(a) & (2**64 - 1), np.uint64).astype(STORED[kind])
            if STORED[kind] not in (np.float32, np.float64) else np.array(a, TYPES[kind])
            for (name, kind), a in pairs
        }  # fmt: skip

    # -- scheduling ------------------------------------------------------------------------------

    def run(self) -> "Launch":
        with np.errstate(all="ignore"):
            self._run()
        return self

    def _run(self) -> None:
        pc = self.pc = np.zeros(self.count, np.int64)
        alive = self.alive = np.ones(self.count, np.bool_)
        self.at_barrier = np.zeros(self.count, np.bool_)
        self.at_warp = np.zeros(self.count, np.bool_)  # waits for other lanes of its mask
        steps = 0
        while alive.any():
            active = alive & ~self.at_barrier & ~self.at_warp
            if not active.any():
                self._stuck()
                continue
            at = int(pc[active].min())
            mask = active & (pc == at)
            steps += self._straight(at, mask)
            if steps > STEPS:
                raise PTXError(f"{self.kernel.name} does not end")

    def _straight(self, at: int, mask: np.ndarray) -> int:
        """Run these threads up to a branch, a label or a barrier; the instructions it took."""
        where = np.flatnonzero(mask)
        steps = 0
        while True:
            if at >= len(self.kernel.code):
                self.alive[where] = False
                return steps
            step = self.kernel.code[at]
            steps += 1
            self.counts["instructions"] += len(where)
            taken = where
            if step.guard is not None:
                holds = self._register(step.guard[0])[where] ^ step.guard[1]
                taken = where[holds]
            name = step.op[0]
            if name == "bra":
                self.pc[where] = at + 1
                self.pc[taken] = self.kernel.labels[step.operands[0]]
                return steps
            if name in ("ret", "exit"):
                self.pc[where] = at + 1
                self.alive[taken] = False
                return steps
            if name in WAITING or step.op[:2] == ("bar", "warp"):
                self._together(at, step, taken)
                if len(taken) < len(where):
                    self.pc[np.setdiff1d(where, taken)] = at + 1
                return steps
            if name in ("bar", "barrier"):
                self.pc[where] = at + 1
                self.at_barrier[taken] = True
                self._release()
                return steps
            if len(taken):
                self._execute(step, taken)
            at += 1
            if at in self.targets:
                self.pc[where] = at
                return steps

    def _release(self) -> None:
        """Let blocks go on in which every living thread waits at a barrier."""
        alive = self.alive.reshape(-1, self.per_block)
        waiting = self.at_barrier.reshape(-1, self.per_block)
        for b in np.flatnonzero((waiting | ~alive).all(1) & alive.any(1) & waiting.any(1)):
            span = slice(b * self.per_block, (b + 1) * self.per_block)
            places = self.pc[span][alive[b]]
            if (places != places[0]).any():
                raise PTXError(f"divergent barrier: block {b} waits at different places")
            self.at_barrier[span] = False
            self.threads.passed[b] += 1
            self.counts["barriers"] += 1

    def _stuck(self) -> None:
        """Nobody can run: either threads have ended since, or somebody waits for ever."""
        before = int(self.at_barrier.sum()) + int(self.at_warp.sum())
        self._release()
        for at in np.unique(self.pc[self.at_warp & self.alive]).tolist():
            self._together(at, self.kernel.code[at], np.empty(0, np.int64))
        if int(self.at_barrier.sum()) + int(self.at_warp.sum()) == before:
            lost = self.at_warp & self.alive
            where = self.kernel.code[int(self.pc[lost].min())].text if lost.any() else "a barrier"
            what = "lanes of the mask never arrive at" if lost.any() else "divergent barrier:"
            raise PTXError(f"{what} {where}")

    def _together(self, at: int, step: Instruction, arriving: np.ndarray) -> None:
        """An instruction for all lanes of a mask: those whose partners are there go on."""
        self.pc[arriving] = at
        self.at_warp[arriving] = True
        here = np.flatnonzero(self.at_warp & self.alive & (self.pc == at))
        member = np.broadcast_to(
            self._source(step.operands[-1], np.uint32, here), (len(here),)
        ).astype(np.int64)
        present = np.zeros(int(self.warp.max()) + 1, np.int64)
        np.bitwise_or.at(present, self.warp[here], 1 << self.lane[here])
        living = np.zeros_like(present)
        now = np.flatnonzero(self.alive)
        np.bitwise_or.at(living, self.warp[now], 1 << self.lane[now])
        if ((member >> self.lane[here]) & 1 == 0).any():
            raise PTXError(f"a lane that its own mask does not name: {step.text}")
        missing = member & living[self.warp[here]] & ~present[self.warp[here]]
        ready = here[missing == 0]
        if not len(ready):
            return
        if step.op[0] == "shfl":
            self._shuffle(step, ready)
        elif step.op[0] == "vote":
            self._vote(step, ready, member[missing == 0])
        elif step.op[0] == "bar":
            first = np.log2((member[missing == 0] & -member[missing == 0]).astype(float))
            self.threads.group[ready] = ready - self.lane[ready] + first.astype(np.int64)
            self.threads.met[ready] += 1
        else:
            raise PTXError(f"no instruction {step.text}")
        self.at_warp[ready] = False
        self.pc[ready] = at + 1

    def _shuffle(self, step: Instruction, ix: np.ndarray) -> None:
        target, value, offset, clamp = step.operands[:4]
        lane = self.lane[ix].astype(np.int64)
        b = self._source(offset, np.int32, ix).astype(np.int64)
        c = self._source(clamp, np.uint32, ix).astype(np.int64)
        segment = (c >> 8) & 31
        low, high = lane & segment, (lane & segment) | (c & 31 & ~segment)
        mode = step.op[2]
        other = {"bfly": lane ^ b, "down": lane + b, "up": lane - b, "idx": low | (b & ~segment)}[
            mode
        ]
        inside = other >= low if mode == "up" else other <= high
        other = np.where(inside, other, lane)
        source = ix - lane + other
        known = np.zeros(self.count, np.bool_)
        known[ix] = True
        if (source >= self.count).any() or not known[source].all():
            raise PTXError(f"shuffle reads an inactive lane: {step.text}")
        self.counts["shuffles"] += 1
        names = target.split("|")
        moved = np.broadcast_to(self._source(value, np.uint32, np.arange(self.count)), self.count)
        self._set(names[0], moved[source].copy(), ix)
        if len(names) > 1:
            self._set(names[1], inside, ix)

    def _vote(self, step: Instruction, ix: np.ndarray, member: np.ndarray) -> None:
        mode, value = step.op[2], self._source(step.operands[1], np.bool_, ix)
        value = np.broadcast_to(value, (len(ix),))
        key = (self.warp[ix] << 32) + member
        keys, place = np.unique(key, return_inverse=True)
        ballot = np.zeros(len(keys), np.int64)
        np.bitwise_or.at(ballot, place, np.where(value, 1 << self.lane[ix], 0))
        everybody = np.zeros(len(keys), np.int64)
        np.bitwise_or.at(everybody, place, 1 << self.lane[ix])
        votes, all_of = ballot[place], everybody[place]
        out = {"ballot": votes.astype(np.uint32), "any": votes != 0, "all": votes == all_of}[mode]
        self._set(step.operands[0], out, ix)

    # -- operands --------------------------------------------------------------------------------

    def _register(self, name: str) -> np.ndarray:
        found = self.registers.get(name)
        if found is None:
            kinds = self.kernel.registers
            kind = kinds.get(name) or kinds[name.rstrip("0123456789")]
            found = self.registers[name] = np.zeros(self.count, STORED[kind])
        return found

    def _source(self, name: str, kind: Any, ix: np.ndarray) -> Any:
        """An operand of these threads, as the type an instruction wants."""
        first = name[0]
        if first == "%":
            special = self.special.get(name)
            return bits((self._register(name) if special is None else special)[ix], kind)
        if first == "!":
            return ~self._source(name[1:], np.bool_, ix)
        if name in self.kernel.shared:
            return np.array(self.kernel.shared[name], kind)
        if name in self.kernel.local:
            return np.array(self.kernel.local[name], kind)
        if name[:2] in ("0f", "0d", "0F", "0D"):
            word = int(name[2:], 16)
            single = name[1] in "fF"
            number = np.array(word, np.uint32 if single else np.uint64)
            return bits(number.view(np.float32 if single else np.float64), kind)
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            return np.array(float(name), kind)
        value = int(name.rstrip("U"), 0) & ((1 << (8 * dtype.itemsize)) - 1)
        return np.array(value, f"u{dtype.itemsize}").view(dtype)

    def _set(self, name: str, value: Any, ix: np.ndarray) -> None:
        if name != "_":
            register = self._register(name)
            value = np.asarray(value)
            if value.dtype.itemsize != register.dtype.itemsize and value.dtype.kind in "iu":
                value = value.astype(np.int64 if value.dtype.kind == "i" else np.uint64)
                value = value.astype(register.dtype)  # narrow integers are extended by their sign
            register[ix] = bits(value, register.dtype)

    def _address(self, operand: str, ix: np.ndarray) -> np.ndarray:
        m = ADDRESS.match(operand)
        if m is None:
            raise PTXError(f"no address: {operand}")
        base: Any = 0
        if m[1][0] == "%":
            base = self._register(m[1])[ix].astype(np.int64)
        else:
            base = self._source(m[1], np.int64, ix)
        return np.broadcast_to(base + int(m[2] or "0", 0), (len(ix),))

    # -- instructions ----------------------------------------------------------------------------

    def _execute(self, step: Instruction, ix: np.ndarray) -> None:
        op, operands = step.op, step.operands
        kind = TYPES.get(op[-1])
        match op[0]:
            case "ld" | "ldu":
                self._load(step, ix)
            case "st":
                self._store(step, ix)
            case "mov":
                self._move(step, ix)
            case "cvta":
                value = self._source(operands[1], np.uint64, ix)
                if "shared" in op:
                    value = (
                        value - np.uint64(SHARED_AT)
                        if op[1] == "to"
                        else value + np.uint64(SHARED_AT)
                    )
                self._set(operands[0], value, ix)
            case "setp":
                a, b = (self._source(o, kind, ix) for o in operands[1:3])
                result = lanes.compare(op, a, b)
                if op[2] in lanes.LOGIC:
                    result = lanes.LOGIC[op[2]](result, self._source(operands[3], np.bool_, ix))
                names = operands[0].split("|")
                self._set(names[0], result, ix)
                for name in names[1:]:
                    self._set(name, ~result, ix)
            case "selp":
                a, b = (self._source(o, kind, ix) for o in operands[1:3])
                self._set(operands[0], np.where(self._source(operands[3], np.bool_, ix), a, b), ix)
            case "cvt":
                self._set(operands[0], lanes.convert(op, self._source(operands[1], kind, ix)), ix)
            case "fence" | "membar" | "nop":
                pass
            case _:
                self._set(operands[0], self._arithmetic(step, kind, ix), ix)

    def _arithmetic(self, step: Instruction, kind: Any, ix: np.ndarray) -> Any:
        op, operands = step.op, step.operands[1:]
        kinds = [kind] * len(operands)
        if op[0] in ("shl", "shr"):
            kinds[1] = np.uint32
        elif op[0] in ("mad", "fma") and "wide" in op:
            kinds[2] = lanes.WIDE[kind]
        return lanes.execute(
            op, [self._source(o, k, ix) for o, k in zip(operands, kinds, strict=True)]
        )

    def _move(self, step: Instruction, ix: np.ndarray) -> None:
        target, source = step.operands
        if target[0] == "{":
            names = names_of(target)
            word = self._source(source, TYPES[step.op[-1]], ix)
            size = 8 * np.dtype(TYPES[step.op[-1]]).itemsize // len(names)
            word = np.asarray(word).astype(np.uint64)
            for k, name in enumerate(names):
                part = (word >> np.uint64(k * size)) & np.uint64((1 << size) - 1)
                self._set(name, part.astype(f"u{size // 8}"), ix)
        elif source[0] == "{":
            names = names_of(source)
            size = np.dtype(TYPES[step.op[-1]]).itemsize // len(names)
            word = np.zeros(len(ix), np.uint64)
            for k, name in enumerate(names):
                part = np.asarray(self._source(name, f"u{size}", ix)).astype(np.uint64)
                word |= part << np.uint64(8 * size * k)
            self._set(target, word.astype(f"u{size * len(names)}"), ix)
        else:
            self._set(target, self._source(source, TYPES[step.op[-1]], ix), ix)
