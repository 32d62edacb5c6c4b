"""Tensors, modules and compiled functions on the emulated device, beside the same on the CPU."""

import copy
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from steps import training_step

import everyo as eo
from everyo.compile.cuda import toolchain
from everyo.core.device_array import DeviceArray

CHECK = "benchmarks.device_check"
EXAMPLE = Path(__file__).parents[1] / "examples" / "cuda_training.py"
needs_compiler = pytest.mark.skipif(
    toolchain.missing() is not None, reason=f"no CUDA compiler: {toolchain.missing()}"
)


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")


def on_cuda(values, **kwargs):
    return eo.tensor(np.asarray(values, np.float32), device="cuda", **kwargs)


# Availability


def test_questions_about_cuda_never_raise_and_agree():
    info = eo.cuda.runtime_info()
    assert info["available"] is eo.cuda.is_available() is (eo.cuda.unavailable_reason() is None)
    assert info["device_count"] == eo.cuda.device_count() == len(info["devices"])
    assert info["available"] is (info["reason"] is None)


def test_cuda_can_be_switched_off(monkeypatch, caplog):
    monkeypatch.setenv("EVERYO_CUDA", "emulator")
    monkeypatch.setenv("EVERYO_DISABLE_CUDA", "1")
    assert "EVERYO_DISABLE_CUDA" in eo.cuda.unavailable_reason()
    assert not eo.cuda.is_available() and eo.cuda.device_count() == 0
    with caplog.at_level(logging.WARNING, logger="everyo"):
        assert eo.device("cuda") == "cpu"
    assert "using the cpu" in caplog.text and "EVERYO_DISABLE_CUDA" in caplog.text
    with pytest.raises(eo.EveryOCudaError, match="EVERYO_DISABLE_CUDA"):
        eo.device("cuda", strict=True)
    with pytest.raises(eo.EveryOCudaError, match="EVERYO_DISABLE_CUDA"):
        eo.cuda.add(np.ones(2), np.ones(2), strict=True)
    assert eo.tensor([1.0], device="cuda").device == "cpu"


def test_a_backend_that_cannot_be_loaded_is_a_reason(monkeypatch):
    def broken():
        raise OSError("a library is missing")

    monkeypatch.setattr(eo.cuda, "_LOADERS", [broken])
    monkeypatch.delenv("EVERYO_DISABLE_CUDA", raising=False)
    assert "a library is missing" in eo.cuda.unavailable_reason()
    assert eo.cuda.runtime_info()["devices"] == []


@needs_compiler
def test_functions_on_arrays_go_through_the_device(cuda):
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3) - 2, np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(eo.cuda.add(a, b, strict=True), a + b)
    np.testing.assert_array_equal(eo.cuda.multiply(a, a), a * a)
    np.testing.assert_allclose(eo.cuda.matmul(a, b.T), a @ b.T)
    np.testing.assert_array_equal(eo.cuda.relu(a), np.maximum(a, 0))
    assert eo.cuda.sum_all(a) == a.sum()


# Tensors


@needs_compiler
def test_tensors_go_to_the_device_and_back(cuda):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    t = eo.tensor(values, device="cuda")
    assert t.device == "cuda:0" and type(t.data) is DeviceArray and "cuda:0" in repr(t)
    np.testing.assert_array_equal(t.numpy(), values)
    assert t.cuda() is t and t.to("cuda") is t and t.cpu().device == "cpu"
    np.testing.assert_array_equal(eo.tensor(values).cuda().cpu().numpy(), values)
    assert t.tolist() == values.tolist() and t[1, 2].item() == 5 and float(t[0, 1]) == 1.0
    np.testing.assert_array_equal(np.asarray(t), values)
    for made in (eo.zeros(2, 3, device="cuda"), eo.zeros_like(t), eo.ones_like(t)):
        assert made.device == "cuda:0" and made.shape == (2, 3)
    for again in (copy.deepcopy(t), pickle.loads(pickle.dumps(t)), t.clone()):
        assert again.device == "cuda:0"
        np.testing.assert_array_equal(again.numpy(), values)


@needs_compiler
def test_views_share_memory_and_writes_are_seen(cuda):
    t = on_cuda(np.arange(12).reshape(3, 4))
    row, turned, flat = t[1], t.T, t.reshape(12)
    t[1, 2] = 50.0
    t[:, 0] = on_cuda([7, 8, 9])
    want = np.arange(12, dtype=np.float32).reshape(3, 4)
    want[1, 2], want[:, 0] = 50, [7, 8, 9]
    np.testing.assert_array_equal(t.numpy(), want)
    np.testing.assert_array_equal(row.numpy(), want[1])
    np.testing.assert_array_equal(turned.numpy(), want.T)
    np.testing.assert_array_equal(flat.numpy(), want.reshape(12))
    np.testing.assert_array_equal(t[::-1, 1::2].numpy(), want[::-1, 1::2])
    t += 1
    np.testing.assert_array_equal(row.numpy(), want[1] + 1)
    np.testing.assert_array_equal(t[np.array([2, 0])].numpy(), (want + 1)[[2, 0]])


@needs_compiler
def test_mixing_devices_is_an_error_that_names_both(cuda):
    here, there = eo.tensor([1.0, 2.0]), on_cuda([1, 2])
    with pytest.raises(eo.EveryODeviceError, match=r"cpu.*cuda:0"):
        here + there
    model = eo.Linear(2, 2)
    with pytest.raises(eo.EveryODeviceError, match=r"cpu.*cuda:0|cuda:0.*cpu"):
        eo.compile(lambda x: model(x))(there)
    with pytest.raises(eo.EveryODeviceError, match=r"cuda:0.*cpu"):
        eo.compile(lambda x: x * 2, device="cuda")(here)
    np.testing.assert_array_equal((there + np.float32(1)).numpy(), [2, 3])  # numbers go anywhere


@needs_compiler
def test_gradients_stay_on_the_device_and_cross_over_with_to(cuda):
    x = on_cuda([[1, 2], [3, 4]], requires_grad=True)
    y = eo.tensor([0.5, 2.0], requires_grad=True)
    (x * y.to("cuda")).exp().sum().backward()
    assert type(x.grad) is DeviceArray and type(y.grad) is np.ndarray
    a = eo.tensor(x.numpy(), requires_grad=True)
    b = eo.tensor(y.numpy(), requires_grad=True)
    (a * b).exp().sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), a.grad, rtol=1e-6)
    np.testing.assert_allclose(y.grad, b.grad, rtol=1e-6)


@needs_compiler
def test_second_derivatives_on_the_device(cuda):
    x = on_cuda([0.5, 1.5], requires_grad=True)
    second = eo.grad(lambda x: eo.grad(lambda x: (x**3).sum())(x).sum())
    np.testing.assert_allclose(second(x).numpy(), 6 * x.numpy(), rtol=1e-6)
    steps = eo.grad(lambda x: eo.grad(lambda x: (eo.abs(x) * x).sum())(x).sum())
    np.testing.assert_allclose(steps(x).numpy(), [2, 2], rtol=1e-6)


@needs_compiler
def test_the_array_interface_describes_the_memory(cuda):
    t = on_cuda(np.arange(6).reshape(2, 3))
    face = t.T.__cuda_array_interface__
    assert face["version"] == 3 and face["shape"] == (3, 2) and face["strides"] == (4, 12)
    assert face["typestr"] == "<f4" and face["data"] == (t.data.address, False)
    assert t.__dlpack_device__() == (2, 0)
    empty = on_cuda(np.zeros((0, 3))).__cuda_array_interface__
    assert empty["data"] == (0, False) and empty["shape"] == (0, 3)
    with pytest.raises(AttributeError):
        _ = eo.tensor([1.0]).__cuda_array_interface__


class Foreign:
    """What another library shows of an array: the array interface alone."""

    def __init__(self, face):
        self.__cuda_array_interface__ = face


@needs_compiler
def test_arrays_of_other_libraries_are_shared_through_the_array_interface(cuda):
    t = on_cuda(np.arange(6).reshape(2, 3))
    face = t.T.__cuda_array_interface__
    shared = eo.from_dlpack(Foreign(face))
    assert shared.device == "cuda:0" and shared.shape == (3, 2)
    shared += 1
    np.testing.assert_array_equal(t.numpy(), np.arange(6).reshape(2, 3) + 1)
    del shared  # the memory is not ours to give back
    np.testing.assert_array_equal((t * 2).numpy(), 2 * np.arange(6).reshape(2, 3) + 2)
    with pytest.raises(BufferError, match="only be read"):
        eo.from_dlpack(Foreign(face | {"data": (face["data"][0], True)}))
    with pytest.raises(eo.EveryODTypeError):
        eo.from_dlpack(Foreign(face | {"typestr": "<c16"}))


@needs_compiler
def test_dlpack_says_what_it_cannot_do(cuda):
    t = on_cuda([1.0, 2.0])
    with pytest.raises(BufferError, match=r"cuda:0.*\(1, 0\)"):
        t.data.__dlpack__(dl_device=(1, 0))
    with pytest.raises(BufferError, match="emulator"):
        t.__dlpack__(stream=1)


@needs_compiler
def test_products_round_to_tf32_only_when_asked(cuda):
    x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    exact = x.astype(np.float64) @ x
    errors = []
    try:
        for allowed in (False, True):
            eo.cuda.allow_tf32(allowed)
            errors.append(np.abs((on_cuda(x) @ on_cuda(x)).numpy() - exact).max())
    finally:
        eo.cuda.allow_tf32(False)
    assert errors[0] < 1e-5 < errors[1] < 1e-1


# Training


def trained(device, compiled, dropout=0.0):
    eo.manual_seed(3)
    layers = [eo.Linear(6, 8, seed=0), eo.Tanh(), eo.Linear(8, 3, seed=1)]
    model = eo.Sequential(*layers).to(device)
    optimizer, loss_fn = eo.Adam(model.parameters(), lr=0.05), eo.CrossEntropyLoss()
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((10, 6)).astype(np.float32), rng.integers(0, 3, 10)
    x, y = eo.tensor(x, device=device), eo.tensor(y, dtype="int64", device=device)

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = eo.compile(step) if compiled else step
    losses = [run(x, y).item() for _ in range(4)]
    return (
        losses,
        [p.numpy() for p in model.parameters()],
        [np.asarray(p.grad) for p in model.parameters()],
    )


@needs_compiler
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_training_on_the_device_is_training_on_the_cpu(cuda, compiled):
    want, got = trained("cpu", False), trained("cuda", compiled)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4)
    for mine, theirs in zip(got[1] + got[2], want[1] + want[2], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=1e-5)


@needs_compiler
def test_one_launch_updates_all_parameters(cuda):
    layers = [eo.Linear(5, 7), eo.Tanh(), eo.Linear(7, 9), eo.Tanh(), eo.Linear(9, 3)]
    model = eo.Sequential(*layers).to("cuda")
    step = training_step(model, eo.Adam(model.parameters()))
    step(on_cuda(np.ones((4, 5))))
    updates = [s for s in step._latest.program.kernels if "sqrt divide add" in s.name]
    assert [s.rows for s in updates] == [6]


@needs_compiler
def test_a_compiled_function_for_the_device_takes_numpy_arrays(cuda):
    f = eo.compile(lambda x, s: eo.softmax(eo.tensor(x) * s, axis=-1), device="cuda")
    x = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    for scale in (1.0, 2.0, 0.5):
        out = f(x, scale)
        assert out.device == "cuda:0"
        want = np.exp(x * scale) / np.exp(x * scale).sum(-1, keepdims=True)
        np.testing.assert_allclose(out.numpy(), want, rtol=1e-5)
    assert "def kernel" in f.source() and "softmax" not in f.source()
    assert len(f.explain(x, 1.0, profile=True).seconds) == len(f.explain(x, 1.0).rows)


@needs_compiler
def test_a_module_and_its_optimizer_follow_to_the_device(cuda):
    model = eo.Linear(3, 2)
    optimizer = eo.Adam(model.parameters())
    model.to("cuda")
    model(on_cuda(np.ones((1, 3)))).sum().backward()
    optimizer.step()
    assert all(p.device == "cuda:0" and type(p.grad) is DeviceArray for p in model.parameters())
    state = model.state_dict()
    assert all(type(v) is np.ndarray for v in state.values())
    model.to("cpu")
    assert all(p.device == "cpu" and type(p.grad) is np.ndarray for p in model.parameters())
    model.load_state_dict(state)


@needs_compiler
def test_dropout_draws_the_same_mask_on_both_devices(cuda):
    x = np.ones((4, 16), np.float32)
    eo.manual_seed(1)
    want = eo.Dropout(0.5)(eo.tensor(x)).numpy()
    eo.manual_seed(1)
    np.testing.assert_array_equal(eo.Dropout(0.5)(on_cuda(x)).numpy(), want)
    eo.manual_seed(1)
    layer = eo.Dropout(0.5)
    np.testing.assert_array_equal(eo.compile(lambda x: layer(x))(on_cuda(x)).numpy(), want)


@needs_compiler
def test_the_example_runs_without_a_gpu():
    root = Path(eo.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        capture_output=True, text=True, timeout=300,
        env={k: v for k, v in os.environ.items() if k != "EVERYO_CUDA"} | {"PYTHONPATH": str(root)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    apart = float(run.stdout.split("differ by at most ")[1])
    assert apart < 1e-4
    assert eo.cuda.is_available() or "No CUDA device" in run.stdout


def checked(tmp_path, *parts):
    """What the check of devices says of some parts on the emulator."""
    run = subprocess.run(
        [sys.executable, "-m", CHECK, *parts, "--output", str(tmp_path / "out.txt")],
        capture_output=True, text=True, timeout=400, cwd=EXAMPLE.parents[1],
        env=os.environ | {"EVERYO_CUDA": "emulator"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert (tmp_path / "out.txt").read_text() == run.stdout
    return [line[:4] for line in run.stdout.splitlines()]


@needs_compiler
def test_the_check_of_devices_runs_on_the_emulator(tmp_path):
    assert checked(tmp_path, "versions", "driver") == ["OK  ", "OK  ", "0 fa"]


@needs_compiler
@pytest.mark.slow
def test_all_parts_of_the_check_of_devices_run_on_the_emulator(tmp_path):
    said = checked(tmp_path)
    assert said.count("OK  ") >= 8 and "FAIL" not in said


@needs_compiler
def test_the_check_of_devices_tells_failures(tmp_path):
    run = subprocess.run(
        [sys.executable, "-m", CHECK, "driver", "--output", str(tmp_path / "out.txt")],
        capture_output=True, text=True, cwd=EXAMPLE.parents[1],
        env=os.environ | {"EVERYO_CUDA": "emulator", "EVERYO_DISABLE_CUDA": "1"},
    )  # fmt: skip
    assert run.returncode == 1 and "EVERYO_DISABLE_CUDA" in run.stdout


@needs_compiler
@pytest.mark.parametrize("count", [1, 12])
def test_a_launcher_of_the_cpu_takes_no_tensors_of_a_device(cuda, count):
    step = eo.compile(lambda *x: sum(x[1:], x[0]) * 2)
    values = [np.full(3, i, np.float32) for i in range(count)]
    for _ in range(4):
        for make in (eo.tensor, on_cuda):
            out = step(*[make(v) for v in values])
            np.testing.assert_allclose(out.numpy(), 2 * sum(values))
