/*
 * Token files: bytes, u16, u32 and llmc. A set is the list of its files; each contributes the whole sequences that fit
 * in its part. Every token is looked at once when the set is opened, and again when it is read, since files change.
 */
#include "worker/data/format.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tokens are little-endian in files");

/* Tokens are looked at in blocks of this many bytes. */
enum { BLOCK_BYTES = 1 << 18 };

struct token_file {
    struct file file, mask; /* mask: when the part has masks */
    unsigned width;         /* bytes of a token */
    uint64_t header;        /* bytes before the first token */
    uint64_t begin, end;    /* tokens of the file that belong to the part */
};

struct token_set {
    struct data data;
    struct token_file *files; /* [data.files] */
    struct open_files held;
    struct ids masked, ends;
    bool masks;             /* there are files of masks */
    unsigned char *learned; /* [context + 1] of a file of masks */
    uint32_t *targets;      /* [sequences] not masked, of each; NULL: all are learned */
    void *block;            /* max(BLOCK_BYTES, one sequence) */
};

bool llmc_magic(uint32_t magic)
{
    return magic == 20240520 || magic == 20240801;
}

int llmc_identify(const struct file *file, unsigned *width, uint64_t *tokens, struct error *error)
{
    static const struct {
        int32_t magic, version;
        unsigned width;
    } kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};
    if (file->size < LLMC_HEADER_BYTES)
        return error_set(error, STATUS_DATA, "%s: the llmc header is truncated: %" PRIu64 " of %d bytes", file->path,
                         file->size, LLMC_HEADER_BYTES);
    int32_t header[3];
    int result = file_read(file, 0, sizeof header, header, error);
    if (result < 0) return result;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (header[0] != kinds[i].magic) continue;
        if (header[1] != kinds[i].version)
            return error_set(error, STATUS_DATA, "%s: llmc version %" PRId32 " at byte 4, wanted %" PRId32, file->path,
                             header[1], kinds[i].version);
        uint64_t body = file->size - LLMC_HEADER_BYTES;
        if (header[2] < 0 || body != (uint64_t)header[2] * kinds[i].width)
            return error_set(error, STATUS_DATA,
                             "%s: the llmc header says %" PRId32 " tokens of %u bytes, but %" PRIu64 " bytes follow it",
                             file->path, header[2], kinds[i].width, body);
        *width = kinds[i].width;
        *tokens = (uint64_t)header[2];
        return 0;
    }
    if (llmc_magic(__builtin_bswap32((uint32_t)header[0])))
        return error_set(error, STATUS_DATA, "%s: the llmc header is big-endian, wanted little-endian", file->path);
    return error_set(error, STATUS_DATA,
                     "%s: llmc magic %" PRId32 " at byte 0, wanted 20240520 (u16) or 20240801 (u32)", file->path,
                     header[0]);
}

static int raw_identify(const struct file *file, unsigned width, uint64_t *tokens, struct error *error)
{
    if (file->size % width)
        return error_set(error, STATUS_DATA, "%s: %" PRIu64 " bytes is not a multiple of the %u bytes of a u%u token",
                         file->path, file->size, width, 8 * width);
    *tokens = file->size / width;
    uint32_t magic = 0;
    if (width == 1 || file->size < LLMC_HEADER_BYTES) return 0;
    int result = file_read(file, 0, sizeof magic, &magic, error);
    if (result < 0) return result;
    if (llmc_magic(magic))
        return error_set(error, STATUS_DATA, "%s: has a llmc header, but data.format is u%u", file->path, 8 * width);
    return 0;
}

/* Sizes and headers; the whole file is the part until the cut is known. */
static int identify(struct token_set *set, size_t number, const struct part *part, Gacc__V1__DataFormat format,
                    struct error *error)
{
    const char *path = part->paths[number];
    struct token_file *file = &set->files[number];
    int result = file_hold(&set->held, &file->file, path, error);
    if (result < 0) return result;
    if (format == GACC__V1__DATA_FORMAT__FORMAT_LLMC) {
        file->header = LLMC_HEADER_BYTES;
        result = llmc_identify(&file->file, &file->width, &file->end, error);
    } else {
        file->width = format == GACC__V1__DATA_FORMAT__FORMAT_U16   ? 2
                      : format == GACC__V1__DATA_FORMAT__FORMAT_U32 ? 4
                                                                    : 1;
        result = raw_identify(&file->file, file->width, &file->end, error);
    }
    if (result < 0) return result;
    if (file->width < 4 && set->data.shape.vocab > 1u << 8 * file->width)
        return error_set(error, STATUS_DATA, "%s: tokens of %u bytes cannot hold model.vocab %" PRIu32, path,
                         file->width, set->data.shape.vocab);
    if (file->end < (uint64_t)set->data.shape.context + 1)
        return error_set(error, STATUS_DATA,
                         "%s: %" PRIu64 " tokens, but a sequence of context %" PRIu32 " needs %" PRIu64, path,
                         file->end, set->data.shape.context, (uint64_t)set->data.shape.context + 1);
    if (!set->masks) return 0;
    result = file_hold(&set->held, &file->mask, part->masks[number], error);
    return result < 0 ? result : mask_check_size(&file->mask, file->end, path, error);
}

/* Gives every file its share of the part; the list's tokens count in order. A piece that the cut leaves too short for a
 * sequence is left out. */
static int lay_out(struct token_set *set, const struct part *part, struct error *error)
{
    uint64_t total = 0, begin, end, before = 0;
    for (size_t i = 0; i < set->data.files; i++) total += set->files[i].end;
    part_range(part, total, &begin, &end);
    for (size_t i = 0; i < set->data.files; i++) {
        struct token_file *file = &set->files[i];
        uint64_t tokens = file->end;
        file->begin = begin > before ? begin - before < tokens ? begin - before : tokens : 0;
        file->end = end > before ? end - before < tokens ? end - before : tokens : 0;
        set->data.first[i] = set->data.sequences;
        if (file->end > file->begin) set->data.sequences += (file->end - file->begin - 1) / set->data.shape.context;
        before += tokens;
    }
    set->data.first[set->data.files] = set->data.sequences;
    if (set->data.sequences == 0)
        return error_set(error, STATUS_DATA,
                         "data.validation: %g of %" PRIu64 " tokens leaves %" PRIu64
                         " for %s, but a sequence of context %" PRIu32 " needs %" PRIu64,
                         part->fraction, total, end - begin, part->end ? "validation" : "training",
                         set->data.shape.context, (uint64_t)set->data.shape.context + 1);
    return 0;
}

/* The greatest of `count` tokens. Runs of 64 so that the compiler makes vector instructions of the inner loop. */
#define DEFINE_GREATEST(NAME, TYPE)                                                                    \
    static uint32_t NAME(const TYPE *token, size_t count)                                              \
    {                                                                                                  \
        TYPE lane[64] = {0}, greatest = 0;                                                             \
        size_t i = 0;                                                                                  \
        for (; i + 64 <= count; i += 64)                                                               \
            for (size_t j = 0; j < 64; j++) lane[j] = token[i + j] > lane[j] ? token[i + j] : lane[j]; \
        for (size_t j = 0; j < 64; j++) greatest = lane[j] > greatest ? lane[j] : greatest;            \
        for (; i < count; i++) greatest = token[i] > greatest ? token[i] : greatest;                   \
        return greatest;                                                                               \
    }
DEFINE_GREATEST(greatest_u8, uint8_t)
DEFINE_GREATEST(greatest_u16, uint16_t)
DEFINE_GREATEST(greatest_u32, uint32_t)

static uint32_t greatest(const void *tokens, unsigned width, size_t count)
{
    return width == 1   ? greatest_u8(tokens, count)
           : width == 2 ? greatest_u16(tokens, count)
                        : greatest_u32(tokens, count);
}

static uint32_t token_at(const void *tokens, unsigned width, size_t i)
{
    return width == 1   ? ((const uint8_t *)tokens)[i]
           : width == 2 ? ((const uint16_t *)tokens)[i]
                        : ((const uint32_t *)tokens)[i];
}

/* Reads tokens [position, position + count) of the file into the block and refuses any that is not below vocab. */
static int read_tokens(struct token_set *set, const struct token_file *file, uint64_t position, size_t count,
                       struct error *error)
{
    uint64_t offset = file->header + position * file->width;
    int result = file_read(&file->file, offset, count * file->width, set->block, error);
    if (result < 0) return result;
    uint32_t vocab = set->data.shape.vocab;
    if (greatest(set->block, file->width, count) < vocab) return 0;
    size_t i = 0;
    while (token_at(set->block, file->width, i) < vocab) i++;
    return error_set(error, STATUS_DATA,
                     "%s: token %" PRIu64 " (byte %" PRIu64 ") is %" PRIu32 ", wanted 0…%" PRIu32
                     " (model.vocab %" PRIu32 ")",
                     file->file.path, position + i, offset + i * file->width, token_at(set->block, file->width, i),
                     vocab - 1, vocab);
}

/* Looks at every token of the file's part. Holes of a sparse file are zeros and are not read. */
static int check_tokens(struct token_set *set, size_t number, struct error *error)
{
    struct token_file *file = &set->files[number];
    if (file->begin == file->end) return 0;
    int result = file_hold(&set->held, &file->file, NULL, error);
    uint64_t position = file->begin;
    while (result == 0 && position < file->end) {
        uint64_t data = file_next_data(&file->file, file->header + position * file->width);
        uint64_t skip = data < file->header ? 0 : (data - file->header) / file->width;
        if (skip > position) position = skip;
        if (position >= file->end) break;
        uint64_t left = file->end - position, most = BLOCK_BYTES / file->width;
        size_t count = (size_t)(left < most ? left : most);
        result = read_tokens(set, file, position, count, error);
        position += count;
    }
    return result;
}

static uint64_t position_of(const struct token_set *set, size_t number, uint64_t sequence)
{
    return set->files[number].begin + (sequence - set->data.first[number]) * set->data.shape.context;
}

/* The context + 1 tokens of a sequence into the block and their part of the mask, and how many of its targets are
 * learned. Target i, which is token i + 1, is not where the mask, its own value or the token before it says so. */
static int read_sequence(struct token_set *set, uint64_t sequence, uint32_t *targets, struct error *error)
{
    const size_t number = data_file_of(&set->data, sequence), context = set->data.shape.context;
    struct token_file *file = &set->files[number];
    const uint64_t position = position_of(set, number, sequence);
    int result = file_hold(&set->held, &file->file, NULL, error);
    if (result == 0) result = read_tokens(set, file, position, context + 1, error);
    if (result == 0 && set->masks) result = file_hold(&set->held, &file->mask, NULL, error);
    if (result == 0 && set->masks) result = mask_read(&file->mask, position, context + 1, set->learned, error);
    if (result < 0) return result;
    if (!set->masks) memset(set->learned, 1, context + 1);
    *targets = (uint32_t)context;
    if (!set->targets) return 0;
    *targets = 0;
    for (size_t i = 1; i <= context; i++) {
        if (ids_have(&set->masked, token_at(set->block, file->width, i)) ||
            ids_have(&set->ends, token_at(set->block, file->width, i - 1)))
            set->learned[i] = 0;
        *targets += set->learned[i];
    }
    return 0;
}

/* What a sequence weighs is known before it is read. */
static int count_targets(struct token_set *set, struct error *error)
{
    if (!set->masks && !set->masked.count && !set->ends.count) return 0;
    set->targets = malloc(set->data.sequences * sizeof *set->targets);
    if (!set->targets)
        return error_set(error, STATUS_INTERNAL, "no memory for the weights of %" PRIu64 " sequences",
                         set->data.sequences);
    int result = 0;
    for (uint64_t i = 0; i < set->data.sequences && result == 0; i++)
        result = read_sequence(set, i, &set->targets[i], error);
    return result;
}

static void tokens_close(struct data *data)
{
    struct token_set *set = (struct token_set *)data;
    for (size_t i = 0; set->files && i < data->files; i++) {
        if (set->files[i].file.path) file_close(&set->files[i].file);
        if (set->files[i].mask.path) file_close(&set->files[i].mask);
    }
    free(set->files);
    free(set->block);
    free(set->learned);
    free(set->targets);
    free(set);
}

static int fill(struct token_set *set, Gacc__V1__DataFormat format, const struct part *part, struct error *error)
{
    int result = 0;
    for (size_t i = 0; i < part->count && result == 0; i++) result = identify(set, i, part, format, error);
    if (result == 0) result = lay_out(set, part, error);
    for (size_t i = 0; i < part->count && result == 0; i++) result = check_tokens(set, i, error);
    return result == 0 ? count_targets(set, error) : result;
}

static int tokens_open(struct data **out, Gacc__V1__DataFormat format, const struct part *part,
                       const struct data_shape *shape, struct error *error)
{
    struct token_set *set = calloc(1, sizeof *set);
    if (!set) return error_set(error, STATUS_INTERNAL, "no memory for a data set");
    set->data = (struct data){.class = &token_class, .shape = *shape};
    set->masked = part->masked;
    set->ends = part->ends;
    set->masks = part->masks_count > 0;
    size_t sequence = ((size_t)shape->context + 1) * sizeof(uint32_t);
    set->block = malloc(sequence > BLOCK_BYTES ? sequence : BLOCK_BYTES);
    set->learned = malloc((size_t)shape->context + 1);
    set->files = calloc(part->count, sizeof *set->files);
    int result = data_reserve(&set->data, part->count, error);
    if (result == 0 && !(set->block && set->learned && set->files))
        result = error_set(error, STATUS_INTERNAL, "no memory for a data set of %zu files", part->count);
    if (result == 0) result = fill(set, format, part, error);
    if (result < 0)
        data_close(&set->data);
    else
        *out = &set->data;
    return result;
}

static double tokens_weight(const struct data *data, uint64_t sequence)
{
    const struct token_set *set = (const struct token_set *)data;
    return set->targets ? set->targets[sequence] : data->shape.context;
}

static int tokens_read(struct data *data, uint64_t sequence, struct micro_batch *batch, struct error *error)
{
    struct token_set *set = (struct token_set *)data;
    const size_t context = data->shape.context;
    const struct token_file *file = &set->files[data_file_of(data, sequence)];
    uint32_t targets;
    int result = read_sequence(set, sequence, &targets, error);
    if (result < 0) return result;
    if (set->targets && targets != set->targets[sequence])
        return error_set(error, STATUS_DATA,
                         "%s: sequence %" PRIu64 " has %" PRIu32 " targets that are not masked; it had %" PRIu32
                         " when the job started",
                         file->file.path, sequence, targets, set->targets[sequence]);
    int32_t *input = batch->tokens + batch->rows * context, *target = batch->targets + batch->rows * context;
    for (size_t i = 0; i < context; i++) {
        input[i] = (int32_t)token_at(set->block, file->width, i);
        target[i] = set->learned[i + 1] ? (int32_t)token_at(set->block, file->width, i + 1) : -1;
    }
    batch->weight[batch->rows] = targets > 0;
    return 0;
}

static void tokens_locate(const struct data *data, uint64_t sequence, const char **path, uint64_t *offset_bytes)
{
    const struct token_set *set = (const struct token_set *)data;
    const size_t number = data_file_of(data, sequence);
    const struct token_file *file = &set->files[number];
    *path = file->file.path;
    *offset_bytes = file->header + position_of(set, number, sequence) * file->width;
}

const struct data_class token_class = {.tokens = true,
                                       .open = tokens_open,
                                       .weight = tokens_weight,
                                       .read = tokens_read,
                                       .locate = tokens_locate,
                                       .close = tokens_close};
