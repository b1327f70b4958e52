/*
 * What gacc_cuda.so, the GPU backend as a module of its own, exports: one table. The program opens the module with
 * dlopen and links nothing of CUDA.
 */
#ifndef GACC_KERNELS_CUDA_MODULE_H
#define GACC_KERNELS_CUDA_MODULE_H

#include "kernels/kernels.h"

/* Of this header and kernels.h together: a module of another number is refused. */
#define CUDA_MODULE_ABI 6
#define CUDA_MODULE_FILE "gacc_cuda.so"
#define CUDA_MODULE_SYMBOL "gacc_cuda_module"

struct cuda_device_info {
    char name[256];
    unsigned char uuid[16]; /* the same in every process */
    int capability;         /* 90: sm_90 */
    int multiprocessors;
    uint64_t memory; /* bytes */
};

struct comm;  /* worker/comm.h */
struct error; /* proto/error.h */

struct cuda_module {
    int abi;
    /* Visible devices, ≥ 1; or false and why there are none. */
    bool (*device_count)(int *count, struct kernels_failure *why);
    bool (*device_info)(int device, struct cuda_device_info *info, struct kernels_failure *why);
    /* The backend on that device, for one caller at a time in any one thread; closed by kernels_close. NULL and the
     * reason: no such device, one that the module holds no code for, no memory. */
    struct kernels *(*kernels_open)(const struct kernels_options *options, int device, struct kernels_failure *why);
    /* worker/comm_nccl.h: comm_open_nccl */
    int (*comm_open)(struct comm **out, struct comm *host, struct kernels *kernels, uint64_t parameters,
                     struct error *error);
};

extern const struct cuda_module gacc_cuda_module;

#endif
