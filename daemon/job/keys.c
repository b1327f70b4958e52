#include "daemon/job/keys.h"

#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/optimizers.h"

#define COUNT_MOST 2147483647.0      /* counts stay below 2^31 */
#define EXACT_MOST 9007199254740991. /* 2^53 − 1: JSON readers keep integers up to here */
#define SCALE_LEAST 0x1p-127         /* the smallest fp32 whose reciprocal is finite */

#define MODEL(name) GACC__V1__MODEL_TYPE__MODEL_##name
#define FORMAT(name) GACC__V1__DATA_FORMAT__FORMAT_##name
#define COMPUTE(name) GACC__V1__COMPUTE__COMPUTE_##name
#define MODE(name) GACC__V1__SCALE_MODE__SCALE_##name
#define PROFILE(name) GACC__V1__SCALE_PROFILE__PROFILE_##name
#define ON_OVERFLOW(name) GACC__V1__ON_OVERFLOW__ON_OVERFLOW_##name
#define OPTIMIZER(name) GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_##name
#define SCHEDULE(name) GACC__V1__SCHEDULE_TYPE__SCHEDULE_##name
#define SCALING(name) GACC__V1__LR_SCALING__LR_SCALING_##name
#define ACTIVATION(name) GACC__V1__ACTIVATION__ACTIVATION_##name
#define NORM(name) GACC__V1__NORM__NORM_##name
#define NORM_STATS(name) GACC__V1__NORM_STATS__NORM_STATS_##name
#define LOSS(name) GACC__V1__LOSS__LOSS_##name

// clang-format off
static const struct choice models[] = {
    {"gpt", MODEL(GPT)}, {"mlp", MODEL(MLP)}, {"cnn", MODEL(CNN)}, {"linear", MODEL(LINEAR)}, {"tape", MODEL(TAPE)}, {0}};
static const struct choice gpt_activations[] = {
    {"gelu", ACTIVATION(GELU)}, {"gelu_tanh", ACTIVATION(GELU_TANH)}, {0}};
static const struct choice mlp_activations[] = {
    {"relu", ACTIVATION(RELU)}, {"tanh", ACTIVATION(TANH)}, {"gelu", ACTIVATION(GELU)}, {"none", ACTIVATION(NONE)},
    {0}};
static const struct choice norms[] = {{"none", NORM(NONE)}, {"layer", NORM(LAYER)}, {"group", NORM(GROUP)},
    {"batch", NORM(BATCH)}, {0}};
static const struct choice image_norms[] = {{"none", NORM(NONE)}, {"group", NORM(GROUP)}, {"batch", NORM(BATCH)}, {0}};
static const struct choice pools[] = {{"max", GACC__V1__POOL__POOL_MAX}, {"average", GACC__V1__POOL__POOL_AVERAGE},
    {"none", GACC__V1__POOL__POOL_NONE}, {0}};
static const struct choice norm_stats[] = {{"micro", NORM_STATS(MICRO)}, {"frozen", NORM_STATS(FROZEN)},
    {"sync", NORM_STATS(SYNC)}, {"window", NORM_STATS(WINDOW)}, {0}};
static const struct choice mlp_losses[] = {
    {"mse", LOSS(MSE)}, {"half_mse", LOSS(HALF_MSE)}, {"cross_entropy", LOSS(CROSS_ENTROPY)},
    {"wasserstein", LOSS(WASSERSTEIN)}, {0}};
static const struct choice linear_losses[] = {{"half_mse", LOSS(HALF_MSE)}, {"mse", LOSS(MSE)}, {0}};
static const struct choice formats[] = {
    {"bytes", FORMAT(BYTES)}, {"u16", FORMAT(U16)}, {"u32", FORMAT(U32)}, {"llmc", FORMAT(LLMC)},
    {"csv", FORMAT(CSV)}, {"idx", FORMAT(IDX)}, {0}};
static const struct choice orders[] = {
    {"shuffled", GACC__V1__ORDER__ORDER_SHUFFLED}, {"sequential", GACC__V1__ORDER__ORDER_SEQUENTIAL}, {0}};
static const struct choice weightings[] = {
    {"token", GACC__V1__WEIGHTING__WEIGHTING_TOKEN}, {"microbatch", GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH},
    {"sum", GACC__V1__WEIGHTING__WEIGHTING_SUM}, {0}};
static const struct choice tails[] = {{"flush", GACC__V1__TAIL__TAIL_FLUSH}, {"drop", GACC__V1__TAIL__TAIL_DROP}, {0}};
static const struct choice scalings[] = {{"none", SCALING(NONE)}, {"linear", SCALING(LINEAR)}, {0}};
static const struct choice computes[] = {
    {"fp32", COMPUTE(FP32)}, {"bf16", COMPUTE(BF16)}, {"fp16", COMPUTE(FP16)}, {"fp64", COMPUTE(FP64)}, {0}};
static const struct choice reduces[] = {
    {"fp32", GACC__V1__REDUCE__REDUCE_FP32}, {"bf16", GACC__V1__REDUCE__REDUCE_BF16}, {0}};
static const struct choice modes[] = {{"dynamic", MODE(DYNAMIC)}, {"static", MODE(STATIC)}, {0}};
static const struct choice profiles[] = {
    {"torch", PROFILE(TORCH)}, {"apex", PROFILE(APEX)}, {"megatron", PROFILE(MEGATRON)},
    {"deepspeed", PROFILE(DEEPSPEED)},
    {"deepspeed-fused", PROFILE(DEEPSPEED_FUSED)}, {0}};
static const struct choice minimum_rules[] = {
    {"stop", GACC__V1__AT_MINIMUM__AT_MINIMUM_STOP}, {"clamp", GACC__V1__AT_MINIMUM__AT_MINIMUM_CLAMP}, {0}};
static const struct choice overflow_rules[] = {{"skip", ON_OVERFLOW(SKIP)}, {"retry", ON_OVERFLOW(RETRY)}, {0}};
static const struct choice optimizers[] = {{"adamw", OPTIMIZER(ADAMW)}, {"sgd", OPTIMIZER(SGD)}, {0}};
static const struct choice schedules[] = {
    {"constant", SCHEDULE(CONSTANT)}, {"linear", SCHEDULE(LINEAR)}, {"cosine", SCHEDULE(COSINE)},
    {"wsd", SCHEDULE(WSD)}, {0}};

static const struct choice recompute_rules[] = {
    {"none", GACC__V1__RECOMPUTE__RECOMPUTE_NONE}, {"block", GACC__V1__RECOMPUTE__RECOMPUTE_BLOCK}, {0}};
static const struct choice verify_rules[] = {
    {"off", GACC__V1__VERIFY__VERIFY_OFF}, {"required", GACC__V1__VERIFY__VERIFY_REQUIRED}, {0}};

#define BIT(value) (1u << (value))
#define WHEN(...) .when = {__VA_ARGS__}
#define IF_GPT {BY_MODEL, BIT(MODEL(GPT))}
#define IF_MLP {BY_MODEL, BIT(MODEL(MLP))}
#define IF_CNN {BY_MODEL, BIT(MODEL(CNN))}
#define IF_HIDDEN {BY_MODEL, BIT(MODEL(MLP)) | BIT(MODEL(CNN))}
#define IF_LINEAR {BY_MODEL, BIT(MODEL(LINEAR))}
#define IF_TAPE {BY_MODEL, BIT(MODEL(TAPE))}
#define IF_LAYERS {BY_MODEL, BIT(MODEL(GPT)) | BIT(MODEL(MLP))}
#define IF_ROWS {BY_MODEL, BIT(MODEL(MLP)) | BIT(MODEL(LINEAR))}
#define IF_WEIGHTS {BY_MODEL, BIT(MODEL(GPT)) | BIT(MODEL(MLP)) | BIT(MODEL(CNN)) | BIT(MODEL(LINEAR))}
#define IF_TOKENS \
    {BY_FORMAT, BIT(FORMAT(BYTES)) | BIT(FORMAT(U16)) | BIT(FORMAT(U32)) | BIT(FORMAT(LLMC))}
#define IF_MASKED \
    {BY_FORMAT, BIT(FORMAT(BYTES)) | BIT(FORMAT(U16)) | BIT(FORMAT(U32)) | BIT(FORMAT(LLMC)) | BIT(FORMAT(IDX))}
#define IF_IDX {BY_FORMAT, BIT(FORMAT(IDX))}
#define IF_GROUP_NORM {BY_NORM, BIT(NORM(GROUP))}
#define IF_BATCH_NORM {BY_NORM, BIT(NORM(BATCH))}
#define IF_MOVING {BY_NORM_STATS, BIT(NORM_STATS(MICRO)) | BIT(NORM_STATS(SYNC)) | BIT(NORM_STATS(WINDOW))}
#define IF_FP16 {BY_COMPUTE, BIT(COMPUTE(FP16))}
#define IF_FP32_SUMS {BY_COMPUTE, BIT(COMPUTE(FP32)) | BIT(COMPUTE(BF16)) | BIT(COMPUTE(FP16))}
#define IF_DYNAMIC {BY_MODE, BIT(MODE(DYNAMIC))}
#define IF_RETRY {BY_ON_OVERFLOW, BIT(ON_OVERFLOW(RETRY))}
#define IF_ADAMW {BY_OPTIMIZER, BIT(OPTIMIZER(ADAMW))}
#define IF_SGD {BY_OPTIMIZER, BIT(OPTIMIZER(SGD))}
#define IF_FALLING {BY_SCHEDULE, BIT(SCHEDULE(LINEAR)) | BIT(SCHEDULE(COSINE)) | BIT(SCHEDULE(WSD))}
#define IF_WSD {BY_SCHEDULE, BIT(SCHEDULE(WSD))}

#define NOWHERE IN_NONE, 0
#define SPEC(field) IN_SPEC, offsetof(Gacc__V1__JobSpec, field)
#define JOB(field) IN_JOB, offsetof(Gacc__V1__JobSection, field)
#define OF_MODEL(field) IN_MODEL, offsetof(Gacc__V1__ModelSection, field)
#define OF_DATA(field) IN_DATA, offsetof(Gacc__V1__DataSection, field)
#define BATCH(field) IN_BATCH, offsetof(Gacc__V1__BatchSection, field)
#define PRECISION(field) IN_PRECISION, offsetof(Gacc__V1__PrecisionSection, field)
#define SCALE(field) IN_LOSS_SCALE, offsetof(Gacc__V1__LossScaleSection, field)
#define OF_OPTIMIZER(field) IN_OPTIMIZER, offsetof(Gacc__V1__OptimizerSection, field)
#define GROUP(field) IN_GROUP, offsetof(Gacc__V1__ParameterGroup, field)
#define OF_SCHEDULE(field) IN_SCHEDULE, offsetof(Gacc__V1__ScheduleSection, field)
#define EVALUATION(field) IN_EVALUATION, offsetof(Gacc__V1__EvaluationSection, field)
#define CHECKPOINT(field) IN_CHECKPOINT, offsetof(Gacc__V1__CheckpointSection, field)
#define CONTROL(field) IN_CONTROL, offsetof(Gacc__V1__ControlSection, field)

const struct key keys[] = {
    {"job", KEY_SECTION, NOWHERE, .help = "What runs and for how long: exactly one of steps, tokens and epochs."},
    {"job.name", KEY_TEXT, JOB(name), .fallback = "", .computed = "the job file's name without its extension",
     .help = "Names the run."},
    {"job.seed", KEY_U64, JOB(seed), .fallback = "1337", .most = EXACT_MOST,
     .help = "Initial weights, order of the data and dropout follow from it, whatever b, K and N are."},
    {"job.output", KEY_PATH, JOB(output), .fallback = "", .computed = "runs/NAME",
     .help = "The run directory; --output beats it."},
    {"job.steps", KEY_U64, JOB(steps), .live = LIVE_NEXT_WINDOW, .fallback = "", .least = 1, .most = EXACT_MOST,
     .unit = "applied optimizer steps",
     .help = "Skipped attempts come on top."},
    {"job.tokens", KEY_U64, JOB(tokens), .fallback = "", .least = 1, .most = EXACT_MOST, .unit = "tokens",
     .help = "Steps until so many tokens are consumed, rounded up (rows, where a sequence is a row)."},
    {"job.epochs", KEY_U64, JOB(epochs), .fallback = "", .least = 1, .most = COUNT_MOST, .unit = "epochs",
     .help = "Until the training data were consumed so often."},

    {"model", KEY_SECTION, NOWHERE, .help = "The network."},
    {"model.type", KEY_CHOICE, OF_MODEL(type), .choices = models, .selects = BY_MODEL,
     .help = "gpt: as GPT-2. mlp: layers of rows. cnn: convolutions of images, and layers behind them. linear: one output. tape: gradients from a file, to test "
             "everything around a model."},
    {"model.layers", KEY_U32, OF_MODEL(layers), .least = 1, .most = 1000, WHEN(IF_GPT), .help = "Transformer blocks."},
    {"model.heads", KEY_U32, OF_MODEL(heads), .least = 1, .most = 65536, WHEN(IF_GPT),
     .help = "Attention heads; they divide the width."},
    {"model.width", KEY_U32, OF_MODEL(width), .least = 1, .most = 65536, WHEN(IF_GPT),
     .help = "Of the residual stream."},
    {"model.context", KEY_U32, OF_MODEL(context), .least = 1, .most = 1048576, WHEN(IF_GPT), .unit = "tokens",
     .help = "Inputs of one sequence."},
    {"model.vocab", KEY_U32, OF_MODEL(vocab), .fallback = "256", .least = 1, .most = 16777216,
     WHEN(IF_GPT, {BY_FORMAT, BIT(FORMAT(BYTES))}), .help = "Every token of the data is below it."},
    {"model.vocab", KEY_U32, OF_MODEL(vocab), .least = 1, .most = 16777216,
     WHEN(IF_GPT, {BY_FORMAT, BIT(FORMAT(U16)) | BIT(FORMAT(U32)) | BIT(FORMAT(LLMC))}),
     .help = "Every token of the data is below it."},
    {"model.inputs", KEY_U32, OF_MODEL(inputs), .least = 1, .most = 16777216, WHEN(IF_ROWS),
     .help = "Columns x0, x1, … of the data."},
    {"model.image", KEY_U32_LIST, OF_MODEL(n_image), .least = 1, .most = 65536, WHEN(IF_CNN),
     .help = "[channels, height, width] of a row of the data, channel by channel, line by line: x0, x1, … are as many."},
    {"model.channels", KEY_U32_LIST, OF_MODEL(n_channels), .least = 1, .most = 65536, WHEN(IF_CNN),
     .help = "Of the convolutions, one behind the other, at most 16; at least one."},
    {"model.kernel", KEY_U32, OF_MODEL(kernel), .fallback = "3", .least = 1, .most = 255, WHEN(IF_CNN),
     .help = "Height and width of their kernels, odd: what goes in and comes out has the same size, with zeros around it."},
    {"model.pool", KEY_CHOICE, OF_MODEL(pool), .fallback = "max", .choices = pools, WHEN(IF_CNN),
     .help = "Behind every convolution's activation: of 2 × 2 one, so that height and width are half of what they were."},
    {"model.hidden", KEY_U32_LIST, OF_MODEL(n_hidden), .least = 1, .most = 16777216, WHEN(IF_HIDDEN),
     .help = "Widths of the hidden layers, at most 64; [] for none."},
    {"model.outputs", KEY_U32, OF_MODEL(outputs), .least = 1, .most = 16777216, WHEN(IF_HIDDEN),
     .help = "Columns y0, y1, … of the data; with cross_entropy the number of classes."},
    {"model.bias", KEY_BOOL, OF_MODEL(bias), .fallback = "true", WHEN(IF_WEIGHTS),
     .help = "Biases in linear layers and norms."},
    {"model.tie", KEY_BOOL, OF_MODEL(tie), .fallback = "true", WHEN(IF_GPT),
     .help = "The head is the token embedding."},
    {"model.dropout", KEY_NUMBER, OF_MODEL(dropout), .fallback = "0", .most = 1, .below = true, WHEN(IF_GPT),
     .help = "The same bits for every split of the same global batch."},
    {"model.activation", KEY_CHOICE, OF_MODEL(activation), .fallback = "gelu_tanh", .choices = gpt_activations,
     WHEN(IF_GPT),
     .help = "gelu is x·Φ(x) with erf; gelu_tanh is GPT-2's form."},
    {"model.activation", KEY_CHOICE, OF_MODEL(activation), .fallback = "relu", .choices = mlp_activations, WHEN(IF_HIDDEN),
     .help = "Behind every hidden layer."},
    {"model.init_std", KEY_NUMBER, OF_MODEL(init_std), .fallback = "0.02", WHEN(IF_GPT),
     .help = "Of the initial weights; residual projections have it divided by √(2·layers)."},
    {"model.pad_vocab", KEY_U32, OF_MODEL(pad_vocab), .fallback = "128", .least = 1, .most = 65536, WHEN(IF_GPT),
     .help = "Rows of logits are padded to a multiple of it; files are not."},
    {"model.norm", KEY_CHOICE, OF_MODEL(norm), .fallback = "none", .choices = norms, .selects = BY_NORM, WHEN(IF_MLP),
     .help = "Between a hidden layer and its activation. layer: over a row. group: over groups of its channels. batch: each "
             "channel over many rows, so that what one row gives depends on the others."},
    {"model.norm", KEY_CHOICE, OF_MODEL(norm), .fallback = "none", .choices = image_norms, .selects = BY_NORM, WHEN(IF_CNN),
     .help = "Between a convolution, or a hidden layer, and its activation, as for mlp. group with norm_groups 1 is over all of an "
             "image; layer is for mlp only."},
    {"model.norm_groups", KEY_U32, OF_MODEL(norm_groups), .least = 1, .most = 16777216, WHEN(IF_HIDDEN, IF_GROUP_NORM),
     .help = "Of the channels of every hidden layer and convolution, which they divide."},
    {"model.norm_stats", KEY_CHOICE, OF_MODEL(norm_stats), .fallback = "micro", .choices = norm_stats,
     .selects = BY_NORM_STATS, WHEN(IF_HIDDEN, IF_BATCH_NORM),
     .help = "The rows that BatchNorm's mean and variance are over. micro: a micro-batch, so that the step depends on b. "
             "frozen: the running ones, which do not move. sync: the micro-batches that the ranks are at; windows then "
             "communicate. window: the whole window of all ranks, stage by stage, so that the step is that of one big batch, "
             "whatever b, K and N are; what enters each norm is kept of every micro-batch, and a forward is run once more. "
             "One row has no variance, so sets of one are refused; where masks or the short end of an epoch leave one, "
             "nothing of it is left behind the norm, and an event `single_row` in the log says so once."},
    {"model.norm_momentum", KEY_NUMBER, OF_MODEL(norm_momentum), .fallback = "0.1", .most = 1, .above = true,
     WHEN(IF_HIDDEN, IF_BATCH_NORM, IF_MOVING),
     .help = "running = (1 − momentum)·running + momentum·the step's, once a step that is applied; the variance is unbiased."},
    {"model.loss", KEY_CHOICE, OF_MODEL(loss), .fallback = "mse", .choices = mlp_losses, WHEN(IF_HIDDEN),
     .help = "mse: mean over outputs of (ŷ−y)². half_mse: sum over outputs of ½(ŷ−y)². cross_entropy: y0 is the "
             "class. wasserstein: −y·ŷ of one output, a critic's: y is 1 for what is real, −1 for what is not, 0 for what is "
             "between them and only penalised."},
    {"model.loss", KEY_CHOICE, OF_MODEL(loss), .fallback = "half_mse", .choices = linear_losses, WHEN(IF_LINEAR),
     .help = "half_mse: ½(ŷ−y)². mse: (ŷ−y)²."},
    {"model.size", KEY_U32, OF_MODEL(size), .least = 1, .most = COUNT_MOST, WHEN(IF_TAPE),
     .help = "Columns g0, g1, … of the data."},
    {"model.penalty", KEY_SECTION, NOWHERE, WHEN(IF_MLP),
     .help = "Of the gradient of the one output by its inputs: λ·(|∂ŷ/∂x| − 1)² is added to the loss of a row, with wasserstein "
             "of those rows whose y is 0. Worked out in fp32 (with fp64: fp64)."},
    {"model.penalty.lambda", KEY_NUMBER, OF_MODEL(penalty), .fallback = "", .above = true, .none_at_zero = true, WHEN(IF_MLP),
     .help = "λ, as it is written: neither K nor S nor N changes what it does."},
    {"model.penalty.rows", KEY_U32, OF_MODEL(penalty_rows), .fallback = "", .computed = "all, averaged as the loss is",
     .least = 1, .most = COUNT_MOST, WHEN(IF_MLP),
     .unit = "rows", .help = "Once a step: the mean over the first rows of the global batch, whatever its size."},
    {"model.lora", KEY_SECTION, NOWHERE, WHEN(IF_LAYERS),
     .help = "Low-rank adapters beside linear layers: x·W becomes x·W + alpha/rank·(drop(x)·Aᵀ)·Bᵀ. They alone are trained, all "
             "other tensors stay as model.init has them; B begins at zero. The tensors are LAYER.lora_A.weight [rank, in] and "
             "LAYER.lora_B.weight [out, rank]."},
    {"model.lora.rank", KEY_U32, OF_MODEL(lora_rank), .fallback = "", .least = 1, .most = 65536, WHEN(IF_LAYERS),
     .help = "Of the update that an adapter can make. Without it there are none."},
    {"model.lora.alpha", KEY_NUMBER, OF_MODEL(lora_alpha), .fallback = "", .computed = "model.lora.rank", .above = true,
     .none_at_zero = true,
     WHEN(IF_LAYERS), .help = "What an adapter adds is multiplied by alpha/rank."},
    {"model.lora.targets", KEY_TEXTS, OF_MODEL(n_lora_targets), .fallback = "", .computed = "\"*.attn.c_attn\"",
     WHEN(IF_GPT),
     .help = "Globs over linear layers (h.0.attn.c_attn, h.0.attn.c_proj, h.0.mlp.c_fc, h.0.mlp.c_proj, an untied lm_head) or "
             "their weights: those that get an adapter."},
    {"model.lora.targets", KEY_TEXTS, OF_MODEL(n_lora_targets), .fallback = "", .computed = "\"layers.*\"",
     WHEN(IF_MLP), .help = "Globs over linear layers (layers.0) or their weights: those that get an adapter."},
    {"model.lora.dropout", KEY_NUMBER, OF_MODEL(lora_dropout), .fallback = "", .computed = "0", .most = 1, .below = true,
     .none_at_zero = true,
     WHEN(IF_LAYERS),
     .help = "Of what enters an adapter. The same bits for every split of the same global batch."},
    {"model.init", KEY_SECTION, NOWHERE, .help = "Initial weights of some tensors; the others start as usual."},
    {"model.init.file", KEY_PATH, OF_MODEL(init_file), .fallback = "", .help = "A safetensors file."},
    {"model.init.values", KEY_TENSORS, OF_MODEL(n_init_values), .fallback = "",
     .help = "{tensor: [numbers]}, in the tensor's order, row by row. Instead of file."},

    {"data", KEY_SECTION, NOWHERE, .help = "What is read."},
    {"data.format", KEY_CHOICE, OF_DATA(format), .choices = formats, .selects = BY_FORMAT,
     .help = "bytes: every byte is a token. u16, u32: raw little-endian tokens. llmc: llm.c's files. csv: rows with "
             "a header, for mlp, cnn, linear and tape. idx: images as those of MNIST, big-endian behind a header, an image a "
             "row of x0, x1, …; bytes are divided by 255, other numbers taken as they are. For mlp, cnn and linear."},
    {"data.train", KEY_PATHS, OF_DATA(n_train),
     .help = "A path, a glob or a list of them; what a glob matches is sorted."},
    {"data.validation", KEY_SPLIT, OF_DATA(n_validation), .fallback = "null", .most = 1, .above = true, .below = true,
     .nullable = true,
     .help = "As train, or the fraction that is cut from the end of the training data (not with data.mix)."},
    {"data.order", KEY_CHOICE, OF_DATA(order), .fallback = "shuffled", .choices = orders,
     .help = "shuffled: a new order every epoch, from the seed."},
    {"data.mix", KEY_U32_LIST, OF_DATA(n_mix), .fallback = "", .least = 1, .most = COUNT_MOST,
     .help = "A whole number for each file of data.train (what a glob matches counts one by one): its parts of an epoch, which "
             "is as long as all files together. [1, 3]: a quarter of the first, three of the second. All sequences of a file "
             "are read before one of them is read again. Without it every sequence once. With it data.validation is files, not a "
             "fraction."},
    {"data.document_ends", KEY_U32_LIST, OF_DATA(n_document_ends), .fallback = "", .most = 4294967295., WHEN(IF_TOKENS),
     .help = "Tokens that end a document: the target behind one, the first of the next document, weighs 0. Attention "
             "still sees what stands before it."},
    {"data.mask", KEY_SECTION, NOWHERE, WHEN(IF_MASKED),
     .help = "Which targets weigh 0: neither their loss nor their gradient is there, and they do not count in W."},
    {"data.mask.values", KEY_U32_LIST, OF_DATA(n_masked), .fallback = "", .most = 4294967295., WHEN(IF_MASKED),
     .help = "Targets of these values: tokens, such as one for padding, or labels, such as 255 for unlabelled."},
    {"data.mask.train", KEY_PATHS, OF_DATA(n_masks), .fallback = "", WHEN(IF_MASKED),
     .help = "Files without a header, one for each file of data.train, with a byte for each of its tokens or images: 0 for "
             "one that is not learned as a target, 1 for one that is."},
    {"data.mask.validation", KEY_PATHS, OF_DATA(n_validation_masks), .fallback = "", WHEN(IF_MASKED),
     .help = "One for each file of data.validation."},
    {"data.labels", KEY_SECTION, NOWHERE, WHEN(IF_IDX), .help = "What is to be said of the images."},
    {"data.labels.train", KEY_PATHS, OF_DATA(n_labels), WHEN(IF_IDX),
     .help = "Idx files, one for each file of data.train in the same order: of every image its y0, y1, …, as they are."},
    {"data.labels.validation", KEY_PATHS, OF_DATA(n_validation_labels), .fallback = "", WHEN(IF_IDX),
     .help = "One for each file of data.validation; none where that is a fraction or null."},

    {"batch", KEY_SECTION, NOWHERE, .help = "B, b, and so K. One optimizer step is one global batch."},
    {"batch.global", KEY_U32, BATCH(global), .live = LIVE_WINDOW_AFTER,
     .fallback = "", .least = 1, .most = COUNT_MOST, .unit = "sequences (B)",
     .help = "Of one optimizer step over all ranks. It or tokens is needed."},
    {"batch.tokens", KEY_U64, IN_ASIDE, offsetof(struct key_aside, batch_tokens), .fallback = "", .least = 1,
     .most = EXACT_MOST,
     .unit = "tokens", WHEN(IF_GPT), .help = "Instead of global: B·context."},
    {"batch.micro", KEY_U32, BATCH(micro), .least = 1, .most = COUNT_MOST, .unit = "sequences (b)",
     .help = "What one rank holds at a time. M = ⌈B/b⌉ micro-batches a step, at least one for every rank."},
    {"batch.weighting", KEY_CHOICE, BATCH(weighting), .fallback = "token", .choices = weightings,
     .help = "token: the mean over all tokens of the global batch. microbatch: the mean of the micro-batches' means. "
             "sum: no mean."},
    {"batch.tail", KEY_CHOICE, BATCH(tail), .fallback = "flush", .choices = tails,
     .help = "The short last batch of an epoch: a step of its own weight, or left out."},
    {"batch.lr_scaling", KEY_CHOICE, BATCH(lr_scaling), .fallback = "none", .choices = scalings,
     .selects = BY_LR_SCALING,
     .help = "linear: lr is multiplied by B / base, once."},
    {"batch.base", KEY_U32, BATCH(base_sequences), .least = 1, .most = COUNT_MOST, .unit = "sequences",
     WHEN({BY_LR_SCALING, BIT(SCALING(LINEAR))}), .help = "The global batch for which lr was found."},
    {"batch.ramp", KEY_SECTION, NOWHERE, .help = "The global batch grows to its size, by whole micro-batches."},
    {"batch.ramp.from", KEY_U32, BATCH(ramp_from), .fallback = "", .least = 1, .most = COUNT_MOST, .unit = "sequences",
     .help = "Of the first step. The learning rate is that of batch.global throughout."},
    {"batch.ramp.steps", KEY_U32, BATCH(ramp_steps), .fallback = "", .least = 1, .most = COUNT_MOST,
     .unit = "applied optimizer steps",
     .help = "After them it is batch.global: from + (global − from)·i/steps, i of them being applied when the step is "
             "planned, one step ahead."},

    {"precision", KEY_SECTION, NOWHERE, .help = "The compute type, and what happens to gradients that are not finite."},
    {"precision.compute", KEY_CHOICE, PRECISION(compute), .fallback = "fp32", .choices = computes,
     .selects = BY_COMPUTE,
     .help = "Master parameters and accumulated gradients are fp32 (with fp64: fp64)."},
    {"precision.reduce", KEY_CHOICE, PRECISION(reduce), .fallback = "fp32", .choices = reduces, WHEN(IF_FP32_SUMS),
     .help = "What gradients travel as between ranks; bf16 is half the bytes, and what arrives is still added in fp32."},
    {"precision.nonfinite_stop_after", KEY_U32, PRECISION(nonfinite_stop_after), .live = LIVE_NEXT_WINDOW,
     .fallback = "3", .least = 1,
     .most = COUNT_MOST,
     .unit = "steps in a row", .help = "Without a loss scale: the job then ends with 76."},
    {"precision.loss_scale", KEY_SECTION, NOWHERE, WHEN(IF_FP16), .help = "The loss scale S."},
    {"precision.loss_scale.mode", KEY_CHOICE, SCALE(mode), .fallback = "dynamic", .choices = modes,
     .selects = BY_MODE, WHEN(IF_FP16),
     .help = "static: S never moves."},
    {"precision.loss_scale.profile", KEY_CHOICE, SCALE(profile), .fallback = "torch", .choices = profiles,
     .selects = BY_PROFILE,
     WHEN(IF_FP16, IF_DYNAMIC), .help = "Whose rules and defaults are followed."},
    {"precision.loss_scale.initial", KEY_NUMBER, SCALE(initial), .by_profile = true, .least = SCALE_LEAST,
     .most = (double)FLT_MAX,
     WHEN(IF_FP16), .help = "S of the first step."},
    {"precision.loss_scale.growth", KEY_NUMBER, SCALE(growth), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = 1, .above = true,
     WHEN(IF_FP16, IF_DYNAMIC), .help = "S is multiplied by it after interval finite steps."},
    {"precision.loss_scale.backoff", KEY_NUMBER, SCALE(backoff), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .most = 1, .above = true,
     .below = true,
     WHEN(IF_FP16, IF_DYNAMIC), .help = "S is multiplied by it after an overflow."},
    {"precision.loss_scale.interval", KEY_U32, SCALE(interval), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = 1, .most = COUNT_MOST,
     .unit = "finite steps", WHEN(IF_FP16, IF_DYNAMIC), .help = "Until S grows."},
    {"precision.loss_scale.hysteresis", KEY_U32, SCALE(hysteresis), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = 1, .most = COUNT_MOST,
     .unit = "overflows", WHEN(IF_FP16, IF_DYNAMIC, {BY_PROFILE, BIT(PROFILE(MEGATRON)) | BIT(PROFILE(DEEPSPEED))}),
     .help = "Until S falls."},
    {"precision.loss_scale.consecutive_hysteresis", KEY_BOOL, SCALE(consecutive_hysteresis), .live = LIVE_NEXT_WINDOW,
     .by_profile = true,
     WHEN(IF_FP16, IF_DYNAMIC, {BY_PROFILE, BIT(PROFILE(DEEPSPEED))}),
     .help = "Every finite step restores the hysteresis."},
    {"precision.loss_scale.minimum", KEY_NUMBER, SCALE(minimum), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = SCALE_LEAST,
     .most = (double)FLT_MAX,
     .nullable = true, WHEN(IF_FP16, IF_DYNAMIC), .help = "S falls no further; null: none beyond fp32's."},
    {"precision.loss_scale.maximum", KEY_NUMBER, SCALE(maximum), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = SCALE_LEAST,
     .most = (double)FLT_MAX,
     .nullable = true, WHEN(IF_FP16, IF_DYNAMIC), .help = "S grows no further; null: none beyond fp32's."},
    {"precision.loss_scale.at_minimum", KEY_CHOICE, SCALE(at_minimum), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .choices = minimum_rules,
     WHEN(IF_FP16, IF_DYNAMIC),
     .help = "An overflow at the minimum: the job ends with 76, or S stays there until stop_after."},
    {"precision.loss_scale.on_overflow", KEY_CHOICE, SCALE(on_overflow), .live = LIVE_NEXT_WINDOW,
     .fallback = "skip", .choices = overflow_rules, .selects = BY_ON_OVERFLOW,
     WHEN(IF_FP16, IF_DYNAMIC),
     .help = "skip: its data are lost. retry: the same window again at the lower S, and skipped where that is in vain."},
    {"precision.loss_scale.retries", KEY_U32, SCALE(retries), .live = LIVE_NEXT_WINDOW,
     .fallback = "8", .least = 1, .most = 1000,
     .unit = "times", WHEN(IF_FP16, IF_DYNAMIC, IF_RETRY),
     .help = "That one window is run again, each as long as the window itself."},
    {"precision.loss_scale.stop_after", KEY_U32, SCALE(stop_after), .live = LIVE_NEXT_WINDOW,
     .by_profile = true, .least = 1, .most = COUNT_MOST,
     .unit = "skips in a row", WHEN(IF_FP16),
     .help = "At a scale that can fall no further: the job then ends with 76."},

    {"optimizer", KEY_SECTION, NOWHERE,
     .help = "How a gradient becomes an update. Or a list of such sections, each with name and match (`optimizer.1.lr`): several "
             "optimizers, of which a tensor has the first whose pattern matches. All step or all skip, at one loss scale, with one "
             "norm to clip; the schedule moves the lr of the first, and those of the others keep their ratio to it."},
    {"optimizer.name", KEY_TEXT, OF_OPTIMIZER(name), .fallback = "", .computed = "in a list: needed",
     .help = "Of one in a list."},
    {"optimizer.match", KEY_TEXT, OF_OPTIMIZER(match), .fallback = "", .computed = "in a list: needed",
     .help = "A glob over tensor names: those that one in a list has."},
    {"optimizer.type", KEY_CHOICE, OF_OPTIMIZER(type), .fallback = "adamw", .choices = optimizers,
     .selects = BY_OPTIMIZER,
     .help = "adamw: decoupled weight decay. sgd: weight decay is added to the gradient."},
    {"optimizer.lr", KEY_NUMBER, OF_OPTIMIZER(lr_written), .live = LIVE_NEXT_WINDOW,
     .help = "Never multiplied by K; see batch.lr_scaling."},
    {"optimizer.betas", KEY_PAIR, OF_OPTIMIZER(beta1), .fallback = "[0.9, 0.999]", .most = 1, .below = true,
     WHEN(IF_ADAMW),
     .help = "Of the first and the second moment."},
    {"optimizer.eps", KEY_NUMBER, OF_OPTIMIZER(eps), .fallback = "1e-8", .above = true, WHEN(IF_ADAMW),
     .help = "Added to the root of the second moment."},
    {"optimizer.momentum", KEY_NUMBER, OF_OPTIMIZER(momentum), .fallback = "0", .most = 1, .below = true, WHEN(IF_SGD),
     .help = "Without dampening."},
    {"optimizer.weight_decay", KEY_NUMBER, OF_OPTIMIZER(weight_decay), .fallback = "0",
     .help = "For tensors of two or more dimensions; others do not decay unless a group says so."},
    {"optimizer.clip_norm", KEY_NUMBER, OF_OPTIMIZER(clip_norm), .live = LIVE_NEXT_WINDOW,
     .fallback = "null", .above = true, .nullable = true,
     .help = "Bound on the norm of the whole unscaled gradient, of all optimizers: in a list, the first has it. null: none."},
    {"optimizer.groups", KEY_GROUPS, OF_OPTIMIZER(n_groups), .fallback = "",
     .help = "Tensors with numbers of their own; the first match wins."},
    {"optimizer.groups.*.match", KEY_TEXT, GROUP(match), .help = "A glob over tensor names, such as *.ln_?.weight."},
    {"optimizer.groups.*.lr", KEY_NUMBER, GROUP(lr_written), .fallback = "", .computed = "optimizer.lr",
     .help = "The schedule's minimum scales with it."},
    {"optimizer.groups.*.weight_decay", KEY_NUMBER, GROUP(weight_decay), .fallback = "",
     .computed = "by dimension, as without a group",
     .help = "For all tensors of the group, of whatever dimension."},
    {"optimizer.groups.*.frozen", KEY_BOOL, GROUP(frozen), .live = LIVE_NEXT_WINDOW, .fallback = "false",
     .help = "The tensors stay as they are: no gradient, no moments, no traffic, no share in the norm, no decay."},
    {"optimizer.groups.*.frozen_until", KEY_U64, GROUP(frozen_until), .fallback = "", .least = 1, .most = EXACT_MOST,
     .unit = "applied optimizer steps", .help = "Frozen for so many steps, then trained, with moments that begin at zero."},
    {"optimizer.groups.*.frozen_from", KEY_U64, GROUP(frozen_from), .fallback = "", .least = 1, .most = EXACT_MOST,
     .unit = "applied optimizer steps", .help = "Trained for so many steps, then frozen."},

    {"schedule", KEY_SECTION, NOWHERE, .help = "The learning rate over applied optimizer steps."},
    {"schedule.type", KEY_CHOICE, OF_SCHEDULE(type), .fallback = "constant", .choices = schedules,
     .selects = BY_SCHEDULE,
     .help = "wsd: warm-up, stable, decay."},
    {"schedule.warmup", KEY_U64, OF_SCHEDULE(warmup), .live = LIVE_NEXT_WINDOW, .fallback = "0", .most = EXACT_MOST,
     .unit = "applied optimizer steps",
     .help = "lr·(i+1)/(warmup+1) in step i."},
    {"schedule.total", KEY_U64, OF_SCHEDULE(total), .live = LIVE_NEXT_WINDOW,
     .fallback = "", .computed = "the job's steps", .least = 1,
     .most = EXACT_MOST,
     .unit = "applied optimizer steps", WHEN(IF_FALLING), .help = "Where the minimum is reached."},
    {"schedule.minimum", KEY_NUMBER, OF_SCHEDULE(minimum), .live = LIVE_NEXT_WINDOW, .fallback = "0", WHEN(IF_FALLING),
     .help = "The last learning rate, absolute."},
    {"schedule.decay", KEY_U64, OF_SCHEDULE(decay), .live = LIVE_NEXT_WINDOW,
     .least = 1, .most = EXACT_MOST, .unit = "applied optimizer steps",
     WHEN(IF_WSD),
     .help = "Length of the last part, in which lr falls linearly."},

    {"evaluation", KEY_SECTION, NOWHERE, .help = "The validation loss while training."},
    {"evaluation.every", KEY_U64, EVALUATION(every), .live = LIVE_NEXT_WINDOW, .fallback = "0", .most = EXACT_MOST,
     .unit = "applied optimizer steps", .help = "0: never."},
    {"evaluation.sequences", KEY_U64, EVALUATION(sequences), .fallback = "0", .most = EXACT_MOST, .unit = "sequences",
     .help = "From the beginning of the validation data; 0: all."},

    {"checkpoint", KEY_SECTION, NOWHERE,
     .help = "The whole state in OUTPUT/checkpoints, from which the same command goes on."},
    {"checkpoint.every", KEY_U64, CHECKPOINT(every), .live = LIVE_NEXT_WINDOW, .fallback = "1000", .most = EXACT_MOST,
     .unit = "applied optimizer steps", .help = "0: only when somebody asks for one."},
    {"checkpoint.keep", KEY_U32, CHECKPOINT(keep), .live = LIVE_NEXT_WINDOW, .fallback = "3", .most = COUNT_MOST,
     .help = "So many of the newest stay; 0: all."},
    {"checkpoint.keep_every", KEY_U64, CHECKPOINT(keep_every), .live = LIVE_NEXT_WINDOW,
     .fallback = "0", .most = EXACT_MOST,
     .unit = "applied optimizer steps", .help = "Those at multiples of it stay, too; 0: none."},
    {"checkpoint.async", KEY_BOOL, CHECKPOINT(async), .live = LIVE_NEXT_WINDOW, .fallback = "true",
     .help = "Training goes on while a copy of the state is written; false: it waits."},

    {"recompute", KEY_CHOICE, SPEC(recompute), .fallback = "none", .choices = recompute_rules, WHEN(IF_GPT),
     .help = "block: of a transformer block only its input is kept for the backward pass, and its forward is run again there. "
             "The same bits, in less memory and more time."},

    {"control", KEY_SECTION, NOWHERE, .help = "Where operators and workers find the coordinator."},
    {"control.listen", KEY_ENDPOINT, CONTROL(listen), .fallback = "unix:auto",
     .help = "unix:auto, unix:PATH or tcp://HOST:PORT."},
    {"control.workers", KEY_ENDPOINT, CONTROL(workers), .fallback = "auto",
     .help = "auto: a unix socket when all ranks share a host, else TCP. Or tcp://HOST:PORT."},
    {"control.timeout", KEY_SECONDS, CONTROL(timeout_seconds), .fallback = "60 s", .least = 0.1, .most = 86400,
     .help = "A rank that is silent, or waits in a collective call that others have left, for so long is lost. Units: "
             "ms, s, min, h; seconds without one."},
    {"control.self_check", KEY_U64, CONTROL(self_check), .fallback = "0", .most = EXACT_MOST, .unit = "attempts",
     .help = "Every so many, checksums show whether all ranks hold the same parameters and none changed inside the window; "
             "if not, the job ends with 70 and names rank and step. 0: never."},
    {"control.tls", KEY_SECTION, NOWHERE,
     .help = "TLS (1.2 or later) of control.listen: tcp://HOST:PORT. Tokens are wanted all the same."},
    {"control.tls.certificate", KEY_PATH, CONTROL(tls_certificate), .fallback = "",
     .help = "PEM, with those between it and its authority behind it. It and key are needed where HOST is not localhost, "
             "127.0.0.0/8 or ::1."},
    {"control.tls.key", KEY_PATH, CONTROL(tls_key), .fallback = "", .help = "PEM, without a passphrase."},
    {"control.tls.client_authorities", KEY_PATH, CONTROL(tls_client_authorities), .fallback = "",
     .help = "PEM. Who shows no certificate that one of them signed is not heard; without it none is asked for."},
    {"control.tls.required", KEY_BOOL, CONTROL(tls_required), .fallback = "true",
     .help = "false: other hosts come without TLS, and whoever can listen to the network reads tokens and answers."},

    {"verify", KEY_CHOICE, SPEC(verify), .fallback = "off", .choices = verify_rules,
     .help = "required: train only where gaccd verify has left its receipt, for this job, program and device."},
};
// clang-format on
const size_t key_count = sizeof keys / sizeof *keys;

static const char not_yet[] = "not offered by this version";
const struct absent absent_keys[] = {
    {"observe", NULL, not_yet},
    {"observe.", NULL, not_yet},
    {"batch.accumulate", NULL, "not a key: K follows from batch.global, batch.micro and the ranks"},
    {"batch.micro_batches", NULL, "not a key: M follows from batch.global and batch.micro"},
    {"precision.loss_scale.current", NULL,
     "the scale of a running job, for gaccctl set; a job begins with precision.loss_scale.initial"},
};
const size_t absent_count = sizeof absent_keys / sizeof *absent_keys;

/* Lists and pairs are read and written as neighbours in the message. */
#define ADJACENT(message, first, second) \
    static_assert(offsetof(message, second) == offsetof(message, first) + 8, #second " follows " #first)
ADJACENT(Gacc__V1__OptimizerSection, beta1, beta2);
ADJACENT(Gacc__V1__DataSection, n_train, train);
ADJACENT(Gacc__V1__DataSection, n_validation, validation);
ADJACENT(Gacc__V1__DataSection, validation, validation_fraction);
ADJACENT(Gacc__V1__DataSection, n_labels, labels);
ADJACENT(Gacc__V1__DataSection, n_masks, masks);
ADJACENT(Gacc__V1__DataSection, n_validation_masks, validation_masks);
ADJACENT(Gacc__V1__DataSection, n_masked, masked);
ADJACENT(Gacc__V1__DataSection, n_document_ends, document_ends);
ADJACENT(Gacc__V1__DataSection, n_mix, mix);
ADJACENT(Gacc__V1__DataSection, n_validation_labels, validation_labels);
ADJACENT(Gacc__V1__ModelSection, n_hidden, hidden);
ADJACENT(Gacc__V1__ModelSection, n_image, image);
ADJACENT(Gacc__V1__ModelSection, n_channels, channels);
ADJACENT(Gacc__V1__ModelSection, n_init_values, init_values);
ADJACENT(Gacc__V1__ModelSection, n_lora_targets, lora_targets);

void *key_base(const Gacc__V1__JobSpec *job, struct key_aside *aside, Gacc__V1__ParameterGroup *group,
               enum section section)
{
    switch (section) {
    case IN_SPEC:
        return (void *)job;
    case IN_JOB:
        return job->job;
    case IN_MODEL:
        return job->model;
    case IN_DATA:
        return job->data;
    case IN_BATCH:
        return job->batch;
    case IN_PRECISION:
        return job->precision;
    case IN_LOSS_SCALE:
        return job->precision->loss_scale;
    case IN_OPTIMIZER:
        return job->optimizer;
    case IN_GROUP:
        return group;
    case IN_SCHEDULE:
        return job->schedule;
    case IN_EVALUATION:
        return job->evaluation;
    case IN_CHECKPOINT:
        return job->checkpoint;
    case IN_CONTROL:
        return job->control;
    case IN_ASIDE:
        return aside;
    case IN_NONE:
        break;
    }
    return NULL;
}

const struct key *key_of_selector(enum selector selector)
{
    for (size_t i = 0; i < key_count; i++)
        if (keys[i].selects == selector) return &keys[i];
    return NULL;
}

int key_selector_value(const Gacc__V1__JobSpec *job, enum selector selector)
{
    const struct key *key = key_of_selector(selector);
    const char *base = key_base(job, NULL, NULL, key->section);
    return base ? *(const int *)(const void *)(base + key->offset) : 0;
}

bool key_applies(const struct key *key, const Gacc__V1__JobSpec *job, const struct condition **failed)
{
    for (const struct condition *condition = key->when; condition < key->when + 3; condition++) {
        if (condition->by == BY_NOTHING) break;
        if (condition->values & BIT(key_selector_value(job, condition->by))) continue;
        if (failed) *failed = condition;
        return false;
    }
    return true;
}

const struct key *key_find(const Gacc__V1__JobSpec *job, const char *path, const struct key **any)
{
    if (any) *any = NULL;
    for (size_t i = 0; i < key_count; i++) {
        if (strcmp(keys[i].path, path) != 0) continue;
        if (key_applies(&keys[i], job, NULL)) return &keys[i];
        if (any && !*any) *any = &keys[i];
    }
    return NULL;
}

static const char optimizer_section[] = "optimizer";

/* Behind the index that the path begins with, as the file's lists have it; NULL: there is none. */
static const char *take_index(const char *path, size_t *index)
{
    const size_t digits = strspn(path, "0123456789");
    if (digits == 0 || digits > 5 || (digits > 1 && path[0] == '0')) return NULL;
    if (path[digits] != '.' && path[digits] != '\0') return NULL;
    *index = strtoul(path, NULL, 10);
    return path + digits + (path[digits] == '.');
}

struct key_place key_follow(const Gacc__V1__JobSpec *job, const char *path)
{
    struct key_place place = {.key = NULL};
    char row[256] = "";
    const size_t length = strlen(optimizer_section);
    const char *rest = path + length + 1;
    size_t index = 0;
    if (strncmp(path, optimizer_section, length) != 0 || path[length] != '.') {
        place.key = key_find(job, path, &place.any);
        return place;
    }
    if (optimizers_are_list(job)) rest = take_index(rest, &place.optimizer);
    if (!rest || place.optimizer >= optimizer_count(job)) return place;
    const Gacc__V1__JobSpec alone = optimizer_alone(job, place.optimizer);
    static const char groups[] = "groups.";
    const char *leaf = strncmp(rest, groups, strlen(groups)) == 0 ? take_index(rest + strlen(groups), &index) : NULL;
    if (leaf && index >= alone.optimizer->n_groups) return place;
    if (leaf) place.group = alone.optimizer->groups[index];
    if (leaf && *leaf)
        snprintf(row, sizeof row, "%s.groups.*.%.200s", optimizer_section, leaf);
    else
        snprintf(row, sizeof row, "%s%s%.200s", optimizer_section, *rest ? "." : "", leaf ? "groups" : rest);
    place.key = key_find(&alone, row, &place.any);
    return place;
}

struct phrase key_path(bool is_list, size_t optimizer, const char *path)
{
    struct phrase phrase;
    const size_t length = strlen(optimizer_section);
    if (is_list && strncmp(path, optimizer_section, length) == 0 && (path[length] == '.' || path[length] == '\0'))
        snprintf(phrase.text, sizeof phrase.text, "%s.%zu%s", optimizer_section, optimizer, path + length);
    else
        snprintf(phrase.text, sizeof phrase.text, "%s", path);
    return phrase;
}

const char *choice_name(const struct choice *choices, int value)
{
    for (; choices->name; choices++)
        if (choices->value == value) return choices->name;
    return "?";
}

const struct absent *absent_find(const char *path, const char *value)
{
    for (size_t i = 0; i < absent_count; i++) {
        const struct absent *absent = &absent_keys[i];
        size_t length = strlen(absent->path);
        bool prefix = absent->path[length - 1] == '.';
        bool same = prefix ? strncmp(path, absent->path, length) == 0 : strcmp(path, absent->path) == 0;
        if (!same || !absent->value != !value) continue;
        if (!value || strcmp(absent->value, value) == 0) return absent;
    }
    return NULL;
}
