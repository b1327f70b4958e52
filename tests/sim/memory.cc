#include "memory.h"

#include "fiber.h"
#include "settings.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#if SIM_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace sim
{

namespace
{

const size_t arena_bytes = size_t(8) << 30, alignment = 256, strip_bytes = 256, quarantine_bytes = 64 << 20;
const size_t huge_page = size_t(2) << 20;
const unsigned char strip_fill = 0xFC, new_fill = 0xFF, freed_fill = 0xFE;

size_t rounded(size_t size, size_t to)
{
    return (size + to - 1) / to * to;
}

struct allocation {
    size_t size;
    int device;
    bool live;
};

struct host_range {
    size_t size;
    bool ours; /* allocated here, else registered */
};

struct arena {
    char *base;
    size_t opened; /* bytes from the base that have ever been in use; beyond them nothing may be touched */
    int depth;     /* of device_access */
    std::map<char *, allocation> allocations; /* live and in quarantine */
    std::map<char *, size_t> gaps;            /* free again, with their strips */
    std::deque<char *> quarantine;
    size_t quarantined;
    std::vector<size_t> used; /* by device */
    std::map<char *, host_range> pinned;
};

struct sigaction action_before;

void explain_access(int signal, siginfo_t *info, void *context);

arena &memory()
{
    static arena *const arena = [] {
        auto *a = new struct arena();
        void *base =
            mmap(nullptr, arena_bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) fatal(__FILE__, __LINE__, "no address space for device memory");
        a->base = reinterpret_cast<char *>(rounded(reinterpret_cast<uintptr_t>(base), huge_page));
        madvise(a->base, arena_bytes, MADV_HUGEPAGE); // protecting small pages takes longer than most kernels do
        a->used.resize(size_t(options().devices));
        return a;
    }();
    static const bool installed = [] {
        struct sigaction action = {};
        action.sa_sigaction = explain_access;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        return sigaction(SIGSEGV, &action, &action_before) == 0;
    }();
    (void)installed;
    return *arena;
}

/* Say what a segmentation fault in the arena means; then whoever was asked before has it. */
void explain_access(int, siginfo_t *info, void *)
{
    arena &a = memory();
    char *address = static_cast<char *>(info->si_addr);
    if (address >= a.base && address < a.base + arena_bytes)
        explain("%s device memory at %p", a.depth > 0 ? "outside all allocations in" : "the host touches",
                info->si_addr);
    sigaction(SIGSEGV, &action_before, nullptr); // the instruction faults once more
}

void protect(const arena &a, int protection)
{
    if (a.opened && mprotect(a.base, rounded(a.opened, huge_page), protection) != 0)
        fatal(__FILE__, __LINE__, "mprotect: %s", strerror(errno));
}

void poison(void *from, size_t bytes)
{
#if SIM_ASAN
    __asan_poison_memory_region(from, bytes);
#else
    (void)from, (void)bytes;
#endif
}

void unpoison(void *from, size_t bytes)
{
#if SIM_ASAN
    __asan_unpoison_memory_region(from, bytes);
#else
    (void)from, (void)bytes;
#endif
}

/* What an allocation occupies: its bytes, and the strip behind them, which begins at the very next byte. */
size_t footprint(size_t size)
{
    return rounded(size, alignment) + strip_bytes;
}

char *take_gap(arena &a, size_t bytes)
{
    for (auto gap = a.gaps.begin(); gap != a.gaps.end(); ++gap) {
        if (gap->second < bytes) continue;
        char *begin = gap->first;
        size_t left = gap->second - bytes;
        a.gaps.erase(gap);
        if (left) a.gaps[begin + bytes] = left;
        return begin;
    }
    return nullptr;
}

void return_gap(arena &a, char *begin, size_t bytes)
{
    auto next = a.gaps.lower_bound(begin);
    if (next != a.gaps.end() && begin + bytes == next->first) {
        bytes += next->second;
        next = a.gaps.erase(next);
    }
    if (next != a.gaps.begin()) {
        auto previous = std::prev(next);
        if (previous->first + previous->second == begin) {
            previous->second += bytes;
            return;
        }
    }
    a.gaps[begin] = bytes;
}

/* Make what was freed longest ago available again until at most `limit` bytes are kept back. */
void shorten_quarantine(arena &a, size_t limit)
{
    while (a.quarantined > limit) {
        char *begin = a.quarantine.front();
        a.quarantine.pop_front();
        size_t bytes = footprint(a.allocations.at(begin).size);
        a.allocations.erase(begin);
        a.quarantined -= bytes;
        return_gap(a, begin, bytes);
    }
}

/* Address space for a footprint: a gap, or more of the arena. */
char *find_space(arena &a, size_t bytes)
{
    char *begin = take_gap(a, bytes);
    if (begin) return begin;
    static size_t end = strip_bytes; // a strip before the first allocation
    if (end + bytes <= arena_bytes) {
        begin = a.base + end;
        end += bytes;
        size_t wanted = rounded(end, size_t(sysconf(_SC_PAGESIZE)));
        if (wanted > a.opened) {
            a.opened = wanted;
            protect(a, PROT_READ | PROT_WRITE);
        }
        return begin;
    }
    shorten_quarantine(a, 0);
    return take_gap(a, bytes);
}

void check_strip(const char *begin, size_t size)
{
    unpoison(const_cast<char *>(begin) + size, footprint(size) - size);
    for (size_t i = size; i < footprint(size); i++)
        if (static_cast<unsigned char>(begin[i]) != strip_fill)
            fatal(__FILE__, __LINE__, "device memory at %p of %zu bytes was written %zu bytes behind its end",
                  static_cast<const void *>(begin), size, i - size);
}

/* The allocation that `pointer` lies in, or NULL. */
const std::pair<char *const, allocation> *find(const void *pointer)
{
    arena &a = memory();
    char *address = static_cast<char *>(const_cast<void *>(pointer));
    auto after = a.allocations.upper_bound(address);
    if (after == a.allocations.begin()) return nullptr;
    const auto &found = *std::prev(after);
    return address < found.first + found.second.size ? &found : nullptr;
}

const std::pair<char *const, host_range> *find_pinned(const void *pointer)
{
    arena &a = memory();
    char *address = static_cast<char *>(const_cast<void *>(pointer));
    auto after = a.pinned.upper_bound(address);
    if (after == a.pinned.begin()) return nullptr;
    const auto &found = *std::prev(after);
    return address < found.first + found.second.size ? &found : nullptr;
}

} // namespace

device_access::device_access()
{
    arena &a = memory();
    if (a.depth++ == 0 && !options().open) protect(a, PROT_READ | PROT_WRITE);
}

device_access::~device_access()
{
    arena &a = memory();
    if (--a.depth == 0 && !options().open) protect(a, PROT_NONE);
}

void *device_allocate(int device, size_t size)
{
    arena &a = memory();
    size_t bytes = footprint(size);
    if (size > options().memory || a.used[size_t(device)] + bytes > options().memory) return nullptr;
    device_access access;
    char *begin = find_space(a, bytes);
    if (!begin) return nullptr;
    unpoison(begin, bytes);
    memset(begin, new_fill, size);
    memset(begin + size, strip_fill, bytes - size);
    poison(begin + size, bytes - size);
    a.allocations[begin] = {size, device, true};
    a.used[size_t(device)] += bytes;
    return begin;
}

size_t device_bytes_used(int device)
{
    return memory().used[size_t(device)];
}

bool device_release(void *pointer)
{
    arena &a = memory();
    auto found = a.allocations.find(static_cast<char *>(pointer));
    if (found == a.allocations.end() || !found->second.live) return false;
    char *begin = found->first;
    allocation &allocation = found->second;
    size_t bytes = footprint(allocation.size);
    device_access access;
    check_strip(begin, allocation.size);
    memset(begin, freed_fill, bytes);
    poison(begin, bytes);
    allocation.live = false;
    a.used[size_t(allocation.device)] -= bytes;
    a.quarantine.push_back(begin);
    a.quarantined += bytes;
    shorten_quarantine(a, quarantine_bytes);
    return true;
}

void *pinned_allocate(size_t size)
{
    void *memory_ = nullptr;
    if (posix_memalign(&memory_, 4096, size) != 0) return nullptr;
    memset(memory_, new_fill, size);
    memory().pinned[static_cast<char *>(memory_)] = {size, true};
    return memory_;
}

bool pinned_release(void *pointer)
{
    arena &a = memory();
    auto found = a.pinned.find(static_cast<char *>(pointer));
    if (found == a.pinned.end() || !found->second.ours) return false;
    memset(pointer, freed_fill, found->second.size);
    a.pinned.erase(found);
    free(pointer);
    return true;
}

bool pin(void *pointer, size_t size)
{
    arena &a = memory();
    char *begin = static_cast<char *>(pointer);
    auto next = a.pinned.lower_bound(begin);
    if (find_pinned(pointer) || (next != a.pinned.end() && next->first < begin + size)) return false;
    a.pinned[begin] = {size, false};
    return true;
}

bool unpin(void *pointer)
{
    arena &a = memory();
    auto found = a.pinned.find(static_cast<char *>(pointer));
    if (found == a.pinned.end() || found->second.ours) return false;
    a.pinned.erase(found);
    return true;
}

location locate(const void *pointer)
{
    const auto *found = find(pointer);
    if (found && found->second.live) return {place::device, found->second.device};
    return {find_pinned(pointer) ? place::pinned : place::pageable, -1};
}

bool on_device(int device, const void *pointer, size_t size, const char *what)
{
    const auto *found = find(pointer);
    if (!found) return explain("%s %p is not in device memory", what, pointer), false;
    const allocation &allocation = found->second;
    size_t offset = size_t(static_cast<const char *>(pointer) - found->first);
    if (!allocation.live) return explain("%s %p has been freed", what, pointer), false;
    if (allocation.device != device)
        return explain("%s %p is on device %d, not %d", what, pointer, allocation.device, device), false;
    if (size > allocation.size - offset)
        return explain("%s %p: %zu bytes, of which %zu lie in its allocation", what, pointer, size,
                       allocation.size - offset),
               false;
    return true;
}

void must_be_on_device(int device, const void *pointer, size_t size, const char *what)
{
    if (!on_device(device, pointer, size, what)) fatal(__FILE__, __LINE__, "%s at %p when it runs", what, pointer);
}

bool on_host(const void *pointer, size_t size, const char *what)
{
    arena &a = memory();
    const char *address = static_cast<const char *>(pointer);
    if (address >= a.base && address < a.base + arena_bytes)
        return explain("%s %p is device memory, not the host's", what, pointer), false;
    const auto *found = find_pinned(pointer);
    if (found && size > size_t(found->first + found->second.size - address))
        return explain("%s %p: %zu bytes leave their pinned allocation", what, pointer, size), false;
    return true;
}

} // namespace sim
