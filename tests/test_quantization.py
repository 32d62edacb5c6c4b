"""int8 weights: close to the originals by half a step, and models that predict nearly the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import everyo as eo
from everyo.quantization import (
    QuantizationError,
    QuantizedLinear,
    quantize,
    quantize_dynamic,
)

FINITE = st.floats(-1e6, 1e6, width=32)


@given(arrays.arrays(np.float32, arrays.array_shapes(max_dims=3), elements=FINITE), st.data())
def test_every_value_is_half_a_scale_off_at_most(a, data):
    axis = data.draw(st.none() | st.integers(-a.ndim, a.ndim - 1))
    q = quantize(a, axis=axis)
    assert q.values.dtype == np.int8
    assert q.scale.dtype == np.float32
    assert np.abs(q.values.astype(int)).max() <= 127
    scale = q.scale.astype(np.float64)
    error = np.abs(q.values * scale - a.astype(np.float64))
    assert (error <= 0.5 * scale * (1 + 1e-5) + 1e-40).all()
    assert q.nbytes == a.size + 4 * q.scale.size
    if axis is None:
        assert q.scale.shape == ()
    else:
        assert q.scale.size == a.shape[axis]
        assert q.axis == axis % a.ndim
    np.testing.assert_allclose(q.dequantize(), q.values * scale, rtol=1e-6)


def test_rounding_is_half_to_even_and_symmetric():
    q = quantize(np.array([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0, 0.0]))
    assert q.scale == 1.0
    assert q.values.tolist() == [127, 0, 2, 2, 0, -2, -127, 0]


def test_zeros_stay_zeros():
    q = quantize(np.array([[0.0, 0.0], [1.0, -2.0]]), axis=0)
    assert q.dequantize()[0].tolist() == [0.0, 0.0]
    assert q.scale.shape == (2, 1)
    assert not quantize(np.zeros(3)).dequantize().any()


@pytest.mark.parametrize(
    ("array", "axis", "message"),
    [
        ([1.0, np.nan], None, "finite"),
        ([np.inf], None, "finite"),
        ([1e300], None, "finite"),
        ([], None, "empty"),
        ([1.0], 1, "axis 1"),
    ],
)
def test_what_cannot_be_quantized_is_named(array, axis, message):
    with pytest.raises(QuantizationError, match=message):
        quantize(np.array(array), axis=axis)


def test_a_tensor_is_quantized_like_its_array():
    a = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    assert np.array_equal(quantize(eo.tensor(a), axis=1).values, quantize(a, axis=1).values)
    assert np.abs(quantize(a, axis=1).dequantize() - a).max() < 0.015


def some_input(shape):
    return np.random.default_rng(1).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("bias", [True, False])
def test_a_quantized_layer_is_close_and_has_no_parameters(bias):
    layer = eo.Linear(16, 8, bias=bias, seed=0)
    quantized = QuantizedLinear(layer)
    x = some_input((5, 16))
    np.testing.assert_allclose(quantized(x).numpy(), layer(x).numpy(), atol=0.03)
    assert quantized.parameters() == []
    assert not quantized.training
    assert [n for n, _ in quantized.named_buffers()][:2] == ["qweight", "weight_scale"]
    assert sum(b.nbytes for b in quantized.buffers()) == 16 * 8 + 4 * (8 + 8 * bias)
    assert quantized.qweight.dtype == np.int8
    assert hasattr(quantized, "bias") is bias
    with pytest.raises(eo.EveryOShapeError, match="must be 16"):
        quantized(x[:, :3])


class Model(eo.Module):
    def __init__(self):
        super().__init__()
        self.body = eo.Sequential(eo.Linear(10, 32, seed=0), eo.ReLU(), eo.Dropout(0.5))
        self.head = eo.Linear(32, 4, seed=1)
        self.again = self.head

    def forward(self, x):
        return (self.head(self.body(x)) + self.again(self.body(x))) / 2


@pytest.mark.parametrize("inplace", [False, True])
def test_every_linear_below_a_model_is_replaced(inplace):
    model = Model()
    x = some_input((6, 10))
    expected = model.eval()(x).numpy()
    model.train()
    quantized = quantize_dynamic(model, inplace=inplace)
    kinds = [type(m).__name__ for _, m in quantized.named_modules()]
    assert kinds == ["Model", "Sequential", "QuantizedLinear", "ReLU", "Dropout", "QuantizedLinear"]
    assert quantized.again is quantized.head
    assert not any(m.training for _, m in quantized.named_modules())
    np.testing.assert_allclose(quantized(x).numpy(), expected, atol=0.05)
    assert (quantized is model) is inplace
    assert (type(model.head) is eo.Linear) is not inplace
    assert model.training is not inplace


def test_a_transformer_is_quantized_inside():
    model = eo.nn.TransformerEncoder(8, 2, num_layers=1, seed=0).eval()
    x = some_input((2, 5, 8))
    quantized = quantize_dynamic(model)
    assert type(quantized.blocks[0].attention.query_projection) is QuantizedLinear
    np.testing.assert_allclose(quantized(x).numpy(), model(x).numpy(), atol=0.05)


def test_a_quantized_model_is_saved_and_loaded(tmp_path):
    model = quantize_dynamic(eo.Sequential(eo.Linear(5, 3), eo.Linear(3, 2, bias=False)))
    x = some_input((4, 5))
    again = eo.load(eo.save(model, tmp_path / "q"))
    assert np.array_equal(again(x).numpy(), model(x).numpy())
    assert again[0].qweight.dtype == np.int8


def test_a_compiled_quantized_model_computes_the_same():
    model = quantize_dynamic(eo.Sequential(eo.Linear(5, 7, seed=0), eo.Tanh(), eo.Linear(7, 2)))
    x = some_input((4, 5))
    np.testing.assert_allclose(eo.compile(model)(x).numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", [lambda: QuantizedLinear(eo.ReLU()), lambda: quantize_dynamic(3)])
def test_only_layers_and_models_are_quantized(what):
    with pytest.raises(QuantizationError, match="only"):
        what()


def test_a_bare_layer_becomes_a_quantized_one():
    assert type(quantize_dynamic(eo.Linear(3, 2))) is QuantizedLinear
