"""What cannot be compiled says so: `EveryOTraceError`, the user's line, what to do; or runs
eagerly."""

import inspect
import warnings

import numpy as np
import pytest

import everyo as eo
from everyo import nn
from everyo.core.autograd import MODE, TRACES
from everyo.exceptions import EveryOError, EveryOTraceError

KEPT: list = []
X = np.array([1.0, 2.0])


def tensor(values=X, grad=False):
    return eo.tensor(np.asarray(values, np.float64), requires_grad=grad)


def branch(t):
    if t.sum() > 0:
        return t * 2.0
    return t * -3.0


def while_loop(t):
    while t.sum() < 100.0:
        t = t * 2.0
    return t


def and_between(t):
    return t * 2.0 if (t.sum() > 0) and (t.sum() < 5) else t


def to_float(t):
    return t * float(t.sum())


def to_int(t):
    return t * int(t[0])


def item(t):
    return t * t[0].item()


def tolist(t):
    return t * t.tolist()[0]


def numpy(t):
    return t * t.numpy()


def asarray(t):
    return t * np.asarray(t)


def formatted(t):
    return t * len(f"{t.sum():.3f}")


def mask(t):
    return t[t > 1.5]


def mask_of_data(t):
    return t[t.data > 1.5]


def unique(t):
    return np.unique(t)


def nonzero(t):
    return np.nonzero(t.data)


def range_of(t):
    return [t * k for k in range(int(t.sum()))]


def python_max(t):
    return max(t)


def compared(t):
    return t * 2.0 if t[0] == 1.0 else t


def contained(t):
    return t * 2.0 if 1.0 in t.data else t


def list_of_traced(t):
    return eo.tensor([t[0] * 2.0, t[1]])


def print_number(t):
    return t * len(str(t.sum().item()))


def repeats(t):
    return eo.tile(t, int(t[0]))


VALUES = [
    branch, while_loop, and_between, to_float, to_int, item, tolist, numpy, asarray, formatted,
    mask,
    mask_of_data, unique, nonzero, range_of, python_max, compared, contained, list_of_traced,
    print_number, repeats,
]  # fmt: skip


@pytest.mark.parametrize("function", VALUES, ids=lambda f: f.__name__)
def test_code_that_needs_values_is_refused_with_its_line(function):
    first = function.__code__.co_firstlineno
    lines = range(first, first + len(inspect.getsourcelines(function)[0]))
    with pytest.raises(EveryOTraceError) as caught:
        eo.compile(function)(tensor())
    text = str(caught.value)
    assert any(f"{__file__}:{n}" in text for n in lines), text
    assert "fallback='eager'" in text or "eo.stack" in text
    assert not TRACES and MODE.trace is None


@pytest.mark.parametrize("function", VALUES, ids=lambda f: f.__name__)
def test_code_that_needs_values_runs_eagerly_where_asked(function):
    compiled = eo.compile(function, fallback="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for k in range(4):
            x = tensor(X + k)
            got, want = compiled(x), function(x)
            assert type(got) is type(want)
            np.testing.assert_array_equal(np.array(got, object), np.array(want, object))
    said = [str(w.message) for w in caught if "runs eagerly" in str(w.message)]
    assert len(said) == 1 and f"{__file__}:" in said[0]
    assert [w.filename for w in caught if "runs eagerly" in str(w.message)] == [__file__]


def test_a_branch_is_told_about_where():
    with pytest.raises(EveryOTraceError, match=r"bool\(\).*eo\.where"):
        eo.compile(branch)(tensor())
    spelled = eo.compile(lambda t: eo.where(t.sum() > 0, t * 2.0, t * -3.0))
    for _ in range(3):
        assert spelled(tensor()).tolist() == [2.0, 4.0]
        assert spelled(tensor([-1.0, -2.0])).tolist() == [3.0, 6.0]


def test_a_branch_on_a_float_argument_is_loud_and_may_be_static():
    def gate(t, c):
        return t * 2.0 if c > 0.5 else t * 3.0

    with pytest.raises(EveryOTraceError, match=r"static"):
        eo.compile(gate)(tensor(), 1.0)
    compiled = eo.compile(gate, static_argnames="c")
    for c, want in ((1.0, 2.0), (0.0, 3.0), (1.0, 2.0)):
        assert compiled(tensor(), c).tolist() == [want, 2 * want]


def test_float_and_array_arguments_pass_for_what_they_are():
    def kinds(c, a):
        scale = 2.0 if isinstance(c, float) and not isinstance(c, np.ndarray) else 3.0
        return a * (scale if isinstance(a, np.ndarray) and not isinstance(a, float) else 5.0)

    compiled = eo.compile(kinds)
    for _ in range(3):
        np.testing.assert_array_equal(compiled(1.5, X), kinds(1.5, X))


def test_the_text_of_a_float_argument_is_not_available():
    with pytest.raises(EveryOTraceError, match="formatting"):
        eo.compile(lambda t, c: t * len(f"{c}"))(tensor(), 1.0)


# ------------------------------------------------------------- traced values that escape


def into_a_list(t):
    y = t * 2.0
    KEPT.append(y)
    return y + 1.0


def into_a_global(t):
    global LEAKED
    LEAKED = t * 2.0
    return t


class Box:
    """Holds what is put into it."""


BOX = Box()


def into_an_attribute_of_a_plain_object(t):
    BOX.value = t * 2.0
    return t


def into_a_closure(t, cell=[]):  # noqa: B006
    def keep():
        return y

    y = t * 2.0
    cell.append(keep)
    return y


def into_an_object_that_is_returned(t):
    class Result:
        pass

    out = Result()
    out.value = t * 2.0
    return out


ESCAPES = [
    into_a_list, into_a_global, into_an_attribute_of_a_plain_object, into_a_closure,
    into_an_object_that_is_returned,
]  # fmt: skip


@pytest.mark.parametrize("function", ESCAPES, ids=lambda f: f.__name__)
def test_a_traced_value_that_escapes_is_an_error_with_its_line(function):
    KEPT.clear()
    with pytest.raises(EveryOTraceError, match=r"still held after.*return it") as caught:
        eo.compile(function)(tensor())
    first = function.__code__.co_firstlineno
    lines = range(first, first + len(inspect.getsourcelines(function)[0]))
    assert any(f"{__file__}:{n}" in str(caught.value) for n in lines)


def test_a_traced_value_that_escaped_says_so_when_it_is_used():
    KEPT.clear()
    with pytest.raises(EveryOTraceError):
        eo.compile(into_a_list)(tensor())
    leaked = KEPT[0]
    uses = (
        lambda: leaked + 1.0, lambda: float(leaked.sum()), lambda: leaked.numpy(),
        lambda: eo.exp(leaked), lambda: eo.compile(lambda: leaked * 2.0)(),
    )  # fmt: skip
    for use in uses:
        with pytest.raises(EveryOTraceError, match="kept after the traced function"):
            use()


def test_a_cycle_of_the_functions_own_is_no_escape():
    def function(t):
        cycle = [t * 2.0]
        cycle.append(cycle)
        return t * 3.0

    compiled = eo.compile(function)
    for _ in range(3):
        assert compiled(tensor()).tolist() == [3.0, 6.0]


# ------------------------------------------------------------- attributes


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, t):
        self.calls = self.calls + 1
        return t * 2.0


def test_an_attribute_that_every_call_sets_is_refused_with_its_line():
    model = Counting()
    compiled = eo.compile(model)
    compiled(tensor())
    with pytest.raises(EveryOTraceError, match=r"'calls' is set at every call, at .*\.py:\d+"):
        compiled(tensor())
    assert model.calls == 1


def test_an_attribute_that_every_call_sets_is_set_where_the_function_runs_eagerly():
    model = Counting()
    compiled = eo.compile(model, fallback="eager")
    with pytest.warns(UserWarning, match="runs eagerly"):
        for _ in range(5):
            compiled(tensor())
    assert model.calls == 5


def test_an_attribute_with_a_graph_is_refused():
    class Keeps(nn.Module):
        def forward(self, t):
            self.last = t * 2.0
            return t

    model = Keeps()
    with pytest.raises(EveryOTraceError, match=r"detach\(\)"):
        eo.compile(model)(tensor(grad=True))
    assert not hasattr(model, "last")


# ------------------------------------------------------------- errors of the function itself


@pytest.mark.parametrize("call", range(3))
def test_exceptions_of_the_function_pass_through(call):
    class Own(Exception):
        pass

    error = Own("mine", 3)

    def function(t, fail):
        if fail:
            raise error
        return t * 2.0

    compiled = eo.compile(function)
    for _ in range(call):
        compiled(tensor(), False)
    with pytest.raises(Own) as caught:
        compiled(tensor(), True)
    assert caught.value is error and not TRACES
    assert compiled(tensor(), False).tolist() == [2.0, 4.0]


BROKEN = {
    "shapes": lambda t: t + eo.zeros(3),
    "index": lambda t: t[5],
    "axis": lambda t: t.sum(axis=3),
    "matmul": lambda t: t @ eo.zeros(3),
    "no gradient": lambda t: t.sum().backward(),
    "a vector backward": lambda t: (t * eo.tensor(X, requires_grad=True)).backward(),
    "reshape": lambda t: t.reshape(5),
    "empty maximum": lambda t: t[:0].max(),
    "item assignment": lambda t: (t * eo.tensor(X, requires_grad=True)).__setitem__(0, 1.0),
}


@pytest.mark.parametrize("name", BROKEN)
def test_errors_are_those_of_eager_code(name):
    with pytest.raises(EveryOError) as want:
        BROKEN[name](tensor())
    with pytest.raises(type(want.value)) as got:
        eo.compile(BROKEN[name])(tensor())
    assert type(got.value) is type(want.value)
    assert str(got.value) == str(want.value)


CHECKS = {
    "index": (lambda t, i: t[i], np.array([5])),
    "negative index": (lambda t, i: t[i], np.array([-3])),
    "labels": (lambda t, i: nn.CrossEntropyLoss()(t.reshape(1, 2), i), np.array([2])),
    "ids": (lambda t, i: nn.Embedding(2, 3)(i), np.array([7])),
    "gather": (lambda t, i: eo.take_along_axis(t, i, axis=0), np.array([2])),
    "probabilities": (lambda t, i: nn.BCELoss()(t + i, t * 0), np.array([9])),
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_values_raise_what_eager_code_raises(name):
    function, bad = CHECKS[name]
    good = np.array([0])
    x = tensor([0.25, 0.5])
    with pytest.raises(EveryOError) as want:
        function(x, bad)
    compiled = eo.compile(function)
    for _ in range(3):
        with pytest.raises(type(want.value)):
            compiled(x, bad)
        compiled(x, good)


def test_an_error_in_the_middle_of_a_trace_leaves_the_mode_of_gradients():
    def function(t):
        with eo.no_grad():
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        eo.compile(function)(tensor())
    assert eo.is_grad_enabled()


def test_recursion_without_end_is_pythons_error():
    def function(t):
        return function(t * 2.0)

    with pytest.raises(RecursionError):
        eo.compile(function)(tensor())
    assert not TRACES


# ------------------------------------------------------------- what is no function, what no array
# is


@pytest.mark.parametrize("target", [3, "f", None.__class__, [len]])
def test_only_functions_and_modules_can_be_compiled(target):
    if isinstance(target, type):
        return
    with pytest.raises(TypeError, match="function or a Module"):
        eo.compile(target)


def generator(t):
    yield t


async def coroutine(t):
    return t


async def asynchronous_generator(t):
    yield t


@pytest.mark.parametrize("function", [generator, coroutine, asynchronous_generator])
def test_functions_that_do_not_return_their_result_are_refused(function):
    with pytest.raises(TypeError, match="returns its results"):
        eo.compile(function)


def test_options_are_checked_at_once():
    with pytest.raises(ValueError, match="fallback"):
        eo.compile(branch, fallback="never")
    with pytest.raises(ValueError, match="static_argnames"):
        eo.compile(branch, static_argnames=("t", "missing"))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.uint32])
def test_narrow_integers_convert_or_are_loud(dtype):
    a = np.array([3, 100], dtype)
    converted = eo.compile(lambda a: (eo.tensor(a) / 255, a == 3, a.astype(np.int64) + 1, a))
    for _ in range(3):
        scaled, equal, whole, same = converted(a)
        np.testing.assert_array_equal(scaled.data, (eo.tensor(a) / 255).data)
        assert np.asarray(equal).tolist() == [True, False] and whole.tolist() == [4, 101]
        assert same is a
    with pytest.raises(EveryOTraceError, match=f"{np.dtype(dtype)}.*convert it first"):
        eo.compile(lambda a: a + a)(a)
    with pytest.raises(EveryOTraceError, match="in-place"):
        eo.compile(lambda a: a.__setitem__(0, 1))(a)


def test_arrays_that_are_no_numbers_are_refused():
    with pytest.raises(EveryOError, match="dtype"):
        eo.compile(lambda a: a)(np.array(["a"]))


def test_arrays_with_operators_of_their_own_are_refused():
    masked = np.ma.masked_array([1.0, 2.0], [0, 1])
    for function, args in ((lambda a: a * 2.0, (masked,)), (lambda t: t * masked, (tensor(),))):
        with pytest.raises(EveryOTraceError, match="MaskedArray"):
            eo.compile(function)(*args)


@pytest.mark.parametrize("argument", [np.array(["a", "b"]), np.ma.masked_array([1.0, 2.0], [0, 1])])
def test_arguments_that_no_tensor_holds_run_eagerly_where_asked(argument):
    compiled = eo.compile(lambda a: len(a), fallback="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert [compiled(argument) for _ in range(3)] == [2, 2, 2]
    assert len(caught) == 1


def test_a_numpy_float_may_be_static():
    compiled = eo.compile(lambda t, c: t * (2.0 if c > 0.5 else 3.0), static_argnames="c")
    for c, want in ((1.0, 2.0), (0.0, 3.0), (1.0, 2.0)):
        assert compiled(tensor(), np.float64(c)).tolist() == [want, 2 * want]
