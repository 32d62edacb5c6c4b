"""Boxes of an array (starts, steps, sizes), and whether they have elements in common.

Boxes in a line are put in order, so each new one is compared with its neighbours alone; others are
compared with each other, as long as they are few.
"""

from bisect import bisect
from collections.abc import Iterable

FEW = 16  # boxes in general position are compared pairwise up to so many
Box = tuple[tuple[int, ...], ...]  # starts, steps, sizes


class Room:
    """Boxes that have no element in common; `add` says whether another one is one of them."""

    def __init__(self) -> None:
        self.boxes: list[Box] = []
        self.axis: int | None = None  # the only one in which they differ, without gaps inside
        self.ends: list[tuple[int, int]] = []  # along that axis, in order

    def add(self, box: Box) -> bool:
        """False if it has an element in common with another one, or if that takes too long to
        tell; the room is of no use then."""
        if self.boxes:
            axis = _axis(self.boxes[0], box)
            if len(self.boxes) == 1 and axis is not None:
                self.axis, self.ends = axis, [_ends(self.boxes[0], axis)]
            elif axis != self.axis and box != self.boxes[0]:
                self.axis = None
        fits = self._apart(box) if self.axis is None else self._beside(box, self.axis)
        self.boxes.append(box)
        return fits

    def _beside(self, box: Box, axis: int) -> bool:
        low, high = ends = _ends(box, axis)
        at = bisect(self.ends, ends)
        free = at == 0 or self.ends[at - 1][1] <= low
        free = free and (at == len(self.ends) or high <= self.ends[at][0])
        self.ends.insert(at, ends)
        return free

    def _apart(self, box: Box) -> bool:
        return len(self.boxes) < FEW and all(apart(box, other) for other in self.boxes)


def _axis(a: Box, b: Box) -> int | None:
    """The only axis in which two boxes differ, if neither has gaps there."""
    sides = zip(zip(*a, strict=True), zip(*b, strict=True), strict=True)
    axes = [i for i, (x, y) in enumerate(sides) if x != y]
    return axes[0] if len(axes) == 1 and a[1][axes[0]] == b[1][axes[0]] == 1 else None


def _ends(box: Box, axis: int) -> tuple[int, int]:
    start, _, size = (side[axis] for side in box)
    return start, start + size


def disjoint(boxes: Iterable[Box]) -> bool:
    """Whether no two boxes have an element in common; False if that takes too long to tell."""
    room = Room()
    return all(room.add(box) for box in boxes)


def apart(a: Box, b: Box) -> bool:
    """Whether two boxes have no element in common."""
    for start, step, size, begin, stride, count in zip(*a, *b, strict=True):
        one = sorted((start, start + step * (size - 1)))
        two = sorted((begin, begin + stride * (count - 1)))
        if one[1] < two[0] or two[1] < one[0] or not size or not count:
            return True
        if abs(step) == abs(stride) and (start - begin) % abs(step):
            return True
    return False
