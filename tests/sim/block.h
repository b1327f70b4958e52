/* Runs a grid: its blocks one after the other, the threads of a block as fibers.
 *
 * Threads switch only where they wait for each other, so what matters is in which order they run between two such
 * points. Mostly one warp runs until all of it waits at a barrier or has exited, then another, chosen at random: this
 * finds missing barriers that taking turns does not. Some seeds take turns, for what the first way hides.
 */
#ifndef SIM_BLOCK_H
#define SIM_BLOCK_H

#include "device_hooks.h"

namespace sim
{

struct grid {
    const void *kernel;
    trampoline call;
    void *const *arguments;
    dim3 blocks, threads;
    size_t shared_bytes;
};

const unsigned max_block_threads = 1024;

/* `launch` numbers the launches of a program: each one draws its own orders. */
void run_grid(const grid &grid, uint64_t launch);

} // namespace sim

#endif
