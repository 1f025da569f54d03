"""What an agent logs is what the collector reads."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.collectors_nccl.helpers import context, read_bytes, read_path
from xtune.collectors.probes import COLLECTOR
from xtune.policies.probe.config import Path as ProbedPath
from xtune.policies.probe.config import make_config
from xtune.policies.probe.log import ProbeLog
from xtune.policies.probe.packet import UNKNOWN, Signal
from xtune.policies.probe.tally import Outcome

PATH = ProbedPath(
    name='h0>l"0', local=("10.0.0.1", 0), remote=("10.0.0.2", 1), dst="h1", number=3, link="0x1/1"
)
AT_NS = 1_700_000_000_123_456_789
shares = st.none() | st.floats(0, 1)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.builds(Signal, shares, shares, st.none() | st.floats(-300, 300)), st.integers(0, 10**12))
def test_lines_come_back_as_rows(tmp_path: Path, signal: Signal, rtt_ns: int) -> None:
    (tmp_path / "probes-h0").unlink(missing_ok=True)
    log = ProbeLog(str(tmp_path / "probes-%h"), "h0", 10**6)
    log.write(log.prefix(PATH), Outcome(AT_NS, rtt_ns, signal))
    log.write(log.prefix(PATH), Outcome(AT_NS + 1, None, UNKNOWN))
    log.close()
    file = tmp_path / "probes-h0"
    assert COLLECTOR.claim(file, file.read_bytes()) > 0.9
    read = read_path(COLLECTOR, file)
    assert not read.rejects and not read.notes
    answered, lost = read.rows
    assert (answered["ts"], answered["rtt_ns"], answered["lost"]) == (AT_NS, rtt_ns, False)
    assert (lost["ts"], lost["rtt_ns"], lost["lost"]) == (AT_NS + 1, None, True)
    for row in read.rows:
        assert (row["src"], row["dst"], row["path"], row["link"]) == ("h0", "h1", 3, "0x1/1")
        assert dict(row["extra"]) == {"name": 'h0>l"0'}
    for column, value in zip(
        ("occupancy", "error_rate", "signal_margin"), signal[:3], strict=True
    ):
        assert lost[column] is None and (answered[column] is None) == (value is None)
        assert value is None or math.isclose(answered[column], value, rel_tol=1e-9)


def test_the_log_stops_at_its_cap_and_counts(tmp_path: Path) -> None:
    log = ProbeLog(str(tmp_path / "log"), "h0", 10**6)
    prefix = log.prefix(PATH)
    log.write(prefix, Outcome(AT_NS, 5, UNKNOWN))
    log.close()
    log.write(prefix, Outcome(AT_NS, 5, UNKNOWN))
    length = (tmp_path / "log").stat().st_size
    again = ProbeLog(str(tmp_path / "log"), "h0", 3 * length)
    for _ in range(5):
        again.write(prefix, Outcome(AT_NS, 5, UNKNOWN))
    again.close()
    assert (tmp_path / "log").stat().st_size == 3 * length
    assert (log.dropped, again.dropped) == (1, 3)


def test_a_full_disk_ends_the_log_and_nothing_else() -> None:
    log = ProbeLog("/dev/full", "h0", 10**9)
    for _ in range(1000):
        log.write(log.prefix(PATH), Outcome(AT_NS, 5, UNKNOWN))
    log.flush()
    log.close()
    assert log.dropped > 0


def test_bad_lines_cost_themselves(tmp_path: Path) -> None:
    good = b'{"xtune_probe":1,"ts_ns":5,"lost":false,"rtt_ns":7,"occupancy":2,"path":0}\n'
    bad = b'{"xtune_probe":1,"ts_ns":5}\n{"lost":true}\nnonsense\n'
    newer = b'{"xtune_probe":2,"ts_ns":6,"lost":true,"rtt_ns":7,"signal_margin":NaN,"hops":3}\n'
    read = read_bytes(COLLECTOR, good + bad + newer, tmp_path, ctx=context(host="h9"))
    assert len(read.rejects) == 3 and read.note("newer version").count == 1
    first, second = read.rows
    assert (first["rtt_ns"], first["occupancy"], first["path"], first["src"]) == (7, None, 0, "h9")
    assert (second["rtt_ns"], second["signal_margin"]) == (None, None)
    assert dict(second["extra"]) == {"hops": "3"}


def test_the_documented_configuration_is_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
    said = page.partition("# probe.toml;")[2].partition("\n")[2].partition("\nThere are also")[0]
    config = make_config(tomllib.loads(said))
    assert config.paths[0].remote == ("10.0.0.2", 4790) and config.listen
    assert config.paths[0].sources["occupancy"] == {"tc": "eth0"}
