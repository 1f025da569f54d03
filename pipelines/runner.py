"""``rebuild``: compaction, rates, levels, episodes, causes and cost, only where inputs changed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from xtune.errors import LakeError, NoDataError, XtuneError
from xtune.executor import open_executor, workers_of
from xtune.lake import BusyError, Lake, mend_of, torn
from xtune.pipelines._chunks import DAY_ROWS
from xtune.pipelines._clocks import Clocks
from xtune.pipelines._compaction import compact
from xtune.pipelines._day_steps import DayContext
from xtune.pipelines._days import fabric_digests, refresh_days, stale_days
from xtune.pipelines._engine import Session
from xtune.pipelines._final import Finish
from xtune.pipelines._inventory import Inventory
from xtune.pipelines._missing import forget_missing
from xtune.pipelines._parts import Parts
from xtune.pipelines._refresh import Refresher
from xtune.pipelines._source import code_digest, source_digest
from xtune.pipelines._state import FOLDER, State
from xtune.pipelines._summary import RebuildSummary, ShardSummary, summarize
from xtune.pipelines._tables import day_tables
from xtune.pipelines._topology import Topology
from xtune.pipelines._work import Shard, Work, memory_share
from xtune.pipelines.rules import EpisodeRules
from xtune.tables import TABLES

Progress = Callable[[int, str], None]
_EVER_NS = 2**63 - 1
# The lock that shards share, and that whoever deletes what they may read has for itself.
_SHARDS = "shards"
_WAIT_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """Where the work of a rebuild is done.

    Attributes:
        name: ``local`` or ``dask``.
        workers: Processes that share it; one with ``local`` is this one, with its threads.
        scheduler: Address of a Dask cluster that runs; empty: one on this host.
    """

    name: str = "local"
    workers: int = 1
    scheduler: str = ""

    @contextmanager
    def open(self, work: Work) -> Iterator[Work]:
        """The same work, with an executor where there is to be one.

        Processes on this host share its memory and threads; those of a cluster that runs
        elsewhere have the memory each, and one thread.
        """
        if self.name == "local" and self.workers == 1:
            yield work
            return
        with open_executor(self.name, self.workers, self.scheduler) as executor:
            here = not self.scheduler or self.name == "local"
            threads = (work.threads or os.cpu_count() or 1) // self.workers if here else 1
            yield replace(
                work,
                executor=executor,
                workers=workers_of(executor),
                worker_memory=memory_share(work.memory, self.workers) if here else work.memory,
                worker_threads=max(1, threads),
            )


def rebuild(
    lake: Lake,
    *,
    rules: EpisodeRules | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    memory: str | None = None,
    threads: int | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    day_rows: int = DAY_ROWS,
) -> RebuildSummary:
    """Bring every derived table up to date.

    A killed rebuild leaves the tables as after its last commit; the next one goes on from there.
    What shards computed meanwhile is taken; the tables are the same whoever computed what.

    Args:
        lake: Where.
        rules: What counts as congestion.
        since: Partitions that end before are left as they are.
        until: Partitions that begin after are left as they are.
        memory: Most memory DuckDB uses, such as ``2GB``.
        threads: Threads DuckDB uses.
        engine: Where the work is done; None is here.
        progress: Told the number of steps done and the one begun.
        day_rows: Rows of a day up to which it is one partition; a larger one is cut into hours.

    Raises:
        NoDataError: The lake holds nothing to rebuild from.
        LakeError: Another rebuild is running, or the lake is damaged.
        UsageError: The engine is not known, not installed, or not there.
    """
    report = progress or (lambda done, text: None)
    _check_telemetry(lake)
    first = Work(rules=rules or EpisodeRules(), memory=memory, threads=threads)
    span = _ns(since, 0), _ns(until, _EVER_NS)
    with _naming_damage(lake), lake.exclusive("rebuild"), (engine or Engine()).open(first) as work:
        forget_missing(lake)
        state = State.load(lake.root)
        with work.connect(lake.scratch("derived/link_rates")) as session:
            report(0, "compaction")
            compacted = compact(
                lake,
                session,
                day_rows,
                state=state,
                executor=work.executor,
                memory=work.worker_memory,
                threads=work.worker_threads,
            )
            inventory, context = _look(lake, session, state, work)
            tables = day_tables()
            early = [table for table in tables if table.before_rates]
            days = refresh_days(early, context, state, lambda text: report(0, text), *span)
            inventory.clocks = Clocks.read(lake)
            code = code_digest(work.rules)
            refresher = Refresher(lake, state, inventory, code, work, session, day_rows)
            refreshed = refresher.run(*span, report)

            def show(text: str) -> None:
                report(len(refresher.keys), text)

            finish = Finish(
                session=session, state=state, inventory=inventory, context=context, code=code
            )
            days += finish.run(show, *span)
            state.save(sweep=False)
            context = replace(context, fabric=fabric_digests(inventory, work.rules, state))
            late = [table for table in tables if not table.before_rates]
            days += refresh_days(late, context, state, show, *span)
            _sweep(lake, state, refresher.keys if since is None and until is None else [])
        return summarize(lake, state, inventory, refreshed, days, compacted)


def rebuild_shard(
    lake: Lake,
    shard: Shard,
    *,
    rules: EpisodeRules | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    memory: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    day_rows: int = DAY_ROWS,
) -> ShardSummary:
    """Compute one share of the links of ``link_rates``, for a later :func:`rebuild` to take.

    Shards may run at once, on hosts that share the lake's folder, in any order, and again; two of
    the same do no harm. A shard changes no table. What it has done when it is killed counts.

    Args:
        lake: Where.
        shard: Which share.
        rules: As the rebuild's.
        since: As the rebuild's.
        until: As the rebuild's.
        memory: Most memory DuckDB uses.
        threads: Threads DuckDB uses.
        progress: Told the number of partitions done and the one begun.
        day_rows: As the rebuild's.

    Raises:
        NoDataError: The lake holds nothing to rebuild from.
        LakeError: The lake is damaged.
    """
    report = progress or (lambda done, text: None)
    _check_telemetry(lake)
    work = Work(rules=rules or EpisodeRules(), memory=memory, threads=threads, shard=shard)
    span = _ns(since, 0), _ns(until, _EVER_NS)
    with (
        _naming_damage(lake),
        lake.shared(_SHARDS),
        work.connect(lake.scratch("derived/link_rates")) as session,
    ):
        report(0, "clocks")
        _make_early(lake, session, work, span)
        state = State.load(lake.root)
        inventory, _ = _look(lake, session, state, work)
        inventory.clocks = Clocks.read(lake)
        code = code_digest(work.rules)
        refresher = Refresher(lake, state, inventory, code, work, session, day_rows)
        return ShardSummary(partitions=tuple(refresher.run(*span, report).computed))


def plan_rebuild(
    lake: Lake,
    *,
    rules: EpisodeRules | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    day_rows: int = DAY_ROWS,
) -> ShardSummary:
    """What :func:`rebuild` would compute; changes no table.

    Days of tables that are made from other derived tables are told by what these hold now.

    Raises:
        NoDataError: The lake holds nothing to rebuild from.
        LakeError: The lake is damaged.
    """
    _check_telemetry(lake)
    work = Work(rules=rules or EpisodeRules())
    span = _ns(since, 0), _ns(until, _EVER_NS)
    with _naming_damage(lake), ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xtune-")))
        session = stack.enter_context(work.connect(scratch))
        if os.access(lake.ledger.folder, os.W_OK):
            stack.enter_context(lake.shared(_SHARDS))
            state = State.load(lake.root)
        else:  # on a read-only disk: what planning learns goes to a copy
            if (lake.root / FOLDER).is_dir():
                shutil.copytree(lake.root / FOLDER, scratch / FOLDER)
            state = State.load(scratch)
        inventory, context = _look(lake, session, state, work)
        inventory.clocks = Clocks.read(lake)
        code = code_digest(work.rules)
        refresher = Refresher(lake, state, inventory, code, work, session, day_rows)
        return ShardSummary(
            partitions=tuple(refresher.stale(*span)),
            days=tuple(stale_days(day_tables(), context, state, *span)),
            dry_run=True,
        )


@contextmanager
def _naming_damage(lake: Lake) -> Iterator[None]:
    """Where something fails on a file that is gone or torn, say which one."""
    try:
        yield
    except XtuneError:
        raise
    except Exception as error:
        for file, what in torn(f for name in TABLES for f in lake.files(name)):
            raise LakeError(what, mend_of(file)) from error
        raise


def _check_telemetry(lake: Lake) -> None:
    if any(lake.files(name) for name, table in TABLES.items() if not table.derived):
        return
    if lake.inputs():
        raise NoDataError(
            "the lake holds no telemetry any more: it was pruned", "derived tables are kept"
        )
    raise NoDataError("the lake holds no telemetry", "run xtune collect first")


def _look(lake: Lake, session: Session, state: State, work: Work) -> tuple[Inventory, DayContext]:
    """What the raw tables name, and what every day of every table shares."""
    inventory = Inventory(lake, session, state)
    context = DayContext(
        lake=lake,
        identity=inventory.identity,
        topology=Topology.build(inventory.topology, inventory.identity),
        rules=work.rules,
        code=source_digest(),
        fabric=fabric_digests(inventory, work.rules, state),
        connect=lambda: session.apart(work.rules.to_json()),
    )
    return inventory, context


def _make_early(lake: Lake, session: Session, work: Work, span: tuple[int, int]) -> None:
    """Make what ``link_rates`` rests on, or wait for who is doing it."""
    early = [table for table in day_tables() if table.before_rates]
    while True:
        state = State.load(lake.root)
        _, context = _look(lake, session, state, work)
        if not stale_days(early, context, state, *span):
            return
        with suppress(BusyError), lake.exclusive("rebuild"):
            state = State.load(lake.root)
            _, context = _look(lake, session, state, work)
            refresh_days(early, context, state, lambda text: None, *span)
            return
        time.sleep(_WAIT_S)


def _sweep(lake: Lake, state: State, keys: Iterable[str]) -> None:
    """Keep the state, and delete what nothing needs any more, unless a shard might read it."""
    try:
        with lake.exclusive(_SHARDS):
            state.save()
            Parts(lake.root).sweep(set(keys))
    except BusyError:
        state.save(sweep=False)


def _ns(moment: datetime | None, default: int) -> int:
    if moment is None:
        return default
    delta = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * 10**9 + delta.microseconds * 1000
