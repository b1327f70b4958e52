/*
 * The GPU backend's own struct: one stream on which everything runs in the order in which it was asked for, memory that
 * kernels use between two calls, the plans of products, and the first error, which stays.
 */
#ifndef GACC_KERNELS_CUDA_H
#define GACC_KERNELS_CUDA_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/cuda/module.h"
#include "kernels/kernels.h"

/* Of device memory. Scratch holds partial sums, read by the kernel after the one that wrote them. */
#define CUDA_SCRATCH_BYTES ((size_t)16 << 20)
#define CUDA_WORKSPACE_BYTES ((size_t)32 << 20)

/* Pinned memory through which uploads go. Uploads follow each other in it; a part is written again once the copies out
 * of it have run, so that the host waits only when it is a whole ring ahead of the device. */
#define CUDA_UPLOAD_PARTS 4
#define CUDA_UPLOAD_PART_BYTES ((size_t)4 << 20)

struct cuda_upload {
    char *memory; /* [parts][part bytes] */
    size_t part, used;
    cudaEvent_t copied[CUDA_UPLOAD_PARTS]; /* recorded when the part was left */
};

#define CUDA_TEXT 512

/* Who is asked, while the host waits for the device, whether what the device waits for will ever come. check: false and
 * the reason when it will not; then it has seen to it that the device's work ends. */
struct cuda_watch {
    bool (*check)(void *context, char why[CUDA_TEXT]); /* NULL: nobody */
    void *context;
};

struct cuda {
    struct kernels head;
    struct kernel_table table;
    int device, multiprocessors;
    cudaStream_t stream;
    void *scratch, *workspace;
    struct cuda_upload upload;
    struct cuda_products *products;
    struct cuda_watch watch;
    char failure[CUDA_TEXT + 32]; /* empty: none so far */
    bool failed_before;           /* when recording began */
    bool range_open;
};

/* The backend behind `kernels`, its device made the calling thread's. */
struct cuda *cuda_enter(struct kernels *kernels);

/* Remembers a call that failed, if it is the first; true when it did not. */
bool cuda_note(struct cuda *cuda, cudaError_t result, const char *call);
__attribute__((format(printf, 2, 3))) void cuda_fail(struct cuda *cuda, const char *format, ...);

/* --- products.c: matrix products by cuBLASLt ---------------------------------------------------------------------- */

/* Column-major, as cuBLAS has it: d[m,n] = op(a)[m,k]·op(b)[k,n] (+ bias[m] to every column) (+ d when `adds`).
 * a, b are of the backend's compute type; d too, or wide. bias needs d of the compute type, and not fp64. */
struct cuda_product {
    size_t m, n, k;
    const void *a, *b, *bias;
    void *d;
    size_t a_stride, b_stride, d_stride; /* from column to column */
    bool a_transposed, b_transposed, wide, adds;
};

bool cuda_products_open(struct cuda *cuda, struct kernels_failure *why);
void cuda_products_close(struct cuda *cuda);
/* False: cuBLASLt has none for this shape and these addresses, and nothing was asked for. */
bool cuda_products_run(struct cuda *cuda, const struct cuda_product *product);

/* --- table.cu ------------------------------------------------------------------------------------------------------
 */

/* Enters the kernels of the backend's compute type in its table. */
void cuda_fill_kernels(struct cuda *cuda);

/* --- cuda.c: what the module hands out (module.h) -------------------------------------------------------------------
 */

bool cuda_device_count(int *count, struct kernels_failure *why);
bool cuda_device_describe(int device, struct cuda_device_info *info, struct kernels_failure *why);
struct kernels *cuda_kernels_open(const struct kernels_options *options, int device, struct kernels_failure *why);

#ifdef __cplusplus
}
#endif

#endif
