"""Generated points: a line to fit, and classes in the plane from easy to hard.

Letters: n samples, f features. Every class has the same number of samples, give or take one, and
the order is shuffled.
"""

import numpy as np

from everyo.data.checks import not_negative, whole


def make_regression(
    *,
    n_samples: int = 200,
    n_features: int = 1,
    noise: float = 0.1,
    bias: float = 0.0,
    seed: int | None = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """A linear relation with noise: features (n, f), targets (n, 1).   y = x @ w + bias + noise"""
    n = whole("n_samples", n_samples)
    f = whole("n_features", n_features)
    noise = not_negative("noise", noise)
    rng = np.random.default_rng(seed)
    # away from 0, so that the noise never drowns the relation
    weights = rng.uniform(1.0, 3.0, size=(f, 1)) * rng.choice([-1.0, 1.0], size=(f, 1))
    features = rng.normal(size=(n, f))
    targets = features @ weights + bias + rng.normal(0.0, noise, size=(n, 1))
    return features.astype(np.float32), targets.astype(np.float32)


def make_blobs(
    *,
    n_samples: int = 300,
    n_features: int = 2,
    centers: int = 3,
    spread: float = 0.8,
    seed: int | None = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Round clouds: features (n, f), labels (n,) in 0..centers-1.

    The centres lie evenly on a circle in the first two dimensions (on a line when f is 1), more
    than four units apart; `spread` is the standard deviation of each cloud.
    """
    n = whole("n_samples", n_samples)
    f = whole("n_features", n_features)
    count = whole("centers", centers)
    spread = not_negative("spread", spread)
    rng = np.random.default_rng(seed)
    middles = rng.uniform(-1.0, 1.0, size=(count, f))
    if f == 1:
        middles[:, 0] += 7.0 * (np.arange(count) - (count - 1) / 2)
    else:
        angles = rng.uniform(0.0, 2 * np.pi) + 2 * np.pi * np.arange(count) / count
        radius = 7.0 / (2 * np.sin(np.pi / max(count, 3)))
        middles[:, 0] += radius * np.cos(angles)
        middles[:, 1] += radius * np.sin(angles)
    labels = _shuffled_labels(rng, n, count)
    return _points(middles[labels] + rng.normal(0.0, spread, size=(n, f))), labels


def make_moons(
    *, n_samples: int = 300, noise: float = 0.15, seed: int | None = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Two half circles that reach into each other: features (n, 2), labels (n,) in 0..1."""
    n = whole("n_samples", n_samples)
    noise = not_negative("noise", noise)
    rng = np.random.default_rng(seed)
    labels = _shuffled_labels(rng, n, 2)
    angles = rng.uniform(0.0, np.pi, size=n)
    side = np.where(labels == 0, 1.0, -1.0)
    x = side * np.cos(angles) + labels
    y = side * np.sin(angles) + 0.5 * labels
    return _points(np.stack([x, y], axis=1) + rng.normal(0.0, noise, size=(n, 2))), labels


def make_spirals(
    *,
    n_samples: int = 300,
    classes: int = 3,
    noise: float = 0.15,
    turns: float = 1.5,
    seed: int | None = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Arms that wind out of the origin `turns` times: features (n, 2), labels (n,) in 0..classes-1.

    `noise` is the standard deviation of the angle, in radians.
    """
    n = whole("n_samples", n_samples)
    arms = whole("classes", classes)
    noise = not_negative("noise", noise)
    rng = np.random.default_rng(seed)
    labels = _shuffled_labels(rng, n, arms)
    radius = np.sqrt(rng.uniform(0.0025, 1.0, size=n))  # even along the arm's length
    angles = 2 * np.pi * (turns * radius + labels / arms) + rng.normal(0.0, noise, size=n)
    return _points(np.stack([radius * np.cos(angles), radius * np.sin(angles)], axis=1)), labels


def make_xor(
    *, n_samples: int = 400, noise: float = 0.25, seed: int | None = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Clouds at the corners (±1, ±1): features (n, 2); the label is 1 where the signs differ."""
    n = whole("n_samples", n_samples)
    noise = not_negative("noise", noise)
    rng = np.random.default_rng(seed)
    labels = _shuffled_labels(rng, n, 2)
    x = rng.choice([-1.0, 1.0], size=n)
    y = np.where(labels == 1, -x, x)
    return _points(np.stack([x, y], axis=1) + rng.normal(0.0, noise, size=(n, 2))), labels


def _shuffled_labels(rng: np.random.Generator, count: int, classes: int) -> np.ndarray:
    return rng.permutation(np.arange(count, dtype=np.int64) % classes)


def _points(features: np.ndarray) -> np.ndarray:
    return features.astype(np.float32)
