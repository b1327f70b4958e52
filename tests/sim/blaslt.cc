/* cuBLASLt: descriptors, the one algorithm that its heuristics propose, and what a product may be made of.
 *
 * Refused is what the library's documentation refuses, and what this does not work out; whatever passes here may still
 * have no algorithm on a device.
 */
#include "blaslt.h"

#include "call.h"
#include "graph.h"
#include "memory.h"
#include "settings.h"

#include <cstring>

using namespace sim;

namespace
{

const uint64_t algorithm_mark = 0x73696d616c676f00;
const size_t workspace_wanted = 64 * 1024; /* by the algorithm, where it may have that much */

/* What is kept in a cublasLtMatmulAlgo_t: for which operands it was chosen. */
struct algorithm {
    uint64_t mark, workspace_bytes;
    uint32_t alignment_a, alignment_b, alignment_c, alignment_d;
    uint32_t epilogue, type_a, type_d;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "what the program copies");

struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment_a, alignment_b, alignment_c, alignment_d;
};

template <typename Body> cublasStatus_t blas(const char *name, Body body)
{
    std::lock_guard<std::mutex> guard(lock);
    note_call();
    trace(name, nullptr);
    if (int code = injected_failure(name)) return cublasStatus_t(code);
    return body();
}

cublasStatus_t refuse(cublasStatus_t status, const char *why)
{
    return explain("cublasLt: %s", why), status;
}

/* Copy an attribute of exactly that size. */
template <typename T> cublasStatus_t take(T &field, const void *value, size_t bytes)
{
    if (!value || bytes != sizeof field) return refuse(CUBLAS_STATUS_INVALID_VALUE, "an attribute of another size");
    memcpy(&field, value, sizeof field);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t unknown_attribute(int attribute)
{
    return explain("cublasLt: attribute %d is not simulated", attribute), CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Types that go together: operands and results in one compute type. */
bool types_fit(const matmul &p)
{
    cudaDataType in = p.layout_a.type, out = p.layout_d.type;
    if (p.layout_b.type != in) return false;
    if (p.description.compute == CUBLAS_COMPUTE_64F)
        return p.description.scale == CUDA_R_64F && in == CUDA_R_64F && out == CUDA_R_64F;
    if (p.description.compute != CUBLAS_COMPUTE_32F || p.description.scale != CUDA_R_32F) return false;
    if (in == CUDA_R_32F) return out == CUDA_R_32F;
    return (in == CUDA_R_16F || in == CUDA_R_16BF) && (out == in || out == CUDA_R_32F);
}

bool layout_fits(const matrix_layout &layout)
{
    uint64_t run = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
    return layout.rows > 0 && layout.columns > 0 && layout.ld > 0 && uint64_t(layout.ld) >= run && layout.batches > 0;
}

bool shapes_fit(const matmul &p)
{
    bool ta = p.description.a == CUBLAS_OP_T, tb = p.description.b == CUBLAS_OP_T;
    const matrix_layout &a = p.layout_a, &b = p.layout_b, &d = p.layout_d;
    uint64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns;
    return m == d.rows && k == (tb ? b.columns : b.rows) && (tb ? b.rows : b.columns) == d.columns &&
           a.batches == d.batches && b.batches == d.batches;
}

bool epilogue_is_simulated(cublasLtEpilogue_t epilogue)
{
    switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
    case CUBLASLT_EPILOGUE_BGRADA:
    case CUBLASLT_EPILOGUE_BGRADB:
        return true;
    default:
        return false;
    }
}

bool needs_aux(cublasLtEpilogue_t epilogue)
{
    return epilogue & 128;
}

bool needs_bias(cublasLtEpilogue_t epilogue)
{
    return epilogue & (CUBLASLT_EPILOGUE_BIAS | 16 | CUBLASLT_EPILOGUE_BGRADA | CUBLASLT_EPILOGUE_BGRADB);
}

/* All that does not depend on addresses. */
cublasStatus_t check_problem(const matmul &p)
{
    const matmul_description &description = p.description;
    if (!layout_fits(p.layout_a) || !layout_fits(p.layout_b) || !layout_fits(p.layout_d) || !shapes_fit(p))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the shapes do not go together");
    if (!types_fit(p)) return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the types do not go together");
    if (description.pointer_mode != CUBLASLT_POINTER_MODE_HOST)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "alpha and beta must be the host's");
    if (!epilogue_is_simulated(description.epilogue))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the epilogue is not simulated");
    if (description.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return CUBLAS_STATUS_SUCCESS;
    if (p.layout_d.order != CUBLASLT_ORDER_COL || p.layout_d.batches != 1 || p.layout_d.type == CUDA_R_64F)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an epilogue wants one column-major result, not of fp64");
    if (needs_aux(description.epilogue) &&
        (description.aux_ld < int64_t(p.layout_d.rows) || description.aux_ld % 8 != 0))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the leading dimension of the auxiliary matrix");
    return CUBLAS_STATUS_SUCCESS;
}

bool is_aligned(const void *pointer, uint32_t alignment)
{
    return reinterpret_cast<uintptr_t>(pointer) % alignment == 0;
}

cublasStatus_t check_addresses(const matmul &p, const algorithm &chosen, int device)
{
    if (!is_aligned(p.a, chosen.alignment_a) || !is_aligned(p.b, chosen.alignment_b) ||
        !is_aligned(p.d, chosen.alignment_d) || (p.beta != 0 && !is_aligned(p.c, chosen.alignment_c)))
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an operand is less aligned than the algorithm was promised");
    bool there = on_device(device, p.a, layout_bytes(p.layout_a), "A") &&
                 on_device(device, p.b, layout_bytes(p.layout_b), "B") &&
                 on_device(device, p.d, layout_bytes(p.layout_d), "D") &&
                 (p.beta == 0 || on_device(device, p.c, layout_bytes(p.layout_d), "C"));
    const matmul_description &description = p.description;
    if (needs_bias(description.epilogue)) {
        uint64_t length = description.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p.layout_d.columns : p.layout_d.rows;
        if (!is_aligned(description.bias, 16))
            return refuse(CUBLAS_STATUS_INVALID_VALUE, "the bias is not aligned to 16");
        there = there && on_device(device, description.bias, length * element_bytes(p.layout_d.type), "bias");
    }
    if (needs_aux(description.epilogue)) {
        uint64_t elements = (p.layout_d.columns - 1) * uint64_t(description.aux_ld) + p.layout_d.rows;
        if (!is_aligned(description.aux, 16)) return refuse(CUBLAS_STATUS_INVALID_VALUE, "aux is not aligned to 16");
        there = there && on_device(device, description.aux, elements * element_bytes(p.layout_d.type), "aux");
    }
    if (chosen.workspace_bytes > p.workspace_bytes)
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "less workspace than the algorithm was promised");
    if (chosen.workspace_bytes > 0 &&
        (!is_aligned(p.workspace, 16) || !on_device(device, p.workspace, chosen.workspace_bytes, "workspace")))
        return refuse(CUBLAS_STATUS_INVALID_VALUE, "the workspace");
    return there ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* The product in two steps: it takes possession of its workspace, and later finds that still its own. A workspace that
 * two streams use at a time gives NaN. */
class product_operation
{
  public:
    product_operation(const matmul &product, size_t workspace_bytes)
        : product_(product), own_(workspace_bytes / sizeof(uint64_t))
    {
    }

    progress run()
    {
        auto *words = static_cast<uint64_t *>(product_.workspace);
        if (own_ > 0 && !mark_) {
            static uint64_t marks;
            mark_ = ~++marks; // looks like a NaN to whoever reads it
            for (size_t i = 0; i < own_; i++) words[i] = mark_;
            return progress::advanced;
        }
        bool disturbed = false;
        for (size_t i = 0; i < own_; i++) disturbed |= words[i] != mark_;
        if (own_ > 0) memset(words, 0xFF, own_ * sizeof *words);
        if (disturbed) {
            explain("cublasLt: the workspace %p is used by two products at a time", product_.workspace);
            memset(product_.d, 0xFF, layout_bytes(product_.layout_d));
        } else {
            multiply(product_);
        }
        return progress::done;
    }

  private:
    matmul product_;
    size_t own_; /* words of the workspace */
    uint64_t mark_ = 0;
};

matrix_layout &layout_of(cublasLtMatrixLayout_t handle)
{
    return *reinterpret_cast<matrix_layout *>(handle);
}

matmul_description &description_of(cublasLtMatmulDesc_t handle)
{
    return *reinterpret_cast<matmul_description *>(handle);
}

preference &preference_of(cublasLtMatmulPreference_t handle)
{
    return *reinterpret_cast<preference *>(handle);
}

/* A problem from its descriptors; C must be described as D is. */
cublasStatus_t describe(matmul &p, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                        cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    if (!description || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
    p = {};
    p.description = description_of(description);
    p.layout_a = layout_of(a);
    p.layout_b = layout_of(b);
    p.layout_d = layout_of(d);
    const matrix_layout &layout_c = layout_of(c);
    if (layout_c.type != p.layout_d.type || layout_c.order != p.layout_d.order || layout_c.rows != p.layout_d.rows ||
        layout_c.columns != p.layout_d.columns || layout_c.ld != p.layout_d.ld || layout_c.stride != p.layout_d.stride)
        return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "C is not laid out as D");
    return check_problem(p);
}

algorithm choose(const matmul &p, const preference &preference)
{
    uint64_t workspace = preference.workspace_bytes >= workspace_wanted ? workspace_wanted : 0;
    return {algorithm_mark,           workspace,
            preference.alignment_a,   preference.alignment_b,
            preference.alignment_c,   preference.alignment_d,
            p.description.epilogue,   uint32_t(p.layout_a.type),
            uint32_t(p.layout_d.type)};
}

/* By default the library takes addresses for aligned to 256 bytes. */
const preference default_preference = {0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256};

} // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    return blas(__func__, [=] {
        *handle = reinterpret_cast<cublasLtHandle_t>(new char);
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    return blas(__func__, [=] {
        delete reinterpret_cast<char *>(handle);
        return CUBLAS_STATUS_SUCCESS;
    });
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
        return "a status without a simulated name";
    }
}

const char *cublasLtGetStatusName(cublasStatus_t status)
{
    return cublasLtGetStatusString(status);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *handle, cublasComputeType_t compute, cudaDataType scale)
{
    return blas(__func__, [=] {
        *handle = reinterpret_cast<cublasLtMatmulDesc_t>(
            new matmul_description{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_POINTER_MODE_HOST,
                                   CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1, -1, nullptr, 0});
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle)
{
    return blas(__func__, [=] {
        delete &description_of(handle);
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    return blas(__func__, [=] {
        if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
        matmul_description &description = description_of(handle);
        switch (attribute) {
        case CUBLASLT_MATMUL_DESC_TRANSA:
            return take(description.a, value, bytes);
        case CUBLASLT_MATMUL_DESC_TRANSB:
            return take(description.b, value, bytes);
        case CUBLASLT_MATMUL_DESC_POINTER_MODE:
            return take(description.pointer_mode, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE:
            return take(description.epilogue, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
            return take(description.bias, value, bytes);
        case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
            return take(description.bias_type, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
            return take(description.aux, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
            return take(description.aux_ld, value, bytes);
        case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
            return take(description.aux_type, value, bytes);
        default:
            return unknown_attribute(int(attribute));
        }
    });
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *handle, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    return blas(__func__, [=] {
        if (type != CUDA_R_32F && type != CUDA_R_64F && type != CUDA_R_16F && type != CUDA_R_16BF)
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an element type that is not simulated");
        *handle = reinterpret_cast<cublasLtMatrixLayout_t>(
            new matrix_layout{type, rows, columns, ld, CUBLASLT_ORDER_COL, 1, 0});
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle)
{
    return blas(__func__, [=] {
        delete &layout_of(handle);
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void *value,
                                                size_t bytes)
{
    return blas(__func__, [=] {
        if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
        matrix_layout &layout = layout_of(handle);
        switch (attribute) {
        case CUBLASLT_MATRIX_LAYOUT_ORDER: {
            cublasStatus_t status = take(layout.order, value, bytes);
            if (status == CUBLAS_STATUS_SUCCESS && layout.order != CUBLASLT_ORDER_COL &&
                layout.order != CUBLASLT_ORDER_ROW)
                return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "an order that is not simulated");
            return status;
        }
        case CUBLASLT_MATRIX_LAYOUT_ROWS:
            return take(layout.rows, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_COLS:
            return take(layout.columns, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_LD:
            return take(layout.ld, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
            return take(layout.batches, value, bytes);
        case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
            return take(layout.stride, value, bytes);
        default:
            return unknown_attribute(int(attribute));
        }
    });
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *handle)
{
    return blas(__func__, [=] {
        *handle = reinterpret_cast<cublasLtMatmulPreference_t>(new preference(default_preference));
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t handle)
{
    return blas(__func__, [=] {
        delete &preference_of(handle);
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    return blas(__func__, [=] {
        if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
        preference &preference = preference_of(handle);
        switch (attribute) {
        case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
            return take(preference.workspace_bytes, value, bytes);
        case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
            return take(preference.reductions, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
            return take(preference.alignment_a, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
            return take(preference.alignment_b, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
            return take(preference.alignment_c, value, bytes);
        case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
            return take(preference.alignment_d, value, bytes);
        default:
            return unknown_attribute(int(attribute));
        }
    });
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    return blas(__func__, [=] {
        *found = 0;
        if (!handle || !wanted || asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
        matmul p;
        if (cublasStatus_t status = describe(p, description, a, b, c, d)) return status;
        algorithm chosen = choose(p, preference_of(wanted));
        results[0] = {};
        memcpy(&results[0].algo, &chosen, sizeof chosen);
        results[0].workspaceSize = chosen.workspace_bytes;
        results[0].state = CUBLAS_STATUS_SUCCESS;
        results[0].wavesCount = 1;
        *found = 1;
        return CUBLAS_STATUS_SUCCESS;
    });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d, cublasLtMatrixLayout_t layout_d,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream_handle)
{
    return blas(__func__, [=] {
        stream *stream = find_stream(stream_handle);
        if (!handle || !stream || !alpha || !beta) return CUBLAS_STATUS_INVALID_VALUE;
        if (capture_state(*stream) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
        matmul p;
        if (cublasStatus_t status = describe(p, description, layout_a, layout_b, layout_c, layout_d)) return status;
        bool fp64 = p.description.scale == CUDA_R_64F;
        p.alpha = fp64 ? *static_cast<const double *>(alpha) : double(*static_cast<const float *>(alpha));
        p.beta = fp64 ? *static_cast<const double *>(beta) : double(*static_cast<const float *>(beta));
        p.a = a, p.b = b, p.c = c, p.d = d;
        p.workspace = workspace, p.workspace_bytes = workspace_bytes;
        algorithm chosen = choose(p, default_preference);
        if (algo) memcpy(&chosen, algo, sizeof chosen);
        if (chosen.mark != algorithm_mark || chosen.epilogue != p.description.epilogue ||
            chosen.type_a != uint32_t(p.layout_a.type) || chosen.type_d != uint32_t(p.layout_d.type))
            return refuse(CUBLAS_STATUS_NOT_SUPPORTED, "the algorithm was chosen for another product");
        if (cublasStatus_t status = check_addresses(p, chosen, stream->device)) return status;
        product_operation work(p, chosen.workspace_bytes);
        enqueue(*stream, {"a matrix product", [work]() mutable { return work.run(); }, {}});
        return CUBLAS_STATUS_SUCCESS;
    });
}
