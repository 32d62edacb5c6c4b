"""Groups that are joined: a join is refused exactly if it makes a cycle, and costs little."""

import random

import numpy as np
import pytest

import everyo as eo
from everyo.compile import cpu, fuse, ir, legalize, passes
from everyo.compile.ir import F32
from everyo.compile.merge import Groups
from everyo.compile.tracing import trace_call


def random_groups(seed, size=40):
    """Groups of one node each, in a random graph."""
    rng, table = random.Random(seed), ir.Table()
    nodes, users = [table.input((), F32)], {}
    for _ in range(size):
        near = nodes[-rng.choice([2, 5, len(nodes)]) :]
        a, b = rng.choice(near), rng.choice(near)
        n = table.make(rng.choice(["add", "multiply", "subtract", "divide"]), a, b)
        if n not in nodes:
            nodes.append(n)
            for o in n.inputs:
                users.setdefault(o, set()).add(n)
    group = {n: i for i, n in enumerate(nodes)}
    return Groups(group, users, range(len(nodes))), nodes, rng


def is_acyclic(group, nodes):
    before = {g: set() for g in group.values()}
    for n in nodes:
        before[group[n]] |= {group[o] for o in n.inputs} - {group[n]}
    while before:
        free = {g for g, sources in before.items() if not sources & before.keys()}
        if not free:
            return False
        before = {g: s for g, s in before.items() if g not in free}
    return True


@pytest.mark.parametrize("seed", range(60))
def test_a_join_is_refused_exactly_if_it_makes_a_cycle(seed):
    groups, nodes, rng = random_groups(seed)
    for _ in range(120):
        a, b = groups.group[rng.choice(nodes)], groups.group[rng.choice(nodes)]
        if a == b:
            continue
        joined = {n: a if g == b else g for n, g in groups.group.items()}
        want = is_acyclic(joined, nodes)
        assert groups.join(a, b) == want
        assert not want or groups.group == joined


@pytest.mark.parametrize("seed", range(60))
def test_joins_keep_the_line_and_the_neighbours_right(seed):
    groups, nodes, rng = random_groups(seed)
    for _ in range(60):
        a, b = groups.group[rng.choice(nodes)], groups.group[rng.choice(nodes)]
        if a != b:
            groups.join(a, b)
    after = {g: set() for g in groups.members}
    for n in nodes:
        for o in n.inputs:
            if groups.group[o] != groups.group[n]:
                assert groups.place[groups.group[o]] < groups.place[groups.group[n]]
                after[groups.group[o]].add(groups.group[n])
    assert groups.after == after
    assert groups.before == {g: {s for s in after if g in after[s]} for g in after}
    assert sorted(groups.place, key=groups.place.__getitem__) == groups._line()
    assert all(groups.group[n] == g for g, members in groups.members.items() for n in members)


def test_there_is_always_room_in_the_line():
    table = ir.Table()
    first = table.make("sin", table.input((), F32))
    tail = [table.make("cos", first)]
    for _ in range(4):
        tail.append(table.make("cos", tail[-1]))
    pairs = []
    for _ in range(200):
        source = table.make("sin", table.input((), F32))
        pairs.append((source, table.make("negative", source)))
    nodes = [first, *tail, *(n for pair in pairs for n in pair)]
    users = {o: {n for n in nodes if o in n.inputs} for o in nodes}
    groups = Groups({n: i for i, n in enumerate(nodes)}, users, range(len(nodes)))
    for _, result in pairs:  # its source is moved before the first, always to the same place
        assert groups.join(0, groups.group[result])
    places = [groups.place[groups.group[source]] for source, _ in pairs]
    assert sorted(set(places)) == places
    assert max(places) < groups.place[0] < groups.place[groups.group[tail[0]]]


# Long programs


def recurrent(steps):
    """The graph of a cell written in ops, unrolled, with its gradients."""
    rng = np.random.default_rng(0)
    x = eo.tensor(rng.normal(size=(steps, 8, 8)).astype(F32))
    w, u, b = (
        eo.tensor(rng.normal(size=s).astype(F32), requires_grad=True) for s in [(8, 8), (8, 8), 8]
    )

    def run(x, w, u, b):
        h = eo.zeros((8, 8))
        for t in range(steps):
            h = eo.tanh(x[t] @ w + h @ u + b)
        (h * h).sum().backward()
        return h

    compiled = eo.compile(run)
    leaves, _, rebuild = compiled._signature((x, w, u, b), {})
    return passes.run(trace_call("run", compiled._caller(rebuild), leaves).graph)


def test_more_steps_need_no_more_kernels():
    programs = [cpu.Program(recurrent(steps), jit=False) for steps in (50, 120)]
    texts = [{row.text for row in p.kernels} for p in programs]
    assert len(programs[1].kernels) > 2 * len(programs[0].kernels)
    assert len(texts[0]) == len(texts[1]) <= 9


def test_grouping_is_linear_in_the_number_of_steps():
    counts = []
    for steps in (20, 200):
        partition = fuse._Partition(legalize.legalize(recurrent(steps)), True)
        partition.grow()
        counts.append((len(partition.rejected), partition.groups.visited))
    (tried, visited), (tried_long, visited_long) = counts
    assert tried_long <= 11 * tried
    assert visited_long <= 11 * visited + 100


def test_passes_that_change_nothing_give_the_graph_back():
    graph = recurrent(5)
    assert passes.run(graph) is graph
    assert passes.rewrite(graph) is graph
