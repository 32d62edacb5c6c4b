"""The real digits are the real ones; the generated data are what their descriptions say."""

import doctest
import hashlib
import inspect
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyo import datasets
from everyo.exceptions import EveryOShapeError

FLOAT, INT = np.dtype(np.float32), np.dtype(np.int64)

# name -> (keyword defaults, shape of features, shape and dtype of targets)
DATASETS = {
    "load_digits": (
        {"samples_per_class": 200, "noise": 0.15, "max_shift": 1, "flatten": True, "seed": 0},
        ((2000, 64), FLOAT),
        ((2000,), INT),
    ),
    "load_uci_digits": (
        {"samples_per_class": None, "flatten": True},
        ((1797, 64), FLOAT),
        ((1797,), INT),
    ),
    "make_regression": (
        {"n_samples": 200, "n_features": 1, "noise": 0.1, "bias": 0.0, "seed": 0},
        ((200, 1), FLOAT),
        ((200, 1), FLOAT),
    ),
    "make_blobs": (
        {"n_samples": 300, "n_features": 2, "centers": 3, "spread": 0.8, "seed": 0},
        ((300, 2), FLOAT),
        ((300,), INT),
    ),
    "make_moons": (
        {"n_samples": 300, "noise": 0.15, "seed": 0},
        ((300, 2), FLOAT),
        ((300,), INT),
    ),
    "make_spirals": (
        {"n_samples": 300, "classes": 3, "noise": 0.15, "turns": 1.5, "seed": 0},
        ((300, 2), FLOAT),
        ((300,), INT),
    ),
    "make_xor": (
        {"n_samples": 400, "noise": 0.25, "seed": 0},
        ((400, 2), FLOAT),
        ((400,), INT),
    ),
    "make_recall_task": (
        {"n_samples": 2000, "length": 20, "num_classes": 4, "vocab_size": 16, "seed": 0},
        ((2000, 20), INT),
        ((2000,), INT),
    ),
    "make_copy_task": (
        {"n_samples": 2000, "length": 8, "vocab_size": 10, "seed": 0},
        ((2000, 8), INT),
        ((2000, 8), INT),
    ),
    "make_parity_task": (
        {"n_samples": 2000, "length": 12, "seed": 0},
        ((2000, 12), INT),
        ((2000,), INT),
    ),
}
SEEDED = sorted(name for name, (defaults, _, _) in DATASETS.items() if "seed" in defaults)


def test_every_public_data_set_is_in_the_table():
    assert set(datasets.__all__) - {"render_digit"} == set(DATASETS)


@pytest.mark.parametrize("name", DATASETS)
def test_names_and_defaults_are_exact_and_keyword_only(name):
    parameters = inspect.signature(getattr(datasets, name)).parameters
    assert {p.name: p.default for p in parameters.values()} == DATASETS[name][0]
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


@pytest.mark.parametrize("name", DATASETS)
def test_shapes_and_dtypes(name):
    made = getattr(datasets, name)()
    assert [(array.shape, array.dtype) for array in made] == list(DATASETS[name][1:])
    assert all(np.isfinite(array).all() for array in made)
    assert all(array.flags.writeable and array.flags.c_contiguous for array in made)


@pytest.mark.parametrize("name", SEEDED)
def test_a_seed_fixes_the_data_and_another_changes_them(name):
    make = getattr(datasets, name)
    for same, first in zip(make(seed=5), make(seed=5), strict=True):
        np.testing.assert_array_equal(same, first)
    assert any((a != b).any() for a, b in zip(make(seed=5), make(seed=6), strict=True))


@pytest.mark.parametrize("name", ["make_blobs", "make_moons", "make_spirals", "make_xor"])
@settings(max_examples=20, deadline=None)
@given(n=st.integers(1, 60), seed=st.integers(0, 2**32 - 1))
def test_classes_are_balanced(name, n, seed):
    features, labels = getattr(datasets, name)(n_samples=n, seed=seed)
    counts = np.bincount(labels)
    assert features.shape == (n, 2)
    assert counts.sum() == n
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("name", ["load_digits", "make_moons", "make_spirals", "make_xor"])
def test_neighbours_mostly_share_their_class(name):
    features, labels = getattr(datasets, name)()
    half = len(features) // 2
    squares = (features**2).sum(axis=1)
    distance = squares[half:, None] + squares[:half] - 2 * features[half:] @ features[:half].T
    assert (labels[:half][distance.argmin(axis=1)] == labels[half:]).mean() > 0.95


def test_uci_digits_are_the_published_ones():
    features, labels = datasets.load_uci_digits()
    pixels = (features * 16).astype(np.uint8)
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert int(pixels.sum()) == 561718
    assert pixels[0, :16].tolist() == [0, 0, 5, 13, 9, 1, 0, 0, 0, 0, 13, 15, 10, 15, 5, 0]
    digest = hashlib.sha256(pixels.tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()
    assert digest == "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def test_uci_digits_ship_with_their_licence_and_stay_small():
    folder = import_module("importlib.resources").files("everyo.datasets")
    assert len((folder / "uci_digits.npz").read_bytes()) < 100_000
    licence = (folder / "UCI_DIGITS_LICENSE.txt").read_text()
    assert "CC BY 4.0" in licence
    assert "doi.org" in licence


def test_uci_digits_keep_the_first_of_each_class():
    features, labels = datasets.load_uci_digits(samples_per_class=7)
    everything, all_labels = datasets.load_uci_digits()
    assert np.bincount(labels).tolist() == [7] * 10
    for digit in range(10):
        expected = everything[all_labels == digit][:7]
        np.testing.assert_array_equal(features[labels == digit], expected)
    many, _ = datasets.load_uci_digits(samples_per_class=500)
    assert len(many) == 1797


@pytest.mark.parametrize("load", [datasets.load_digits, datasets.load_uci_digits])
def test_digit_images_are_the_flat_rows_in_nhwc(load):
    flat, labels = load()
    images, same_labels = load(flatten=False)
    assert images.shape == (len(flat), 8, 8, 1)
    np.testing.assert_array_equal(images.reshape(len(flat), 64), flat)
    np.testing.assert_array_equal(labels, same_labels)
    assert flat.min() == 0.0
    assert flat.max() == 1.0


def test_drawn_digits_without_noise_are_moved_and_paler_glyphs():
    images, labels = datasets.load_digits(
        samples_per_class=20, noise=0.0, max_shift=2, flatten=False
    )
    for image, label in zip(images[..., 0], labels, strict=True):
        padded = np.pad(datasets.render_digit(label), 2)
        windows = [padded[i : i + 8, j : j + 8] for i in range(5) for j in range(5)]
        assert any(np.allclose(image, image.max() * w, atol=1e-6) for w in windows)
        assert 0.69 < image.max() <= 1.0


def test_glyphs_differ_from_each_other_and_hold_only_ink_and_paper():
    glyphs = [datasets.render_digit(d) for d in range(10)]
    assert {(g.shape, g.dtype) for g in glyphs} == {((8, 8), FLOAT)}
    assert {float(v) for v in np.unique(np.stack(glyphs))} == {0.0, 1.0}
    closest = min(np.abs(a - b).sum() for i, a in enumerate(glyphs) for b in glyphs[:i])
    assert closest >= 6


@pytest.mark.parametrize("digit", [10, 99])
def test_digits_beyond_nine_are_refused(digit):
    with pytest.raises(EveryOShapeError, match="out of range"):
        datasets.render_digit(digit)


@pytest.mark.parametrize("f", [1, 3])
def test_regression_targets_are_linear_in_the_features(f):
    features, targets = datasets.make_regression(n_features=f, noise=0.0, bias=2.0)
    design = np.concatenate([features, np.ones((len(features), 1))], axis=1)
    solution, *_ = np.linalg.lstsq(design, targets, rcond=None)
    np.testing.assert_allclose(design @ solution, targets, atol=1e-4)
    np.testing.assert_allclose(solution[-1], 2.0, atol=1e-4)


@pytest.mark.parametrize("f", [1, 2, 5])
@pytest.mark.parametrize("centers", [1, 2, 3, 8])
def test_blobs_lie_apart(f, centers):
    features, labels = datasets.make_blobs(
        n_samples=40 * centers, n_features=f, centers=centers, spread=0.0
    )
    assert features.shape == (40 * centers, f)
    middles = np.stack([features[labels == c][0] for c in range(centers)])
    gaps = np.linalg.norm(middles[:, None] - middles, axis=-1)
    assert np.all(gaps[~np.eye(centers, dtype=bool)] > 4.0)


def test_xor_labels_tell_whether_the_signs_differ():
    features, labels = datasets.make_xor(noise=0.0)
    np.testing.assert_array_equal(labels, (features[:, 0] != features[:, 1]).astype(int))
    assert np.abs(features).tolist() == np.ones_like(features).tolist()


def test_recall_labels_are_first_tokens_and_appear_nowhere_else():
    sequences, labels = datasets.make_recall_task(num_classes=3, vocab_size=9)
    np.testing.assert_array_equal(sequences[:, 0], labels)
    assert set(np.unique(labels)) == {0, 1, 2}
    assert set(np.unique(sequences[:, 1:])) == set(range(3, 9))


def test_copy_targets_equal_but_do_not_share_their_sequences():
    sequences, targets = datasets.make_copy_task()
    np.testing.assert_array_equal(sequences, targets)
    assert not np.shares_memory(sequences, targets)
    assert set(np.unique(sequences)) == set(range(10))


def test_parity_labels_count_the_ones():
    bits, labels = datasets.make_parity_task()
    assert set(np.unique(bits)) == {0, 1}
    np.testing.assert_array_equal(labels, [sum(row) % 2 for row in bits.tolist()])


BAD_ARGUMENTS = [
    ("load_digits", {"samples_per_class": 0}, ValueError),
    ("load_digits", {"noise": -0.1}, ValueError),
    ("load_digits", {"noise": float("nan")}, ValueError),
    ("load_digits", {"max_shift": -1}, ValueError),
    ("load_uci_digits", {"samples_per_class": 0}, ValueError),
    ("load_uci_digits", {"samples_per_class": 2.5}, TypeError),
    ("make_regression", {"n_samples": 0}, ValueError),
    ("make_regression", {"n_features": 0}, ValueError),
    ("make_blobs", {"centers": 0}, ValueError),
    ("make_blobs", {"spread": float("inf")}, ValueError),
    ("make_moons", {"n_samples": -3}, ValueError),
    ("make_spirals", {"classes": 0}, ValueError),
    ("make_xor", {"noise": -1.0}, ValueError),
    ("make_recall_task", {"num_classes": 4, "vocab_size": 4}, ValueError),
    ("make_copy_task", {"vocab_size": 0}, ValueError),
    ("make_parity_task", {"length": 0}, ValueError),
]


@pytest.mark.parametrize(("name", "arguments", "error"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(name, arguments, error):
    with pytest.raises(error, match=next(reversed(arguments))):
        getattr(datasets, name)(**arguments)


@pytest.mark.parametrize("name", ["digits", "sequences"])
def test_the_examples_in_the_documentation_run(name):
    failed, attempted = doctest.testmod(import_module(f"everyo.datasets.{name}"))
    assert attempted > 0
    assert failed == 0
