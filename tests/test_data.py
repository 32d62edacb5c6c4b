"""Data sets, the loader, tables, scaling and splits keep every sample, in the promised order."""

import doctest
import inspect
import json
import threading
from importlib import import_module

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyo import data
from everyo.data import (
    ArrayDataset,
    DataLoader,
    Dataset,
    MinMaxScaler,
    StandardScaler,
    Subset,
    TransformDataset,
    load_csv_dataset,
    min_max_scale,
    normalize,
    one_hot_encode,
    random_split,
    shuffle_arrays,
    standardize,
    stratified_split,
    train_test_split,
)
from everyo.exceptions import (
    EveryOError,
    EveryOSerializationError,
    EveryOShapeError,
)

KEYWORD_DEFAULTS = {
    DataLoader: {"shuffle": False, "drop_last": False, "seed": None, "prefetch": 0},
    load_csv_dataset: {
        "target_column": -1,
        "delimiter": ",",
        "has_header": None,
        "skip_columns": (),
    },
    shuffle_arrays: {"seed": None},
    train_test_split: {"test_size": 0.2, "seed": None, "shuffle": True},
    stratified_split: {"test_size": 0.2, "seed": None},
    random_split: {"seed": None},
}
POSITIONAL_DEFAULTS = {
    ArrayDataset: {"targets": None},
    DataLoader: {"batch_size": 32},
    TransformDataset: {"transform": None, "target_transform": None},
    MinMaxScaler: {"feature_range": (0.0, 1.0)},
    standardize: {"axis": 0},
    min_max_scale: {"low": 0.0, "high": 1.0},
    normalize: {"axis": 1, "order": 2},
    one_hot_encode: {"num_classes": None},
}


def _defaults(function, kind):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is kind and p.default is not p.empty}


@pytest.mark.parametrize("function", KEYWORD_DEFAULTS)
def test_keyword_only_names_and_defaults_are_exact(function):
    assert _defaults(function, inspect.Parameter.KEYWORD_ONLY) == KEYWORD_DEFAULTS[function]


@pytest.mark.parametrize("function", POSITIONAL_DEFAULTS)
def test_positional_names_and_defaults_are_exact(function):
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert _defaults(function, kind) == POSITIONAL_DEFAULTS[function]


@pytest.mark.parametrize("module", ["dataset", "loader", "preprocessing", "splits"])
def test_the_examples_in_the_documentation_run(module):
    failed, attempted = doctest.testmod(import_module(f"everyo.data.{module}"))
    assert attempted > 0
    assert failed == 0


# Data sets


class ArrayLike:
    """Anything that NumPy can read through `__array__`, as a tensor is."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.array, dtype=dtype)


class Squares:
    """A data set by its methods alone."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return np.array([index, index**2], dtype=np.float32), index % 2


def pairs(n, width=2):
    return ArrayDataset(np.arange(n * width, dtype=np.float32).reshape(n, width), np.arange(n))


def same_batches(left, right):
    return json.dumps(left, default=np.ndarray.tolist) == json.dumps(
        right, default=np.ndarray.tolist
    )


def test_array_data_sets_hold_arrays_and_give_pairs():
    features = np.ones((4, 3, 2))
    dataset = ArrayDataset(features, [3, 2, 1, 0])
    assert len(dataset) == 4
    assert dataset.feature_shape == (3, 2)
    assert dataset.features is features
    item, target = dataset[-1]
    assert item.shape == (3, 2)
    assert target == 0


def test_array_data_sets_without_targets_give_features_alone():
    dataset = ArrayDataset(np.arange(3.0))
    assert dataset.targets is None
    assert dataset[2] == 2.0


def test_array_data_sets_take_whatever_has_an_array_inside():
    dataset = ArrayDataset(ArrayLike(np.ones((2, 3), dtype=np.float32)), ArrayLike(np.arange(2)))
    assert dataset.features.dtype == np.float32
    assert dataset[1][1] == 1


def test_arrays_of_different_lengths_are_refused_with_their_shapes():
    with pytest.raises(EveryOShapeError, match=r"same number of samples.*\(3, 2\), \(4,\)"):
        ArrayDataset(np.ones((3, 2)), np.ones(4))
    with pytest.raises(EveryOShapeError, match="axis of samples"):
        ArrayDataset(1.0)


@pytest.mark.parametrize("dataset", [pairs(3), Subset(pairs(9), [1, 2, 3])])
@pytest.mark.parametrize("index", [3, -4])
def test_indices_beyond_the_end_are_index_errors(dataset, index):
    with pytest.raises(IndexError, match="out of range"):
        dataset[index]


def test_a_subset_gives_the_items_it_was_told_in_that_order():
    subset = Subset(Squares(), [4, np.int64(0), -1])
    assert [target for _, target in subset] == [0, 0, 0]
    assert [features[0] for features, _ in subset] == [4.0, 0.0, 4.0]
    assert len(subset) == 3


@pytest.mark.parametrize("index", [5, -6])
def test_a_subset_refuses_indices_its_data_set_does_not_have(index):
    with pytest.raises(IndexError, match="out of range"):
        Subset(Squares(), [0, index])


def test_transforms_apply_to_features_and_targets_apart():
    dataset = TransformDataset(pairs(3), lambda x: x * 10, lambda t: -t)
    features, target = dataset[1]
    assert (features.tolist(), target) == ([20.0, 30.0], -1)
    assert len(dataset) == 3
    unchanged, target = TransformDataset(pairs(3))[1]
    assert (unchanged.tolist(), target) == ([2.0, 3.0], 1)
    assert TransformDataset(ArrayDataset([1.0, 2.0]), np.negative)[1] == -2.0


def test_a_target_transform_needs_targets():
    with pytest.raises(EveryOError, match="no targets"):
        TransformDataset(ArrayDataset([1.0]), None, abs)[0]


def test_a_data_set_must_define_its_length_and_items():
    with pytest.raises(TypeError, match="abstract"):
        Dataset()


class Doubled(ArrayDataset):
    """Items of its own on top of stored arrays, as augmentation has."""

    def __getitem__(self, index):
        features, target = super().__getitem__(index)
        return features * 2, target


class Reversed(Subset):
    """A subset that overrides its items."""

    def __getitem__(self, index):
        return super().__getitem__(len(self) - 1 - index)


BATCHABLE = {
    "arrays": pairs(5),
    "features alone": ArrayDataset(np.arange(5.0)),
    "subset": Subset(pairs(9), [8, 1, 7, 2, 2]),
    "subset of a subset": Subset(Subset(pairs(9), [8, 1, 7, 2, 3]), [4, 3, 2, 1, 0]),
    "subset by methods alone": Subset(Squares(), [4, 0, 1, 1, 2]),
    "methods alone": Squares(),
    "transformed": TransformDataset(pairs(5), lambda x: x + 1),
    "overridden items": Doubled(np.ones((5, 2)), np.arange(5)),
    "overridden subset": Reversed(pairs(9), [0, 1, 2, 3, 4]),
    "list of pairs": [(np.float32(i), i) for i in range(5)],
    "triples": [(np.ones(2) * i, i, -i) for i in range(5)],
}


@pytest.mark.parametrize("name", BATCHABLE)
@pytest.mark.parametrize("prefetch", [0, 1, 3])
def test_a_batch_is_the_stack_of_its_items(name, prefetch):
    dataset = BATCHABLE[name]
    items = [dataset[i] for i in range(5)]
    batches = list(DataLoader(dataset, 2, prefetch=prefetch))
    assert len(batches) == 3
    for step, batch in enumerate(batches):
        chunk = items[2 * step : 2 * step + 2]
        if not isinstance(chunk[0], tuple):
            np.testing.assert_array_equal(batch, np.stack(chunk), strict=True)
            continue
        assert isinstance(batch, tuple)
        for part, expected in zip(batch, zip(*chunk, strict=True), strict=True):
            np.testing.assert_array_equal(part, np.stack(expected), strict=True)


# The loader


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 40),
    batch_size=st.integers(1, 50),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
    prefetch=st.integers(0, 3),
)
def test_an_epoch_delivers_every_sample_once(n, batch_size, drop_last, shuffle, prefetch):
    loader = DataLoader(
        ArrayDataset(np.arange(n)),
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        seed=0,
        prefetch=prefetch,
    )
    batches = list(loader)
    delivered = [value for batch in batches for value in batch.tolist()]
    kept = n - n % batch_size if drop_last else n
    assert len(batches) == len(loader)
    assert loader.num_samples == n
    assert all(len(batch) == batch_size for batch in batches[:-1])
    assert len(set(delivered)) == len(delivered) == kept
    if not shuffle:
        assert delivered == list(range(kept))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_equal_seeds_give_equal_epochs_and_successive_epochs_differ(prefetch):
    first, second = (
        DataLoader(pairs(50), 8, shuffle=True, seed=3, prefetch=p) for p in (0, prefetch)
    )
    epochs = [list(first) for _ in range(3)]
    assert same_batches(epochs, [list(second) for _ in range(3)])
    assert not same_batches(epochs[0], epochs[1])
    other = DataLoader(pairs(50), 8, shuffle=True, seed=4)
    assert not same_batches(epochs[0], list(other))


def test_loaders_without_a_seed_differ():
    orders = [
        np.concatenate(list(DataLoader(ArrayDataset(np.arange(100)), shuffle=True)))
        for _ in range(2)
    ]
    assert (orders[0] != orders[1]).any()


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 30),
    batch_size=st.integers(1, 8),
    stop=st.integers(0, 12),
    prefetch=st.sampled_from([0, 2]),
    through_json=st.booleans(),
)
def test_a_resumed_loader_delivers_exactly_what_was_left(
    n, batch_size, stop, prefetch, through_json
):
    def make(seed):
        return DataLoader(
            ArrayDataset(np.arange(n)), batch_size, shuffle=True, seed=seed, prefetch=prefetch
        )

    def stream(loader, epochs):
        return [(e, batch.tolist()) for e in range(epochs) for batch in loader]

    whole = stream(make(1), 4)
    loader = make(1)
    seen, state = 0, loader.state_dict()
    for _, batch in zip(range(stop), (b for _ in range(3) for b in loader), strict=False):
        assert batch.tolist() == whole[seen][1]
        seen += 1
        state = loader.state_dict()
    resumed = make(99)
    resumed.load_state_dict(json.loads(json.dumps(state)) if through_json else state)
    rest = [batch for _, batch in stream(resumed, 4)]
    expected = [batch for _, batch in whole[seen:]]
    assert rest[: len(expected)] == expected


def test_a_finished_epoch_is_resumed_at_the_next():
    loader = DataLoader(ArrayDataset(np.arange(20)), 4, shuffle=True, seed=1)
    list(loader)
    resumed = DataLoader(ArrayDataset(np.arange(20)), 7, shuffle=True, seed=2)
    resumed.load_state_dict(loader.state_dict())
    assert np.concatenate(list(resumed)).tolist() == np.concatenate(list(loader)).tolist()


def test_leaving_an_epoch_early_starts_a_new_one_next_time():
    loader = DataLoader(ArrayDataset(np.arange(20)), 4, shuffle=True, seed=1)
    next(iter(loader))
    assert len(list(loader)) == 5


def _broken(**changes):
    state = DataLoader(pairs(8), 2, shuffle=True, seed=0).state_dict()
    state.update(delivered=1)
    state.update(changes)
    return {name: value for name, value in state.items() if value is not ...}


@pytest.mark.parametrize(
    ("state", "match"),
    [
        (_broken(generator=...), "Missing keys"),
        (_broken(delivered=5), "5 batches"),
        (_broken(delivered=-1), "-1 batches"),
        (_broken(delivered="one"), "'one' batches"),
        (_broken(num_samples=9), "num_samples=9"),
        (_broken(batch_size=3), "batch_size=3"),
        (_broken(shuffle=False), "shuffle=False"),
        (_broken(generator={"bit_generator": "MT19937"}), "generator"),
        (_broken(generator=7), "generator"),
        (_broken(generator={"bit_generator": "PCG64", "state": {"state": 1}}), "generator"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state, match):
    loader, untouched = (DataLoader(pairs(8), 2, shuffle=True, seed=5) for _ in range(2))
    with pytest.raises(EveryOSerializationError, match=match):
        loader.load_state_dict(state)
    assert loader.state_dict() == untouched.state_dict()
    assert same_batches(list(loader), list(untouched))


class Counting(Dataset):
    """Records which items were asked for, and by which thread."""

    def __init__(self, n, fail_at=None):
        self.n, self.fail_at = n, fail_at
        self.asked, self.threads = [], set()

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        self.asked.append(index)
        self.threads.add(threading.current_thread())
        if index == self.fail_at:
            raise KeyError("no such sample")
        return np.float32(index)


def test_prefetching_happens_in_another_thread_and_only_so_far_ahead():
    dataset = Counting(100)
    batches = iter(DataLoader(dataset, 1, prefetch=3))
    first = next(batches)
    second = next(batches)
    batches.close()
    assert (first.item(), second.item()) == (0.0, 1.0)
    assert threading.current_thread() not in dataset.threads
    assert dataset.asked == list(range(len(dataset.asked)))
    assert len(dataset.asked) <= 2 + 3


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_no_prefetching_thread_outlives_its_epoch(taken):
    before = set(threading.enumerate())
    batches = iter(DataLoader(Counting(5), 1, prefetch=2))
    for _ in range(taken):
        next(batches)
    del batches
    list(DataLoader(Counting(5), 1, prefetch=2))
    assert set(threading.enumerate()) == before


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_data_set_arrives_at_its_batch(prefetch):
    loader = DataLoader(Counting(10, fail_at=5), 2, prefetch=prefetch)
    received = []
    with pytest.raises(KeyError, match="no such sample"):
        received.extend(batch.tolist() for batch in loader)
    batches = iter(loader)
    assert [next(batches).tolist() for _ in range(2)] == [[0.0, 1.0], [2.0, 3.0]]
    with pytest.raises(KeyError, match="no such sample"):
        next(batches)


@pytest.mark.parametrize("dataset", [5, None, iter([1, 2])])
def test_what_is_no_data_set_is_refused_with_a_hint(dataset):
    with pytest.raises(TypeError, match="ArrayDataset"):
        DataLoader(dataset)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_size": 0}, ValueError),
        ({"batch_size": -2}, ValueError),
        ({"batch_size": 2.0}, TypeError),
        ({"prefetch": -1}, ValueError),
    ],
)
def test_bad_loader_arguments_are_refused_by_name(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        DataLoader(pairs(3), **arguments)


@pytest.mark.parametrize(
    ("items", "match"),
    [
        ([np.ones(2), np.ones(3)], "one shape"),
        ([(1, 2), (1, 2, 3)], "parts"),
        ([(1, 2), 3], "parts"),
    ],
)
def test_samples_that_do_not_stack_are_refused(items, match):
    with pytest.raises(EveryOShapeError, match=match):
        next(iter(DataLoader(items, 2)))


# Tables

TABLES = {
    "header found": ("a,b,y\n1,2,3\n4,5,6\n", {}),
    "no header": ("1,2,3\n4,5,6\n", {}),
    "header by force": ("9,9,9\n1,2,3\n4,5,6\n", {"has_header": True}),
    "target by name": ("y,a,b\n3,1,2\n6,4,5\n", {"target_column": "y"}),
    "target by index": ("3,1,2\n6,4,5\n", {"target_column": 0}),
    "target by negative index": ("1,3,2\n4,6,5\n", {"target_column": -2}),
    "skip by name": ("a,id,b,y\n1,x,2,3\n4,z,5,6\n", {"skip_columns": ["id"]}),
    "skip text by index": ("x,1,2,3\nz,4,5,6\n", {"skip_columns": (0,)}),
    "skip text by negative index": (
        "1,2,3,x\n4,5,6,z\n",
        {"skip_columns": (-1,), "target_column": 2},
    ),
    "semicolons": ("a;b;y\n1;2;3\n4;5;6\n", {"delimiter": ";"}),
    "spaces, quotes and blank lines": (' a, b ,y\n\n1, "2",3\n\n4,5, 6\n\n', {}),
    "windows line ends and a byte order mark": ("\ufeffa,b,y\r\n1,2,3\r\n4,5,6\r\n", {}),
    "exponents and signs": ("+1,2e0,3.0\n4.,50E-1,6\n", {}),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_are_read_however_they_are_written(name, tmp_path):
    text, options = TABLES[name]
    path = tmp_path / "table.csv"
    path.write_text(text.replace('"2"', "2"), encoding="utf-8", newline="")
    dataset = load_csv_dataset(path, **options)
    assert dataset.features.tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert dataset.targets.tolist() == [3.0, 6.0]
    assert dataset.features.dtype == dataset.targets.dtype == np.float32
    assert len(load_csv_dataset(str(path), **options)) == 2


def test_a_table_without_target_has_features_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("1,2\n3,4\n")
    dataset = load_csv_dataset(path, target_column=None)
    assert dataset.targets is None
    assert dataset.features.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("text", "options", "match"),
    [
        ("", {}, "numeric table"),
        ("\n\n", {}, "numeric table"),
        ("a,y\n1,2\nx,3\n", {}, "line 3, column 'a': 'x'.*numeric table"),
        ("1,2\n3,\n", {}, "line 2, column 1: ''.*numeric table"),
        (",2\n3,4\n", {}, "line 1, column 0: ''.*numeric table"),
        ("a,b\n1,2\n1,2,3\n", {}, "line 3: 3 cells.*numeric table"),
        ("a,b\n1,2\n", {"target_column": "c"}, r"'c'; the columns are \['a', 'b'\]"),
        ("1,2\n1,2\n", {"target_column": "c"}, "no header"),
        ("1,2\n1,2\n", {"target_column": 2}, "out of range"),
        ("1,2\n1,2\n", {"skip_columns": [-3]}, "out of range"),
    ],
)
def test_bad_tables_are_refused_with_line_and_column(text, options, match, tmp_path):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(EveryOShapeError, match=match):
        load_csv_dataset(path, **options)


def test_a_missing_table_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_csv_dataset(tmp_path / "nowhere.csv")


def test_a_delimiter_is_one_character(tmp_path):
    with pytest.raises(ValueError, match="delimiter"):
        load_csv_dataset(tmp_path / "nowhere.csv", delimiter="::")


# Scaling

COLUMNS = np.array([[1.0, 5.0, -2.0], [3.0, 5.0, 0.0], [8.0, 5.0, 7.0]])
SCALERS = {
    "standard": StandardScaler,
    "min-max": MinMaxScaler,
    "min-max, -1 to 3": lambda: MinMaxScaler((-1.0, 3.0)),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", SCALERS)
def test_scalers_keep_precision_and_come_back(name, dtype):
    scaler = SCALERS[name]()
    assert scaler.fit(COLUMNS) is scaler
    given_columns = COLUMNS.astype(dtype)
    scaled = scaler.transform(given_columns)
    assert scaled.dtype == dtype
    restored = scaler.inverse_transform(scaled)
    assert restored.dtype == dtype
    np.testing.assert_allclose(restored, given_columns, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(SCALERS[name]().fit_transform(given_columns), scaled)


def test_standard_columns_have_mean_zero_and_population_deviation_one():
    scaler = StandardScaler()
    scaled = scaler.fit_transform(COLUMNS)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(scaled.std(axis=0), [1.0, 0.0, 1.0])
    np.testing.assert_allclose(scaler.mean, COLUMNS.mean(axis=0))
    np.testing.assert_allclose(scaler.std, [COLUMNS[:, 0].std(), 1e-8, COLUMNS[:, 2].std()])
    np.testing.assert_allclose(standardize(COLUMNS), scaled)
    np.testing.assert_allclose(standardize(COLUMNS.T, axis=1), scaled.T)
    np.testing.assert_allclose(standardize(COLUMNS.T, axis=-1), scaled.T)


def test_min_max_columns_span_the_range():
    scaled = MinMaxScaler((-1.0, 3.0)).fit_transform(COLUMNS)
    np.testing.assert_allclose(scaled.min(axis=0), -1.0)
    np.testing.assert_allclose(scaled.max(axis=0), [3.0, -1.0, 3.0])
    np.testing.assert_allclose(min_max_scale(COLUMNS, -1.0, 3.0), scaled)
    np.testing.assert_allclose(min_max_scale([1.0, 2.0, 3.0]), [0.0, 0.5, 1.0])


@pytest.mark.parametrize("name", SCALERS)
@pytest.mark.parametrize("values", [[[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])])
def test_scaled_integers_and_lists_are_float32(name, values):
    assert SCALERS[name]().fit_transform(values).dtype == np.float32


@pytest.mark.parametrize("name", SCALERS)
@pytest.mark.parametrize("method", ["transform", "inverse_transform"])
def test_scalers_must_be_fitted_first_and_to_the_same_columns(name, method):
    scaler = SCALERS[name]()
    with pytest.raises(EveryOShapeError, match="before fit"):
        getattr(scaler, method)(COLUMNS)
    scaler.fit(COLUMNS)
    with pytest.raises(EveryOShapeError, match=r"\(3, 2\)"):
        getattr(scaler, method)(COLUMNS[:, :2])
    with pytest.raises(EveryOShapeError, match="no samples"):
        scaler.fit(COLUMNS[:0])


@pytest.mark.parametrize("feature_range", [(1.0, 1.0), (2.0, 0.0), (float("nan"), 1.0)])
def test_a_feature_range_is_increasing(feature_range):
    with pytest.raises(ValueError, match="increasing"):
        MinMaxScaler(feature_range)
    with pytest.raises(ValueError, match="increasing"):
        min_max_scale(COLUMNS, *feature_range)


@pytest.mark.parametrize("order", [1, 2, np.inf])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalized_vectors_have_norm_one(order, axis):
    unit = normalize(COLUMNS, axis=axis, order=order)
    np.testing.assert_allclose(np.linalg.norm(unit, ord=order, axis=axis), 1.0)
    assert normalize(np.zeros((2, 2), dtype=np.float32)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("function", [standardize, normalize])
def test_an_axis_that_is_not_there_is_out_of_range(function):
    with pytest.raises(EveryOShapeError, match="out of range"):
        function(COLUMNS, axis=2)


@pytest.mark.parametrize("labels", [[2, 0, 1], np.array([[2.0], [0.0], [1.0]]), (2, False, True)])
def test_one_hot_rows_have_their_one_at_the_label(labels):
    rows = one_hot_encode(labels)
    assert rows.dtype == np.float32
    assert rows.tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]
    assert one_hot_encode(labels, 5).shape == (3, 5)


@pytest.mark.parametrize(
    ("labels", "num_classes", "match"),
    [
        ([0, 3], 3, "label 3 is out of range for 3"),
        ([-1, 0], None, "label -1 is out of range"),
        ([0.5], None, "whole numbers"),
        ([float("nan")], 2, "whole numbers"),
        ([float("inf")], 2, "whole numbers"),
        (["cat"], None, "whole numbers"),
        ([], None, "num_classes"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, num_classes, match):
    with pytest.raises(EveryOShapeError, match=match):
        one_hot_encode(labels, num_classes)


# Splits


def test_shuffled_arrays_stay_in_step():
    features, labels = shuffle_arrays(np.arange(30).reshape(10, 3), list(range(10)), seed=4)
    np.testing.assert_array_equal(features[:, 0], labels * 3)
    assert sorted(labels.tolist()) == list(range(10))
    assert labels.tolist() != list(range(10))
    np.testing.assert_array_equal(shuffle_arrays(range(10), seed=4)[0], labels)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(2, 60),
    test_size=st.floats(0.01, 0.99),
    seed=st.integers(0, 1000),
    shuffle=st.booleans(),
)
def test_train_and_test_parts_together_are_everything(n, test_size, seed, shuffle):
    x, y = np.arange(n) * 2, np.arange(n)
    train_x, test_x, train_y, test_y = train_test_split(
        x, y, test_size=test_size, seed=seed, shuffle=shuffle
    )
    np.testing.assert_array_equal(train_x, train_y * 2)
    np.testing.assert_array_equal(test_x, test_y * 2)
    assert sorted([*train_y, *test_y]) == list(range(n))
    assert len(test_y) == min(max(round(n * test_size), 1), n - 1)
    if not shuffle:
        np.testing.assert_array_equal(np.concatenate([train_y, test_y]), y)


def test_equal_seeds_split_equally():
    first, second, other = (train_test_split(np.arange(99), seed=s)[1] for s in (1, 1, 2))
    np.testing.assert_array_equal(first, second)
    assert (first != other).any()


@pytest.mark.parametrize("split", [train_test_split, stratified_split])
@pytest.mark.parametrize("test_size", [0.0, 1.0, -0.5, 2, float("nan")])
def test_a_test_size_lies_strictly_between_zero_and_one(split, test_size):
    with pytest.raises(ValueError, match="test_size"):
        split(np.arange(10), np.arange(10) % 2, test_size=test_size)


@pytest.mark.parametrize("split", [train_test_split, stratified_split, shuffle_arrays])
def test_splits_refuse_arrays_of_different_lengths(split):
    with pytest.raises(EveryOShapeError, match="same number of samples"):
        split(np.ones((3, 2)), np.ones(4))


@pytest.mark.parametrize("call", [train_test_split, shuffle_arrays])
def test_splitting_nothing_is_refused(call):
    with pytest.raises(EveryOShapeError, match="no arrays"):
        call()


def test_a_single_sample_cannot_be_split():
    with pytest.raises(EveryOShapeError, match="two parts"):
        train_test_split([1.0])
    with pytest.raises(EveryOShapeError, match="two parts"):
        stratified_split([1.0, 2.0], [0, 1])


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=4).filter(lambda c: max(c) > 1),
    test_size=st.floats(0.05, 0.95),
    column=st.booleans(),
)
def test_stratified_parts_have_each_class_in_proportion(counts, test_size, column):
    labels = np.repeat(np.arange(len(counts)), counts)
    if column:
        labels = labels[:, None]
    features = np.arange(len(labels))
    train_x, test_x, train_y, test_y = stratified_split(
        features, labels, test_size=test_size, seed=0
    )
    assert sorted([*train_x, *test_x]) == features.tolist()
    np.testing.assert_array_equal(labels[train_x], train_y)
    np.testing.assert_array_equal(labels[test_x], test_y)
    for label, count in enumerate(counts):
        expected = min(max(round(count * test_size), 1), count - 1)
        assert (test_y == label).sum() == expected


def test_stratified_labels_are_one_per_sample():
    with pytest.raises(EveryOShapeError, match="labels must have shape"):
        stratified_split(np.ones((3, 2)), np.eye(3))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(0, 50), shares=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_random_parts_are_disjoint_and_complete(n, shares):
    fractions = [share / sum(shares) for share in shares]
    parts = random_split(ArrayDataset(np.arange(n)), fractions, seed=1)
    assert all(isinstance(part, Subset) for part in parts)
    assert sorted(int(item) for part in parts for item in part) == list(range(n))
    for part, fraction in zip(parts, fractions, strict=True):
        assert abs(len(part) - n * fraction) <= 1.0 + 1e-9


@pytest.mark.parametrize("fractions", [[], [0.5, 0.4], [1.5, -0.5], [1.0, 0.0], [0.7, 0.7]])
def test_fractions_are_positive_and_add_up_to_one(fractions):
    with pytest.raises(ValueError, match="fractions"):
        random_split(pairs(4), fractions)


def test_every_public_name_is_there():
    assert all(hasattr(data, name) for name in data.__all__)
