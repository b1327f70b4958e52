/* csv files: what is read, and what is refused in which words. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rows.h"
#include "scratch.h"

static const struct data_shape two_one = {.inputs = 2, .outputs = 1},
                               classes = {.inputs = 1, .outputs = 1, .classes = 3}, tape = {.size = 1};

static int open_paths(struct data **data, const struct data_shape *shape, char part, double fraction, size_t count,
                      char **paths, struct error *error)
{
    static Gacc__V1__DataSection spec;
    spec = (Gacc__V1__DataSection)GACC__V1__DATA_SECTION__INIT;
    spec.format = GACC__V1__DATA_FORMAT__FORMAT_CSV;
    spec.n_train = count;
    spec.train = paths;
    spec.validation_fraction = fraction;
    return data_open(data, &spec, part, shape, error);
}

static char *csv_path;

static struct data *accepted_bytes(const struct data_shape *shape, const void *bytes, size_t size)
{
    struct data *data;
    struct error error = {0};
    free(csv_path);
    csv_path = scratch_file("rows.csv", bytes, size);
    if (open_paths(&data, shape, 't', 0, 1, &csv_path, &error) < 0) fail_msg("%s", error.text);
    return data;
}

static struct data *accepted(const struct data_shape *shape, const char *text)
{
    return accepted_bytes(shape, text, strlen(text));
}

/* Expects 65 and "PATH" followed by `wanted`. */
static void refused_bytes(const struct data_shape *shape, const void *bytes, size_t size, const char *wanted)
{
    struct data *data;
    struct error error = {0};
    char *path = scratch_file("bad.csv", bytes, size), *whole;
    assert_true(asprintf(&whole, "%s%s", path, wanted) > 0);
    assert_int_equal(open_paths(&data, shape, 't', 0, 1, &path, &error), -65);
    assert_string_equal(error.text, whole);
    free(whole);
    free(path);
}

static void refused(const struct data_shape *shape, const char *text, const char *wanted)
{
    refused_bytes(shape, text, strlen(text), wanted);
}

static void columns_are_found_by_name(void **state)
{
    (void)state;
    struct data *data = accepted(&two_one, "y0,x1,weight,x0\n1,2,3,4\n-1e1,.5,0,+2.\n");
    struct micro_batch *batch = read_all(data, &two_one);
    assert_int_equal(batch->rows, 2);
    assert_true(batch->y[0] == 1 && batch->x[1] == 2 && batch->weight[0] == 3 && batch->x[0] == 4);
    assert_true(batch->y[1] == -10 && batch->x[3] == 0.5 && batch->weight[1] == 0 && batch->x[2] == 2);
    assert_true(batch->weight_sum == 3 && data_weight(data, 0) == 3 && data_weight(data, 1) == 0);
    assert_null(batch->tokens);
    micro_batch_close(batch);
    data_close(data);
}

static void a_row_weighs_one_when_nothing_is_said(void **state)
{
    (void)state;
    struct data *data = accepted(&two_one, "x0,x1,y0\n1,2,3\n");
    assert_true(data_weight(data, 0) == 1);
    data_close(data);
}

static void line_ends_blanks_and_a_byte_order_mark_do_not_matter(void **state)
{
    (void)state;
    const char *texts[] = {"x0,x1,y0\n1,2,3\n4,5,6", "x0,x1,y0\r\n1,2,3\r\n4,5,6\r\n",
                           "\xEF\xBB\xBFx0,x1,y0\n1,2,3\n4,5,6\n", " x0 ,\tx1, y0\n1 , 2,\t3\n4,5 ,6\n",
                           "x0,x1,y0\n1,2,3\n4,5,6\n\n\r\n\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct data *data = accepted(&two_one, texts[i]);
        struct micro_batch *batch = read_all(data, &two_one);
        assert_int_equal(batch->rows, 2);
        assert_true(batch->x[0] == 1 && batch->x[1] == 2 && batch->y[0] == 3 && batch->x[2] == 4 && batch->y[1] == 6);
        micro_batch_close(batch);
        data_close(data);
    }
}

static void a_tape_takes_inf_and_nan(void **state)
{
    (void)state;
    struct data *data = accepted(&tape, "g0\ninf\n-Inf\nNaN\n1e-400\n20000\n+infinity\n");
    struct micro_batch *batch = read_all(data, &tape);
    assert_true(batch->x[0] > 0 && isinf(batch->x[0]));
    assert_true(batch->x[1] < 0 && isinf(batch->x[1]));
    assert_true(isnan(batch->x[2]));
    assert_true(batch->x[3] == 0 && batch->x[4] == 20000 && isinf(batch->x[5]));
    assert_null(batch->y);
    micro_batch_close(batch);
    data_close(data);
    refused(&tape, "g0,weight\n1,inf\n", ":2: column weight: 'inf' wanted a finite number");
    refused(&tape, "g0\n1e999\n", ":2: column g0: '1e999' beyond the range of double precision");
}

static void classes_are_whole_numbers_in_range(void **state)
{
    (void)state;
    struct data *data = accepted(&classes, "x0,y0\n0.5,0\n0.5,2\n0.5,1.0\n");
    struct micro_batch *batch = read_all(data, &classes);
    assert_int_equal(batch->targets[0], 0);
    assert_int_equal(batch->targets[1], 2);
    assert_int_equal(batch->targets[2], 1);
    assert_null(batch->y);
    micro_batch_close(batch);
    data_close(data);
    refused(&classes, "x0,y0\n1,3\n", ":2: column y0: '3' wanted a class in 0…2");
    refused(&classes, "x0,y0\n1,-1\n", ":2: column y0: '-1' wanted a class in 0…2");
    refused(&classes, "x0,y0\n1,0.5\n", ":2: column y0: '0.5' wanted a class in 0…2");
    refused(&classes, "x0,y0\n1,1e300\n", ":2: column y0: '1e300' wanted a class in 0…2");
}

static void what_a_critic_learns_is_real_or_not_or_between(void **state)
{
    (void)state;
    const struct data_shape critic = {.inputs = 1, .outputs = 1, .critic = true};
    data_close(accepted(&critic, "x0,y0\n7,1\n7,-1.0\n7,0\n7,-0\n"));
    refused(&critic, "x0,y0\n1,1\n1,0.5\n", ":3: column y0: '0.5' wanted 1 (real), -1 (not real) or 0 (between)");
    refused(&critic, "x0,y0\n1,2\n", ":2: column y0: '2' wanted 1 (real), -1 (not real) or 0 (between)");
}

static void what_is_no_number_is_refused(void **state)
{
    (void)state;
    const char *fields[] = {"abc", "1x",  "0x10",  "--1",   "1e",  "1e+", ".",
                            "+",   "1 2", "\"1\"", "1_000", "1d3", "#1",  "\xC2\xBD"};
    const char *names[] = {"'abc'", "'1x'",  "'0x10'",  "'--1'",   "'1e'",  "'1e+'", "'.'",
                           "'+'",   "'1 2'", "'\"1\"'", "'1_000'", "'1d3'", "'#1'",  "'\?\?'"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char text[64], wanted[64];
        snprintf(text, sizeof text, "x0,x1,y0\n1,2,3\n1,%s,3\n", fields[i]);
        snprintf(wanted, sizeof wanted, ":3: column x1: %s wanted a number", names[i]);
        refused(&two_one, text, wanted);
    }
    refused(&two_one, "x0,x1,y0\n1,,3\n", ":2: column x1: nothing, wanted a number");
    refused(&two_one, "x0,x1,y0\n1,nan,3\n", ":2: column x1: 'nan' wanted a finite number");
    refused(&two_one, "x0,x1,y0\n1,2,-inf\n", ":2: column y0: '-inf' wanted a finite number");
    refused(&two_one, "x0,x1,y0\n1,2,1e309\n", ":2: column y0: '1e309' beyond the range of double precision");
}

static void a_negative_weight_is_refused(void **state)
{
    (void)state;
    refused(&tape, "weight,g0\n1,1\n-0.5,1\n", ":3: column weight: '-0.5' wanted a weight of 0 or more");
    refused(&tape, "weight,g0\nnan,1\n", ":2: column weight: 'nan' wanted a finite number");
}

/* 5e-324 is the least there is; less would become 0, and 0 means something else. */
static void a_weight_that_would_become_0_is_refused(void **state)
{
    (void)state;
    const char *zeros[] = {"0", "-0", "+0.000", "0e5", "0.0E-400"}, *least[] = {"5e-324", "4e-324", "0.5e-323"};
    for (size_t i = 0; i < sizeof zeros / sizeof *zeros + sizeof least / sizeof *least; i++) {
        bool is_zero = i < sizeof zeros / sizeof *zeros;
        char text[64];
        snprintf(text, sizeof text, "weight,g0\n1,1\n%s,1e-400\n",
                 is_zero ? zeros[i] : least[i - sizeof zeros / sizeof *zeros]);
        struct data *data = accepted(&tape, text);
        assert_true((data_weight(data, 1) > 0) == !is_zero);
        data_close(data);
    }
    refused(&tape, "weight,g0\n1,1\n1e-400,1\n",
            ":3: column weight: '1e-400' below the range of double precision, where it would mask its row");
    refused(&tape, "weight,g0\n0.0002e-321,1\n",
            ":2: column weight: '0.0002e-321' below the range of double precision, where it would mask its row");
}

static void a_number_of_more_than_512_bytes_is_called_so(void **state)
{
    (void)state;
    char text[1200];
    snprintf(text, sizeof text, "x0,x1,y0\n1,0.%0510d,3\n", 7);
    data_close(accepted(&two_one, text));
    snprintf(text, sizeof text, "x0,x1,y0\n1,0.%0511d,3\n", 7);
    refused(
        &two_one, text,
        ":2: column x1: '0.00000000000000000000000000000000000000...' is longer than a number has to be (512 bytes)");
}

static void the_header_must_name_just_the_columns_of_the_model(void **state)
{
    (void)state;
    refused(&two_one, "x0,y0\n1,2\n",
            ":1: column x1 is missing; the columns of this model are weight (optional), x0…x1, y0");
    refused(&two_one, "x0,x1,y0,wieght\n1,2,3,4\n",
            ":1: unknown column 'wieght'; the columns of this model are weight (optional), x0…x1, y0");
    refused(&two_one, "x0,x1,x2,y0\n1,2,3,4\n",
            ":1: unknown column 'x2'; the columns of this model are weight (optional), x0…x1, y0");
    refused(&two_one, "x0,x1,x1,y0\n1,2,3,4\n", ":1: column x1 twice");
    refused(&two_one, "x0,x01,y0\n1,2,3\n",
            ":1: unknown column 'x01'; the columns of this model are weight (optional), x0…x1, y0");
    refused(&tape, "1\n2\n", ":1: unknown column '1'; the columns of this model are weight (optional), g0");
}

static void a_file_without_header_or_rows_is_refused(void **state)
{
    (void)state;
    refused(&tape, "", ":1: no header line with the names of the columns");
    refused(&tape, "\n", ":1: no header line with the names of the columns");
    refused(&tape, "\xEF\xBB\xBF", ":1: no header line with the names of the columns");
    refused(&tape, "g0", ": a header and no row");
    refused(&tape, "g0\n", ": a header and no row");
    refused(&tape, "g0\n\n\n", ": a header and no row");
}

static void damaged_lines_are_refused(void **state)
{
    (void)state;
    refused(&two_one, "x0,x1,y0\n1,2\n", ":2: 2 fields, but the header has 3");
    refused(&two_one, "x0,x1,y0\n1,2,3,4\n", ":2: 4 fields, but the header has 3");
    refused(&two_one, "x0,x1,y0\n1,2,3,\n", ":2: 4 fields, but the header has 3");
    refused(&two_one, "x0,x1,y0\n1,2,3\n\n4,5,6\n", ":3: an empty line");
    refused_bytes(&tape, "g0\n1\0\n", 6, ":2: a NUL byte; this is not a csv file in UTF-8");
    refused_bytes(&tape,
                  "\xFF\xFEg\0"
                  "0\0\n\0",
                  8, ":1: a NUL byte; this is not a csv file in UTF-8");
}

static void a_line_of_more_than_16_mib_is_refused(void **state)
{
    (void)state;
    const size_t size = (size_t)40 << 20;
    char *text = malloc(size);
    memset(text, '1', size);
    memcpy(text, "g0\n", 3);
    refused_bytes(&tape, text, size, ":2: the line is longer than 16 MiB");
    free(text);
}

static void long_lines_and_many_rows_are_read(void **state)
{
    (void)state;
    enum { COLUMNS = 50000, ROWS = 3 };
    const struct data_shape wide = {.size = COLUMNS};
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    for (int i = 0; i < COLUMNS; i++) fprintf(to, "%sg%d", i ? "," : "", i);
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < COLUMNS; i++) fprintf(to, "%s%d", i ? "," : "\n", row * COLUMNS + i);
    fclose(to);
    struct data *data = accepted_bytes(&wide, text, size);
    struct micro_batch *batch = read_all(data, &wide);
    for (int i = 0; i < ROWS * COLUMNS; i++) assert_true(batch->x[i] == i);
    micro_batch_close(batch);
    data_close(data);
    free(text);

    to = open_memstream(&text, &size);
    fprintf(to, "g0\n");
    for (int i = 0; i < 100000; i++) fprintf(to, "%d\n", i);
    fclose(to);
    data = accepted_bytes(&tape, text, size);
    batch = read_all(data, &tape);
    assert_int_equal(batch->rows, 100000);
    for (int i = 0; i < 100000; i++) assert_true(batch->x[i] == i);
    const char *where;
    uint64_t offset;
    data_locate(data, 99999, &where, &offset);
    assert_string_equal(where, csv_path);
    assert_int_equal(offset, size - 6);
    micro_batch_close(batch);
    data_close(data);
    free(text);
}

static void several_files_are_one_set_and_a_fraction_cuts_its_end(void **state)
{
    (void)state;
    char *paths[] = {scratch_file("a.csv", "g0\n0\n1\n2\n", 9), scratch_file("b.csv", "weight,g0\n2,3\n2,4\n", 18)};
    struct data *train, *validation;
    struct error error;
    assert_int_equal(open_paths(&train, &tape, 't', 0.2, 2, paths, &error), 0);
    assert_int_equal(open_paths(&validation, &tape, 'v', 0.2, 2, paths, &error), 0);
    assert_int_equal(data_sequences(train), 4);
    assert_int_equal(data_sequences(validation), 1);
    struct micro_batch *batch = read_all(train, &tape);
    for (int i = 0; i < 4; i++) assert_true(batch->x[i] == i);
    assert_true(batch->weight_sum == 5);
    micro_batch_close(batch);
    batch = read_all(validation, &tape);
    assert_true(batch->x[0] == 4 && batch->weight_sum == 2);
    micro_batch_close(batch);
    const char *where;
    uint64_t offset;
    data_locate(train, 2, &where, &offset);
    assert_string_equal(where, paths[0]);
    assert_int_equal(offset, 7);
    data_locate(validation, 0, &where, &offset);
    assert_string_equal(where, paths[1]);
    assert_int_equal(offset, 14);
    data_close(train);
    data_close(validation);
    assert_int_equal(open_paths(&validation, &tape, 'v', 0.1, 2, paths, &error), 0); /* ⌊5·0.9⌋ = 4 */
    data_close(validation);
    assert_int_equal(open_paths(&train, &tape, 't', 0.8, 2, paths, &error),
                     0); /* 5·(1−0.8) is 0.9999999999999998 in double */
    assert_int_equal(data_sequences(train), 1);
    data_close(train);
    assert_int_equal(open_paths(&train, &tape, 't', 0.9, 2, paths, &error), -65);
    assert_string_equal(error.text, "data.validation: 0.9 of 5 rows leaves none for training");
    for (size_t i = 0; i < 2; i++) free(paths[i]);
}

static void a_row_that_does_not_fit_the_batch_is_an_error(void **state)
{
    (void)state;
    struct data *data = accepted(&tape, "g0\n1\n2\n");
    struct micro_batch *batch;
    struct error error;
    assert_int_equal(micro_batch_open(&batch, &tape, 1, &error), 0);
    assert_int_equal(data_read(data, 0, batch, &error), 0);
    assert_int_equal(data_read(data, 1, batch, &error), -70);
    micro_batch_close(batch);
    data_close(data);
}

static int close_all(void **state)
{
    free(csv_path);
    return scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_are_found_by_name),
        cmocka_unit_test(a_row_weighs_one_when_nothing_is_said),
        cmocka_unit_test(line_ends_blanks_and_a_byte_order_mark_do_not_matter),
        cmocka_unit_test(a_tape_takes_inf_and_nan),
        cmocka_unit_test(classes_are_whole_numbers_in_range),
        cmocka_unit_test(what_a_critic_learns_is_real_or_not_or_between),
        cmocka_unit_test(what_is_no_number_is_refused),
        cmocka_unit_test(a_negative_weight_is_refused),
        cmocka_unit_test(a_weight_that_would_become_0_is_refused),
        cmocka_unit_test(a_number_of_more_than_512_bytes_is_called_so),
        cmocka_unit_test(the_header_must_name_just_the_columns_of_the_model),
        cmocka_unit_test(a_file_without_header_or_rows_is_refused),
        cmocka_unit_test(damaged_lines_are_refused),
        cmocka_unit_test(a_line_of_more_than_16_mib_is_refused),
        cmocka_unit_test(long_lines_and_many_rows_are_read),
        cmocka_unit_test(several_files_are_one_set_and_a_fraction_cuts_its_end),
        cmocka_unit_test(a_row_that_does_not_fit_the_batch_is_an_error),
    };
    return cmocka_run_group_tests(tests, scratch_open, close_all);
}
