"""`eo.compile` as a user holds it: what it accepts, what it returns, what it shows."""

import copy
import functools
import pickle
import subprocess
import sys
from collections import OrderedDict, namedtuple

import numpy as np
import pytest

import everyo as eo
from everyo import nn
from everyo.compile import ir
from everyo.exceptions import EveryOTraceError

X = np.array([1.0, 2.0])
Point = namedtuple("Point", "x y")


def tensor(values=X, grad=False):
    return eo.tensor(np.asarray(values, np.float64), requires_grad=grad)


def plain(value):
    """Tensors and arrays as lists, containers as they are."""
    if isinstance(value, eo.Tensor):
        return ("tensor", value.dtype, value.tolist())
    if isinstance(value, np.ndarray):
        return ("array", value.dtype.name, value.tolist())
    if isinstance(value, dict):
        return type(value)((k, plain(v)) for k, v in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(plain, value))
    return type(value)(map(plain, value)) if isinstance(value, list | tuple) else value


# ------------------------------------------------------------- arguments and results


def double(x):
    """Twice as much."""
    return x * 2.0


CALLS = {
    "positional": (lambda a, b: a - b, (tensor(), tensor([5.0, 6.0])), {}),
    "keywords": (lambda a, *, b: a - b, (tensor(),), {"b": tensor([5.0, 6.0])}),
    "defaults": (lambda a, b=2.0, c=3: a * b + c, (tensor(),), {}),
    "variadic": (lambda *args, **kw: sum(args) + sum(kw.values()), (tensor(), tensor()),
                 {"z": tensor()}),
    "nested": (lambda d: d["a"][0] * d["b"]["c"], ({"a": [tensor()], "b": {"c": tensor()}},), {}),
    "tuple": (lambda p: p[0] - p[1][0], ((tensor(), (tensor([3.0, 4.0]),)),), {}),
    "named tuple": (lambda p: Point(p.y, p.x * 2.0), (Point(tensor(), tensor([3.0, 4.0])),), {}),
    "arrays": (lambda a, b: a * b, (X, tensor()), {}),
    "arrays alone": (lambda a: np.exp(a) * a.sum() + a[0], (X,), {}),
    "whole numbers": (lambda a, i: a[i], (tensor(), np.array([1, 0])), {}),
    "numpy numbers": (lambda a, k: a * k, (tensor(), np.float64(2.5)), {}),
    "numpy whole numbers": (lambda a, k: a * k, (tensor(), np.int64(3)), {}),
    "floats": (lambda a, c: a * c + c, (tensor(), 2.5), {}),
    "a float as result": (lambda a, c: (c, c * 2, -c), (tensor(), 2.5), {}),
    "static": (lambda a, n, s, f, o: a * (n if s == "k" and f and o is None else 0),
               (tensor(), 3, "k", True, None), {}),
    "nothing": (lambda: eo.tensor(np.array([1.0, 2.0])) * 2.0, (), {}),
    "none": (lambda a: None, (tensor(),), {}),
    "dict result": (lambda a: {"x": a * 2.0, 3: [a + 1.0, (a.sum(),)], "s": "text"},
                    (tensor(),), {}),
    "empty containers": (lambda a: ([], (), {}, a * 2.0), (tensor(),), {}),
    "the argument itself": (lambda a: (a, a), (tensor(),), {}),
    "a bool result": (lambda a: a > 1.5, (tensor(),), {}),
    "an array result": (lambda a: a.data * 2.0, (tensor(),), {}),
    "an index result": (lambda a: a.argmax(), (tensor(),), {}),
    "0-d": (lambda a: a * 2.0, (tensor(3.0),), {}),
    "empty": (lambda a: (a * 2.0, a.sum()), (tensor(np.zeros((0, 3))),), {}),
    "read only": (lambda a: a * 2.0, (np.broadcast_to(X, (3, 2)),), {}),
    "half precision": (lambda a: (a.astype("float64") * 2.0).astype("float32"),
                       (eo.tensor(X, dtype="float32"),), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_arguments_and_results_of_every_kind(name):
    function, args, kwargs = CALLS[name]
    compiled, want = eo.compile(function), plain(function(*args, **kwargs))
    for _ in range(4):
        got = compiled(*args, **kwargs)
        assert plain(got) == want
        assert type(got) is type(function(*args, **kwargs))
    assert compiled.cache_info().traces == 2


def test_an_object_as_an_argument_is_captured_by_identity():
    class Batch:
        def __init__(self, x):
            self.x = x

    compiled = eo.compile(lambda b: b.x * 2.0)
    first, second = Batch(tensor()), Batch(tensor([5.0, 6.0]))
    for _ in range(3):
        assert compiled(first).tolist() == [2.0, 4.0]
        assert compiled(second).tolist() == [10.0, 12.0]
    first.x = tensor([7.0, 8.0])
    assert compiled(first).tolist() == [14.0, 16.0]


def test_other_mappings_are_objects():
    compiled = eo.compile(lambda d: d["a"] * 2.0)
    batch = OrderedDict(a=tensor())
    for k in range(3):
        batch["a"] = tensor(X + k)
        assert compiled(batch).tolist() == (2 * (X + k)).tolist()


# ------------------------------------------------------------- what can be compiled


def test_the_decorator_works_with_and_without_arguments():
    @eo.compile
    def one(x):
        return x * 2.0

    @eo.compile(static_argnames=("k",))
    def two(x, k):
        return x * (2.0 if k > 1.5 else 3.0)

    assert one(tensor()).tolist() == [2.0, 4.0]
    assert [two(tensor(), k=k).tolist() for k in (2.0, 1.0)] == [[2.0, 4.0], [3.0, 6.0]]


def test_a_compiled_function_keeps_name_doc_and_function():
    compiled = eo.compile(double)
    assert (compiled.__name__, compiled.__doc__) == ("double", "Twice as much.")
    assert compiled.__wrapped__ is double and compiled.__module__ == __name__
    assert repr(compiled) == "<compiled double>"
    again = eo.compile(compiled, check=False)
    assert again.__wrapped__ is double and again is not compiled


class Scaler:
    unit = 1.0

    def __init__(self, k):
        self.k = k

    @eo.compile
    def scale(self, x):
        return x * self.k

    @functools.partial(eo.compile, static_argnames="how")
    def how(self, x, how):
        return x * (self.k if how > 0.5 else 0.0)

    @classmethod
    @eo.compile
    def by_class(cls, x):
        return x * cls.unit

    @eo.compile
    @staticmethod
    def by_none(x):
        return x * 2.0

    def plain(self, x):
        return x * self.k


def test_methods_are_compiled_per_object():
    a, b = Scaler(2.0), Scaler(3.0)
    for _ in range(4):
        assert a.scale(tensor()).tolist() == [2.0, 4.0] and b.scale(tensor()).tolist() == [3.0, 6.0]
    a.k = 5.0
    assert a.scale(tensor()).tolist() == [5.0, 10.0] and b.scale(tensor()).tolist() == [3.0, 6.0]
    assert a.scale is a.scale and a.scale.cache_info().entries == 2
    assert [a.how(tensor(), how).tolist() for how in (1.0, 0.0)] == [[5.0, 10.0], [0.0, 0.0]]
    assert Scaler.scale(b, tensor()).tolist() == [3.0, 6.0]


def test_bound_methods_and_class_and_static_methods():
    scaler = Scaler(2.0)
    bound = eo.compile(scaler.plain)
    for _ in range(3):
        assert bound(tensor()).tolist() == [2.0, 4.0]
        assert scaler.by_none(tensor()).tolist() == Scaler.by_none(tensor()).tolist() == [2.0, 4.0]
        assert Scaler.by_class(tensor()).tolist() == [1.0, 2.0]
    scaler.k = 4.0
    assert bound(tensor()).tolist() == [4.0, 8.0]


def test_methods_of_objects_that_cannot_be_referred_to_weakly():
    class Slotted:
        __slots__ = ("k",)

        @eo.compile
        def scale(self, x):
            return x * self.k

    s = Slotted()
    for k in (2.0, 3.0, 2.0):
        s.k = k
        assert s.scale(tensor()).tolist() == (X * k).tolist()


def test_callable_objects_and_partials():
    class Act:
        k = 2.0

        def __call__(self, x):
            return x * self.k

    act = Act()
    compiled, part = eo.compile(act), eo.compile(functools.partial(lambda k, x: x * k, 3.0))
    for _ in range(3):
        assert compiled(tensor()).tolist() == [2.0, 4.0] and part(tensor()).tolist() == [3.0, 6.0]
    act.k = 5.0
    assert compiled(tensor()).tolist() == [5.0, 10.0]


def test_compiled_functions_call_compiled_functions():
    inner = eo.compile(lambda t: t * 2.0)
    middle = eo.compile(lambda t: inner(t) + inner(t + 1.0))
    outer = eo.compile(lambda t: middle(t).sum())
    for _ in range(3):
        assert outer(tensor()).item() == 16.0
    assert inner.cache_info().traces == 0  # inlined


def test_a_compiled_function_may_call_itself_with_a_static_number():
    @eo.compile
    def power(t, n):
        return t if n == 1 else t * power(t, n - 1)

    for _ in range(3):
        assert power(tensor(), 3).tolist() == [1.0, 8.0]


def test_loops_over_tensors_and_lengths_are_unrolled():
    compiled = eo.compile(lambda t: sum(row * (i + len(t)) for i, row in enumerate(t)))
    a = np.arange(6.0).reshape(3, 2)
    for _ in range(3):
        assert compiled(tensor(a)).tolist() == sum(r * (i + 3) for i, r in enumerate(a)).tolist()


def test_numpy_functions_on_what_is_traced_are_traced():
    w = tensor(grad=True)

    def step(t):
        (t * w).sum().backward()
        w.grad = np.clip(np.multiply(w.grad, 2.0), -3.0, 3.0)
        return np.exp(t) + np.where(t.data > 1.5, 1.0, 0.0)

    compiled = eo.compile(step)
    for _ in range(3):
        w.grad = None
        want, slope = step(tensor()), w.grad
        w.grad = None
        got = compiled(tensor())
        np.testing.assert_allclose(got.data, want.data, rtol=1e-15)
        np.testing.assert_array_equal(w.grad, slope)


def test_detect_nan_looks_into_compiled_functions():
    compiled = eo.compile(lambda t: eo.log(t))
    for _ in range(3):
        compiled(tensor())
    with (
        np.errstate(all="ignore"),
        eo.detect_nan(),
        pytest.raises(eo.exceptions.EveryOError, match="log"),
    ):
        compiled(tensor([-1.0, 1.0]))


# ------------------------------------------------------------- looking inside


def a_step():
    eo.manual_seed(0)
    net = nn.Linear(2, 3)
    opt = eo.optim.SGD(net.parameters(), lr=0.1)

    @eo.compile
    def step(x):
        opt.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        opt.step()
        return loss

    return net, step


def batch(n=4):
    return eo.tensor(np.ones((n, 2), np.float32))


def test_graph_source_and_explain_show_the_program():
    _, step = a_step()
    graph, source, told = step.graph(batch()), step.source(batch()), step.explain(batch())
    assert isinstance(graph, ir.Graph) and "matmul" in str(graph) and "write" in str(graph)
    assert "test_compile_api.py" in str(graph)
    assert source.count("def ") >= 1
    compile(source, "<source>", "exec")
    assert "distinct kernels" in str(told) and "GB/s" not in str(told)
    assert step.cache_info().calls == 0


def test_looking_inside_without_arguments_shows_the_latest_trace():
    _, step = a_step()
    with pytest.raises(TypeError):
        step.graph()
    step(batch(4))
    step(batch(6))
    assert step.graph().inputs[0].shape == (6, 2) or "6,2" in str(step.graph())
    assert str(step.graph()) != str(step.graph(batch(4)))
    with pytest.raises(EveryOTraceError, match="arguments"):
        step.explain(profile=True)


def test_profiling_runs_on_copies_of_the_state():
    net, step = a_step()
    before = net.state_dict()
    told = step.explain(batch(), profile=True)
    assert "us" in str(told) and "GB/s" in str(told)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    assert all(p.grad is None for p in net.parameters())


def test_the_picture_is_svg(tmp_path):
    _, step = a_step()
    path = step.explain(batch()).save(tmp_path / "deep" / "step.svg")
    assert path.read_text().startswith("<svg") and path.read_text().rstrip().endswith("</svg>")


def test_cache_info_counts_and_clear_forgets():
    _, step = a_step()
    for n in (4, 4, 4, 6, 6):
        step(batch(n))
    info = step.cache_info()
    assert (info.traces, info.entries, info.calls) == (4, 2, 5) and info.kernels > 0
    step.clear()
    assert step.cache_info()[1:] == (0, 0, 0)
    step(batch())
    assert step.cache_info()[:3] == (5, 1, 1)


def test_a_warm_up_compiles_and_the_first_call_verifies():
    _, step = a_step()
    step.warmup(batch())
    assert step.cache_info()[:3] == (1, 1, 0)
    step(batch())
    assert step.cache_info()[:3] == (2, 1, 1)


# ------------------------------------------------------------- pickling


def test_a_compiled_function_is_pickled_as_its_function():
    compiled = eo.compile(double, check=False)
    compiled(tensor())
    again = pickle.loads(pickle.dumps(compiled)) if double.__module__ != "__main__" else compiled
    assert again(tensor()).tolist() == [2.0, 4.0] and again.__wrapped__ is double
    assert copy.deepcopy(compiled)(tensor()).tolist() == [2.0, 4.0]


def test_a_compiled_lambda_refuses_to_be_pickled():
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(eo.compile(lambda t: t))


def test_the_module_and_the_function_named_compile_live_together():
    code = (
        "import everyo as eo; from everyo.compile import ir; import everyo.compile\n"
        "assert callable(eo.compile) and ir.Graph\n"
        "try:\n    import everyo.compile.ir as wrong\n"
        "except (ImportError, AttributeError): pass\n"
        "else: raise SystemExit('use from everyo.compile import ir')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
