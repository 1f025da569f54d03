from __future__ import annotations

from collections import Counter
from itertools import pairwise

from xtune.policies import DirectedLink, PathFinder


def leaf_spine(leaves: int, spines: int, hosts: int) -> list[DirectedLink]:
    """Hosts h<leaf>.<n>, leaves l<i>, spines s<j>; links named <src>><dst>."""
    ends = [(f"h{a}.{n}", f"l{a}") for a in range(leaves) for n in range(hosts)]
    ends += [(f"l{a}", f"s{b}") for a in range(leaves) for b in range(spines)]
    both = [pair for a, b in ends for pair in ((a, b), (b, a))]
    return [DirectedLink(name=f"{a}>{b}", src=a, dst=b) for a, b in both]


def nodes(path: list[str]) -> list[str]:
    """The nodes a path visits, and a check that its links join."""
    steps = [link.split(">") for link in path]
    for before, after in pairwise(steps):
        assert before[1] == after[0]
    return [steps[0][0], *(step[1] for step in steps)]


def test_shortest_first_then_detours_all_loop_free() -> None:
    finder = PathFinder(leaf_spine(4, 4, 2))
    paths = finder.path_set("h0.0", "h2.1", ends=frozenset({"h0.0", "h2.1"}))
    assert [len(path) for path in paths] == [4, 4, 4, 4, 6, 6]
    assert {nodes(path)[2] for path in paths[:4]} == {"s0", "s1", "s2", "s3"}
    for path in paths:
        visited = nodes(path)
        assert visited[0] == "h0.0"
        assert visited[-1] == "h2.1"
        assert len(set(visited)) == len(visited)
    for path in paths[4:]:
        assert nodes(path)[3] in {"l1", "l3"}


def test_cap_and_determinism_and_no_way() -> None:
    links = leaf_spine(3, 8, 1)
    one = PathFinder(links).path_set("h0.0", "h1.0", cap=3, detours=0)
    other = PathFinder(reversed(links)).path_set("h0.0", "h1.0", cap=3, detours=0)
    assert one == other
    assert len(one) == 3
    assert PathFinder(links).path_set("h0.0", "h0.0") == []
    assert PathFinder(links).path_set("h0.0", "nowhere") == []
    assert PathFinder(links, seed=1).path_set("h0.0", "h1.0", cap=3, detours=0) != one


def test_one_switch_has_one_path_and_no_detour() -> None:
    paths = PathFinder(leaf_spine(1, 2, 3)).path_set("h0.0", "h0.1")
    assert paths == [["h0.0>l0", "l0>h0.1"]]


def test_hosts_forward_nothing() -> None:
    # A host on both leaves would be the only way around the broken spine links.
    links = [link for link in leaf_spine(2, 1, 2) if link.name != "l0>s0"]
    for leaf in ("l0", "l1"):
        links += [
            DirectedLink(name=f"{leaf}>dual", src=leaf, dst="dual"),
            DirectedLink(name=f"dual>{leaf}", src="dual", dst=leaf),
        ]
    pairs = [("h0.0", "h1.0"), ("h0.0", "dual"), ("h0.0", "h0.1")]
    sets = PathFinder(links).path_sets(pairs)
    assert set(sets) == {("h0.0", "dual"), ("h0.0", "h0.1")}
    assert sets["h0.0", "dual"] == [["h0.0>l0", "l0>dual"]]


def test_a_detour_does_not_go_through_a_host() -> None:
    links = leaf_spine(3, 1, 1)
    for leaf in ("l0", "l2"):
        links += [
            DirectedLink(name=f"{leaf}>dual", src=leaf, dst="dual"),
            DirectedLink(name=f"dual>{leaf}", src="dual", dst=leaf),
        ]
    finder = PathFinder(links)
    through = finder.path_set("h0.0", "h1.0")
    assert [len(path) for path in through] == [4, 6]
    assert "dual" in nodes(through[1])
    assert finder.path_set("h0.0", "h1.0", ends=frozenset({"dual"})) == through[:1]


def test_primaries_of_different_pairs_spread_over_the_spines() -> None:
    finder = PathFinder(leaf_spine(8, 4, 4))
    pairs = [(f"h0.{n}", f"h{b}.{m}") for n in range(4) for b in range(1, 8) for m in range(4)]
    sets = finder.path_sets(pairs, cap=4, detours=0)
    used = Counter(nodes(paths[0])[2] for paths in sets.values())
    # 112 primaries over 4 spines: 28 each on average; chi-squared, 3 degrees, 0.1 %: 16.3
    assert sum((used[f"s{j}"] - 28) ** 2 / 28 for j in range(4)) < 16.3
