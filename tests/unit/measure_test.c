/* Distances between vectors, with numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

#include "daemon/verify/measure.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void assert_near(double value, double wanted, double tolerance)
{
    if (!(fabs(value - wanted) <= tolerance)) fail_msg("%.17g, not %.17g", value, wanted);
}

/* ‖b‖ = 5; a − b = (3, 0); ‖a‖ = √52; a·b = 34. */
static void two_vectors_in_the_plane(void **state)
{
    (void)state;
    const double a[] = {6, 4}, b[] = {3, 4};
    struct comparison found = measure_compare(a, b, 2);
    assert_near(found.error, 0.6, 1e-15);
    assert_near(found.ratio, sqrt(52) / 5, 1e-15);
    assert_near(found.cosine, 34 / (5 * sqrt(52)), 1e-15);
    assert_near(measure_distance(a, b, 2), 3, 0);
    assert_near(measure_distance(b, NULL, 2), 5, 0);
}

static void a_factor_shows_in_the_ratio_and_not_in_the_cosine(void **state)
{
    (void)state;
    const double a[] = {-4, 8, 12}, b[] = {-1, 2, 3};
    struct comparison found = measure_compare(a, b, 3);
    assert_near(found.ratio, 4, 1e-15);
    assert_near(found.cosine, 1, 1e-15);
    assert_near(found.error, 3, 1e-15);
}

static void zeros_are_equal_to_zeros_only(void **state)
{
    (void)state;
    const double zero[] = {0, 0}, one[] = {1, 0};
    struct comparison same = measure_compare(zero, zero, 2), above = measure_compare(one, zero, 2),
                      below = measure_compare(zero, one, 2);
    assert_true(same.error == 0 && same.ratio == 1 && same.cosine == 1);
    assert_true(isinf(above.error) && isinf(above.ratio) && above.cosine == 0);
    assert_true(below.error == 1 && below.ratio == 0 && below.cosine == 0);
}

static void what_is_not_finite_never_passes(void **state)
{
    (void)state;
    const double bad[] = {1, (double)NAN}, worse[] = {1, HUGE_VAL}, fine[] = {1, 1};
    const struct tolerance tolerance = {.absolute = 1, .relative = 1};
    assert_true(isinf(measure_compare(bad, fine, 2).error));
    assert_true(isinf(measure_compare(fine, worse, 2).error));
    assert_true(isnan(measure_compare(bad, bad, 2).ratio));
    assert_true(isinf(measure_closeness(bad, fine, 2, &tolerance).worst));
    assert_near(measure_closeness(bad, fine, 2, &tolerance).outside, 0.5, 0);
    assert_true(isinf(measure_median_relative((double[]){(double)NAN}, (double[]){1}, 1, 1e-6)));
}

/* |a − b| against 0.5 + 0.1·|b|: 0.5 of 1.5, 3 of 1.5, 0 of 0.5, 0.6 of 0.5. */
static void closeness_is_what_allclose_calls_so(void **state)
{
    (void)state;
    const double a[] = {10.5, -13, 0, 0.6}, b[] = {10, -10, 0, 0};
    const struct tolerance tolerance = {.absolute = 0.5, .relative = 0.1};
    struct closeness found = measure_closeness(a, b, COUNT(a), &tolerance);
    assert_near(found.worst, 2, 1e-15);
    assert_near(found.outside, 0.5, 0);
    assert_int_equal(found.left_out, 0);
}

/* Of the four the second and the fourth are noise; a signal of exactly 0 is none. */
static void elements_of_nothing_but_noise_are_left_out(void **state)
{
    (void)state;
    const double a[] = {1, 5, 1, 7}, b[] = {1, 1, 2, 1}, signal[] = {0, 0.01, 1, -0.02};
    const struct tolerance tolerance = {.absolute = 0.1, .signal = signal, .noise = 0.02};
    struct closeness found = measure_closeness(a, b, COUNT(a), &tolerance);
    assert_int_equal(found.left_out, 2);
    assert_near(found.outside, 0.5, 0);
    assert_near(found.worst, 10, 1e-12);
    assert_near(measure_closeness(a, b, 0, &tolerance).outside, 0, 0);
}

/* 0 on one side and noise on the other is noise; noise on one side and more on the other, or no number, is not. */
static void noise_is_where_both_signals_are(void **state)
{
    (void)state;
    const double a[] = {5, 5, 5, 5}, b[] = {1, 1, 1, 1}, signal[] = {0, 0.01, 0.01, 0},
                 other[] = {0.02, 1, (double)NAN, 0};
    const struct tolerance tolerance = {.absolute = 0.1, .signal = signal, .other = other, .noise = 0.02};
    struct closeness found = measure_closeness(a, b, COUNT(a), &tolerance);
    assert_int_equal(found.left_out, 1);
    assert_near(found.outside, 1, 0);
}

/* Signals 3, 1, 2, 0, 0 whose exact ones are 0, 0.4, 1.5, 1e-17, 0: of the first, second and fourth nothing is known.
 */
static void a_signal_of_which_not_half_is_exact_is_noise(void **state)
{
    (void)state;
    const double a[] = {5, 5, 1, 5, 1}, b[] = {1, 1, 1, 1, 1}, signal[] = {3, 1, 2, 0, 0}, other[] = {3, 1, 2, 4, 0},
                 exact[] = {0, 0.4, 1.5, 1e-17, 0};
    const struct tolerance tolerance = {.absolute = 0.1, .signal = signal, .other = other, .exact = exact};
    const struct closeness found = measure_closeness(a, b, COUNT(a), &tolerance);
    assert_int_equal(found.left_out, 3);
    assert_near(found.outside, 0, 0);
}

/* Relative differences 0.1, 0.5, 0 (both zero), 3e6·… of a zero against the least 1e-6: sorted 0, 0.1, 0.5, 2. */
static void the_median_is_of_relative_differences(void **state)
{
    (void)state;
    const double a[] = {11, 1, 0, 2e-6}, b[] = {10, 2, 0, 0};
    assert_near(measure_median_relative(a, b, 3, 1e-6), 0.1, 1e-15);
    assert_near(measure_median_relative(a, b, 4, 1e-6), 0.1, 1e-15); /* the lower of the two in the middle */
    assert_near(measure_median_relative(a + 1, b + 1, 3, 1e-6), 0.5, 1e-15);
    assert_true(isnan(measure_median_relative(a, b, 0, 1e-6)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_vectors_in_the_plane),
        cmocka_unit_test(a_factor_shows_in_the_ratio_and_not_in_the_cosine),
        cmocka_unit_test(zeros_are_equal_to_zeros_only),
        cmocka_unit_test(what_is_not_finite_never_passes),
        cmocka_unit_test(closeness_is_what_allclose_calls_so),
        cmocka_unit_test(elements_of_nothing_but_noise_are_left_out),
        cmocka_unit_test(noise_is_where_both_signals_are),
        cmocka_unit_test(a_signal_of_which_not_half_is_exact_is_noise),
        cmocka_unit_test(the_median_is_of_relative_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
