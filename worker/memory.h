/* The large buffers of a rank: zeroed, aligned for vector loads, made once when the session opens. */
#ifndef GACC_MEMORY_H
#define GACC_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define MEMORY_ALIGNMENT 64

/* elements × element_bytes zeroed bytes, freed with free(). 70 naming `what` and the size when there is no memory. */
int memory_new(void **out, uint64_t elements, size_t element_bytes, const char *what, struct error *error);

#endif
