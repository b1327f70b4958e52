/*
 * Token and position embeddings. The backward is spread over columns, so that the order of every sum is the order of
 * the rows whatever the number of threads.
 */
#include "kernels/cpu/element.h"
#include "kernels/cpu/instance.h"

struct embedding {
    element *out;
    const element *wte, *wpe;
    real *dwte, *dwpe;
    const element *dout;
    const int32_t *tokens;
    size_t rows, context, width;
};

static void forward_rows(const void *arguments, struct cpu_share share)
{
    const struct embedding *e = arguments;
    real token_buffer[CHUNK], position_buffer[CHUNK];
    for (size_t r = share.begin; r < share.end; r++) {
        const element *token_row = e->wte + (size_t)e->tokens[r] * e->width;
        const element *position_row = e->wpe + r % e->context * e->width;
        for (size_t c = 0; c < e->width; c += CHUNK) {
            const size_t n = smaller(CHUNK, e->width - c);
            const real *token = widen(token_buffer, token_row + c, n);
            const real *position = widen(position_buffer, position_row + c, n);
            real *sum = place(token_buffer, e->out + r * e->width + c);
            SIMD for (size_t i = 0; i < n; i++) sum[i] = token[i] + position[i];
            narrow(e->out + r * e->width + c, sum, n);
        }
    }
}

void cpu_embedding_forward(struct kernels *kernels, compute *out, const int32_t *tokens, const compute *wte,
                           const compute *wpe, size_t batch, size_t context, size_t width)
{
    const struct embedding e = {.out = out,
                                .wte = wte,
                                .wpe = wpe,
                                .tokens = tokens,
                                .rows = batch * context,
                                .context = context,
                                .width = width};
    cpu_spread(kernels, forward_rows, &e, e.rows, 8);
}

static void add_to(real *sum, const real *d, size_t n)
{
    SIMD for (size_t i = 0; i < n; i++) sum[i] += d[i];
}

static void backward_columns(const void *arguments, struct cpu_share share)
{
    const struct embedding *e = arguments;
    real buffer[CHUNK];
    for (size_t c = share.begin; c < share.end; c += CHUNK) {
        const size_t n = smaller(CHUNK, share.end - c);
        for (size_t r = 0; r < e->rows; r++) {
            const real *d = widen(buffer, e->dout + r * e->width + c, n);
            if (e->dwte) add_to(e->dwte + (size_t)e->tokens[r] * e->width + c, d, n);
            if (e->dwpe) add_to(e->dwpe + r % e->context * e->width + c, d, n);
        }
    }
}

void cpu_embedding_backward(struct kernels *kernels, wide *dwte, wide *dwpe, const compute *dout, const int32_t *tokens,
                            size_t batch, size_t context, size_t width)
{
    const struct embedding e = {.dwte = dwte,
                                .dwpe = dwpe,
                                .dout = dout,
                                .tokens = tokens,
                                .rows = batch * context,
                                .context = context,
                                .width = width};
    if (dwte || dwpe) cpu_spread(kernels, backward_columns, &e, width, 16);
}
