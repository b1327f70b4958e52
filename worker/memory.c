#include "worker/memory.h"

#include <stdio.h>

#include "kernels/host_memory.h"

int memory_new(void **out, uint64_t elements, size_t element_bytes, const char *what, struct error *error)
{
    *out = elements < SIZE_MAX / element_bytes ? host_allocate(NULL, (size_t)elements * element_bytes) : NULL;
    if (!*out)
        return error_set(error, STATUS_INTERNAL, "out of memory for %s: %llu elements of %zu bytes", what,
                         (unsigned long long)elements, element_bytes);
    return 0;
}

int memory_reserve(struct kernels *kernels, void **out, uint64_t bytes, const char *what, struct error *error)
{
    uint64_t left, all;
    *out = bytes <= SIZE_MAX ? kernels->table->allocate(kernels, (size_t)bytes) : NULL;
    if (*out) return 0;
    if (!kernels->table->memory_left(kernels, &left, &all))
        return error_set(error, STATUS_INTERNAL, "out of memory for %s: %s", what, memory_text(bytes).text);
    return error_set(error, STATUS_INTERNAL, "out of memory for %s: %s, and of %s %s are left", what,
                     memory_text(bytes).text, memory_text(all).text, memory_text(left).text);
}

struct memory_text memory_text(uint64_t bytes)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    struct memory_text out;
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit < 4; unit++) value /= 1024;
    snprintf(out.text, sizeof out.text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}
