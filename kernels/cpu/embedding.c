/*
 * Token and position embeddings. The backward is spread over columns, so that the order of every sum is the order of
 * the rows whatever the number of threads.
 */
#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

static void forward_rows(element *out, const int32_t *tokens, const element *wte, const element *wpe, size_t context,
                         size_t width, size_t begin, size_t end)
{
    real token_buffer[CHUNK], position_buffer[CHUNK];
    for (size_t r = begin; r < end; r++) {
        for (size_t c = 0; c < width; c += CHUNK) {
            const size_t n = smaller(CHUNK, width - c);
            const real *token = widen(token_buffer, wte + (size_t)tokens[r] * width + c, n);
            const real *position = widen(position_buffer, wpe + r % context * width + c, n);
            real *sum = place(token_buffer, out + r * width + c);
            SIMD for (size_t i = 0; i < n; i++) sum[i] = token[i] + position[i];
            narrow(out + r * width + c, sum, n);
        }
    }
}

void cpu_embedding_forward(struct kernels *kernels, compute *out, const int32_t *tokens, const compute *wte,
                           const compute *wpe, size_t batch, size_t context, size_t width)
{
    const size_t rows = batch * context;
    CPU_PARALLEL(kernels, rows, 8, forward_rows(out, tokens, wte, wpe, context, width, begin, end));
}

static void backward_columns(real *dwte, real *dwpe, const element *dout, const int32_t *tokens, size_t rows,
                             size_t context, size_t width, size_t begin, size_t end)
{
    real buffer[CHUNK];
    for (size_t c = begin; c < end; c += CHUNK) {
        const size_t n = smaller(CHUNK, end - c);
        for (size_t r = 0; r < rows; r++) {
            const real *d = widen(buffer, dout + r * width + c, n);
            real *token = dwte + (size_t)tokens[r] * width + c, *position = dwpe + r % context * width + c;
            SIMD for (size_t i = 0; i < n; i++)
            {
                token[i] += d[i];
                position[i] += d[i];
            }
        }
    }
}

void cpu_embedding_backward(struct kernels *kernels, wide *dwte, wide *dwpe, const compute *dout, const int32_t *tokens,
                            size_t batch, size_t context, size_t width)
{
    const size_t rows = batch * context;
    CPU_PARALLEL(kernels, width, 16, backward_columns(dwte, dwpe, dout, tokens, rows, context, width, begin, end));
}
