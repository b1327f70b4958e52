#include "kernels/host_memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define ALIGNMENT ((size_t)256)
/* A step streams through all of the large buffers, and with small pages a fifth of its time goes into address
 * translation. */
#define HUGE_PAGE ((size_t)2 << 20)

void *host_allocate(struct kernels *kernels, size_t bytes)
{
    (void)kernels;
    if (bytes > SIZE_MAX - HUGE_PAGE) return NULL;
    const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    const size_t rounded = (bytes + alignment) / alignment * alignment; /* at least one line, if empty */
    void *memory = aligned_alloc(alignment, rounded);
    if (!memory) return NULL;
    if (alignment == HUGE_PAGE) madvise(memory, rounded, MADV_HUGEPAGE); /* refused: small pages serve */
    return memset(memory, 0, rounded);
}

void host_release(struct kernels *kernels, void *memory)
{
    (void)kernels;
    free(memory);
}

void host_clear(struct kernels *kernels, void *memory, size_t bytes)
{
    (void)kernels;
    memset(memory, 0, bytes);
}

void host_copy(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    (void)kernels;
    if (to != from && bytes > 0) memcpy(to, from, bytes);
}

const char *host_download(struct kernels *kernels, void *to, const void *from, size_t bytes)
{
    host_copy(kernels, to, from, bytes);
    return NULL;
}

const char *host_wait(struct kernels *kernels)
{
    (void)kernels;
    return NULL;
}

/* Of this process's address space, where that is limited (ulimit -v). */
static void limit_by_address_space(uint64_t *left, uint64_t *all)
{
    struct rlimit limit;
    unsigned long long pages;
    if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY) return;
    FILE *file = fopen("/proc/self/statm", "re");
    const bool known = file && fscanf(file, "%llu", &pages) == 1;
    if (file) fclose(file);
    if (!known) return;
    const uint64_t space = limit.rlim_cur, used = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t rest = used < space ? space - used : 0;
    if (space < *all) *all = space;
    if (rest < *left) *left = rest;
}

bool host_memory_left(struct kernels *kernels, uint64_t *left, uint64_t *all)
{
    (void)kernels;
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long total, available; /* in KiB */
    const bool known =
        file && fscanf(file, "MemTotal: %llu kB MemFree: %*u kB MemAvailable: %llu", &total, &available) == 2;
    if (file) fclose(file);
    if (!known) return false;
    *left = (uint64_t)available << 10;
    *all = (uint64_t)total << 10;
    limit_by_address_space(left, all);
    return true;
}
