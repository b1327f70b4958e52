/*
 * The first value of every parameter: keyed random numbers, values from the job file, or a safetensors file. Each
 * element is a function of (seed, canonical index) alone, so ranks make their own shards without a word between them,
 * whatever N is, and each with as many threads as it has.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/pool.h"
#include "worker/model.h"
#include "worker/near.h"
#include "worker/safetensors.h"

/* Where a tensor's values come from; all NULL: its own initialiser. */
struct source {
    const double *values;
    const struct safetensors_tensor *stored;
};

struct model_initial {
    const struct model *model;
    uint64_t key;
    struct pool *pool; /* of `threads`: some ten nanoseconds a number are a minute for a billion */
    int threads;
    const char *path; /* of the file, for messages; borrowed */
    struct safetensors *file;
    struct source sources[]; /* [table.count] */
};

/* --- keyed random numbers ------------------------------------------------------------------------------------------
 */

/* SplitMix64 (Steele, Lea and Flood 2014): its n-th number is a function of n, so it can be read anywhere. */
static uint64_t splitmix64(uint64_t key, uint64_t n)
{
    uint64_t z = key + (n + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
}

/* In (0, 1), never an end. */
static double uniform(uint64_t key, uint64_t n)
{
    return ((double)(splitmix64(key, n) >> 11) + 0.5) * 0x1p-53;
}

/* Box and Muller 1958. */
static double normal(uint64_t key, uint64_t element)
{
    return sqrt(-2 * log(uniform(key, 2 * element))) * cos(2 * M_PI * uniform(key, 2 * element + 1));
}

static double initial_value(const struct tensor *tensor, uint64_t key, uint64_t element)
{
    switch (tensor->init) {
    case TENSOR_ZEROS:
        return 0;
    case TENSOR_ONES:
        return 1;
    case TENSOR_NORMAL:
        return tensor->init_scale * normal(key, element);
    case TENSOR_UNIFORM:
        return tensor->init_scale * (2 * uniform(key, 2 * element) - 1);
    }
    return (double)NAN;
}

/* [count] of a tensor's own, from the canonical index `first` on. */
struct keyed {
    const struct model_initial *initial;
    const struct tensor *tensor;
    uint64_t first, count;
    double *values;
};

static void fill_part(void *context, int thread)
{
    const struct keyed *all = context;
    const uint64_t threads = (uint64_t)all->initial->threads, part = (uint64_t)thread;
    const uint64_t end = all->count * (part + 1) / threads;
    for (uint64_t i = all->count * part / threads; i < end; i++)
        all->values[i] = initial_value(all->tensor, all->initial->key, all->first + i);
}

/* --- values from the job file --------------------------------------------------------------------------------------
 */

static int take_values(struct model_initial *initial, const Gacc__V1__TensorValues *given, struct error *error)
{
    const struct tensor_table *table = &initial->model->table;
    const struct tensor *tensor = tensor_find(table, given->name);
    if (!tensor)
        return error_set(error, STATUS_JOB, "model.init.values.%s: no tensor of this name; the nearest is %s",
                         given->name, tensors_near(table, given->name, 1).text);
    if (given->n_values != tensor->size)
        return error_set(error, STATUS_JOB, "model.init.values.%s: %zu values for a tensor of %llu", given->name,
                         given->n_values, (unsigned long long)tensor->size);
    initial->sources[tensor - table->tensors].values = given->values;
    return 0;
}

/* --- values from a file --------------------------------------------------------------------------------------------
 */

static bool same_shape(const struct safetensors_tensor *stored, const struct tensor *tensor)
{
    return stored->dimensions == tensor->dimensions &&
           memcmp(stored->shape, tensor->shape, (size_t)tensor->dimensions * sizeof *tensor->shape) == 0;
}

#define SHOWN_DIMENSIONS 8

struct shape_text {
    char text[8 + SHOWN_DIMENSIONS * 22];
};

static struct shape_text shape_text(const uint64_t *shape, int dimensions)
{
    struct shape_text out = {"["};
    size_t at = 1;
    for (int d = 0; d < dimensions && d < SHOWN_DIMENSIONS; d++)
        at +=
            (size_t)snprintf(out.text + at, sizeof out.text - at, d ? ", %llu" : "%llu", (unsigned long long)shape[d]);
    snprintf(out.text + at, sizeof out.text - at, dimensions > SHOWN_DIMENSIONS ? ", …]" : "]");
    return out;
}

static int check_shape(const struct model_initial *initial, const struct safetensors_tensor *stored,
                       const struct tensor *tensor, struct error *error)
{
    if (stored->type == SAFETENSORS_OTHER)
        return error_set(error, STATUS_DATA, "%s: tensor %s is of a type other than F64, F32, F16, BF16", initial->path,
                         stored->name);
    if (same_shape(stored, tensor)) return 0;
    return error_set(error, STATUS_DATA, "%s: tensor %s has shape %s, the model's is %s", initial->path, stored->name,
                     shape_text(stored->shape, stored->dimensions).text,
                     shape_text(tensor->shape, tensor->dimensions).text);
}

/* Compares a stored tensor with another, or with zeros when that is NULL; 1 when they are equal. */
static int equal_values(const struct model_initial *initial, const struct safetensors_tensor *one,
                        const struct safetensors_tensor *other, struct error *error)
{
    enum { CHUNK = 1024 };
    double a[CHUNK], b[CHUNK] = {0};
    for (uint64_t first = 0; first < one->elements; first += CHUNK) {
        uint64_t count = one->elements - first < CHUNK ? one->elements - first : CHUNK;
        int rc = safetensors_read(initial->file, one, first, count, a, error);
        if (rc == 0 && other) rc = safetensors_read(initial->file, other, first, count, b, error);
        if (rc < 0) return rc;
        for (uint64_t i = 0; i < count; i++)
            if (a[i] != b[i]) return 0;
    }
    return 1;
}

/* The transformers library puts this before all names but lm_head.weight in files of the model with its head. */
static const char *plain_name(const char *name)
{
    static const char prefix[] = "transformer.";
    return strncmp(name, prefix, sizeof prefix - 1) == 0 ? name + sizeof prefix - 1 : name;
}

/* The causal mask of older GPT-2 files: h.0.attn.bias [1, 1, context, context], h.0.attn.masked_bias []. */
static bool is_mask(const struct model_initial *initial, const struct safetensors_tensor *stored)
{
    unsigned layer;
    int end = 0;
    if (initial->model->spec->type != GACC__V1__MODEL_TYPE__MODEL_GPT) return false;
    if (sscanf(plain_name(stored->name), "h.%u.attn.%n", &layer, &end) != 1 || end == 0) return false;
    const char *rest = plain_name(stored->name) + end;
    return (strcmp(rest, "bias") == 0 && stored->dimensions == 4) || strcmp(rest, "masked_bias") == 0;
}

/* Of model.lora or of the peft library's files: h.0.attn.c_attn.lora_A.weight. */
static bool is_adapter(const struct safetensors_tensor *stored)
{
    return strstr(stored->name, ".lora_A.") || strstr(stored->name, ".lora_B.");
}

static bool holds_adapters_alone(const struct safetensors *file)
{
    size_t i = 0;
    while (i < safetensors_count(file) && is_adapter(safetensors_at(file, i))) i++;
    return i == safetensors_count(file);
}

/* A model begins from all of its weights: adapters that the model has not are merged into them, or go on with them. */
static int refuse_adapter(const struct model_initial *initial, const struct safetensors_tensor *stored,
                          struct error *error)
{
    const char *what = holds_adapters_alone(initial->file) ? "the file holds adapters alone" : "it is an adapter's";
    return error_set(
        error, STATUS_DATA,
        "%s: the model has no tensor %s: %s. The job that trained it goes on from its checkpoints (the same "
        "command, or --resume DIR); a new one begins from that job's final/model.safetensors, into which the "
        "adapters are merged",
        initial->path, stored->name, what);
}

/* A stored tensor that the model has no row for: zeros of an export without bias, and masks, may be there. */
static int take_surplus(const struct model_initial *initial, const struct safetensors_tensor *stored,
                        struct error *error)
{
    const char *name = plain_name(stored->name);
    const struct tensor *zeros = tensor_find(&initial->model->zeros, name);
    if (is_mask(initial, stored)) return 0;
    if (!zeros && is_adapter(stored)) return refuse_adapter(initial, stored, error);
    if (!zeros)
        return error_set(error, STATUS_DATA, "%s: the model has no tensor %s; the nearest is %s", initial->path, name,
                         tensors_near(&initial->model->table, name, 1).text);
    int rc = check_shape(initial, stored, zeros, error);
    if (rc == 0) rc = equal_values(initial, stored, NULL, error);
    if (rc == 0)
        return error_set(error, STATUS_DATA, "%s: tensor %s is not zero, and the model has no biases", initial->path,
                         name);
    return rc < 0 ? rc : 0;
}

static int take_stored(struct model_initial *initial, const struct safetensors_tensor *stored, struct error *error)
{
    const struct tensor_table *table = &initial->model->table;
    const struct tensor *tensor = tensor_find(table, plain_name(stored->name));
    if (!tensor) return take_surplus(initial, stored, error);
    struct source *source = &initial->sources[tensor - table->tensors];
    if (source->stored)
        return error_set(error, STATUS_DATA, "%s: tensors %s and %s are the same one", initial->path,
                         source->stored->name, stored->name);
    source->stored = stored;
    return check_shape(initial, stored, tensor, error);
}

/* GPT-2's head and token embedding are one tensor unless the model unties them. A file may hold the tied one twice, if
 * equal; an untied model may start from a file that holds it once. */
static int settle_tie(struct model_initial *initial, const struct safetensors_tensor *stored_head, struct error *error)
{
    const struct tensor_table *table = &initial->model->table;
    const struct tensor *head = tensor_find(table, "lm_head.weight"), *embedding = tensor_find(table, "wte.weight");
    if (!embedding) return 0;
    const struct safetensors_tensor *stored = initial->sources[embedding - table->tensors].stored;
    if (head && !stored_head) initial->sources[head - table->tensors].stored = stored;
    if (head || !stored_head || !stored) return 0;
    int rc = check_shape(initial, stored_head, embedding, error);
    if (rc == 0) rc = equal_values(initial, stored_head, stored, error);
    if (rc == 0)
        return error_set(error, STATUS_DATA,
                         "%s: tensor lm_head.weight differs from %s, and the model ties them (model.tie)",
                         initial->path, stored->name);
    return rc < 0 ? rc : 0;
}

/* Whether the model has adapters and the file none of them. */
static bool lacks_adapters(const struct model_initial *initial)
{
    const struct tensor_table *table = &initial->model->table;
    for (size_t i = table->fixed; i < table->count; i++)
        if (initial->sources[i].stored) return false;
    return table->fixed > 0;
}

/* is_base: adapters may begin on it. */
static int take_file(struct model_initial *initial, bool is_base, struct error *error)
{
    const struct tensor_table *table = &initial->model->table;
    int rc = safetensors_open(&initial->file, initial->path, error);
    const struct safetensors_tensor *head = rc == 0 ? safetensors_find(initial->file, "lm_head.weight") : NULL;
    bool tied = tensor_find(table, "wte.weight") && !tensor_find(table, "lm_head.weight");
    for (size_t i = 0; rc == 0 && i < safetensors_count(initial->file); i++) {
        const struct safetensors_tensor *stored = safetensors_at(initial->file, i);
        if (stored != head || !tied) rc = take_stored(initial, stored, error);
    }
    if (rc == 0) rc = settle_tie(initial, head, error);
    const size_t wanted = is_base && lacks_adapters(initial) ? table->fixed : table->count;
    for (size_t i = 0; rc == 0 && i < wanted; i++)
        if (!initial->sources[i].stored)
            rc = error_set(error, STATUS_DATA, "%s: tensor %s is missing", initial->path, table->tensors[i].name);
    return rc;
}

/* -------------------------------------------------------------------------------------------------------------------
 */

int model_initial_open(struct model_initial **out, const struct model *model, uint64_t seed, const char *file,
                       int threads, struct error *error)
{
    const Gacc__V1__ModelSection *spec = model->spec;
    *out = NULL;
    struct model_initial *initial = calloc(1, sizeof *initial + model->table.count * sizeof *initial->sources);
    if (!initial)
        return error_set(error, STATUS_INTERNAL, "out of memory for the sources of %zu tensors", model->table.count);
    initial->model = model;
    initial->key = splitmix64(seed, 0);
    initial->threads = threads;
    initial->pool = pool_open(threads);
    initial->path = file ? file : spec->init_file;
    int rc =
        initial->pool ? 0 : error_set(error, STATUS_INTERNAL, "%d threads for initial values cannot be had", threads);
    if (rc == 0 && initial->path && initial->path[0]) rc = take_file(initial, !file, error);
    for (size_t i = 0; rc == 0 && i < spec->n_init_values && !file; i++)
        rc = take_values(initial, spec->init_values[i], error);
    if (rc < 0) {
        model_initial_close(initial);
        return rc;
    }
    *out = initial;
    return 0;
}

/* Elements [first, first + count) of one tensor. */
static int read_tensor(struct model_initial *initial, size_t row, uint64_t first, uint64_t count, double *values,
                       struct error *error)
{
    const struct tensor *tensor = &initial->model->table.tensors[row];
    const struct source *source = &initial->sources[row];
    if (source->stored) return safetensors_read(initial->file, source->stored, first, count, values, error);
    if (source->values) {
        memcpy(values, source->values + first, count * sizeof *values);
        return 0;
    }
    struct keyed keyed = {initial, tensor, tensor->begin + first, count, values};
    pool_run(initial->pool, fill_part, &keyed);
    return 0;
}

/* Every one is a finite number of the type that parameters are kept in. */
static int check_values(const struct model_initial *initial, size_t row, uint64_t first, uint64_t count,
                        const double *values, struct error *error)
{
    const enum dtype wide_type = dtype_wide(initial->model->compute_type);
    const char *tensor = initial->model->table.tensors[row].name, *type = dtype_name(wide_type);
    for (uint64_t i = 0; i < count; i++) {
        if (isfinite(values[i]) && (wide_type == DTYPE_FP64 || isfinite((float)values[i]))) continue;
        unsigned long long at = first + i;
        if (initial->sources[row].stored)
            return error_set(error, STATUS_DATA, "%s: tensor %s: element %llu is %g, no finite number of %s",
                             initial->path, tensor, at, values[i], type);
        return error_set(error, STATUS_JOB, "model.%s: tensor %s: element %llu is %g, no finite number of %s",
                         initial->sources[row].values ? "init.values" : "init_std", tensor, at, values[i], type);
    }
    return 0;
}

int model_initial_read(struct model_initial *initial, uint64_t begin, uint64_t end, double *values, struct error *error)
{
    const struct tensor_table *table = &initial->model->table;
    int rc = 0;
    for (size_t row = 0; rc == 0 && row < table->count; row++) {
        const struct tensor *tensor = &table->tensors[row];
        uint64_t from = begin > tensor->begin ? begin : tensor->begin;
        uint64_t to = end < tensor->begin + tensor->size ? end : tensor->begin + tensor->size;
        if (from >= to) continue;
        double *into = values + (from - begin);
        rc = read_tensor(initial, row, from - tensor->begin, to - from, into, error);
        if (rc == 0) rc = check_values(initial, row, from - tensor->begin, to - from, into, error);
    }
    return rc;
}

void model_initial_close(struct model_initial *initial)
{
    if (!initial) return;
    safetensors_close(initial->file);
    if (initial->pool) pool_close(initial->pool);
    free(initial);
}
