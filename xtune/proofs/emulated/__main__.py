"""The engine on an emulated fabric: ``python -m xtune.proofs.emulated``; needs CAP_SYS_ADMIN.

Two leaves, two spines and four hosts as network namespaces; two flows that meet on one spine,
without the engine and with it; killed paths, killed probe agents. A table on the standard output,
all figures in the file that is named.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from xtune.errors import XtuneError
from xtune.policies import preset
from xtune.policies.presets import with_probes
from xtune.policies.spec import Policy, dumps, replace_fields
from xtune.proofs.emulated import scenarios
from xtune.proofs.emulated.fabric import Fabric, Shape
from xtune.proofs.emulated.measures import Plain
from xtune.proofs.emulated.stage import INTERVAL_S, Stage
from xtune.proofs.emulated.table import as_text

RATE_MBPS = 160.0  # of each flow: one fits on a link of 200, two do not


class Demonstration:
    """Runs scenarios, each with processes of its own, on one fabric.

    Args:
        fabric: The fabric.
        seconds: Length of the steady scenarios.
        repeats: Of the collision whose reaction is timed.
        seed: Of what is drawn at random.
    """

    def __init__(self, fabric: Fabric, seconds: float, repeats: int, seed: int) -> None:
        self._fabric = fabric
        self._seconds, self._repeats, self._seed = seconds, repeats, seed

    def udp(self) -> Plain:
        """Two flows of a fixed rate, off and on."""
        return self._off_and_on(lambda stage: scenarios.collision(stage, self._seconds))

    def tcp(self) -> Plain:
        """Two streams as fast as they go, off and on."""
        return self._off_and_on(lambda stage: scenarios.collision(stage, self._seconds, tcp=True))

    def bursts(self) -> Plain:
        """The second flow comes and goes, off and on."""
        return self._off_and_on(lambda stage: scenarios.bursts(stage, self._seconds))

    def reaction(self) -> Plain:
        """From onset to move."""
        return self._run(
            engine_policy(), lambda stage: scenarios.reaction(stage, self._repeats, self._seed)
        )

    def minute(self) -> Plain:
        """Both flows for a minute: how often do they move?"""
        return self._run(engine_policy(), lambda stage: scenarios.collision(stage, 60.0))

    def no_yield(self) -> Plain:
        """The same without yielding, for the steady length: what yielding is for."""
        policy = replace_fields(engine_policy(), {"routing.yield_ns": 0})
        return self._run(policy, lambda stage: scenarios.collision(stage, self._seconds))

    def path_killed(self) -> Plain:
        """The spine in use dies, returns, and the other one dies."""
        return self._run(engine_policy(), scenarios.path_killed)

    def both_killed(self) -> Plain:
        """Both spines die and return."""
        return self._run(engine_policy(), scenarios.both_killed)

    def agents_killed(self) -> Plain:
        """The probe agents die before the flows meet, and come back."""
        return self._run(engine_policy(), scenarios.agents_killed)

    def _off_and_on(self, scenario: Callable[[Stage], Plain]) -> Plain:
        return {"off": self._run(None, scenario), "on": self._run(engine_policy(), scenario)}

    def _run(self, policy: Policy | None, scenario: Callable[[Stage], Plain]) -> Plain:
        with tempfile.TemporaryDirectory(prefix="xtune-emulated-") as folder:
            with Stage(self._fabric, Path(folder), policy, RATE_MBPS) as stage:
                found = scenario(stage)
            if "window_ns" in found:
                found |= scenarios.logged(stage, found.pop("window_ns"))
            return found


SCENARIOS: dict[str, Callable[[Demonstration], Plain]] = {
    made.__name__: made
    for made in (
        Demonstration.udp, Demonstration.tcp, Demonstration.reaction, Demonstration.minute,
        Demonstration.no_yield, Demonstration.path_killed, Demonstration.both_killed,
        Demonstration.agents_killed, Demonstration.bursts,
    )
}  # fmt: skip


def engine_policy() -> Policy:
    """What the sending hosts route by."""
    return with_probes(preset("routing_only"), round(INTERVAL_S * 1e9), whole_flows=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios that are asked for.

    Args:
        arguments: Of the command line; the process's own by default.

    Returns:
        Exit status: 1 where the fabric cannot be made.
    """
    parser = argparse.ArgumentParser(prog="xtune.proofs.emulated", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the steady scenarios")
    parser.add_argument("--repeats", type=int, default=30, help="of the timed collision")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", action="append", choices=sorted(SCENARIOS),
                        help="may be repeated; all by default")  # fmt: skip
    parser.add_argument("--out", type=Path, help="a JSON file for all figures")
    chosen = parser.parse_args(arguments)
    shape = Shape()
    try:
        with Fabric(shape) as fabric:
            shown = Demonstration(fabric, chosen.seconds, chosen.repeats, chosen.seed)
            found: Plain = {}
            for name in chosen.scenario or SCENARIOS:
                found[name] = SCENARIOS[name](shown)
                print(as_text(name, found[name]), flush=True)
    except XtuneError as error:
        print(f"xtune.proofs.emulated: {error}", file=sys.stderr)
        return 1
    if chosen.out is not None:
        said = {
            "rate_mbps": RATE_MBPS, "link_mbps": shape.rate_mbps, "queue_bytes": shape.queue_bytes,
            "seconds": chosen.seconds, "repeats": chosen.repeats, "seed": chosen.seed,
            "probe_interval_s": INTERVAL_S, "policy": json.loads(dumps(engine_policy())),
            "scenarios": found,
        }  # fmt: skip
        chosen.out.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
