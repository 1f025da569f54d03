/* The bare movement of rung A's kernel, for a comparison of speed: the same arrays, walked and
 * updated for the same fragments step by step. Lossless leaf-spine, one lane, static paths, one
 * flow a host. No times within a step, no probes, no dependent flows, no choices. */
#include <stdint.h>

enum { FLOW, BYTES, NEXT, TAG, NODE };
enum { SRC, DST, SRC_LEAF, DST_LEAF, ENDS };
#define NIL 0xFFFFFFFFu
#define SPINE_AT 20

typedef struct {
    int64_t hosts, leaves, spines, xoff, xon, flow_width, size, to_send, delivered;
} Shape;

/* Runs until every flow is delivered. Returns the steps. */
int64_t bare_loop(const Shape *s, const int64_t *rate, uint32_t *head, uint32_t *tail,
                  int64_t *queued, int64_t *resident, uint8_t *paused, uint32_t *nodes,
                  const uint16_t *ends, const uint32_t *path, int64_t *flows)
{
    const uint64_t hosts = s->hosts, leaves = s->leaves, spines = s->spines;
    const uint64_t up = hosts, down = up + leaves * spines, out = down + leaves * spines;
    const uint64_t low[] = {out, down, up}, high[] = {out + hosts, out, down};
    uint32_t free_node = NIL, fresh = 0;
    int64_t left = s->hosts, step = 0;
    for (; left > 0; step++) {
        for (int tier = 0; tier < 3; tier++) {
            for (uint64_t p = low[tier]; p < high[tier]; p++) {
                uint32_t node = head[p];
                if (node == NIL || paused[p])
                    continue;
                int64_t room = rate[p];
                while (node != NIL && room > 0) {
                    int64_t size = nodes[node + BYTES];
                    uint32_t moved = node;
                    const uint32_t f = nodes[node + FLOW], tag = nodes[node + TAG];
                    const uint64_t spine = tag >> SPINE_AT;
                    const uint16_t *end = ends + (uint64_t)ENDS * f;
                    if (size > room) {
                        nodes[node + BYTES] = size - room;
                        size = room;
                        if (free_node == NIL) {
                            moved = fresh;
                            fresh += NODE;
                        } else {
                            moved = free_node;
                            free_node = nodes[free_node + NEXT];
                        }
                        nodes[moved + FLOW] = f;
                        nodes[moved + BYTES] = size;
                    } else {
                        node = nodes[node + NEXT];
                    }
                    room -= size;
                    uint64_t came = end[SRC];
                    if (tier == 1)
                        came = up + end[SRC_LEAF] * spines + spine;
                    else if (tier == 0 && end[SRC_LEAF] != end[DST_LEAF])
                        came = down + spine * leaves + end[DST_LEAF];
                    resident[came] -= size;
                    if (resident[came] < s->xon && paused[came])
                        paused[came] = 0;
                    if (tier == 0) {
                        int64_t *flow = flows + s->flow_width * f;
                        nodes[moved + NEXT] = free_node;
                        free_node = moved;
                        flow[s->delivered] += size;
                        left -= flow[s->delivered] == flow[s->size];
                        continue;
                    }
                    const uint64_t to =
                        tier == 1 ? out + end[DST] : down + spine * leaves + end[DST_LEAF];
                    nodes[moved + TAG] = tag;
                    nodes[moved + NEXT] = NIL;
                    queued[to] += size;
                    if (head[to] == NIL)
                        head[to] = moved;
                    else
                        nodes[tail[to] + NEXT] = moved;
                    tail[to] = moved;
                }
                head[p] = node;
                queued[p] -= rate[p] - room;
                if (tier > 0) {
                    resident[p] += rate[p] - room;
                    if (resident[p] > s->xoff)
                        paused[p] = 1;
                }
            }
        }
        for (uint64_t f = 0; f < hosts; f++) {
            int64_t *flow = flows + s->flow_width * f;
            const uint16_t *end = ends + (uint64_t)ENDS * f;
            const uint64_t host = end[SRC];
            if (flow[s->to_send] == 0 || paused[host])
                continue;
            const int64_t size = rate[host] < flow[s->to_send] ? rate[host] : flow[s->to_send];
            uint32_t moved = free_node;
            if (free_node == NIL) {
                moved = fresh;
                fresh += NODE;
            } else {
                free_node = nodes[free_node + NEXT];
            }
            flow[s->to_send] -= size;
            nodes[moved + FLOW] = (uint32_t)f;
            nodes[moved + BYTES] = size;
            nodes[moved + NEXT] = NIL;
            nodes[moved + TAG] = path[f] << SPINE_AT;
            const uint64_t to = end[SRC_LEAF] == end[DST_LEAF]
                                    ? out + end[DST]
                                    : up + end[SRC_LEAF] * spines + path[f];
            queued[to] += size;
            if (head[to] == NIL)
                head[to] = moved;
            else
                nodes[tail[to] + NEXT] = moved;
            tail[to] = moved;
            resident[host] += size;
            if (resident[host] > s->xoff)
                paused[host] = 1;
        }
    }
    return step;
}
