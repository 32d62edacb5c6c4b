"""A layered layout: boxes in rows, edges going down, few crossings, short edges.

Rows go by longest path. A row is ordered by the mean place of its neighbours, and its places are
the exact least squares for that order. An edge that skips rows gets a via in each of them, a thin
box that holds its place; the vias of one edge attract each other, so that it goes straight.
"""

from collections.abc import Hashable, Iterable
from itertools import pairwise

Point = tuple[float, float]
Key = Hashable
Edge = tuple[Key, Key, Key]  # source, target, name
SWEEPS = 8


class Layout:
    """Places for boxes of the given sizes, so that edges (source, target, name) go down.

    The keys of `sizes` come in topological order. An edge that skips rows gets a via in each row;
    edges of one name share their vias.
    """

    def __init__(
        self, sizes: dict[Key, Point], edges: Iterable[Edge], gap_x: float, gap_y: float,
        pinned: dict[Key, str] | None = None,
    ) -> None:  # fmt: skip
        edges = list(edges)
        self.sizes, self.gap_x = dict(sizes), gap_x
        self.rank = ranks(list(sizes), edges, pinned or {})
        self.chain: dict[Key, Key] = {}  # via -> the edges it belongs to
        links = self.links(edges)
        rows = ordered(self.rank, links)
        self.middle = self.columns(rows, links)
        self.rows: list[Point] = []  # top and bottom of each row
        y = 0.0
        for row in rows:
            height = max((self.sizes[k][1] for k in row), default=0.0)
            self.rows.append((y, y + height))
            y += height + gap_y
        left = min((self.middle[k] - self.sizes[k][0] / 2 for k in self.middle), default=0.0)
        self.middle = {k: m - left for k, m in self.middle.items()}
        self.place: dict[Key, Point] = {}
        for k, (width, height) in sizes.items():
            top, bottom = self.rows[self.rank[k]]
            down = bottom - height if (pinned or {}).get(k) == "bottom" else top
            self.place[k] = (self.middle[k] - width / 2, down)
        self.width = max((self.middle[k] + self.sizes[k][0] / 2 for k in self.middle), default=0.0)
        self.height = max(0.0, y - gap_y)

    def links(self, edges: list[Edge]) -> list[tuple[Key, Key]]:
        """The edges cut at their vias, which are made here."""
        links: dict[tuple[Key, Key], None] = {}
        for source, target, name in edges:
            above = source
            for r in range(self.rank[source] + 1, self.rank[target]):
                via = ("via", source, name, r)
                self.chain[via] = (source, name)
                self.rank[via], self.sizes[via] = r, (4.0, 0.0)
                links[above, via] = None
                above = via
            links[above, target] = None
        return list(links)

    def columns(self, rows: list[list[Key]], links: list[tuple[Key, Key]]) -> dict[Key, float]:
        """The middle of each box: near the mean of its neighbours, in the order of its row."""
        near: dict[Key, list[Key]] = {k: [] for row in rows for k in row}
        chains: dict[Key, list[Key]] = {}  # by source and name: the vias and what they lead to
        for a, b in links:
            for via, end in ((a, b), (b, a)):
                if via in self.chain:
                    chains.setdefault(self.chain[via], []).append(end)
            near[a].append(b)
            near[b].append(a)
        near.update((via, chains[name]) for via, name in self.chain.items())
        middle: dict[Key, float] = {}
        for row in rows:
            x = 0.0
            for k in row:
                middle[k] = x + self.sizes[k][0] / 2
                x += self.sizes[k][0] + self.gap_x
        for sweep in range(2 * SWEEPS):
            for row in rows if sweep % 2 == 0 else reversed(rows):
                wish = [mean([middle[n] for n in near[k]], middle[k]) for k in row]
                apart = [
                    (self.sizes[a][0] + self.sizes[b][0]) / 2 + self.gap_x for a, b in pairwise(row)
                ]
                weight = [4.0 if k in self.chain else 1.0 for k in row]
                middle.update(zip(row, spread(wish, apart, weight), strict=True))
        return middle

    def route(self, source: Key, target: Key, name: Key) -> list[Point]:
        """The points between the ends of an edge: down through the vias of its rows."""
        points: list[Point] = []
        for r in range(self.rank[source] + 1, self.rank[target]):
            x = self.middle["via", source, name, r]
            points += [(x, y) for y in self.rows[r]]
        return points


def ranks(keys: list[Key], edges: list[Edge], pinned: dict[Key, str]) -> dict[Key, int]:
    """Rows by longest path. What hangs on nothing above, or less than on what is below it, moves
    down to where it is used."""
    rank = dict.fromkeys(keys, 0)
    below: dict[Key, list[Key]] = {k: [] for k in keys}
    above: dict[Key, list[Key]] = {k: [] for k in keys}
    for a, b, _ in edges:
        below[a].append(b)
        above[b].append(a)
    loose: set[Key] = set()
    for k in keys:
        rank[k] = max((rank[a] + 1 for a in above[k]), default=0)
        if pinned.get(k) != "top" and sum(a not in loose for a in above[k]) < len(below[k]):
            loose.add(k)
    for k in reversed(keys):
        if k in loose:
            rank[k] = min(rank[b] for b in below[k]) - 1
    last = max(rank.values(), default=0)
    rank.update((k, last) for k in keys if pinned.get(k) == "bottom")
    return rank


def ordered(rank: dict[Key, int], links: list[tuple[Key, Key]]) -> list[list[Key]]:
    """The keys row by row, reordered by the mean place of their neighbours, a few times."""
    rows: list[list[Key]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    for k, r in rank.items():
        rows[r].append(k)
    sides: tuple[dict[Key, list[Key]], dict[Key, list[Key]]] = ({}, {})
    for a, b in links:
        sides[0].setdefault(b, []).append(a)
        sides[1].setdefault(a, []).append(b)
    place = {k: i / max(len(row), 1) for row in rows for i, k in enumerate(row)}
    best, fewest = [list(row) for row in rows], crossings(rows, links)
    for sweep in range(SWEEPS):
        for row in rows if sweep % 2 == 0 else reversed(rows):
            near = sides[sweep % 2]
            row.sort(key=lambda k: mean([place[n] for n in near.get(k, ())], place[k]))
            place.update((k, i / len(row)) for i, k in enumerate(row))
        count = crossings(rows, links)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def crossings(rows: list[list[Key]], links: list[tuple[Key, Key]]) -> int:
    """How many pairs of links cross."""
    at = {k: (r, i) for r, row in enumerate(rows) for i, k in enumerate(row)}
    between: dict[int, list[tuple[int, int]]] = {}
    for a, b in links:
        between.setdefault(at[a][0], []).append((at[a][1], at[b][1]))
    count = 0
    for pairs in between.values():
        pairs.sort()
        count += sum(b > d for i, (_, b) in enumerate(pairs) for _, d in pairs[i + 1 :])
    return count


def spread(wish: list[float], apart: list[float], weight: list[float]) -> list[float]:
    """The x nearest to `wish` in weighted squares with x[i + 1] - x[i] >= apart[i]: after taking
    the distances off, an isotonic regression, by pooling neighbours that would overlap."""
    offset = [0.0]
    for d in apart:
        offset.append(offset[-1] + d)
    pools: list[tuple[float, float, int]] = []  # mean, weight, length
    for w, o, m in zip(wish, offset, weight, strict=False):
        pool = (w - o, m, 1)
        while pools and pools[-1][0] >= pool[0]:
            value, heavy, length = pools.pop()
            total = heavy + pool[1]
            pool = ((value * heavy + pool[0] * pool[1]) / total, total, length + pool[2])
        pools.append(pool)
    flat = [value for value, _, length in pools for _ in range(length)]
    return [f + o for f, o in zip(flat, offset, strict=False)]


def mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default
