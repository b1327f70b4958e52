/* What no single key can say. Each rule fills in the numbers that follow from others, or refuses those that do not fit.
 */
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/job/load.h"
#include "daemon/job/paths.h"
#include "daemon/job/scalar.h"
#include "proto/endpoint.h"
#include "proto/optimizers.h"

#define SMALL_SET 32 /* rows; the statistics of fewer are mostly noise */
#define MOST_INPUTS 16777216u
#define MOST_CONVOLUTIONS 16
#define NAME_MOST 200 /* bytes of job.name: it becomes a file's name */

/* fail(loading, key, ...): at the key's place in the file. */
#define fail(loading, path, ...) node_fail(job_node(loading, path), path, (loading)->error, __VA_ARGS__)

static bool is_given(const struct loading *loading, const char *path)
{
    return tree_find(loading->root, path) != NULL;
}

/* Takes `text`. */
static int set_text(struct loading *loading, char **field, char *text)
{
    if (!text) return error_set(loading->error, STATUS_INTERNAL, "out of memory");
    if (*field != protobuf_c_empty_string) free(*field);
    *field = text;
    return 0;
}

/* The file's name without directories and extension. */
static char *base_name(const char *file)
{
    const char *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    const char *dot = strrchr(name, '.');
    return strndup(name, dot && dot > name ? (size_t)(dot - name) : strlen(name));
}

static int name_and_output(struct loading *loading)
{
    Gacc__V1__JobSection *job = loading->job->job;
    int status = is_given(loading, "job.name") ? 0 : set_text(loading, &job->name, base_name(loading->file));
    if (status) return status;
    size_t length = strlen(job->name);
    if (length == 0 || length > NAME_MOST || strchr(job->name, '/') || text_fault(job->name, length, true) ||
        strcmp(job->name, ".") == 0 || strcmp(job->name, "..") == 0)
        return fail(loading, "job.name", "%.200s: must be printable, without /, and of 1 to %d bytes", job->name,
                    NAME_MOST);
    const char *output = loading->overrides ? loading->overrides->output : NULL;
    if (output && (!*output || text_fault(output, strlen(output), true)))
        return error_set(loading->error, STATUS_USAGE, "--output: %.200s: is not a path of printable UTF-8", output);
    if (output) return set_text(loading, &job->output, strdup(output));
    if (is_given(loading, "job.output")) return 0;
    char path[NAME_MOST + 8];
    snprintf(path, sizeof path, "runs/%s", job->name);
    return set_text(loading, &job->output, strdup(path));
}

static int one_length(struct loading *loading)
{
    static const char *const paths[] = {"job.steps", "job.tokens", "job.epochs"};
    const char *first = NULL;
    for (size_t i = 0; i < 3; i++) {
        if (!is_given(loading, paths[i])) continue;
        if (first)
            return fail(loading, paths[i], "is given as well as %s; a job has one of steps, tokens and epochs", first);
        first = paths[i];
    }
    return first ? 0 : fail(loading, "job", "one of steps, tokens and epochs is missing");
}

static int global_batch(struct loading *loading)
{
    Gacc__V1__BatchSection *batch = loading->job->batch;
    uint64_t tokens = loading->aside.batch_tokens;
    uint32_t context = loading->job->model->context;
    if (tokens && batch->global) return fail(loading, "batch.tokens", "is given as well as batch.global");
    if (!tokens && !batch->global)
        return fail(loading, "batch.global", "is missing%s",
                    loading->job->model->type == GACC__V1__MODEL_TYPE__MODEL_GPT ? ", and so is batch.tokens" : "");
    if (tokens && tokens % context)
        return fail(loading, "batch.tokens", "%" PRIu64 " is not a multiple of model.context %" PRIu32, tokens,
                    context);
    if (tokens && tokens / context > INT32_MAX)
        return fail(loading, "batch.tokens", "%" PRIu64 " tokens are more than %d sequences", tokens, INT32_MAX);
    if (tokens) batch->global = (uint32_t)(tokens / context);
    if (batch->micro > batch->global)
        return fail(loading, "batch.micro", "%" PRIu32 " is larger than batch.global %" PRIu32, batch->micro,
                    batch->global);
    return 0;
}

static int ramp(struct loading *loading)
{
    const Gacc__V1__BatchSection *batch = loading->job->batch;
    const uint32_t ranks = loading->overrides ? loading->overrides->ranks : 0;
    if (!batch->ramp_from && !batch->ramp_steps) return 0;
    if (!batch->ramp_from) return fail(loading, "batch.ramp.from", "is missing");
    if (!batch->ramp_steps) return fail(loading, "batch.ramp.steps", "is missing");
    if (batch->ramp_from >= batch->global)
        return fail(loading, "batch.ramp.from", "%" PRIu32 " is not below batch.global %" PRIu32, batch->ramp_from,
                    batch->global);
    if (!loading->job->job->steps)
        return fail(loading, "batch.ramp",
                    "the job must be one by job.steps: how many steps tokens or epochs make "
                    "depends on the batch");
    const uint32_t micro_batches = (batch->ramp_from - 1) / batch->micro + 1;
    if (micro_batches >= ranks) return 0;
    return fail(loading, "batch.ramp.from",
                "%" PRIu32 " makes %" PRIu32 " micro-batch%s, fewer than %" PRIu32 " ranks: %" PRIu64 " would do",
                batch->ramp_from, micro_batches, micro_batches == 1 ? "" : "es", ranks,
                (uint64_t)batch->micro * (ranks - 1) + 1);
}

/* M < N; the numbers named give every rank a micro-batch, and a full one. */
static int enough_for_ranks(struct loading *loading)
{
    const Gacc__V1__BatchSection *batch = loading->job->batch;
    const uint32_t ranks = loading->overrides ? loading->overrides->ranks : 0;
    const uint32_t micro_batches = (batch->global - 1) / batch->micro + 1;
    if (micro_batches >= ranks) return 0;
    if (batch->global < ranks)
        return fail(loading, is_given(loading, "batch.tokens") ? "batch.tokens" : "batch.global",
                    "%" PRIu32 " sequence%s cannot be shared by %" PRIu32 " ranks, one each at least", batch->global,
                    batch->global == 1 ? "" : "s", ranks);
    return fail(loading, "batch.micro",
                "%" PRIu32 " makes %" PRIu32 " micro-batch%s of batch.global %" PRIu32 ", fewer than %" PRIu32
                " ranks: batch.micro %" PRIu32 " would do, or batch.global %" PRIu64,
                batch->micro, micro_batches, micro_batches == 1 ? "" : "es", batch->global, ranks,
                batch->global / ranks, (uint64_t)batch->micro * ranks);
}

static int model_numbers(struct loading *loading)
{
    Gacc__V1__ModelSection *model = loading->job->model;
    if (model->type == GACC__V1__MODEL_TYPE__MODEL_LINEAR) model->outputs = 1;
    if (model->type == GACC__V1__MODEL_TYPE__MODEL_GPT && model->width % model->heads)
        return fail(loading, "model.heads", "%" PRIu32 " does not divide model.width %" PRIu32, model->heads,
                    model->width);
    if (*model->init_file && model->n_init_values)
        return fail(loading, "model.init.values", "is given as well as model.init.file");
    return 0;
}

/* What is left of an image behind each convolution. */
static int images(struct loading *loading)
{
    Gacc__V1__ModelSection *model = loading->job->model;
    if (model->type != GACC__V1__MODEL_TYPE__MODEL_CNN) return 0;
    if (model->n_image != 3)
        return fail(loading, "model.image", "has %zu numbers: channels, height and width are wanted", model->n_image);
    const uint64_t inputs = (uint64_t)model->image[0] * model->image[1] * model->image[2];
    if (inputs > MOST_INPUTS)
        return fail(loading, "model.image", "is of %" PRIu64 " numbers, more than %u", inputs, MOST_INPUTS);
    if (model->n_channels == 0 || model->n_channels > MOST_CONVOLUTIONS)
        return fail(loading, "model.channels", "are of %zu convolutions: 1 … %d are possible", model->n_channels,
                    MOST_CONVOLUTIONS);
    if (model->kernel % 2 == 0)
        return fail(loading, "model.kernel", "%" PRIu32 " is even: the image would be shifted", model->kernel);
    const uint32_t smaller = model->image[1] < model->image[2] ? model->image[1] : model->image[2];
    if (model->pool != GACC__V1__POOL__POOL_NONE && smaller >> model->n_channels == 0)
        return fail(loading, "model.pool", "%zu times leaves nothing of a height and width of %" PRIu32 " and %" PRIu32,
                    model->n_channels, model->image[1], model->image[2]);
    model->inputs = (uint32_t)inputs;
    return 0;
}

/* A penalty is on the gradient of one number, a critic's loss of one. */
static int critic(struct loading *loading)
{
    const Gacc__V1__ModelSection *model = loading->job->model;
    const bool wasserstein = model->loss == GACC__V1__LOSS__LOSS_WASSERSTEIN;
    const char *key = wasserstein ? "model.loss" : "model.penalty";
    if (model->penalty_rows && !(model->penalty > 0))
        return fail(loading, "model.penalty.rows", "is without effect: model.penalty.lambda is missing");
    if (!(model->penalty > 0) && !wasserstein) return 0;
    if (model->outputs != 1)
        return fail(loading, key, "%sis for model.outputs 1, not %" PRIu32, wasserstein ? "wasserstein " : "",
                    model->outputs);
    if (!(model->penalty > 0)) return 0;
    if (model->loss == GACC__V1__LOSS__LOSS_CROSS_ENTROPY)
        return fail(loading, "model.penalty", "does not go with model.loss cross_entropy");
    if (model->norm != GACC__V1__NORM__NORM_NONE)
        return fail(loading, "model.penalty", "does not go with model.norm: its second derivative is not offered");
    if (model->lora_rank) return fail(loading, "model.penalty", "does not go with model.lora");
    return 0;
}

/* Adapters there are where they have a rank. */
static int adapters(struct loading *loading)
{
    static const char *const others[] = {"model.lora.alpha", "model.lora.targets", "model.lora.dropout", "model.lora"};
    Gacc__V1__ModelSection *model = loading->job->model;
    if (model->lora_rank == 0) {
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            if (is_given(loading, others[i]))
                return fail(loading, others[i], "is without effect: model.lora.rank is missing");
        return 0;
    }
    if (model->lora_alpha == 0) model->lora_alpha = model->lora_rank;
    if (model->n_lora_targets > 0) return 0;
    model->lora_targets = calloc(1, sizeof *model->lora_targets);
    if (!model->lora_targets) return error_set(loading->error, STATUS_INTERNAL, "out of memory");
    model->n_lora_targets = 1;
    model->lora_targets[0] = (char *)protobuf_c_empty_string;
    return set_text(loading, &model->lora_targets[0],
                    strdup(model->type == GACC__V1__MODEL_TYPE__MODEL_GPT ? "*.attn.c_attn" : "layers.*"));
}

bool job_norms_micro_batches(const Gacc__V1__JobSpec *job)
{
    return job->model->norm == GACC__V1__NORM__NORM_BATCH &&
           job->model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_MICRO;
}

/* One row is its own mean: behind the norm nothing of it is left. Where the number of ranks is not known, a set of sync
 * may be the whole batch. */
static int enough_for_variance(struct loading *loading, const char *by_row)
{
    const Gacc__V1__ModelSection *model = loading->job->model;
    const Gacc__V1__BatchSection *batch = loading->job->batch;
    const uint64_t smallest = batch->ramp_from ? batch->ramp_from : batch->global;
    const uint64_t ranks = loading->overrides ? loading->overrides->ranks : 0;
    uint64_t rows = smallest;
    if (job_norms_micro_batches(loading->job)) rows = batch->micro;
    if (model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_SYNC && ranks) rows = batch->micro * ranks;
    if (model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_FROZEN || (rows > 1 && smallest > 1)) return 0;
    const char *whole = batch->ramp_from ? "batch.ramp.from" : "batch.global";
    return fail(loading, smallest > 1 ? "batch.micro" : whole,
                "1 row has no variance: model.norm_stats: %s wants more, %smodel.norm: %s%s",
                choice_name(key_of_selector(BY_NORM_STATS)->choices, (int)model->norm_stats),
                smallest > 1 ? "window does not, nor does " : "", by_row, smallest > 1 ? "" : " does not");
}

/* What a norm takes its statistics over. */
static int norms(struct loading *loading)
{
    const Gacc__V1__ModelSection *model = loading->job->model;
    const uint32_t micro = loading->job->batch->micro;
    const char *by_row = model->type == GACC__V1__MODEL_TYPE__MODEL_MLP ? "group or layer" : "group";
    if (model->norm == GACC__V1__NORM__NORM_GROUP) {
        for (size_t i = 0; i < model->n_channels; i++)
            if (model->channels[i] % model->norm_groups)
                return fail(loading, "model.norm_groups",
                            "%" PRIu32 " does not divide the %" PRIu32 " of model.channels", model->norm_groups,
                            model->channels[i]);
        for (size_t i = 0; i < model->n_hidden; i++)
            if (model->hidden[i] % model->norm_groups)
                return fail(loading, "model.norm_groups", "%" PRIu32 " does not divide the %" PRIu32 " of model.hidden",
                            model->norm_groups, model->hidden[i]);
    }
    if (model->norm == GACC__V1__NORM__NORM_BATCH) {
        const int status = enough_for_variance(loading, by_row);
        if (status) return status;
    }
    if (job_norms_micro_batches(loading->job) && micro < SMALL_SET)
        job_notice(
            loading,
            "model.norm batch: its statistics are over batch.micro %" PRIu32
            " rows each, and so the step depends on b and K: model.norm %s, or model.norm_stats window, does not",
            micro, by_row);
    if (model->norm != GACC__V1__NORM__NORM_BATCH) return 0;
    if (model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_SYNC)
        job_notice(loading, "model.norm_stats sync: windows communicate, twice a norm and micro-batch: collectives."
                            "statistics counts it");
    return 0;
}

/* What a job never trains is somebody's work, or it is noise. */
static int bases(struct loading *loading)
{
    const Gacc__V1__ModelSection *model = loading->job->model;
    if (*model->init_file || model->n_init_values) return 0;
    if (model->lora_rank)
        job_notice(loading, "model.lora: the weights beside the adapters stay as they begin, and begin at random: "
                            "model.init.file names the model to adapt");
    if (model->norm == GACC__V1__NORM__NORM_BATCH && model->norm_stats == GACC__V1__NORM_STATS__NORM_STATS_FROZEN)
        job_notice(loading, "model.norm_stats frozen: mean and variance stay as they begin, at 0 and 1: "
                            "model.init.file names the model that has others");
    return 0;
}

/* gpt reads tokens, mlp and linear read rows of x and y, tape rows of g. */
static int data_for_model(struct loading *loading)
{
    const Gacc__V1__DataFormat format = loading->job->data->format;
    const Gacc__V1__ModelType type = loading->job->model->type;
    const char *holds = choice_name(key_of_selector(BY_FORMAT)->choices, (int)format);
    const char *model = choice_name(key_of_selector(BY_MODEL)->choices, (int)type);
    const bool is_idx = format == GACC__V1__DATA_FORMAT__FORMAT_IDX;
    const bool is_rows = is_idx || format == GACC__V1__DATA_FORMAT__FORMAT_CSV;
    if (type == GACC__V1__MODEL_TYPE__MODEL_GPT && is_rows)
        return fail(loading, "data.format", "%s holds rows, model.type %s reads bytes, u16, u32 or llmc", holds, model);
    if (type == GACC__V1__MODEL_TYPE__MODEL_TAPE && format != GACC__V1__DATA_FORMAT__FORMAT_CSV)
        return fail(loading, "data.format", "%s holds %s, model.type %s reads csv", holds, is_idx ? "images" : "tokens",
                    model);
    if (type != GACC__V1__MODEL_TYPE__MODEL_GPT && !is_rows)
        return fail(loading, "data.format", "%s holds tokens, model.type %s reads csv or idx", holds, model);
    uint32_t vocab = loading->job->model->vocab;
    uint32_t ids = format == GACC__V1__DATA_FORMAT__FORMAT_BYTES ? 256
                   : format == GACC__V1__DATA_FORMAT__FORMAT_U16 ? 65536
                                                                 : UINT32_MAX;
    if (vocab > ids)
        return fail(loading, "model.vocab",
                    "%" PRIu32 ": the type cannot hold the vocabulary: data.format %s ends at %" PRIu32, vocab,
                    choice_name(key_of_selector(BY_FORMAT)->choices, (int)format), ids - 1);
    return 0;
}

static bool has_classes(const Gacc__V1__ModelSection *model)
{
    return model->type == GACC__V1__MODEL_TYPE__MODEL_GPT || model->loss == GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
}

/* What belongs to data files, file by file. */
static int companions(struct loading *loading)
{
    const Gacc__V1__DataSection *data = loading->job->data;
    const struct {
        const char *key, *of;
        size_t count, files;
        bool needed;
    } rows[] = {
        {"data.labels.train", "data.train", data->n_labels, data->n_train,
         data->format == GACC__V1__DATA_FORMAT__FORMAT_IDX},
        {"data.labels.validation", "data.validation", data->n_validation_labels, data->n_validation,
         data->format == GACC__V1__DATA_FORMAT__FORMAT_IDX},
        {"data.mask.train", "data.train", data->n_masks, data->n_train, false},
        {"data.mask.validation", "data.validation", data->n_validation_masks, data->n_validation, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].count != rows[i].files && (rows[i].needed || rows[i].count))
            return fail(loading, rows[i].key, "%zu file%s for the %zu of %s", rows[i].count,
                        rows[i].count == 1 ? "" : "s", rows[i].files, rows[i].of);
    if (data->n_masked && !has_classes(loading->job->model))
        return fail(loading, "data.mask.values", "is for targets that are classes or tokens: model.loss cross_entropy");
    return 0;
}

/* The end of the last file is not a fair share of a mixture. */
static int mixture(struct loading *loading)
{
    const Gacc__V1__DataSection *data = loading->job->data;
    if (!data->n_mix) return 0;
    if (data->n_mix != data->n_train)
        return fail(loading, "data.mix", "%zu number%s for the %zu file%s of data.train", data->n_mix,
                    data->n_mix == 1 ? "" : "s", data->n_train, data->n_train == 1 ? "" : "s");
    if (data->validation_fraction > 0)
        return fail(loading, "data.mix", "does not go with data.validation %s: name files to validate with",
                    decimal_of(data->validation_fraction).text);
    return 0;
}

/* In a list each has a name of its own and a pattern, and there is one bound for the norm of all. */
static int optimizers(struct loading *loading)
{
    const Gacc__V1__JobSpec *job = loading->job;
    const struct node *node = tree_find(loading->root, "optimizer");
    const bool is_list = node && node->kind == NODE_LIST;
    static const char *const own[] = {"optimizer.name", "optimizer.match"};
    for (size_t i = 0; i < optimizer_count(job); i++) {
        const Gacc__V1__OptimizerSection *optimizer = optimizer_at(job, i);
        for (size_t k = 0; k < 2; k++) {
            const struct phrase path = optimizer_path(loading, i, own[k]);
            const bool has = *(k ? optimizer->match : optimizer->name) != '\0';
            if (!is_list && has) return fail(loading, path.text, "is for a list of optimizers; there is one");
            if (is_list && !has) return fail(loading, path.text, "is missing: every optimizer of a list has one");
        }
        for (size_t other = 0; other < i; other++)
            if (strcmp(optimizer_at(job, other)->name, optimizer->name) == 0)
                return fail(loading, optimizer_path(loading, i, own[0]).text, "%.200s is another's name already",
                            optimizer->name);
        if (i > 0 && optimizer->clip_norm > 0)
            return fail(loading, optimizer_path(loading, i, "optimizer.clip_norm").text,
                        "the norm is one over all optimizers: optimizer.0.clip_norm bounds it");
    }
    return 0;
}

/* Some time or other it is trained. */
static int frozen_steps(struct loading *loading)
{
    for (size_t o = 0; o < optimizer_count(loading->job); o++)
        for (size_t i = 0; i < optimizer_at(loading->job, o)->n_groups; i++) {
            const Gacc__V1__ParameterGroup *group = optimizer_at(loading->job, o)->groups[i];
            const uint64_t until = group->frozen_until, from = group->frozen_from;
            char path[64];
            snprintf(path, sizeof path, "optimizer.groups.%zu.frozen_%s", i, from ? "from" : "until");
            if (group->frozen && (until || from))
                return fail(loading, optimizer_path(loading, o, path).text, "is without effect: the group is frozen");
            if (from && from <= until)
                return fail(loading, optimizer_path(loading, o, path).text,
                            "%" PRIu64 " is not behind frozen_until %" PRIu64 ": the group would never be trained",
                            from, until);
        }
    return 0;
}

static int zero_rate(struct loading *loading, const char *whose, double lr)
{
    return fail(loading, optimizer_path(loading, 0, "optimizer.lr").text,
                "is 0 while %s has %s: %ss follow the schedule by their ratio to it", whose, decimal_of(lr).text,
                strrchr(whose, ' ') + 1);
}

static int learning_rates(struct loading *loading)
{
    const Gacc__V1__BatchSection *batch = loading->job->batch;
    bool linear = batch->lr_scaling == GACC__V1__LR_SCALING__LR_SCALING_LINEAR;
    double factor = linear ? (double)batch->global / (double)batch->base_sequences : 1.0;
    const Gacc__V1__OptimizerSection *first = loading->job->optimizer;
    for (size_t o = 0; o < optimizer_count(loading->job); o++) {
        Gacc__V1__OptimizerSection *optimizer = optimizer_at(loading->job, o);
        optimizer->lr = optimizer->lr_written * factor;
        if (!isfinite(optimizer->lr))
            return fail(loading, optimizer_path(loading, o, "optimizer.lr").text, "%s times %s is too large",
                        decimal_of(optimizer->lr_written).text, decimal_of(factor).text);
        if (first->lr == 0 && optimizer->lr != 0) return zero_rate(loading, "another optimizer", optimizer->lr);
        for (size_t i = 0; i < optimizer->n_groups; i++) {
            Gacc__V1__ParameterGroup *group = optimizer->groups[i];
            group->lr = group->lr_written * factor;
            if (first->lr == 0 && group->lr != 0) return zero_rate(loading, "a group", group->lr);
        }
    }
    return 0;
}

/* But for fp64, parameters are updated in fp32, whose numbers these become. */
static int numbers_of_one(struct loading *loading, size_t index)
{
    const Gacc__V1__OptimizerSection *optimizer = optimizer_at(loading->job, index);
    static const char too_large[] = "%s is more than fp32 holds, in which parameters are updated";
    if (!isfinite((float)optimizer->lr))
        return fail(loading, optimizer_path(loading, index, "optimizer.lr").text, too_large,
                    decimal_of(optimizer->lr).text);
    if (!isfinite((float)optimizer->weight_decay))
        return fail(loading, optimizer_path(loading, index, "optimizer.weight_decay").text, too_large,
                    decimal_of(optimizer->weight_decay).text);
    if (optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW && (float)optimizer->eps < FLT_MIN)
        return fail(loading, optimizer_path(loading, index, "optimizer.eps").text,
                    "%s is less than fp32 holds, in which parameters are updated", decimal_of(optimizer->eps).text);
    for (size_t i = 0; i < optimizer->n_groups; i++) {
        const Gacc__V1__ParameterGroup *group = optimizer->groups[i];
        const bool lr_fits = isfinite((float)group->lr);
        if (lr_fits && isfinite((float)group->weight_decay)) continue;
        char path[64];
        snprintf(path, sizeof path, "optimizer.groups.%zu.%s", i, lr_fits ? "weight_decay" : "lr");
        return fail(loading, optimizer_path(loading, index, path).text, too_large,
                    decimal_of(lr_fits ? group->weight_decay : group->lr).text);
    }
    return 0;
}

static int numbers_of_the_update(struct loading *loading)
{
    int status = 0;
    if (loading->job->precision->compute == GACC__V1__COMPUTE__COMPUTE_FP64) return 0;
    for (size_t i = 0; i < optimizer_count(loading->job) && !status; i++) status = numbers_of_one(loading, i);
    return status;
}

/* Of its decimal notation: 1 of 0.003, 2 of 0.012. Rounding errors of a division are not among them. */
static int significant_digits(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.12e", value);
    int digits = 13; /* d.dddddddddddde±xx */
    while (digits > 1 && text[digits] == '0') digits--;
    return digits;
}

/* Whether lr is what comes out when somebody multiplies a rate by that factor: a number that people write, above what
 * the optimizer's recipes use, becomes a rounder one among those that they use. */
static bool looks_multiplied(double lr, double factor, double bound)
{
    return lr > bound && lr / factor <= bound && significant_digits(lr / factor) < significant_digits(lr);
}

/*
 * A learning rate that somebody multiplied by K by hand. Neither optimizer's usual rates reach the bound (AdamW:
 * published recipes lie between 1e-5 and 6e-3; SGD: at most 1). A rate may be large for its own sake, as those of small
 * models are: 0.02 or 0.5 says nothing, whatever the number of micro-batches, but 0.0192 with 32 of them is 32 times
 * 6e-4.
 */
static void doubt_rate(struct loading *loading, size_t index)
{
    const Gacc__V1__OptimizerSection *optimizer = optimizer_at(loading->job, index);
    const double lr = optimizer->lr;
    const Gacc__V1__BatchSection *batch = loading->job->batch;
    const bool is_adamw = optimizer->type == GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    const double bound = is_adamw ? 0.01 : 1.0;
    const uint32_t ranks = loading->overrides && loading->overrides->ranks ? loading->overrides->ranks : 1;
    const uint32_t micro_batches = (batch->global - 1) / batch->micro + 1;
    const struct {
        uint32_t factor;
        const char *of;
    } counts[] = {{micro_batches, ""}, {micro_batches / ranks, " of a rank"}};
    for (size_t i = 0; i < 2 && batch->lr_scaling == GACC__V1__LR_SCALING__LR_SCALING_NONE; i++) {
        if (!looks_multiplied(lr, counts[i].factor, bound)) continue;
        job_notice(loading,
                   "%s %s looks like %.6g multiplied by the number of micro-batches%s (%" PRIu32
                   "): the gradient is a mean over the global batch, so lr does not depend on K",
                   optimizer_path(loading, index, "optimizer.lr").text, decimal_of(lr).text, lr / counts[i].factor,
                   counts[i].of, counts[i].factor);
        break;
    }
}

static int doubtful_rate(struct loading *loading)
{
    for (size_t i = 0; i < optimizer_count(loading->job); i++) doubt_rate(loading, i);
    return 0;
}

static int loss_scale(struct loading *loading)
{
    const Gacc__V1__LossScaleSection *section = loading->job->precision->loss_scale;
    if (!section) return 0;
    struct loss_scale_rules rules;
    job_loss_scale_rules(section, &rules);
    const char *why = loss_scale_rules_check(&rules);
    if (!why) return 0;
    /* "key: why", the key being one below this section. */
    char path[64];
    size_t length = strcspn(why, ":");
    snprintf(path, sizeof path, "precision.loss_scale.%.*s", (int)length, why);
    return fail(loading, path, "%s", why[length] ? why + length + 2 : why);
}

static int schedule(struct loading *loading)
{
    Gacc__V1__ScheduleSection *section = loading->job->schedule;
    if (section->type == GACC__V1__SCHEDULE_TYPE__SCHEDULE_CONSTANT) return 0;
    if (section->total == 0) section->total = loading->job->job->steps;
    uint64_t total = section->total; /* 0: the data will tell, and the conductor looks then */
    double lr = loading->job->optimizer->lr;
    const char *origin = is_given(loading, "schedule.total") ? "" : " (the job's steps)";
    if (total && section->warmup > total)
        return fail(loading, "schedule.warmup", "%" PRIu64 " is above schedule.total %" PRIu64 "%s", section->warmup,
                    total, origin);
    if (total && section->decay > total)
        return fail(loading, "schedule.decay", "%" PRIu64 " is above schedule.total %" PRIu64 "%s", section->decay,
                    total, origin);
    if (total && section->decay > total - section->warmup)
        return fail(loading, "schedule.decay",
                    "%" PRIu64 " and schedule.warmup %" PRIu64 " together are above schedule.total %" PRIu64 "%s",
                    section->decay, section->warmup, total, origin);
    if (section->minimum > lr)
        return fail(loading, "schedule.minimum", "%s is above %s %s", decimal_of(section->minimum).text,
                    optimizer_path(loading, 0, "optimizer.lr").text, decimal_of(lr).text);
    return 0;
}

static int evaluation(struct loading *loading)
{
    const Gacc__V1__DataSection *data = loading->job->data;
    bool has_validation = data->n_validation > 0 || data->validation_fraction > 0;
    if (loading->job->evaluation->every && !has_validation)
        return fail(loading, "evaluation.every", "needs data.validation");
    return 0;
}

/* What a job tells its operators, and their tokens, go to other hosts sealed, or because the job says so. */
static int operators_tls(struct loading *loading)
{
    const Gacc__V1__ControlSection *control = loading->job->control;
    const struct {
        const char *key, *path, *other, *needed; /* … with `path` the other is needed */
    } rows[] = {
        {"control.tls.certificate", control->tls_certificate, control->tls_key, "control.tls.key"},
        {"control.tls.key", control->tls_key, control->tls_certificate, "control.tls.certificate"},
        {"control.tls.client_authorities", control->tls_client_authorities, control->tls_certificate,
         "control.tls.certificate"},
    };
    struct endpoint listen;
    const bool is_tcp = endpoint_parse(&listen, control->listen);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!*rows[i].path) continue;
        if (!*rows[i].other) return fail(loading, rows[i].key, "is given without %s", rows[i].needed);
        if (!is_tcp)
            return fail(loading, rows[i].key, "does not go with control.listen %.120s: TLS is for tcp://HOST:PORT",
                        control->listen);
    }
    if (!is_tcp || *control->tls_certificate || !control->tls_required || endpoint_is_loopback(&listen)) return 0;
    return fail(loading, "control.listen",
                "%.120s: other hosts can come there, so control.tls.certificate and control.tls.key are needed "
                "(control.tls.required: false does without TLS)",
                control->listen);
}

static int check_file(struct loading *loading, const char *key, const char *path)
{
    int number = path_check_readable(path);
    if (!number) return 0;
    fail(loading, key, "%s: %s", path, number == EINVAL ? "is not a regular file" : strerror(number));
    if (loading->error) loading->error->status = STATUS_MISSING;
    return -(int)STATUS_MISSING;
}

static int files(struct loading *loading)
{
    const Gacc__V1__DataSection *data = loading->job->data;
    int status = 0;
    const struct {
        const char *key;
        size_t count;
        char *const *paths;
    } lists[] = {
        {"data.train", data->n_train, data->train},
        {"data.validation", data->n_validation, data->validation},
        {"data.labels.train", data->n_labels, data->labels},
        {"data.labels.validation", data->n_validation_labels, data->validation_labels},
        {"data.mask.train", data->n_masks, data->masks},
        {"data.mask.validation", data->n_validation_masks, data->validation_masks},
    };
    for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
        for (size_t i = 0; i < lists[l].count && !status; i++)
            status = check_file(loading, lists[l].key, lists[l].paths[i]);
    if (!status && *loading->job->model->init_file)
        status = check_file(loading, "model.init.file", loading->job->model->init_file);
    const Gacc__V1__ControlSection *control = loading->job->control;
    if (!status && *control->tls_certificate)
        status = check_file(loading, "control.tls.certificate", control->tls_certificate);
    if (!status && *control->tls_key) status = check_file(loading, "control.tls.key", control->tls_key);
    if (!status && *control->tls_client_authorities)
        status = check_file(loading, "control.tls.client_authorities", control->tls_client_authorities);
    return status;
}

/* Whoever reads it can pose as the job. */
static int private_key(struct loading *loading)
{
    const char *path = loading->job->control->tls_key;
    struct stat facts;
    if (*path && !stat(path, &facts) && facts.st_mode & S_IROTH)
        job_notice(loading, "control.tls.key %.200s: every user of this host can read it (mode %04o)", path,
                   facts.st_mode & 07777u);
    return 0;
}

int job_finish(struct loading *loading)
{
    static int (*const rules[])(struct loading *) = {
        name_and_output, one_length,   model_numbers,  images,
        critic,          adapters,     data_for_model, companions,
        mixture,         global_batch, ramp,           enough_for_ranks,
        optimizers,      frozen_steps, learning_rates, numbers_of_the_update,
        loss_scale,      schedule,     evaluation,     operators_tls,
        files,           private_key,  doubtful_rate,  norms,
        bases,
    };
    int status = 0;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && !status; i++) status = rules[i](loading);
    return status;
}

uint64_t job_tokens_per_step(const Gacc__V1__JobSpec *job)
{
    bool is_gpt = job->model->type == GACC__V1__MODEL_TYPE__MODEL_GPT;
    return (uint64_t)job->batch->global * (is_gpt ? job->model->context : 1);
}

void job_loss_scale_rules(const Gacc__V1__LossScaleSection *section, struct loss_scale_rules *rules)
{
    *rules = (struct loss_scale_rules){
        .profile = (enum loss_scale_profile)section->profile, /* the same numbers: job_test.c */
        .is_static = section->mode == GACC__V1__SCALE_MODE__SCALE_STATIC,
        .initial = (float)section->initial,
        .growth = section->growth,
        .backoff = section->backoff,
        .interval = section->interval,
        .hysteresis = section->hysteresis,
        .consecutive_hysteresis = section->consecutive_hysteresis,
        .minimum = (float)section->minimum,
        .maximum = (float)section->maximum,
        .stop_at_minimum = section->at_minimum == GACC__V1__AT_MINIMUM__AT_MINIMUM_STOP,
        .stop_after = section->stop_after,
        .retries = section->on_overflow == GACC__V1__ON_OVERFLOW__ON_OVERFLOW_RETRY ? section->retries : 0,
    };
}

void job_loss_scale_defaults(Gacc__V1__LossScaleSection *section)
{
    struct loss_scale_rules rules;
    loss_scale_rules_default(&rules, (enum loss_scale_profile)section->profile);
    section->initial = (double)rules.initial;
    section->growth = rules.growth;
    section->backoff = rules.backoff;
    section->interval = rules.interval;
    section->hysteresis = rules.hysteresis;
    section->consecutive_hysteresis = rules.consecutive_hysteresis;
    section->minimum = (double)rules.minimum;
    section->maximum = (double)rules.maximum;
    section->at_minimum =
        rules.stop_at_minimum ? GACC__V1__AT_MINIMUM__AT_MINIMUM_STOP : GACC__V1__AT_MINIMUM__AT_MINIMUM_CLAMP;
    section->stop_after = rules.stop_after;
}
