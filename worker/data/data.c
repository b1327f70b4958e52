/* Opens a data set by its format and hands on what is common to all formats. */
#include "worker/data/format.h"

#include <inttypes.h>

static const struct {
    Gacc__V1__DataFormat format;
    const char *name;
    const struct data_class *class;
    uint64_t ids; /* how many ids a token of this format can tell apart; 0: the file says */
} formats[] = {
    {GACC__V1__DATA_FORMAT__FORMAT_BYTES, "bytes", &token_class, UINT64_C(1) << 8},
    {GACC__V1__DATA_FORMAT__FORMAT_U16, "u16", &token_class, UINT64_C(1) << 16},
    {GACC__V1__DATA_FORMAT__FORMAT_U32, "u32", &token_class, UINT64_C(1) << 32},
    {GACC__V1__DATA_FORMAT__FORMAT_LLMC, "llmc", &token_class, 0},
    {GACC__V1__DATA_FORMAT__FORMAT_CSV, "csv", &csv_class, 0},
    {GACC__V1__DATA_FORMAT__FORMAT_IDX, "idx", &idx_class, 0},
};
enum { FORMATS = sizeof formats / sizeof *formats };

const char *data_format_name(Gacc__V1__DataFormat format)
{
    for (size_t i = 0; i < FORMATS; i++)
        if (formats[i].format == format) return formats[i].name;
    return "unknown";
}

void data_shape_of(const Gacc__V1__ModelSection *model, struct data_shape *shape)
{
    *shape = (struct data_shape){0};
    switch (model->type) {
    case GACC__V1__MODEL_TYPE__MODEL_GPT:
        shape->context = model->context;
        shape->vocab = model->vocab;
        break;
    case GACC__V1__MODEL_TYPE__MODEL_MLP:
        shape->inputs = model->inputs;
        shape->outputs = model->outputs;
        if (model->loss == GACC__V1__LOSS__LOSS_CROSS_ENTROPY) {
            shape->classes = model->outputs;
            shape->outputs = 1;
        }
        break;
    case GACC__V1__MODEL_TYPE__MODEL_LINEAR:
        shape->inputs = model->inputs;
        shape->outputs = 1;
        break;
    case GACC__V1__MODEL_TYPE__MODEL_TAPE:
        shape->size = model->size;
        break;
    default:
        break;
    }
}

/* False: the job has no such part. */
static bool choose_part(const Gacc__V1__DataSection *spec, char name, struct part *part)
{
    const bool separate = spec->n_validation > 0;
    if (name == 'v' && separate) {
        *part = (struct part){.paths = spec->validation,
                              .labels = spec->validation_labels,
                              .count = spec->n_validation,
                              .labels_count = spec->n_validation_labels};
        return true;
    }
    const double fraction = separate ? 0 : spec->validation_fraction;
    *part = (struct part){.paths = spec->train,
                          .labels = spec->labels,
                          .count = spec->n_train,
                          .labels_count = spec->n_labels,
                          .fraction = fraction,
                          .end = name == 'v'};
    return name == 't' || fraction > 0;
}

int data_open(struct data **out, const Gacc__V1__DataSection *spec, char part, const struct data_shape *shape,
              struct error *error)
{
    *out = NULL;
    struct part chosen;
    if (!choose_part(spec, part, &chosen)) return 0;
    if (!(chosen.fraction >= 0 && chosen.fraction < 1))
        return error_set(error, STATUS_JOB, "data.validation: the fraction %g is not in 0…1", chosen.fraction);
    if (chosen.count == 0)
        return error_set(error, STATUS_MISSING, "data.%s: no file", part == 'v' ? "validation" : "train");

    size_t row = 0;
    while (row < FORMATS && formats[row].format != spec->format) row++;
    if (row == FORMATS) return error_set(error, STATUS_JOB, "data.format: unknown format %d", (int)spec->format);
    const struct data_class *class = formats[row].class;
    if (class->tokens != (shape->context > 0))
        return error_set(error, STATUS_JOB, "data.format: %s holds %s, but the model takes %s", formats[row].name,
                         class->tokens ? "tokens" : "rows", shape->context > 0 ? "tokens" : "rows");
    if (formats[row].ids && shape->vocab > formats[row].ids)
        return error_set(error, STATUS_JOB,
                         "data.format: %s holds ids up to %" PRIu64 ", but model.vocab is %" PRIu32
                         ": larger ids would have wrapped when the file was written",
                         formats[row].name, formats[row].ids - 1, shape->vocab);
    return class->open(out, spec->format, &chosen, shape, error);
}

uint64_t data_sequences(const struct data *data)
{
    return data->sequences;
}

double data_weight(const struct data *data, uint64_t sequence)
{
    return data->class->weight(data, sequence);
}

int data_read(struct data *data, uint64_t sequence, struct micro_batch *batch, struct error *error)
{
    if (sequence >= data->sequences || batch->rows >= batch->capacity)
        return error_set(error, STATUS_INTERNAL, "sequence %" PRIu64 " of %" PRIu64 " into row %zu of %zu", sequence,
                         data->sequences, batch->rows, batch->capacity);
    int result = data->class->read(data, sequence, batch, error);
    if (result < 0) return result;
    batch->sequence[batch->rows] = sequence;
    batch->weight_sum += data->class->weight(data, sequence);
    batch->rows++;
    return 0;
}

void data_locate(const struct data *data, uint64_t sequence, const char **file, uint64_t *offset_bytes)
{
    data->class->locate(data, sequence, file, offset_bytes);
}

void data_close(struct data *data)
{
    if (data) data->class->close(data);
}
