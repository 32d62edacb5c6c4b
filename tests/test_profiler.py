"""The profiler: every call is an event, and profiled code computes what it always computes."""

import json
import os
import threading

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryOShapeError
from everyo.profiler import profile, record_function


class Block(eo.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = eo.Linear(4, 5, seed=0), eo.Linear(5, 4, seed=1)

    def forward(self, x, scale=1.0):
        return self.second(eo.relu(self.first(x))) * scale


def names(result):
    return [event.name for event in result.events]


def test_every_module_call_is_an_event():
    model = eo.Sequential(Block(), eo.ReLU())
    with profile() as result:
        model(eo.ones((3, 4)))
    assert names(result) == ["Linear", "Linear", "Block", "ReLU", "Sequential"]
    assert [e.metadata["input_shapes"] for e in result.events[:3]] == [[[3, 4]], [[3, 5]], [[3, 4]]]
    whole = result.events[-1]
    assert all(e.duration_ns > 0 and e.process_id == os.getpid() for e in result.events)
    assert all(e.thread_id == threading.get_ident() for e in result.events)
    end = whole.start_ns + whole.duration_ns
    assert all(whole.start_ns <= e.start_ns <= end - e.duration_ns for e in result.events)


def test_nothing_is_recorded_outside():
    with profile(record_shapes=False) as result:
        pass
    with record_function("outside"):
        Block()(eo.ones((3, 4)))
    assert result.events == []
    assert result.summary() == []


def test_shapes_are_left_out_on_request():
    with profile(record_shapes=False) as result:
        eo.ReLU()(eo.ones(3))
    assert result.events[0].metadata == {}


def test_regions_are_events_as_context_and_as_decorator():
    @record_function("step", size=3)
    def step(n):
        if n:
            step(n - 1)

    with profile() as result:
        step(2)
        with record_function("data"):
            eo.ReLU()(eo.ones(3))
    assert names(result) == ["step", "step", "step", "ReLU", "data"]
    assert result.events[0].metadata == {"size": 3}


def test_a_call_that_fails_is_an_event():
    with profile() as result, pytest.raises(EveryOShapeError):
        Block()(eo.ones((3, 5)))
    assert names(result) == ["Linear", "Block"]
    assert result.events[1].metadata == {"input_shapes": [[3, 5]]}


@pytest.mark.parametrize(("warmup", "recorded"), [(0, 4), (1, 2), (2, 0)])
def test_the_first_outermost_calls_of_a_name_are_left_out(warmup, recorded):
    model, loss = eo.Sequential(eo.Linear(2, 2), eo.Linear(2, 2)), eo.MSELoss()
    with profile(warmup=warmup) as result:
        for _ in range(2):
            loss(model(eo.ones((3, 2))), eo.ones((3, 2)))
    assert names(result).count("Linear") == recorded
    assert names(result).count("MSELoss") == recorded // 2


def test_the_summary_adds_up_by_name():
    with profile() as result:
        for _ in range(3):
            Block()(eo.ones((3, 4)))
    rows = {row["name"]: row for row in result.summary()}
    assert (rows["Block"]["calls"], rows["Linear"]["calls"]) == (3, 6)
    totals = [row["total_ms"] for row in result.summary()]
    assert totals == sorted(totals, reverse=True)
    for name, row in rows.items():
        times = [e.duration_ns / 1e6 for e in result.events if e.name == name]
        assert row["total_ms"] == pytest.approx(sum(times))
        assert row["mean_ms"] == pytest.approx(sum(times) / len(times))
        assert row["max_ms"] == max(times)


def test_exports_say_what_was_recorded(tmp_path):
    with profile() as result:
        Block()(eo.ones((3, 4)))
    events = json.loads(result.export_json(tmp_path / "a" / "events.json").read_text())
    assert [e["name"] for e in events] == names(result)
    assert set(events[0]) == {
        "name", "duration_ns", "start_ns", "process_id", "thread_id", "metadata",
    }  # fmt: skip
    trace = json.loads(result.export_chrome_trace(tmp_path / "b" / "trace.json").read_text())
    assert [e["ph"] for e in trace["traceEvents"]] == ["X"] * 3
    assert trace["traceEvents"][0]["dur"] == events[0]["duration_ns"] / 1e3
    assert trace["traceEvents"][0]["args"] == {"input_shapes": [[3, 4]]}


def test_profilers_are_not_nested_and_end_after_errors():
    with profile(), pytest.raises(RuntimeError, match="cannot be nested"), profile():
        pass
    with pytest.raises(ZeroDivisionError), profile():
        1 / 0  # noqa: B018
    with profile() as result:
        eo.ReLU()(eo.ones(3))
    assert names(result) == ["ReLU"]
    with pytest.raises(ValueError, match="negative"):
        profile(warmup=-1)


def test_threads_are_told_apart():
    layer, barrier = eo.ReLU(), threading.Barrier(2)

    def work():
        barrier.wait()
        with record_function("work"):
            layer(eo.ones(3))

    with profile() as result:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len({e.thread_id for e in result.events}) == 2
    assert sorted(names(result)) == ["ReLU", "ReLU", "work", "work"]


def training():
    model = eo.Sequential(eo.Linear(4, 8, seed=0), eo.Tanh(), eo.Linear(8, 3, seed=1))
    optimizer = eo.Adam(model.parameters(), lr=0.01)

    @eo.compile
    def step(x, y):
        optimizer.zero_grad()
        loss = eo.nn.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return model, step


def test_a_compiled_step_shows_its_kernels_and_computes_the_same():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(6, 4)).astype(np.float32), rng.integers(0, 3, 6)) for _ in range(6)]
    plain_model, plain = training()
    model, step = training()
    expected = [plain(x, y).item() for x, y in data]
    losses = [step(x, y).item() for x, y in data[:2]]
    with profile() as result:
        losses += [step(x, y).item() for x, y in data[2:4]]
    losses += [step(x, y).item() for x, y in data[4:]]
    assert losses == expected
    for p, q in zip(plain_model.parameters(), model.parameters(), strict=True):
        assert np.array_equal(p.data, q.data)
    kernels = [e for e in result.events if e.metadata.get("kernel")]
    rows = [row.name for row in step.explain().rows]
    assert [e.name for e in kernels] == rows * 2
    calls = [e for e in result.events if e.metadata.get("compiled")]
    assert [e.name for e in calls] == ["step", "step"]
    assert len(result.events) == len(kernels) + len(calls)
    assert sum(e.duration_ns for e in kernels) < sum(e.duration_ns for e in calls)


@pytest.mark.parametrize("bad", [False, True])
def test_checks_of_a_compiled_function_hold_while_profiled(bad):
    table = eo.tensor(np.arange(12.0).reshape(4, 3))
    seen = eo.zeros(3)

    @eo.compile
    def pick(i):
        rows = table[i]
        seen[...] = rows.sum(axis=0)
        return rows

    index = np.array([3, 9]) if bad else np.array([3, 1])
    pick(np.array([0, 0]))
    before = seen.numpy()
    with profile() as result:
        if bad:
            with pytest.raises(IndexError, match="out of range"):
                pick(index)
        else:
            assert np.array_equal(pick(index).numpy(), table.numpy()[index])
    assert np.array_equal(seen.numpy(), before) is bad
    assert any(e.metadata.get("kernel") for e in result.events)
