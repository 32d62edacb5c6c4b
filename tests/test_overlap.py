"""Which arrays lie in the same memory: all at once as pair by pair."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import everyo as eo
from everyo.compile.overlap import Memory

slices = st.builds(
    slice, st.integers(-7, 7), st.integers(-7, 7), st.sampled_from([-3, -2, -1, 1, 2, 3])
)
views = st.tuples(st.integers(0, 2), slices, slices, st.booleans())


@given(st.lists(views, min_size=1, max_size=40))
def test_what_is_near_is_what_may_share_memory(chosen):
    buffers = [np.zeros((6, 6), np.float32) for _ in range(3)]

    def view(which: int, rows: slice, columns: slice, turned: bool) -> np.ndarray:
        out = buffers[which][rows, columns]
        return out.T if turned else out

    arrays = [view(*c) for c in chosen]
    memory = Memory()
    for i, a in enumerate(arrays):
        memory.add(a, i)
    for i, a in enumerate(arrays):
        want = [j for j, b in enumerate(arrays) if j != i and np.may_share_memory(a, b)]
        assert [j for _, j in memory.near(a)] == want
        assert all(found is arrays[j] for found, j in memory.near(a))
    memory.clear()
    assert not list(memory.near(arrays[0]))


def test_a_step_over_views_of_one_buffer_is_the_eager_one():
    """Parameters that lie side by side, and one across two of them that is written."""

    def make() -> tuple[np.ndarray, Any]:
        buffer = np.arange(24, dtype=np.float32)
        parts = [eo.as_tensor(buffer[i : i + 4]) for i in range(0, 24, 4)]
        across = eo.as_tensor(buffer[6:10])

        def step(x: Any) -> Any:
            across.data *= x.data
            for p in parts:
                p.data += 1
            return across.sum()

        return buffer, step

    (eager, plain), (compiled, step) = make(), make()
    step = eo.compile(step)
    for i in range(4):
        x = eo.tensor(np.float32(i / 2))
        np.testing.assert_allclose(step(x).numpy(), plain(x).numpy())
        np.testing.assert_array_equal(compiled, eager)
