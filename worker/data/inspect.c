/* What `gaccd inspect FILE` says of a data set or of weights, which it has to find out without a job. */
#include "worker/data/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/safetensors.h"

enum { BLOCK_BYTES = 1 << 18, HEADER_MAX_BYTES = 1 << 20 };

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

static int inspect_csv(const struct file *file, FILE *to, struct error *error)
{
    struct data_shape shape = {0};
    int result = csv_shape(file, &shape, error);
    if (result < 0) return result;
    struct data *data;
    char *path[] = {(char *)(uintptr_t)file->path};
    const struct part part = {.paths = path, .count = 1};
    result = csv_class.open(&data, GACC__V1__DATA_FORMAT__FORMAT_CSV, &part, &shape, error);
    if (result < 0) return result;
    double weight = 0;
    uint64_t masked = 0, rows = data_sequences(data);
    for (uint64_t i = 0; i < rows; i++) {
        weight += data_weight(data, i);
        masked += data_weight(data, i) == 0;
    }
    fprintf(to, "format: csv\nrows: %" PRIu64 "\nmasked_rows: %" PRIu64 "\nweight: %.17g\n", rows, masked, weight);
    if (shape.size)
        fprintf(to, "g: %" PRIu32 "\nfor: tape\n", shape.size);
    else
        fprintf(to, "x: %" PRIu32 "\ny: %" PRIu32 "\nfor: mlp, linear\n", shape.inputs, shape.outputs);
    data_close(data);
    return 0;
}

static int greatest_token(const struct file *file, uint64_t header, unsigned width, uint32_t *greatest,
                          struct error *error)
{
    unsigned char *block = malloc(BLOCK_BYTES);
    if (!block) return error_set(error, STATUS_INTERNAL, "%s: no memory", file->path);
    int result = 0;
    *greatest = 0;
    for (uint64_t offset = header; result == 0 && offset < file->size;) {
        uint64_t data = file_next_data(file, offset);
        if (data > offset) offset = data - (data - header) % width;
        if (offset >= file->size) break;
        size_t bytes = file->size - offset < BLOCK_BYTES ? (size_t)(file->size - offset) : BLOCK_BYTES;
        result = file_read(file, offset, bytes, block, error);
        for (size_t i = 0; result == 0 && i + width <= bytes; i += width) {
            uint32_t token = 0;
            memcpy(&token, block + i, width);
            if (token > *greatest) *greatest = token;
        }
        offset += bytes;
    }
    free(block);
    return result;
}

static int print_tokens(const struct file *file, const char *format, uint64_t header, unsigned width, FILE *to,
                        struct error *error)
{
    uint32_t greatest = 0;
    int result = greatest_token(file, header, width, &greatest, error);
    if (result < 0) return result;
    uint64_t tokens = (file->size - header) / width;
    fprintf(to, "format: %s\ntokens: %" PRIu64 "\ntoken_bytes: %u\ngreatest_token: %" PRIu32 "\n", format, tokens,
            width, greatest);
    fprintf(to, "vocab: at least %" PRIu64 "\nsequences: (%" PRIu64 " - 1) / context, rounded down\n",
            (uint64_t)greatest + 1, tokens);
    return 0;
}

/* A .bin file does not say how wide its tokens are. Read as u32, a u16 file shows ids far above any vocabulary. */
static int inspect_raw(const struct file *file, FILE *to, struct error *error)
{
    enum { ANY_VOCAB = 1 << 20 };
    uint32_t greatest = UINT32_MAX;
    if (file->size % 4 == 0) {
        int result = greatest_token(file, 0, 4, &greatest, error);
        if (result < 0) return result;
    }
    if (greatest < ANY_VOCAB) return print_tokens(file, "u32", 0, 4, to, error);
    if (file->size % 2)
        return error_set(error, STATUS_DATA, "%s: %" PRIu64 " bytes is not a multiple of the 2 bytes of a u16 token",
                         file->path, file->size);
    return print_tokens(file, "u16", 0, 2, to, error);
}

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

static void print_shape(const struct safetensors_tensor *tensor, FILE *to)
{
    static const char *const types[] = {"F64", "F32", "F16", "BF16", "other"};
    fprintf(to, "tensor: %s %s [", tensor->name, types[tensor->type]);
    for (int i = 0; i < tensor->dimensions; i++) fprintf(to, "%s%" PRIu64, i ? ", " : "", tensor->shape[i]);
    fprintf(to, "]\n");
}

static int inspect_weights(const struct file *file, FILE *to, struct error *error)
{
    struct safetensors *weights;
    int result = safetensors_open(&weights, file->path, error);
    if (result < 0) return result;
    uint64_t elements = 0, nonfinite = 0;
    size_t count = safetensors_count(weights);
    fprintf(to, "format: safetensors\ntensors: %zu\n", count);
    for (size_t i = 0; i < count && result == 0; i++) {
        const struct safetensors_tensor *tensor = safetensors_at(weights, i);
        elements += tensor->elements;
        print_shape(tensor, to);
        result = count_nonfinite(weights, tensor, &nonfinite, error);
    }
    safetensors_close(weights);
    if (result == 0) fprintf(to, "elements: %" PRIu64 "\nnonfinite: %" PRIu64 "\n", elements, nonfinite);
    return result;
}

static bool ends_in(const char *path, const char *extension)
{
    size_t length = strlen(path), end = strlen(extension);
    return length >= end && strcmp(path + length - end, extension) == 0;
}

static int inspect_open(const struct file *file, FILE *to, struct error *error)
{
    uint32_t magic = 0;
    uint64_t tokens;
    unsigned width;
    if (file->size == 0) return error_set(error, STATUS_DATA, "%s: empty", file->path);
    int result = file->size >= sizeof magic ? file_read(file, 0, sizeof magic, &magic, error) : 0;
    if (result < 0) return result;
    if (llmc_magic(magic) || llmc_magic(__builtin_bswap32(magic))) {
        result = llmc_identify(file, &width, &tokens, error);
        return result < 0 ? result : print_tokens(file, "llmc", LLMC_HEADER_BYTES, width, to, error);
    }
    if (ends_in(file->path, ".safetensors")) return inspect_weights(file, to, error);
    if (ends_in(file->path, ".csv")) return inspect_csv(file, to, error);
    if (ends_in(file->path, ".bin")) return inspect_raw(file, to, error);
    return print_tokens(file, "bytes", 0, 1, to, error);
}

int data_inspect(const char *path, FILE *to, struct error *error)
{
    struct file file;
    int result = file_open(&file, path, error);
    if (result < 0) return result;
    fprintf(to, "path: %s\nbytes: %" PRIu64 "\n", path, file.size);
    result = inspect_open(&file, to, error);
    file_close(&file);
    if (result == 0) fputs("sound: yes\n", to);
    return result;
}
