"""Execution traces of PyTorch and Chakra, two of them in archives, and a profiler's trace."""

from tests.expected._expected import Expected

EXPECTED = {
    "astra_custom_ring_allreduce_8npus.0.et": Expected(
        kind="chakra",
        rows={"collectives": 28},
        how="protobuf with the project's et_def: 14 COMM_SEND_NODE and 14 COMM_RECV_NODE",
    ),
    "astra_custom_ring_allreduce_8npus.1.et": Expected(
        kind="chakra",
        rows={"collectives": 28},
        how="protobuf with the project's et_def: 14 COMM_SEND_NODE and 14 COMM_RECV_NODE",
    ),
    "hta_benchmark_simple_add_et.json.gz": Expected(
        kind="chakra", how="zgrep -c record_param_comms is 0"
    ),
    "hta_benchmark_simple_add_trace.json.gz": Expected(
        kind="kineto",
        rows={"gpu_busy": 4},
        how="zgrep -ci -e nccl -e record_param_comms is 0; 3 spans of 4 kernels, and the whole",
    ),
    "mlcommons_1.0.2-chakra.0.0.4.tgz/1.0.2-chakra.0.0.4.json": Expected(
        kind="chakra",
        rows={"collectives": 10},
        how="jq '.nodes[] | select(.name == \"record_param_comms\")': 20, 10 of them 'wait'",
    ),
    "mlcommons_1.0.2-chakra.0.0.4.tgz/._1.0.2-chakra.0.0.4.json": Expected(
        kind=None, rejects=1, state="unknown", how="file: AppleDouble, a Mac's file attributes"
    ),
    "mlcommons_feeder_tests_trace.tar.gz/tests/data/chakra.0.et": Expected(
        kind="chakra",
        rows={"collectives": 7},
        how="strings | grep -c '^ncclKernel_': the other 14 COMM_COLL_NODE have is_cpu_op",
    ),
    "param_linear_et.json.gz": Expected(kind="chakra", how="zgrep -c record_param_comms is 0"),
    "param_resnet_2gpu_et.json.gz": Expected(
        kind="chakra",
        rows={"collectives": 21},
        how='zgrep -o \'"collective_name".*value": "[a-z]*\' | sort | uniq -c: 27 less 6 wait',
    ),
}
