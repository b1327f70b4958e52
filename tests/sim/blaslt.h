/* cuBLASLt's matrix product on the CPU; blaslt.cc is its interface. */
#ifndef SIM_BLASLT_H
#define SIM_BLASLT_H

#include "stream.h"

#include <cublasLt.h>

namespace sim
{

/* One matrix, or `batches` of them, `stride` elements apart. */
struct matrix_layout {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    cublasLtOrder_t order;
    int32_t batches;
    int64_t stride;
};

struct matmul_description {
    cublasComputeType_t compute;
    cudaDataType scale;
    cublasOperation_t a, b;
    cublasLtPointerMode_t pointer_mode;
    cublasLtEpilogue_t epilogue;
    void *bias;                  /* the bias, or where its gradient goes */
    int32_t bias_type, aux_type; /* −1: as D */
    void *aux;
    int64_t aux_ld;
};

/* D = epilogue(alpha·op(A)·op(B) + beta·C) */
struct matmul {
    matmul_description description;
    matrix_layout layout_a, layout_b, layout_d; /* C's is D's */
    const void *a, *b, *c;
    void *d;
    double alpha, beta;
    void *workspace;
    size_t workspace_bytes;
};

size_t element_bytes(cudaDataType type);

/* Bytes from the first element of a layout to its end. */
size_t layout_bytes(const matrix_layout &layout);

/* The product, worked out at once. Sums run over k in order, in fp32 or fp64. */
void multiply(const matmul &product);

} // namespace sim

#endif
