"""Compile the simulator's kernels before any test does.

Two workers that begin at once would each compile all of them, and so would the processes that
they start: ``make test`` runs this beside the type checker. What is compiled already is loaded.
"""

from __future__ import annotations

import itertools

from xtune.sim.kernel import stepper


def main() -> None:
    """Every form of the kernel."""
    for by_table, extras in itertools.product((False, True), repeat=2):
        stepper(by_table=by_table, extras=extras)


if __name__ == "__main__":
    main()
