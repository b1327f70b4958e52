/* Collectives over NCCL, for the memory of the GPU backend. Part of its module (kernels/cuda/module.h). */
#ifndef GACC_COMM_NCCL_H
#define GACC_COMM_NCCL_H

#include "worker/comm.h"

/* The ranks of `host`, each with kernels on a GPU of its own; all of them call it together. Both are borrowed and
 * closed after it. parameters: elements of the flat buffers that it will see. Its collectives run beside the kernels
 * and are joined (comm_join). 70 and NCCL's reason when they do not come together. */
int comm_open_nccl(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                   struct error *error);

#endif
