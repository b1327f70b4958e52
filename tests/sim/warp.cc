/* Operations of a whole warp: shuffles, votes, __syncwarp, and the matrix instructions. */
#include "block_state.h"
#include "settings.h"

#include <cstring>

namespace sim
{

namespace
{

/* Whether every lane of `mask` waits for this very operation or has exited. A lane that waits with another mask may
 * still come; one with the same mask elsewhere never will. */
bool complete(const warp &warp, const waiting_lane &asked)
{
    if (((warp.in_operation | warp.exited) & asked.mask) != asked.mask) return false;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(asked.mask >> lane & 1) || (warp.exited >> lane & 1)) continue;
        const waiting_lane &other = warp.lanes[lane];
        if (other.mask != asked.mask) return false;
        if (other.line != asked.line || strcmp(other.operation, asked.operation) != 0)
            fatal(asked.file, asked.line, "%s with mask 0x%08x, while lane %u is at %s of %s:%d with the same mask",
                  asked.operation, asked.mask, lane, other.operation, other.file, other.line);
    }
    return true;
}

/* Do the work of a complete operation; its lanes can go on. */
void finish(warp &warp, const waiting_lane &asked)
{
    void *records[32] = {};
    uint32_t members = asked.mask & warp.in_operation;
    for (unsigned lane = 0; lane < 32; lane++)
        if (members >> lane & 1) records[lane] = warp.lanes[lane].record;
    if (asked.work) asked.work(records);
    warp.in_operation &= ~members;
    warp.ready |= members;
}

} // namespace

void collective(const char *operation, unsigned mask, void *record, void (*work)(lane_records), const char *file,
                int line)
{
    unsigned lane = running_thread % 32;
    warp &warp = warps[running_thread / 32];
    if (!(mask >> lane & 1)) fatal(file, line, "%s by lane %u, which is not in the mask 0x%08x", operation, lane, mask);
    warp.lanes[lane] = {operation, file, line, mask, record, work};
    warp.in_operation |= 1u << lane;
    if (complete(warp, warp.lanes[lane])) {
        finish(warp, warp.lanes[lane]);
        warp.ready &= ~(1u << lane); // this one just runs on
    } else {
        give_way();
    }
}

void lane_exited(warp &warp)
{
    for (uint32_t left = warp.in_operation; left; left &= left - 1) {
        unsigned lane = unsigned(__builtin_ctz(left));
        if (!(warp.in_operation >> lane & 1)) continue; // completed with one before it
        if (complete(warp, warp.lanes[lane])) finish(warp, warp.lanes[lane]);
    }
}

} // namespace sim
