#include "worker/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LENGTH_BYTES 8
#define METADATA "__metadata__" /* the name that is no tensor's */

/* The format's types: name in the header, bits of an element. */
static const struct {
    const char *name;
    enum safetensors_type type;
    unsigned bits;
} types[] = {
    {"F64", SAFETENSORS_F64, 64},          {"F32", SAFETENSORS_F32, 32},      {"F16", SAFETENSORS_F16, 16},
    {"BF16", SAFETENSORS_BF16, 16},        {"I64", SAFETENSORS_OTHER, 64},    {"I32", SAFETENSORS_OTHER, 32},
    {"I16", SAFETENSORS_OTHER, 16},        {"I8", SAFETENSORS_OTHER, 8},      {"U64", SAFETENSORS_OTHER, 64},
    {"U32", SAFETENSORS_OTHER, 32},        {"U16", SAFETENSORS_OTHER, 16},    {"U8", SAFETENSORS_OTHER, 8},
    {"BOOL", SAFETENSORS_OTHER, 8},        {"F8_E4M3", SAFETENSORS_OTHER, 8}, {"F8_E5M2", SAFETENSORS_OTHER, 8},
    {"C64", SAFETENSORS_OTHER, 64},        {"F8_E8M0", SAFETENSORS_OTHER, 8}, {"F8_E4M3FNUZ", SAFETENSORS_OTHER, 8},
    {"F8_E5M2FNUZ", SAFETENSORS_OTHER, 8}, {"F6_E2M3", SAFETENSORS_OTHER, 6}, {"F6_E3M2", SAFETENSORS_OTHER, 6},
    {"F4", SAFETENSORS_OTHER, 4},
};
#define TYPE_COUNT (sizeof types / sizeof *types)

enum safetensors_type safetensors_type_of(enum dtype type)
{
    static const enum safetensors_type map[] = {
        [DTYPE_FP32] = SAFETENSORS_F32,
        [DTYPE_BF16] = SAFETENSORS_BF16,
        [DTYPE_FP16] = SAFETENSORS_F16,
        [DTYPE_FP64] = SAFETENSORS_F64,
    };
    return map[type];
}

struct safetensors {
    char *path;
    int fd;
    uint64_t data; /* where the tensors' bytes begin */
    json_t *header;
    struct safetensors_tensor *tensors; /* [count], by offset; names belong to the header */
    size_t count;
    uint64_t *shapes; /* of all tensors, one behind the other */
    size_t shapes_used;
};

static int refuse(const struct safetensors *file, struct error *error, const char *tensor, const char *why)
{
    if (!tensor) return error_set(error, STATUS_DATA, "%s: not a safetensors file: %s", file->path, why);
    return error_set(error, STATUS_DATA, "%s: tensor '%s': %s", file->path, tensor, why);
}

/* All of it, or an error that names the place. */
static int read_at(const struct safetensors *file, void *into, size_t count, uint64_t offset, struct error *error)
{
    char *to = into;
    while (count > 0) {
        ssize_t got = pread(file->fd, to, count, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return error_set_errno(error, STATUS_IO, errno, "%s: byte %llu", file->path, (unsigned long long)offset);
        if (got == 0)
            return error_set(error, STATUS_DATA, "%s: ends at byte %llu, %zu more were expected", file->path,
                             (unsigned long long)offset, count);
        to += got;
        offset += (uint64_t)got;
        count -= (size_t)got;
    }
    return 0;
}

static uint64_t little_endian(const unsigned char bytes[LENGTH_BYTES])
{
    uint64_t value = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) value = value << 8 | bytes[i];
    return value;
}

static bool whole_number(const json_t *value, uint64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* The elements of a shape; false when they do not fit 64 bits. */
static bool count_elements(struct safetensors_tensor *tensor)
{
    tensor->elements = 1;
    for (int i = 0; i < tensor->dimensions; i++)
        if (__builtin_mul_overflow(tensor->elements, tensor->shape[i], &tensor->elements)) return false;
    return true;
}

static int parse_shape(struct safetensors *file, const json_t *shape, struct safetensors_tensor *tensor,
                       struct error *error)
{
    if (!json_is_array(shape)) return refuse(file, error, tensor->name, "shape is not a list of numbers");
    tensor->dimensions = (int)json_array_size(shape);
    tensor->shape = file->shapes + file->shapes_used;
    for (int i = 0; i < tensor->dimensions; i++)
        if (!whole_number(json_array_get(shape, (size_t)i), &file->shapes[file->shapes_used++]))
            return refuse(file, error, tensor->name, "shape holds something that is not a whole number");
    if (!count_elements(tensor)) return refuse(file, error, tensor->name, "shape is too large");
    return 0;
}

static int parse_tensor(struct safetensors *file, const json_t *entry, struct safetensors_tensor *tensor,
                        struct error *error)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    size_t type = 0;
    while (type < TYPE_COUNT && !(dtype && strcmp(types[type].name, dtype) == 0)) type++;
    if (type == TYPE_COUNT) return refuse(file, error, tensor->name, "dtype is missing or unknown");
    tensor->type = types[type].type;
    int result = parse_shape(file, json_object_get(entry, "shape"), tensor, error);
    if (result) return result;
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t end;
    if (json_array_size(offsets) != 2 || !whole_number(json_array_get(offsets, 0), &tensor->offset) ||
        !whole_number(json_array_get(offsets, 1), &end) || end < tensor->offset)
        return refuse(file, error, tensor->name, "data_offsets is not [begin, end]");
    tensor->bytes = end - tensor->offset;
    uint64_t bits;
    if (__builtin_mul_overflow(tensor->elements, types[type].bits, &bits) || bits % 8 || bits / 8 != tensor->bytes)
        return error_set(error, STATUS_DATA, "%s: tensor '%s': %llu elements of %s do not fill %llu bytes", file->path,
                         tensor->name, (unsigned long long)tensor->elements, dtype, (unsigned long long)tensor->bytes);
    return 0;
}

static int by_offset(const void *left, const void *right)
{
    const struct safetensors_tensor *a = left, *b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes; /* empty tensors first */
}

/* The tensors must fill the file: no gap, no overlap, nothing left over. */
static int check_extent(struct safetensors *file, uint64_t size, struct error *error)
{
    qsort(file->tensors, file->count, sizeof *file->tensors, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->offset != end)
            return error_set(error, STATUS_DATA, "%s: tensor '%s' begins at byte %llu of the data, %llu was expected",
                             file->path, tensor->name, (unsigned long long)tensor->offset, (unsigned long long)end);
        end += tensor->bytes; /* cannot wrap: both are below 2^63 */
    }
    if (end > size || file->data + end != size)
        return error_set(error, STATUS_DATA, "%s: has %llu bytes, its header says %llu", file->path,
                         (unsigned long long)size, (unsigned long long)(file->data + end));
    return 0;
}

static int check_metadata(const struct safetensors *file, json_t *metadata, struct error *error)
{
    const char *name;
    json_t *value;
    if (!json_is_object(metadata)) return refuse(file, error, NULL, METADATA " is not a JSON object");
    json_object_foreach(metadata, name, value)
    {
        if (!json_is_string(value)) return refuse(file, error, NULL, METADATA " holds something that is no text");
    }
    return 0;
}

static int parse_header(struct safetensors *file, const char *text, size_t length, struct error *error)
{
    json_error_t why;
    if (length == 0 || text[0] != '{') return refuse(file, error, NULL, "its header does not begin with {");
    file->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    if (!file->header) return refuse(file, error, NULL, why.text);
    const char *name;
    json_t *entry;
    size_t dimensions = 0;
    json_object_foreach(file->header, name, entry) dimensions += json_array_size(json_object_get(entry, "shape"));
    file->tensors = calloc(json_object_size(file->header) + 1, sizeof *file->tensors);
    file->shapes = calloc(dimensions + 1, sizeof *file->shapes);
    if (!file->tensors || !file->shapes)
        return error_set(error, STATUS_INTERNAL, "%s: out of memory for its tensors", file->path);
    json_object_foreach(file->header, name, entry)
    {
        const bool is_tensor = strcmp(name, METADATA) != 0;
        struct safetensors_tensor *tensor = &file->tensors[file->count];
        tensor->name = name;
        file->count += is_tensor;
        int result = is_tensor ? parse_tensor(file, entry, tensor, error) : check_metadata(file, entry, error);
        if (result) return result;
    }
    return 0;
}

static int read_header(struct safetensors *file, struct error *error)
{
    struct stat status;
    if (fstat(file->fd, &status)) return error_set_errno(error, STATUS_MISSING, errno, "%s", file->path);
    if (!S_ISREG(status.st_mode)) return error_set(error, STATUS_MISSING, "%s: not a regular file", file->path);
    uint64_t size = (uint64_t)status.st_size;
    if (size < LENGTH_BYTES) return refuse(file, error, NULL, "shorter than the length of its header");
    unsigned char bytes[LENGTH_BYTES];
    int result = read_at(file, bytes, sizeof bytes, 0, error);
    if (result) return result;
    uint64_t length = little_endian(bytes);
    if (length > SAFETENSORS_HEADER_MAX || length > size - LENGTH_BYTES)
        return error_set(error, STATUS_DATA, "%s: not a safetensors file: a header of %llu bytes in a file of %llu",
                         file->path, (unsigned long long)length, (unsigned long long)size);
    char *text = malloc((size_t)length + 1);
    if (!text) return error_set(error, STATUS_INTERNAL, "%s: out of memory for its header", file->path);
    file->data = LENGTH_BYTES + length;
    result = read_at(file, text, (size_t)length, LENGTH_BYTES, error);
    if (!result) result = parse_header(file, text, (size_t)length, error);
    free(text);
    return result ? result : check_extent(file, size, error);
}

int safetensors_open(struct safetensors **out, const char *path, struct error *error)
{
    *out = NULL;
    struct safetensors *file = calloc(1, sizeof *file);
    if (file) file->path = strdup(path);
    if (!file || !file->path) {
        free(file);
        return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    }
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is refused, not waited for */
    int result = file->fd < 0 ? error_set_errno(error, STATUS_MISSING, errno, "%s", path) : read_header(file, error);
    if (result) {
        safetensors_close(file);
        return result;
    }
    *out = file;
    return 0;
}

size_t safetensors_count(const struct safetensors *file)
{
    return file->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *file, size_t index)
{
    return &file->tensors[index];
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    for (size_t i = 0; i < file->count; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

void safetensors_close(struct safetensors *file)
{
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    json_decref(file->header);
    free(file->tensors);
    free(file->shapes);
    free(file->path);
    free(file);
}

/* --- values -------------------------------------------------------------------------------------------------- */

static uint64_t load(const unsigned char *bytes, unsigned size)
{
    uint64_t value = 0;
    for (unsigned i = size; i-- > 0;) value = value << 8 | bytes[i];
    return value;
}

static double from_fp32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* IEEE 754 binary16: the exponent is re-biased by a multiplication that is exact, subnormal numbers included. */
static double from_fp16(uint32_t half)
{
    uint32_t sign = (half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u) return from_fp32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    return from_fp32(sign | magnitude << 13) * 0x1p112;
}

static double value_of(enum safetensors_type type, const unsigned char *bytes)
{
    switch (type) {
    case SAFETENSORS_F64: {
        double value;
        uint64_t bits = load(bytes, 8);
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    case SAFETENSORS_F32:
        return from_fp32((uint32_t)load(bytes, 4));
    case SAFETENSORS_F16:
        return from_fp16((uint32_t)load(bytes, 2));
    case SAFETENSORS_BF16:
        return from_fp32((uint32_t)load(bytes, 2) << 16);
    case SAFETENSORS_OTHER:
        break;
    }
    return 0;
}

int safetensors_read(struct safetensors *file, const struct safetensors_tensor *tensor, uint64_t first, uint64_t count,
                     double *values, struct error *error)
{
    static const unsigned sizes[] = {
        [SAFETENSORS_F64] = 8, [SAFETENSORS_F32] = 4, [SAFETENSORS_F16] = 2, [SAFETENSORS_BF16] = 2};
    if (tensor->type == SAFETENSORS_OTHER)
        return refuse(file, error, tensor->name, "its type is not F64, F32, F16 or BF16");
    if (first > tensor->elements || count > tensor->elements - first)
        return refuse(file, error, tensor->name, "read beyond its end");
    unsigned size = sizes[tensor->type];
    unsigned char block[16384];
    while (count > 0) {
        uint64_t part = count < sizeof block / size ? count : sizeof block / size;
        int result = read_at(file, block, part * size, file->data + tensor->offset + first * size, error);
        if (result) return result;
        for (uint64_t i = 0; i < part; i++) values[i] = value_of(tensor->type, block + i * size);
        values += part;
        first += part;
        count -= part;
    }
    return 0;
}

/* --- writing ------------------------------------------------------------------------------------------------- */

/* False: no file can hold it. */
static bool place_tensor(struct safetensors_tensor *tensor, unsigned bits, uint64_t *end)
{
    tensor->offset = *end;
    return count_elements(tensor) && !__builtin_mul_overflow(tensor->elements, bits / 8, &tensor->bytes) &&
           !__builtin_add_overflow(*end, tensor->bytes, end) && *end <= INT64_MAX;
}

static int add_tensor(json_t *header, struct safetensors_tensor *tensor, uint64_t *end, struct error *error)
{
    size_t type = 0;
    while (types[type].type != tensor->type) type++;
    if (json_object_get(header, tensor->name) || !place_tensor(tensor, types[type].bits, end))
        return error_set(error, STATUS_INTERNAL, "tensor '%s': a safetensors file cannot hold it", tensor->name);
    json_t *shape = json_array();
    for (int i = 0; i < tensor->dimensions; i++)
        json_array_append_new(shape, json_integer((json_int_t)tensor->shape[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", types[type].name, "shape", shape, "data_offsets",
                              (json_int_t)tensor->offset, (json_int_t)*end);
    return json_object_set_new(header, tensor->name, entry)
               ? error_set(error, STATUS_INTERNAL, "tensor '%s': out of memory, or no text", tensor->name)
               : 0;
}

int safetensors_header(struct safetensors_tensor *tensors, size_t count, char **header, size_t *header_bytes,
                       struct error *error)
{
    json_t *object = json_pack("{s:{s:s}}", METADATA, "format", "pt");
    uint64_t end = 0;
    int result = 0;
    for (size_t i = 0; object && i < count && !result; i++) result = add_tensor(object, &tensors[i], &end, error);
    char *text = result ? NULL : json_dumps(object, JSON_COMPACT);
    json_decref(object);
    size_t length = text ? strlen(text) : 0;
    size_t padded = (length + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES;
    *header = text && padded <= SAFETENSORS_HEADER_MAX ? malloc(LENGTH_BYTES + padded) : NULL;
    if (!*header) {
        free(text);
        return result ? result
                      : error_set(error, STATUS_INTERNAL, "no room for the header of %zu tensors (%zu bytes)", count,
                                  padded);
    }
    for (int i = 0; i < LENGTH_BYTES; i++) (*header)[i] = (char)(unsigned char)(padded >> 8 * i);
    memset(*header + LENGTH_BYTES, ' ', padded);
    memcpy(*header + LENGTH_BYTES, text, length);
    *header_bytes = LENGTH_BYTES + padded;
    free(text);
    return 0;
}
