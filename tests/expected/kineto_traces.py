"""Traces of PyTorch's profiler, from HolisticTraceAnalysis's tests."""

from __future__ import annotations

from tests.expected._expected import Expected

_KERNELS = (
    """zcat | jq '[.traceEvents[]|select(.cat=="kernel")|select(.name|test("nccl"))]|length'"""
)
_CALLS = (
    """zcat | jq '[.traceEvents[]|select(.cat=="user_annotation")|select(.name|test("^nccl:"))]"""
    "|length': no kernel of theirs is in the trace"
)
_NONE = "grep -ci nccl: 0"

# Rows of gpu_busy: spans of the kernels without "nccl" in their names, sorted by start, where one
# begins more than 10 us after all before it have ended; and one for the trace.

EXPECTED = {
    "hta_amd_trace_mi250_minitoy_train_ROCm6_2_kineto.json.gz": Expected(
        kind="kineto", rows={"gpu_busy": 15}, how=_NONE
    ),
    "hta_call_stack_backward_thread.json": Expected(
        kind="kineto", rows={"gpu_busy": 2}, how=_NONE
    ),
    "hta_critical_path_cuda_event_sync_multi_stream_event_sync_trace.json.gz": Expected(
        kind="kineto", rows={"gpu_busy": 4}, how=_NONE
    ),
    "hta_nccl_data_trim.json.gz": Expected(
        kind="kineto", rows={"collectives": 21, "gpu_busy": 280}, how=_KERNELS
    ),
    "hta_rank_non_gpu_rank_non_gpu.json.gz": Expected(
        kind="kineto", rows={"collectives": 6}, how=_CALLS
    ),
    "hta_rank_unavailable_rank_not_found.json.gz": Expected(
        kind="kineto", rows={"collectives": 6}, how=_CALLS
    ),
    "hta_trace_compare_base_base.json.gz": Expected(
        kind="kineto", rows={"collectives": 2, "gpu_busy": 5}, how=_CALLS
    ),
    "hta_trace_compare_test_test.json.gz": Expected(
        kind="kineto", rows={"collectives": 1, "gpu_busy": 4}, how=_CALLS
    ),
    "hta_trace_diff_control_rank3_of8_trim.json.gz": Expected(
        kind="kineto", rows={"collectives": 60, "gpu_busy": 196}, how=_KERNELS
    ),
    "hta_trace_diff_test_rank1_trim.json.gz": Expected(
        kind="kineto", rows={"collectives": 64, "gpu_busy": 106}, how=_KERNELS
    ),
    "hta_trace_filter_sampled_rank-0.json.gz": Expected(
        kind="kineto", rows={"collectives": 10, "gpu_busy": 900}, how=_KERNELS
    ),
    "hta_trace_filter_sampled_rank-1.json.gz": Expected(
        kind="kineto", rows={"collectives": 10, "gpu_busy": 858}, how=_KERNELS
    ),
    "hta_triton_example_triton_example.json.gz": Expected(
        kind="kineto", rows={"gpu_busy": 2}, how=_NONE
    ),
}
