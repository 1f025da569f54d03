"""Where each figure of a phase lies in the kernel's flat arrays."""

from __future__ import annotations

import numpy as np

# What a call of ``advance`` ends with.
DONE, LIMIT, GROW, STUCK = 0, 1, 2, 3
STATIC, BINARY, SPRAY, POWER_OF_TWO, FLOWLET, SWITCH = 0, 1, 2, 3, 4, 5
READING, EWMA, SLOPE, HOLT = 0, 1, 2, 3
NO_BACKPRESSURE, PFC, CREDIT = 0, 1, 2

NIL = np.uint32(0xFFFFFFFF)

# cfg: int64 parameters, then the state that outlives a call.
(
    HOSTS, LEAVES, SPINES, LANES, PORTS, DT, LIMIT_STEP, KIND, XOFF, XON, BUFFER, PACKET, MODE,
    FORECAST, PAIRS, COLDEST, HORIZON, HOLD, GAP, UNIT, PROBE_STEPS, DELAY_STEPS, MAX_RATE,
    BY_FLOWS, STEP, FREE, FRESH, LIVE, ACTIVE, LEFT, WAITING_START, ON_WHEEL, READINGS, STAMP,
    STOP_STEPS, GO_STEPS, STOPS, STOPS_SEEN, GOES, GOES_SEEN, CFG_SIZE,
) = range(41)  # fmt: skip
# real: float64 parameters. The bands of a queue begin at BAND and the entries after it.
LEVEL_GAIN, SLOPE_GAIN, ENTER, EXIT, COLD, MOVES_PER_MS, BAND = range(7)
MOST_BANDS = 3
REAL_SIZE = BAND + MOST_BANDS
# A fragment: four uint32, so that those in flight stay in the cache. Its tag holds the spine, the
# slot of its segment, and when in its last step its last byte left the port before, in ticks.
# Unsigned, as all indices of the hot loop: a signed index pays a test for wrapping.
FLOW, BYTES, NEXT, TAG = (np.uint32(i) for i in range(4))
NODE_SIZE = 4
SPINE_AT, SLOT_AT = np.uint32(20), np.uint32(11)
SLOT_MASK, TICK_MASK = np.uint32(0x1FF), np.uint32(0x7FF)
MOST_SLOTS = 1 << 9
TICKS = 2047.0  # of a step
TICK = 1.0 / TICKS
# ends: uint16 columns.
SRC, DST, SRC_LEAF, DST_LEAF, ENDS = range(5)
# flow_u: uint32 columns.
PATH, RING, LANE, BACKGROUND, BEFORE, ROW, CHOICES = range(7)
FLOW_U = 8
# flow_i: int64 columns.
(
    SIZE, TO_SEND, DELIVERED, UNIT_LEFT, UNITS, MOVES, HELD, PREFIX, FIRST, LAST, START, RELEASE,
    ASKED, TURN, ROUND,
) = range(15)  # fmt: skip
FLOW_I = 16
# flow_f: float64 columns. LATE: by how much a flow's last bytes were behind their clock when they
# left the stage of ports before the deliveries; the columns after it: the stages before that one.
DONE_AT, RELEASED_AT, EXTRA, LATE = range(4)
# pairs: int64 columns of a flow's (primary, alternative) pair. USED: the place of the alternative
# in use among the flow's paths, -1 on the primary. The move budget is in an array of its own.
USED, MOVED_AT, REFILLED_AT, PAIR_SIZE = range(4)
# links: float64 columns. PLACED: flows that a switch has given the port, LEVEL: then its bytes.
LEVEL, RISE, PEAK, PLACED, LINK_SIZE = range(5)
BINS = 64  # of an occupancy histogram; one more holds what is above the buffer
