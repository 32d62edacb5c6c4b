"""Handwritten digits: the real ones of UCI, and drawn ones in any number.

Both are 8x8 grey images with values in [0, 1]. `flatten=True` gives rows of 64, ready for a
`Linear`; `flatten=False` gives (n, 8, 8, 1), the layout of `conv2d`.
"""

from importlib import resources

import numpy as np

from everyo.data.checks import not_negative, whole
from everyo.exceptions import EveryOShapeError

_UCI_MAXIMUM = 16  # each pixel counts the black dots of a 4x4 block

_GLYPHS = (
    "..####.. .##..##. ##....## ##....## ##....## ##....## .##..##. ..####..",
    "...##... ..###... .####... ...##... ...##... ...##... ...##... .######.",
    "..####.. .##..##. ##....## .....##. ....##.. ..##.... .##..... ########",
    ".#####.. ##...##. .....##. ..####.. ..####.. .....##. ##...##. .#####..",
    "....##.. ...###.. ..####.. .##.##.. ##..##.. ######## ....##.. ....##..",
    "#######. ##...... ##...... ######.. .....##. ......## ##...##. .#####..",
    "..####.. .##..... ##...... ######.. ##...##. ##....## .##..##. ..####..",
    "######## ......## .....##. ....##.. ...##... ..##.... ..##.... ..##....",
    ".######. ##....## ##....## .######. .######. ##....## ##....## .######.",
    "..####.. .##..##. ##....## .##...## ..###### ......## .....##. ..####..",
)


def load_uci_digits(
    *, samples_per_class: int | None = None, flatten: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """The 1,797 real digits of UCI: features (n, 64) or (n, 8, 8, 1) in [0, 1], labels (n,).

    They come in the order of the source. `samples_per_class` keeps at most that many of each
    digit, the first ones. Source and licence: `UCI_DIGITS_LICENSE.txt` beside this file.

    >>> features, labels = load_uci_digits()
    >>> features.shape, labels[:5].tolist()
    ((1797, 64), [0, 1, 2, 3, 4])
    """
    with (resources.files(__package__) / "uci_digits.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        images, labels = archive["images"], archive["labels"].astype(np.int64)
    if samples_per_class is not None:
        limit = whole("samples_per_class", samples_per_class)
        kept = np.sort(np.concatenate([np.flatnonzero(labels == d)[:limit] for d in range(10)]))
        images, labels = images[kept], labels[kept]
    return _arranged(images / np.float32(_UCI_MAXIMUM), flatten), labels


def load_digits(
    *,
    samples_per_class: int = 200,
    noise: float = 0.15,
    max_shift: int = 1,
    flatten: bool = True,
    seed: int | None = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Drawn digits, shuffled: features (n, 64) or (n, 8, 8, 1) in [0, 1], labels (n,).

    Each image is `render_digit` moved by up to `max_shift` pixels either way, drawn fainter or
    stronger, and covered with normal noise of standard deviation `noise`.

    >>> features, labels = load_digits(samples_per_class=5)
    >>> features.shape, labels.shape
    ((50, 64), (50,))
    """
    count = 10 * whole("samples_per_class", samples_per_class)
    reach = whole("max_shift", max_shift, at_least=0)
    noise = not_negative("noise", noise)
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % 10)
    glyphs = np.stack([render_digit(d) for d in range(10)])
    padded = np.pad(glyphs, ((0, 0), (reach, reach), (reach, reach)))
    top, left = rng.integers(0, 2 * reach + 1, size=(2, count, 1, 1))
    rows = top + np.arange(8)[:, None]
    columns = left + np.arange(8)
    strength = rng.uniform(0.7, 1.0, size=(count, 1, 1))
    images = padded[labels[:, None, None], rows, columns] * strength
    images = np.clip(images + rng.normal(0.0, noise, size=images.shape), 0.0, 1.0)
    return _arranged(images, flatten), labels


def render_digit(d: int) -> np.ndarray:
    """The clean drawing of the digit `d`: (8, 8) float32, 1 where there is ink and 0 elsewhere."""
    digit = whole("d", d, at_least=0)
    if digit > 9:
        raise EveryOShapeError(f"render_digit: {digit} is out of range; digits are 0 to 9")
    rows = [[cell == "#" for cell in row] for row in _GLYPHS[digit].split()]
    return np.array(rows, dtype=np.float32)


def _arranged(images: np.ndarray, flatten: bool) -> np.ndarray:
    shape = (len(images), 64) if flatten else (len(images), 8, 8, 1)
    return images.reshape(shape).astype(np.float32, copy=False)
