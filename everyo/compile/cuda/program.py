"""A graph, compiled for a device: the same call as `cpu.Program`, on device arrays.

A call allocates outputs, hands host values over in one block, turns places into addresses and
launches. Equal addresses come again in a training loop; then what was launched before is captured
as a graph and replayed: one graph, or two where checks are read in between.
"""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from everyo.compile.cpu import extent
from everyo.compile.cuda import toolchain
from everyo.compile.cuda.plan import (
    ARRAYS,
    FLAGS,
    NUMBER,
    TABLE,
    WORD,
    Argument,
    Plan,
    Step,
)
from everyo.compile.cuda.runtime import Buffer, Runtime
from everyo.compile.ir import Graph, Node, require
from everyo.compile.rows import sources
from everyo.core.device import Device
from everyo.core.device_array import DeviceArray, contiguous
from everyo.core.watch import Watcher
from everyo.exceptions import EveryODeviceError

ALIGN = 64
GRAPHS = 4  # sets of addresses per program whose tables and graphs are kept

Arrays = Sequence[Any]


class Program:
    """`program(arrays)` returns the outputs and stores the writes of a graph.

    `arrays` are one per input, device arrays or NumPy arrays of the input's shape, dtype and
    strides; NumPy arrays are copied to the device at each call, and back if they are written.
    """

    data_at = -1  # the addresses of these arrays cannot be read from the objects

    def __init__(self, graph: Graph, runtime: Runtime) -> None:
        self.graph, self.runtime = graph, runtime
        self.device = Device("cuda", runtime.index)
        self.lock = threading.Lock()
        self._plans: dict[bool, _Loaded] = {}
        self._block: Buffer | None = None
        self._sent: np.ndarray | None = None  # what the block holds
        plan = self._loaded(True).plan
        self.schedule, self.kernels = plan.schedule, tuple(plan.steps)
        self.arena_bytes = plan.arena_bytes
        self.legal = plan.schedule.graph
        self.fresh = [(o.shape, o.dtype) for o in self.legal.outputs]
        self.written = {i for i, n in enumerate(graph.inputs) if n in {t for t, _ in graph.writes}}

    def __call__(self, arrays: Arrays) -> list[DeviceArray]:
        outputs = self._outputs()
        with self.lock:
            given, back = self._on_device(arrays)
            if self._overlap(given):
                return self._on_copies(given, back, outputs)
            self._run(given, outputs)
            self._home(arrays, given, back)
        return outputs

    def source(self) -> str:
        """The text of every distinct kernel."""
        return sources(self.kernels)

    def profile(self, arrays: Arrays, repeats: int = 20) -> list[float]:
        """Median seconds of each step, between marks in the stream. Written arrays are copies."""
        outputs = self._outputs()
        with self.lock:
            given, _ = self._on_device(arrays)
            given = [a.copy() if i in self.written else a for i, a in enumerate(given)]
            loaded, addresses = self._bound(given, outputs)
            loaded.launch(addresses, 0, len(self.kernels))
            medians = []
            for i in range(len(self.kernels)):
                times = []
                for _ in range(repeats):
                    start = self.runtime.event()
                    loaded.launch(addresses, i, i + 1)
                    times.append(self.runtime.elapsed(start, self.runtime.event()))
                medians.append(sorted(times)[len(times) // 2])
        return medians

    def bench(self, arrays: Arrays, repeats: int = 20) -> float:
        """Median seconds of a whole call, synchronised."""
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            self(arrays)
            self.runtime.synchronize()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    # -- arrays

    def _outputs(self) -> list[DeviceArray]:
        """New arrays for the results."""
        return [
            DeviceArray(Buffer(self.runtime, math.prod(shape) * dtype.itemsize), shape, dtype)
            for shape, dtype in self.fresh
        ]

    def _on_device(self, arrays: Arrays) -> tuple[list[DeviceArray], list[int]]:
        """The inputs as device arrays, and which of them must be copied back."""
        given: list[Any] = list(arrays)
        host = [i for i, a in enumerate(given) if not isinstance(a, DeviceArray)]
        for a, n in zip(given, self.graph.inputs, strict=True):
            if isinstance(a, DeviceArray) and a.device != self.device:
                raise EveryODeviceError(
                    f"{self.graph.name} runs on {self.device}, an input of shape {n.shape} is on "
                    f"{a.device}; move it with .to({str(self.device)!r})"
                )
        if host:
            self._hand_over(given, host)
        return given, [i for i in host if i in self.written]

    def _hand_over(self, given: list[Any], host: list[int]) -> None:
        """Copy host arrays to the device in one piece, each laid out as its input wants."""
        parts, at, places = [], 0, []
        for i in host:
            n = self.graph.inputs[i]
            strides = [s * n.dtype.itemsize for s in self._strides(n)]
            low, high = extent(n.shape, strides) if n.size else (0, -n.dtype.itemsize)
            part = np.zeros(high - low + n.dtype.itemsize, np.uint8)
            if n.size:
                np.ndarray(n.shape, n.dtype, part, -low, strides)[...] = given[i]
            parts.append((at, part))
            places.append((i, at - low, strides))
            at += -(-max(part.size, 1) // ALIGN) * ALIGN
        block = np.zeros(at, np.uint8)
        for start, part in parts:
            block[start : start + part.size] = part
        if self._block is None or self._block.size < at:
            self._block = Buffer(self.runtime, at)  # of the program: its address stays
            self._sent = None
        buffer = self._block
        if self._sent is None or not np.array_equal(self._sent, block):
            self.runtime.upload(buffer.address, block)
            # numbers stay there for the next call, unless this one writes them
            self._sent = None if self.written & set(host) else block
        for i, offset, strides in places:
            n = self.graph.inputs[i]
            given[i] = DeviceArray(buffer, n.shape, n.dtype, tuple(strides), offset)

    def _home(self, arrays: Arrays, given: list[DeviceArray], back: list[int]) -> None:
        for i in back:
            arrays[i][...] = given[i].numpy()

    def _strides(self, n: Node) -> list[int]:
        """Strides of an input, in elements."""
        return self._loaded(True).plan.legal.layout(n)

    def _overlap(self, given: list[DeviceArray]) -> bool:
        """Whether a written input shares bytes with another input."""
        if not self.written:
            return False
        spans = []
        for i, a in enumerate(given):
            if a.size:
                low, high = extent(a.shape, a.strides)
                spans.append((a.address + low, a.address + high + a.itemsize, i in self.written))
        spans.sort()
        end = written_end = 0
        for low, high, written in spans:
            if low < written_end or (written and low < end):
                return True
            end = max(end, high)
            written_end = max(written_end, high) if written else written_end
        return False

    def _on_copies(
        self, given: list[DeviceArray], back: list[int], outputs: list[DeviceArray]
    ) -> list[DeviceArray]:
        """Written arrays overlap with others: work on copies, store them at the end, in order."""
        copies = [a.copy() if i in self.written else a for i, a in enumerate(given)]
        laid = [
            _like(c, self._strides(n)) if i in self.written else c
            for i, (c, n) in enumerate(zip(copies, self.graph.inputs, strict=True))
        ]
        self._run(laid, outputs)
        for target, _ in self.graph.writes:
            i = self.graph.inputs.index(target)
            given[i][...] = laid[i]
        return outputs

    # -- running

    def _loaded(self, vector: bool) -> "_Loaded":
        if vector not in self._plans:
            self._plans[vector] = _Loaded(Plan(self.graph, vector), self.runtime)
        return self._plans[vector]

    def _bound(self, given: Arrays, outputs: Arrays) -> tuple["_Loaded", "_Addresses"]:
        """The plan that the alignment of these arrays allows, and the addresses by place."""
        for n, a in zip(self.legal.inputs, given, strict=True):
            require((a.shape, a.dtype) == (n.shape, n.dtype), "input", n, "got", a.shape, a.dtype)
        found = tuple(a.address for a in (*given, *outputs))
        vector = all(
            found[place - ARRAYS] % align == 0 for place, align in self._loaded(True).plan.aligned
        )
        loaded = self._loaded(vector)
        return loaded, loaded.addresses(found)

    def _run(self, given: Arrays, outputs: Arrays) -> None:
        loaded, addresses = self._bound(given, outputs)
        plan = loaded.plan
        if plan.flags:
            loaded.run(addresses, 0, plan.guard)
            self._check(loaded, addresses)
        loaded.run(addresses, plan.guard if plan.flags else 0, len(plan.steps))

    def _check(self, loaded: "_Loaded", addresses: "_Addresses") -> None:
        """Raise the error of the first check that failed. The flags come in one copy."""
        plan = loaded.plan
        read = self.runtime.download(loaded.flags.address, plan.flag_bytes)
        for check, (place, shift) in zip(self.legal.checks, plan.flags, strict=True):
            bad = (
                read[shift]
                if place == FLAGS
                else self.runtime.download(addresses.of((place, shift)), 1)[0]
            )
            if bad:
                raise check.error(check.message)


class _Addresses:
    """The address of every place for one set of arrays, the table of arguments that holds such
    addresses, and the graphs captured for it by the first of their steps."""

    def __init__(self, plan: Plan, runtime: Runtime, by_place: Sequence[int]) -> None:
        self.by_place = list(by_place)
        self.graphs: dict[int, Any] = {}
        self.table: Buffer | None = None
        if plan.table:
            self.table = Buffer(runtime, WORD * len(plan.table))
            self.by_place[TABLE] = self.table.address
            words = np.array([self.of(a) for a in plan.table], np.uint64)
            runtime.upload(self.table.address, words)

    def of(self, argument: Argument) -> int:
        """An argument as a number."""
        place, shift = argument
        return shift if place == NUMBER else self.by_place[place] + shift


class _Loaded:
    """A plan with its kernels loaded, an arena, and what belongs to the last sets of arrays."""

    def __init__(self, plan: Plan, runtime: Runtime) -> None:
        self.plan, self.runtime = plan, runtime
        self.arena = Buffer(runtime, plan.arena_bytes)
        self.flags = Buffer(runtime, plan.flag_bytes)
        self.kernels: list[Any] = [None] * len(plan.steps)
        self.known: OrderedDict[tuple[int, ...], _Addresses] = OrderedDict()

    def addresses(self, arrays: tuple[int, ...]) -> _Addresses:
        """What belongs to arrays at these addresses."""
        found = self.known.get(arrays)
        if found is None:
            places = (self.arena.address, self.flags.address, 0, *arrays)
            found = self.known[arrays] = _Addresses(self.plan, self.runtime, places)
            if len(self.known) > GRAPHS:
                self.known.popitem(last=False)
        else:
            self.known.move_to_end(arrays)
        return found

    def kernel(self, i: int) -> Any:
        """The kernel of a step, compiled when it is first launched."""
        if self.kernels[i] is None:
            step = self.plan.steps[i]
            code = toolchain.compile_ptx(step.text, step.params, self.runtime.cc)
            self.kernels[i] = self.runtime.load(code)
        return self.kernels[i]

    def launch(self, addresses: _Addresses, start: int, end: int) -> None:
        """Launch steps one by one."""
        for i in range(start, end):
            step, watcher = self.plan.steps[i], Watcher.active
            args = [addresses.of(a) for a in step.arguments]
            if watcher is None:
                self._launch(i, step, args)
                continue
            with watcher.span(step.name, kernel=True, bytes=step.bytes, flops=step.flops):
                self._launch(i, step, args)
                self.runtime.synchronize()

    def _launch(self, i: int, step: Step, args: list[int]) -> None:
        if step.product is None or not self.runtime.gemm(step.product, *args):
            self.runtime.launch(self.kernel(i), step.blocks, step.threads, args, step.name)

    def run(self, addresses: _Addresses, start: int, end: int) -> None:
        """Launch steps; addresses that come a second time are captured, then replayed."""
        graphs = addresses.graphs
        if Watcher.active is not None or start == end:  # a graph has no times of its kernels
            self.launch(addresses, start, end)
        elif start not in graphs:
            graphs[start] = None
            self.launch(addresses, start, end)
        else:
            if graphs[start] is None:
                graphs[start] = self.runtime.capture(lambda: self.launch(addresses, start, end))
            graphs[start]()


def _like(a: DeviceArray, strides: Sequence[int]) -> DeviceArray:
    """A contiguous array in memory of its own, laid out with strides given in elements."""
    steps = [s * a.itemsize for s in strides]
    if not a.size or tuple(steps) == contiguous(a.shape, a.itemsize):
        return a
    low, high = extent(a.shape, steps)
    buffer = Buffer(a.buffer.runtime, high - low + a.itemsize)
    out = DeviceArray(buffer, a.shape, a.dtype, tuple(steps), -low)
    out[...] = a
    return out


__all__ = ["Program", "Step"]
