/*
 * Matrix products by cuBLASLt. What a product needs besides its addresses is worked out at its first call and kept: a
 * plan. The algorithm is the first one that cuBLASLt's heuristics propose for the shape, never one that was timed: the
 * same program on the same device has the same bits in every run. Algorithms that add up parts in an order of their own
 * are excluded, and fp32 operands are multiplied in fp32, not in TF32.
 *
 * A bias is added by the product's own epilogue, in every run: to the fp32 sum, before its only rounding. To add it in
 * a pass of its own would round twice where the result is bf16 or fp16, or send the sum through memory in fp32; and
 * even in fp32, where both would round once, cuBLASLt may well choose another algorithm for another epilogue, whose sum
 * has another order. So the two are not known to give the same bits, and which of them is quicker at a program's start
 * is not asked: the answer would differ from run to run and from rank to rank, and the bits with it. Nothing is lost:
 * the pass would read and write the result once more. (An activation is no epilogue either: linear.cu.)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

/* More shapes than a job has: two per layer of a kind, for the full and for the last, short micro-batch. The oldest
 * goes when there are more. */
#define PLANS_MAX 256

/* All but addresses, of which only the alignment matters. Compared as bytes. */
struct shape {
    uint64_t m, n, k, a_stride, b_stride, d_stride;
    uint32_t a_alignment, b_alignment, d_alignment;
    uint8_t a_transposed, b_transposed, wide, biased;
};

struct plan {
    struct shape shape;
    bool usable; /* false: there is no such product */
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_products {
    cublasLtHandle_t handle;
    size_t count; /* of all plans ever made; plan i is in place i mod PLANS_MAX */
    struct plan plans[PLANS_MAX];
};

bool cuda_products_open(struct cuda *cuda, struct kernels_failure *why)
{
    cuda->products = calloc(1, sizeof *cuda->products);
    if (!cuda->products) {
        *why = (struct kernels_failure){.text = "out of memory"};
        return false;
    }
    const cublasStatus_t status = cublasLtCreate(&cuda->products->handle);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    why->unavailable = true;
    snprintf(why->text, sizeof why->text, "cublasLtCreate: %s", cublasLtGetStatusString(status));
    return false;
}

static void plan_clear(struct plan *plan)
{
    if (plan->d) cublasLtMatrixLayoutDestroy(plan->d);
    if (plan->b) cublasLtMatrixLayoutDestroy(plan->b);
    if (plan->a) cublasLtMatrixLayoutDestroy(plan->a);
    if (plan->description) cublasLtMatmulDescDestroy(plan->description);
    *plan = (struct plan){.usable = false};
}

void cuda_products_close(struct cuda *cuda)
{
    struct cuda_products *products = cuda->products;
    if (!products) return;
    for (size_t i = 0; i < PLANS_MAX; i++) plan_clear(&products->plans[i]);
    if (products->handle) cublasLtDestroy(products->handle);
    free(products);
    cuda->products = NULL;
}

/* --- plans -------------------------------------------------------------------------------------------------------- */

static cudaDataType_t element_type(enum dtype type)
{
    switch (type) {
    case DTYPE_BF16:
        return CUDA_R_16BF;
    case DTYPE_FP16:
        return CUDA_R_16F;
    case DTYPE_FP64:
        return CUDA_R_64F;
    case DTYPE_FP32:
        break;
    }
    return CUDA_R_32F;
}

/* The largest power of two up to 256 that divides the address. */
static uint32_t alignment_of(const void *address)
{
    const uintptr_t bits = (uintptr_t)address | 256;
    return (uint32_t)(bits & -bits);
}

static struct shape shape_of(const struct cuda_product *p)
{
    struct shape shape;
    memset(&shape, 0, sizeof shape); /* padding too */
    shape.m = p->m, shape.n = p->n, shape.k = p->k;
    shape.a_stride = p->a_stride, shape.b_stride = p->b_stride, shape.d_stride = p->d_stride;
    shape.a_alignment = alignment_of(p->a), shape.b_alignment = alignment_of(p->b);
    shape.d_alignment = alignment_of(p->d);
    shape.a_transposed = p->a_transposed, shape.b_transposed = p->b_transposed;
    shape.wide = p->wide, shape.biased = p->bias != NULL;
    return shape;
}

#define SET(call, object, attribute, value) \
    (call((object), (attribute), &(value), sizeof(value)) == CUBLAS_STATUS_SUCCESS)

static bool describe(struct plan *plan, enum dtype type)
{
    const struct shape *s = &plan->shape;
    const bool fp64 = type == DTYPE_FP64;
    const cudaDataType_t operand = element_type(type), result = element_type(s->wide ? dtype_wide(type) : type);
    const cublasOperation_t a = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            b = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    return cublasLtMatmulDescCreate(&plan->description, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                    fp64 ? CUDA_R_64F : CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           SET(cublasLtMatmulDescSetAttribute, plan->description, CUBLASLT_MATMUL_DESC_TRANSA, a) &&
           SET(cublasLtMatmulDescSetAttribute, plan->description, CUBLASLT_MATMUL_DESC_TRANSB, b) &&
           (!s->biased ||
            SET(cublasLtMatmulDescSetAttribute, plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) &&
           cublasLtMatrixLayoutCreate(&plan->a, operand, s->a_transposed ? s->k : s->m, s->a_transposed ? s->m : s->k,
                                      (int64_t)s->a_stride) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&plan->b, operand, s->b_transposed ? s->n : s->k, s->b_transposed ? s->k : s->n,
                                      (int64_t)s->b_stride) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&plan->d, result, s->m, s->n, (int64_t)s->d_stride) == CUBLAS_STATUS_SUCCESS;
}

static bool prefer(cublasLtMatmulPreference_t preference, const struct shape *s)
{
    const uint64_t workspace = CUDA_WORKSPACE_BYTES;
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; /* parts through the workspace, in order */
    return SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace) &&
           SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
               reductions) &&
           SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
               s->a_alignment) &&
           SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
               s->b_alignment) &&
           SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
               s->d_alignment) &&
           SET(cublasLtMatmulPreferenceSetAttribute, preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
               s->d_alignment);
}

static bool choose_algorithm(cublasLtHandle_t handle, struct plan *plan)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t first;
    int found = 0;
    if (cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return false;
    const bool asked = prefer(preference, &plan->shape) &&
                       cublasLtMatmulAlgoGetHeuristic(handle, plan->description, plan->a, plan->b, plan->d, plan->d,
                                                      preference, 1, &first, &found) == CUBLAS_STATUS_SUCCESS;
    cublasLtMatmulPreferenceDestroy(preference);
    if (!asked || found == 0 || first.state != CUBLAS_STATUS_SUCCESS) return false;
    plan->algorithm = first.algo;
    return true;
}

static struct plan *plan_for(struct cuda *cuda, const struct cuda_product *product)
{
    struct cuda_products *products = cuda->products;
    const struct shape shape = shape_of(product);
    const size_t kept = products->count < PLANS_MAX ? products->count : PLANS_MAX;
    for (size_t i = 0; i < kept; i++)
        if (memcmp(&products->plans[i].shape, &shape, sizeof shape) == 0) return &products->plans[i];
    struct plan *plan = &products->plans[products->count++ % PLANS_MAX];
    plan_clear(plan);
    memcpy(&plan->shape, &shape, sizeof shape);
    plan->usable = describe(plan, cuda->head.compute_type) && choose_algorithm(products->handle, plan);
    return plan;
}

bool cuda_products_run(struct cuda *cuda, const struct cuda_product *p)
{
    if (p->bias && alignment_of(p->bias) < 16) return false; /* what it demands of a bias, it does not say */
    struct plan *plan = plan_for(cuda, p);
    if (!plan->usable) return false;
    if (p->bias && !SET(cublasLtMatmulDescSetAttribute, plan->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias))
        return false;
    const double one = 1, beta = p->adds;
    const float one_f = 1, beta_f = p->adds;
    const bool fp64 = cuda->head.compute_type == DTYPE_FP64;
    const cublasStatus_t status =
        cublasLtMatmul(cuda->products->handle, plan->description, fp64 ? (const void *)&one : &one_f, p->a, plan->a,
                       p->b, plan->b, fp64 ? (const void *)&beta : &beta_f, p->d, plan->d, p->d, plan->d,
                       &plan->algorithm, cuda->workspace, CUDA_WORKSPACE_BYTES, cuda->stream);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return plan->usable = false;
    if (status != CUBLAS_STATUS_SUCCESS) cuda_fail(cuda, "cublasLtMatmul: %s", cublasLtGetStatusString(status));
    return true;
}
