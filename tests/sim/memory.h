/* The devices' memory: one reserved range of addresses that the host may touch only while stream work runs.
 *
 * New memory holds 0xFF (NaN, −1), freed memory 0xFE for as long as possible before it is given out again. Between two
 * allocations lies a strip that nobody may write. All functions want the runtime's lock held.
 */
#ifndef SIM_MEMORY_H
#define SIM_MEMORY_H

#include <cstddef>
#include <cstdint>

namespace sim
{

enum class place { pageable, pinned, device };

/* Of `size` ≥ 1 bytes, aligned to 256; NULL when the device has no more. */
void *device_allocate(int device, size_t size);
size_t device_bytes_used(int device);

/* False: `pointer` is not what device_allocate gave, or not any more. */
bool device_release(void *pointer);

void *pinned_allocate(size_t size);
bool pinned_release(void *pointer);
bool pin(void *pointer, size_t size); /* memory of the program's own; false: part of it is pinned already */
bool unpin(void *pointer);

struct location {
    place where;
    int device; /* −1: host */
};
location locate(const void *pointer);

/* Whether [pointer, pointer + size) lies in one live allocation on the device; `what` names it in the explanation. */
bool on_device(int device, const void *pointer, size_t size, const char *what);

/* For an operation that runs: ends the program when the memory it was given is not there any more. */
void must_be_on_device(int device, const void *pointer, size_t size, const char *what);

/* Whether a host range that begins in pinned memory ends in it, and one that begins elsewhere is not the device's. */
bool on_host(const void *pointer, size_t size, const char *what);

/* Lets this process touch device memory while it lives. */
class device_access
{
  public:
    device_access();
    ~device_access();
    device_access(const device_access &) = delete;
    device_access &operator=(const device_access &) = delete;
};

} // namespace sim

#endif
