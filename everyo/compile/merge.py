"""Disjoint groups of nodes that are joined two by two, and never come to depend on themselves.

Groups lie in a line, producers first. Two groups may be joined if no path leads from one through
others to the other. What lies on a path lies between the two in the line, and it is searched from
both ends at once: whichever side is exhausted first tells, and is moved out of the way. So a join
costs about as much as the smaller side is large, and long graphs are grouped in linear time.
"""

from collections.abc import Iterable, Mapping

from everyo.compile.ir import Node

END = -1  # before the first group of the line and after the last


class Groups:
    """Groups by number. `group` and `members` are each other's inverse; `after` and `before` hold
    the groups that read a group, and those that it reads. `visited` counts the groups that searches
    went through."""

    def __init__(
        self, group: dict[Node, int], users: Mapping[Node, set[Node]], line: Iterable[int]
    ) -> None:
        """`line`: the numbers in an order that is right; empty if `settle` is called later."""
        self.group, self.users = group, users
        self.members: dict[int, list[Node]] = {}
        for n, g in group.items():
            self.members.setdefault(g, []).append(n)
        self.after: dict[int, set[int]] = {g: set() for g in self.members}
        self.before: dict[int, set[int]] = {g: set() for g in self.members}
        for n, readers in users.items():
            if n in group:
                g = group[n]
                for t in {group[u] for u in readers} - {g}:
                    self.after[g].add(t)
                    self.before[t].add(g)
        self.visited = 0
        self._spans: dict[Node, tuple[int, int]] = {}
        self.settle(line)

    def settle(self, line: Iterable[int]) -> None:
        """Put the groups in a line."""
        order = list(line)
        self.place: dict[int, float] = {g: float(i) for i, g in enumerate(order)}
        self.next = dict(zip([END, *order], [*order, END], strict=True))
        self.last = {g: p for p, g in self.next.items()}

    def join(self, a: int, b: int) -> bool:
        """Make one group of two, as a; False if it would depend on itself."""
        first, second = sorted((a, b), key=self.place.__getitem__)
        if self._leads_on(first, second):
            return False
        found = self._between(first, second)
        if found is None:
            return False
        moved, follow = found
        self._move(
            sorted(moved, key=self.place.__getitem__), second if follow else self.last[first]
        )
        self._replace(a, b, second if follow else first)
        return True

    def _leads_on(self, first: int, second: int) -> bool:
        """Whether a path through another group can be read off a tree of the nodes.

        The tree grows depth first, towards what was traced first. In a long program and its
        gradient it has the paths from each step through all later ones and back.
        """
        if not self._spans:
            self._spans = _spans(self.group, self.users)
        spans, goals = self._spans, [self._spans[n][0] for n in self.members[second]]
        for n in self.members[first]:
            for u in self.users.get(n, ()):
                low, high = spans[u]
                if self.group[u] not in (first, second) and any(low <= x < high for x in goals):
                    return True
        return False

    def _between(self, first: int, second: int) -> tuple[set[int], bool] | None:
        """Groups to be moved so that both can lie side by side, and whether those are what follows
        the first; None if a path leads through them."""
        low, high = self.place[first], self.place[second]
        follow: set[int] = set()
        precede: set[int] = set()
        down, up = [first], [second]
        while True:
            g = down.pop()
            for t in self.after[g]:
                if t == second and g != first:
                    return None
                if t not in follow and self.place[t] < high:
                    follow.add(t)
                    down.append(t)
            if not down:
                return follow, True
            g = up.pop()
            for t in self.before[g]:
                if t == first and g != second:
                    return None
                if t not in precede and self.place[t] > low:
                    precede.add(t)
                    up.append(t)
            if not up:
                return precede, False
            self.visited += 2

    def _move(self, groups: list[int], at: int) -> None:
        """Take groups out of the line and put them behind `at`."""
        if not groups:
            return
        for g in groups:
            self._unlink(g)
        step = self._gap(at) / (len(groups) + 1)
        if not self._apart(at, step):
            self.settle(self._line())
            step = self._gap(at) / (len(groups) + 1)
        start = self._start(at)
        for i, g in enumerate(groups, 1):
            self.place[g] = start + i * step
            self._link(at, g)
            at = g

    def _start(self, at: int) -> float:
        return self.place[at] if at != END else self.place[self.next[END]] - 1

    def _gap(self, at: int) -> float:
        """The room behind a group, or before the first one."""
        after = self.next[at]
        return 1.0 if END in (at, after) else self.place[after] - self.place[at]

    def _apart(self, at: int, step: float) -> bool:
        """Whether numbers this far apart are different."""
        return self._start(at) + step / 4 != self._start(at)

    def _line(self) -> list[int]:
        line = [self.next[END]]
        while self.next[line[-1]] != END:
            line.append(self.next[line[-1]])
        return line

    def _link(self, at: int, g: int) -> None:
        after = self.next[at]
        self.next[at], self.last[g] = g, at
        self.next[g], self.last[after] = after, g

    def _unlink(self, g: int) -> None:
        before, after = self.last.pop(g), self.next.pop(g)
        self.next[before], self.last[after] = after, before

    def _replace(self, a: int, b: int, at: int) -> None:
        """Both groups become a, in the place of one of them."""
        behind, place = self.last[at], self.place[at]
        other = b if at == a else a
        if behind == other:
            behind = self.last[other]
        self._unlink(a)
        self._unlink(b)
        self._link(behind, a)
        self.place[a] = place
        del self.place[b]
        for n in self.members[b]:
            self.group[n] = a
        self.members[a] += self.members.pop(b)
        for mine, theirs in ((self.after, self.before), (self.before, self.after)):
            far = mine.pop(b)
            for t in far - {a}:
                theirs[t].discard(b)
                theirs[t].add(a)
            mine[a] |= far
            mine[a] -= {a, b}


def _spans(nodes: Iterable[Node], users: Mapping[Node, set[Node]]) -> dict[Node, tuple[int, int]]:
    """Depth-first numbers: what lies below a node in the tree has a number in its range."""
    start: dict[Node, int] = {}
    spans: dict[Node, tuple[int, int]] = {}
    for root in nodes:
        stack = [root] if root not in start else []
        while stack:
            n = stack[-1]
            if n not in start:
                start[n] = len(start)
                readers = sorted(users.get(n, ()), key=lambda u: -u.index)
                stack += [u for u in readers if u not in start]
            else:
                spans.setdefault(stack.pop(), (start[n], len(start)))
    return spans
