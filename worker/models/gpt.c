/*
 * gpt: GPT-2 (Radford et al. 2019): learned positions, pre-LayerNorm, fused query-key-value, GELU, a head tied to the
 * token embedding. Stages: embedding, one block per layer, head. Tensor names and orientation are those of the
 * transformers library, so products inside blocks are [in, out]. bias: false leaves out all biases, those of LayerNorm
 * too, as nanoGPT does.
 *
 * B sequences, T context, C width, H heads, V vocabulary, P row length of the logits (V and its padding).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "worker/models/linear.h"

/* One LayerNorm; bias NULL: it has none. */
struct unit {
    const struct tensor *weight, *bias;
};

enum product { ATTN, ATTN_PROJ, FC, MLP_PROJ, PRODUCTS };

struct block {
    struct unit ln_1, ln_2;
    struct linear products[PRODUCTS];
};

struct gpt {
    size_t context, width, heads, vocab, logits_stride;
    enum activation activation;
    double dropout;
    const struct tensor *wte, *wpe; /* [V, C], [T, C] */
    struct unit ln_f;
    struct linear head; /* [V, C]; of wte when tied */
    struct block blocks[];
};

static const struct gpt *gpt_of(const struct stage *stage)
{
    return stage->model->own;
}

/* (B, T) positions of the micro-batch. */
static size_t positions(const struct stage *stage, const struct pass *pass)
{
    return pass->feed.rows * gpt_of(stage)->context;
}

/* --- dropout: one site number per place -----------------------------------------------------------------------------
 */

enum { SITE_EMBEDDING = 0, SITE_FIRST_BLOCK = 1 };
enum block_site { SITE_PROBABILITIES, SITE_ATTENTION, SITE_MLP, SITES_PER_BLOCK };

static uint32_t site_of(const struct stage *block, enum block_site site)
{
    return SITE_FIRST_BLOCK + block->index * SITES_PER_BLOCK + site;
}

/* Fills *dropout and returns it; NULL when nothing is dropped. */
static const struct dropout *dropout_at(const struct stage *stage, const struct pass *pass, uint32_t site,
                                        struct dropout *dropout)
{
    double p = gpt_of(stage)->dropout;
    const struct feed *feed = &pass->feed;
    if (p == 0 || !feed->dropout_key) return NULL;
    *dropout = (struct dropout){.p = p, .site = site, .key = feed->dropout_key, .sequence = feed->sequence};
    return dropout;
}

/* x (B, T, C) after the dropout, or a gradient before it: x itself when nothing is dropped, else in `memory`, which may
 * be x. */
static const compute *drop(const struct stage *stage, const struct pass *pass, uint32_t site, const compute *x,
                           compute *memory)
{
    const struct gpt *gpt = gpt_of(stage);
    struct dropout dropout;
    if (!dropout_at(stage, pass, site, &dropout)) return x;
    pass->kernels->table->dropout(pass->kernels, memory, x, &dropout, pass->feed.rows, gpt->context * gpt->width);
    return memory;
}

/* --- norms of a block ------------------------------------------------------------------------------------------------
 */

/* What LayerNorm keeps for its backward. */
struct normed {
    compute *y;        /* (B, T, C) */
    wide *mean, *rstd; /* (B, T) */
};

static void carve_normed(struct carver *carver, struct normed *normed, const struct stage *stage, size_t rows)
{
    enum dtype type = stage->model->compute_type;
    size_t statistics = rows * dtype_size(dtype_wide(type));
    normed->y = carve(carver, rows * gpt_of(stage)->width * dtype_size(type));
    normed->mean = carve(carver, statistics);
    normed->rstd = carve(carver, statistics);
}

static void norm(const struct pass *pass, const struct unit *unit, const struct normed *normed, compute *sum,
                 const compute *x, const compute *residual, size_t rows)
{
    pass->kernels->table->layernorm_forward(pass->kernels, normed->y, sum, normed->mean, normed->rstd, x, residual,
                                            tensor_parameters(pass, unit->weight), tensor_parameters(pass, unit->bias),
                                            rows, unit->weight->size);
}

static void norm_backward(const struct pass *pass, const struct unit *unit, compute *dx, const compute *dresidual,
                          const compute *dy, const compute *x, const struct normed *normed, size_t rows)
{
    pass->kernels->table->layernorm_backward(pass->kernels, dx, dresidual, tensor_gradient(pass, unit->weight),
                                             tensor_gradient(pass, unit->bias), dy, x, normed->mean, normed->rstd,
                                             tensor_parameters(pass, unit->weight), rows, unit->weight->size);
}

static size_t hidden_bytes(const struct stage *stage, size_t sequences)
{
    const struct gpt *gpt = gpt_of(stage);
    return sequences * gpt->context * gpt->width * dtype_size(stage->model->compute_type);
}

/* --- stage: embedding ------------------------------------------------------------------------------------------------
 */

static size_t embedding_scratch_bytes(const struct stage *stage, size_t sequences)
{
    return gpt_of(stage)->dropout > 0 ? hidden_bytes(stage, sequences) : 0;
}

static void embedding_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out,
                              void *saved, void *scratch)
{
    (void)in, (void)saved, (void)scratch;
    const struct gpt *gpt = gpt_of(stage);
    const struct feed *feed = &pass->feed;
    pass->kernels->table->embedding_forward(pass->kernels, out, feed->tokens, tensor_parameters(pass, gpt->wte),
                                            tensor_parameters(pass, gpt->wpe), feed->rows, gpt->context, gpt->width);
    drop(stage, pass, SITE_EMBEDDING, out, out);
}

static void embedding_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                               const compute *in, void *saved, void *scratch)
{
    (void)din, (void)in, (void)saved;
    const struct gpt *gpt = gpt_of(stage);
    const struct feed *feed = &pass->feed;
    pass->kernels->table->embedding_backward(
        pass->kernels, tensor_gradient(pass, gpt->wte), tensor_gradient(pass, gpt->wpe),
        drop(stage, pass, SITE_EMBEDDING, dout, scratch), feed->tokens, feed->rows, gpt->context, gpt->width);
}

static const struct stage_class embedding_class = {
    .name = "embedding",
    .out_bytes = hidden_bytes,
    .scratch_bytes = embedding_scratch_bytes,
    .forward = embedding_forward,
    .backward = embedding_backward,
};

/* --- stage: block ----------------------------------------------------------------------------------------------------
 */

struct block_saved {
    struct normed ln_1;
    compute *qkv;      /* (B, T, 3C) */
    compute *attended; /* (B, T, C) before its projection */
    wide *lse;         /* (B, H, T) */
    compute *middle;   /* (B, T, C) the residual stream between attention and mlp */
    struct normed ln_2;
    compute *pre; /* (B, T, 4C) before the activation; what comes after is worked out again */
};

static size_t lay_out_block(const struct stage *stage, size_t rows, struct block_saved *saved, void *base)
{
    const struct gpt *gpt = gpt_of(stage);
    enum dtype type = stage->model->compute_type;
    size_t hidden = rows * gpt->width * dtype_size(type);
    struct carver carver = {.base = (uintptr_t)base};
    carve_normed(&carver, &saved->ln_1, stage, rows);
    saved->qkv = carve(&carver, 3 * hidden);
    saved->attended = carve(&carver, hidden);
    saved->lse = carve(&carver, rows * gpt->heads * dtype_size(dtype_wide(type)));
    saved->middle = carve(&carver, hidden);
    carve_normed(&carver, &saved->ln_2, stage, rows);
    saved->pre = carve(&carver, 4 * hidden);
    return carver.used;
}

/* One block's at a time, so it stays in the cache. */
struct block_scratch {
    compute *broad;  /* (B, T, 4C) activations of the mlp, gradients of them and of qkv */
    compute *narrow; /* (B, T, C) gradients on their way to the residual stream */
    void *product;   /* what one of the products needs besides */
};

static size_t lay_out_block_scratch(const struct stage *stage, size_t rows, struct block_scratch *scratch, void *base)
{
    size_t hidden = rows * gpt_of(stage)->width * dtype_size(stage->model->compute_type);
    struct carver carver = {.base = (uintptr_t)base};
    scratch->broad = carve(&carver, 4 * hidden);
    scratch->narrow = carve(&carver, hidden);
    const struct block *block = stage->parameters;
    size_t most = 0;
    for (int i = 0; i < PRODUCTS; i++) {
        const size_t bytes = linear_scratch_bytes(&block->products[i], rows, stage->model->compute_type);
        if (bytes > most) most = bytes;
    }
    scratch->product = carve(&carver, most);
    return carver.used;
}

static size_t block_scratch_bytes(const struct stage *stage, size_t sequences)
{
    struct block_scratch scratch;
    return lay_out_block_scratch(stage, sequences * gpt_of(stage)->context, &scratch, NULL);
}

static size_t block_saved_bytes(const struct stage *stage, size_t sequences)
{
    struct block_saved saved;
    return lay_out_block(stage, sequences * gpt_of(stage)->context, &saved, NULL);
}

static struct attention_shape attention_shape(const struct gpt *gpt, const struct pass *pass)
{
    return (struct attention_shape){
        .batch = pass->feed.rows, .context = gpt->context, .heads = gpt->heads, .head_size = gpt->width / gpt->heads};
}

/* All that is saved, and the mlp's activations in scratch->broad. `branch` (B, T, C) holds what attention gives before
 * it joins the residual stream. */
static void block_until_activations(const struct stage *stage, struct pass *pass, const compute *in, compute *branch,
                                    const struct block_saved *saved, const struct block_scratch *scratch)
{
    const struct gpt *gpt = gpt_of(stage);
    const struct block *block = stage->parameters;
    size_t rows = positions(stage, pass);
    struct dropout dropout;
    norm(pass, &block->ln_1, &saved->ln_1, NULL, in, NULL, rows);
    linear_forward(pass, &block->products[ATTN], saved->qkv, NULL, saved->ln_1.y, rows, ACTIVATE_NONE,
                   scratch->product);
    pass->kernels->table->attention_forward(pass->kernels, saved->attended, saved->lse, saved->qkv,
                                            dropout_at(stage, pass, site_of(stage, SITE_PROBABILITIES), &dropout),
                                            attention_shape(gpt, pass));
    linear_forward(pass, &block->products[ATTN_PROJ], branch, NULL, saved->attended, rows, ACTIVATE_NONE,
                   scratch->product);
    drop(stage, pass, site_of(stage, SITE_ATTENTION), branch, branch);

    norm(pass, &block->ln_2, &saved->ln_2, saved->middle, branch, in, rows);
    linear_forward(pass, &block->products[FC], scratch->broad, pass->gradients ? saved->pre : NULL, saved->ln_2.y, rows,
                   gpt->activation, scratch->product);
}

/* `out` holds each branch before it joins the residual stream. */
static void block_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *memory,
                          void *scratch_memory)
{
    const struct block *block = stage->parameters;
    const struct kernel_table *k = pass->kernels->table;
    size_t rows = positions(stage, pass);
    struct block_saved saved;
    struct block_scratch scratch;
    lay_out_block(stage, rows, &saved, memory);
    lay_out_block_scratch(stage, rows, &scratch, scratch_memory);

    block_until_activations(stage, pass, in, out, &saved, &scratch);
    linear_forward(pass, &block->products[MLP_PROJ], out, NULL, scratch.broad, rows, ACTIVATE_NONE, scratch.product);
    drop(stage, pass, site_of(stage, SITE_MLP), out, out);
    k->add(pass->kernels, out, out, 1, saved.middle, rows * gpt_of(stage)->width);
}

/* The calls of forward with its shapes, in its order, so the bits are its bits; what forward only hands on is left out,
 * the mlp's second product with it. */
static void block_recompute(const struct stage *stage, struct pass *pass, const compute *in, void *memory,
                            void *scratch_memory)
{
    size_t rows = positions(stage, pass);
    struct block_saved saved;
    struct block_scratch scratch;
    lay_out_block(stage, rows, &saved, memory);
    lay_out_block_scratch(stage, rows, &scratch, scratch_memory);
    block_until_activations(stage, pass, in, scratch.narrow, &saved, &scratch);
}

static void block_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                           const compute *in, void *memory, void *scratch_memory)
{
    const struct gpt *gpt = gpt_of(stage);
    const struct block *block = stage->parameters;
    size_t rows = positions(stage, pass);
    struct block_saved saved;
    struct block_scratch scratch;
    struct dropout dropout;
    lay_out_block(stage, rows, &saved, memory);
    lay_out_block_scratch(stage, rows, &scratch, scratch_memory);

    const compute *dmlp = drop(stage, pass, site_of(stage, SITE_MLP), dout, din);
    compute *dpre = scratch.broad, *dln_2 = scratch.narrow;
    linear_backward(pass, &block->products[MLP_PROJ], dpre, dmlp, saved.pre, rows, gpt->activation, scratch.product);
    linear_backward(pass, &block->products[FC], dln_2, dpre, saved.ln_2.y, rows, ACTIVATE_NONE, scratch.product);
    norm_backward(pass, &block->ln_2, din, dout, dln_2, saved.middle, &saved.ln_2, rows);

    const compute *dattention = drop(stage, pass, site_of(stage, SITE_ATTENTION), din, saved.middle);
    compute *dattended = scratch.narrow, *dqkv = scratch.broad, *dln_1 = scratch.narrow;
    linear_backward(pass, &block->products[ATTN_PROJ], dattended, dattention, saved.attended, rows, ACTIVATE_NONE,
                    scratch.product);
    pass->kernels->table->attention_backward(pass->kernels, dqkv, dattended, saved.attended, saved.lse, saved.qkv,
                                             dropout_at(stage, pass, site_of(stage, SITE_PROBABILITIES), &dropout),
                                             attention_shape(gpt, pass));
    linear_backward(pass, &block->products[ATTN], dln_1, dqkv, saved.ln_1.y, rows, ACTIVATE_NONE, scratch.product);
    norm_backward(pass, &block->ln_1, din, din, dln_1, in, &saved.ln_1, rows);
}

static const struct stage_class block_class = {
    .name = "block",
    .out_bytes = hidden_bytes,
    .saved_bytes = block_saved_bytes,
    .scratch_bytes = block_scratch_bytes,
    .forward = block_forward,
    .recompute = block_recompute,
    .backward = block_backward,
};

/* --- stage: head -----------------------------------------------------------------------------------------------------
 */

struct head_saved {
    struct normed ln_f;
    compute *logits; /* (B, T, P), then their gradient */
};

static size_t lay_out_head(const struct stage *stage, size_t rows, struct head_saved *saved, void *base)
{
    struct carver carver = {.base = (uintptr_t)base};
    carve_normed(&carver, &saved->ln_f, stage, rows);
    saved->logits = carve(&carver, rows * gpt_of(stage)->logits_stride * dtype_size(stage->model->compute_type));
    return carver.used;
}

static size_t head_saved_bytes(const struct stage *stage, size_t sequences)
{
    struct head_saved saved;
    return lay_out_head(stage, sequences * gpt_of(stage)->context, &saved, NULL);
}

static size_t head_scratch_bytes(const struct stage *stage, size_t sequences)
{
    const struct gpt *gpt = gpt_of(stage);
    return linear_scratch_bytes(&gpt->head, sequences * gpt->context, stage->model->compute_type);
}

/* All targets of a sequence share its weight and its seed. */
static void head_forward(const struct stage *stage, struct pass *pass, const compute *in, compute *out, void *memory,
                         void *scratch)
{
    (void)out;
    const struct gpt *gpt = gpt_of(stage);
    const struct kernel_table *k = pass->kernels->table;
    const struct feed *feed = &pass->feed;
    size_t rows = positions(stage, pass);
    struct head_saved saved;
    lay_out_head(stage, rows, &saved, memory);

    norm(pass, &gpt->ln_f, &saved.ln_f, NULL, in, NULL, rows);
    linear_forward(pass, &gpt->head, saved.logits, NULL, saved.ln_f.y, rows, ACTIVATE_NONE, scratch);
    k->cross_entropy(pass->kernels, saved.logits, feed->targets, feed->weight, pass->gradients ? feed->seed : NULL,
                     rows, gpt->context, gpt->vocab, gpt->logits_stride, pass->loss_sum);
}

static void head_backward(const struct stage *stage, struct pass *pass, compute *din, const compute *dout,
                          const compute *in, void *memory, void *scratch)
{
    (void)dout;
    const struct gpt *gpt = gpt_of(stage);
    size_t rows = positions(stage, pass);
    struct head_saved saved;
    lay_out_head(stage, rows, &saved, memory);
    compute *dln_f = saved.ln_f.y;
    linear_backward(pass, &gpt->head, dln_f, saved.logits, saved.ln_f.y, rows, ACTIVATE_NONE, scratch);
    norm_backward(pass, &gpt->ln_f, din, NULL, dln_f, in, &saved.ln_f, rows);
}

static const struct stage_class head_class = {
    .name = "head",
    .saved_bytes = head_saved_bytes,
    .scratch_bytes = head_scratch_bytes,
    .forward = head_forward,
    .backward = head_backward,
};

/* --- table -----------------------------------------------------------------------------------------------------------
 */

static const struct tensor *add_matrix(struct model *model, const char *prefix, const char *name, uint64_t rows,
                                       uint64_t columns, double standard_deviation)
{
    struct tensor like = {
        .dimensions = 2, .shape = {rows, columns}, .init = TENSOR_NORMAL, .init_scale = standard_deviation};
    return table_add(&model->table, like, "%s%s.weight", prefix, name);
}

/* Without biases the bias is a row of the exported zeros instead. */
static const struct tensor *add_bias(struct model *model, const char *prefix, const char *name, uint64_t size)
{
    struct tensor like = {.dimensions = 1, .shape = {size}, .init = TENSOR_ZEROS};
    if (model->spec->bias) return table_add(&model->table, like, "%s%s.bias", prefix, name);
    table_add(&model->zeros, like, "%s%s.bias", prefix, name);
    return NULL;
}

static void add_product(struct model *model, struct block *block, enum product which, const char *prefix,
                        const char *name, uint64_t in, uint64_t out, double standard_deviation)
{
    struct linear *product = &block->products[which];
    product->weight = add_matrix(model, prefix, name, in, out, standard_deviation);
    product->bias = add_bias(model, prefix, name, out);
    product->layout = WEIGHT_IN_OUT;
    linear_offer(product, model);
}

static struct unit add_norm(struct model *model, const char *prefix, const char *name)
{
    uint64_t width = model->spec->width;
    struct tensor like = {.dimensions = 1, .shape = {width}, .init = TENSOR_ONES};
    const struct tensor *weight = table_add(&model->table, like, "%s%s.weight", prefix, name);
    return (struct unit){weight, add_bias(model, prefix, name, width)};
}

static void add_block(struct model *model, struct block *block, unsigned layer)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    uint64_t width = spec->width;
    double into_residual = spec->init_std / sqrt(2 * (double)spec->layers);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "h.%u.", layer);
    block->ln_1 = add_norm(model, prefix, "ln_1");
    add_product(model, block, ATTN, prefix, "attn.c_attn", width, 3 * width, spec->init_std);
    add_product(model, block, ATTN_PROJ, prefix, "attn.c_proj", width, width, into_residual);
    block->ln_2 = add_norm(model, prefix, "ln_2");
    add_product(model, block, FC, prefix, "mlp.c_fc", width, 4 * width, spec->init_std);
    add_product(model, block, MLP_PROJ, prefix, "mlp.c_proj", 4 * width, width, into_residual);
    model_add_stage(model, &block_class, layer, block);
}

static int check_spec(const Gacc__V1__ModelSection *spec, struct error *error)
{
    const uint64_t elements_max = UINT64_C(1) << 34; /* of a sequence's part of a tensor: the counter of dropout */
    uint64_t context = spec->context;
    if (spec->heads == 0 || spec->width % spec->heads != 0)
        return error_set(error, STATUS_JOB, "model.width: %u is not a multiple of model.heads: %u", spec->width,
                         spec->heads);
    if (spec->dropout > 0 && (spec->heads * context > elements_max / context || spec->width * context > elements_max))
        return error_set(error, STATUS_JOB,
                         "model.dropout: heads x context x context or context x width is above 2^34 (%u, %u, %u)",
                         spec->heads, spec->context, spec->width);
    if (spec->lora_dropout > 0 && 4 * spec->width * context > elements_max)
        return error_set(error, STATUS_JOB, "model.lora.dropout: context x 4 x width is above 2^34 (%u, %u)",
                         spec->context, spec->width);
    return 0;
}

int gpt_build(struct model *model, struct error *error)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    int rc = check_spec(spec, error);
    if (rc == 0)
        rc = model_reserve(model, (size_t)spec->layers * 12 + 5, (size_t)spec->layers * PRODUCTS + 1,
                           (size_t)spec->layers + 2, sizeof(struct gpt) + spec->layers * sizeof(struct block), error);
    if (rc < 0) return rc;
    struct gpt *gpt = model->own;
    size_t padding = spec->pad_vocab ? spec->pad_vocab : 1;
    *gpt = (struct gpt){.context = spec->context,
                        .width = spec->width,
                        .heads = spec->heads,
                        .vocab = spec->vocab,
                        .logits_stride = (spec->vocab + padding - 1) / padding * padding,
                        .activation = activation_of(spec->activation),
                        .dropout = spec->dropout};
    model->targets_per_sequence = spec->context;

    gpt->wte = add_matrix(model, "", "wte", spec->vocab, spec->width, spec->init_std);
    gpt->wpe = add_matrix(model, "", "wpe", spec->context, spec->width, spec->init_std);
    model_add_stage(model, &embedding_class, 0, NULL);
    for (unsigned layer = 0; layer < spec->layers; layer++) add_block(model, &gpt->blocks[layer], layer);
    gpt->ln_f = add_norm(model, "", "ln_f");
    gpt->head.layout = WEIGHT_OUT_IN;
    gpt->head.stride = gpt->logits_stride;
    gpt->head.weight =
        spec->tie ? gpt->wte : add_matrix(model, "", "lm_head", spec->vocab, spec->width, spec->init_std);
    if (!spec->tie) linear_offer(&gpt->head, model);
    model_add_stage(model, &head_class, 0, NULL);
    return 0;
}
