/* idx files: images and labels, what is read, and what is refused in which words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rows.h"
#include "scratch.h"

static const struct data_shape digits = {.inputs = 4, .outputs = 1, .classes = 3}, curve = {.inputs = 2, .outputs = 2};

/* Three images of 2×2 bytes, and their classes. */
static const unsigned char images[] =
    "\0\0\x08\x03\0\0\0\x03\0\0\0\x02\0\0\0\x02\x00\x33\x66\xFF\x01\x02\x03\x04\xFF\xFF\xFF\xFF";
static const unsigned char labels[] = "\0\0\x08\x01\0\0\0\x03\x02\x00\x01";
enum { IMAGES_SIZE = sizeof images - 1, LABELS_SIZE = sizeof labels - 1 };

static Gacc__V1__DataSection spec;

static int open_paths(struct data **data, const struct data_shape *shape, char part, double fraction, size_t count,
                      char **of_images, char **of_labels, struct error *error)
{
    spec = (Gacc__V1__DataSection)GACC__V1__DATA_SECTION__INIT;
    spec.format = GACC__V1__DATA_FORMAT__FORMAT_IDX;
    spec.n_train = spec.n_labels = count;
    spec.train = of_images;
    spec.labels = of_labels;
    spec.validation_fraction = fraction;
    return data_open(data, &spec, part, shape, error);
}

static char *kept[2];

static struct data *accepted(const struct data_shape *shape, const void *x, size_t x_size, const void *y, size_t y_size)
{
    struct data *data;
    struct error error = {0};
    free(kept[0]), free(kept[1]);
    kept[0] = scratch_file("images", x, x_size);
    kept[1] = scratch_file("labels", y, y_size);
    if (open_paths(&data, shape, 't', 0, 1, &kept[0], &kept[1], &error) < 0) fail_msg("%s", error.text);
    return data;
}

static int close_all(void **state)
{
    free(kept[0]), free(kept[1]);
    return scratch_close(state);
}

/* Expects 65 and the path of the images ('x') or of the labels ('y') with `wanted` behind it. */
static void refused(const struct data_shape *shape, const void *x, size_t x_size, const void *y, size_t y_size,
                    char which, const char *wanted)
{
    struct data *data;
    struct error error = {0};
    char *x_path = scratch_file("images", x, x_size), *y_path = scratch_file("labels", y, y_size), *whole;
    assert_true(asprintf(&whole, "%s%s", which == 'x' ? x_path : y_path, wanted) > 0);
    assert_int_equal(open_paths(&data, shape, 't', 0, 1, &x_path, &y_path, &error), -65);
    assert_string_equal(error.text, whole);
    assert_null(data);
    free(whole), free(x_path), free(y_path);
}

/* The images, with byte `at` being `value` and `size` bytes of them. */
static void refused_images(size_t at, unsigned char value, size_t size, const char *wanted)
{
    unsigned char bytes[IMAGES_SIZE + 8] = {0};
    memcpy(bytes, images, IMAGES_SIZE);
    bytes[at] = value;
    refused(&digits, bytes, size, labels, LABELS_SIZE, 'x', wanted);
}

static void refused_labels(size_t at, unsigned char value, size_t size, const char *wanted)
{
    unsigned char bytes[LABELS_SIZE + 8] = {0};
    memcpy(bytes, labels, LABELS_SIZE);
    bytes[at] = value;
    refused(&digits, images, IMAGES_SIZE, bytes, size, 'y', wanted);
}

static void an_image_is_a_row_and_its_bytes_lie_in_0_to_1(void **state)
{
    (void)state;
    struct data *data = accepted(&digits, images, IMAGES_SIZE, labels, LABELS_SIZE);
    struct micro_batch *batch = read_all(data, &digits);
    const double x[] = {0, 0.2, 0.4, 1, 1 / 255.0, 2 / 255.0, 3 / 255.0, 4 / 255.0, 1, 1, 1, 1};
    assert_int_equal(batch->rows, 3);
    assert_memory_equal(batch->x, x, sizeof x);
    assert_int_equal(batch->targets[0], 2);
    assert_int_equal(batch->targets[1], 0);
    assert_int_equal(batch->targets[2], 1);
    assert_true(batch->weight[1] == 1 && batch->weight_sum == 3 && data_weight(data, 2) == 1);
    assert_null(batch->y);
    const char *file;
    uint64_t offset;
    data_locate(data, 1, &file, &offset);
    assert_string_equal(file, kept[0]);
    assert_int_equal(offset, 20);
    micro_batch_close(batch);
    data_close(data);
}

/* One image of two numbers of each type, labelled by itself. */
static void numbers_of_every_type_are_big_endian_and_labels_are_not_scaled(void **state)
{
    (void)state;
    static const struct {
        unsigned char code;
        size_t width;
        const char *bytes;
        double x[2], y[2];
    } types[] = {
        {0x08, 1, "\x33\xFF", {0.2, 1}, {51, 255}},
        {0x09, 1, "\x7F\x80", {127, -128}, {127, -128}},
        {0x0B, 2, "\x01\x02\xFF\xFE", {258, -2}, {258, -2}},
        {0x0C, 4, "\0\x01\0\0\x80\0\0\0", {65536, -2147483648.0}, {65536, -2147483648.0}},
        {0x0D, 4, "\x3F\xC0\0\0\xC0\0\0\0", {1.5, -2}, {1.5, -2}},
        {0x0E, 8, "\x3F\xF8\0\0\0\0\0\0\x3F\xB9\x99\x99\x99\x99\x99\x9A", {1.5, 0.1}, {1.5, 0.1}},
    };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        unsigned char bytes[28] = {0, 0, types[i].code, 2, 0, 0, 0, 1, 0, 0, 0, 2};
        const size_t size = 12 + 2 * types[i].width;
        memcpy(bytes + 12, types[i].bytes, 2 * types[i].width);
        struct data *data = accepted(&curve, bytes, size, bytes, size);
        struct micro_batch *batch = read_all(data, &curve);
        assert_memory_equal(batch->x, types[i].x, sizeof types[i].x);
        assert_memory_equal(batch->y, types[i].y, sizeof types[i].y);
        micro_batch_close(batch);
        data_close(data);
    }
}

static void damaged_headers_are_refused(void **state)
{
    (void)state;
    const char magic[] = ", wanted the idx magic 00 00, a type (08, 09, 0b, 0c, 0d or 0e) and the number of dimensions";
    char text[200];
    refused_images(0, 0, 0, ": 0 bytes, but an idx header has 8 at least");
    refused_images(0, 0, 3, ": 3 bytes, but an idx header has 8 at least");
    snprintf(text, sizeof text, ": begins with 00 01 08 03%s", magic);
    refused_images(1, 1, IMAGES_SIZE, text);
    snprintf(text, sizeof text, ": begins with 00 00 0a 03%s", magic);
    refused_images(2, 0x0A, IMAGES_SIZE, text);
    refused(&digits, "\x1F\x8B\x08\0", 4, labels, LABELS_SIZE, 'x', ": compressed by gzip; gunzip it first");
    refused_images(3, 0, IMAGES_SIZE, ": 0 dimensions at byte 3, wanted 1…8");
    refused_images(3, 9, IMAGES_SIZE, ": 9 dimensions at byte 3, wanted 1…8");
    refused_images(3, 3, 15, ": the idx header is truncated: 15 of 16 bytes");
    refused_images(7, 0, 16, ": dimension 0 of the idx header is 0");
    refused_images(15, 0, IMAGES_SIZE, ": dimension 2 of the idx header is 0");
}

static void a_size_that_the_header_does_not_say_is_refused(void **state)
{
    (void)state;
    refused_images(0, 0, IMAGES_SIZE - 1,
                   ": the idx header says 3 rows of 4 numbers of 1 bytes, but 11 bytes follow it");
    refused_images(0, 0, IMAGES_SIZE + 1,
                   ": the idx header says 3 rows of 4 numbers of 1 bytes, but 13 bytes follow it");
    refused_images(7, 4, IMAGES_SIZE, ": the idx header says 4 rows of 4 numbers of 1 bytes, but 12 bytes follow it");
    refused_labels(7, 2, LABELS_SIZE, ": the idx header says 2 rows of 1 numbers of 1 bytes, but 3 bytes follow it");
    /* 2^32−1 to the power of 8 numbers */
    unsigned char huge[40];
    memset(huge, 0xFF, sizeof huge);
    memcpy(huge, "\0\0\x08\x08", 4);
    struct data *data;
    struct error error = {0};
    char *x_path = scratch_file("images", huge, sizeof huge), *y_path = scratch_file("labels", labels, LABELS_SIZE);
    assert_int_equal(open_paths(&data, &digits, 't', 0, 1, &x_path, &y_path, &error), -65);
    assert_non_null(strstr(error.text, "bytes, but 4 bytes follow it"));
    free(x_path), free(y_path);
}

static void images_and_labels_have_to_fit_each_other_and_the_model(void **state)
{
    (void)state;
    const struct data_shape wide = {.inputs = 5, .outputs = 1, .classes = 3};
    const struct data_shape picture = {.inputs = 5, .outputs = 1, .classes = 3, .image = true};
    refused(&wide, images, IMAGES_SIZE, labels, LABELS_SIZE, 'x', ": an image has 4 numbers, but model.inputs is 5");
    refused(&picture, images, IMAGES_SIZE, labels, LABELS_SIZE, 'x', ": an image has 4 numbers, but model.image has 5");
    refused(&digits, images, IMAGES_SIZE, images, IMAGES_SIZE, 'y', ": 4 numbers for an image, wanted 1");
    refused_labels(9, 3, LABELS_SIZE, ": label 1 (byte 9) is 3, wanted 0…2 (model.outputs 3)");
    refused_labels(10, 0xFF, LABELS_SIZE, ": label 2 (byte 10) is 255, wanted 0…2 (model.outputs 3)");
    refused(&digits, images, IMAGES_SIZE, "\0\0\x09\x01\0\0\0\x03\0\0\xFF", LABELS_SIZE, 'y',
            ": label 2 (byte 10) is -1, wanted 0…2 (model.outputs 3)");
    refused(&digits, images, IMAGES_SIZE, "\0\0\x0D\x01\0\0\0\x03\0\0\0\0\0\0\0\0\0\0\0\0", 20, 'y',
            ": holds f32, but classes are whole numbers");
    const struct data_shape critic = {.inputs = 4, .outputs = 1, .critic = true};
    refused(&critic, images, IMAGES_SIZE, labels, LABELS_SIZE, 'y',
            ": label 0 (byte 8) is 2, wanted 1 (real), -1 (not real) or 0 (between)");
    char *x_path = scratch_file("images", images, IMAGES_SIZE), *whole;
    assert_true(asprintf(&whole, ": labels 2 images, but %s holds 3", x_path) > 0);
    unsigned char two[] = "\0\0\x08\x01\0\0\0\x02\0\0";
    refused(&digits, images, IMAGES_SIZE, two, sizeof two - 1, 'y', whole);
    free(x_path), free(whole);
}

static void numbers_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    const char inf[] = "\0\0\x0D\x02\0\0\0\x01\0\0\0\x02\0\0\0\0\x7F\x80\0\0";
    const char good[] = "\0\0\x0D\x02\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0\0";
    refused(&curve, inf, 20, good, 20, 'x', ": number 1 (byte 16, row 0) is not finite");
    refused(&curve, good, 20, inf, 20, 'y', ": number 1 (byte 16, row 0) is not finite");
}

static void a_file_of_images_without_labels_is_refused(void **state)
{
    (void)state;
    char *path = scratch_file("images", images, IMAGES_SIZE);
    struct data *data;
    struct error error = {0};
    open_paths(&data, &digits, 't', 0, 1, &path, &path, &error);
    spec.n_labels = 0;
    assert_int_equal(data_open(&data, &spec, 't', &digits, &error), -78);
    assert_string_equal(error.text, "data.labels: 0 files for the 1 of images");
    free(path);
}

/* Labels 2, 0, 1; 2 is not to be learned, and there are but two classes: what is masked need be none of them. */
static void a_masked_image_weighs_nothing(void **state)
{
    (void)state;
    const struct data_shape two = {.inputs = 4, .outputs = 1, .classes = 2};
    char *x = scratch_file("images", images, IMAGES_SIZE), *y = scratch_file("labels", labels, LABELS_SIZE);
    char *mask = scratch_file("mask", "\1\0\1", 3);
    uint32_t masked = 2;
    struct data *data;
    struct error error = {0};
    for (int files = 0; files < 2; files++) {
        assert_int_equal(open_paths(&data, &two, 't', 0, 1, &x, &y, &error), -65);
        spec.n_masked = 1;
        spec.masked = &masked;
        spec.n_masks = (size_t)files;
        spec.masks = &mask;
        assert_int_equal(data_open(&data, &spec, 't', &two, &error), 0);
        struct micro_batch *batch = read_all(data, &two);
        const double weights[] = {0, files ? 0 : 1, 1};
        assert_memory_equal(batch->weight, weights, sizeof weights);
        for (uint64_t i = 0; i < 3; i++) assert_true(data_weight(data, i) == weights[i]);
        assert_true(batch->targets[0] == -1 && batch->targets[1] == (files ? -1 : 0) && batch->targets[2] == 1);
        micro_batch_close(batch);
        data_close(data);
    }
    free(x), free(y), free(mask);
}

/* Two files of three images: the cut of 1/3 lies at row 4. */
static void several_files_are_one_set_and_a_fraction_cuts_its_end(void **state)
{
    (void)state;
    unsigned char other[IMAGES_SIZE];
    memcpy(other, images, sizeof other);
    for (size_t i = 16; i < IMAGES_SIZE; i++) other[i] = 0x99;
    char *x[] = {scratch_file("a", images, IMAGES_SIZE), scratch_file("b", other, IMAGES_SIZE)};
    char *y[] = {scratch_file("c", labels, LABELS_SIZE),
                 scratch_file("d", "\0\0\x08\x01\0\0\0\x03\x01\x01\x00", LABELS_SIZE)};
    static Gacc__V1__DataSection of_train;
    struct data *train, *validation;
    struct error error = {0};
    assert_int_equal(open_paths(&train, &digits, 't', 1 / 3.0, 2, x, y, &error), 0);
    of_train = spec;
    assert_int_equal(data_open(&validation, &of_train, 'v', &digits, &error), 0);
    assert_int_equal(data_sequences(train), 4);
    assert_int_equal(data_sequences(validation), 2);
    struct micro_batch *batch = read_all(validation, &digits);
    assert_true(batch->x[0] == 0.6 && batch->targets[0] == 1 && batch->targets[1] == 0);
    micro_batch_close(batch);
    batch = read_all(train, &digits);
    assert_true(batch->x[3 * 4] == 0.6 && batch->targets[3] == 1 && batch->targets[2] == 1);
    micro_batch_close(batch);
    const char *file;
    uint64_t offset;
    data_locate(train, 3, &file, &offset);
    assert_string_equal(file, x[1]);
    assert_int_equal(offset, 16);
    data_close(train), data_close(validation);
    for (int i = 0; i < 2; i++) free(x[i]), free(y[i]);
}

static void a_file_that_shrinks_is_an_error_that_names_it(void **state)
{
    (void)state;
    struct data *data = accepted(&digits, images, IMAGES_SIZE, labels, LABELS_SIZE);
    struct micro_batch *batch;
    struct error error;
    assert_int_equal(micro_batch_open(&batch, &digits, 3, &error), 0);
    assert_int_equal(truncate(kept[0], 21), 0);
    assert_int_equal(data_read(data, 0, batch, &error), 0);
    assert_int_equal(data_read(data, 1, batch, &error), -65);
    assert_non_null(strstr(error.text, kept[0]));
    assert_int_equal(batch->rows, 1);
    micro_batch_close(batch);
    data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_image_is_a_row_and_its_bytes_lie_in_0_to_1),
        cmocka_unit_test(numbers_of_every_type_are_big_endian_and_labels_are_not_scaled),
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(a_size_that_the_header_does_not_say_is_refused),
        cmocka_unit_test(images_and_labels_have_to_fit_each_other_and_the_model),
        cmocka_unit_test(numbers_that_are_not_finite_are_refused),
        cmocka_unit_test(a_file_of_images_without_labels_is_refused),
        cmocka_unit_test(a_masked_image_weighs_nothing),
        cmocka_unit_test(several_files_are_one_set_and_a_fraction_cuts_its_end),
        cmocka_unit_test(a_file_that_shrinks_is_an_error_that_names_it),
    };
    return cmocka_run_group_tests(tests, scratch_open, close_all);
}
