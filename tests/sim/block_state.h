/* The block that is running, between block.cc (which thread goes on) and warp.cc (who waits for whom in a warp). */
#ifndef SIM_BLOCK_STATE_H
#define SIM_BLOCK_STATE_H

#include "block.h"

namespace sim
{

/* Where a thread waits, and with what. */
struct waiting_lane {
    const char *operation, *file;
    int line;
    unsigned mask;
    void *record;
    void (*work)(lane_records);
};

/* Sets of lanes. A lane is in none of them while it runs. */
struct warp {
    uint32_t ready, in_operation, at_barrier, exited;
    waiting_lane lanes[32];
};

extern warp warps[max_block_threads / 32];
extern unsigned running_thread;

/* The running thread has been put into a set: go on with another one. Returns when it is its turn again. */
void give_way();

/* Complete the warp operations that waited only for a lane that has exited now. */
void lane_exited(warp &warp);

/* For the running thread, which ends: nothing may be in flight. */
void async_copy_check();

} // namespace sim

#endif
