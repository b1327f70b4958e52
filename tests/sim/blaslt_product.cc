#include "blaslt.h"

#include "element.h"
#include "settings.h"

#include <cmath>
#include <vector>

namespace sim
{

namespace
{

size_t index_in(const matrix_layout &layout, size_t row, size_t column)
{
    return layout.order == CUBLASLT_ORDER_COL ? row + column * size_t(layout.ld) : row * size_t(layout.ld) + column;
}

/* Row-major copies as W, and back. */
template <typename W, typename T>
void load(std::vector<W> &to, const T *from, const matrix_layout &layout, bool transpose)
{
    to.resize(layout.rows * layout.columns);
    for (size_t r = 0; r < layout.rows; r++)
        for (size_t c = 0; c < layout.columns; c++)
            to[transpose ? c * layout.rows + r : r * layout.columns + c] = W(widened(from[index_in(layout, r, c)]));
}

template <typename T, typename W> void store(T *to, const std::vector<W> &from, const matrix_layout &layout)
{
    for (size_t r = 0; r < layout.rows; r++)
        for (size_t c = 0; c < layout.columns; c++)
            to[index_in(layout, r, c)] = narrowed<T>(from[r * layout.columns + c]);
}

/* Call `body` with a pointer of the element type to element `offset` of `base`. */
template <typename Pointer, typename Body> void with_type(cudaDataType type, Pointer *base, size_t offset, Body body)
{
    auto at = [=](auto *typed) { body(typed + offset); };
    constexpr bool constant = std::is_const_v<Pointer>;
    switch (type) {
    case CUDA_R_32F:
        return at(static_cast<std::conditional_t<constant, const float, float> *>(base));
    case CUDA_R_64F:
        return at(static_cast<std::conditional_t<constant, const double, double> *>(base));
    case CUDA_R_16F:
        return at(static_cast<std::conditional_t<constant, const __half, __half> *>(base));
    default:
        return at(static_cast<std::conditional_t<constant, const __nv_bfloat16, __nv_bfloat16> *>(base));
    }
}

template <typename W>
std::vector<W> read(const matrix_layout &layout, const void *base, int batch, bool transpose = false)
{
    std::vector<W> values;
    with_type(layout.type, base, size_t(batch) * size_t(layout.stride),
              [&](const auto *from) { load(values, from, layout, transpose); });
    return values;
}

template <typename W> void write(const matrix_layout &layout, void *base, int batch, const std::vector<W> &values)
{
    with_type(layout.type, base, size_t(batch) * size_t(layout.stride), [&](auto *to) { store(to, values, layout); });
}

/* A vector of `n`, packed. */
matrix_layout vector_layout(cudaDataType type, uint64_t n)
{
    return {type, n, 1, int64_t(n), CUBLASLT_ORDER_COL, 1, 0};
}

const double gelu_factor = 0.7978845608028654, gelu_cube = 0.044715; /* √(2/π); Hendrycks and Gimpel 2016 */

template <typename W> W gelu(W x)
{
    return W(0.5) * x * (1 + std::tanh(W(gelu_factor) * (x + W(gelu_cube) * x * x * x)));
}

template <typename W> W gelu_derivative(W x)
{
    W t = std::tanh(W(gelu_factor) * (x + W(gelu_cube) * x * x * x));
    return W(0.5) * (1 + t) + W(0.5) * x * (1 - t * t) * W(gelu_factor) * (1 + 3 * W(gelu_cube) * x * x);
}

/* What stands behind the product in one call: the bits of an epilogue. */
const unsigned with_bias = CUBLASLT_EPILOGUE_BIAS, with_gelu = CUBLASLT_EPILOGUE_GELU, keeps_aux = 128,
               derivative = CUBLASLT_EPILOGUE_DGELU & ~keeps_aux, bias_gradient = 16;

template <typename W> class worker
{
  public:
    explicit worker(const matmul &product) : p_(product), d_(product.layout_d)
    {
    }

    void run()
    {
        for (int batch = 0; batch < d_.batches; batch++) {
            multiply(batch);
            epilogue(batch);
            write(d_, p_.d, batch, result_);
        }
    }

  private:
    void multiply(int batch)
    {
        bool ta = p_.description.a == CUBLAS_OP_T, tb = p_.description.b == CUBLAS_OP_T;
        a_ = read<W>(p_.layout_a, p_.a, batch, ta);
        b_ = read<W>(p_.layout_b, p_.b, batch, tb);
        size_t k = ta ? p_.layout_a.rows : p_.layout_a.columns, m = d_.rows, n = d_.columns;
        std::vector<W> sums(m * n, 0);
        for (size_t i = 0; i < m; i++)
            for (size_t l = 0; l < k; l++)
                for (size_t j = 0; j < n; j++) sums[i * n + j] += a_[i * k + l] * b_[l * n + j];
        result_.resize(m * n);
        for (size_t i = 0; i < m * n; i++) result_[i] = W(p_.alpha) * sums[i];
        if (p_.beta == 0) return; // C is not read
        std::vector<W> c = read<W>(d_, p_.c, batch);
        for (size_t i = 0; i < m * n; i++) result_[i] += W(p_.beta) * c[i];
    }

    void epilogue(int batch)
    {
        unsigned kind = p_.description.epilogue;
        cudaDataType bias_type = p_.description.bias_type < 0 ? d_.type : cudaDataType(p_.description.bias_type);
        if (kind == CUBLASLT_EPILOGUE_BGRADA || kind == CUBLASLT_EPILOGUE_BGRADB) {
            operand_sums(kind == CUBLASLT_EPILOGUE_BGRADA, bias_type);
            return;
        }
        if (kind & with_bias) add_bias(bias_type);
        cudaDataType aux_type = p_.description.aux_type < 0 ? d_.type : cudaDataType(p_.description.aux_type);
        matrix_layout aux = {aux_type, d_.rows, d_.columns, p_.description.aux_ld, CUBLASLT_ORDER_COL, 1, 0};
        if ((kind & derivative) == derivative) {
            std::vector<W> x = read<W>(aux, p_.description.aux, batch);
            for (size_t i = 0; i < result_.size(); i++) result_[i] *= gelu_derivative(x[i]);
        } else if (kind & with_gelu) {
            if (kind & keeps_aux) write(aux, p_.description.aux, batch, result_);
            for (W &x : result_) x = gelu(x);
        }
        if (kind & bias_gradient) row_sums(bias_type);
    }

    void add_bias(cudaDataType type)
    {
        std::vector<W> bias = read<W>(vector_layout(type, d_.rows), p_.description.bias, 0);
        for (size_t r = 0; r < d_.rows; r++)
            for (size_t c = 0; c < d_.columns; c++) result_[r * d_.columns + c] += bias[r];
    }

    /* Of the result, over its columns. */
    void row_sums(cudaDataType type)
    {
        std::vector<W> sums(d_.rows, 0);
        for (size_t r = 0; r < d_.rows; r++)
            for (size_t c = 0; c < d_.columns; c++) sums[r] += result_[r * d_.columns + c];
        write(vector_layout(type, sums.size()), p_.description.bias, 0, sums);
    }

    /* Of op(A) or op(B), over k. */
    void operand_sums(bool of_a, cudaDataType type)
    {
        size_t length = of_a ? d_.rows : d_.columns, k = (of_a ? a_ : b_).size() / length;
        std::vector<W> sums(length, 0);
        for (size_t l = 0; l < k; l++)
            for (size_t i = 0; i < length; i++) sums[i] += of_a ? a_[i * k + l] : b_[l * length + i];
        write(vector_layout(type, length), p_.description.bias, 0, sums);
    }

    const matmul &p_;
    const matrix_layout &d_;
    std::vector<W> a_, b_, result_; // op(A) [m,k], op(B) [k,n], [m,n]
};

} // namespace

size_t element_bytes(cudaDataType type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}

size_t layout_bytes(const matrix_layout &layout)
{
    bool by_columns = layout.order == CUBLASLT_ORDER_COL;
    uint64_t runs = by_columns ? layout.columns : layout.rows, run = by_columns ? layout.rows : layout.columns;
    uint64_t elements = uint64_t(layout.batches - 1) * uint64_t(layout.stride) + (runs - 1) * uint64_t(layout.ld) + run;
    return elements * element_bytes(layout.type);
}

void multiply(const matmul &product)
{
    if (product.description.compute == CUBLAS_COMPUTE_64F)
        worker<double>(product).run();
    else
        worker<float>(product).run();
}

} // namespace sim
