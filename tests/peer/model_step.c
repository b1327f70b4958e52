/*
 * One micro-batch of a gpt for a peer to check: writes parameters, tokens, targets, the mean loss and its gradients
 * into a safetensors file.
 *
 *     model_step FILE key=value…      keys and defaults: the table below; gradients=0 writes the parameters alone
 *
 * Parameters are a job's first values of that seed, each moved by up to `spread`, so that biases and norms count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model.h"
#include "worker/safetensors.h"

static struct {
    const char *key;
    double value;
} keys[] = {{"layers", 2},   {"heads", 2},  {"width", 16},     {"context", 8},   {"vocab", 29},
            {"bias", 1},     {"tie", 1},    {"activation", 3}, {"pad_vocab", 0}, {"init_std", 0.02},
            {"seed", 1337},  {"spread", 0}, {"rows", 3},       {"cpu", 0},       {"compute", DTYPE_FP64},
            {"gradients", 1}};
enum { KEYS = sizeof keys / sizeof *keys };

static double value_of(const char *key)
{
    for (size_t i = 0; i < KEYS; i++)
        if (strcmp(keys[i].key, key) == 0) return keys[i].value;
    abort();
}

static void read_keys(char **arguments)
{
    for (; *arguments; arguments++) {
        size_t i = 0, length = strcspn(*arguments, "=");
        while (i < KEYS && (strlen(keys[i].key) != length || strncmp(keys[i].key, *arguments, length) != 0)) i++;
        if (i == KEYS || (*arguments)[length] != '=') {
            fprintf(stderr, "model_step: %s is not one of its keys\n", *arguments);
            exit(64);
        }
        keys[i].value = strtod(*arguments + length + 1, NULL);
    }
}

static void check(int result, const struct error *error)
{
    if (result == 0) return;
    fprintf(stderr, "model_step: %s\n", error->text);
    exit((int)error->status);
}

/* In (−1, 1). */
static double number(uint64_t n)
{
    uint64_t z = (n + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return (double)(int64_t)(z ^ (z >> 31)) * 0x1p-63;
}

/* What the file holds: rows of its table, and the values of all of them one after the other. */
struct output {
    struct safetensors_tensor *tensors;
    char (*names)[80];
    size_t count;
    double *values;
    size_t used;
};

static double *put(struct output *output, const char *prefix, const struct tensor *like)
{
    size_t i = output->count++;
    snprintf(output->names[i], sizeof output->names[i], "%s%s", prefix, like->name);
    output->tensors[i] = (struct safetensors_tensor){
        .name = output->names[i], .type = SAFETENSORS_F64, .dimensions = like->dimensions, .shape = like->shape};
    size_t size = 1;
    for (int d = 0; d < like->dimensions; d++) size *= like->shape[d];
    output->used += size;
    return output->values + output->used - size;
}

static void write_file(struct output *output, const char *path)
{
    struct error error;
    char *header;
    size_t header_bytes;
    check(safetensors_header(output->tensors, output->count, &header, &header_bytes, &error), &error);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(header, header_bytes, 1, file) != 1 ||
        fwrite(output->values, sizeof(double), output->used, file) != output->used || fclose(file) != 0) {
        perror(path);
        exit(74);
    }
    free(header);
}

static void fill_batch(struct micro_batch *batch, const Gacc__V1__ModelSection *spec, size_t rows)
{
    batch->rows = rows;
    for (size_t r = 0; r < rows; r++) {
        batch->sequence[r] = r;
        batch->weight[r] = 1;
    }
    for (size_t i = 0; i < rows * spec->context; i++) {
        batch->tokens[i] = (int32_t)((number(2 * i) + 1) / 2 * spec->vocab);
        batch->targets[i] = (int32_t)((number(2 * i + 1) + 1) / 2 * spec->vocab);
    }
}

static double wide_at(const wide *values, enum dtype wide_type, size_t i)
{
    return wide_type == DTYPE_FP64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void run(const struct model *model, const Gacc__V1__ModelSection *spec, const double *parameters,
                struct output *output)
{
    struct error error;
    size_t rows = (size_t)value_of("rows"), n = model->table.parameters;
    enum dtype wide_type = dtype_wide(model->compute_type);
    struct kernels_options options = {.compute_type = model->compute_type, .threads = 1};
    struct kernels *kernels = value_of("cpu") != 0 ? kernels_open_cpu(&options) : kernels_open_reference(&options);
    struct data_shape shape;
    struct micro_batch *batch;
    struct activations *activations;
    wide *master = calloc(n, sizeof(double)), *gradients = calloc(n, sizeof(double));
    compute *rounded = calloc(n, sizeof(double));
    if (!kernels || !master || !gradients || !rounded) abort();
    data_shape_of(spec, &shape);
    check(micro_batch_open(&batch, &shape, rows, &error), &error);
    check(activations_open(&activations, model, kernels, rows, true, &error), &error);
    fill_batch(batch, spec, rows);

    double averaging = 1 / (double)(rows * spec->context);
    for (size_t i = 0; i < n || i < rows; i++) {
        if (wide_type == DTYPE_FP64) {
            if (i < n) ((double *)master)[i] = parameters[i];
            if (i < rows) ((double *)batch->seed)[i] = averaging;
        } else {
            if (i < n) ((float *)master)[i] = (float)parameters[i];
            if (i < rows) ((float *)batch->seed)[i] = (float)averaging;
        }
    }
    kernels->table->cast(kernels, rounded, master, n);
    double loss = 0;
    struct pass pass = {.kernels = kernels,
                        .parameters = rounded,
                        .gradients = gradients,
                        .batch = batch,
                        .feed = feed_of(batch, batch->block),
                        .averaging = (long double)averaging,
                        .loss_sum = &loss};
    pass.feed.dropout_key = NULL;
    model_forward(model, &pass, activations);
    model_backward(model, &pass, activations);

    for (size_t t = 0; t < model->table.count; t++) {
        const struct tensor *tensor = &model->table.tensors[t];
        double *to = put(output, "gradient/", tensor);
        for (size_t i = 0; i < tensor->size; i++) to[i] = wide_at(gradients, wide_type, tensor->begin + i);
    }
    static const struct tensor one = {.dimensions = 1, .shape = {1}};
    static struct tensor tokens; /* what is written points to it */
    tokens = (struct tensor){.dimensions = 2, .shape = {rows, spec->context}};
    *put(output, "loss", &one) = loss * averaging;
    double *inputs = put(output, "tokens", &tokens), *targets = put(output, "targets", &tokens);
    for (size_t i = 0; i < rows * spec->context; i++) {
        inputs[i] = batch->tokens[i];
        targets[i] = batch->targets[i];
    }
    activations_close(activations);
    micro_batch_close(batch);
    kernels_close(kernels);
    free(master), free(gradients), free(rounded);
}

int main(int count, char **arguments)
{
    struct error error;
    struct model *model;
    struct model_initial *initial;
    if (count < 2) return 64;
    read_keys(arguments + 2);
    Gacc__V1__ModelSection spec = GACC__V1__MODEL_SECTION__INIT;
    spec.type = GACC__V1__MODEL_TYPE__MODEL_GPT;
    spec.layers = (uint32_t)value_of("layers");
    spec.heads = (uint32_t)value_of("heads");
    spec.width = (uint32_t)value_of("width");
    spec.context = (uint32_t)value_of("context");
    spec.vocab = (uint32_t)value_of("vocab");
    spec.bias = value_of("bias") != 0;
    spec.tie = value_of("tie") != 0;
    spec.activation = (Gacc__V1__Activation)value_of("activation");
    spec.pad_vocab = (uint32_t)value_of("pad_vocab");
    spec.init_std = value_of("init_std");
    check(model_open(&model, &spec, (enum dtype)value_of("compute"), &error), &error);
    check(model_initial_open(&initial, model, (uint64_t)value_of("seed"), NULL, 1, &error), &error);

    size_t n = model->table.parameters, tensors = 2 * model->table.count + 3;
    double *parameters = calloc(n, sizeof *parameters);
    struct output output = {.tensors = calloc(tensors, sizeof *output.tensors),
                            .names = calloc(tensors, sizeof *output.names),
                            .values =
                                calloc(2 * n + 1 + 2 * (size_t)(value_of("rows") * spec.context), sizeof(double))};
    if (!parameters || !output.tensors || !output.names || !output.values) abort();
    check(model_initial_read(initial, 0, n, parameters, &error), &error);
    for (size_t i = 0; i < n; i++) parameters[i] += value_of("spread") * number(1000000 + i);
    for (size_t t = 0; t < model->table.count; t++) {
        const struct tensor *tensor = &model->table.tensors[t];
        memcpy(put(&output, "", tensor), parameters + tensor->begin, tensor->size * sizeof *parameters);
    }
    if (value_of("gradients") != 0) run(model, &spec, parameters, &output);
    write_file(&output, arguments[1]);
    model_initial_close(initial);
    model_close(model);
    free(parameters), free(output.tensors), free(output.names), free(output.values);
    return 0;
}
