/*
 * kernels [TYPE [THREADS]]: every kernel at the shapes of nanoGPT's CPU recipe (4 layers, 4 heads, 128 wide, context
 * 64, micro-batches of 12, 256 tokens), twice: hot, the best of many runs on the same buffers, and streamed, the median
 * over buffers that are met in turn and have left the cache meanwhile, as a model's do. Products are set against bare
 * calls of the faster library at the same shapes, hot and streamed in the same run: oneDNN in fp32, and OpenBLAS for
 * the six small products of attention (two forward, four backward; what a backward by blocks works out once more is not
 * counted). The last lines add up the calls of one micro-batch: what all that is not a product costs beside the
 * products, and which share of the rate of bare products is left.
 */
#include <cblas.h>
#include <dnnl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernels/kernels.h"

enum {
    LAYERS = 4,
    HEADS = 4,
    WIDTH = 128,
    CONTEXT = 64,
    BATCH = 12,
    ROWS = BATCH * CONTEXT,
    VOCAB = 256,
    STRIDE = 256
};
enum { PARAMETERS = LAYERS * 12 * WIDTH * WIDTH + (VOCAB + CONTEXT) * WIDTH };

static struct kernels *kernels;
static const struct kernel_table *table;

/* Buffers, each large enough for every use: activations (of the set that is in use), parameters, and what is wide or
 * double. */
enum { SETS = 16, ACTIVATIONS = 5 };
static void *sets[SETS][ACTIVATIONS], **act = sets[0], *weight, *small;
static float *bare_weight;
static void *grad, *moment[2], *master, *rows_wide[2];
static double ones[ROWS], targets[ROWS];
static int32_t tokens[ROWS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void refill(void);

struct timing {
    double hot, streamed; /* seconds */
};

enum { HOT_RUNS = 40, STREAMED_RUNS = 2 * SETS };

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double seconds_of(void (*call)(const void *), const void *argument)
{
    const double start = now();
    call(argument);
    return now() - start;
}

static struct timing measure(void (*call)(const void *), const void *argument)
{
    double hot[HOT_RUNS], streamed[STREAMED_RUNS];
    refill();
    for (size_t i = 0; i < HOT_RUNS; i++) hot[i] = seconds_of(call, argument);
    for (size_t i = 0; i < STREAMED_RUNS; i++) {
        act = sets[i % SETS];
        streamed[i] = seconds_of(call, argument);
    }
    act = sets[0];
    qsort(hot, HOT_RUNS, sizeof *hot, ascending);
    qsort(streamed, STREAMED_RUNS, sizeof *streamed, ascending);
    return (struct timing){hot[0], streamed[STREAMED_RUNS / 2]};
}

/* --- what one micro-batch is made of ---------------------------------------------------------------------------------
 */

struct entry {
    const char *name;
    void (*call)(void);
    int calls;           /* per micro-batch */
    double flops, bytes; /* per call: products count flops, the rest the bytes they move (in fp32) */
    enum { PRODUCT, ATTENTION, REST } kind;
    char ta, tb; /* the bare product */
    int m, n, k;
    void (*bare)(void); /* attention: its bare products */
};

static const struct linear_shape qkv = {ROWS, WIDTH, 3 * WIDTH, WEIGHT_IN_OUT, 0},
                                 proj = {ROWS, WIDTH, WIDTH, WEIGHT_IN_OUT, 0},
                                 up = {ROWS, WIDTH, 4 * WIDTH, WEIGHT_IN_OUT, 0},
                                 down = {ROWS, 4 * WIDTH, WIDTH, WEIGHT_IN_OUT, 0},
                                 head = {ROWS, WIDTH, VOCAB, WEIGHT_OUT_IN, STRIDE};
static const struct attention_shape attention = {BATCH, CONTEXT, HEADS, WIDTH / HEADS};

#define FORWARD(name, shape, pre, activation)                                                 \
    static void name(void)                                                                    \
    {                                                                                         \
        table->linear_forward(kernels, act[1], pre, act[0], weight, NULL, shape, activation); \
    }
#define INPUT(name, shape, pre, activation)                                                         \
    static void name(void)                                                                          \
    {                                                                                               \
        table->linear_backward_input(kernels, act[1], pre, act[0], weight, pre, shape, activation); \
    }
#define WEIGHT(name, shape)                                                        \
    static void name(void)                                                         \
    {                                                                              \
        table->linear_backward_weight(kernels, grad, NULL, act[0], act[1], shape); \
    }

FORWARD(qkv_forward, qkv, NULL, ACTIVATE_NONE)
FORWARD(proj_forward, proj, NULL, ACTIVATE_NONE)
FORWARD(up_forward, up, NULL, ACTIVATE_NONE)
FORWARD(up_gelu_forward, up, act[2], ACTIVATE_GELU)
FORWARD(down_forward, down, NULL, ACTIVATE_NONE)
FORWARD(head_forward, head, NULL, ACTIVATE_NONE)
INPUT(qkv_input, qkv, NULL, ACTIVATE_NONE)
INPUT(proj_input, proj, NULL, ACTIVATE_NONE)
INPUT(up_input, up, NULL, ACTIVATE_NONE)
INPUT(down_input, down, NULL, ACTIVATE_NONE)
INPUT(down_gelu_input, down, act[2], ACTIVATE_GELU)
INPUT(head_input, head, NULL, ACTIVATE_NONE)
WEIGHT(qkv_weight, qkv)
WEIGHT(proj_weight, proj)
WEIGHT(up_weight, up)
WEIGHT(down_weight, down)
WEIGHT(head_weight, head)

static void attention_forward(void)
{
    table->attention_forward(kernels, act[1], rows_wide[0], act[0], NULL, attention);
}

static void attention_backward(void)
{
    table->attention_backward(kernels, act[3], act[2], act[1], rows_wide[0], act[0], NULL, attention);
}

/* One head's product of every head of every sequence, op(a)·op(b) of [m,k]·[k,n]. Operands of the head's own size lie
 * in rows of qkv or of the output, scores by themselves. */
static void bare_heads(enum CBLAS_TRANSPOSE ta, int m, int n, int k, const float *a, int a_stride, const float *b,
                       int b_stride, float *c, int c_stride)
{
    for (int sequence = 0; sequence < BATCH; sequence++)
        for (int h = 0; h < HEADS; h++) {
            const long row = (long)sequence * CONTEXT, column = (long)h * (WIDTH / HEADS);
            const enum CBLAS_TRANSPOSE tb = n == CONTEXT ? CblasTrans : CblasNoTrans;
            cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, 1, a_stride == CONTEXT ? a : a + row * a_stride + column,
                        a_stride, b + row * b_stride + column, b_stride, 0,
                        c_stride == CONTEXT ? c : c + row * c_stride + column, c_stride);
        }
}

static float scores[CONTEXT * CONTEXT];
enum { SIZE = WIDTH / HEADS };

/* s = q·kᵀ; o = p·v */
static void bare_attention_forward(void)
{
    bare_heads(CblasNoTrans, CONTEXT, CONTEXT, SIZE, act[0], 3 * WIDTH, act[0], 3 * WIDTH, scores, CONTEXT);
    bare_heads(CblasNoTrans, CONTEXT, SIZE, CONTEXT, scores, CONTEXT, act[0], 3 * WIDTH, act[1], WIDTH);
}

/* dp = do·vᵀ; dv = pᵀ·do; dq = ds·k; dk = dsᵀ·q */
static void bare_attention_backward(void)
{
    bare_heads(CblasNoTrans, CONTEXT, CONTEXT, SIZE, act[2], WIDTH, act[0], 3 * WIDTH, scores, CONTEXT);
    bare_heads(CblasTrans, CONTEXT, SIZE, CONTEXT, scores, CONTEXT, act[2], WIDTH, act[3], 3 * WIDTH);
    bare_heads(CblasNoTrans, CONTEXT, SIZE, CONTEXT, scores, CONTEXT, act[0], 3 * WIDTH, act[3], 3 * WIDTH);
    bare_heads(CblasTrans, CONTEXT, SIZE, CONTEXT, scores, CONTEXT, act[0], 3 * WIDTH, act[3], 3 * WIDTH);
}

static void layernorm_forward(void)
{
    table->layernorm_forward(kernels, act[2], act[3], rows_wide[0], rows_wide[1], act[0], act[1], small, NULL, ROWS,
                             WIDTH);
}

static void layernorm_backward(void)
{
    table->layernorm_backward(kernels, act[3], act[2], grad, NULL, act[0], act[1], rows_wide[0], rows_wide[1], small,
                              ROWS, WIDTH);
}

static void cross_entropy(void)
{
    double loss = 0;
    table->cross_entropy(kernels, act[4], tokens, ones, rows_wide[0], ROWS, 1, VOCAB, STRIDE, &loss);
}

static void embedding_forward(void)
{
    table->embedding_forward(kernels, act[1], tokens, weight, small, BATCH, CONTEXT, WIDTH);
}

static void embedding_backward(void)
{
    table->embedding_backward(kernels, grad, moment[0], act[0], tokens, BATCH, CONTEXT, WIDTH);
}

static void add(void)
{
    table->add(kernels, act[2], act[0], 1, act[1], ROWS * WIDTH);
}

static void dropout(void)
{
    static const uint64_t sequence[BATCH], key = 0x910A2DEC89025CC1;
    const struct dropout bits = {.p = 0.1, .site = 0, .key = &key, .sequence = sequence};
    table->dropout(kernels, act[1], act[0], &bits, BATCH, CONTEXT * WIDTH);
}

static void attention_forward_dropout(void)
{
    static const uint64_t sequence[BATCH], key = 0x910A2DEC89025CC1;
    const struct dropout bits = {.p = 0.1, .site = 0, .key = &key, .sequence = sequence};
    table->attention_forward(kernels, act[1], rows_wide[0], act[0], &bits, attention);
}

static void squared_error(void)
{
    double loss = 0;
    table->squared_error(kernels, act[1], act[0], targets, ones, rows_wide[0], 0.5, ROWS, 1, &loss);
}

static void cast(void)
{
    table->cast(kernels, weight, master, PARAMETERS);
}

static void accumulate(void)
{
    table->accumulate(kernels, grad, weight, PARAMETERS);
}

static void check(void)
{
    struct gradient_check sums = {0};
    table->check(kernels, &sums, grad, PARAMETERS, 0x1p-16);
}

static void update(void)
{
    const struct update u = {OPTIMIZER_KIND_ADAMW, 1e-5, 0.9, 0.99, 1e-8, 0, 0.1, 0x1p-16, 10};
    table->update(kernels, master, moment[0], moment[1], grad, PARAMETERS, &u);
}

static void large_attention_forward(void)
{
    table->attention_forward(kernels, act[1], rows_wide[0], act[0], NULL, (struct attention_shape){1, 1024, 2, 64});
}

static void large_attention_backward(void)
{
    table->attention_backward(kernels, act[3], act[2], act[1], rows_wide[0], act[0], NULL,
                              (struct attention_shape){1, 1024, 2, 64});
}

#define N 'N'
#define T 'T'
#define PRODUCTS(shape, in, out) 2.0 * ROWS *in *out, 0, PRODUCT
#define HEAD_PRODUCTS(count) (count) * 2.0 * ROWS *CONTEXT *WIDTH, 0, ATTENTION
#define MOVES(elements) 0, 4.0 * (elements), REST

static const struct entry entries[] = {
    {"qkv forward", qkv_forward, LAYERS, PRODUCTS(qkv, WIDTH, 3 * WIDTH), N, N, ROWS, 3 * WIDTH, WIDTH, NULL},
    {"proj forward", proj_forward, LAYERS, PRODUCTS(proj, WIDTH, WIDTH), N, N, ROWS, WIDTH, WIDTH, NULL},
    {"up forward", up_forward, 0, PRODUCTS(up, WIDTH, 4 * WIDTH), N, N, ROWS, 4 * WIDTH, WIDTH, NULL},
    {"up forward + gelu", up_gelu_forward, LAYERS, PRODUCTS(up, WIDTH, 4 * WIDTH), N, N, ROWS, 4 * WIDTH, WIDTH, NULL},
    {"down forward", down_forward, LAYERS, PRODUCTS(down, 4 * WIDTH, WIDTH), N, N, ROWS, WIDTH, 4 * WIDTH, NULL},
    {"head forward", head_forward, 1, PRODUCTS(head, WIDTH, VOCAB), N, T, ROWS, VOCAB, WIDTH, NULL},
    {"qkv input", qkv_input, LAYERS, PRODUCTS(qkv, WIDTH, 3 * WIDTH), N, T, ROWS, WIDTH, 3 * WIDTH, NULL},
    {"proj input", proj_input, LAYERS, PRODUCTS(proj, WIDTH, WIDTH), N, T, ROWS, WIDTH, WIDTH, NULL},
    {"up input", up_input, LAYERS, PRODUCTS(up, WIDTH, 4 * WIDTH), N, T, ROWS, WIDTH, 4 * WIDTH, NULL},
    {"down input", down_input, 0, PRODUCTS(down, 4 * WIDTH, WIDTH), N, T, ROWS, 4 * WIDTH, WIDTH, NULL},
    {"down input + gelu'", down_gelu_input, LAYERS, PRODUCTS(down, 4 * WIDTH, WIDTH), N, T, ROWS, 4 * WIDTH, WIDTH,
     NULL},
    {"head input", head_input, 1, PRODUCTS(head, WIDTH, VOCAB), N, N, ROWS, WIDTH, VOCAB, NULL},
    {"qkv weight", qkv_weight, LAYERS, PRODUCTS(qkv, WIDTH, 3 * WIDTH), T, N, WIDTH, 3 * WIDTH, ROWS, NULL},
    {"proj weight", proj_weight, LAYERS, PRODUCTS(proj, WIDTH, WIDTH), T, N, WIDTH, WIDTH, ROWS, NULL},
    {"up weight", up_weight, LAYERS, PRODUCTS(up, WIDTH, 4 * WIDTH), T, N, WIDTH, 4 * WIDTH, ROWS, NULL},
    {"down weight", down_weight, LAYERS, PRODUCTS(down, 4 * WIDTH, WIDTH), T, N, 4 * WIDTH, WIDTH, ROWS, NULL},
    {"head weight", head_weight, 1, PRODUCTS(head, WIDTH, VOCAB), T, N, VOCAB, WIDTH, ROWS, NULL},
    {"attention forward", attention_forward, LAYERS, HEAD_PRODUCTS(2), N, N, 0, 0, 0, bare_attention_forward},
    {"attention backward", attention_backward, LAYERS, HEAD_PRODUCTS(4), N, N, 0, 0, 0, bare_attention_backward},
    {"layernorm forward", layernorm_forward, 2 * LAYERS + 1, MOVES(4.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"layernorm backward", layernorm_backward, 2 * LAYERS + 1, MOVES(4.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"cross entropy", cross_entropy, 1, MOVES(2.0 * ROWS * STRIDE), N, N, 0, 0, 0, NULL},
    {"embedding forward", embedding_forward, 1, MOVES(2.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"embedding backward", embedding_backward, 1, MOVES(2.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"add", add, 0, MOVES(3.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"dropout", dropout, 0, MOVES(2.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"attention fwd dropout", attention_forward_dropout, 0, MOVES(4.0 * ROWS * WIDTH), N, N, 0, 0, 0, NULL},
    {"squared error", squared_error, 0, MOVES(2.0 * ROWS), N, N, 0, 0, 0, NULL},
    {"cast", cast, 0, 0, 8.0 * PARAMETERS, REST, N, N, 0, 0, 0, NULL},
    {"accumulate", accumulate, 0, 0, 12.0 * PARAMETERS, REST, N, N, 0, 0, 0, NULL},
    {"check", check, 0, 0, 4.0 * PARAMETERS, REST, N, N, 0, 0, 0, NULL},
    {"update", update, 0, 0, 28.0 * PARAMETERS, REST, N, N, 0, 0, 0, NULL},
    {"attention fwd 1024×64×2", large_attention_forward, 0, 4.0 * 2 * 64 * 1024 * 1024 / 2, 0, REST, N, N, 0, 0, 0,
     NULL},
    {"attention bwd 1024×64×2", large_attention_backward, 0, 10.0 * 2 * 64 * 1024 * 1024 / 2, 0, REST, N, N, 0, 0, 0,
     NULL},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- running it
 * ------------------------------------------------------------------------------------------------------- */

static void call_kernel(const void *entry)
{
    ((const struct entry *)entry)->call();
}

/* A weight's gradient stays where it is from micro-batch to micro-batch, and so does the weight. */
static void call_bare(const void *entry)
{
    const struct entry *e = entry;
    if (e->bare) {
        e->bare();
        return;
    }
    const bool gradient = e->ta == T;
    dnnl_sgemm(e->ta, e->tb, e->m, e->n, e->k, 1, act[0], gradient ? e->m : e->k, gradient ? act[1] : bare_weight,
               e->tb == T ? e->k : e->n, gradient, gradient ? bare_weight : act[2], e->n);
}

static double reals[ROWS * 4 * WIDTH > PARAMETERS ? ROWS * 4 * WIDTH : PARAMETERS];

static void set_wide(void *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (kernels->compute_type == DTYPE_FP64)
            ((double *)out)[i] = reals[i];
        else
            ((float *)out)[i] = (float)reals[i];
    }
}

static void refill(void)
{
    const size_t activations = ROWS * 4 * WIDTH;
    for (size_t i = 0; i < COUNT(reals); i++) reals[i] = 0.3 * sin(1.7 * (double)i);
    set_wide(master, COUNT(reals));
    for (size_t s = 0; s < SETS; s++)
        for (size_t i = 0; i < ACTIVATIONS; i++) table->cast(kernels, sets[s][i], master, activations);
    table->cast(kernels, weight, master, PARAMETERS);
    table->cast(kernels, small, master, WIDTH * CONTEXT);
    set_wide(grad, PARAMETERS);
    for (size_t i = 0; i < PARAMETERS; i++) reals[i] = fabs(reals[i]) + 1e-3;
    for (int i = 0; i < 2; i++) set_wide(moment[i], PARAMETERS), set_wide(rows_wide[i], ROWS * HEADS);
}

/* On huge pages where there are any: what is measured is the cache, not the page table. */
static void *allocate(size_t elements)
{
    const size_t page = (size_t)2 << 20, bytes = (elements * sizeof(double) + page - 1) / page * page;
    void *memory = aligned_alloc(page, bytes);
    if (!memory) exit(71);
    madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

static void print_time(const struct entry *e, double seconds)
{
    printf(" %9.1f", 1e6 * seconds);
    printf(e->flops > 0 ? " %6.1f GFLOP/s" : " %6.1f GB/s   ", 1e-9 * (e->flops > 0 ? e->flops : e->bytes) / seconds);
}

/* Seconds of a micro-batch by kind. */
struct sums {
    double bare, bare_attention, products, attention, rest, flops;
};

static void print_sum(const char *name, const struct sums *s)
{
    const double bare = s->bare + s->bare_attention, all = s->products + s->attention + s->rest;
    printf(
        "one micro-batch, %s: bare products %.2f ms (%.0f GFLOP/s; %.2f ms of them attention's), products with "
        "activations %.2f ms, attention %.2f ms, the rest %.2f ms: %.1f %% of what bare products would allow, %.1f k "
        "tokens/s\n",
        name, 1e3 * bare, 1e-9 * s->flops / bare, 1e3 * s->bare_attention, 1e3 * s->products, 1e3 * s->attention,
        1e3 * s->rest, 100 * bare / all, 1e-3 * ROWS / all);
}

static void add_up(struct sums *sums, const struct entry *e, double ours, double bare)
{
    double *const kinds[] = {[PRODUCT] = &sums->products, [ATTENTION] = &sums->attention, [REST] = &sums->rest};
    *kinds[e->kind] += e->calls * ours;
    if (e->kind == REST) return;
    *(e->kind == PRODUCT ? &sums->bare : &sums->bare_attention) += e->calls * bare;
    sums->flops += e->calls * e->flops;
}

int main(int argc, char **argv)
{
    struct kernels_options options = {.compute_type = DTYPE_FP32, .threads = argc > 2 ? atoi(argv[2]) : 1};
    for (enum dtype type = DTYPE_FP32; argc > 1 && type <= DTYPE_FP64; type++)
        if (strcmp(argv[1], dtype_name(type)) == 0) options.compute_type = type;
    kernels = kernels_open_cpu(&options);
    if (!kernels) return 71;
    table = kernels->table;
    for (size_t s = 0; s < SETS; s++)
        for (size_t i = 0; i < ACTIVATIONS; i++) sets[s][i] = allocate(COUNT(reals) / 2);
    weight = allocate(COUNT(reals)), small = allocate(WIDTH * CONTEXT), grad = allocate(COUNT(reals));
    master = allocate(COUNT(reals)), bare_weight = allocate(COUNT(reals));
    for (int i = 0; i < 2; i++) moment[i] = allocate(COUNT(reals)), rows_wide[i] = allocate(ROWS * HEADS);
    for (size_t i = 0; i < ROWS; i++) ones[i] = 1, tokens[i] = (int32_t)(i * i % VOCAB);

    struct sums hot = {0}, streamed = {0};
    printf("%s, %d thread(s)\n%-26s %5s %9s %14s %9s %14s %s\n", dtype_name(options.compute_type), kernels->threads,
           "kernel", "calls", "hot: us", "", "streamed", "", "of sgemm (hot, streamed)");
    for (size_t i = 0; i < COUNT(entries); i++) {
        const struct entry *e = &entries[i];
        const struct timing ours = measure(call_kernel, e);
        const struct timing roof = e->kind == REST ? (struct timing){0, 0} : measure(call_bare, e);
        printf("%-26s %5d", e->name, e->calls);
        print_time(e, ours.hot), print_time(e, ours.streamed);
        if (e->kind != REST) printf(" %4.0f%% %4.0f%%", 100 * roof.hot / ours.hot, 100 * roof.streamed / ours.streamed);
        printf("\n");
        add_up(&hot, e, ours.hot, roof.hot);
        add_up(&streamed, e, ours.streamed, roof.streamed);
    }
    print_sum("hot", &hot);
    print_sum("streamed", &streamed);
    kernels_close(kernels);
    return 0;
}
