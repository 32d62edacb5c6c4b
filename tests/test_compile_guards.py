"""What a compiled function was read with: when it changes, the next call follows; when nothing that
matters changes, nothing is traced again.

Every case sets up some Python state, a function that depends on it, and changes the state after
four calls (the first traces, the second verifies, the third and fourth run straight).
"""

import argparse
import collections
import dataclasses
import enum
import functools
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import everyo as eo
from everyo import nn
from everyo.exceptions import EveryOTraceError

X = np.array([1.0, 2.0])
GLOBAL = 2.0
TABLE = {"deep": [{"k": 2.0}]}


def tensor(values: Any = X, grad: bool = False) -> eo.Tensor:
    return eo.tensor(np.asarray(values, np.float64), requires_grad=grad)


def same(got: Any, want: Any) -> None:
    got, want = np.asarray(getattr(got, "data", got)), np.asarray(getattr(want, "data", want))
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)


# ------------------------------------------------------------- state that is seen


@dataclasses.dataclass
class State:
    """A function of a tensor and what changes the state that it depends on."""

    function: Callable[[Any], Any]
    change: Callable[[], Any]


def a_global():
    def change():
        globals()["GLOBAL"] = 3.0

    globals()["GLOBAL"] = 2.0
    return State(lambda t: t * GLOBAL, change)


def a_container_in_a_global():
    def change():
        TABLE["deep"][0]["k"] = 3.0

    TABLE["deep"][0]["k"] = 2.0
    return State(lambda t: t * TABLE["deep"][0]["k"], change)


def a_closure_variable():
    k = 2.0

    def change():
        nonlocal k
        k = 3.0

    return State(lambda t: t * k, change)


def an_int_that_becomes_an_equal_float():
    k = 2

    def change():
        nonlocal k
        k = 2.0

    ints = eo.tensor(np.array([1, 2]), dtype="int64")
    return State(lambda t: (ints * k).sum() + t.sum() * 0, change)


def a_zero_that_becomes_negative():
    k = 0.0

    def change():
        nonlocal k
        k = -0.0

    return State(lambda t: eo.where(t > 0, np.inf, 0.0) * 0 + 1.0 / (t * 0 + k), change)


def a_list_that_grows():
    values = [1.0, 2.0]
    return State(lambda t: t * sum(values), lambda: values.append(3.0))


def a_list_that_shrinks():
    values = [1.0, 2.0]
    return State(lambda t: t * sum(values), values.pop)


def an_entry_of_a_deque():
    values = collections.deque([1.0, 2.0])
    return State(lambda t: t * sum(values), lambda: values.append(3.0))


def a_key_that_appears():
    values = {"a": 1.0}
    return State(lambda t: t * values.get("b", 5.0), lambda: values.update(b=3.0))


def a_key_of_an_ordered_dict():
    values = collections.OrderedDict(a=1.0, b=2.0)
    return State(lambda t: t * values["b"], lambda: values.update(b=3.0))


def the_contents_of_a_set():
    names = {"a"}
    return State(lambda t: t * (2.0 if "b" in names else 1.0), lambda: names.add("b"))


def a_class_attribute():
    class Config:
        scale = 2.0

    return State(lambda t: t * Config.scale, lambda: setattr(Config, "scale", 3.0))


def a_class_attribute_behind_an_object():
    class Config:
        scale = 2.0

    config = Config()
    return State(lambda t: t * config.scale, lambda: setattr(Config, "scale", 3.0))


def an_attribute_that_hides_that_of_the_class():
    class Config:
        scale = 2.0

    config = Config()
    return State(lambda t: t * config.scale, lambda: setattr(config, "scale", 3.0))


def an_attribute_by_name():
    config = types.SimpleNamespace(scale=2.0)
    return State(lambda t: t * getattr(config, "sca" + "le"), lambda: setattr(config, "scale", 3.0))


def an_attribute_that_appears():
    config = types.SimpleNamespace()
    return State(
        lambda t: t * (3.0 if hasattr(config, "on") else 1.0), lambda: setattr(config, "on", 1)
    )


def an_attribute_of_parsed_arguments():
    arguments = argparse.Namespace(scale=2.0)
    return State(lambda t: t * arguments.scale, lambda: setattr(arguments, "scale", 3.0))


def a_slot():
    class Config:
        __slots__ = ("scale",)

    config = Config()
    config.scale = 2.0
    return State(lambda t: t * config.scale, lambda: setattr(config, "scale", 3.0))


def a_frozen_dataclass_that_is_replaced():
    @dataclasses.dataclass(frozen=True)
    class Config:
        scale: float = 2.0

    box = {"config": Config()}

    def change():
        box["config"] = dataclasses.replace(box["config"], scale=3.0)

    return State(lambda t: t * box["config"].scale, change)


def a_dict_with_attributes():
    class Config(dict):
        __getattr__ = dict.__getitem__

        def twice(self):
            return self["k"] * 2

    config = Config(k=2.0)
    return State(lambda t: t * config.k + config.twice(), lambda: config.update(k=3.0))


def an_enum():
    class Mode(enum.Enum):
        A = 1
        B = 2

    state = {"mode": Mode.A}
    return State(
        lambda t: t * (2.0 if state["mode"] is Mode.A else 3.0), lambda: state.update(mode=Mode.B)
    )


def a_module_global():
    module = types.ModuleType("some_settings")
    module.K = 2.0
    return State(lambda t: t * module.K, lambda: setattr(module, "K", 3.0))


def a_global_of_a_function_of_another_module():
    module = types.ModuleType("some_helpers")
    exec("K = 2.0\ndef act(t): return t * K", module.__dict__)
    return State(lambda t: module.act(t), lambda: setattr(module, "K", 3.0))


def a_name_imported_inside():
    module = sys.modules["some_imports"] = types.ModuleType("some_imports")
    module.K = 2.0

    def function(t):
        from some_imports import K

        return t * K

    return State(function, lambda: setattr(module, "K", 3.0))


def a_global_behind_a_method():
    values = [2.0]

    class Act:
        def apply(self, t):
            return t * values[0]

    act = Act()
    return State(lambda t: act.apply(t), lambda: values.__setitem__(0, 3.0))


def a_property_and_a_static_method():
    values = [2.0]

    class Act:
        @property
        def scale(self):
            return values[0]

        @staticmethod
        def shift():
            return values[0]

        @classmethod
        def more(cls):
            return values[0]

    act = Act()
    return State(
        lambda t: t * act.scale + act.shift() + Act.more(), lambda: values.__setitem__(0, 3.0)
    )


def a_method_that_is_replaced():
    class Act:
        def apply(self, t):
            return t * 2.0

    act = Act()
    return State(lambda t: act.apply(t), lambda: setattr(Act, "apply", lambda self, t: t * 3.0))


def an_overloaded_operator():
    class Scale:
        k = 2.0

        def __mul__(self, other):
            return other * self.k

    scale = Scale()
    return State(lambda t: scale * t, lambda: setattr(scale, "k", 3.0))


def a_partial():
    state = {"k": 2.0}
    act = functools.partial(lambda s, t: t * s["k"], state)
    return State(lambda t: act(t), lambda: state.update(k=3.0))


def a_keyword_of_a_partial():
    act = functools.partial(lambda t, k: t * k, k=2.0)
    return State(lambda t: act(t), lambda: act.keywords.update(k=3.0))


def a_closure_of_a_decorator():
    values = [2.0]

    def decorated(f):
        @functools.wraps(f)
        def wrapper(t):
            return f(t) * values[0]

        return wrapper

    return State(decorated(lambda t: t + 1.0), lambda: values.__setitem__(0, 3.0))


def an_attribute_of_the_function():
    def function(t):
        return t * function.k

    function.k = 2.0
    return State(function, lambda: setattr(function, "k", 3.0))


def a_mutable_default():
    values = [2.0]

    def function(t, given=values):
        return t * given[0]

    return State(function, lambda: values.__setitem__(0, 3.0))


def an_inner_function():
    state = types.SimpleNamespace(k=2.0)

    def function(t):
        def inner(u):
            return u * state.k

        return inner(t)

    return State(function, lambda: setattr(state, "k", 3.0))


def a_function_that_is_replaced():
    table = {"act": lambda t: t * 2.0}
    return State(lambda t: table["act"](t), lambda: table.update(act=lambda t: t * 3.0))


def a_cached_function():
    values = [2.0]

    @functools.lru_cache
    def scale(_):
        return values[0]

    def change():
        values[0] = 3.0
        scale.cache_clear()

    return State(lambda t: t * scale(1), change)


def a_tensor_that_is_rebound():
    box = {"w": tensor([3.0, 4.0])}
    return State(lambda t: t * box["w"], lambda: box.update(w=tensor([5.0, 6.0])))


def a_tensor_that_is_written():
    w = tensor([3.0, 4.0])
    return State(lambda t: t * w, lambda: w.data.__setitem__(0, 9.0))


def a_tensor_whose_data_is_replaced():
    w = tensor([3.0, 4.0])
    return State(lambda t: t * w + w.detach(), lambda: setattr(w, "data", np.array([5.0, 6.0])))


def an_array_that_is_written():
    a = np.array([3.0, 4.0])
    return State(lambda t: t * a, lambda: a.__setitem__(0, 9.0))


def a_view_that_is_written():
    a = np.array([3.0, 4.0, 5.0])
    return State(lambda t: t * a[1:], lambda: a.__setitem__(1, 9.0))


def an_array_read_by_python():
    a = np.array([3.0, 4.0])
    return State(lambda t: t * float(a[0]), lambda: a.__setitem__(0, 9.0))


def an_array_read_by_numpy():
    a = np.array([3.0, 4.0])
    return State(lambda t: t * (a * 2).sum(), lambda: a.__setitem__(0, 9.0))


def a_mask():
    mask = np.array([False, True])
    return State(lambda t: t[mask] * 1.0, lambda: mask.__setitem__(slice(None), [True, True]))


def an_index_array():
    index = np.array([1, 1])
    return State(lambda t: t[index] * 1.0, lambda: index.__setitem__(0, 0))


def the_mode_of_a_module():
    layer = nn.Dropout(0.5)
    return State(lambda t: layer(t * 0) + t, layer.eval)


def the_mode_of_a_module_in_a_module():
    model = nn.Sequential(nn.Sequential(nn.Dropout(1 - 1e-9)))
    return State(lambda t: model(t), model.eval)


def a_hyperparameter_of_a_layer():
    layer = nn.LeakyReLU(0.5)
    return State(lambda t: layer(-t), lambda: setattr(layer, "negative_slope", 0.25))


def an_attribute_of_a_users_module():
    class Scale(nn.Module):
        k = 2.0

        def forward(self, t):
            return t * self.k

    layer = Scale()
    return State(lambda t: layer(t), lambda: setattr(layer, "k", 3.0))


def a_child_that_is_replaced():
    model = nn.Module()
    model.act = nn.ReLU()
    return State(lambda t: model.act(t - 1.5), lambda: setattr(model, "act", nn.LeakyReLU(0.5)))


def whether_gradients_are_required():
    w = tensor([3.0, 4.0], grad=True)
    return State(
        lambda t: t * (2.0 if (t * w).requires_grad else 3.0),
        lambda: setattr(w, "requires_grad", False),
    )


def whether_there_is_a_gradient():
    w = tensor([3.0, 4.0], grad=True)
    return State(
        lambda t: t * (2.0 if w.grad is None else 3.0), lambda: setattr(w, "grad", np.ones(2))
    )


def an_attribute_of_the_name_of_one_that_is_stored():
    one, other = types.SimpleNamespace(k=2.0), types.SimpleNamespace(k=0)

    def function(t):
        other.k = 1
        return t * one.k

    return State(function, lambda: setattr(one, "k", 3.0))


def an_entry_beside_one_that_is_stored():
    state = {"calls": 0, "k": 2.0}

    def function(t):
        state["calls"] = state["calls"] + 1
        return t * state["k"]

    return State(function, lambda: state.update(k=3.0))


def an_entry_of_a_list_beside_one_that_is_stored():
    state = [0, 2.0]

    def function(t):
        state[0] = state[0] + 1
        return t * state[1]

    return State(function, lambda: state.__setitem__(1, 3.0))


def a_lazily_set_attribute():
    class Scale(nn.Module):
        k = None

        def forward(self, t):
            if self.k is None:
                self.k = 2.0
            return t * self.k

    layer = Scale()
    return State(lambda t: layer(t), lambda: setattr(layer, "k", 3.0))


STATES = [
    a_global, a_container_in_a_global, a_closure_variable, an_int_that_becomes_an_equal_float,
    a_zero_that_becomes_negative, a_list_that_grows, a_list_that_shrinks, an_entry_of_a_deque,
    a_key_that_appears, a_key_of_an_ordered_dict, the_contents_of_a_set, a_class_attribute,
    a_class_attribute_behind_an_object, an_attribute_that_hides_that_of_the_class,
    an_attribute_by_name, an_attribute_that_appears, an_attribute_of_parsed_arguments, a_slot,
    a_frozen_dataclass_that_is_replaced, a_dict_with_attributes, an_enum, a_module_global,
    a_global_of_a_function_of_another_module, a_name_imported_inside, a_global_behind_a_method,
    a_property_and_a_static_method, a_method_that_is_replaced, an_overloaded_operator, a_partial,
    a_keyword_of_a_partial, a_closure_of_a_decorator, an_attribute_of_the_function,
    a_mutable_default, an_inner_function, a_function_that_is_replaced, a_cached_function,
    a_tensor_that_is_rebound, a_tensor_that_is_written, a_tensor_whose_data_is_replaced,
    an_array_that_is_written, a_view_that_is_written, an_array_read_by_python,
    an_array_read_by_numpy, a_mask, an_index_array, the_mode_of_a_module,
    the_mode_of_a_module_in_a_module, a_hyperparameter_of_a_layer, an_attribute_of_a_users_module,
    a_child_that_is_replaced, whether_gradients_are_required, whether_there_is_a_gradient,
    an_attribute_of_the_name_of_one_that_is_stored, an_entry_beside_one_that_is_stored,
    an_entry_of_a_list_beside_one_that_is_stored, a_lazily_set_attribute,
]  # fmt: skip


@pytest.mark.parametrize("make", STATES, ids=lambda f: f.__name__)
def test_a_compiled_function_follows(make):
    state, x = make(), tensor()
    compiled = eo.compile(state.function)
    with np.errstate(all="ignore"):
        for _ in range(4):
            random_before = eo.get_rng_state()
            want = state.function(x)
            eo.set_rng_state(random_before)
            same(compiled(x), want)
        traced = compiled.cache_info().traces
        state.change()
        want = state.function(x)
        for _ in range(4):
            same(compiled(x), want)
    assert traced <= 3


@pytest.mark.parametrize("make", STATES, ids=lambda f: f.__name__)
def test_a_warmed_up_function_follows(make):
    """The change comes between the trace and the first call that runs."""
    state, x = make(), tensor()
    compiled = eo.compile(state.function)
    compiled.warmup(x)
    state.change()
    with np.errstate(all="ignore"):
        want = state.function(x)
        for _ in range(2):
            same(compiled(x), want)


def test_a_value_that_the_function_stores_itself_is_guarded_while_it_begins_with_the_same():
    scope: dict[str, Any] = {}
    exec("def f(t):\n    global scale\n    y = t * scale\n    scale = 1.0\n    return y", scope)
    compiled = eo.compile(scope["f"])
    for _ in range(3):
        scope["scale"] = 2.0
        same(compiled(tensor()), X * 2.0)
    scope["scale"] = 3.0
    same(compiled(tensor()), X * 3.0)
    scope["scale"] = 4.0
    with pytest.raises(EveryOTraceError, match="changes from call to call"):
        compiled(tensor())


# ------------------------------------------------------------- nothing to trace again


def a_global_counter():
    scope: dict[str, Any] = {"n": 0}
    exec("def f(t):\n    global n\n    n += 1\n    return t * 2.0", scope)
    return scope["f"], lambda: None


def a_counter_of_an_object():
    state = types.SimpleNamespace(n=0)

    def function(t):
        state.n += 1
        return t * 2.0

    return function, lambda: None


def a_list_that_is_appended_to():
    log: list[int] = []

    def function(t):
        log.append(1)
        return t * 2.0

    return function, lambda: None


def a_counter_that_the_loop_keeps():
    class Trainer:
        def __init__(self):
            self.steps = 0
            self.losses = []
            self.k = 2.0

        def step(self, t):
            return t * self.k

    trainer = Trainer()

    def between():
        trainer.steps += 1
        trainer.losses.append(1.0)

    return trainer.step, between


def a_counter_in_a_module_that_the_loop_keeps():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def forward(self, t):
            return t * 2.0

    model = Model()

    def between():
        model.steps += 1

    return lambda t: model(t), between


def parameters_that_are_written_or_replaced():
    w = tensor([3.0, 4.0])

    def between():
        w.data[0] += 1.0
        w.data = np.array(w.data * 2)

    return lambda t: t * w, between


def an_equal_number_in_a_new_object():
    state = {"k": 1000.5, "shape": (1, 2)}

    def between():
        state["k"] = float("1000.5")
        state["shape"] = tuple([1, 2])

    return lambda t: t.reshape(state["shape"]) * state["k"], between


def modes_that_alternate():
    layer = nn.Dropout(0.25)
    return lambda t: layer(t), lambda: layer.train(not layer.training)


STEADY = [
    a_global_counter, a_counter_of_an_object, a_list_that_is_appended_to,
    a_counter_that_the_loop_keeps, a_counter_in_a_module_that_the_loop_keeps,
    parameters_that_are_written_or_replaced, an_equal_number_in_a_new_object,
    modes_that_alternate,
]  # fmt: skip


@pytest.mark.parametrize("make", STEADY, ids=lambda f: f.__name__)
def test_nothing_is_traced_again_for(make):
    function, between = make()
    compiled, x = eo.compile(function), tensor()
    for _ in range(12):
        compiled(x)
        between()
    assert compiled.cache_info().traces <= 4


def test_floats_are_inputs_and_told_apart_by_their_bits():
    compiled = eo.compile(lambda t, c: t / c)
    with np.errstate(all="ignore"):
        for c in (2.0, 0.0, -0.0, np.nan, np.inf, 5e-324, 0.1):
            same(compiled(tensor(), c), X / np.float64(c))
    assert compiled.cache_info().traces == 2


def test_static_floats_are_told_apart_by_their_bits():
    compiled = eo.compile(lambda t, c: t / c, static_argnames="c")
    with np.errstate(all="ignore"):
        for c in (0.0, -0.0, 0.0, np.nan, np.nan, 2.0):
            same(compiled(tensor(), c), X / np.float64(c))
    assert compiled.cache_info().entries == 4


@pytest.mark.parametrize("k", [2, True, "a", None, 1j, b"a", (1, "b"), {"a": 3}])
def test_arguments_that_are_not_numbers_with_a_point_are_static(k):
    seen = []

    def function(t, k):
        seen.append(k)
        return t * 2.0

    compiled = eo.compile(function)
    for _ in range(3):
        compiled(tensor(), k)
    assert repr(seen[0]) == repr(k) and compiled.cache_info().entries == 1
    compiled(tensor(), "another")
    assert compiled.cache_info().entries == 2


def test_ones_of_three_types_are_three_keys():
    whole = eo.tensor(np.array([1, 2]), dtype="int64")
    compiled = eo.compile(lambda t, k: t * k)
    for k in (1, 1.0, True, 1, 1.0, True):
        same(compiled(whole, k), whole * k)
    assert compiled.cache_info().entries == 3


@pytest.mark.parametrize(
    "arrays",
    [
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones((2, 3)), np.ones((2, 3), np.float32)),
        (np.ones((4, 4)), np.ones((4, 4)).T[::-1]),
        (np.arange(6.0), np.arange(12.0)[::2]),
    ],
    ids=["shape", "dtype", "order", "gaps"],
)
@pytest.mark.parametrize("order", [1, -1])
def test_each_kind_of_array_has_a_version_of_its_own(arrays, order):
    compiled = eo.compile(lambda a: (a * 2.0).sum(axis=0))
    for a in [*arrays][::order] * 3:
        same(compiled(eo.as_tensor(a)), (a * 2.0).sum(axis=0))
        same(compiled(a), (a * 2.0).sum(axis=0))


def test_the_order_of_keys_is_part_of_the_structure():
    values, keywords = (
        eo.compile(lambda d: list(d.values())),
        eo.compile(lambda **d: list(d.values())),
    )
    a, b = tensor([1.0]), tensor([2.0])
    for _ in range(4):
        for call in (values, lambda d: keywords(**d)):
            assert [t.item() for t in call({"a": a, "b": b})] == [1.0, 2.0]
    for call in (values, lambda d: keywords(**d)):
        assert [t.item() for t in call({"b": b, "a": a})] == [2.0, 1.0]


def test_gradient_modes_have_versions_of_their_own():
    w = tensor([3.0, 4.0], grad=True)
    compiled = eo.compile(lambda t: (t * w).sum())
    for _ in range(3):
        with eo.no_grad():
            assert not compiled(tensor()).requires_grad
        assert compiled(tensor()).requires_grad
    w.requires_grad = False
    assert not compiled(tensor()).requires_grad


# ------------------------------------------------------------- state that no guard sees


def test_lazily_made_state_is_accepted():
    class Layer(nn.Module):
        table = None

        def forward(self, t):
            if self.table is None:
                self.table = np.array([3.0, 4.0])
            return t * self.table

    layer = Layer()
    compiled = eo.compile(layer)
    for _ in range(4):
        same(compiled(tensor()), X * [3.0, 4.0])
    layer.table[0] = 9.0
    same(compiled(tensor()), X * [9.0, 4.0])


@pytest.mark.parametrize(
    "hidden",
    [
        random.random,
        time.perf_counter_ns,
        lambda: np.random.rand(),
        lambda: np.random.rand(2),
        lambda: random.choice((1, 2)) + time.perf_counter(),
    ],
    ids=["random", "time", "numpy", "numpy array", "both"],
)
def test_state_that_guards_cannot_see_is_found_by_the_second_trace(hidden):
    compiled = eo.compile(lambda t: t * 1.0 + hidden())
    compiled(tensor())
    with pytest.raises(EveryOTraceError, match=r"test_compile_guards\.py:\d+") as caught:
        for _ in range(3):
            compiled(tensor())
    assert "changes from call to call" in str(caught.value)


def test_an_iterator_is_found_by_the_second_trace():
    batches = iter([np.array([float(k), 1.0]) for k in range(9)])
    compiled = eo.compile(lambda t: t * next(batches))
    compiled(tensor())
    with pytest.raises(EveryOTraceError, match="differs between two traces"):
        compiled(tensor())


def test_a_numpy_generator_is_refused_at_once():
    generator = np.random.default_rng(0)
    compiled = eo.compile(lambda t: t + eo.rand(2, seed=generator))
    with pytest.raises(EveryOTraceError, match="manual_seed"):
        compiled(tensor())


def test_without_the_check_there_is_one_trace():
    compiled = eo.compile(lambda t: t * 2.0, check=False)
    for _ in range(4):
        same(compiled(tensor()), X * 2.0)
    assert compiled.cache_info().traces == 1


# ------------------------------------------------------------- retraces are visible


def test_many_traces_warn_and_say_what_changed():
    state = {"k": 0}
    compiled = eo.compile(lambda t: t * state["k"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(10):
            state["k"] = k
            same(compiled(tensor()), X * k)
    assert compiled.cache_info().traces >= 9 and caught
    assert "'k'" in str(caught[-1].message) and "was 8, is 9" in str(caught[-1].message)
    assert caught[-1].filename == __file__


def test_few_traces_do_not_warn():
    compiled = eo.compile(lambda t: t * 2.0)
    for n in range(1, 5):
        for _ in range(2):
            compiled(tensor(np.ones(n)))
    assert compiled.cache_info().traces == 8


def test_versions_are_bounded():
    state = {"k": 0}
    compiled = eo.compile(lambda t: t * state["k"], check=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(40):
            state["k"] = k
            compiled(tensor())
    assert compiled.cache_info().entries <= 16


# ------------------------------------------------------------- threads


def test_eight_threads_share_one_trace():
    w = tensor([3.0, 4.0])
    compiled, wrong = eo.compile(lambda t: (t * w + t).sum()), []

    def run(k):
        for i in range(100):
            if compiled(tensor([k + i, 1.0])).item() != (k + i) * 4.0 + 5.0:
                wrong.append((k, i))

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and compiled.cache_info().traces <= 2


def test_calls_that_write_state_take_turns():
    count = tensor([0.0])

    @eo.compile
    def step():
        count.data[...] = count.data + 1.0
        return count * 1.0

    seen = []
    threads = [
        threading.Thread(target=lambda: seen.extend(step().item() for _ in range(50)))
        for _ in range(8)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(seen) == list(range(1, 401))


def test_one_thread_traces_while_another_computes():
    ready, traced = threading.Event(), threading.Event()

    def function(t):
        ready.set()
        traced.wait(10)
        return t * 2.0

    thread = threading.Thread(target=lambda: eo.compile(function)(tensor()))
    thread.start()
    ready.wait(10)
    same(tensor() + 1.0, X + 1.0)
    w = tensor(X, grad=True)
    (w * w).sum().backward()
    same(w.grad, 2 * X)
    traced.set()
    thread.join()
