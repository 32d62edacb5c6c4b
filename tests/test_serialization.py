"""Files: what was saved comes back, and no file does anything but load or raise our error."""

import copy
import io
import json
import random
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import everyo as eo
from everyo.exceptions import EveryOSerializationError
from everyo.nn.module import register_module
from everyo.serialization import (
    MANIFEST_NAME,
    PARAMETERS_NAME,
    inspect_archive,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)

DATA = Path(__file__).parent / "data"
MUTATIONS = 10_000
NEEDS = {".npz": "numpy", ".safetensors": "safetensors"}


def small_model():
    return eo.Sequential(eo.Linear(3, 4, seed=0), eo.ReLU(), eo.Linear(4, 2, seed=1))


def archive_of(model, tmp_path, **options):
    return eo.save(model, tmp_path / "model", **options)


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def zipped(members, method=zipfile.ZIP_STORED):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def rewritten(path, change):
    """The bytes of an archive whose manifest went through `change`."""
    members = members_of(path)
    manifest = json.loads(members[MANIFEST_NAME])
    members[MANIFEST_NAME] = json.dumps(change(manifest) or manifest).encode()
    return zipped(members)


def npz(**arrays):
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def same_state(a, b):
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(
        x.dtype == b[name].dtype and np.array_equal(x, b[name]) for name, x in a.items()
    )


# ---------------------------------------------------------------------------------- archives

MODELS = {
    "mlp": small_model,
    "nested": lambda: eo.Sequential(
        eo.Sequential(eo.Linear(3, 3, bias=False), eo.Tanh()), eo.Dropout(0.25), eo.Softmax(axis=0)
    ),
    "cnn": lambda: eo.Sequential(
        eo.nn.Conv2D(1, 2, (3, 2), padding="same", stride=2),
        eo.nn.BatchNorm2D(2),
        eo.nn.MaxPool2D(2),
        eo.nn.AvgPool2D(2, stride=1, padding="same"),
        eo.Flatten(),
        eo.nn.BatchNorm1D(8, affine=False, momentum=0.3),
    ),
    "recurrent": lambda: eo.Sequential(
        eo.nn.Embedding(11, 4),
        eo.nn.RNN(4, 3),
        eo.nn.GRU(3, 5, bias=False),
        eo.nn.LSTM(5, 2, unit_forget_bias=False, return_sequences=False),
    ),
    "transformer": lambda: eo.Sequential(
        eo.nn.PositionalEncoding(4, max_length=9, dropout=0.1),
        eo.nn.TransformerEncoder(4, 2, num_layers=3, feedforward_dim=6),
        eo.nn.TransformerEncoder(4, 1, norm_first=False),
        eo.nn.MultiHeadAttention(4, 2, bias=False),
        eo.nn.LayerNorm((4,), eps=1e-3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_what_was_saved_comes_back(make, tmp_path):
    model = make()
    path = archive_of(model, tmp_path)
    again = eo.load(path)
    assert path.name == "model.evo"
    assert repr(again) == repr(model)
    assert json.dumps(again.get_config()) == json.dumps(model.get_config())
    assert same_state(model, again)
    assert not any(module.training for _, module in again.named_modules())


def test_an_archive_has_two_members_and_says_what_it_is(tmp_path):
    path = archive_of(small_model(), tmp_path, metadata={"epochs": 3})
    assert sorted(members_of(path)) == sorted([MANIFEST_NAME, PARAMETERS_NAME])
    manifest = json.loads(members_of(path)[MANIFEST_NAME])
    assert manifest["format_version"] == 1
    assert manifest["architecture"]["class_name"] == "Sequential"
    assert manifest["parameters"]["2.weight"] == {"shape": [4, 2], "dtype": "float32"}
    assert manifest["num_parameters"] == 26
    assert inspect_archive(path) == {
        "path": str(path),
        "class_name": "Sequential",
        **{k: v for k, v in manifest.items() if k != "architecture"},
    }


def test_an_archive_of_0_2_loads():
    model = eo.load(DATA / "archive_0_2.evo")
    x = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]], np.float32)
    w = members_of(DATA / "archive_0_2.evo")
    with np.load(io.BytesIO(w[PARAMETERS_NAME])) as arrays:
        hidden = np.maximum(x @ arrays["0.weight"] + arrays["0.bias"], 0)
        expected = hidden @ arrays["3.weight"] + arrays["3.bias"]
    np.testing.assert_allclose(model(x).numpy(), expected, rtol=1e-6)
    info = inspect_archive(DATA / "archive_0_2.evo")
    assert info["everyo_version"] == "0.2.0"
    assert info["metadata"] == {"epochs": 12, "note": "from 0.2"}


@pytest.mark.parametrize("name", ["QuantizedLinear", "LSTM", "TransformerEncoder"])
def test_a_fresh_process_knows_every_layer(name):
    code = (
        "from everyo.serialization import load\nfrom everyo.nn import get_module_class\n"
        f"print(get_module_class({name!r}).__name__)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout.strip() == name, run.stderr


def test_loading_draws_no_random_numbers(tmp_path):
    path = archive_of(small_model(), tmp_path)
    eo.manual_seed(5)
    before = eo.get_rng_state()
    eo.load(path)
    assert np.array_equal(eo.get_rng_state(), before)


class Custom(eo.Module):
    """A model that no file can build."""

    def __init__(self, size=3):
        super().__init__()
        self.inner = eo.Linear(size, 2, seed=size)
        self.register_buffer("seen", np.array([1, 2], np.int8))


def test_an_unregistered_class_loads_into_an_instance(tmp_path):
    path = archive_of(Custom(), tmp_path)
    with pytest.raises(EveryOSerializationError, match="Unknown module type 'Custom'"):
        eo.load(path)
    model = Custom()
    model.inner.weight.data[...] = 0
    assert eo.load(path, model=model) is model
    assert same_state(model, Custom())
    with pytest.raises(EveryOSerializationError, match="expects shape"):
        eo.load(path, model=Custom(5))


def test_values_in_fortran_order_and_in_other_dtypes_come_back(tmp_path):
    model = small_model()
    model[0].weight.data = np.asfortranarray(model[0].weight.data)
    model[2].weight = eo.Parameter(np.float64([[1, 2], [3, 4], [5, 6], [7, 8]]))
    assert model.state_dict()["0.weight"].flags.f_contiguous
    again = eo.load(archive_of(model, tmp_path), model=copy.deepcopy(model))
    assert same_state(model, again)


def endless():
    """A list that contains itself."""
    found = []
    found.append(found)
    return found


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, p: eo.load(p / "none.evo"), "not found"),
        (lambda m, p: inspect_archive(p / "none.evo"), "not found"),
        (lambda m, p: eo.save(m, p / "model", overwrite=False), "already exists"),
        (lambda m, p: eo.save("a model", p / "x"), "everyo Module"),
        (lambda m, p: eo.load(p / "model.evo", model="a model"), "everyo Module"),
        (lambda m, p: eo.save(m, p / "x", metadata={"a": object()}), "JSON-serialisable"),
        (lambda m, p: eo.save(m, p / "model.evo" / "x"), "cannot be written"),
        (lambda m, p: eo.load(p), "not a valid.*folder"),
        (lambda m, p: eo.load(p / ("x" * 5000)), "not a valid"),
        (lambda m, p: save_checkpoint(p / "x", metadata=endless()), "in itself"),
        pytest.param(
            lambda m, p: eo.load("/dev/zero"),
            "not a valid.*no regular file",
            marks=pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no /dev/zero"),
        ),
    ],
)
def test_mistakes_are_named(call, message, tmp_path):
    model = small_model()
    archive_of(model, tmp_path)
    with pytest.raises(EveryOSerializationError, match=message):
        call(model, tmp_path)
    assert sorted(f.name for f in tmp_path.iterdir()) == ["model.evo"]


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = archive_of(small_model(), tmp_path)
    before = path.read_bytes()
    model = small_model()
    model.register_buffer("names", np.array(["a"]))
    with pytest.raises(EveryOSerializationError, match="has dtype"):
        archive_of(model, tmp_path)
    assert path.read_bytes() == before
    assert [f.name for f in tmp_path.iterdir()] == ["model.evo"]


# ---------------------------------------------------------------------------------- hostile files


def linear_config(config, **changes):
    config["architecture"]["config"]["layers"][0]["config"].update(changes)


HOSTILE_MANIFESTS = {
    "version 99": (lambda m: m.update(format_version=99), "format version 99"),
    "version true": (lambda m: m.update(format_version=True), "format_version"),
    "no version": (lambda m: m.pop("format_version") and None, "format_version"),
    "a list": (lambda m: [m], "format_version"),
    "no architecture": (lambda m: m.pop("architecture") and None, "architecture"),
    "config is a list": (lambda m: m["architecture"].update(config=[]), "config"),
    "class is a path": (
        lambda m: m["architecture"].update(class_name="os.system"), "Unknown module type"),
    "class of a million letters": (
        lambda m: m["architecture"].update(class_name="A" * 10**6), "Unknown module type.{,600}$"),
    "inner class unknown": (
        lambda m: m["architecture"]["config"]["layers"][1].update(class_name="eval"),
        "Unknown module type"),
    "class is no string": (lambda m: m["architecture"].update(class_name=["Linear"]), "class_name"),
    "unknown option": (lambda m: linear_config(m, evil=1), "config"),
    "wrong type": (lambda m: linear_config(m, in_features="three"), "config"),
    "layers is a number": (lambda m: m["architecture"]["config"].update(layers=3), "config"),
    "huge layer": (lambda m: linear_config(m, in_features=10**6, out_features=10**6), "larger"),
    "huge in one size": (lambda m: linear_config(m, in_features=10**15), "larger"),
    "another shape": (lambda m: linear_config(m, in_features=5), "expects shape"),
    "parameter missing": (lambda m: m["parameters"].pop("0.bias") and None, "manifest says"),
    "dtype wrong": (lambda m: m["parameters"]["0.bias"].update(dtype="float64"), "manifest says"),
    "shape wrong": (lambda m: m["parameters"]["0.bias"].update(shape=[2, 2]), "manifest says"),
    "layer missing": (
        lambda m: m["architecture"]["config"]["layers"].pop() and None, "unexpected keys"),
    "many layers": (
        lambda m: linear_config(m, in_features=100, out_features=100)
        or m["architecture"]["config"].update(
            layers=m["architecture"]["config"]["layers"][:1] * 1000), "larger"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE_MANIFESTS.values(), ids=HOSTILE_MANIFESTS)
def test_a_hostile_manifest_is_refused(change, message, tmp_path):
    data = rewritten(archive_of(small_model(), tmp_path), change)
    with pytest.raises(EveryOSerializationError, match=message):
        eo.load(io.BytesIO(data))


GREEDY = [
    ("PositionalEncoding", {"embed_dim": 10**6, "max_length": 10**6}),
    ("BatchNorm1D", {"num_features": 10**12, "affine": False}),
    ("TransformerEncoder", {"embed_dim": 1, "num_heads": 1, "num_layers": 10**9}),
    ("LSTM", {"input_size": 1, "hidden_size": 10**6}),
    ("Embedding", {"num_embeddings": 10**12, "embedding_dim": 1}),
]


@pytest.mark.parametrize(("name", "config"), GREEDY, ids=[name for name, _ in GREEDY])
def test_a_config_gets_no_more_memory_than_the_file_has_values(name, config, tmp_path):
    def change(manifest):
        manifest["architecture"] = {"class_name": name, "config": config}

    data = rewritten(archive_of(small_model(), tmp_path), change)
    tracemalloc.start()
    try:
        with pytest.raises(EveryOSerializationError, match="larger"):
            eo.load(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [900, 50_000])
def test_deep_nesting_is_an_error_and_no_crash(depth, tmp_path):
    members = members_of(archive_of(eo.Sequential(), tmp_path))
    manifest = json.loads(members[MANIFEST_NAME])
    manifest["architecture"] = "HERE"
    before, after = '{"class_name": "Sequential", "config": {"layers": [', "]}}"
    nested = before * depth + after * depth
    members[MANIFEST_NAME] = json.dumps(manifest).replace('"HERE"', nested).encode()
    with pytest.raises(EveryOSerializationError, match="RecursionError"):
        eo.load(io.BytesIO(zipped(members)))


def test_a_model_of_many_layers_is_built_in_proportion(tmp_path):
    steps = {}
    for n in (100, 400):
        path = eo.save(eo.Sequential(*(eo.ReLU() for _ in range(n))), tmp_path / "deep")
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            calls += 1

        sys.setprofile(count)
        try:
            eo.load(path)
        finally:
            sys.setprofile(None)
        steps[n] = calls
    assert steps[400] < 5 * steps[100]


def test_bools_are_zero_or_one_whatever_the_bytes(tmp_path):
    (tmp_path / "w.npz").write_bytes(zipped({"a.npy": headed("(3,)", "'|b1'") + b"\x00\x01\x07"}))
    assert load_weights(tmp_path / "w.npz")["a"].view(np.uint8).tolist() == [0, 1, 1]


class Trap:
    """What would run if anything were unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def headed(shape, dtype="'<f4'", magic=b"\x93NUMPY\x01\x00"):
    header = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return magic + len(header).to_bytes(2, "little") + header


HOSTILE_ARRAYS = {
    "junk": b"junk",
    "nothing": b"",
    "pickled object": npz(**{"0.weight": np.array([Trap()], object)}),
    "pickle": b"cos\nsystem\n(S'true'\ntR.",
    "a truncated zip": npz(**{"0.weight": np.ones((3, 4), np.float32)})[:-30],
    "huge shape": zipped({"0.weight.npy": headed("(1000000000000,)")}),
    "negative shape": zipped({"0.weight.npy": headed("(-3, -4)") + bytes(48)}),
    "code in the header": zipped({"0.weight.npy": headed("(__import__('os').getpid(),)")}),
    "object dtype": zipped({"0.weight.npy": headed("(1,)", "'|O'") + bytes(8)}),
    "structured dtype": zipped({"0.weight.npy": headed("(1,)", "[('a', '<f4')]") + bytes(4)}),
    "text dtype": zipped({"0.weight.npy": headed("(1,)", "'<U1'") + bytes(4)}),
    "version 3": zipped({"0.weight.npy": headed("(1,)", magic=b"\x93NUMPY\x03\x00")}),
    "long header": zipped({"0.weight.npy": headed("(1,)" + " " * 20_000) + bytes(4)}),
    "path upwards": zipped({"../../0.weight.npy": headed("(1,)") + bytes(4)}),
    "absolute path": zipped({"/etc/passwd.npy": headed("(1,)") + bytes(4)}),
    "no array": zipped({"readme.txt": b"hello"}),
}


@pytest.mark.parametrize("data", HOSTILE_ARRAYS.values(), ids=HOSTILE_ARRAYS)
def test_hostile_arrays_are_refused(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    members = members_of(archive_of(small_model(), tmp_path)) | {PARAMETERS_NAME: data}
    with pytest.raises(EveryOSerializationError):
        eo.load(io.BytesIO(zipped(members)))
    (tmp_path / "weights.npz").write_bytes(data)
    with pytest.raises(EveryOSerializationError):
        load_weights("weights.npz", model=small_model())
    assert sorted(f.name for f in tmp_path.rglob("*")) == ["model.evo", "weights.npz"]


def test_the_version_is_looked_at_before_anything_else(tmp_path):
    data = zipped({MANIFEST_NAME: b'{"format_version": 99}', PARAMETERS_NAME: b""})
    with pytest.raises(EveryOSerializationError, match="format version 99"):
        eo.load(io.BytesIO(data))


OTHER_CONTAINERS = {
    "a third member": lambda m: zipped({**m, "run.py": b"print(1)"}),
    "no manifest": lambda m: zipped({PARAMETERS_NAME: m[PARAMETERS_NAME]}),
    "no arrays": lambda m: zipped({MANIFEST_NAME: m[MANIFEST_NAME]}),
    "manifest no JSON": lambda m: zipped({**m, MANIFEST_NAME: b"{format_version: 1}"}),
    "manifest no text": lambda m: zipped({**m, MANIFEST_NAME: b"\xff\xfe\x00\xd8"}),
    "bzip2": lambda m: zipped(m, zipfile.ZIP_BZIP2),
    "lzma": lambda m: zipped(m, zipfile.ZIP_LZMA),
    "no zip": lambda m: b"PK\x03\x04" + bytes(100),
    "empty": lambda m: b"",
}


@pytest.mark.parametrize("change", OTHER_CONTAINERS.values(), ids=OTHER_CONTAINERS)
def test_another_container_is_refused(change, tmp_path):
    data = change(members_of(archive_of(small_model(), tmp_path)))
    for read in (eo.load, inspect_archive):
        with pytest.raises(EveryOSerializationError):
            read(io.BytesIO(data))


def bombs():
    """Small files that expand to gigabytes, in either layer and in both."""
    zeros = bytes(200 << 20)
    header = headed(f"({len(zeros) // 4},)")
    array = zipped({"0.weight.npy": header + zeros}, zipfile.ZIP_DEFLATED)
    return {
        "arrays": lambda m: zipped({**m, PARAMETERS_NAME: array}),
        "both layers": lambda m: zipped({**m, PARAMETERS_NAME: array}, zipfile.ZIP_DEFLATED),
        "manifest": lambda m: zipped({**m, MANIFEST_NAME: b" " * (20 << 20)}, zipfile.ZIP_DEFLATED),
    }


@pytest.mark.parametrize("name", ["arrays", "both layers", "manifest"])
def test_a_zip_bomb_does_not_go_off(name, tmp_path):
    members = members_of(archive_of(small_model(), tmp_path))
    data = bombs()[name](members)
    assert len(data) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(EveryOSerializationError, match="expands to"):
            eo.load(io.BytesIO(data))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def mutated(data, rng):
    """Up to four damages: bits flipped, bytes set, removed, doubled or swapped, the end cut."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not out:
            break
        at = rng.randrange(len(out))
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                del out[at : at + rng.randint(1, 40)]
            case 3:
                out[at:at] = out[at : at + rng.randint(1, 40)]
            case 4:
                other = rng.randrange(len(out))
                out[at], out[other] = out[other], out[at]
            case 5:
                if rng.random() < 0.1:
                    del out[at:]
    return bytes(out)


def survivors(data, read, count, seed):
    """How many of `count` damaged versions of `data` are read; any error but ours escapes."""
    rng = random.Random(seed)
    read_anyway = 0
    for _ in range(count):
        try:
            read(io.BytesIO(mutated(data, rng)))
            read_anyway += 1
        except EveryOSerializationError:
            continue
    return read_anyway


def refreshed(members, name, rng):
    """A valid ZIP whose member is damaged: the damage passes the checksums."""
    return zipped({**members, name: mutated(members[name], rng)})


def test_ten_thousand_damaged_archives_load_or_raise_our_error(tmp_path):
    path = archive_of(eo.Sequential(eo.Linear(1, 1)), tmp_path)
    data, members = path.read_bytes(), members_of(path)
    with zipfile.ZipFile(io.BytesIO(members[PARAMETERS_NAME])) as inner:
        arrays = {name: inner.read(name) for name in inner.namelist()}
    rng = random.Random(1)
    each = MUTATIONS // 4
    read_anyway = survivors(data, eo.load, each, 0)
    for i in range(3 * each):
        if i % 3 == 0:
            damaged = refreshed(members, MANIFEST_NAME, rng)
        elif i % 3 == 1:
            damaged = refreshed(members, PARAMETERS_NAME, rng)
        else:
            name = rng.choice(list(arrays))
            damaged = zipped({**members, PARAMETERS_NAME: refreshed(arrays, name, rng)})
        try:
            eo.load(io.BytesIO(damaged))
            read_anyway += 1
        except EveryOSerializationError:
            continue
    assert 0 < read_anyway < MUTATIONS / 2  # some damage hits values or unused bytes


# ---------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("suffix", NEEDS)
def test_weights_come_back(suffix, tmp_path):
    pytest.importorskip(NEEDS[suffix])
    model, other = small_model(), small_model()
    model[2].weight.data = np.asfortranarray(model[2].weight.data * 3)
    path = save_weights(model, tmp_path / f"w{suffix}")
    state = load_weights(path, model=other)
    assert same_state(model, other)
    assert {k: (v.shape, v.dtype) for k, v in state.items()} == {
        k: (v.shape, v.dtype) for k, v in model.state_dict().items()
    }
    plain = {
        "a": np.float16([1.5]),
        "b": np.array(7),
        "c": np.array([[True]]),
        "d": np.ones((0, 3)),
    }
    again = load_weights(save_weights(plain, tmp_path / f"p{suffix}"))
    assert all(np.array_equal(again[k], v) and again[k].shape == v.shape for k, v in plain.items())


def test_numpy_and_safetensors_read_our_files(tmp_path):
    library = pytest.importorskip("safetensors.numpy")
    model = small_model()
    with np.load(save_weights(model, tmp_path / "w.npz")) as arrays:
        assert np.array_equal(arrays["0.weight"], model[0].weight.data)
    found = library.load_file(save_weights(model, tmp_path / "w.safetensors"))
    assert np.array_equal(found["0.weight"], model[0].weight.data)


@pytest.mark.parametrize("suffix", NEEDS)
def test_weights_that_do_not_fit_change_nothing(suffix, tmp_path):
    pytest.importorskip(NEEDS[suffix])
    model = small_model()
    state = model.state_dict()
    path = save_weights({**state, "0.bias": np.ones(7)}, tmp_path / f"w{suffix}")
    with pytest.raises(EveryOSerializationError, match="expects shape"):
        load_weights(path, model=model)
    assert all(np.array_equal(v, state[k]) for k, v in model.state_dict().items())
    with pytest.raises(EveryOSerializationError, match="already exists"):
        save_weights(model, path, overwrite=False)
    with pytest.raises(EveryOSerializationError, match="not found"):
        load_weights(tmp_path / f"none{suffix}")


def test_other_suffixes_are_refused(tmp_path):
    for call in (lambda p: save_weights(small_model(), p), load_weights):
        with pytest.raises(EveryOSerializationError, match="safetensors"):
            call(tmp_path / "weights.pt")


@pytest.mark.parametrize("suffix", NEEDS)
def test_damaged_weights_load_or_raise_our_error(suffix, tmp_path):
    pytest.importorskip(NEEDS[suffix])
    model = eo.Linear(1, 1)
    path = save_weights(model, tmp_path / f"w{suffix}")
    data, rng = path.read_bytes(), random.Random(2)
    for _ in range(500):
        path.write_bytes(mutated(data, rng))
        try:
            load_weights(path, model=model)
        except EveryOSerializationError:
            continue


# ---------------------------------------------------------------------------------- checkpoints


def run_parts(seed):
    """A run with every kind of state: dropout of both kinds of generator, momentum, a loader."""
    model = eo.Sequential(
        eo.Linear(4, 8, seed=seed), eo.Dropout(0.3, seed=3), eo.ReLU(), eo.Dropout(0.2),
        eo.Linear(8, 2, seed=seed + 1),
    )  # fmt: skip
    data = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    labels = (data.sum(1) > 0).astype(np.int64)
    return {
        "model": model,
        "optimizer": eo.Adam(model.parameters(), lr=0.01 * (seed + 1)),
        "loader": eo.DataLoader(eo.ArrayDataset(data, labels), 8, shuffle=True, seed=seed),
        "noise": [eo.Generator(seed), np.random.default_rng(seed)],
    }


def training(parts):
    """The losses of a run, one per step, for ever."""
    own, numpys = parts["noise"]
    while True:
        for x, y in parts["loader"]:
            x = x + own.uniform(x.shape, "float32") + numpys.normal(size=x.shape) * 0.1
            parts["optimizer"].zero_grad()
            loss = eo.nn.cross_entropy(parts["model"](eo.tensor(x, dtype="float32")), y)
            loss.backward()
            parts["optimizer"].step()
            yield loss.item()


def train(parts, steps):
    """The losses of so many steps, and the run itself."""
    run = training(parts)
    return [next(run) for _ in range(steps)], run


def test_a_run_resumes_exactly(tmp_path):
    parts = run_parts(0)
    eo.manual_seed(11)
    _, run = train(parts, 7)  # in the middle of the second epoch
    parts["model"][1].eval()
    path = save_checkpoint(tmp_path / "run", metadata={"step": 7, "betas": (0.9, 1.0)}, **parts)
    expected = [next(run) for _ in range(9)]
    other = run_parts(5)
    eo.manual_seed(99)
    train(other, 2)
    assert load_checkpoint(path, **other) == {"step": 7, "betas": (0.9, 1.0)}
    assert [m.training for _, m in other["model"].named_modules()].count(False) == 1
    assert train(other, 9)[0] == expected
    assert same_state(parts["model"], other["model"])
    assert other["optimizer"].lr == 0.01


def test_a_checkpoint_keeps_trees_as_they_are(tmp_path):
    tree = {
        "a": [1, 2.5, float("inf"), None, True, "text"], 3: (1, (2, [3])), "big": 2**127 + 1,
        "array": np.arange(6, dtype=np.int8).reshape(2, 3), "scalar": np.float64(0.1),
        "half": np.float16(1.5), "array ": {"array": "0"}, "empty": {},
    }  # fmt: skip
    found = load_checkpoint(save_checkpoint(tmp_path / "tree", metadata=tree))
    assert repr(found) == repr({**tree, "scalar": 0.1, "half": np.array(1.5, np.float16)})


def test_a_checkpoint_that_does_not_fit_changes_nothing(tmp_path):
    parts = run_parts(0)
    train(parts, 3)
    path = save_checkpoint(tmp_path / "run", **parts)
    small = run_parts(1)
    small["loader"] = eo.DataLoader(np.zeros((3, 4)), 2)
    with pytest.raises(EveryOSerializationError, match="DataLoader state"):
        eo.manual_seed(4)
        load_checkpoint(path, **small)
    assert same_state(small["model"], run_parts(1)["model"])
    assert small["optimizer"].step_count == 0
    assert small["optimizer"].lr == 0.02
    other = eo.Generator(1)
    assert np.array_equal(small["noise"][0].get_state(), other.get_state())
    eo.manual_seed(4)
    before = eo.get_rng_state()
    with pytest.raises(EveryOSerializationError, match="DataLoader state"):
        load_checkpoint(path, **small)
    assert np.array_equal(eo.get_rng_state(), before)


def test_parts_are_matched_by_name(tmp_path):
    model = small_model()
    path = save_checkpoint(tmp_path / "run", model=model, noise=eo.Generator(1))
    with pytest.raises(EveryOSerializationError, match="Missing keys: optimizer; unexpected"):
        load_checkpoint(path, model=model, optimizer=eo.SGD(model.parameters()))
    fresh = eo.Sequential(eo.Linear(3, 4), eo.ReLU(), eo.Linear(4, 2))
    load_checkpoint(path, model=fresh, strict=False)
    assert same_state(fresh, model)
    with pytest.raises(EveryOSerializationError, match="no state_dict"):
        save_checkpoint(tmp_path / "run", step=3)
    with pytest.raises(EveryOSerializationError, match="cannot be stored"):
        save_checkpoint(tmp_path / "run", metadata=Trap())


def test_damaged_checkpoints_load_or_raise_our_error(tmp_path):
    model = eo.Linear(1, 1)
    parts = {"model": model, "optimizer": eo.SGD(model.parameters(), 0.1, momentum=0.5)}
    path = save_checkpoint(tmp_path / "run", **parts)
    members, rng = members_of(path), random.Random(3)
    read_anyway = survivors(path.read_bytes(), lambda s: load_checkpoint(s, **parts), 300, 4)
    for _ in range(700):
        try:
            damaged = refreshed(members, "checkpoint.json", rng)
            load_checkpoint(io.BytesIO(damaged), **parts)
            read_anyway += 1
        except EveryOSerializationError:
            continue
    assert 0 < read_anyway < 500


@register_module
class Wide(eo.Module):
    """A registered class of the user, which a file may build."""

    _config = ("size",)

    def __init__(self, size):
        super().__init__()
        self.size = size
        self.inner = eo.Linear(size, 1, bias=False)

    def forward(self, x):
        return self.inner(x)


def test_a_registered_class_is_built_from_the_file(tmp_path):
    model = Wide(6)
    again = eo.load(archive_of(model, tmp_path))
    assert type(again) is Wide
    assert same_state(model, again)
