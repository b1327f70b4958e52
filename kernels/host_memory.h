/* Memory of the backends that work in the host's own. Signatures and promises as in struct kernel_table. */
#ifndef GACC_KERNELS_HOST_MEMORY_H
#define GACC_KERNELS_HOST_MEMORY_H

#include "kernels/kernels.h"

/* Buffers of 2 MiB and more lie on huge pages where the system grants them. */
void *host_allocate(struct kernels *, size_t bytes);
void host_release(struct kernels *, void *memory);
void host_clear(struct kernels *, void *memory, size_t bytes);
/* And upload. */
void host_copy(struct kernels *, void *to, const void *from, size_t bytes);
const char *host_download(struct kernels *, void *to, const void *from, size_t bytes);
const char *host_wait(struct kernels *);
/* What Linux holds to be available without swapping, or less where the process's address space is limited. */
bool host_memory_left(struct kernels *, uint64_t *left, uint64_t *all);

#endif
