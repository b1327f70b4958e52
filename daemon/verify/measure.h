/*
 * How far two vectors are apart, pure. `b` is always the one that is held to be right. Sums are fp64, in the order of
 * the elements. An element that is not finite makes every figure fail: error infinite, ratio and cosine NaN.
 */
#ifndef GACC_MEASURE_H
#define GACC_MEASURE_H

#include <stdbool.h>
#include <stddef.h>

struct comparison {
    double error;  /* ‖a − b‖ / ‖b‖; 0 when both are zero, infinite when only b is */
    double ratio;  /* ‖a‖ / ‖b‖; 1 when both are zero */
    double cosine; /* a·b / (‖a‖·‖b‖); 1 when both are zero, 0 when one is */
};
struct comparison measure_compare(const double *a, const double *b, size_t count);

/* ‖a − b‖; b NULL: ‖a‖. */
double measure_distance(const double *a, const double *b, size_t count);

/* What numpy and torch call allclose: |a − b| ≤ absolute + relative·|b|, element by element. Elements that are nothing
 * but noise are left out, unless all that is known of them is 0: those of whose `signal` and `other` none is above
 * `noise` in magnitude, and those whose signal is off from `exact` by half of itself or more. signal NULL: none are;
 * other NULL: there is one signal; exact NULL: nobody knows. */
struct tolerance {
    double absolute, relative;
    const double *signal, *other, *exact; /* [count], or NULL */
    double noise;
};
struct closeness {
    double worst;   /* the largest |a − b| / (absolute + relative·|b|): all are within at ≤ 1 */
    double outside; /* the share of elements that are not within, 0 … 1; 0 of no element */
    size_t left_out;
};
struct closeness measure_closeness(const double *a, const double *b, size_t count, const struct tolerance *tolerance);

/* How many of them need more than so many binary digits. */
size_t measure_longer(const double *a, size_t count, int digits);

/* The median of |a − b| / max(|b|, least), least > 0: zeros in b do not divide by zero, and two zeros differ by 0. Of
 * an even number of elements the lower of the two in the middle, as torch has it. NaN of no element or without memory.
 */
double measure_median_relative(const double *a, const double *b, size_t count, double least);

#endif
