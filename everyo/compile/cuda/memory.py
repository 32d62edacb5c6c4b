"""The memory of an emulated device, and who touched what since the last barrier.

Every allocation has an address range of its own with unmapped gaps between them, so a wild access
hits nothing; ranges that were given back are used again, as by a pool. `History` remembers the last
writer and readers of each element and finds two threads that use one element without a barrier
between them.
"""

import bisect
from typing import Any

import numpy as np

from everyo.compile.cuda.ptx import PTXError

PAGE = 4096  # addresses of allocations are multiples; at least this much is unmapped between two
FIRST = 1 << 20
SHARED_AT, LOCAL_AT = 1 << 60, 1 << 61  # where these spaces lie among generic addresses
NOBODY, SEVERAL = -1, -2


class Allocation:
    """Bytes on the device; `valid` says which of them were ever written."""

    def __init__(self, address: int, size: int) -> None:
        self.address, self.size = address, size
        self.data = np.full(-(-max(size, 1) // 16) * 16, 0xFF, np.uint8)  # NaN, if read as floats
        self.valid = np.zeros(self.data.size, np.bool_)


def _range(size: int) -> int:
    """The bytes that an allocation keeps others away from."""
    return -(-max(size, 1) // PAGE) * PAGE + PAGE


class DeviceMemory:
    """The global memory of an emulated device."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blocks: list[Allocation] = []
        self.next = FIRST
        self.used = 0
        self.spare: dict[int, list[int]] = {}  # addresses given back, by the size of their range

    def allocate(self, size: int) -> int:
        """The address of new, uninitialised bytes."""
        spare = self.spare.get(_range(size))
        block = Allocation(spare.pop() if spare else self.next, size)
        if block.address == self.next:
            self.next += _range(size)
        i = bisect.bisect_left(self.starts, block.address)
        self.starts.insert(i, block.address)
        self.blocks.insert(i, block)
        self.used += size
        return block.address

    def free(self, address: int) -> None:
        i = bisect.bisect_left(self.starts, address)
        if i == len(self.starts) or self.starts[i] != address:
            raise PTXError(f"free of {address:#x}, which is no allocation")
        size = self.blocks[i].size
        self.used -= size
        self.spare.setdefault(_range(size), []).append(address)
        del self.starts[i], self.blocks[i]

    def find(self, address: int, size: int) -> Allocation:
        """The allocation that holds all of a range."""
        i = bisect.bisect_right(self.starts, address) - 1
        if i < 0 or address + size > self.blocks[i].address + self.blocks[i].size:
            where = "nothing"
            if i >= 0:
                b = self.blocks[i]
                where = f"the allocation before it has {b.size} bytes at {b.address:#x}"
            raise PTXError(f"out of bounds: {size} bytes at {address:#x}; {where}")
        return self.blocks[i]

    def write(self, address: int, data: np.ndarray) -> None:
        """Copy host bytes to the device."""
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        if raw.size:
            block = self.find(address, raw.size)
            at = address - block.address
            block.data[at : at + raw.size] = raw
            block.valid[at : at + raw.size] = True

    def read(self, address: int, size: int) -> np.ndarray:
        """Copy device bytes to the host; bytes that were never written are an error."""
        if not size:
            return np.empty(0, np.uint8)
        block = self.find(address, size)
        at = address - block.address
        if not block.valid[at : at + size].all():
            raise PTXError(f"copy of uninitialised memory: {size} bytes at {address:#x}")
        return block.data[at : at + size].copy()


class Threads:
    """Where the threads of a launch stand relative to barriers."""

    def __init__(self, blocks: int, per_block: int) -> None:
        count = blocks * per_block
        self.block = np.repeat(np.arange(blocks), per_block)
        lane = np.arange(count) % per_block
        self.warp = self.block * -(-per_block // 32) + lane // 32
        self.passed = np.zeros(blocks, np.int64)  # barriers per block
        self.group = np.full(count, NOBODY)  # the first thread of the last warp barrier's mask
        self.met = np.zeros(count, np.int64)  # warp barriers per thread


class History:
    """Last writer and readers per element of one piece of memory, within one launch."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, NOBODY)
        self.write_mark = np.zeros((3, size), np.int64)
        self.reader = np.full(size, NOBODY)
        self.read_mark = np.zeros((3, size), np.int64)

    def read(self, at: np.ndarray, thread: np.ndarray, threads: Threads, text: str) -> None:
        """Note reads; an element that another thread wrote without a barrier since is a race."""
        if self._clash(self.writer[at], self.write_mark[:, at], thread, threads).any():
            raise PTXError(f"race (read after write, no barrier): {text}")
        known, marks = self.reader[at], self.read_mark[:, at]
        here = self._mark(thread, threads)
        current = (known != NOBODY) & (marks[0] == here[0])
        alone = _single(at) & (~current | (known == thread))
        here[1] = np.where(current & (marks[1] != here[1]), NOBODY, here[1])
        here[2] = np.where(current, np.maximum(marks[2], here[2]), here[2])
        self.reader[at] = np.where(alone, thread, SEVERAL)
        self.read_mark[:, at] = here

    def write(self, at: np.ndarray, thread: np.ndarray, threads: Threads, text: str) -> None:
        """Note writes; an element that another thread used without a barrier since is a race."""
        if not _single(at).all():
            raise PTXError(f"race (two threads store one element): {text}")
        if self._clash(self.writer[at], self.write_mark[:, at], thread, threads).any():
            raise PTXError(f"race (write after write, no barrier): {text}")
        if self._clash(self.reader[at], self.read_mark[:, at], thread, threads).any():
            raise PTXError(f"race (write after read, no barrier): {text}")
        self.writer[at] = thread
        self.write_mark[:, at] = self._mark(thread, threads)

    def _mark(self, thread: np.ndarray, threads: Threads) -> np.ndarray:
        """Where threads stand: block * 2**32 + barriers of the block, warp, barriers of the
        warp."""
        block = threads.block[thread]
        return np.stack(
            [(block << 32) + threads.passed[block], threads.warp[thread], threads.met[thread]]
        )

    def _clash(
        self, other: np.ndarray, marks: np.ndarray, thread: np.ndarray, threads: Threads
    ) -> np.ndarray:
        """Which accesses conflict with an earlier one by another thread."""
        here = self._mark(thread, threads)
        by_block = (marks[0] >> 32 == here[0] >> 32) & (marks[0] != here[0])
        one = np.maximum(other, 0)
        together = (threads.group[one] == threads.group[thread]) & (threads.group[one] != NOBODY)
        passed = np.where(other >= 0, marks[2] < threads.met[one], marks[2] < here[2])
        by_warp = np.where(other >= 0, together, marks[1] == here[1]) & passed
        return (other != NOBODY) & (other != thread) & ~by_block & ~by_warp


def _single(at: np.ndarray) -> np.ndarray:
    """Which elements are touched by one thread only."""
    _, place, count = np.unique(at, return_inverse=True, return_counts=True)
    return count[place] == 1


def sectors(warp: np.ndarray, address: np.ndarray) -> tuple[int, int]:
    """Requests (one per warp) and distinct 32-byte sectors of a global access."""
    return len(np.unique(warp)), len(np.unique((warp << 44) ^ (address >> 5)))


def wavefronts(warp: np.ndarray, word: np.ndarray) -> tuple[int, int]:
    """Requests and passes of a shared access of 4-byte words: words of one bank take turns."""
    distinct = np.unique((warp << 24) + word)
    bank, count = np.unique((distinct >> 24) * 32 + (distinct & 31), return_counts=True)
    ways: dict[int, int] = {}
    for w, n in zip((bank // 32).tolist(), count.tolist(), strict=True):
        ways[w] = max(ways.get(w, 0), n)
    return len(ways), sum(ways.values())


def spaces(generic: Any) -> tuple[str, Any]:
    """The space and the addresses within it of generic addresses."""
    low = int(generic.min()) if generic.size else 0
    if low >= LOCAL_AT:
        return "local", generic - LOCAL_AT
    return ("shared", generic - SHARED_AT) if low >= SHARED_AT else ("global", generic)
