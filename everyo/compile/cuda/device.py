"""A GPU, driven through cuda.core: kernels by address, pooled memory, graphs, cuBLAS by ctypes.

Numba's dispatcher is never on the way of a launch: kernels are compiled to machine code once (and
kept on disk), and take pointers and numbers only.
"""

import threading
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from everyo.compile import cache as disk
from everyo.compile.cuda import cublas, toolchain
from everyo.compile.cuda.runtime import Gemm
from everyo.compile.cuda.toolchain import Code

TOOLKIT = 13  # the major version of the toolkit that compiles kernels
LEGACY = 1  # the number of the legacy default stream


@cache
def reason() -> str | None:
    """Why no GPU can be used here, or None. Never raises."""
    try:
        if find_spec("cuda") is None or find_spec("cuda.core") is None:
            return "the CUDA packages are not installed; pip install 'everyo[cuda]'"
        from cuda.core import Device

        old = _too_old()
        if old is not None:
            return old
        count = len(Device.get_all_devices())
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        return f"no CUDA driver or device was found ({type(error).__name__}: {first})"
    return toolchain.missing() if count else "the CUDA driver has no device"


def _too_old() -> str | None:
    """Machine code is loaded by drivers of the toolkit's major version, or later ones."""
    from cuda.bindings import driver

    status, version = driver.cuDriverGetVersion()
    if int(status) == 0 and version < 1000 * TOOLKIT:
        has = f"{version // 1000}.{version % 1000 // 10}"
        return f"the driver knows CUDA {has}, kernels need {TOOLKIT}.0; install driver 580 or later"
    return None


def count() -> int:
    """How many GPUs there are."""
    if reason() is not None:
        return 0
    from cuda.core import Device

    return len(Device.get_all_devices())


class DeviceRuntime:
    """The protocol on a GPU: one stream per device, memory from the driver's own pool."""

    name = "cuda"

    def __init__(self, index: int = 0) -> None:
        from cuda.bindings import driver
        from cuda.core import Device, LaunchConfig, ObjectCode, launch

        self.index = index
        self._driver, self._launch = driver, launch
        self._config, self._object = LaunchConfig, ObjectCode
        self.device = Device(index)
        self._thread = threading.local()
        self._here()
        self.stream = self.device.create_stream()
        self.capturing = threading.RLock()  # held while cuBLAS launches, or a graph is built
        capability = self.device.compute_capability
        self.cc = (capability.major, capability.minor)
        self.buffers: dict[int, Any] = {}
        self.configs: dict[tuple[int, int], Any] = {}
        self.blas = cublas.Library.open(int(self.stream.handle), self.allocate)

    def _here(self) -> None:
        """Make the device the current one of this thread."""
        if not hasattr(self._thread, "ready"):
            self.device.set_current()
            self._thread.ready = True

    def allocate(self, size: int) -> int:
        self._here()
        buffer = self.device.memory_resource.allocate(max(size, 1), stream=self.stream)
        self.buffers[int(buffer.handle)] = buffer
        return int(buffer.handle)

    def free(self, address: int) -> None:
        buffer = self.buffers.pop(address, None)
        if buffer is not None:
            buffer.close(self.stream)

    def upload(self, address: int, data: np.ndarray) -> None:
        self._here()
        raw = np.ascontiguousarray(data)
        if raw.nbytes:
            handle = self.stream.handle
            self._check(
                self._driver.cuMemcpyHtoDAsync(address, raw.ctypes.data, raw.nbytes, handle)
            )

    def download(self, address: int, size: int) -> np.ndarray:
        self._here()
        out = np.empty(size, np.uint8)
        if size:
            handle = self.stream.handle
            self._check(self._driver.cuMemcpyDtoHAsync(out.ctypes.data, address, size, handle))
        self.stream.sync()
        return out

    def load(self, code: Code) -> Any:
        return self._object.from_cubin(machine_code(code, self.cc)).get_kernel(code.name)

    def launch(
        self, kernel: Any, blocks: int, threads: int, args: Sequence[int], name: str = ""
    ) -> None:
        self._here()
        config = self.configs.get((blocks, threads))
        if config is None:
            config = self.configs[blocks, threads] = self._config(grid=blocks, block=threads)
        # where launches of this thread go: the stream, or the graph that it builds
        target = getattr(self._thread, "target", None)
        self._launch(target or self.stream, config, kernel, *args)

    def gemm(self, product: Gemm, a: int, b: int, c: int) -> bool:
        if self.blas is None:
            return False
        self._here()
        with self.capturing:
            self.blas.multiply(product, a, b, c)
        return True

    def allow_tf32(self, allowed: bool) -> None:
        if self.blas is not None:
            self.blas.allow_tf32(allowed)

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """The graph is built on a stream of its own: memory that is given back in the meantime, or
        what other threads launch, is no part of it."""
        self._here()
        builder = self.device.create_graph_builder()
        with self.capturing:
            builder.begin_building()
            self._thread.target = builder
            try:
                if self.blas is not None:
                    self.blas.use(int(builder.stream.handle))
                run()
            finally:
                self._thread.target = None
                builder.end_building()
                if self.blas is not None:
                    self.blas.use(int(self.stream.handle))
        graph = builder.complete()
        return lambda: graph.launch(self.stream)

    @property
    def stream_number(self) -> int:
        """The stream that others must wait for, in the array interface."""
        return int(self.stream.handle)

    def exported(self, array: Any, stream: int | None) -> Any:
        """What speaks DLPack for a device array, which it keeps alive; `stream` waits for what was
        launched so far. As DLPack has it, None and 1 are the legacy default stream, 2 is that of
        the thread, -1 waits for nothing, and 0 says too little."""
        from cuda.core import Buffer
        from cuda.core.utils import StridedMemoryView

        if stream == 0:
            raise ValueError("DLPack: stream 0 is ambiguous; pass 1, 2, or the address of a stream")
        self._here()
        if stream != -1:
            waiting, event = LEGACY if stream is None else stream, self.stream.record()
            self._check(self._driver.cuStreamWaitEvent(waiting, event.handle, 0))
        buffer = Buffer.from_handle(array.address, max(array.nbytes, 1), owner=array)
        steps = tuple(s // array.itemsize for s in array.strides)
        return StridedMemoryView.from_buffer(buffer, array.shape, steps, dtype=array.dtype)

    def interface(self, source: Any) -> tuple[Any, dict[str, Any]]:
        """The array interface of what only speaks DLPack, and what keeps its memory alive."""
        from cuda.core.utils import StridedMemoryView

        self._here()
        view = StridedMemoryView.from_dlpack(source, self.stream_number)
        steps = None if view.strides is None else tuple(
            s * view.dtype.itemsize for s in view.strides
        )  # fmt: skip
        return view, {
            "shape": view.shape, "strides": steps, "typestr": view.dtype.str, "stream": None,
            "data": (view.ptr, view.is_readonly),
        }  # fmt: skip

    def wait_for(self, stream: int) -> None:
        self._here()
        driver = self._driver
        made, event = driver.cuEventCreate(driver.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        self._check((made,))
        self._check(driver.cuEventRecord(event, stream))
        self._check(driver.cuStreamWaitEvent(self.stream.handle, event, 0))
        self._check(driver.cuEventDestroy(event))  # once it has happened

    def event(self) -> Any:
        from cuda.core import EventOptions

        return self.stream.record(options=EventOptions(timing_enabled=True))

    def elapsed(self, start: Any, end: Any) -> float:
        end.sync()
        return (end - start) / 1e3

    def synchronize(self) -> None:
        self.stream.sync()

    def _check(self, result: Any) -> None:
        if int(result[0]) != 0:
            raise RuntimeError(f"the CUDA driver answered {result[0]!r}")


def machine_code(code: Code, cc: tuple[int, int]) -> bytes:
    """The cubin of a kernel: from disk, or assembled now and kept there."""
    name = disk.key(f"sm_{cc[0]}{cc[1]} {toolchain.version()}\n{code.ptx}")
    stored = disk.load(name)
    if stored is not None:
        return stored.code
    made = toolchain.assemble(code, cc)
    disk.store(name, code.ptx, disk.Stored(code.name, made))
    return made


@cache
def runtime(index: int = 0) -> DeviceRuntime:
    """The one runtime of a GPU in this process."""
    return DeviceRuntime(index)
