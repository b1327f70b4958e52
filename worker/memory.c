#include "worker/memory.h"

#include <stdlib.h>
#include <string.h>

int memory_new(void **out, uint64_t elements, size_t element_bytes, const char *what, struct error *error)
{
    uint64_t limit = SIZE_MAX / element_bytes - MEMORY_ALIGNMENT;
    *out = NULL;
    if (elements < limit) {
        size_t bytes = (size_t)elements * element_bytes;
        size_t rounded =
            (bytes + MEMORY_ALIGNMENT) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT; /* at least one line, if empty */
        *out = aligned_alloc(MEMORY_ALIGNMENT, rounded);
        if (*out) memset(*out, 0, rounded);
    }
    if (!*out)
        return error_set(error, STATUS_INTERNAL, "out of memory for %s: %llu elements of %zu bytes", what,
                         (unsigned long long)elements, element_bytes);
    return 0;
}
