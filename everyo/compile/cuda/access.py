"""Loads and stores of an interpreted launch, with every check that memory needs."""

import re
from collections import Counter
from typing import Any

import numpy as np

from everyo.compile.cuda.lanes import bits
from everyo.compile.cuda.memory import DeviceMemory, History, Threads, sectors, spaces, wavefronts
from everyo.compile.cuda.ptx import TYPES, Instruction, Kernel, PTXError, names_of


class Accesses:
    """The memory of a launch: the device's, and that of its blocks and threads."""

    kernel: Kernel
    memory: DeviceMemory
    threads: Threads
    checks: bool
    args: dict[str, Any]
    block: np.ndarray
    warp: np.ndarray
    counts: Counter[str]

    def prepare(self, blocks: int, count: int) -> None:
        """Shared memory for so many blocks, local memory for so many threads."""
        size = -(-max(self.kernel.shared_bytes, 1) // 16) * 16
        self.shared = np.full((blocks, size), 0xFF, np.uint8)
        self.shared_valid = np.zeros((blocks, size), np.bool_)
        self.local = np.zeros((count, -(-max(self.kernel.local_bytes, 1) // 16) * 16), np.uint8)
        self.shared_history = History(blocks * size) if self.checks else None
        self.histories: dict[int, History] = {}

    def _set(self, name: str, value: Any, ix: np.ndarray) -> None:
        raise NotImplementedError

    def _source(self, name: str, kind: Any, ix: np.ndarray) -> Any:
        raise NotImplementedError

    def _address(self, operand: str, ix: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _load(self, step: Instruction, ix: np.ndarray) -> None:
        kind = TYPES[step.op[-1]]
        names = names_of(step.operands[0])
        if step.op[1] == "param":
            found = re.match(r"\[\s*([\w$]+)\s*(?:\+\s*(\d+))?\s*\]", step.operands[1])
            assert found is not None
            self._set(names[0], bits(self.args[found[1]], kind), ix)
            return
        space, address = self._space(step, step.operands[1], ix)
        raw = self._access(space, address, len(names) * np.dtype(kind).itemsize, ix, step, None)
        values: Any = np.ascontiguousarray(raw).view(kind)
        for k, name in enumerate(names):
            self._set(name, values[:, k], ix)

    def _store(self, step: Instruction, ix: np.ndarray) -> None:
        kind = TYPES[step.op[-1]]
        space, address = self._space(step, step.operands[0], ix)
        parts = [
            np.broadcast_to(self._source(name, kind, ix), (len(ix),))
            for name in names_of(step.operands[1])
        ]
        raw = np.ascontiguousarray(np.stack(parts, 1)).view(np.uint8)
        self._access(space, address, raw.shape[1], ix, step, raw)

    def _space(self, step: Instruction, operand: str, ix: np.ndarray) -> tuple[str, np.ndarray]:
        address = self._address(operand, ix)
        named = next((s for s in ("global", "shared", "local") if s in step.op), None)
        return (named, address) if named else spaces(address)

    def _access(
        self,
        space: str,
        address: np.ndarray,
        size: int,
        ix: np.ndarray,
        step: Instruction,
        raw: np.ndarray | None,
    ) -> np.ndarray:
        """Load (`raw` is None) or store `size` bytes per thread."""
        if (address % size).any():
            raise PTXError(f"misaligned {size}-byte access: {step.text}")
        if space == "global":
            return self._global(address, size, ix, step, raw)
        if space == "shared":
            flat, limit = self.shared, self.kernel.shared_bytes
            row, valid = self.block[ix], self.shared_valid
        else:
            flat, limit, row, valid = self.local, self.kernel.local_bytes, ix, None
        if address.min() < 0 or address.max() + size > limit:
            raise PTXError(f"out of bounds of {limit} bytes of {space} memory: {step.text}")
        where = address[:, None] + np.arange(size)
        if space == "shared":
            self._check_shared(address, size, ix, step, raw)
            requests, passes = wavefronts(self.warp[ix], address >> 2) if size == 4 else (0, 0)
            self.counts["shared requests"] += requests
            self.counts["shared wavefronts"] += passes
        if raw is None:
            if valid is not None and not valid[row[:, None], where].all():
                raise PTXError(f"read of uninitialised shared memory: {step.text}")
            return flat[row[:, None], where]
        flat[row[:, None], where] = raw
        if valid is not None:
            valid[row[:, None], where] = True
        return raw

    def _check_shared(
        self, address: np.ndarray, size: int, ix: np.ndarray, step: Instruction, raw: Any
    ) -> None:
        if self.shared_history is None:
            return
        start = self.block[ix] * self.shared.shape[1] + address
        self._note(self.shared_history, start, size, ix, step, raw)

    def _note(
        self, history: History, start: np.ndarray, size: int, ix: np.ndarray, step: Instruction,
        raw: Any,
    ) -> None:  # fmt: skip
        item = np.dtype(TYPES[step.op[-1]]).itemsize
        note = history.read if raw is None else history.write
        for k in range(0, size, item):
            note(start + k, ix, self.threads, step.text)

    def _global(
        self, address: np.ndarray, size: int, ix: np.ndarray, step: Instruction, raw: Any
    ) -> np.ndarray:
        requests, moved = sectors(self.warp[ix], address)
        what = "load" if raw is None else "store"
        self.counts[f"global {what}s of {8 * size} bits"] += requests
        self.counts[f"global {what} sectors"] += moved
        self.counts[f"global {what} bytes"] += size * len(ix)
        out = np.empty((len(ix), size), np.uint8) if raw is None else raw
        rest = np.arange(len(ix))
        while len(rest):
            try:
                block = self.memory.find(int(address[rest[0]]), size)
            except PTXError as error:
                raise PTXError(f"{error}: {step.text}") from None
            at = address[rest] - block.address
            mine = (at >= 0) & (at + size <= block.size)
            here, at = rest[mine], at[mine]
            where = at[:, None] + np.arange(size)
            if self.checks:
                history = self.histories.get(block.address)
                if history is None:
                    history = self.histories[block.address] = History(block.data.size)
                self._note(history, at, size, ix[here], step, raw)
            if raw is None:
                if self.checks and not block.valid[where].all():
                    raise PTXError(f"read of uninitialised global memory: {step.text}")
                out[here] = block.data[where]
            else:
                block.data[where] = raw[here]
                block.valid[where] = True
            rest = rest[~mine]
        return out
