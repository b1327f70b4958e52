/* What `gaccd inspect FILE` says of a data set or of weights, which it has to find out without a job. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/format.h"
#include "worker/data/labels.h"
#include "worker/facts.h"
#include "worker/safetensors.h"

enum { BLOCK_BYTES = 1 << 18, HEADER_MAX_BYTES = 1 << 20 };

static void add_count(struct facts *facts, const char *key, uint64_t count)
{
    facts_add(facts, key, json_integer((json_int_t)count));
}

/* As a whole number where it is one. */
static void add_number(struct facts *facts, const char *key, double value)
{
    const bool is_whole = fabs(value) < 0x1p53 && nearbyint(value) >= value && nearbyint(value) <= value;
    facts_add(facts, key, is_whole ? json_integer((json_int_t)value) : json_real(value));
}

static const char for_rows[] = "mlp, cnn, linear";

/* ---- ranges of numbers ---- */

struct range {
    double least, greatest; /* of those that are finite */
    uint64_t finite, nonfinite;
};

static void range_take(struct range *range, double number)
{
    if (!isfinite(number)) {
        range->nonfinite++;
        return;
    }
    range->least = range->finite ? fmin(range->least, number) : number;
    range->greatest = range->finite ? fmax(range->greatest, number) : number;
    range->finite++;
}

static void range_add(const struct range *range, struct facts *facts, const char *least, const char *greatest)
{
    if (range->finite > 0) add_number(facts, least, range->least);
    if (range->finite > 0) add_number(facts, greatest, range->greatest);
    if (range->nonfinite > 0) add_count(facts, "nonfinite", range->nonfinite);
}

/* ---- labels ---- */

/* masked: rows that are not among them. */
static void labels_add(const struct labels *labels, uint64_t masked, struct facts *facts)
{
    if (!labels->are_classes || labels->rows == 0) return;
    struct facts histogram;
    facts_open(&histogram);
    for (size_t i = 0; i < CLASSES_MOST; i++) {
        char name[16];
        snprintf(name, sizeof name, "%zu", i);
        if (labels->count[i] > 0) add_count(&histogram, name, labels->count[i]);
    }
    facts->failed = facts->failed || histogram.failed;
    if (masked > 0)
        facts_add(facts, "labels_of",
                  json_sprintf("%llu rows, without the %llu masked", (unsigned long long)labels->rows,
                               (unsigned long long)masked));
    add_count(facts, "classes", labels->classes);
    facts_add(facts, "labels", histogram.object);
    facts_add(facts, "sorted", json_boolean(labels_are_sorted(labels)));
    if (!labels_are_in_blocks(labels)) return;
    char warning[160];
    snprintf(warning, sizeof warning,
             "the rows %s: read in this order, a micro-batch holds one class; data.order: shuffled mixes them",
             labels_are_sorted(labels) ? "are sorted by class" : "of a class follow each other");
    facts_add(facts, "warning", json_string(warning));
}

/* ---- csv ---- */

/* Counts the columns of a csv header by their first letter; csv.c checks the names. */
static int csv_shape(const struct file *file, struct data_shape *shape, struct error *error)
{
    size_t bytes = file->size < HEADER_MAX_BYTES ? (size_t)file->size : HEADER_MAX_BYTES;
    char *text = malloc(bytes + 1);
    if (!text) return error_set(error, STATUS_INTERNAL, "%s: no memory for the header", file->path);
    int result = file_read(file, 0, bytes, text, error);
    size_t length = 0;
    while (result == 0 && length < bytes && text[length] != '\n') length++;
    bool start = true;
    for (size_t i = 0; i < length; i++) {
        if (start) {
            shape->size += text[i] == 'g';
            shape->inputs += text[i] == 'x';
            shape->outputs += text[i] == 'y';
        }
        start = text[i] == ',' || (start && (text[i] == ' ' || (unsigned char)text[i] >= 0x80));
    }
    free(text);
    if (result == 0 && shape->size == 0 && shape->inputs == 0)
        result = error_set(error, STATUS_DATA,
                           "%s:1: no column x0 or g0; a csv file has weight (optional), x0…, y0… or g0…", file->path);
    return result;
}

struct csv_sums {
    double weight;
    uint64_t masked;
    struct range x, y;    /* of all rows; of a tape x has g */
    struct labels labels; /* of the rows that are not masked */
};

static int csv_rows(struct data *data, const struct data_shape *shape, struct csv_sums *sums, struct error *error)
{
    struct micro_batch *batch;
    int result = micro_batch_open(&batch, shape, 1, error);
    if (result < 0) return result;
    sums->labels.are_classes = shape->outputs == 1;
    for (uint64_t i = 0; i < data_sequences(data) && result == 0; i++) {
        micro_batch_clear(batch);
        result = data_read(data, i, batch, error);
        sums->weight += batch->weight[0];
        sums->masked += batch->weight[0] == 0;
        for (uint32_t k = 0; k < shape->inputs + shape->size; k++) range_take(&sums->x, batch->x[k]);
        for (uint32_t k = 0; k < shape->outputs; k++) range_take(&sums->y, batch->y[k]);
        if (shape->outputs == 1 && batch->weight[0] > 0) labels_take(&sums->labels, batch->y[0]);
    }
    micro_batch_close(batch);
    return result;
}

static int inspect_csv(const struct file *file, struct facts *facts, struct error *error)
{
    struct data_shape shape = {0};
    int result = csv_shape(file, &shape, error);
    if (result < 0) return result;
    struct data *data;
    char *path[] = {(char *)(uintptr_t)file->path};
    const struct part part = {.paths = path, .count = 1};
    result = csv_class.open(&data, GACC__V1__DATA_FORMAT__FORMAT_CSV, &part, &shape, error);
    if (result < 0) return result;
    struct csv_sums *sums = calloc(1, sizeof *sums);
    result =
        sums ? csv_rows(data, &shape, sums, error) : error_set(error, STATUS_INTERNAL, "%s: no memory", file->path);
    if (result == 0) {
        facts_add(facts, "format", json_string("csv"));
        add_count(facts, "rows", data_sequences(data));
        add_count(facts, "masked_rows", sums->masked);
        add_number(facts, "weight", sums->weight);
        if (shape.size) add_count(facts, "g", shape.size);
        if (!shape.size) add_count(facts, "x", shape.inputs);
        range_add(&sums->x, facts, "least", "greatest");
        if (!shape.size) add_count(facts, "y", shape.outputs);
        range_add(&sums->y, facts, "least_y", "greatest_y");
        labels_add(&sums->labels, sums->masked, facts);
        facts_add(facts, "for", json_string(shape.size ? "tape" : for_rows));
    }
    free(sums);
    data_close(data);
    return result;
}

/* ---- idx ---- */

struct idx_sums {
    struct range numbers;
    struct labels labels;
};

static int idx_numbers(const struct file *file, const struct idx_header *header, struct idx_sums *sums,
                       struct error *error)
{
    enum { NUMBERS = 4096 };
    unsigned char bytes[NUMBERS * sizeof(double)];
    double numbers[NUMBERS];
    const uint64_t all = header->rows * header->columns;
    sums->labels.are_classes = header->columns == 1 && idx_is_whole(header);
    int result = 0;
    for (uint64_t first = 0; first < all && result == 0; first += NUMBERS) {
        const size_t count = (size_t)(all - first < NUMBERS ? all - first : NUMBERS);
        result = file_read(file, header->begin + first * header->width, count * header->width, bytes, error);
        if (result < 0) break;
        idx_decode(header, bytes, count, false, numbers);
        for (size_t i = 0; i < count; i++) {
            range_take(&sums->numbers, numbers[i]);
            if (header->columns == 1) labels_take(&sums->labels, numbers[i]);
        }
    }
    if (result == 0 && sums->numbers.nonfinite > 0)
        result = error_set(error, STATUS_DATA, "%s: %" PRIu64 " numbers are not finite", file->path,
                           sums->numbers.nonfinite);
    return result;
}

static int inspect_idx(const struct file *file, struct facts *facts, struct error *error)
{
    struct idx_header header;
    int result = idx_identify(file, &header, error);
    if (result < 0) return result;
    struct idx_sums *sums = calloc(1, sizeof *sums);
    result =
        sums ? idx_numbers(file, &header, sums, error) : error_set(error, STATUS_INTERNAL, "%s: no memory", file->path);
    if (result == 0) {
        char sizes[16 * IDX_DIMENSIONS] = "";
        for (unsigned i = 0; i < header.dimensions; i++)
            snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), "%s%" PRIu32, i ? "×" : "", header.size[i]);
        facts_add(facts, "format", json_string("idx"));
        facts_add(facts, "type", json_string(idx_type_name(&header)));
        facts_add(facts, "sizes", json_string(sizes));
        add_count(facts, "rows", header.rows);
        add_count(facts, header.columns > 1 ? "x" : "y", header.columns);
        range_add(&sums->numbers, facts, "least", "greatest");
        labels_add(&sums->labels, 0, facts);
        facts_add(facts, "for", json_sprintf("%s: %s", for_rows, header.columns > 1 ? "data.train" : "data.labels"));
    }
    free(sums);
    return result;
}

/* ---- tokens ---- */

struct range_of_tokens {
    uint32_t least, greatest;
};

static int token_range(const struct file *file, uint64_t header, unsigned width, struct range_of_tokens *range,
                       struct error *error)
{
    unsigned char *block = malloc(BLOCK_BYTES);
    if (!block) return error_set(error, STATUS_INTERNAL, "%s: no memory", file->path);
    int result = 0;
    *range = (struct range_of_tokens){.least = UINT32_MAX};
    for (uint64_t offset = header; result == 0 && offset < file->size;) {
        uint64_t data = file_next_data(file, offset);
        if (data > offset) {
            range->least = 0; /* a hole */
            offset = data - (data - header) % width;
        }
        if (offset >= file->size) break;
        size_t bytes = file->size - offset < BLOCK_BYTES ? (size_t)(file->size - offset) : BLOCK_BYTES;
        result = file_read(file, offset, bytes, block, error);
        for (size_t i = 0; result == 0 && i + width <= bytes; i += width) {
            uint32_t token = 0;
            memcpy(&token, block + i, width);
            if (token > range->greatest) range->greatest = token;
            if (token < range->least) range->least = token;
        }
        offset += bytes;
    }
    free(block);
    return result;
}

/* How many sequences there are of some usual contexts. */
static void add_sequences(struct facts *facts, uint64_t tokens)
{
    static const unsigned contexts[] = {64, 256, 1024, 2048};
    struct facts sequences;
    facts_open(&sequences);
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        char name[16];
        snprintf(name, sizeof name, "%u", contexts[i]);
        add_count(&sequences, name, tokens > 0 ? (tokens - 1) / contexts[i] : 0);
    }
    facts->failed = facts->failed || sequences.failed;
    facts_add(facts, "sequences", json_sprintf("(%llu - 1) / context, rounded down", (unsigned long long)tokens));
    facts_add(facts, "of_context", sequences.object);
}

static int add_tokens(const struct file *file, const char *format, uint64_t header, unsigned width, struct facts *facts,
                      struct error *error)
{
    struct range_of_tokens range;
    int result = token_range(file, header, width, &range, error);
    if (result < 0) return result;
    const uint64_t tokens = (file->size - header) / width;
    facts_add(facts, "format", json_string(format));
    add_count(facts, "tokens", tokens);
    add_count(facts, "token_bytes", width);
    if (tokens > 0) add_count(facts, "least_token", range.least);
    add_count(facts, "greatest_token", range.greatest);
    facts_add(facts, "vocab", json_sprintf("at least %llu", (unsigned long long)range.greatest + 1));
    add_sequences(facts, tokens);
    return 0;
}

/* A .bin file does not say how wide its tokens are. Read as u32, a u16 file shows ids far above any vocabulary. */
static int inspect_raw(const struct file *file, struct facts *facts, struct error *error)
{
    enum { ANY_VOCAB = 1 << 20 };
    struct range_of_tokens range = {.greatest = UINT32_MAX};
    if (file->size % 4 == 0) {
        int result = token_range(file, 0, 4, &range, error);
        if (result < 0) return result;
    }
    if (range.greatest < ANY_VOCAB) return add_tokens(file, "u32", 0, 4, facts, error);
    if (file->size % 2)
        return error_set(error, STATUS_DATA, "%s: %" PRIu64 " bytes is not a multiple of the 2 bytes of a u16 token",
                         file->path, file->size);
    return add_tokens(file, "u16", 0, 2, facts, error);
}

/* ---- weights ---- */

/* Values that are not finite, of a tensor that has floating-point values. */
static int count_nonfinite(struct safetensors *weights, const struct safetensors_tensor *tensor, uint64_t *count,
                           struct error *error)
{
    enum { BLOCK = 4096 };
    double values[BLOCK];
    for (uint64_t first = 0; first < tensor->elements && tensor->type != SAFETENSORS_OTHER; first += BLOCK) {
        uint64_t left = tensor->elements - first, some = left < BLOCK ? left : BLOCK;
        int result = safetensors_read(weights, tensor, first, some, values, error);
        if (result < 0) return result;
        for (uint64_t i = 0; i < some; i++)
            if (!isfinite(values[i])) ++*count;
    }
    return 0;
}

/* "wte.weight F32 [50257, 768]" */
static json_t *tensor_text(const struct safetensors_tensor *tensor)
{
    static const char *const types[] = {"F64", "F32", "F16", "BF16", "other"};
    char *text;
    size_t length;
    FILE *to = open_memstream(&text, &length);
    if (!to) return NULL;
    fprintf(to, "%s %s [", tensor->name, types[tensor->type]);
    for (int i = 0; i < tensor->dimensions; i++) fprintf(to, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
    fputc(']', to);
    json_t *value = fclose(to) ? NULL : json_string(text);
    free(text);
    return value;
}

static int inspect_weights(const struct file *file, struct facts *facts, struct error *error)
{
    struct safetensors *weights;
    int result = safetensors_open(&weights, file->path, error);
    if (result < 0) return result;
    uint64_t elements = 0, nonfinite = 0;
    const size_t count = safetensors_count(weights);
    json_t *tensors = json_array();
    for (size_t i = 0; i < count && result == 0; i++) {
        const struct safetensors_tensor *tensor = safetensors_at(weights, i);
        elements += tensor->elements;
        if (json_array_append_new(tensors, tensor_text(tensor))) facts->failed = true;
        result = count_nonfinite(weights, tensor, &nonfinite, error);
    }
    facts_add(facts, "format", json_string("safetensors"));
    add_count(facts, "tensors", count);
    facts_add(facts, "tensor", tensors);
    add_count(facts, "elements", elements);
    add_count(facts, "nonfinite", nonfinite);
    safetensors_close(weights);
    return result;
}

/* ---- which of them it is ---- */

static bool ends_in(const char *path, const char *extension)
{
    size_t length = strlen(path), end = strlen(extension);
    return length >= end && strcmp(path + length - end, extension) == 0;
}

/* By what stands in it, as tokens might begin with the same bytes; or by its name. */
static bool is_idx(const struct file *file)
{
    struct idx_header header;
    struct error unused;
    const char *slash = strrchr(file->path, '/');
    return idx_identify(file, &header, &unused) == 0 || strstr(slash ? slash : file->path, "idx");
}

static int inspect_open(const struct file *file, struct facts *facts, struct error *error)
{
    uint32_t magic = 0;
    uint64_t tokens;
    unsigned width;
    if (file->size == 0) return error_set(error, STATUS_DATA, "%s: empty", file->path);
    int result = file->size >= sizeof magic ? file_read(file, 0, sizeof magic, &magic, error) : 0;
    if (result < 0) return result;
    if (llmc_magic(magic) || llmc_magic(__builtin_bswap32(magic))) {
        result = llmc_identify(file, &width, &tokens, error);
        return result < 0 ? result : add_tokens(file, "llmc", LLMC_HEADER_BYTES, width, facts, error);
    }
    if (ends_in(file->path, ".safetensors")) return inspect_weights(file, facts, error);
    if (ends_in(file->path, ".bin") && !is_idx(file)) return inspect_raw(file, facts, error); /* of any first bytes */
    if ((result = file_check_unpacked(file, error)) < 0) return result;
    if (ends_in(file->path, ".csv")) return inspect_csv(file, facts, error);
    if (is_idx(file)) return inspect_idx(file, facts, error);
    return add_tokens(file, "bytes", 0, 1, facts, error);
}

int data_inspect(const char *path, bool as_json, FILE *to, struct error *error)
{
    struct file file;
    struct facts facts;
    int result = file_open(&file, path, error);
    if (result < 0) return result;
    facts_open(&facts);
    facts_add(&facts, "path", json_string_nocheck(path));
    add_count(&facts, "bytes", file.size);
    result = inspect_open(&file, &facts, error);
    file_close(&file);
    facts_add(&facts, "sound", json_true());
    if (result == 0) result = facts_print(&facts, as_json, to, error);
    facts_close(&facts);
    return result;
}
