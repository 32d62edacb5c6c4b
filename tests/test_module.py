"""Modules: names, buffers, state, modes, copies, and `Sequential`."""

import copy
import json
import pickle

import numpy as np
import pytest
from nn_table import CASES

import everyo as eo
from everyo import nn
from everyo.core.state import Epoch
from everyo.exceptions import EveryOError, EveryOSerializationError
from everyo.nn.module import MODULE_REGISTRY, get_module_class, register_module


class Net(eo.Module):
    """Two layers, a parameter of its own, and a buffer."""

    def __init__(self):
        super().__init__()
        self.first = eo.Linear(3, 4, seed=0)
        self.scale = eo.Parameter(np.ones(4, np.float32))
        self.second = eo.Linear(4, 2, bias=False, seed=1)
        self.register_buffer("seen", np.zeros((), np.int64))

    def forward(self, x):
        self.seen = self.seen + 1
        return self.second(self.first(x) * self.scale)


def test_parameters_are_named_by_path_own_ones_first():
    names = [name for name, _ in Net().named_parameters()]
    assert names == ["scale", "first.weight", "first.bias", "second.weight"]
    assert dict(Net().named_parameters("net")).keys() == {f"net.{name}" for name in names}
    assert [n for n, _ in Net().named_modules()] == ["", "first", "second"]


def test_a_sequential_numbers_its_layers():
    model = eo.Sequential(eo.Linear(2, 3), eo.ReLU(), eo.Linear(3, 1))
    names = [name for name, _ in model.named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert eo.ReLU().parameters() == []


def test_numbers_of_parameters():
    net = Net()
    assert net.num_parameters() == 4 + 16 + 8
    net.first.weight.requires_grad = False
    assert net.num_parameters(trainable_only=True) == 4 + 4 + 8


def test_a_shared_parameter_counts_once_and_is_saved_under_both_names():
    tied = Net()
    tied.third = tied.first
    assert tied.num_parameters() == Net().num_parameters()
    assert len(tied.parameters()) == 4
    assert {"first.weight", "third.weight"} <= set(tied.state_dict())


def test_a_child_may_know_its_parent():
    net = Net()
    net.first.parent = net
    assert [n for n, _ in net.named_modules()] == ["", "first", "second"]
    assert net.eval().first.training is False


def test_assigning_before_init_is_an_error_that_names_super():
    class Early(eo.Module):
        def __init__(self):
            self.weight = eo.Parameter([1.0])

    with pytest.raises(EveryOError, match="super"):
        Early()


def test_a_bare_module_has_no_forward():
    with pytest.raises(NotImplementedError):
        eo.Module()(1)


def test_a_missing_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Net has no attribute 'absent'"):
        _ = Net().absent


def test_parameters_follow_the_dtype_rules_of_tensors():
    assert eo.Parameter(np.zeros(1)).dtype == "float64"
    assert eo.Parameter([1, 2]).dtype == "float32"
    assert (
        eo.Parameter([1.0]).requires_grad
        and not eo.Parameter([1.0], requires_grad=False).requires_grad
    )


# ---------------------------------------------------------------------------------- buffers


def test_buffers_are_arrays_that_stay_registered_when_rebound():
    net = Net()
    net(eo.ones(1, 3))
    net(eo.ones(1, 3))
    assert isinstance(net.seen, np.ndarray) and net.seen == 2 and net.seen.dtype == np.int64
    assert [n for n, _ in net.named_buffers()] == ["seen"]
    assert len(net.buffers()) == 1 and all(p is not net.seen for p in net.parameters())
    assert list(net.state_dict())[-1] == "seen"
    assert "seen" in dir(net)


def test_a_buffer_takes_a_tensor_and_can_be_deleted():
    net = Net()
    net.seen = eo.tensor([1.5, 2.5])
    np.testing.assert_array_equal(net.seen, np.float32([1.5, 2.5]))
    del net.seen
    assert net.buffers() == [] and not hasattr(net, "seen")


def test_a_registered_buffer_is_a_copy():
    values = np.ones(2)
    module = eo.Module()
    module.register_buffer("kept", values)
    values[:] = 7
    np.testing.assert_array_equal(module.kept, [1, 1])


# ---------------------------------------------------------------------------------- state


def test_a_state_round_trips_into_another_instance():
    one, other = Net(), Net()
    one.first.weight.data[...] = 3.0
    one(eo.ones(1, 3))
    other.load_state_dict(one.state_dict())
    for name, value in one.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)


def test_a_state_is_a_copy():
    net = Net()
    state = net.state_dict()
    state["scale"][:] = 9
    net.first.weight.data[...] = 5
    assert net.scale.numpy().max() == 1 and state["first.weight"].max() != 5


def test_loading_casts_to_the_dtype_that_is_there_and_writes_in_place():
    net = Net()
    array = net.scale.data
    state = net.state_dict() | {"scale": [1, 2, 3, 4], "seen": 7.0}
    net.load_state_dict(state)
    assert net.scale.data is array and array.dtype == np.float32
    np.testing.assert_array_equal(array, [1, 2, 3, 4])
    assert net.seen == 7 and net.seen.dtype == np.int64


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"scale": None}, "Missing keys: scale"),
        ({"extra": np.zeros(1)}, "unexpected keys: extra"),
        ({"scale": np.zeros(5)}, "expects shape"),
        ({"seen": np.zeros(2)}, "Buffer 'seen' expects shape"),
        ({"scale": np.array(["a"] * 4)}, "expects numbers"),
        ({"scale": [1.0, [2.0]]}, "expects numbers"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(change, fragment):
    net = Net()
    before = net.state_dict()
    state = {k: v + 1 for k, v in before.items()} | change
    state = {k: v for k, v in state.items() if v is not None}
    with pytest.raises(EveryOSerializationError, match=fragment):
        net.load_state_dict(state)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_not_strict_takes_what_fits_by_name():
    net = Net()
    net.load_state_dict({"scale": np.full(4, 2.0), "extra": np.zeros(1)}, strict=False)
    np.testing.assert_array_equal(net.scale.numpy(), np.full(4, 2.0))
    with pytest.raises(EveryOSerializationError, match="expects shape"):
        net.load_state_dict({"scale": np.zeros(1)}, strict=False)


def test_generators_of_modules_are_a_state_of_their_own():
    model = eo.Sequential(eo.Dropout(0.5, seed=3), eo.Dropout(0.5))
    x = eo.ones(64)
    model(x)
    state = model.random_state()
    assert list(state) == ["0.generator"]
    assert model.state_dict() == {} and model.parameters() == []
    first = model[0](x).numpy()
    model.load_random_state(state)
    np.testing.assert_array_equal(model[0](x).numpy(), first)
    with pytest.raises(EveryOSerializationError, match="Missing keys"):
        model.load_random_state({})


# ---------------------------------------------------------------------------------- modes


def test_train_eval_and_zero_grad_reach_every_module():
    model = eo.Sequential(eo.Sequential(eo.Linear(2, 2), eo.Dropout()))
    assert model.eval() is model and not model[0][1].training
    assert model.train() is model and model[0][1].training
    model(eo.ones(1, 2)).sum().backward()
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    assert model.to("cpu") is model


def test_every_setter_moves_the_epoch_and_a_debugging_aid_does_not():
    layer = nn.MultiHeadAttention(4, 2)
    changes = [
        lambda: setattr(layer, "gain", 2.0),
        lambda: layer.eval(),
        lambda: setattr(layer.query_projection.weight, "requires_grad", False),
        lambda: layer.register_buffer("extra", np.zeros(1)),
        lambda: delattr(layer, "gain"),
        lambda: setattr(layer, "query_projection", eo.Linear(4, 4)),
    ]
    for change in changes:
        before = Epoch.now
        change()
        assert Epoch.now > before
    layer.eval()
    before = Epoch.now
    layer.last_attention_weights = None
    layer.eval()  # which changes nothing
    assert Epoch.now == before


# ---------------------------------------------------------------------------------- copies


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_module_is_copied_and_pickled_with_its_state(case):
    module = case.make().eval()
    x = case.input(np.float32)
    want = module(x).numpy()
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        np.testing.assert_array_equal(other(x).numpy(), want)
        assert all(p is not q for p, q in zip(module.parameters(), other.parameters(), strict=True))
        assert not other.training


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_a_config_survives_json_and_builds_the_same_module(case):
    module = case.make().eval()
    config = json.loads(json.dumps(module.get_config()))
    built = get_module_class(type(module).__name__).from_config(config).eval()
    built.load_state_dict(module.state_dict())
    x = case.input(np.float32)
    np.testing.assert_array_equal(built(x).numpy(), module(x).numpy())
    assert json.loads(json.dumps(built.get_config())) == config
    assert "seed" not in json.dumps(config)


def test_every_registered_module_is_in_the_table():
    # abstract modules of users' own tests may be registered too
    ours = {n for n, cls in MODULE_REGISTRY.items() if cls.__module__.startswith("everyo.nn.")}
    assert ours == {type(case.make()).__name__ for case in CASES}


def test_a_registered_class_is_found_and_others_are_not():
    @register_module
    class Mine(eo.Module):
        pass

    try:
        assert get_module_class("Mine") is Mine
    finally:
        del MODULE_REGISTRY["Mine"]
    for name in ("Mine", 3, None, []):
        with pytest.raises(EveryOSerializationError, match="Unknown module type"):
            get_module_class(name)


# ---------------------------------------------------------------------------------- descriptions


def test_a_summary_lists_types_and_the_total():
    text = Net().summary()
    assert "Linear" in text and "Total parameters: 28" in text and "first" in text


def test_a_repr_shows_the_tree():
    text = repr(eo.Sequential(eo.Linear(2, 3), eo.Sequential(eo.Dropout(0.2))))
    assert "(0): Linear(in_features=2, out_features=3" in text
    assert "(0): Dropout(p=0.2)" in text and text.count("Sequential") == 2


# ---------------------------------------------------------------------------------- sequential


def test_a_sequential_is_a_list_of_layers():
    a, b, c = eo.Linear(2, 2), eo.ReLU(), eo.Tanh()
    model = eo.Sequential(a, b)
    assert model.append(c) is model
    assert len(model) == 3 and list(model) == [a, b, c] == model.layers
    assert model[0] is a and model[-1] is c and list(model[1:]) == [b, c]
    with pytest.raises(IndexError):
        model[3]


def test_replacing_a_child_by_name_or_index_replaces_the_layer():
    model = eo.Sequential(eo.ReLU(), eo.Tanh(), eo.ReLU())
    new = eo.Sigmoid()
    setattr(model, "0", new)
    newer = nn.SiLU()
    model[-1] = newer
    assert model[0] is new and model[2] is newer and len(model) == 3


@pytest.mark.parametrize("wrong", [3, eo.relu, None, eo.Linear])
def test_a_sequential_takes_modules_only(wrong):
    with pytest.raises(TypeError, match="Module instances"):
        eo.Sequential(wrong)
    with pytest.raises(TypeError, match="Module instances"):
        eo.Sequential().append(wrong)


def test_nested_configs_name_their_classes():
    model = eo.Sequential(eo.Linear(2, 3), eo.Sequential(eo.ReLU()))
    config = model.get_config()
    assert [entry["class_name"] for entry in config["layers"]] == ["Linear", "Sequential"]
    assert repr(eo.Sequential.from_config(config)) == repr(model)
