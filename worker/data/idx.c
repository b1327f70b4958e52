/*
 * idx files: images, and what is to be said of them in a second file for each. An image is a row of x, its numbers in
 * the order in which they stand; bytes are divided by 255, so that they lie in 0…1, other numbers are taken as they
 * are. Labels are taken as they are, and kept in memory; images are read when they are wanted.
 */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/format.h"

/* All labels of a part are kept in memory: at most 2 GiB of them. */
static const uint64_t labels_max = UINT64_C(1) << 28;
enum { BLOCK_BYTES = 1 << 16 };

struct image_file {
    struct file file;
    struct idx_header header;
    uint64_t first_row; /* of all files' rows */
};

struct images {
    struct data data;
    struct image_file *files; /* [data.files] */
    struct open_files held;
    double *labels;         /* [rows, outputs] of all files */
    unsigned char *learned; /* [rows] of all files: 0 of a masked one */
    uint64_t rows, begin;   /* of all files; where the part begins */
    unsigned char *bytes;   /* [inputs] numbers as a file has them */
};

/* ---- the format ---- */

enum { IDX_U8 = 0x08, IDX_I8 = 0x09, IDX_I16 = 0x0B, IDX_I32 = 0x0C, IDX_F32 = 0x0D, IDX_F64 = 0x0E };
static const struct idx_type {
    unsigned code, width;
    const char *name;
} idx_types[] = {
    {IDX_U8, 1, "u8"},   {IDX_I8, 1, "i8"},   {IDX_I16, 2, "i16"},
    {IDX_I32, 4, "i32"}, {IDX_F32, 4, "f32"}, {IDX_F64, 8, "f64"},
};

static const struct idx_type *type_of(unsigned code)
{
    for (size_t i = 0; i < sizeof idx_types / sizeof *idx_types; i++)
        if (idx_types[i].code == code) return &idx_types[i];
    return NULL;
}

const char *idx_type_name(const struct idx_header *header)
{
    return type_of(header->type)->name;
}

bool idx_is_whole(const struct idx_header *header)
{
    return header->type < IDX_F32;
}

static uint64_t big_endian(const unsigned char *bytes, unsigned width)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < width; i++) value = value << 8 | bytes[i];
    return value;
}

static double number(unsigned type, uint64_t bits)
{
    float single;
    double value;
    const uint32_t low = (uint32_t)bits;
    switch (type) {
    case IDX_I8:
        return (int8_t)bits;
    case IDX_I16:
        return (int16_t)bits;
    case IDX_I32:
        return (int32_t)low;
    case IDX_F32:
        memcpy(&single, &low, sizeof single);
        return (double)single;
    case IDX_F64:
        memcpy(&value, &bits, sizeof value);
        return value;
    default:
        return (double)bits;
    }
}

void idx_decode(const struct idx_header *header, const unsigned char *bytes, size_t count, bool scaled, double *to)
{
    const double divisor = scaled && header->type == IDX_U8 ? 255 : 1;
    for (size_t i = 0; i < count; i++)
        to[i] = number(header->type, big_endian(bytes + i * header->width, header->width)) / divisor;
}

/* The sizes, and that the file holds what they say. */
static int read_sizes(const struct file *file, struct idx_header *header, struct error *error)
{
    unsigned char sizes[4 * IDX_DIMENSIONS];
    header->begin = 4 + 4 * (uint64_t)header->dimensions;
    if (file->size < header->begin)
        return error_set(error, STATUS_DATA, "%s: the idx header is truncated: %" PRIu64 " of %" PRIu64 " bytes",
                         file->path, file->size, header->begin);
    int result = file_read(file, 4, (size_t)header->begin - 4, sizes, error);
    if (result < 0) return result;
    header->columns = 1;
    bool fits = true;
    for (unsigned i = 0; i < header->dimensions; i++) {
        header->size[i] = (uint32_t)big_endian(sizes + 4 * i, 4);
        if (header->size[i] == 0)
            return error_set(error, STATUS_DATA, "%s: dimension %u of the idx header is 0", file->path, i);
        if (i > 0) fits = fits && !__builtin_mul_overflow(header->columns, header->size[i], &header->columns);
    }
    header->rows = header->size[0];
    uint64_t numbers, body = file->size - header->begin;
    fits = fits && !__builtin_mul_overflow(header->rows, header->columns, &numbers) && body % header->width == 0 &&
           numbers == body / header->width;
    if (fits) return 0;
    return error_set(error, STATUS_DATA,
                     "%s: the idx header says %" PRIu64 " rows of %" PRIu64 " numbers of %u bytes, but %" PRIu64
                     " bytes follow it",
                     file->path, header->rows, header->columns, header->width, body);
}

int idx_identify(const struct file *file, struct idx_header *header, struct error *error)
{
    unsigned char magic[4] = {0};
    *header = (struct idx_header){0};
    if (file->size < sizeof magic)
        return error_set(error, STATUS_DATA, "%s: %" PRIu64 " bytes, but an idx header has 8 at least", file->path,
                         file->size);
    int result = file_read(file, 0, sizeof magic, magic, error);
    if (result == 0) result = file_check_unpacked(file, error);
    if (result < 0) return result;
    const struct idx_type *type = type_of(magic[2]);
    if (magic[0] || magic[1] || !type)
        return error_set(error, STATUS_DATA,
                         "%s: begins with %02x %02x %02x %02x, wanted the idx magic 00 00, a type (08, 09, 0b, 0c, 0d "
                         "or 0e) and the number of dimensions",
                         file->path, magic[0], magic[1], magic[2], magic[3]);
    *header = (struct idx_header){.type = type->code, .width = type->width, .dimensions = magic[3]};
    if (header->dimensions == 0 || header->dimensions > IDX_DIMENSIONS)
        return error_set(error, STATUS_DATA, "%s: %u dimensions at byte 3, wanted 1…%d", file->path, header->dimensions,
                         IDX_DIMENSIONS);
    return read_sizes(file, header, error);
}

/* ---- opening ---- */

/* Sizes of the images and of their labels. */
static int identify(struct images *images, size_t number, const char *path, struct error *error)
{
    struct image_file *file = &images->files[number];
    int result = file_hold(&images->held, &file->file, path, error);
    if (result == 0) result = idx_identify(&file->file, &file->header, error);
    if (result < 0) return result;
    if (file->header.columns != images->data.shape.inputs)
        return error_set(error, STATUS_DATA, "%s: an image has %" PRIu64 " numbers, but %s %" PRIu32, path,
                         file->header.columns, images->data.shape.image ? "model.image has" : "model.inputs is",
                         images->data.shape.inputs);
    file->first_row = images->data.first[number] = images->rows;
    images->rows += file->header.rows;
    return 0;
}

static int check_labels(const struct file *file, const struct idx_header *header, const struct image_file *images,
                        const struct data_shape *shape, struct error *error)
{
    if (header->rows != images->header.rows)
        return error_set(error, STATUS_DATA, "%s: labels %" PRIu64 " images, but %s holds %" PRIu64, file->path,
                         header->rows, images->file.path, images->header.rows);
    if (header->columns != shape->outputs)
        return error_set(error, STATUS_DATA, "%s: %" PRIu64 " numbers for an image, wanted %" PRIu32, file->path,
                         header->columns, shape->outputs);
    if (shape->classes > 0 && !idx_is_whole(header))
        return error_set(error, STATUS_DATA, "%s: holds %s, but classes are whole numbers", file->path,
                         idx_type_name(header));
    return 0;
}

static int refuse_number(const struct file *file, const struct idx_header *header, uint64_t at, struct error *error)
{
    return error_set(error, STATUS_DATA, "%s: number %" PRIu64 " (byte %" PRIu64 ", row %" PRIu64 ") is not finite",
                     file->path, at, header->begin + at * header->width, at / header->columns);
}

/* The place of the first of `count` numbers that is not finite; count when all are. */
static size_t nonfinite_at(const double *numbers, size_t count)
{
    size_t i = 0;
    while (i < count && isfinite(numbers[i])) i++;
    return i;
}

static bool is_masked(const struct ids *masked, double label)
{
    return label >= 0 && label <= UINT32_MAX && ids_have(masked, (uint32_t)label);
}

/* A masked label may be no class. */
static int check_classes(const struct file *file, const struct idx_header *header, const double *labels, uint64_t first,
                         size_t count, uint32_t classes, const struct ids *masked, struct error *error)
{
    for (size_t i = 0; i < count; i++)
        if ((labels[i] < 0 || labels[i] >= classes) && !is_masked(masked, labels[i]))
            return error_set(
                error, STATUS_DATA,
                "%s: label %" PRIu64 " (byte %" PRIu64 ") is %.0f, wanted 0…%" PRIu32 " (model.outputs %" PRIu32 ")",
                file->path, first + i, header->begin + (first + i) * header->width, labels[i], classes - 1, classes);
    return 0;
}

static int check_critics(const struct file *file, const struct idx_header *header, const double *labels, uint64_t first,
                         size_t count, struct error *error)
{
    for (size_t i = 0; i < count; i++)
        if (!is_critics(labels[i]))
            return error_set(error, STATUS_DATA,
                             "%s: label %" PRIu64 " (byte %" PRIu64 ") is %g, wanted 1 (real), -1 (not real) or 0 "
                             "(between)",
                             file->path, first + i, header->begin + (first + i) * header->width, labels[i]);
    return 0;
}

static int read_labels(const struct images *images, const struct file *file, const struct idx_header *header,
                       const struct ids *masked, double *labels, struct error *error)
{
    unsigned char block[BLOCK_BYTES];
    const uint64_t numbers = header->rows * header->columns;
    const uint32_t classes = images->data.shape.classes;
    int result = 0;
    for (uint64_t first = 0; first < numbers && result == 0;) {
        const uint64_t left = numbers - first, most = BLOCK_BYTES / header->width;
        const size_t count = (size_t)(left < most ? left : most);
        result = file_read(file, header->begin + first * header->width, count * header->width, block, error);
        if (result < 0) return result;
        idx_decode(header, block, count, false, labels + first);
        const size_t bad = nonfinite_at(labels + first, count);
        if (bad < count) return refuse_number(file, header, first + bad, error);
        if (classes) result = check_classes(file, header, labels + first, first, count, classes, masked, error);
        if (images->data.shape.critic && !result)
            result = check_critics(file, header, labels + first, first, count, error);
        first += count;
    }
    return result;
}

static int take_labels(struct images *images, size_t number, const struct part *part, struct error *error)
{
    const struct image_file *of = &images->files[number];
    struct file file;
    struct idx_header header;
    int result = file_open(&file, part->labels[number], error);
    if (result < 0) return result;
    result = idx_identify(&file, &header, error);
    if (result == 0) result = check_labels(&file, &header, of, &images->data.shape, error);
    double *labels = images->labels + of->first_row * images->data.shape.outputs;
    if (result == 0) result = read_labels(images, &file, &header, &part->masked, labels, error);
    file_close(&file);
    for (uint64_t row = 0; row < of->header.rows && result == 0 && images->data.shape.classes; row++)
        images->learned[of->first_row + row] = !is_masked(&part->masked, labels[row]);
    return result;
}

/* Masks what the labels have not masked. */
static int take_mask(struct images *images, size_t number, const char *path, struct error *error)
{
    const struct image_file *of = &images->files[number];
    struct file file;
    unsigned char block[BLOCK_BYTES];
    int result = file_open(&file, path, error);
    if (result < 0) return result;
    result = mask_check_size(&file, of->header.rows, of->file.path, error);
    for (uint64_t first = 0; first < of->header.rows && result == 0; first += BLOCK_BYTES) {
        const uint64_t left = of->header.rows - first;
        const size_t count = (size_t)(left < BLOCK_BYTES ? left : BLOCK_BYTES);
        result = mask_read(&file, first, count, block, error);
        for (size_t i = 0; i < count && result == 0; i++) images->learned[of->first_row + first + i] &= block[i];
    }
    file_close(&file);
    return result;
}

/* An image of a file as x [inputs]. */
static int read_image(struct images *images, struct image_file *file, uint64_t row, double *x, struct error *error)
{
    const struct idx_header *header = &file->header;
    const size_t columns = (size_t)header->columns;
    int result = file_hold(&images->held, &file->file, NULL, error);
    if (result == 0)
        result = file_read(&file->file, header->begin + row * columns * header->width, columns * header->width,
                           images->bytes, error);
    if (result < 0) return result;
    idx_decode(header, images->bytes, columns, true, x);
    const size_t bad = nonfinite_at(x, columns);
    return bad < columns ? refuse_number(&file->file, header, row * columns + bad, error) : 0;
}

/* Whole numbers are finite; others are looked at. */
static int check_images(struct images *images, size_t number, struct error *error)
{
    struct image_file *file = &images->files[number];
    if (idx_is_whole(&file->header)) return 0;
    double *x = malloc((size_t)file->header.columns * sizeof *x);
    if (!x) return error_set(error, STATUS_INTERNAL, "%s: no memory for an image", file->file.path);
    int result = 0;
    for (uint64_t row = 0; row < file->header.rows && result == 0; row++)
        result = read_image(images, file, row, x, error);
    free(x);
    return result;
}

/* Memory for what is said of all images. */
static int reserve(struct images *images, const struct part *part, struct error *error)
{
    const uint32_t outputs = images->data.shape.outputs;
    if (images->rows > labels_max / outputs)
        return error_set(error, STATUS_DATA,
                         "%s: more than %" PRIu64 " images with labels of %" PRIu32
                         " numbers, the most that are kept in memory",
                         part->labels[0], labels_max / outputs, outputs);
    images->labels = malloc(images->rows * outputs * sizeof *images->labels);
    images->learned = malloc(images->rows);
    if (!images->labels || !images->learned)
        return error_set(error, STATUS_INTERNAL, "no memory for the labels of %" PRIu64 " images", images->rows);
    memset(images->learned, 1, images->rows);
    return 0;
}

static int fill(struct images *images, const struct part *part, struct error *error)
{
    const size_t files = part->count;
    int result = 0;
    for (size_t i = 0; i < files && result == 0; i++) result = identify(images, i, part->paths[i], error);
    if (result == 0) result = reserve(images, part, error);
    for (size_t i = 0; i < files && result == 0; i++) result = take_labels(images, i, part, error);
    for (size_t i = 0; i < part->masks_count && result == 0; i++) result = take_mask(images, i, part->masks[i], error);
    for (size_t i = 0; i < files && result == 0; i++) result = check_images(images, i, error);
    if (result < 0) return result;
    images->begin = data_lay_rows(&images->data, part, images->rows);
    if (images->data.sequences == 0)
        return error_set(error, STATUS_DATA, "data.validation: %g of %" PRIu64 " images leaves none for %s",
                         part->fraction, images->rows, part->end ? "validation" : "training");
    return 0;
}

/* ---- the class ---- */

static void idx_close(struct data *data)
{
    struct images *images = (struct images *)data;
    for (size_t i = 0; images->files && i < data->files; i++)
        if (images->files[i].file.path) file_close(&images->files[i].file);
    free(images->files);
    free(images->learned);
    free(images->labels);
    free(images->bytes);
    free(images);
}

static int idx_open(struct data **out, Gacc__V1__DataFormat format, const struct part *part,
                    const struct data_shape *shape, struct error *error)
{
    (void)format;
    if (shape->inputs == 0) return error_set(error, STATUS_JOB, "data.format: idx is not for this model");
    if (part->labels_count != part->count)
        return error_set(error, STATUS_JOB, "data.labels: %zu files for the %zu of images", part->labels_count,
                         part->count);
    struct images *images = calloc(1, sizeof *images);
    if (!images) return error_set(error, STATUS_INTERNAL, "no memory for a data set");
    images->data = (struct data){.class = &idx_class, .shape = *shape};
    images->bytes = malloc((size_t)shape->inputs * sizeof(double));
    images->files = calloc(part->count, sizeof *images->files);
    int result = data_reserve(&images->data, part->count, error);
    if (result == 0 && !(images->bytes && images->files))
        result = error_set(error, STATUS_INTERNAL, "no memory for a data set of %zu files", part->count);
    if (result == 0) result = fill(images, part, error);
    if (result < 0)
        data_close(&images->data);
    else
        *out = &images->data;
    return result;
}

/* Where a sequence lies. */
static struct image_file *place_of(const struct images *images, uint64_t sequence, uint64_t *row)
{
    struct image_file *file = &images->files[data_file_of(&images->data, sequence)];
    *row = images->begin + sequence - file->first_row;
    return file;
}

static double idx_weight(const struct data *data, uint64_t sequence)
{
    const struct images *images = (const struct images *)data;
    return images->learned[images->begin + sequence];
}

static int32_t idx_label(const struct data *data, uint64_t sequence)
{
    const struct images *images = (const struct images *)data;
    const uint64_t row = images->begin + sequence;
    return images->learned[row] ? (int32_t)images->labels[row] : -1;
}

static int idx_read(struct data *data, uint64_t sequence, struct micro_batch *batch, struct error *error)
{
    struct images *images = (struct images *)data;
    const struct data_shape *shape = &data->shape;
    uint64_t row;
    struct image_file *file = place_of(images, sequence, &row);
    const double *labels = images->labels + (images->begin + sequence) * shape->outputs;
    batch->weight[batch->rows] = idx_weight(data, sequence);
    if (shape->classes)
        batch->targets[batch->rows] = idx_label(data, sequence);
    else
        memcpy(batch->y + batch->rows * shape->outputs, labels, shape->outputs * sizeof *labels);
    return read_image(images, file, row, batch->x + batch->rows * shape->inputs, error);
}

static void idx_locate(const struct data *data, uint64_t sequence, const char **path, uint64_t *offset_bytes)
{
    const struct images *images = (const struct images *)data;
    uint64_t row;
    const struct image_file *file = place_of(images, sequence, &row);
    *path = file->file.path;
    *offset_bytes = file->header.begin + row * file->header.columns * file->header.width;
}

const struct data_class idx_class = {.open = idx_open,
                                     .weight = idx_weight,
                                     .label = idx_label,
                                     .read = idx_read,
                                     .locate = idx_locate,
                                     .close = idx_close};
