/*
 * Where a session computes: what it opens kernels with, and collectives for their memory. A GPU's come from a module
 * that is opened while the program runs (kernels/cuda/module.h), beside the program or in ../lib/gaccd from there; the
 * program itself links nothing of CUDA.
 */
#ifndef GACC_DEVICE_H
#define GACC_DEVICE_H

#include "kernels/kernels.h"
#include "proto/error.h"
#include "worker/comm.h"

/* Serves several sessions, each with kernels and a communicator of its own, from threads of their own. */
struct device {
    /* To be closed with kernels_close. NULL and the reason. */
    struct kernels *(*open_kernels)(const struct device *, const struct kernels_options *, struct error *);
    /* The ranks of `host` for the kernels' memory; all of them together. Both stay as they are and are closed after it.
     * parameters: those of the shard maps it will see. NULL: comm_open_staged. */
    int (*open_comm)(const struct device *, struct comm **out, struct comm *host, struct kernels *, uint64_t parameters,
                     struct error *);
    void (*close)(struct device *); /* NULL: nothing to do */
    char name[160];                 /* "cuda 0, NVIDIA H200" */
    char model[128];                /* "NVIDIA H200" */
    char warning[256];              /* for whoever runs the job, on rank 0; "": none */
};

enum device_wanted { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

/* What the ranks have to find out together, by what one of them sees: AUTO is the CPU where that one has no GPU's
 * driver.
 */
enum device_wanted device_settle(enum device_wanted wanted);

/* Which device this rank computes on: all ranks of `comm` together, each wanting the same. A rank takes the GPU of its
 * number on the host, counted around the visible ones. *out is NULL for the CPU: with AUTO all ranks take it unless
 * every one of them has a GPU. CUDA without the module or a GPU on some rank: 69 and why, on all ranks. To be called
 * after the last fork of this process. */
int device_open(struct device **out, enum device_wanted wanted, struct comm *comm, struct error *error);
void device_close(struct device *device);

/* As the table of the kernels has them; a device that failed is 70. */
int device_wait(struct kernels *kernels, struct error *error);
int device_download(struct kernels *kernels, void *to, const void *from, size_t bytes, struct error *error);

#endif
