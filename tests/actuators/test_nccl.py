"""NCCL's environment: legal values, and what is put back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.compress import ranks
from xtune.policies.actuators.base import Refused
from xtune.policies.actuators.nccl import NcclEnvironment, NcclSettings


def test_block_by_hand() -> None:
    settings = NcclSettings(qps_per_connection=4, split_data_on_qps=1, tc=106, sl=0)
    assert settings.environment() == {
        "NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1",
        "NCCL_IB_TC": "106", "NCCL_IB_SL": "0",
    }  # fmt: skip
    more = NcclSettings(adaptive_routing=1, ar_threshold=8192, fifo_tc=184)
    shown = subprocess.run(
        ["sh", "-c", more.shell() + "env"], capture_output=True, text=True, check=True, env={}
    ).stdout.split()
    assert {line for line in shown if line.startswith("NCCL")} == {
        "NCCL_IB_ADAPTIVE_ROUTING=1", "NCCL_IB_AR_THRESHOLD=8192", "NCCL_IB_FIFO_TC=184"
    }  # fmt: skip


@pytest.mark.parametrize(("name", "good", "bad"), [
    ("qps_per_connection", (1, 128), (0, 129)), ("split_data_on_qps", (0, 1), (-1, 2)),
    ("tc", (0, 255), (-1, 256)), ("fifo_tc", (0, 255), (-1, 256)), ("sl", (0, 15), (-1, 16)),
    ("adaptive_routing", (0, 1), (2, True)), ("ar_threshold", (0, 8192), (-1, 1.5)),
])  # fmt: skip
def test_legal_values(name: str, good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    for value in good:
        assert NcclSettings(**{name: value}).environment() == {
            f"NCCL_IB_{name.upper()}": f"{value}"
        }
    for value in bad:
        with pytest.raises(ValueError, match=f"NCCL_IB_{name.upper()}={value}: must be"):
            NcclSettings(**{name: value})


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="SPLIT_DATA_ON_QPS=1 does nothing"):
        NcclSettings(qps_per_connection=1, split_data_on_qps=1)
    with pytest.raises(ValueError, match="AR_THRESHOLD does nothing"):
        NcclSettings(ar_threshold=1, adaptive_routing=0)


def test_variables_are_put_back() -> None:
    environment = {"NCCL_IB_QPS_PER_CONNECTION": "2", "HOME": "/"}
    actuator = NcclEnvironment(environment, 4, NcclSettings(tc=106), per_path=2)
    actuator.apply([1, 1, 0, 1])
    assert environment["NCCL_IB_QPS_PER_CONNECTION"] == "6"
    assert environment["NCCL_IB_SPLIT_DATA_ON_QPS"] == "1" and environment["NCCL_IB_TC"] == "106"
    actuator.apply([1, 0, 0, 0])
    assert environment["NCCL_IB_QPS_PER_CONNECTION"] == "2"
    environment["NCCL_IB_TC"] = "1"  # somebody else's
    actuator.undo()
    actuator.undo()
    assert environment == {"NCCL_IB_QPS_PER_CONNECTION": "2", "HOME": "/", "NCCL_IB_TC": "1"}


def test_unequal_shares_are_not_what_queue_pairs_can_do() -> None:
    environment: dict[str, str] = {}
    with pytest.raises(Refused, match="evenly"):
        NcclEnvironment(environment, 2).apply([1, 3])
    assert environment == {}
    with pytest.raises(ValueError, match="1 to 128"):
        NcclEnvironment(environment, 65, per_path=2)
    with pytest.raises(ValueError, match="leave queue pairs"):
        NcclEnvironment(environment, 2, NcclSettings(split_data_on_qps=0))


def what_it_says(rank: int, world: int) -> str | None:
    return NcclEnvironment({}, 2).check()


def test_it_is_too_late_once_there_is_a_process_group() -> None:
    assert ranks.run(0, what_it_says) == [None]
    (said,) = ranks.run(1, what_it_says)
    assert said is not None and said.startswith("a process group exists already")


def test_a_check_does_not_load_torch() -> None:
    code = (
        "import sys\n"
        "from xtune.policies.actuators.nccl import NcclEnvironment\n"
        "assert NcclEnvironment({}, 2).check() is None and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
