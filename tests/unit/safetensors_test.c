/* safetensors: what is written is read back; what is damaged is refused with the place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <sys/stat.h>

#include "tests/unit/scratch.h"
#include "worker/safetensors.h"

/* A file of this header text and data. */
static char *file_of(const char *header, const void *data, size_t size)
{
    uint64_t length = strlen(header);
    char *bytes = malloc(8 + length + size);
    for (int i = 0; i < 8; i++) bytes[i] = (char)(length >> 8 * i);
    memcpy(bytes + 8, header, length);
    if (size > 0) memcpy(bytes + 8 + length, data, size);
    char *path = scratch_file("x.safetensors", bytes, 8 + length + size);
    free(bytes);
    return path;
}

static void refused(const char *header, size_t size, const char *text)
{
    static const char zeros[64];
    struct safetensors *file;
    struct error error = {0};
    char *path = file_of(header, zeros, size);
    assert_int_equal(safetensors_open(&file, path, &error), -STATUS_DATA);
    assert_null(file);
    if (!strstr(error.text, text)) fail_msg("'%s' does not say '%s'", error.text, text);
    assert_non_null(strstr(error.text, "x.safetensors: "));
    free(path);
}

static struct safetensors *open_file(const char *path)
{
    struct safetensors *file;
    struct error error = {0};
    if (safetensors_open(&file, path, &error)) fail_msg("%s", error.text);
    return file;
}

/* Case 24-5: the data begin at a multiple of 8. */
static void a_written_header_lays_tensors_out_without_gaps(void **state)
{
    (void)state;
    struct safetensors_tensor tensors[] = {
        {.name = "wte.weight", .type = SAFETENSORS_F32, .dimensions = 2, .shape = (const uint64_t[]){3, 2}},
        {.name = "scalar", .type = SAFETENSORS_F64},
        {.name = "empty", .type = SAFETENSORS_F32, .dimensions = 1, .shape = (const uint64_t[]){0}},
        {.name = "half", .type = SAFETENSORS_BF16, .dimensions = 1, .shape = (const uint64_t[]){3}},
    };
    char *header;
    size_t bytes;
    assert_int_equal(safetensors_header(tensors, 4, &header, &bytes, NULL), 0);
    assert_int_equal(bytes % 8, 0);
    assert_int_equal(tensors[1].offset, 24);
    assert_int_equal(tensors[3].offset, 32);
    static const char metadata[] = "\"__metadata__\":{\"format\":\"pt\"}";
    assert_non_null(memmem(header, bytes, metadata, sizeof metadata - 1)); /* no text: it does not end with a zero */

    char *whole = calloc(1, bytes + 38);
    memcpy(whole, header, bytes);
    float weights[6] = {1, 2, 3, 4, 5, 6};
    double scalar = 0.1;
    memcpy(whole + bytes, weights, sizeof weights);
    memcpy(whole + bytes + 24, &scalar, sizeof scalar);
    char *path = scratch_file("x.safetensors", whole, bytes + 38);
    struct safetensors *file = open_file(path);
    assert_int_equal(safetensors_count(file), 4);
    double values[6];
    const struct safetensors_tensor *weight = safetensors_find(file, "wte.weight");
    assert_int_equal(weight->shape[0], 3);
    assert_int_equal(safetensors_read(file, weight, 2, 3, values, NULL), 0);
    assert_true(values[0] == 3 && values[2] == 5);
    assert_int_equal(safetensors_read(file, safetensors_find(file, "scalar"), 0, 1, values, NULL), 0);
    assert_true(values[0] == 0.1);
    assert_int_equal(safetensors_find(file, "empty")->elements, 0);
    assert_null(safetensors_find(file, "h.0.ln_1.weight"));
    safetensors_close(file);
    free(path);
    free(whole);
    free(header);
}

static void every_floating_type_is_read(void **state)
{
    (void)state;
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x0001, 0x7bff, 0x7c00, 0x8000, 0x7e00}; /* F16 */
    static const double wanted[] = {1, -2, 0x1p-24, 65504, HUGE_VAL, -0.0};
    char *path = file_of("{\"a\":{\"dtype\":\"F16\",\"shape\":[7],\"data_offsets\":[0,14]}}", halves, sizeof halves);
    struct safetensors *file = open_file(path);
    double values[7];
    assert_int_equal(safetensors_read(file, safetensors_at(file, 0), 0, 7, values, NULL), 0);
    for (size_t i = 0; i < 6; i++) assert_true(values[i] == wanted[i] && signbit(values[i]) == signbit(wanted[i]));
    assert_true(isnan(values[6]));
    safetensors_close(file);
    free(path);

    static const uint16_t brains[] = {0x3f80, 0xff80};
    path = file_of("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[0,4]}}", brains, sizeof brains);
    file = open_file(path);
    assert_int_equal(safetensors_read(file, safetensors_at(file, 0), 0, 2, values, NULL), 0);
    assert_true(values[0] == 1 && isinf(values[1]) && values[1] < 0);
    safetensors_close(file);
    free(path);
}

/* Case 24-5: an odd-length tensor leaves the next one unaligned; a header of any length does too. */
static void unaligned_tensors_are_read(void **state)
{
    (void)state;
    unsigned char bytes[7] = {9, 9, 9};
    float number = 1.5f;
    memcpy(bytes + 3, &number, sizeof number);
    char *path = file_of("{\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[3,7]},"
                         "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}",
                         bytes, sizeof bytes);
    struct safetensors *file = open_file(path);
    double value;
    struct error error;
    assert_string_equal(safetensors_at(file, 0)->name, "a");
    assert_int_equal(safetensors_read(file, safetensors_find(file, "b"), 0, 1, &value, &error), 0);
    assert_true(value == 1.5);
    assert_int_equal(safetensors_read(file, safetensors_find(file, "a"), 0, 1, &value, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "tensor 'a': its type is not"));
    assert_int_equal(safetensors_read(file, safetensors_find(file, "b"), 0, 2, &value, &error), -STATUS_DATA);
    safetensors_close(file);
    free(path);
}

/* Case 24-1 */
static void a_file_of_another_length_than_its_header_says_is_refused(void **state)
{
    (void)state;
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}";
    struct safetensors *file;
    struct error error;
    char *path = file_of(header, "0123456789abcde", 15);
    assert_int_equal(safetensors_open(&file, path, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "has 78 bytes, its header says 79"));
    free(path);
    refused(header, 8, "has 71 bytes");
    refused(header, 17, "has 80 bytes");
}

static void a_file_that_is_cut_while_open_is_an_error(void **state)
{
    (void)state;
    char *path = file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "0123456789abcdef", 16);
    struct safetensors *file = open_file(path);
    double values[4];
    struct error error;
    assert_int_equal(truncate(path, 70), 0);
    assert_int_equal(safetensors_read(file, safetensors_at(file, 0), 0, 4, values, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "ends at byte 70"));
    safetensors_close(file);
    free(path);
}

static void damaged_headers_are_refused(void **state)
{
    (void)state;
    refused("{\"a\":", 0, "not a safetensors file");
    refused("[1]", 0, "does not begin with {");
    refused(" {}", 0, "does not begin with {");
    refused("", 0, "does not begin with {");
    refused("{}x", 0, "end of file expected");
    refused("{\"\\ud800\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a safetensors file");
    refused("{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "not a safetensors file");
    refused("{\"__metadata__\":[]}", 0, "__metadata__ is not a JSON object");
    refused("{\"__metadata__\":{\"epoch\":3}}", 0, "__metadata__ holds something that is no text");
    refused("{\"__metadata__\":{\"a\":\"b\",\"a\":\"c\"}}", 0, "duplicate");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            4, "duplicate");
    refused("{\"a\":{\"dtype\":\"F33\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': dtype");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
            "2 elements of F32 do not fill 4 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': shape");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4, "tensor 'a': shape");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, "too large");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
            "do not fill 0 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,0]}}", 0, "too big");
    refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
            "3 elements of F4 do not fill 1 bytes");
    refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
            "3 elements of F4 do not fill 2 bytes");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}", 4, "tensor 'a': shape");
    refused("{\"a\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "tensor 'a': dtype");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, "tensor 'a': data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", 4, "tensor 'a': data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4, "tensor 'a': data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
            4, "begins at byte 0 of the data, 4 was expected");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[2,2]}}",
            4, "tensor 'b' begins at byte 2 of the data, 4 was expected");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, "tensor 'a': data_offsets");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
            "begins at byte 4 of the data, 0 was expected");
    refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
            "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
            12, "tensor 'b' begins at byte 4");
    refused("{\"a\":5}", 0, "tensor 'a': dtype is missing");
}

/* What the format allows and few files have. */
static void odd_files_are_read(void **state)
{
    (void)state;
    static const unsigned char bytes[4] = {0x21, 0x43, 0x65, 0x87};
    static const struct {
        const char *header;
        size_t size, count;
    } odd[] = {
        {"{}", 0, 0},
        {"{}       ", 0, 0},
        {"{\"__metadata__\":{}}", 0, 0},
        {"{\"__metadata__\":{\"a\":\"b\"},\"x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4, 1},
        {"{\"\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, 1},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, 1},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
         "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"z\":{\"dtype\":\"F64\",\"shape\":[5,0],\"data_offsets\":[0,0]}}",
         4, 3},
        {"{\"x\":{\"dtype\":\"F4\",\"shape\":[8],\"data_offsets\":[0,4]}}", 4, 1},
        {"{\"x\":{\"dtype\":\"F6_E3M2\",\"shape\":[4],\"data_offsets\":[0,3]}}", 3, 1},
    };
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        char *path = file_of(odd[i].header, bytes, odd[i].size);
        struct safetensors *file = open_file(path);
        assert_int_equal(safetensors_count(file), odd[i].count);
        safetensors_close(file);
        free(path);
    }
}

/* The format knows no limit. */
static void a_shape_has_any_number_of_dimensions(void **state)
{
    (void)state;
    static const unsigned char bytes[16];
    char *path = file_of("{\"x\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[0,2]},"
                         "\"y\":{\"dtype\":\"F16\",\"shape\":[1,3,1,1,1,1,1,1,1,2],\"data_offsets\":[2,14]},"
                         "\"z\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[14,16]}}",
                         bytes, sizeof bytes);
    struct safetensors *file = open_file(path);
    const struct safetensors_tensor *y = safetensors_find(file, "y");
    assert_int_equal(y->dimensions, 10);
    assert_int_equal(y->shape[1], 3);
    assert_int_equal(y->shape[9], 2);
    assert_int_equal(safetensors_find(file, "z")->shape[0], 1);
    safetensors_close(file);
    free(path);
}

/* A sparse file of 100 MB and more. */
static void a_header_is_at_most_100_million_bytes(void **state)
{
    (void)state;
    for (uint64_t length = 100000000; length <= 100000001; length++) {
        unsigned char bytes[9] = {[8] = '{'};
        for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(length >> 8 * i);
        struct safetensors *file;
        struct error error;
        char *path = scratch_file("x.safetensors", bytes, sizeof bytes);
        assert_int_equal(truncate(path, (off_t)(8 + length)), 0);
        assert_int_equal(safetensors_open(&file, path, &error), -STATUS_DATA);
        const char *wanted =
            length == 100000000 ? "string or '}' expected" : "a header of 100000001 bytes in a file of 100000009";
        if (!strstr(error.text, wanted)) fail_msg("%s", error.text);
        unlink(path);
        free(path);
    }
}

static void what_no_file_can_hold_is_not_written(void **state)
{
    (void)state;
    const struct {
        struct safetensors_tensor tensors[2];
        const char *why;
    } cases[] = {
        {{{.name = "a", .type = SAFETENSORS_F32}, {.name = "a", .type = SAFETENSORS_F32}},
         "tensor 'a': a safetensors file"},
        {{{.name = "a", .type = SAFETENSORS_F32}, {.name = "__metadata__", .type = SAFETENSORS_F32}},
         "tensor '__metadata__': a safetensors file"},
        {{{.name = "a", .type = SAFETENSORS_F32},
          {.name = "b",
           .type = SAFETENSORS_F32,
           .dimensions = 2,
           .shape = (const uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32}}},
         "tensor 'b': a safetensors file"},
        {{{.name = "a", .type = SAFETENSORS_F32},
          {.name = "b", .type = SAFETENSORS_F32, .dimensions = 1, .shape = (const uint64_t[]){UINT64_C(1) << 62}}},
         "tensor 'b': a safetensors file"},
        {{{.name = "a", .type = SAFETENSORS_F64, .dimensions = 1, .shape = (const uint64_t[]){(UINT64_C(1) << 60) - 1}},
          {.name = "b", .type = SAFETENSORS_F64, .dimensions = 1, .shape = (const uint64_t[]){1}}},
         "tensor 'b': a safetensors file"},
        {{{.name = "a", .type = SAFETENSORS_F32}, {.name = "\xff", .type = SAFETENSORS_F32}}, "no text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct safetensors_tensor tensors[2] = {cases[i].tensors[0], cases[i].tensors[1]};
        struct error error = {0};
        char *header;
        size_t bytes;
        assert_int_equal(safetensors_header(tensors, 2, &header, &bytes, &error), -STATUS_INTERNAL);
        assert_null(header);
        if (!strstr(error.text, cases[i].why)) fail_msg("%s", error.text);
    }
}

static void a_header_longer_than_the_file_is_refused(void **state)
{
    (void)state;
    static const unsigned char bytes[] = {255, 255, 255, 255, 255, 255, 255, 127, '{', '}'};
    struct safetensors *file;
    struct error error;
    char *path = scratch_file("x.safetensors", bytes, sizeof bytes);
    assert_int_equal(safetensors_open(&file, path, &error), -STATUS_DATA);
    assert_non_null(strstr(error.text, "in a file of 10"));
    free(path);
    path = scratch_file("x.safetensors", bytes, 7);
    assert_int_equal(safetensors_open(&file, path, &error), -STATUS_DATA);
    free(path);
}

static void a_missing_file_is_missing(void **state)
{
    (void)state;
    struct safetensors *file;
    struct error error;
    assert_int_equal(safetensors_open(&file, "/nowhere/x.safetensors", &error), -STATUS_MISSING);
    assert_string_equal(error.text, "/nowhere/x.safetensors: No such file or directory");
    assert_int_equal(safetensors_open(&file, scratch, &error), -STATUS_MISSING);
    assert_non_null(strstr(error.text, "not a regular file"));
    char fifo[4096];
    snprintf(fifo, sizeof fifo, "%s/fifo", scratch);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(safetensors_open(&file, fifo, &error), -STATUS_MISSING); /* at once */
    assert_non_null(strstr(error.text, "not a regular file"));
    unlink(fifo);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_header_lays_tensors_out_without_gaps),
        cmocka_unit_test(every_floating_type_is_read),
        cmocka_unit_test(unaligned_tensors_are_read),
        cmocka_unit_test(a_file_of_another_length_than_its_header_says_is_refused),
        cmocka_unit_test(a_file_that_is_cut_while_open_is_an_error),
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(odd_files_are_read),
        cmocka_unit_test(a_shape_has_any_number_of_dimensions),
        cmocka_unit_test(a_header_is_at_most_100_million_bytes),
        cmocka_unit_test(what_no_file_can_hold_is_not_written),
        cmocka_unit_test(a_header_longer_than_the_file_is_refused),
        cmocka_unit_test(a_missing_file_is_missing),
    };
    return cmocka_run_group_tests_name("safetensors", tests, scratch_open, scratch_close);
}
