/* What device code, compiled for the host, calls in the simulation. sim_device.h gives these their CUDA names. */
#ifndef SIM_DEVICE_HOOKS_H
#define SIM_DEVICE_HOOKS_H

#include <cstddef>
#include <cstdint>
#include <vector_types.h>

namespace sim
{

/* The running thread; set at every switch. */
extern uint3 current_thread, current_block;
extern dim3 current_block_shape, current_grid_shape;

inline unsigned linear_thread()
{
    return (current_thread.z * current_block_shape.y + current_thread.y) * current_block_shape.x + current_thread.x;
}

inline unsigned lane()
{
    return linear_thread() % 32;
}

/* What a lane of a warp brings to an operation of the whole warp; NULL for lanes that are not in it or have exited. */
using lane_records = void *const (&)[32];

/* Wait until every lane of `mask` that has not exited is here; the last one to arrive calls `work` on the records of
 * all. */
void collective(const char *operation, unsigned mask, void *record, void (*work)(lane_records), const char *file,
                int line);

/* Wait for all threads of the block that have not exited. Returns how many of them brought a true predicate. */
unsigned barrier(bool predicate, const char *file, int line);

/* Give the block's shared variable of `bytes` its initial, poisoned, content at its first use in each block. */
void shared_static(void *variable, size_t bytes, uint64_t *last_block);
void *shared_dynamic();

/* cp.async: between its issue and the wait for its group the destination holds poison, so that neither a reader that
 * does not wait nor one that still needs what was there goes unnoticed. What nobody waits for is reported when the
 * thread ends. */
void async_copy(void *to, const void *from, size_t bytes, size_t from_bytes); /* the rest becomes 0 */
void async_copy_commit();
void async_copy_wait(unsigned all_but); /* for all groups but the last `all_but` */

using trampoline = void (*)(const void *kernel, void *const *arguments);
void register_kernel(const void *kernel, trampoline call, const size_t *argument_bytes, size_t arguments);

[[noreturn]] void misaligned(const void *pointer, size_t alignment, const char *file, int line);

} // namespace sim

#endif
