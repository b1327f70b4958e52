/* Token files: where sequences lie, what is read, and what is refused in which words. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "scratch.h"
#include "worker/data/data.h"

#define BYTES GACC__V1__DATA_FORMAT__FORMAT_BYTES
#define U16 GACC__V1__DATA_FORMAT__FORMAT_U16
#define U32 GACC__V1__DATA_FORMAT__FORMAT_U32
#define LLMC GACC__V1__DATA_FORMAT__FORMAT_LLMC

/* A train list of one or more files, and a validation fraction. */
static int open_files(struct data **data, Gacc__V1__DataFormat format, char part, uint32_t context, uint32_t vocab,
                      double fraction, size_t count, char **paths, struct error *error)
{
    Gacc__V1__DataSection spec = GACC__V1__DATA_SECTION__INIT;
    const struct data_shape shape = {.context = context, .vocab = vocab};
    static Gacc__V1__DataSection kept;
    spec.format = format;
    spec.n_train = count;
    spec.train = paths;
    spec.validation_fraction = fraction;
    kept = spec;
    return data_open(data, &kept, part, &shape, error);
}

static int open_file(struct data **data, Gacc__V1__DataFormat format, uint32_t context, uint32_t vocab, char **path,
                     struct error *error)
{
    return open_files(data, format, 't', context, vocab, 0, 1, path, error);
}

/* Writes the bytes as NAME and expects the file to be refused with this status and with "PATH" and then `text`. */
static void refused(Gacc__V1__DataFormat format, uint32_t context, uint32_t vocab, const void *bytes, size_t size,
                    int status, const char *text)
{
    char *path = scratch_file("refused.bin", bytes, size), *whole;
    struct data *data;
    struct error error = {0};
    assert_true(asprintf(&whole, "%s%s", path, text) > 0);
    assert_int_equal(open_file(&data, format, context, vocab, &path, &error), -status);
    assert_string_equal(error.text, whole);
    assert_int_equal(error.status, status);
    assert_null(data);
    free(whole);
    free(path);
}

static void check_sequence(struct data *data, uint64_t sequence, uint32_t context, int32_t first)
{
    struct micro_batch *batch;
    struct error error = {0};
    const struct data_shape shape = {.context = context, .vocab = 65536};
    assert_int_equal(micro_batch_open(&batch, &shape, 1, &error), 0);
    assert_int_equal(data_read(data, sequence, batch, &error), 0);
    for (int32_t i = 0; i < (int32_t)context; i++) {
        assert_int_equal(batch->tokens[i], first + i);
        assert_int_equal(batch->targets[i], first + i + 1);
    }
    assert_int_equal(batch->sequence[0], sequence);
    assert_int_equal(batch->rows, 1);
    assert_true(batch->weight[0] == 1 && batch->weight_sum == context);
    micro_batch_close(batch);
}

/* Tokens 0…8, context 4: sequences 0…4 and 4…8. */
static Gacc__V1__DataSection masked_spec;
static char *masked_paths[2];

static int open_masked(struct data **data, const void *mask, size_t size, uint32_t masked, uint32_t end,
                       struct error *error)
{
    static const uint8_t tokens[9] = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    static uint32_t values[2];
    const struct data_shape shape = {.context = 4, .vocab = 256};
    for (size_t i = 0; i < 2; i++) free(masked_paths[i]);
    masked_paths[0] = scratch_file("tokens", tokens, sizeof tokens);
    masked_paths[1] = scratch_file("mask", mask, size);
    values[0] = masked;
    values[1] = end;
    masked_spec = (Gacc__V1__DataSection)GACC__V1__DATA_SECTION__INIT;
    masked_spec.format = BYTES;
    masked_spec.n_train = 1;
    masked_spec.train = &masked_paths[0];
    masked_spec.n_masks = mask != NULL;
    masked_spec.masks = &masked_paths[1];
    masked_spec.n_masked = masked < UINT32_MAX;
    masked_spec.masked = &values[0];
    masked_spec.n_document_ends = end < UINT32_MAX;
    masked_spec.document_ends = &values[1];
    return data_open(data, &masked_spec, 't', &shape, error);
}

static void check_targets(struct data *data, const int32_t targets[8], double first, double second)
{
    struct micro_batch *batch;
    struct error error = {0};
    const struct data_shape shape = {.context = 4, .vocab = 256};
    assert_int_equal(micro_batch_open(&batch, &shape, 2, &error), 0);
    assert_int_equal(data_read(data, 0, batch, &error), 0);
    assert_int_equal(data_read(data, 1, batch, &error), 0);
    assert_memory_equal(batch->targets, targets, 8 * sizeof *targets);
    for (int32_t i = 0; i < 8; i++) assert_int_equal(batch->tokens[i], i);
    assert_true(data_weight(data, 0) == first && data_weight(data, 1) == second);
    assert_true(batch->weight_sum == first + second);
    assert_true(batch->weight[0] == (first > 0) && batch->weight[1] == (second > 0));
    micro_batch_close(batch);
    data_close(data);
}

static void masked_targets_weigh_nothing(void **state)
{
    (void)state;
    static const uint8_t mask[9] = {1, 1, 0, 1, 0, 0, 0, 0, 0}, ones[9] = {0, 1, 1, 1, 1, 1, 1, 1, 1};
    struct data *data;
    struct error error;
    assert_int_equal(open_masked(&data, NULL, 0, 3, UINT32_MAX, &error), 0);
    check_targets(data, (const int32_t[8]){1, 2, -1, 4, 5, 6, 7, 8}, 3, 4);
    assert_int_equal(open_masked(&data, mask, 9, UINT32_MAX, UINT32_MAX, &error), 0);
    check_targets(data, (const int32_t[8]){1, -1, 3, -1, -1, -1, -1, -1}, 2, 0);
    assert_int_equal(open_masked(&data, ones, 9, UINT32_MAX, UINT32_MAX, &error), 0);
    check_targets(data, (const int32_t[8]){1, 2, 3, 4, 5, 6, 7, 8}, 4, 4);
    assert_int_equal(open_masked(&data, mask, 9, 3, 0, &error), 0);
    check_targets(data, (const int32_t[8]){-1, -1, -1, -1, -1, -1, -1, -1}, 0, 0);
}

/* Behind 2 and behind 4: 4 is the last token of a sequence and the first of the next. */
static void what_stands_behind_the_end_of_a_document_is_no_target(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    assert_int_equal(open_masked(&data, NULL, 0, UINT32_MAX, 2, &error), 0);
    check_targets(data, (const int32_t[8]){1, 2, -1, 4, 5, 6, 7, 8}, 3, 4);
    assert_int_equal(open_masked(&data, NULL, 0, UINT32_MAX, 4, &error), 0);
    check_targets(data, (const int32_t[8]){1, 2, 3, 4, -1, 6, 7, 8}, 4, 3);
}

static void masks_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const uint8_t bad[10] = {1, 1, 1, 1, 1, 1, 1, 2, 1, 1};
    struct data *data;
    struct error error;
    char *whole;
    assert_int_equal(open_masked(&data, bad, 9, UINT32_MAX, UINT32_MAX, &error), -65);
    assert_true(asprintf(&whole, "%s: byte 7 is 2, wanted 0 (masked) or 1", masked_paths[1]) > 0);
    assert_string_equal(error.text, whole);
    free(whole);
    for (size_t size = 8; size <= 10; size += 2) {
        assert_int_equal(open_masked(&data, bad, size, UINT32_MAX, UINT32_MAX, &error), -65);
        assert_true(
            asprintf(&whole, "%s: %zu bytes, but %s wants 9, one each", masked_paths[1], size, masked_paths[0]) > 0);
        assert_string_equal(error.text, whole);
        free(whole);
    }
    masked_spec.n_masks = 2;
    assert_int_equal(data_open(&data, &masked_spec, 't', &(struct data_shape){.context = 4, .vocab = 256}, &error),
                     -78);
    assert_string_equal(error.text, "data.mask: 2 files for the 1 of data");
    assert_null(data);
}

/* W was announced before the sequence is read. */
static void a_mask_that_changes_is_an_error_that_names_the_file(void **state)
{
    (void)state;
    uint8_t mask[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct data *data;
    struct error error;
    struct micro_batch *batch;
    const struct data_shape shape = {.context = 4, .vocab = 256};
    assert_int_equal(open_masked(&data, mask, 9, UINT32_MAX, UINT32_MAX, &error), 0);
    int descriptor = open(masked_paths[1], O_WRONLY);
    assert_int_equal(pwrite(descriptor, "", 1, 6), 1);
    close(descriptor);
    assert_int_equal(micro_batch_open(&batch, &shape, 2, &error), 0);
    assert_int_equal(data_read(data, 0, batch, &error), 0);
    assert_int_equal(data_read(data, 1, batch, &error), -65);
    assert_non_null(strstr(error.text, "sequence 1 has 3 targets that are not masked; it had 4 when the job started"));
    micro_batch_close(batch);
    data_close(data);
    for (size_t i = 0; i < 2; i++) free(masked_paths[i]);
    masked_paths[0] = masked_paths[1] = NULL;
}

/* Files of 2 and 6 sequences of one target, half an epoch each. */
static void a_mixture_gives_every_file_its_part_of_the_epoch(void **state)
{
    (void)state;
    static const uint8_t a[3] = {0}, b[7] = {0};
    static const uint64_t wanted[2][8] = {{0, 1, 0, 1, 2, 3, 4, 5}, {0, 1, 0, 1, 6, 7, 2, 3}};
    char *paths[2] = {scratch_file("a", a, sizeof a), scratch_file("b", b, sizeof b)};
    uint32_t parts[2] = {5, 5};
    Gacc__V1__DataSection spec = GACC__V1__DATA_SECTION__INIT;
    const struct data_shape shape = {.context = 1, .vocab = 256};
    struct data *data;
    struct error error;
    spec.format = BYTES;
    spec.n_train = spec.n_mix = 2;
    spec.train = paths;
    spec.mix = parts;
    spec.order = GACC__V1__ORDER__ORDER_SEQUENTIAL;
    assert_int_equal(data_open(&data, &spec, 't', &shape, &error), 0);
    assert_int_equal(data_sequences(data), 8);
    for (uint64_t epoch = 0; epoch < 2; epoch++)
        for (uint64_t i = 0; i < 8; i++) assert_int_equal(data_sequence_at(data, 7, epoch, i), wanted[epoch][i]);
    data_close(data);
    parts[0] = 1;
    parts[1] = 8; /* ⌊8/9⌋ */
    assert_int_equal(data_open(&data, &spec, 't', &shape, &error), -78);
    assert_non_null(strstr(error.text, "data.mix: 1 of 9 is less than one of the 8 sequences of an epoch: "));
    assert_null(data);
    spec.n_mix = 1;
    assert_int_equal(data_open(&data, &spec, 't', &shape, &error), -78);
    assert_string_equal(error.text, "data.mix: 1 numbers for 2 files");
    free(paths[0]), free(paths[1]);
}

/* 33-1: context 8 needs 9 tokens. */
static void files_shorter_than_a_sequence_are_refused(void **state)
{
    (void)state;
    const uint16_t zeros[8] = {0};
    refused(BYTES, 8, 256, zeros, 0, 65, ": 0 tokens, but a sequence of context 8 needs 9");
    refused(BYTES, 8, 256, zeros, 1, 65, ": 1 tokens, but a sequence of context 8 needs 9");
    refused(BYTES, 8, 256, zeros, 8, 65, ": 8 tokens, but a sequence of context 8 needs 9");
    refused(U16, 8, 256, zeros, 16, 65, ": 8 tokens, but a sequence of context 8 needs 9");
}

static void nine_tokens_hold_one_sequence_of_eight(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    char *path = scratch_file("nine.txt", "\1\2\3\4\5\6\7\10\11", 9);
    assert_int_equal(open_file(&data, BYTES, 8, 256, &path, &error), 0);
    assert_int_equal(data_sequences(data), 1);
    assert_true(data_weight(data, 0) == 8);
    check_sequence(data, 0, 8, 1);
    data_close(data);
    free(path);
}

static void the_number_of_sequences_is_tokens_less_one_over_context(void **state)
{
    (void)state;
    char bytes[64] = {0};
    for (size_t length = 5; length <= 64; length++) {
        struct data *data;
        struct error error;
        char *path = scratch_file("length.txt", bytes, length);
        assert_int_equal(open_file(&data, BYTES, 4, 256, &path, &error), 0);
        assert_int_equal(data_sequences(data), (length - 1) / 4);
        data_close(data);
        free(path);
    }
}

/* 32-3: vocab 100, a token 100 at position 17 of 64. */
static void a_token_beyond_the_vocabulary_is_refused_with_its_position(void **state)
{
    (void)state;
    uint8_t bytes[64] = {0};
    uint16_t words[64] = {0};
    uint32_t longs[64] = {0};
    bytes[17] = 100;
    words[17] = 100;
    longs[17] = 4000000000;
    refused(BYTES, 8, 100, bytes, sizeof bytes, 65, ": token 17 (byte 17) is 100, wanted 0…99 (model.vocab 100)");
    refused(U16, 8, 100, words, sizeof words, 65, ": token 17 (byte 34) is 100, wanted 0…99 (model.vocab 100)");
    refused(U32, 8, 100, longs, sizeof longs, 65, ": token 17 (byte 68) is 4000000000, wanted 0…99 (model.vocab 100)");
    bytes[17] = 0;
    bytes[63] = 255; /* the very last, behind the last whole sequence */
    refused(BYTES, 8, 100, bytes, sizeof bytes, 65, ": token 63 (byte 63) is 255, wanted 0…99 (model.vocab 100)");
}

static void the_first_bad_token_of_a_large_file_is_named(void **state)
{
    (void)state;
    const size_t tokens = 1000003;
    uint16_t *words = calloc(tokens, sizeof *words);
    words[999999] = 50257;
    words[1000000] = 60000;
    refused(U16, 64, 50257, words, tokens * 2, 65,
            ": token 999999 (byte 1999998) is 50257, wanted 0…50256 (model.vocab 50257)");
    free(words);
}

/* 32-1 */
static void a_type_that_cannot_hold_the_vocabulary_is_refused(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    uint16_t words[9] = {65535};
    char *path = scratch_file("wide.bin", words, sizeof words);
    assert_int_equal(open_file(&data, U16, 8, 119547, &path, &error), -78);
    assert_string_equal(error.text,
                        "data.format: u16 holds ids up to 65535, but model.vocab is 119547: larger ids would have "
                        "wrapped when the file was written");
    assert_int_equal(open_file(&data, U16, 8, 65536, &path, &error), 0);
    data_close(data);
    assert_int_equal(open_file(&data, BYTES, 8, 257, &path, &error), -78);
    free(path);
}

/* 33-3 */
static void a_size_that_is_no_multiple_of_the_type_is_refused(void **state)
{
    (void)state;
    const char bytes[43] = {0};
    refused(U16, 8, 256, bytes, 41, 65, ": 41 bytes is not a multiple of the 2 bytes of a u16 token");
    refused(U32, 8, 256, bytes, 43, 65, ": 43 bytes is not a multiple of the 4 bytes of a u32 token");
}

/* 33-5 */
static void tokens_beyond_two_to_the_31_are_read_from_their_place(void **state)
{
    (void)state;
    const uint64_t tokens = (UINT64_C(1) << 31) + 64;
    const uint16_t markers[9] = {7, 8, 9, 10, 11, 12, 13, 14, 15};
    char *path = scratch_file("sparse.bin", "", 0);
    int file = open(path, O_WRONLY);
    assert_int_equal(ftruncate(file, (off_t)(tokens * 2)), 0);
    /* sequence 2^28 of context 8 starts at token 2^31 */
    assert_int_equal(pwrite(file, markers, sizeof markers, (off_t)((UINT64_C(1) << 31) + 8) * 2), sizeof markers);
    close(file);
    struct data *data;
    struct error error;
    assert_int_equal(open_file(&data, U16, 8, 50257, &path, &error), 0);
    assert_int_equal(data_sequences(data), (tokens - 1) / 8);
    check_sequence(data, (UINT64_C(1) << 28) + 1, 8, 7);
    const char *where;
    uint64_t offset;
    data_locate(data, (UINT64_C(1) << 28) + 1, &where, &offset);
    assert_string_equal(where, path);
    assert_int_equal(offset, ((UINT64_C(1) << 31) + 8) * 2);
    data_close(data);
    assert_int_equal(open_file(&data, U16, 8, 15, &path, &error), -65);
    assert_non_null(strstr(error.text, ": token 2147483664 (byte 4294967328) is 15, wanted 0…14"));
    unlink(path);
    free(path);
}

struct llmc {
    int32_t header[256];
    uint16_t tokens[20];
};

static struct llmc llmc_of_20(void)
{
    struct llmc file = {.header = {20240520, 1, 20}};
    for (uint16_t i = 0; i < 20; i++) file.tokens[i] = i;
    return file;
}

static void an_llmc_file_is_read_behind_its_header(void **state)
{
    (void)state;
    struct llmc file = llmc_of_20();
    struct data *data;
    struct error error;
    char *path = scratch_file("good.llmc", &file, sizeof file);
    assert_int_equal(open_file(&data, LLMC, 8, 20, &path, &error), 0);
    assert_int_equal(data_sequences(data), 2);
    check_sequence(data, 1, 8, 8);
    const char *where;
    uint64_t offset;
    data_locate(data, 1, &where, &offset);
    assert_int_equal(offset, 1024 + 16);
    data_close(data);
    free(path);

    struct {
        int32_t header[256];
        uint32_t tokens[9];
    } wide = {{20240801, 7, 9}, {70000, 70001, 70002, 70003, 70004, 70005, 70006, 70007, 70008}};
    path = scratch_file("wide.llmc", &wide, sizeof wide);
    assert_int_equal(open_file(&data, LLMC, 8, 128256, &path, &error), 0);
    check_sequence(data, 0, 8, 70000);
    data_close(data);
    free(path);
}

static void a_damaged_llmc_header_is_refused(void **state)
{
    (void)state;
    struct llmc file = llmc_of_20();
    refused(LLMC, 8, 20, &file, 20, 65, ": the llmc header is truncated: 20 of 1024 bytes");
    refused(LLMC, 8, 20, &file, 0, 65, ": the llmc header is truncated: 0 of 1024 bytes");
    refused(LLMC, 8, 20, &file, sizeof file - 2, 65,
            ": the llmc header says 20 tokens of 2 bytes, but 38 bytes follow it");
    refused(LLMC, 8, 20, &file, sizeof file - 1, 65,
            ": the llmc header says 20 tokens of 2 bytes, but 39 bytes follow it");
    refused(LLMC, 8, 70000, &file, sizeof file, 65, ": tokens of 2 bytes cannot hold model.vocab 70000");
    refused(LLMC, 8, 19, &file, sizeof file, 65, ": token 19 (byte 1062) is 19, wanted 0…18 (model.vocab 19)");
    file.header[2] = 19;
    refused(LLMC, 8, 20, &file, sizeof file, 65, ": the llmc header says 19 tokens of 2 bytes, but 40 bytes follow it");
    file.header[2] = -1;
    refused(LLMC, 8, 20, &file, sizeof file, 65, ": the llmc header says -1 tokens of 2 bytes, but 40 bytes follow it");
    file.header[1] = 7;
    refused(LLMC, 8, 20, &file, sizeof file, 65, ": llmc version 7 at byte 4, wanted 1");
    file.header[0] = 20240326;
    refused(LLMC, 8, 20, &file, sizeof file, 65,
            ": llmc magic 20240326 at byte 0, wanted 20240520 (u16) or 20240801 (u32)");
    file.header[0] = (int32_t)__builtin_bswap32(20240520);
    refused(LLMC, 8, 20, &file, sizeof file, 65, ": the llmc header is big-endian, wanted little-endian");
}

static void a_raw_file_with_an_llmc_header_is_refused(void **state)
{
    (void)state;
    struct llmc file = llmc_of_20();
    refused(U16, 8, 65536, &file, sizeof file, 65, ": has a llmc header, but data.format is u16");
}

static void what_is_no_readable_regular_file_is_refused(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    char *path, *fifo, expected[256];
    assert_true(asprintf(&path, "%s/absent.txt", scratch) > 0);
    assert_int_equal(open_file(&data, BYTES, 8, 256, &path, &error), -66);
    snprintf(expected, sizeof expected, "%s: cannot open: No such file or directory", path);
    assert_string_equal(error.text, expected);
    free(path);
    path = scratch;
    assert_int_equal(open_file(&data, BYTES, 8, 256, &path, &error), -66);
    snprintf(expected, sizeof expected, "%s: a directory, not a regular file", scratch);
    assert_string_equal(error.text, expected);
    assert_true(asprintf(&fifo, "%s/fifo", scratch) > 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(open_file(&data, BYTES, 8, 256, &fifo, &error), -66);
    snprintf(expected, sizeof expected, "%s: a special file, not a regular file", fifo);
    assert_string_equal(error.text, expected);
    free(fifo);
    assert_int_equal(open_files(&data, BYTES, 't', 8, 256, 0, 0, NULL, &error), -66);
    assert_string_equal(error.text, "data.train: no file");
}

static void a_format_that_does_not_feed_the_model_is_refused(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    char *path = scratch;
    assert_int_equal(open_file(&data, GACC__V1__DATA_FORMAT__FORMAT_CSV, 8, 256, &path, &error), -78);
    assert_string_equal(error.text, "data.format: csv holds rows, but the model takes tokens");
    assert_int_equal(open_file(&data, BYTES, 0, 0, &path, &error), -78);
    assert_string_equal(error.text, "data.format: bytes holds tokens, but the model takes rows");
}

static void a_job_without_validation_has_no_validation_set(void **state)
{
    (void)state;
    struct data *data = (struct data *)1;
    char *path = scratch;
    assert_int_equal(open_files(&data, BYTES, 'v', 8, 256, 0, 1, &path, NULL), 0);
    assert_null(data);
}

/* nanoGPT: of 1,115,394 characters the first int(n·0.9) = 1,003,854 are train, the rest validation. */
static void a_fraction_is_cut_from_the_end(void **state)
{
    (void)state;
    const size_t length = 1115394, cut = 1003854;
    uint8_t *bytes = calloc(length, 1);
    bytes[cut - 1] = 1;
    for (size_t i = cut; i < length; i++) bytes[i] = 2;
    char *path = scratch_file("text.txt", bytes, length);
    struct data *train, *validation;
    struct error error;
    assert_int_equal(open_files(&train, BYTES, 't', 64, 2, 0.1, 1, &path, &error), 0); /* no 2 is seen */
    assert_int_equal(open_files(&validation, BYTES, 'v', 64, 256, 0.1, 1, &path, &error), 0);
    assert_int_equal(data_sequences(train), (cut - 1) / 64);
    assert_int_equal(data_sequences(validation), (length - cut - 1) / 64);
    const char *where;
    uint64_t offset;
    data_locate(validation, 0, &where, &offset);
    assert_int_equal(offset, cut);
    data_close(train);
    data_close(validation);
    assert_int_equal(open_files(&train, BYTES, 't', 64, 1, 0.1, 1, &path, &error), -65);
    assert_non_null(strstr(error.text, ": token 1003853 (byte 1003853) is 1, wanted 0…0"));
    free(bytes);
    free(path);
}

/* Files of 100, 50 and 50 tokens, fraction 0.3: 140 train, 60 validation; the cut falls into the second file. */
static void a_fraction_of_several_files_counts_their_tokens_in_order(void **state)
{
    (void)state;
    uint8_t bytes[200];
    for (size_t i = 0; i < 200; i++) bytes[i] = (uint8_t)i;
    char *paths[] = {scratch_file("a.txt", bytes, 100), scratch_file("b.txt", bytes + 100, 50),
                     scratch_file("c.txt", bytes + 150, 50)};
    struct data *train, *validation;
    struct error error;
    assert_int_equal(open_files(&train, BYTES, 't', 8, 256, 0.3, 3, paths, &error), 0);
    assert_int_equal(open_files(&validation, BYTES, 'v', 8, 256, 0.3, 3, paths, &error), 0);
    assert_int_equal(data_sequences(train), 99 / 8 + 39 / 8);
    assert_int_equal(data_sequences(validation), 9 / 8 + 49 / 8);
    check_sequence(train, 11, 8, 88);  /* the last of a.txt: tokens 96…99 are left over */
    check_sequence(train, 12, 8, 100); /* the first of b.txt: no sequence crosses */
    check_sequence(train, 15, 8, 124);
    check_sequence(validation, 0, 8, 140);
    check_sequence(validation, 1, 8, 150);
    const char *where;
    uint64_t offset;
    data_locate(train, 13, &where, &offset);
    assert_string_equal(where, paths[1]);
    assert_int_equal(offset, 8);
    data_locate(validation, 2, &where, &offset);
    assert_string_equal(where, paths[2]);
    assert_int_equal(offset, 8);
    data_close(train);
    data_close(validation);
    for (size_t i = 0; i < 3; i++) free(paths[i]);
}

static void a_fraction_that_leaves_no_sequence_is_refused(void **state)
{
    (void)state;
    struct data *data;
    struct error error;
    char *path = scratch_file("short.txt", "01234567890123456789", 20);
    assert_int_equal(open_files(&data, BYTES, 'v', 8, 256, 0.1, 1, &path, &error), -65);
    assert_string_equal(
        error.text, "data.validation: 0.1 of 20 tokens leaves 2 for validation, but a sequence of context 8 needs 9");
    assert_int_equal(open_files(&data, BYTES, 't', 8, 256, 0.9, 1, &path, &error), -65);
    assert_string_equal(error.text,
                        "data.validation: 0.9 of 20 tokens leaves 2 for training, but a sequence of context 8 needs 9");
    free(path);
}

static int read_one(struct data *data, uint64_t sequence, struct error *error)
{
    struct micro_batch *batch;
    const struct data_shape shape = {.context = 8, .vocab = 256};
    assert_int_equal(micro_batch_open(&batch, &shape, 1, error), 0);
    int result = data_read(data, sequence, batch, error);
    assert_int_equal(batch->rows, result == 0);
    micro_batch_close(batch);
    return result;
}

/* A mapped file would end the process with SIGBUS here. */
static void a_file_that_shrinks_while_training_is_an_error(void **state)
{
    (void)state;
    char bytes[20000] = {0}, expected[256];
    char *path = scratch_file("shrinks.txt", bytes, sizeof bytes);
    struct data *data;
    struct error error;
    assert_int_equal(open_file(&data, BYTES, 8, 256, &path, &error), 0);
    assert_int_equal(read_one(data, 2000, &error), 0);
    assert_int_equal(truncate(path, 10), 0);
    assert_int_equal(read_one(data, 2000, &error), -65);
    snprintf(expected, sizeof expected,
             "%s: ends at byte 16000, wanted 9 bytes from byte 16000: it had 20000 bytes when the job started", path);
    assert_string_equal(error.text, expected);
    assert_int_equal(read_one(data, 1, &error), -65);
    snprintf(expected, sizeof expected,
             "%s: ends at byte 10, wanted 9 bytes from byte 8: it had 20000 bytes when the job started", path);
    assert_string_equal(error.text, expected);
    data_close(data);
    free(path);
}

static void a_token_that_turns_bad_while_training_is_refused(void **state)
{
    (void)state;
    char bytes[100] = {0};
    char *path = scratch_file("turns.txt", bytes, sizeof bytes), expected[256];
    struct data *data;
    struct error error;
    assert_int_equal(open_file(&data, BYTES, 8, 100, &path, &error), 0);
    bytes[20] = 'z';
    free(scratch_file("turns.txt", bytes, sizeof bytes));
    assert_int_equal(read_one(data, 1, &error), 0);
    assert_int_equal(read_one(data, 2, &error), -65);
    snprintf(expected, sizeof expected, "%s: token 20 (byte 20) is 122, wanted 0…99 (model.vocab 100)", path);
    assert_string_equal(error.text, expected);
    data_close(data);
    free(path);
}

/* 200 files with 100 descriptors to be had: files are closed and opened again in turn. */
static void more_files_than_descriptors_can_be_read(void **state)
{
    (void)state;
    enum { FILES = 200 };
    struct rlimit before, few;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = 100;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    char *paths[FILES];
    for (int32_t i = 0; i < FILES; i++) {
        char name[32], bytes[9];
        for (int32_t j = 0; j < 9; j++) bytes[j] = (char)(i + j);
        snprintf(name, sizeof name, "many-%d", i);
        paths[i] = scratch_file(name, bytes, sizeof bytes);
    }
    struct data *data;
    struct error error;
    assert_int_equal(open_files(&data, BYTES, 't', 8, 256, 0, FILES, paths, &error), 0);
    assert_int_equal(data_sequences(data), FILES);
    for (uint64_t i = 0; i < 2 * FILES; i++) check_sequence(data, i * 77 % FILES, 8, (int32_t)(i * 77 % FILES));
    /* one that was replaced while it was closed */
    unlink(paths[0]);
    free(scratch_file("other", "123456789", 9));
    char *other = scratch_file("many-0", "123456789", 9);
    for (uint64_t i = 1; i < FILES; i++) assert_int_equal(read_one(data, i, &error), 0);
    assert_int_equal(read_one(data, 0, &error), -65);
    assert_non_null(strstr(error.text, "many-0: replaced by another file since the job started"));
    free(other);
    data_close(data);
    for (int i = 0; i < FILES; i++) {
        unlink(paths[i]);
        free(paths[i]);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
}

static void the_shape_follows_from_the_model(void **state)
{
    (void)state;
    Gacc__V1__ModelSection model = GACC__V1__MODEL_SECTION__INIT;
    struct data_shape shape;
    model.type = GACC__V1__MODEL_TYPE__MODEL_MLP;
    model.inputs = 3;
    model.outputs = 10;
    model.loss = GACC__V1__LOSS__LOSS_CROSS_ENTROPY;
    data_shape_of(&model, &shape);
    assert_int_equal(shape.inputs, 3);
    assert_int_equal(shape.outputs, 1);
    assert_int_equal(shape.classes, 10);
    model.loss = GACC__V1__LOSS__LOSS_MSE;
    data_shape_of(&model, &shape);
    assert_int_equal(shape.outputs, 10);
    assert_int_equal(shape.classes, 0);
    model.type = GACC__V1__MODEL_TYPE__MODEL_TAPE;
    model.size = 4;
    data_shape_of(&model, &shape);
    assert_int_equal(shape.size, 4);
    assert_int_equal(shape.inputs, 0);
}

/* What data_inspect prints, or the error's text. */
static char *inspected(const char *name, const void *bytes, size_t size, int status)
{
    char *path = scratch_file(name, bytes, size), *text = NULL;
    size_t length;
    struct error error = {0};
    FILE *to = open_memstream(&text, &length);
    assert_int_equal(data_inspect(path, false, to, &error), -status);
    fclose(to);
    free(path);
    if (status == 0) return text;
    free(text);
    return strdup(error.text);
}

static void assert_says(char *text, const char *wanted)
{
    if (!strstr(text, wanted)) fail_msg("wanted '%s' in: %s", wanted, text);
    free(text);
}

static void inspection_says_what_a_file_is(void **state)
{
    (void)state;
    struct llmc file = llmc_of_20();
    const char weights[] = "@\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}        "
                           "\0\0\200\77\0\0\200\177";
    const uint32_t longs[] = {1, 70000, 3};
    const uint16_t words[] = {50000, 50001, 50002, 50003};
    assert_says(inspected("a.bin", &file, sizeof file, 0),
                "bytes: 1064\nformat: llmc\ntokens: 20\ntoken_bytes: 2\nleast_token: 0\ngreatest_token: 19\nvocab: at "
                "least 20\n"
                "sequences: (20 - 1) / context, rounded down\nof_context:\n  64: 0\n");
    assert_says(inspected("a.bin", longs, sizeof longs, 0),
                "format: u32\ntokens: 3\ntoken_bytes: 4\nleast_token: 1\ngreatest_token: 70000\n");
    assert_says(inspected("a.bin", words, sizeof words, 0),
                "format: u16\ntokens: 4\ntoken_bytes: 2\nleast_token: 50000\ngreatest_token: 50003\n");
    assert_says(inspected("a.txt", "abc", 3, 0),
                "format: bytes\ntokens: 3\ntoken_bytes: 1\nleast_token: 97\ngreatest_token: 99\n");
    assert_says(inspected("a.csv", "weight,x0,x1,y0\n1,2,3,4\n0,1,1,1\n0.5,1,1,1\n", 42, 0),
                "format: csv\nrows: 3\nmasked_rows: 1\nweight: 1.5\nx: 2\nleast: 1\ngreatest: 3\ny: 1\nleast_y: 1\n"
                "greatest_y: 4\nlabels_of: 2 rows, without the 1 masked\nclasses: 2\nlabels:\n  1: 1\n  4: 1\n"
                "sorted: no\nfor: mlp, cnn, linear\nsound: yes\n");
    assert_says(inspected("a.csv", "x0,y0\n-0.5,1.25\n7,2\n", 20, 0),
                "x: 1\nleast: -0.5\ngreatest: 7\ny: 1\nleast_y: 1.25\ngreatest_y: 2\nfor: mlp, cnn, linear\n");
    assert_says(inspected("a.csv", "g0,g1\n1,inf\n", 12, 0),
                "format: csv\nrows: 1\nmasked_rows: 0\nweight: 1\ng: 2\nleast: 1\ngreatest: 1\nnonfinite: 1\n"
                "for: tape\n");
    assert_says(inspected("a.csv", "g0\nnan\n", 7, 0), "g: 1\nnonfinite: 1\nfor: tape\n");
    file.header[2] = 21;
    assert_says(inspected("a.bin", &file, sizeof file, 65),
                "a.bin: the llmc header says 21 tokens of 2 bytes, but 40 bytes follow it");
    assert_says(inspected("a.bin", words, 7, 65), "a.bin: 7 bytes is not a multiple of the 2 bytes of a u16 token");
    assert_says(inspected("a.csv", "x0,x2\n1,2\n", 10, 65), "a.csv:1: unknown column 'x2'");
    assert_says(inspected("a.csv", "a,b\n1,2\n", 8, 65), "a.csv:1: no column x0 or g0");
    assert_says(inspected("a.safetensors", weights, sizeof weights - 1, 0),
                "format: safetensors\ntensors: 1\ntensor: w F32 [1, 2]\nelements: 2\nnonfinite: 1\nsound: yes\n");
    assert_says(inspected("a.safetensors", weights, sizeof weights - 2, 65), "a.safetensors");
    assert_says(inspected("a.txt", "", 0, 65), "a.txt: empty");
}

static const char sorting[] =
    "warning: the rows are sorted by class: read in this order, a micro-batch holds one class; "
    "data.order: shuffled mixes them\n";

static void inspection_counts_labels_and_says_whether_rows_are_sorted_by_them(void **state)
{
    (void)state;
    char wanted[400];
    snprintf(wanted, sizeof wanted, "classes: 3\nlabels:\n  0: 1\n  1: 2\n  2: 2\nsorted: yes\n%sfor:", sorting);
    assert_says(inspected("labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x05\2\2\0\1\1", 13, 0),
                "format: idx\ntype: u8\nsizes: 5\nrows: 5\ny: 1\nleast: 0\ngreatest: 2\n");
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x05\2\2\0\1\1", 13, 0), wanted);
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x05\2\1\0\1\2", 13, 0),
                "classes: 3\nlabels:\n  0: 1\n  1: 2\n  2: 2\nsorted: no\nfor: mlp, cnn, linear: data.labels\n");
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x03\2\0\1", 11, 0), "sorted: no\n"); /* a row each */
    assert_says(
        inspected("images", "\0\0\x0B\x03\0\0\0\x01\0\0\0\x02\0\0\0\x01\xFF\xFE\1\0", 20, 0),
        "type: i16\nsizes: 1×2×1\nrows: 1\nx: 2\nleast: -2\ngreatest: 256\nfor: mlp, cnn, linear: data.train\n");
    snprintf(wanted, sizeof wanted, "labels:\n  0: 2\n  1: 2\nsorted: yes\n%s", sorting);
    assert_says(inspected("a.csv", "x0,y0\n1,1\n2,1\n1,0\n2,0\n", 22, 0), wanted);
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x08\0\0\1\1\0\0\1\1", 16, 0), "sorted: no\nfor:");
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x0C\0\0\0\1\1\1\0\0\0\1\1\1", 20, 0), "sorted: no\nfor:");
    assert_says(inspected("labels", "\0\0\x08\x01\0\0\0\x10\0\0\0\0\1\1\1\1\0\0\0\0\1\1\1\1", 24, 0),
                "sorted: no\nwarning: the rows of a class follow each other: read");
    assert_says(inspected("a.csv", "x0,y0\n1,1\n2,1.5\n", 16, 0), "greatest_y: 1.5\nfor: mlp, cnn, linear\n");
    assert_says(inspected("t10k-images-idx3-ubyte.gz", "\x1F\x8B\x08\0", 4, 65),
                ": compressed by gzip; gunzip it first");
    assert_says(inspected("images", "\0\0\x0D\x01\0\0\0\x01\x7F\x80\0\0", 12, 65), ": 1 numbers are not finite");
}

/* By whichever program, under whichever name; tokens of two bytes may begin as a packed file does. */
static void what_is_packed_is_told_from_data(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *said;
        size_t size;
    } packed[] = {
        {"\x1F\x8B\x08\0", ": compressed by gzip; gunzip it first", 4},
        {"\xFD"
         "7zXZ\0ab",
         ": compressed by xz; unxz it first", 8},
        {"\x28\xB5\x2F\xFDx", ": compressed by zstd; unzstd it first", 5},
        {"BZh91AY&SYx", ": compressed by bzip2; bunzip2 it first", 11},
        {"PK\3\4x", ": compressed by zip; unzip it first", 5},
    };
    static const char *const names[] = {"im.gz", "images-idx3", "rows.csv", "a.txt"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            assert_says(inspected(names[k], packed[i].begin, packed[i].size, 65), packed[i].said);
    assert_says(inspected("a.bin", packed[0].begin, 4, 0), "format: u32\ntokens: 1\n");
    assert_says(inspected("a.txt", "PK", 2, 0), "format: bytes\n");
}

static void inspection_is_json_too(void **state)
{
    (void)state;
    char *path = scratch_file("labels", "\0\0\x08\x01\0\0\0\x02\1\0", 10), *text = NULL;
    size_t length;
    struct error error = {0};
    FILE *to = open_memstream(&text, &length);
    assert_int_equal(data_inspect(path, true, to, &error), 0);
    fclose(to);
    free(path);
    assert_int_equal(text[0], '{');
    assert_says(text, "\"labels\": {\n    \"0\": 1,\n    \"1\": 1\n  },\n  \"sorted\": false,");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_shorter_than_a_sequence_are_refused),
        cmocka_unit_test(nine_tokens_hold_one_sequence_of_eight),
        cmocka_unit_test(the_number_of_sequences_is_tokens_less_one_over_context),
        cmocka_unit_test(a_token_beyond_the_vocabulary_is_refused_with_its_position),
        cmocka_unit_test(the_first_bad_token_of_a_large_file_is_named),
        cmocka_unit_test(a_type_that_cannot_hold_the_vocabulary_is_refused),
        cmocka_unit_test(a_size_that_is_no_multiple_of_the_type_is_refused),
        cmocka_unit_test(tokens_beyond_two_to_the_31_are_read_from_their_place),
        cmocka_unit_test(an_llmc_file_is_read_behind_its_header),
        cmocka_unit_test(a_damaged_llmc_header_is_refused),
        cmocka_unit_test(a_raw_file_with_an_llmc_header_is_refused),
        cmocka_unit_test(what_is_no_readable_regular_file_is_refused),
        cmocka_unit_test(a_format_that_does_not_feed_the_model_is_refused),
        cmocka_unit_test(a_job_without_validation_has_no_validation_set),
        cmocka_unit_test(a_fraction_is_cut_from_the_end),
        cmocka_unit_test(a_fraction_of_several_files_counts_their_tokens_in_order),
        cmocka_unit_test(a_fraction_that_leaves_no_sequence_is_refused),
        cmocka_unit_test(a_file_that_shrinks_while_training_is_an_error),
        cmocka_unit_test(a_token_that_turns_bad_while_training_is_refused),
        cmocka_unit_test(more_files_than_descriptors_can_be_read),
        cmocka_unit_test(the_shape_follows_from_the_model),
        cmocka_unit_test(inspection_says_what_a_file_is),
        cmocka_unit_test(inspection_counts_labels_and_says_whether_rows_are_sorted_by_them),
        cmocka_unit_test(what_is_packed_is_told_from_data),
        cmocka_unit_test(inspection_is_json_too),
        cmocka_unit_test(masked_targets_weigh_nothing),
        cmocka_unit_test(what_stands_behind_the_end_of_a_document_is_no_target),
        cmocka_unit_test(masks_that_do_not_fit_are_refused),
        cmocka_unit_test(a_mask_that_changes_is_an_error_that_names_the_file),
        cmocka_unit_test(a_mixture_gives_every_file_its_part_of_the_epoch),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}
