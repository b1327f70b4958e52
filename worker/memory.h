/* The large buffers of a rank: zeroed, aligned for vector loads, made once when the session opens. */
#ifndef GACC_MEMORY_H
#define GACC_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"

#define MEMORY_ALIGNMENT 256

/* The host's: elements × element_bytes zeroed bytes, freed with free(). 70 naming `what` and the size when there is no
 * memory. */
int memory_new(void **out, uint64_t elements, size_t element_bytes, const char *what, struct error *error);
/* The backend's, given back with its `release`. 70 naming `what`, the size, and what is left. */
int memory_reserve(struct kernels *kernels, void **out, uint64_t bytes, const char *what, struct error *error);

/* Lays buffers one after the other, each aligned. From base 0 it only measures. */
struct carver {
    uintptr_t base;
    size_t used;
};

static inline void *carve(struct carver *carver, size_t bytes)
{
    void *at = (void *)(carver->base + carver->used); // NOLINT(performance-no-int-to-ptr)
    carver->used += (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
    return at;
}

/* "1.5 GiB" */
struct memory_text {
    char text[24];
};
struct memory_text memory_text(uint64_t bytes);

#endif
