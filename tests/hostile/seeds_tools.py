"""Seeds of the collectors of what command line tools print."""

from __future__ import annotations

import json
from typing import Any

from tests.hostile.seed import Seed, lines

_PERFQUERY = lines(
    "# Port counters: Lid 5 port 1 (CapMask: 0x5A00)",
    "PortSelect:......................1",
    "CounterSelect:...................0x0000",
    "SymbolErrorCounter:..............3",
    "LinkErrorRecoveryCounter:........0",
    "LinkDownedCounter:...............255",
    "PortRcvErrors:...................0",
    "PortXmitDiscards:................7",
    "PortXmitData:....................4294967295",
    "PortRcvData:.....................77",
    "PortXmitPkts:....................300",
    "PortRcvPkts:.....................200",
    "PortXmitWait:....................12",
    "# Port extended counters: Lid 5 port 1 (CapMask: 0x5A00 CapMask2: 0x0000000)",
    "PortSelect:......................1",
    "CounterSelect:...................0x00000000",
    "PortXmitData:....................8589934599",
    "PortRcvData:.....................77",
    "PortXmitPkts:....................300",
    "PortRcvPkts:.....................200",
    "PortUnicastXmitPkts:.............300",
    "SymbolErrorCounter:..............3",
    "QP1Dropped:......................0",
)
_ERRORS = lines(
    'Errors for "h1 mlx5_0, with a comma"',
    "   GUID 0xc1 port 1: [SymbolErrorCounter == 7] [PortXmitWait == 4294967295]",
    'Errors for 0xa1 "leaf"',
    "   GUID 0xa1 port ALL: [PortXmitDiscards == 5] [PortXmitWait == 99]",
    "   GUID 0xa1 port 3: [PortXmitDiscards == 5] [PortXmitWait == 99]",
    "ibwarn: [77] mad_rpc: _do_madrpc failed; dport (Lid 4)",
    "",
    "## Summary: 2 nodes checked, 2 bad nodes found",
    "##          3 ports checked, 2 ports have errors beyond threshold",
)


def _mlxlink() -> dict[str, Any]:
    return {
        "result": {
            "output": {
                "Operational Info": {
                    "State": "Active",
                    "Physical state": "LinkUp",
                    "Speed": "IB-NDR",
                    "Width": "4x",
                    "FEC": "Ethernet_Consortium_LL_50G_RS_FEC_PLR -(272,257+1)",
                },
                "Module Info": {
                    "Temperature [C]": "61 [-10..80]",
                    "SNR Media Lanes [dB]": {"values": ["21.5", "N/A", "22.0", "21.0"]},
                    "Rx Power Current [dBm]": "3.583,N/A,3.233,2.658 [-9.914..6.999]",
                },
                "Physical Counters and BER Info": {
                    "Time Since Last Clear [Min]": "10.5",
                    "Effective Physical Errors": "0",
                    "Effective Physical BER": "15E-255",
                    "Raw Physical BER": "1E-9",
                    "Raw Physical Errors Per Lane": "11,700,3,5",
                    "Raw Physical BER Per Lane": {"values": ["1E-10", "1E-9", "4E-10", "N/A"]},
                    "Link Down Counter": "2",
                    "Link Error Recovery Counter": "0",
                    "Symbol Errors": "0",
                },
                "Histogram of FEC Errors": {
                    "Header": {"values": ["Range", "Occurrences"]},
                    **{f"Bin {n}": {"values": [f"[{n}]", 10**9 >> n]} for n in range(12)},
                },
            }
        },
        "status": {"code": 0, "message": "success"},
    }


_MLXLINK_TEXT = lines(
    "root@h1:~# mlxlink -d mlx5_0 -p 1 -m -c",
    "",
    "Operational Info",
    "----------------",
    "State                              : Active",
    "Physical state                     : LinkUp",
    "Speed                              : IB-NDR",
    "Width                              : 4x",
    "",
    "Module Info",
    "-----------",
    "Temperature [C]                    : 61 [-10..80]",
    "",
    "Physical Counters and BER Info",
    "------------------------------",
    "Time Since Last Clear [Min]        : 10.5",
    "Effective Physical BER             : 15E-255",
    "Raw Physical BER                   : 1E-9",
    "Link Down Counter                  : 2",
)
_TESTS_HEAD = (
    "# nThread 1 nGpus 1 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 "
    "agg iters: 1 validation: 1 graph: 0",
    "#",
    "# Using devices",
    "#  Rank  0 Group  0 Pid    100 on     node-0 device  0 [0000:00:00] Some GPU",
    "#  Rank  1 Group  0 Pid    101 on     node-0 device  1 [0000:01:00] Some GPU",
    "#",
    "#                                                              out-of-place"
    "                       in-place",
    "#       size         count      type   redop    root     time   algbw   busbw  #wrong"
    "     time   algbw   busbw  #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    "             (us)  (GB/s)  (GB/s)",
)
_TESTS = lines(
    "# Collective test starting: all_reduce_perf",
    *_TESTS_HEAD,
    "     4194304       1048576     float     sum      -1   1000.0    4.19    4.19       0"
    "    500.0    8.39    8.39     N/A",
    "     8388608       2097152     float     sum      -1   1000.0    8.39    8.39       0"
    "   1000.0    8.39    8.39       0",
    "# Out of bounds values : 0 OK",
    "# Avg bus bandwidth    : 7.34",
)


def _report() -> dict[str, Any]:
    result = {
        "size": 1 << 22,
        "count": 1 << 20,
        "type": "bfloat16",
        "redop": "sum",
        "root": "    -1",
        "out_of_place": {"time": 1000.0, "alg_bw": 4.194304, "bus_bw": 6.291456, "nwrong": 0},
        "in_place": {"time": 500.0, "alg_bw": 8.388608, "bus_bw": 12.582912, "nwrong": None},
        "actual_iterations": 20,
    }
    devices = [
        {"rank": n, "group": 0, "pid": 7, "hostname": f"node-{n}", "device": 0} for n in (0, 2)
    ]
    return {
        "version": 3,
        "start_time": "2026-01-31 08:00:00",
        "args": ["/opt/nccl-tests/build/all_reduce_perf", "-J", "out.json"],
        "nccl_version": 22902,
        "config": {"nthreads": 1, "ngpus": 2, "iterations": 20, "devices": devices},
        "results": [result],
        "average_bus_bandwidth": {"bandwidth": 9.4, "okay": "unchecked"},
    }


_UFM = {
    "timestamp": "2024-03-05 16:26:11",
    "type": "full",
    "values": [
        {
            "timestamp": 1_709_652_347_161_873 + n,
            "source_id": f"0x{0xC0 + n:016x}",
            "node_guid": f"0x{0xC0 + n:016x}",
            "port_guid": f"0x{0xC0 + n:016x}",
            "port_num": 1,
            "Infiniband_MBOut_u_Gb": 4086720,
            "Infiniband_MBIn_u_Gb": 4087008,
            "Infiniband_PckOut_u_Packets": 14190,
            "Infiniband_SymbolErrors_u_Errors": 0,
            "hist0": 12345,
            "hist1": 3,
        }
        for n in range(3)
    ],
}
_UFM_CSV = lines(
    "timestamp,source_id,node_guid,port_guid,port_num,PortXmitDataExtended,SymbolErrorCounter",
    *(
        f"{1_709_652_347_161_873 + n},0xc1,0x00000000000000c1,0x00000000000000c1,1,{4000 + n},0"
        for n in range(3)
    ),
)
_COUNTERS = lines(
    "timestamp,host,device,port,port_xmit_data,port_rcv_data,port_xmit_packets,symbol_error",
    *(f"{1_700_000_000 + n},h1,mlx5_0,1,{5_000_000_000 + n},77,12,0" for n in range(4)),
)
_TIMELINE = lines(
    "# Counter timeline during RETRY_EXC_ERR",
    "# trial,counter_name,offset_us,old_val,new_val,delta",
    "0,roce_adp_retrans,18126,269,270,1",
    "0,roce_adp_retrans,33761,270,271,1",
    "0,local_ack_timeout_err,898153,30,31,1",
)
_SWITCH = lines(
    "=================================================",
    "Quantum Mellanox Technologies",
    "=================================================",
    "part number        | MQM8700-HS2F",
    "serial number      | MT0000X00000",
    "product name       | Jaguar Unmng IB 200",
    "ports              | 80",
    "PSID               | MT_0000000000",
    "GUID               | 0x00000000000000a1",
    "firmware version   | 27.2008.2102",
    "-------------------------------------------------",
    "uptime (d-h:m:s)   | 160d-10:38:53",
    "-------------------------------------------------",
    "PSU0 status        | OK",
    "     DC power      | OK",
    "     power (W)     | 55",
    "PSU1 status        | ERROR",
    "-------------------------------------------------",
    "temperature (C)    | 51",
    "max temp (C)       | 52",
    "fan status         | OK",
    "fan#1 (rpm)        | 6125",
    "-------------------------------------------------",
)

SEEDS = {
    "counters_csv": Seed(form="text", inputs=(_COUNTERS, _TIMELINE)),
    "ibswinfo": Seed(form="text", inputs=(_SWITCH,), named_late=True),
    "ufm": Seed(form="json", inputs=(json.dumps(_UFM, indent=1).encode(), _UFM_CSV)),
    "perfquery": Seed(form="text", inputs=(_PERFQUERY,), last=r"\nPortXmitWait:\.+"),
    "ibqueryerrors": Seed(form="text", inputs=(_ERRORS,)),
    "mlxlink": Seed(
        form="json",
        inputs=(json.dumps(_mlxlink(), indent=1).encode(), _MLXLINK_TEXT),
    ),
    "nccl_tests": Seed(
        form="json",
        inputs=(json.dumps(_report()).encode(), json.dumps(_report(), indent=1).encode(), _TESTS),
    ),
}
