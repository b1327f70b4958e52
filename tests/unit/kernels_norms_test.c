/* Norms over groups and over sets of rows: every instance against the reference. */
#include <string.h>

#include "tests/unit/kernels_support.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { X, DY, Y, DX, WEIGHT, BIAS, MEAN, RSTD, DWEIGHT, DBIAS, ARRAYS };

static void open_arrays(struct instance *t, struct array arrays[ARRAYS], struct norm_shape s, size_t sets,
                        double centre)
{
    const size_t n = s.rows * s.positions * s.channels;
    uint64_t seed = n + s.groups;
    arrays[X] = array_random(t->type, n, centre, 2, &seed);
    arrays[DY] = array_random(t->type, n, 0, 1, &seed);
    arrays[Y] = array_new(t->type, n);
    arrays[DX] = array_new(t->type, n);
    arrays[WEIGHT] = array_random(t->type, s.channels, 1, 0.5, &seed);
    arrays[BIAS] = array_random(t->type, s.channels, 0, 1, &seed);
    arrays[MEAN] = array_new(t->wide, sets);
    arrays[RSTD] = array_new(t->wide, sets);
    arrays[DWEIGHT] = array_random(t->wide, s.channels, 0, 1, &seed);
    arrays[DBIAS] = array_random(t->wide, s.channels, 0, 1, &seed);
}

static void groupnorm_case(struct instance *t, struct norm_shape s, double centre)
{
    struct array a[ARRAYS];
    char what[200];
    const double unit = t->wide_unit, items = (double)(s.rows * s.positions);
    open_arrays(t, a, s, s.rows * s.groups, centre);
    DESCRIBE(what, t, "groupnorm %zu×%zu×%zu in %zu about %g", s.rows, s.positions, s.channels, s.groups, centre);
    t->table->groupnorm_forward(t->kernels, a[Y].data, a[MEAN].data, a[RSTD].data, a[X].data, a[WEIGHT].data,
                                a[BIAS].data, s);
    t->reference_table->groupnorm_forward(t->reference, a[Y].exact, a[MEAN].exact, a[RSTD].exact, a[X].exact,
                                          a[WEIGHT].exact, a[BIAS].exact, s);
    const double steep = s.channels / s.groups * s.positions < 3 ? 2000 : 40;
    array_check(what, &a[MEAN], unit, 80 * unit * centre);
    array_check(what, &a[RSTD], steep * unit, 0);
    array_check(what, &a[Y], t->unit, steep * 40 * unit * centre);
    t->table->groupnorm_backward(t->kernels, a[DX].data, a[DWEIGHT].data, a[DBIAS].data, a[DY].data, a[X].data,
                                 a[MEAN].data, a[RSTD].data, a[WEIGHT].data, s);
    for (size_t i = 0; i < s.rows * s.groups; i++) {
        a[MEAN].exact[i] = element_get(t->wide, a[MEAN].data, i);
        a[RSTD].exact[i] = element_get(t->wide, a[RSTD].data, i);
    }
    t->reference_table->groupnorm_backward(t->reference, a[DX].exact, a[DWEIGHT].exact, a[DBIAS].exact, a[DY].exact,
                                           a[X].exact, a[MEAN].exact, a[RSTD].exact, a[WEIGHT].exact, s);
    array_check(what, &a[DX], t->unit, steep * 40 * unit * centre);
    array_check(what, &a[DWEIGHT], unit, unit * (items * items + 10) * 4 * centre);
    array_check(what, &a[DBIAS], unit, unit * (items * items + 10));
    /* what is NULL is left out, and dx may be dy */
    t->table->groupnorm_forward(t->kernels, a[Y].data, a[MEAN].data, a[RSTD].data, a[X].data, a[WEIGHT].data, NULL, s);
    t->reference_table->groupnorm_forward(t->reference, a[Y].exact, a[MEAN].exact, a[RSTD].exact, a[X].exact,
                                          a[WEIGHT].exact, NULL, s);
    array_check(what, &a[Y], t->unit, steep * 40 * unit * centre);
    memcpy(a[Y].data, a[DX].data, a[DX].n * dtype_size(t->type));
    t->table->groupnorm_backward(t->kernels, a[DY].data, NULL, NULL, a[DY].data, a[X].data, a[MEAN].data, a[RSTD].data,
                                 a[WEIGHT].data, s);
    assert_memory_equal(a[DY].data, a[Y].data, a[Y].n * dtype_size(t->type));
    arrays_free(a, ARRAYS);
}

static void groupnorm_shapes(struct instance *t)
{
    static const struct norm_shape shapes[] = {{3, 1, 8, 2},    {2, 9, 12, 3},   {5, 4, 1, 1},   {2, 1, 1200, 2},
                                               {0, 1, 4, 2},    {1, 700, 16, 2}, {2, 33, 48, 4}, {3, 50, 64, 1},
                                               {1, 3, 4096, 2}, {600, 2, 8, 8},  {2, 9, 520, 13}};
    for (size_t i = 0; i < COUNT(shapes); i++) groupnorm_case(t, shapes[i], 1);
    groupnorm_case(t, shapes[5], 2048); /* whose squares would leave nothing of the variance */
}

static void groupnorm_agrees(void **state)
{
    (void)state;
    for_each_instance(groupnorm_shapes);
}

/* [2][channels] */
static void sums_check(const char *what, const double *got, const double *want, size_t channels, double allowed)
{
    for (size_t i = 0; i < 2 * channels; i++)
        if (!(fabs(got[i] - want[i]) <= allowed * (1 + fabs(want[i]))))
            fail_msg("%s: sum %zu is %.17g, not %.17g", what, i, got[i], want[i]);
}

/* A set that joins nothing, itself, and a set of none. */
static void settle_case(struct instance *t, const char *what, struct array *mean, struct array *rstd,
                        const double *moments, double count, size_t channels)
{
    double *all[2] = {calloc(2 * channels, sizeof(double)), calloc(2 * channels, sizeof(double))};
    double *other = malloc(2 * channels * sizeof *other);
    for (size_t i = 0; i < 2 * channels; i++) other[i] = i < channels ? moments[i] + 3 : 2 * moments[i];
    for (int set = 0; set < 3; set++) {
        const double before[] = {0, count, count + 5}, counts[] = {count, 5, 0};
        const double *of = set == 1 ? other : moments;
        t->table->batchnorm_settle(t->kernels, mean->data, rstd->data, all[0], before[set], of, counts[set], channels);
        t->reference_table->batchnorm_settle(t->reference, mean->exact, rstd->exact, all[1], before[set], of,
                                             counts[set], channels);
        array_check(what, mean, t->wide_unit, 0);
        array_check(what, rstd, 4 * t->wide_unit, 0);
        sums_check(what, all[0], all[1], channels, 1e-12);
    }
    t->table->batchnorm_settle(t->kernels, mean->data, rstd->data, all[0], 0, moments, count, channels);
    for (size_t c = 0; c < channels; c++) {
        mean->exact[c] = element_get(t->wide, mean->data, c);
        rstd->exact[c] = element_get(t->wide, rstd->data, c);
    }
    free(all[0]), free(all[1]), free(other);
}

static void batchnorm_case(struct instance *t, struct norm_shape s, bool masked, double centre)
{
    struct array a[ARRAYS];
    char what[200];
    const double unit = t->wide_unit, items = (double)(s.rows * s.positions);
    double *row_weight = calloc(s.rows + 1, sizeof *row_weight), *sums[2];
    double there = 0;
    for (size_t i = 0; i < 2; i++) sums[i] = calloc(2 * s.channels, sizeof **sums);
    for (size_t row = 0; row < s.rows; row++) there += row_weight[row] = masked && row % 3 == 1 ? 0 : 0.5;
    const double count = 2 * there * (double)s.positions, *weight = masked ? row_weight : NULL;
    open_arrays(t, a, s, s.channels, centre);
    for (size_t i = 0; i < a[X].n; i++) /* whatever stands in rows that are not there */
        if (row_weight[i / s.positions / s.channels] == 0)
            array_set(&a[X], i, (double)NAN), array_set(&a[DY], i, (double)NAN);
    DESCRIBE(what, t, "batchnorm %zu×%zu×%zu masked %d about %g", s.rows, s.positions, s.channels, masked, centre);
    t->table->batchnorm_moments(t->kernels, sums[0], a[X].data, weight, s);
    t->reference_table->batchnorm_moments(t->reference, sums[1], a[X].exact, weight, s);
    sums_check(what, sums[0], sums[1], s.channels, 1e-13 * (items + 1));
    settle_case(t, what, &a[MEAN], &a[RSTD], sums[1], count, s.channels);
    t->table->batchnorm_forward(t->kernels, a[Y].data, a[X].data, a[MEAN].data, a[RSTD].data, a[WEIGHT].data,
                                a[BIAS].data, s);
    t->reference_table->batchnorm_forward(t->reference, a[Y].exact, a[X].exact, a[MEAN].exact, a[RSTD].exact,
                                          a[WEIGHT].exact, a[BIAS].exact, s);
    array_check(what, &a[Y], t->unit, 2000 * unit * centre);
    t->table->batchnorm_sums(t->kernels, sums[0], a[DWEIGHT].data, a[DBIAS].data, a[DY].data, a[X].data, a[MEAN].data,
                             a[RSTD].data, weight, s);
    t->reference_table->batchnorm_sums(t->reference, sums[1], a[DWEIGHT].exact, a[DBIAS].exact, a[DY].exact, a[X].exact,
                                       a[MEAN].exact, a[RSTD].exact, weight, s);
    sums_check(what, sums[0], sums[1], s.channels, 400 * unit * (items + 1) * centre);
    array_check(what, &a[DWEIGHT], unit, 400 * unit * (items + 1) * centre);
    array_check(what, &a[DBIAS], unit, 400 * unit * (items + 1));
    for (int given = 0; given < 2; given++) {
        t->table->batchnorm_backward(t->kernels, a[DX].data, a[DY].data, a[X].data, a[MEAN].data, a[RSTD].data,
                                     a[WEIGHT].data, given ? sums[1] : NULL, count, weight, s);
        t->reference_table->batchnorm_backward(t->reference, a[DX].exact, a[DY].exact, a[X].exact, a[MEAN].exact,
                                               a[RSTD].exact, a[WEIGHT].exact, given ? sums[1] : NULL, count, weight,
                                               s);
        array_check(what, &a[DX], 2 * t->unit, 100000 * unit * centre);
    }
    memcpy(a[Y].data, a[DX].data, a[DX].n * dtype_size(t->type)); /* dx may be dy */
    t->table->batchnorm_backward(t->kernels, a[DY].data, a[DY].data, a[X].data, a[MEAN].data, a[RSTD].data,
                                 a[WEIGHT].data, sums[1], count, weight, s);
    assert_memory_equal(a[DY].data, a[Y].data, a[Y].n * dtype_size(t->type));
    arrays_free(a, ARRAYS);
    free(row_weight), free(sums[0]), free(sums[1]);
}

static void batchnorm_shapes(struct instance *t)
{
    static const struct norm_shape shapes[] = {{4, 1, 5, 1},    {7, 6, 3, 1},    {3, 2, 1100, 1}, {2, 1, 1, 1},
                                               {40, 30, 24, 1}, {300, 1, 65, 1}, {1, 900, 8, 1},  {0, 1, 4, 1}};
    for (int masked = 0; masked < 2; masked++) {
        for (size_t i = 0; i < COUNT(shapes); i++) batchnorm_case(t, shapes[i], masked, 1);
        batchnorm_case(t, shapes[4], masked, 2048); /* whose squares would leave nothing of the variance */
    }
}

static void batchnorm_agrees(void **state)
{
    (void)state;
    for_each_instance(batchnorm_shapes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groupnorm_agrees),
        cmocka_unit_test(batchnorm_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
