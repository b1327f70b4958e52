/*
 * What gacc_cuda.so, the GPU backend as a module of its own, exports: one table. The program opens the module with
 * dlopen and links nothing of CUDA. Errors are proto/error.h's: 69 where there is no GPU to be had, 70 where one
 * failed.
 */
#ifndef GACC_KERNELS_CUDA_MODULE_H
#define GACC_KERNELS_CUDA_MODULE_H

#include "kernels/kernels.h"
#include "proto/error.h"

/* Of this header and kernels.h together: a module of another number is refused. */
#define CUDA_MODULE_ABI 2
#define CUDA_MODULE_FILE "gacc_cuda.so"
#define CUDA_MODULE_SYMBOL "gacc_cuda_module"

struct cuda_device_info {
    char name[256];
    unsigned char uuid[16]; /* the same in every process */
    int capability;         /* 90: sm_90 */
    int multiprocessors;
    uint64_t memory; /* bytes */
};

struct comm; /* worker/comm.h */

struct cuda_module {
    int abi;
    /* Visible devices, ≥ 1; or −69 and why there are none. */
    int (*device_count)(int *count, struct error *error);
    int (*device_info)(int device, struct cuda_device_info *info, struct error *error);
    /* The backend on that device, for one caller at a time in any one thread; closed by kernels_close. NULL and the
     * reason: no such device, one that the module holds no code for, no memory. */
    struct kernels *(*kernels_open)(const struct kernels_options *options, int device, struct error *error);
    /* worker/comm_nccl.h: comm_open_nccl */
    int (*comm_open)(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                     struct error *error);
};

extern const struct cuda_module gacc_cuda_module;

#endif
