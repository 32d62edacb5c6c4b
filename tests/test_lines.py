"""The user's lines in a graph, and what traced arrays take over from tensors."""

import inspect
from typing import Any

import numpy as np
import pytest

import everyo as eo
from everyo.compile import lines
from everyo.core.autograd import Node
from everyo.core.tensor import Tensor

X = eo.tensor(np.float32([0.5, 1.0, 1.5]), requires_grad=True)


def numbered(function: Any, graph: Any) -> dict[int, list[str]]:
    """The ops of a graph by the line of the function, its head being 0."""
    first = inspect.getsourcelines(function)[1]
    found: dict[int, list[str]] = {}
    for node in graph.order:
        if node.op != "const" and node in graph.lines:
            file, line = graph.lines[node].rsplit(":", 1)
            assert file == __file__
            found.setdefault(int(line) - first, []).append(node.op)
    return found


def test_what_a_walk_back_computes_is_of_the_line_that_asks_for_it():
    def step(x: Any) -> Any:
        y = eo.sin(x)
        y.sum().backward()
        z = eo.exp(x)
        z.sum().backward()
        return eo.tanh(z)

    found = numbered(step, eo.compile(step).graph(X))
    assert "cos" in found[2]
    assert "exp" in found[3] and {"multiply", "add"} & {*found[4]}
    assert found[5] == ["tanh"]


def test_what_a_rule_of_the_user_computes_is_of_its_own_line():

    def rule(gradient: Any, xp: Any, through: Any = None) -> list[Any]:
        return [xp.multiply(gradient, xp.cos(gradient))]

    def step(x: Any) -> Any:
        y = Tensor._wrap((x * 2).data)
        y.grad_node, y._requires_grad = Node("custom", [x], rule, {}), True
        y.sum().backward()
        return y

    found = numbered(rule, eo.compile(step).graph(X))
    assert found[1] == ["cos", "multiply"]


def test_a_trace_holds_no_walk_back_when_it_is_over():
    def step(x: Any) -> Any:
        x.grad = None
        (x * x).sum().backward()
        return x.grad

    eo.compile(step).graph(X)
    assert lines._walk == [None, ""]


def test_methods_that_tensors_get_later_are_those_of_traced_arrays(monkeypatch):
    f = eo.compile(lambda x: eo.tensor(x.data.tanh()))
    np.testing.assert_allclose(f(X).numpy(), np.tanh(X.data), rtol=1e-6)
    monkeypatch.setattr(Tensor, "quadrupled", lambda self: self * 4, raising=False)
    g = eo.compile(lambda x: eo.tensor(x.data.quadrupled()))
    np.testing.assert_allclose(g(X).numpy(), X.data * 4)
    with pytest.raises(AttributeError, match="'traced array' object has no attribute 'absent'"):
        eo.compile(lambda x: x.data.absent())(X)


def test_a_backward_function_gives_as_many_gradients_as_there_are_operands():
    y = Tensor._wrap(np.float32(1))
    y.grad_node = Node("custom", [X, X], lambda gradient, xp, through: [gradient], {})
    y._requires_grad = True
    with pytest.raises(eo.EveryOGradientError, match="custom gives 1 gradients for 2 operands"):
        y.backward()
