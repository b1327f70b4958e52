/* cuBLASLt's products against the definition in fp64, and what it refuses. */
#include "check.h"
#include "element.h"

#include <cublasLt.h>
#include <vector>

using sim::narrowed;
using sim::widened;

static const uint64_t m = 24, n = 10, k = 17;

struct problem {
    bool ta, tb, row_major;
    float beta;
    int batches;
    cublasLtEpilogue_t epilogue;
};

template <typename T> constexpr cudaDataType type_of()
{
    return std::is_same_v<T, float>    ? CUDA_R_32F
           : std::is_same_v<T, double> ? CUDA_R_64F
           : std::is_same_v<T, __half> ? CUDA_R_16F
                                       : CUDA_R_16BF;
}

/* A value in −1 … 1 that T has exactly. */
static double value(size_t i)
{
    return double(int(i * 37 % 65) - 32) / 32;
}

/* A matrix with room behind each run, in device memory, and its layout. */
template <typename T> struct matrix {
    uint64_t rows, columns, ld;
    bool row_major;
    int batches;
    T *device;
    cublasLtMatrixLayout_t layout;

    matrix(uint64_t rows_, uint64_t columns_, bool row_major_, int batches_, size_t salt)
        : rows(rows_), columns(columns_), ld((row_major_ ? columns_ : rows_) + 8), row_major(row_major_),
          batches(batches_)
    {
        int64_t stride = int64_t(size());
        std::vector<T> host(size() * size_t(batches));
        for (size_t i = 0; i < host.size(); i++) host[i] = narrowed<T>(value(i + salt));
        device = device_array(host.size(), host.data());
        MUST(cublasLtMatrixLayoutCreate(&layout, type_of<T>(), rows, columns, int64_t(ld)));
        cublasLtOrder_t order = row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
        MUST(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order));
        MUST(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batches, sizeof batches));
        MUST(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                              sizeof stride));
    }

    size_t size() const
    {
        return ld * (row_major ? rows : columns);
    }

    size_t index(int batch, uint64_t r, uint64_t c) const
    {
        return size_t(batch) * size() + (row_major ? r * ld + c : r + c * ld);
    }

    std::vector<double> read() const
    {
        std::vector<T> host(size() * size_t(batches));
        read_array(host.data(), device, host.size());
        std::vector<double> values;
        for (T x : host) values.push_back(double(widened(x)));
        return values;
    }
};

struct library {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatmulPreference_t preference;
    uint64_t workspace_bytes = 64 << 10;

    explicit library(bool fp64 = false)
    {
        MUST(cublasLtCreate(&handle));
        MUST(cublasLtMatmulDescCreate(&description, fp64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                      fp64 ? CUDA_R_64F : CUDA_R_32F));
        MUST(cublasLtMatmulPreferenceCreate(&preference));
        MUST(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &workspace_bytes, sizeof workspace_bytes));
    }

    template <typename V> void set(cublasLtMatmulDescAttributes_t attribute, V v)
    {
        MUST(cublasLtMatmulDescSetAttribute(description, attribute, &v, sizeof v));
    }
};

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_derivative(double x)
{
    const double h = 1e-5;
    return (gelu(x + h) - gelu(x - h)) / (2 * h);
}

static bool near(double got, double wanted, double relative)
{
    return fabs(got - wanted) <= relative * (1 + fabs(wanted));
}

/* One product with operands in T and results in D; 0: as the definition has it. */
template <typename T, typename D> static int check_product(const problem &p)
{
    const bool fp64 = std::is_same_v<T, double>;
    matrix<T> a(p.ta ? k : m, p.ta ? m : k, p.row_major, p.batches, 1),
        b(p.tb ? n : k, p.tb ? k : n, p.row_major, p.batches, 2);
    matrix<D> c(m, n, p.row_major, p.batches, 3), d(m, n, p.row_major, p.batches, 4), aux(m, n, false, 1, 5);
    matrix<D> bias(m, 1, false, 1, 6);
    std::vector<double> a0 = a.read(), b0 = b.read(), c0 = c.read(), aux0 = aux.read(), bias0 = bias.read();
    if (p.beta == 0) MUST(cudaMemset(c.device, 0xFF, c.size() * size_t(c.batches) * sizeof(D))); // must not be read

    library lt(fp64);
    lt.set(CUBLASLT_MATMUL_DESC_TRANSA, p.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
    lt.set(CUBLASLT_MATMUL_DESC_TRANSB, p.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
    lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, p.epilogue);
    lt.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void *>(bias.device));
    lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void *>(aux.device));
    lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(aux.ld));
    cublasLtMatmulHeuristicResult_t result;
    int found;
    MUST(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.description, a.layout, b.layout, c.layout, d.layout,
                                        lt.preference, 1, &result, &found));
    char *workspace = device_array<char>(lt.workspace_bytes);
    float alpha = 0.5f, beta = p.beta;
    double alpha64 = 0.5, beta64 = double(p.beta);
    MUST(cublasLtMatmul(lt.handle, lt.description, fp64 ? static_cast<void *>(&alpha64) : &alpha, a.device, a.layout,
                        b.device, b.layout, fp64 ? static_cast<void *>(&beta64) : &beta, c.device, c.layout, d.device,
                        d.layout, &result.algo, workspace, lt.workspace_bytes, nullptr));
    std::vector<double> got = d.read(), got_aux = aux.read(), got_bias = bias.read();
    const double step = std::is_same_v<D, double>   ? 1e-14
                        : std::is_same_v<D, float>  ? 1e-6
                        : std::is_same_v<D, __half> ? 0x1p-11 * 1.01
                                                    : 0x1p-8 * 1.01; // half a unit in the last place, and fp32's sum
    const unsigned e = p.epilogue;
    for (int batch = 0; batch < p.batches; batch++) {
        std::vector<double> row_sums(m), b_sums(n), a_sums(m);
        for (uint64_t i = 0; i < m; i++) {
            for (uint64_t j = 0; j < n; j++) {
                double x = 0;
                for (uint64_t l = 0; l < k; l++) {
                    double al = a0[p.ta ? a.index(batch, l, i) : a.index(batch, i, l)];
                    double bl = b0[p.tb ? b.index(batch, j, l) : b.index(batch, l, j)];
                    x += al * bl;
                    if (j == 0) a_sums[i] += al;
                    if (i == 0) b_sums[j] += bl;
                }
                x = 0.5 * x + (p.beta != 0 ? double(p.beta) * c0[c.index(batch, i, j)] : 0);
                if (e & CUBLASLT_EPILOGUE_BIAS) x += bias0[i];
                if (e & CUBLASLT_EPILOGUE_GELU) {
                    if (e & 128 && !near(got_aux[aux.index(0, i, j)], x, step)) return 2;
                    x = gelu(x);
                }
                if (e & 64) x *= gelu_derivative(aux0[aux.index(0, i, j)]);
                row_sums[i] += x;
                if (!near(got[d.index(batch, i, j)], x, step)) return 1;
            }
            if (e & 16 && !near(got_bias[i], row_sums[i], 2 * step)) return 3;
            if (e == CUBLASLT_EPILOGUE_BGRADA && !near(got_bias[i], a_sums[i], 2 * step)) return 4;
        }
        for (uint64_t j = 0; j < n; j++)
            if (e == CUBLASLT_EPILOGUE_BGRADB && !near(got_bias[j], b_sums[j], 2 * step)) return 5;
    }
    return 0;
}

template <typename T, typename D> static int check_all_plain()
{
    for (bool ta : {false, true})
        for (bool tb : {false, true})
            for (bool row_major : {false, true})
                for (float beta : {0.0f, 1.0f})
                    for (int batches : {1, 3})
                        if (int wrong =
                                check_product<T, D>({ta, tb, row_major, beta, batches, CUBLASLT_EPILOGUE_DEFAULT}))
                            return wrong;
    return 0;
}

static void products_are_those_of_the_definition(void **)
{
    assert_int_equal(in_child({}, check_all_plain<float, float>).exit, 0);
    assert_int_equal(in_child({}, check_all_plain<double, double>).exit, 0);
    assert_int_equal(in_child({}, check_all_plain<__half, __half>).exit, 0);
    assert_int_equal(in_child({}, check_all_plain<__half, float>).exit, 0);
    assert_int_equal(in_child({}, check_all_plain<__nv_bfloat16, __nv_bfloat16>).exit, 0);
    assert_int_equal(in_child({}, check_all_plain<__nv_bfloat16, float>).exit, 0);
}

template <typename T, typename D> static int check_all_epilogues()
{
    for (cublasLtEpilogue_t epilogue :
         {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX,
          CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD,
          CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB})
        for (float beta : {0.0f, 1.0f})
            if (int wrong = check_product<T, D>({false, true, false, beta, 1, epilogue}))
                return int(epilogue % 128) * 8 % 250 + wrong;
    return 0;
}

static void epilogues_are_those_of_the_definition(void **)
{
    assert_int_equal(in_child({}, check_all_epilogues<float, float>).exit, 0);
    assert_int_equal(in_child({}, check_all_epilogues<__half, __half>).exit, 0);
    assert_int_equal(in_child({}, check_all_epilogues<__nv_bfloat16, __nv_bfloat16>).exit, 0);
}

/* Two streams at a time; the products are ordered by nothing but a workspace each, or share one. */
static int two_products(bool one_workspace)
{
    matrix<float> a(k, k, false, 1, 1), first(k, k, false, 1, 2), second(k, k, false, 1, 3);
    library lt;
    cublasLtMatmulHeuristicResult_t result;
    int found;
    MUST(cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.description, a.layout, a.layout, a.layout, a.layout,
                                        lt.preference, 1, &result, &found));
    char *workspaces[2] = {device_array<char>(lt.workspace_bytes), device_array<char>(lt.workspace_bytes)};
    const float one = 1, zero = 0;
    for (int i = 0; i < 2; i++) {
        cudaStream_t stream;
        float *out = i ? second.device : first.device;
        MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        MUST(cublasLtMatmul(lt.handle, lt.description, &one, a.device, a.layout, a.device, a.layout, &zero, out,
                            a.layout, out, a.layout, &result.algo, workspaces[one_workspace ? 0 : i],
                            lt.workspace_bytes, stream));
    }
    MUST(cudaDeviceSynchronize());
    return std::isfinite(first.read()[0]) && std::isfinite(second.read()[0]) ? 0 : 1;
}

static void a_workspace_of_two_streams_shows(void **)
{
    assert_int_equal(wrong_seeds(20, [] { return two_products(false); }), 0);
    int wrong = wrong_seeds(20, [] { return two_products(true); });
    print_message("with one workspace %d of 20 seeds are wrong\n", wrong);
    assert_true(wrong >= 5);
}

/* --- refusals ----------------------------------------------------------------------------------------------------- */

/* The status of a product in fp32 after `change` has worked on its parts. */
struct parts {
    library lt;
    matrix<float> a = {m, k, false, 1, 1}, b = {k, n, false, 1, 2}, d = {m, n, false, 1, 3};
    float *a_device = a.device, *d_device = d.device;
};

static cublasStatus_t status_after(void (*change)(parts &))
{
    return cublasStatus_t(in_child({}, [=] {
                              parts p;
                              change(p);
                              const float one = 1, zero = 0;
                              return int(cublasLtMatmul(p.lt.handle, p.lt.description, &one, p.a_device, p.a.layout,
                                                        p.b.device, p.b.layout, &zero, p.d_device, p.d.layout,
                                                        p.d_device, p.d.layout, nullptr, nullptr, 0, nullptr));
                          }).exit);
}

static void what_does_not_fit_is_refused(void **)
{
    assert_int_equal(status_after([](parts &) {}), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(status_after([](parts &p) { p.lt.set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T); }),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(status_after([](parts &p) { p.a_device++; }), CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(status_after([](parts &p) { p.a_device += 64; }), CUBLAS_STATUS_INVALID_VALUE); // its end
    assert_int_equal(status_after([](parts &p) {
                         static float host[m * n * 2];
                         void *pinned;
                         MUST(cudaMallocHost(&pinned, sizeof host));
                         p.d_device = static_cast<float *>(pinned);
                     }),
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(status_after([](parts &p) { p.lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_RELU); }),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_int_equal(
        status_after([](parts &p) { p.lt.set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_GELU_AUX); }),
        CUBLAS_STATUS_INVALID_VALUE); // no leading dimension
    assert_int_equal(in_child({},
                              [] {
                                  parts p;
                                  int64_t epilogue = CUBLASLT_EPILOGUE_BIAS;
                                  return int(cublasLtMatmulDescSetAttribute(
                                      p.lt.description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
                              })
                         .exit,
                     CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(in_child({},
                              [] {
                                  parts p;
                                  int32_t on = 1;
                                  return int(cublasLtMatmulDescSetAttribute(
                                      p.lt.description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &on, sizeof on));
                              })
                         .exit,
                     CUBLAS_STATUS_NOT_SUPPORTED);
}

int main()
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_definition),
        cmocka_unit_test(epilogues_are_those_of_the_definition),
        cmocka_unit_test(a_workspace_of_two_streams_shows),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
