#include "worker/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Buffers of this size and more lie on huge pages where the system grants them: a step streams through all of them, and
 * with small pages a fifth of its time goes into address translation. */
#define HUGE_PAGE ((size_t)2 << 20)

int memory_new(void **out, uint64_t elements, size_t element_bytes, const char *what, struct error *error)
{
    uint64_t limit = (SIZE_MAX - HUGE_PAGE) / element_bytes;
    *out = NULL;
    if (elements < limit) {
        size_t bytes = (size_t)elements * element_bytes;
        size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : MEMORY_ALIGNMENT;
        size_t rounded = (bytes + alignment) / alignment * alignment; /* at least one line, if empty */
        *out = aligned_alloc(alignment, rounded);
        if (*out && alignment == HUGE_PAGE) madvise(*out, rounded, MADV_HUGEPAGE); /* refused: small pages serve */
        if (*out) memset(*out, 0, rounded);
    }
    if (!*out)
        return error_set(error, STATUS_INTERNAL, "out of memory for %s: %llu elements of %zu bytes", what,
                         (unsigned long long)elements, element_bytes);
    return 0;
}
