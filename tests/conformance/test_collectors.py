"""The conformance suite over each of our collectors, on a small input counted by hand."""

from __future__ import annotations

from pathlib import Path

from tests.hostile.seeds import SEEDS
from xtune.collectors import all_collectors
from xtune.testing import CollectorConformance


class Seeded(CollectorConformance):
    """Fixture and context are the first seed of the hostile tests."""

    def fixture(self, folder: Path) -> Path:
        seed = SEEDS[self.name]
        return seed.place(folder, seed.inputs[0])

    def __init_subclass__(cls) -> None:
        cls.context = dict(SEEDS[cls.name].context)
        cls.claimed = SEEDS[cls.name].claimed


class TestChakra(Seeded):
    name = "chakra"
    rows = {"collectives": 3}


class TestCountersCsv(Seeded):
    name = "counters_csv"
    rows = {"link_counters": 4}


class TestDecisions(Seeded):
    name = "decisions"
    rows = {"decisions": 4}


class TestEthtool(Seeded):
    name = "ethtool"
    rows = {"link_counters": 2, "ports": 2}


class TestFlightRecorder(Seeded):
    name = "flight_recorder"
    rows = {"collectives": 3}


class TestIbSysfs(Seeded):
    name = "ib_sysfs"
    rows = {"ports": 2, "link_counters": 2}


class TestIbdiagnet(Seeded):
    name = "ibdiagnet"
    rows = {"ports": 2, "link_counters": 3, "topology_links": 2}


class TestIbdiagnetDump(Seeded):
    name = "ibdiagnet_dump"
    rows = {"ports": 2, "topology_links": 2}


class TestIbdiagnetPorts(Seeded):
    name = "ibdiagnet_ports"
    rows = {"ports": 2, "link_counters": 2}


class TestIbnetdiscover(Seeded):
    name = "ibnetdiscover"
    rows = {"ports": 4, "topology_links": 4}


class TestIbqueryerrors(Seeded):
    name = "ibqueryerrors"
    rows = {"link_counters": 2, "ports": 2}


class TestIbswinfo(Seeded):
    name = "ibswinfo"
    rows = {"ports": 1, "link_signal": 1}


class TestKineto(Seeded):
    name = "kineto"
    rows = {"collectives": 3, "gpu_busy": 2}


class TestLayerGradients(Seeded):
    name = "layer_gradients"
    rows = {"layer_gradients": 8}


class TestLossMegatron(Seeded):
    name = "loss_megatron"
    rows = {"steps": 5}


class TestLossMllog(Seeded):
    name = "loss_mllog"
    rows = {"steps": 3}


class TestLossTable(Seeded):
    name = "loss_table"
    rows = {"steps": 4}


class TestLossTensorboard(Seeded):
    name = "loss_tensorboard"
    rows = {"steps": 4}


class TestLossText(Seeded):
    name = "loss_text"
    rows = {"steps": 5}


class TestLossWandb(Seeded):
    name = "loss_wandb"
    rows = {"steps": 8}


class TestMlxlink(Seeded):
    name = "mlxlink"
    rows = {"ports": 1, "link_counters": 1, "link_signal": 5}


class TestNcclDebug(Seeded):
    name = "nccl_debug"
    rows = {"collectives": 5}


class TestNcclInspector(Seeded):
    name = "nccl_inspector"
    rows = {"collectives": 5}


class TestNcclInspectorProm(Seeded):
    name = "nccl_inspector_prom"
    rows = {"collectives": 2}


class TestNcclProfiler(Seeded):
    name = "nccl_profiler"
    rows = {"collectives": 2}


class TestNcclTests(Seeded):
    name = "nccl_tests"
    rows = {"collectives": 2}


class TestNsight(Seeded):
    name = "nsight"
    rows = {"collectives": 3}


class TestPerfquery(Seeded):
    name = "perfquery"
    rows = {"link_counters": 1}


class TestProbes(Seeded):
    name = "probes"
    rows = {"link_probes": 4}


class TestPrometheus(Seeded):
    name = "prometheus"
    rows = {"link_counters": 5, "ports": 2}


class TestPrometheusText(Seeded):
    name = "prometheus_text"
    rows = {"link_counters": 3, "ports": 3}


class TestRocprof(Seeded):
    name = "rocprof"
    rows = {"collectives": 3}


class TestTelegraf(Seeded):
    name = "telegraf"
    rows = {"link_counters": 6}


class TestUfm(Seeded):
    name = "ufm"
    rows = {"ports": 3, "link_counters": 3, "link_signal": 3}


def test_every_collector_has_its_suite() -> None:
    ours = {n for n, c in all_collectors().items() if type(c).__module__.startswith("xtune.")}
    assert {suite.name for suite in Seeded.__subclasses__()} == ours
