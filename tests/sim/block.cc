#include "block.h"

#include "block_state.h"
#include "fiber.h"
#include "random.h"
#include "settings.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sim
{

uint3 current_thread, current_block;
dim3 current_block_shape, current_grid_shape;
warp warps[max_block_threads / 32];
unsigned running_thread;

namespace
{

const size_t static_shared_limit = 48 * 1024, dynamic_shared_limit = 227 * 1024;

/* How the next thread is chosen; drawn for each grid. */
struct order {
    bool in_turns; /* else warp by warp */
    bool backward, random_warps;
    unsigned rotation; /* the lane that comes first */
};

fiber fibers[max_block_threads];
unsigned fibers_created;
fiber home;
uint3 thread_indices[max_block_threads];

const grid *running_grid;
order running_order;
generator choices(0);
unsigned threads, exited, at_barrier;
const char *barrier_file;
int barrier_line;
unsigned barrier_votes, barrier_result;

uint64_t block_number; /* blocks that have begun, of all grids */
size_t static_shared_bytes;
char *dynamic_shared;

unsigned warp_count()
{
    return (threads + 31) / 32;
}

order draw_order(uint64_t launch)
{
    uint64_t seed = options().seed;
    if (seed < 2) return {false, seed == 1, false, 0};
    generator draw(seed * 0x9E3779B97F4A7C15 + launch);
    return {seed % 4 == 3, bool(draw.below(2)), true, unsigned(draw.below(32))};
}

unsigned first_lane(uint32_t ready)
{
    unsigned r = running_order.rotation;
    uint32_t turned = r ? ready >> r | ready << (32 - r) : ready;
    unsigned lane = unsigned(running_order.backward ? 31 - __builtin_clz(turned) : __builtin_ctz(turned));
    return (lane + r) % 32;
}

/* A warp that has a ready lane; warp_count() when there is none. */
unsigned choose_warp()
{
    uint32_t able = 0;
    for (unsigned w = 0; w < warp_count(); w++)
        if (warps[w].ready) able |= 1u << w;
    if (!able) return warp_count();
    if (!running_order.random_warps)
        return unsigned(running_order.backward ? 31 - __builtin_clz(able) : __builtin_ctz(able));
    for (uint64_t skip = choices.below(unsigned(__builtin_popcount(able))); skip > 0; skip--) able &= able - 1;
    return unsigned(__builtin_ctz(able));
}

/* The next ready thread after the running one, going round; `threads` when there is none. */
unsigned next_in_turn()
{
    for (unsigned step = 1; step <= threads; step++) {
        unsigned t = (running_order.backward ? running_thread + threads - step : running_thread + step) % threads;
        if (warps[t / 32].ready >> (t % 32) & 1) return t;
        if (!warps[t / 32].ready) { // skip the rest of this warp
            unsigned rest = running_order.backward ? t % 32 : std::min(31 - t % 32, threads - 1 - t);
            step += rest;
        }
    }
    return threads;
}

unsigned choose_thread()
{
    if (running_order.in_turns) return next_in_turn();
    unsigned w = running_thread / 32;
    if (!warps[w].ready) w = choose_warp();
    return w == warp_count() ? threads : w * 32 + first_lane(warps[w].ready);
}

[[noreturn]] void report_deadlock()
{
    for (unsigned t = 0; t < threads; t++) {
        const warp &warp = warps[t / 32];
        if (!(warp.in_operation >> (t % 32) & 1)) continue;
        const waiting_lane &lane = warp.lanes[t % 32];
        fatal(lane.file, lane.line,
              "deadlock: thread %u of block (%u, %u, %u) waits at %s for mask 0x%08x; %u threads are at a barrier, %u "
              "have exited",
              t, current_block.x, current_block.y, current_block.z, lane.operation, lane.mask, at_barrier, exited);
    }
    fatal(__FILE__, __LINE__, "deadlock in a block without waiting lanes");
}

void resume(fiber &from, unsigned thread, bool ends)
{
    warps[thread / 32].ready &= ~(1u << (thread % 32));
    running_thread = thread;
    current_thread = thread_indices[thread];
    if (&fibers[thread] != &from) fiber_switch(from, fibers[thread], ends);
}

void go_on(bool ends)
{
    fiber &from = fibers[running_thread];
    unsigned next = choose_thread();
    if (next < threads) return resume(from, next, ends);
    if (exited < threads) report_deadlock();
    fiber_switch(from, home, ends);
}

void release_barrier()
{
    barrier_result = barrier_votes;
    at_barrier = 0;
    barrier_votes = 0;
    for (unsigned w = 0; w < warp_count(); w++) {
        warps[w].ready |= warps[w].at_barrier;
        warps[w].at_barrier = 0;
    }
}

[[noreturn]] void thread_main()
{
    fiber_entered();
    running_grid->call(running_grid->kernel, running_grid->arguments);
    async_copy_check();
    exited++;
    warp &warp = warps[running_thread / 32];
    warp.exited |= 1u << (running_thread % 32);
    lane_exited(warp);
    if (at_barrier > 0 && at_barrier == threads - exited) release_barrier();
    go_on(true);
    abort(); // nobody switches to an exited thread
}

/* Poisoned memory of `bytes` whose end is the end of what may be touched. */
void *fresh_dynamic_shared(size_t bytes)
{
    static char *pool;
    if (!pool) {
        size_t page = size_t(sysconf(_SC_PAGESIZE));
        void *memory = mmap(nullptr, dynamic_shared_limit + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        size_t usable = (dynamic_shared_limit + page - 1) / page * page;
        if (memory == MAP_FAILED || mprotect(memory, usable, PROT_READ | PROT_WRITE) != 0)
            fatal(__FILE__, __LINE__, "no memory for a block's shared memory");
        pool = static_cast<char *>(memory) + usable;
    }
    char *begin = pool - (bytes + 15) / 16 * 16;
    memset(begin, 0xFF, bytes);
    return begin;
}

void start_block(dim3 shape)
{
    block_number++;
    exited = at_barrier = barrier_votes = 0;
    static_shared_bytes = 0;
    memset(warps, 0, sizeof warps);
    for (unsigned w = 0; w < max_block_threads / 32; w++) {
        unsigned present = threads > w * 32 ? std::min(threads - w * 32, 32u) : 0;
        warps[w].ready = present == 32 ? ~0u : (1u << present) - 1;
        warps[w].exited = ~warps[w].ready; // lanes that a short last warp lacks
    }
    unsigned t = 0;
    for (unsigned z = 0; z < shape.z; z++)
        for (unsigned y = 0; y < shape.y; y++)
            for (unsigned x = 0; x < shape.x; x++) thread_indices[t++] = {x, y, z};
    for (; fibers_created < threads; fibers_created++) fiber_create(fibers[fibers_created], fibers_created);
    for (t = 0; t < threads; t++) fiber_start(fibers[t], t, thread_main);
}

void run_block(const grid &grid, uint64_t index)
{
    current_block = {unsigned(index % grid.blocks.x), unsigned(index / grid.blocks.x % grid.blocks.y),
                     unsigned(index / grid.blocks.x / grid.blocks.y)};
    start_block(grid.threads);
    dynamic_shared = static_cast<char *>(fresh_dynamic_shared(grid.shared_bytes));
#if SIM_ASAN // what rounding adds
    char *end = dynamic_shared + grid.shared_bytes;
    size_t rounding = (16 - grid.shared_bytes % 16) % 16;
    __asan_poison_memory_region(end, rounding);
#endif
    if (running_order.random_warps)
        running_thread = unsigned(choices.below(threads));
    else
        running_thread = running_order.backward ? threads - 1 : 0;
    resume(home, choose_thread(), false);
#if SIM_ASAN
    __asan_unpoison_memory_region(end, rounding);
#endif
}

} // namespace

void give_way()
{
    go_on(false);
}

unsigned barrier(bool predicate, const char *file, int line)
{
    if (at_barrier == 0) {
        barrier_file = file;
        barrier_line = line;
    } else if (barrier_line != line || strcmp(barrier_file, file) != 0) {
        fatal(file, line, "thread %u of block (%u, %u, %u) is at a barrier here, others at that of %s:%d",
              running_thread, current_block.x, current_block.y, current_block.z, barrier_file, barrier_line);
    }
    barrier_votes += predicate;
    at_barrier++;
    warp &warp = warps[running_thread / 32];
    warp.at_barrier |= 1u << (running_thread % 32);
    if (at_barrier == threads - exited) release_barrier();
    give_way();
    return barrier_result;
}

void shared_static(void *variable, size_t bytes, uint64_t *last_block)
{
    if (*last_block == block_number) return;
    *last_block = block_number;
    memset(variable, 0xFF, bytes);
    static_shared_bytes += bytes;
    if (static_shared_bytes > static_shared_limit)
        fatal(__FILE__, __LINE__, "a block declares %zu bytes of shared memory, more than %zu", static_shared_bytes,
              static_shared_limit);
}

void *shared_dynamic()
{
    return dynamic_shared;
}

void misaligned(const void *pointer, size_t alignment, const char *file, int line)
{
    fatal(file, line, "thread %u of block (%u, %u, %u) accesses %p, which is not aligned to %zu bytes", running_thread,
          current_block.x, current_block.y, current_block.z, pointer, alignment);
}

void run_grid(const grid &grid, uint64_t launch)
{
    static thread_local bool adopted;
    static thread_local fiber own;
    if (!adopted) fiber_adopt_thread(own);
    adopted = true;
    home = own;
    running_grid = &grid;
    running_order = draw_order(launch);
    choices = generator(options().seed + launch * 0x9E3779B97F4A7C15);
    threads = grid.threads.x * grid.threads.y * grid.threads.z;
    current_block_shape = grid.threads;
    current_grid_shape = grid.blocks;

    uint64_t blocks = uint64_t(grid.blocks.x) * grid.blocks.y * grid.blocks.z;
    if (running_order.random_warps) {
        for (uint32_t index : choices.permutation(uint32_t(blocks))) run_block(grid, index);
    } else {
        for (uint64_t i = 0; i < blocks; i++) run_block(grid, running_order.backward ? blocks - 1 - i : i);
    }
}

} // namespace sim
