/* Opens a data set by its format and hands on what is common to all formats. */
#include "worker/data/format.h"
#include "worker/data/labels.h"

#include <inttypes.h>
#include <stdlib.h>

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
    case GACC__V1__MODEL_TYPE__MODEL_CNN:
        shape->inputs = model->inputs;
        shape->image = model->type == GACC__V1__MODEL_TYPE__MODEL_CNN;
        shape->outputs = model->outputs;
        if (model->loss == GACC__V1__LOSS__LOSS_CROSS_ENTROPY) {
            shape->classes = model->outputs;
            shape->outputs = 1;
        }
        shape->penalty = model->penalty > 0;
        shape->critic = model->loss == GACC__V1__LOSS__LOSS_WASSERSTEIN;
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
    const struct ids masked = {spec->masked, spec->n_masked}, ends = {spec->document_ends, spec->n_document_ends};
    if (name == 'v' && separate) {
        *part = (struct part){.paths = spec->validation,
                              .labels = spec->validation_labels,
                              .masks = spec->validation_masks,
                              .count = spec->n_validation,
                              .labels_count = spec->n_validation_labels,
                              .masks_count = spec->n_validation_masks,
                              .masked = masked,
                              .ends = ends};
        return true;
    }
    const double fraction = separate ? 0 : spec->validation_fraction;
    *part = (struct part){.paths = spec->train,
                          .labels = spec->labels,
                          .masks = spec->masks,
                          .count = spec->n_train,
                          .labels_count = spec->n_labels,
                          .masks_count = spec->n_masks,
                          .masked = masked,
                          .ends = ends,
                          .fraction = fraction,
                          .end = name == 'v'};
    return name == 't' || fraction > 0;
}

__extension__ typedef unsigned __int128 product;

/* The parts that the files have of an epoch. */
static int mix(struct data *data, const Gacc__V1__DataSection *spec, struct error *error)
{
    if (spec->n_mix != data->files)
        return error_set(error, STATUS_JOB, "data.mix: %zu numbers for %zu files", spec->n_mix, data->files);
    data->slots = calloc(data->files + 1, sizeof *data->slots);
    if (!data->slots) return error_set(error, STATUS_INTERNAL, "no memory for a mixture of %zu files", data->files);
    uint64_t parts = 0, before = 0;
    for (size_t i = 0; i < data->files; i++) parts += spec->mix[i];
    for (size_t i = 0; i < data->files; i++) {
        before += spec->mix[i];
        data->slots[i + 1] = (uint64_t)((product)data->sequences * before / parts);
        if (data->slots[i + 1] == data->slots[i])
            return error_set(error, STATUS_JOB,
                             "data.mix: %" PRIu32 " of %" PRIu64 " is less than one of the %" PRIu64
                             " sequences of an epoch: %s would not be read",
                             spec->mix[i], parts, data->sequences, spec->train[i]);
    }
    return 0;
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
    if (chosen.masks_count > 0 && chosen.masks_count != chosen.count)
        return error_set(error, STATUS_JOB, "data.mask: %zu files for the %zu of data", chosen.masks_count,
                         chosen.count);
    int result = class->open(out, spec->format, &chosen, shape, error);
    if (result < 0) return result;
    (*out)->order = spec->order;
    if (part == 't' && spec->n_mix > 0) result = mix(*out, spec, error);
    if (result < 0) {
        data_close(*out);
        *out = NULL;
    }
    return result;
}

uint64_t data_sequence_at(const struct data *data, uint64_t seed, uint64_t epoch, uint64_t position)
{
    if (data->kept) epoch = 0;
    if (!data->slots) return order_sequence(data->order, seed, epoch, data->sequences, position);
    return order_mixed(data->order, seed, epoch, data->files, data->first, data->slots, position);
}

uint64_t data_sequences(const struct data *data)
{
    return data->kept ? data->kept : data->sequences;
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
    if (batch->share) batch->share[batch->rows] = !data->shape.critic || batch->y[batch->rows] == 0;
    batch->weight_sum += data->class->weight(data, sequence);
    batch->rows++;
    return 0;
}

void data_locate(const struct data *data, uint64_t sequence, const char **file, uint64_t *offset_bytes)
{
    data->class->locate(data, sequence, file, offset_bytes);
}

int data_reserve(struct data *data, size_t files, struct error *error)
{
    data->files = files;
    data->first = calloc(files + 1, sizeof *data->first);
    return data->first ? 0 : error_set(error, STATUS_INTERNAL, "no memory for a data set of %zu files", files);
}

uint64_t data_lay_rows(struct data *data, const struct part *part, uint64_t rows)
{
    uint64_t begin, end;
    part_range(part, rows, &begin, &end);
    data->sequences = end - begin;
    for (size_t i = 0; i <= data->files; i++) {
        const uint64_t row = i < data->files ? data->first[i] : rows;
        data->first[i] = row < begin ? 0 : row < end ? row - begin : end - begin;
    }
    return begin;
}

/* Files without any share begin where the next one does. */
size_t data_file_of(const struct data *data, uint64_t sequence)
{
    size_t low = 0, high = data->files;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (data->first[middle] <= sequence)
            low = middle;
        else
            high = middle;
    }
    return low;
}

void data_keep_first(struct data *data, uint64_t sequences)
{
    data->kept = sequences < data->sequences ? sequences : data->sequences;
}

bool data_reads_by_class(const struct data *data)
{
    if (data->shape.classes == 0 || data->order != GACC__V1__ORDER__ORDER_SEQUENTIAL) return false;
    struct labels labels = {.are_classes = true};
    for (uint64_t i = 0; i < data->sequences; i++) {
        const uint64_t row = data_sequence_at(data, 0, 0, i);
        if (data_weight(data, row) > 0) labels_take(&labels, data->class->label(data, row));
    }
    return labels_are_in_blocks(&labels);
}

void data_close(struct data *data)
{
    if (!data) return;
    free(data->first);
    free(data->slots);
    data->class->close(data);
}
