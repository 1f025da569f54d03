"""Brings day tables up to date, in the order they are given; one commit a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xtune.pipelines._chunks import by_time
from xtune.pipelines._day_steps import Day, DayContext, DaysDone, DayStep, DayWork, publish_days
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._state import State, digest
from xtune.pipelines._tables import DayInput, DayTable, Rest
from xtune.pipelines.rules import EpisodeRules


def fabric_digests(inventory: Inventory, rules: EpisodeRules, state: State) -> dict[Rest, str]:
    """Digests of what a table may rest on beside its inputs, as the state is now."""
    identity = inventory.identity
    names = (identity.hosts, identity.guids, identity.nodes, identity.facts, identity.host_of)
    return {
        "identity": digest(
            [sorted((str(k), repr(v)) for k, v in of.items()) for of in names],
            sorted(identity.host_of_guid.items()),
        ),
        "topology": digest(inventory.topology),
        "rules": digest(rules.to_json()),
        "last_samples": digest(
            [p.carry for key in by_time(state.chunks)[-1:] for p in state.chunks[key].parts]
        ),
    }


def refresh_days(
    tables: Iterable[DayTable],
    context: DayContext,
    state: State,
    progress: Callable[[str], None],
    since_ns: int = 0,
    until_ns: int = 2**63 - 1,
) -> DaysDone:
    """Make the stale days of tables.

    A day stays as it is when telemetry that it was made from was pruned since.
    """
    done = DaysDone()
    for table in tables:
        work = DayWork(_step(table, context), context, state)
        work.run(progress, since_ns, until_ns)
        done += publish_days(context.lake, state, [work])
    return done


def stale_days(
    tables: Iterable[DayTable], context: DayContext, state: State, since_ns: int, until_ns: int
) -> list[str]:
    """Days of tables that would be made, as far as their inputs are there by now."""
    return [
        day.key
        for table in tables
        for day in DayWork(_step(table, context), context, state).stale(since_ns, until_ns)
    ]


def _step(table: DayTable, context: DayContext) -> DayStep:
    def run(given: DayInput, day: Day) -> list[str]:
        notes = table.prepare(given) if table.prepare is not None else []
        given.session.create(table.name)
        return notes

    return DayStep(
        name=table.name,
        outputs=(table.name,),
        inputs=table.inputs,
        rests=digest(context.code, *(context.fabric[part] for part in table.rests_on)),
        run=run,
        span=table.span,
        reach_days=table.reach_days,
    )
