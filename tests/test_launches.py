"""Runs of independent groups: what they may hold, and that they change nothing but the launches."""

import numpy as np
import pytest
from ir_compare import assert_same_bits
from ir_programs import random_graph
from steps import training_step
from test_random_programs import copies, run

import everyo as eo
from everyo.compile import cpu, fuse, launches, memory, rows
from everyo.compile.space import chain


@pytest.mark.parametrize("seed", range(40))
def test_no_group_of_a_run_touches_what_another_one_stores(seed):
    graph, _ = random_graph(seed, 24, "tame", 60)
    schedule = fuse.fuse(graph)
    homes = memory.homes(schedule)
    found = launches.runs(schedule, homes)
    for i, g in enumerate(schedule.groups):
        for k in range(found.first[i], found.last[i] + 1):
            if k != i:
                other = schedule.groups[k]
                stored = set(other.stores) | {
                    homes.direct[n] for n in other.stores if n in homes.direct
                }
                assert not stored & {chain(o)[0] for n in g.nodes for o in n.inputs}
        assert not found.first[i] <= homes.guard < found.last[i]


def test_rows_launched_together_give_the_bits_of_rows_launched_alone(monkeypatch):
    for seed in range(25):
        graph, arrays = random_graph(seed, 20, "tame", 200)
        monkeypatch.setattr(rows, "PARALLEL_NS", 1e18)
        alone = run(graph, copies(arrays), jit=False)
        monkeypatch.setattr(rows, "PARALLEL_NS", 0)
        assert_same_bits(run(graph, copies(arrays), jit=False), alone, graph)


def test_the_updates_of_all_parameters_are_one_launch():
    model = eo.Sequential(*[eo.Linear(64, 64) for _ in range(6)])
    step = training_step(model, eo.Adam(model.parameters()))
    step.warmup(eo.tensor(np.ones((8, 64), np.float32)))
    explained = step.explain()
    updates = [g for g in explained.schedule.groups if "sqrt" in str(g) and g.stores[0].size > 1]
    assert len(updates) == 12
    homes = memory.homes(explained.schedule)
    found = launches.runs(explained.schedule, homes)
    places = [explained.schedule.groups.index(g) for g in updates]
    assert len({found.first[i] for i in places}) == 1
    program = cpu.Program(explained.graph)
    assert len(program._plan.launches) <= len(program.kernels) - 11
