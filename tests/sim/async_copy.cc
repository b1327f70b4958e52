/* cp.async: copies into shared memory that a thread issues, gathers in groups, and waits for. */
#include "block_state.h"
#include "settings.h"

#include <cstring>
#include <vector>

namespace sim
{

namespace
{

struct copy {
    void *to;
    const void *from;
    size_t bytes, from_bytes;
    unsigned group;
};

/* Of each thread: what is in flight, and the number of the group that is being gathered. */
struct copies {
    std::vector<copy> in_flight;
    unsigned group;
};

copies of_thread[max_block_threads];

} // namespace

void async_copy(void *to, const void *from, size_t bytes, size_t from_bytes)
{
    copies &own = of_thread[running_thread];
    memset(to, 0xFF, bytes);
    own.in_flight.push_back({to, from, bytes, from_bytes, own.group});
}

void async_copy_commit()
{
    of_thread[running_thread].group++;
}

void async_copy_wait(unsigned all_but)
{
    copies &own = of_thread[running_thread];
    size_t done = 0;
    for (; done < own.in_flight.size() && own.in_flight[done].group + all_but < own.group; done++) {
        const copy &copy = own.in_flight[done];
        memcpy(copy.to, copy.from, copy.from_bytes);
        memset(static_cast<char *>(copy.to) + copy.from_bytes, 0, copy.bytes - copy.from_bytes);
    }
    own.in_flight.erase(own.in_flight.begin(), own.in_flight.begin() + long(done));
}

void async_copy_check()
{
    copies &own = of_thread[running_thread];
    if (!own.in_flight.empty())
        fatal(__FILE__, __LINE__, "thread %u of block (%u, %u, %u) exits with %zu asynchronous copies in flight",
              running_thread, current_block.x, current_block.y, current_block.z, own.in_flight.size());
    own.group = 0;
}

} // namespace sim
