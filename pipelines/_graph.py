"""Strongly connected components: what is in a circle, and what waits for nothing beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

Node = int | tuple[str, int]


def order(node: Node) -> tuple[str, int]:
    """Sorts numbers before pairs."""
    return ("", node) if isinstance(node, int) else node


def components(edges: Mapping[Node, Iterable[Node]]) -> list[list[Node]]:
    """Strongly connected components, each sorted; each comes after all that it leads to.

    Source: Tarjan, Depth-first search and linear graph algorithms, 1972, without recursion.
    """
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    found: list[list[Node]] = []
    work: list[tuple[Node, Iterator[Node]]] = []

    def enter(node: Node) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        work.append((node, iter(sorted(edges.get(node, ()), key=order))))

    for start in sorted(edges, key=order):
        if start not in index:
            enter(start)
        while work:
            node, onward = work[-1]
            other = next(onward, None)
            if other is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    circle = [stack.pop()]
                    while circle[-1] != node:
                        circle.append(stack.pop())
                    on_stack.difference_update(circle)
                    found.append(sorted(circle, key=order))
            elif other not in index:
                enter(other)
            elif other in on_stack:
                low[node] = min(low[node], index[other])
    return found


def reaching(edges: Mapping[Node, Iterable[Node]], targets: Iterable[Node]) -> set[Node]:
    """All nodes from which a way leads to any of the targets, which are among them."""
    into: dict[Node, list[Node]] = {}
    for node, onward in edges.items():
        for other in onward:
            into.setdefault(other, []).append(node)
    found = set(targets)
    work = list(found)
    while work:
        for before in into.get(work.pop(), ()):
            if before not in found:
                found.add(before)
                work.append(before)
    return found
