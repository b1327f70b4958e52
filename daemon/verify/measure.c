#include "daemon/verify/measure.h"

#include <math.h>
#include <stdlib.h>

struct comparison measure_compare(const double *a, const double *b, size_t count)
{
    double aa = 0, bb = 0, ab = 0, apart = 0;
    for (size_t i = 0; i < count; i++) {
        aa += a[i] * a[i];
        bb += b[i] * b[i];
        ab += a[i] * b[i];
        apart += (a[i] - b[i]) * (a[i] - b[i]);
    }
    if (!isfinite(aa) || !isfinite(bb)) return (struct comparison){(double)INFINITY, (double)NAN, (double)NAN};
    if (aa == 0 && bb == 0) return (struct comparison){0, 1, 1};
    return (struct comparison){
        .error = bb == 0 ? HUGE_VAL : sqrt(apart / bb),
        .ratio = bb == 0 ? HUGE_VAL : sqrt(aa / bb),
        .cosine = aa == 0 || bb == 0 ? 0 : ab / (sqrt(aa) * sqrt(bb)),
    };
}

double measure_distance(const double *a, const double *b, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double apart = b ? a[i] - b[i] : a[i];
        sum += apart * apart;
    }
    return sqrt(sum);
}

static bool is_noise(const struct tolerance *tolerance, size_t i)
{
    const double signal = tolerance->signal[i], other = tolerance->other ? tolerance->other[i] : signal;
    if (fabs(signal) <= tolerance->noise && fabs(other) <= tolerance->noise) return signal != 0 || other != 0;
    if (!tolerance->exact || (signal == 0 && tolerance->exact[i] == 0)) return false;
    return fabs(signal - tolerance->exact[i]) >= fabs(signal) / 2;
}

struct closeness measure_closeness(const double *a, const double *b, size_t count, const struct tolerance *tolerance)
{
    struct closeness closeness = {0};
    size_t outside = 0;
    for (size_t i = 0; i < count; i++) {
        if (tolerance->signal && is_noise(tolerance, i)) {
            closeness.left_out++;
            continue;
        }
        double share = fabs(a[i] - b[i]) / (tolerance->absolute + tolerance->relative * fabs(b[i]));
        if (!(share <= 1)) outside++; /* NaN, too */
        if (!(share <= closeness.worst)) closeness.worst = isnan(share) ? HUGE_VAL : share;
    }
    if (count > closeness.left_out) closeness.outside = (double)outside / (double)(count - closeness.left_out);
    return closeness;
}

size_t measure_longer(const double *a, size_t count, int digits)
{
    size_t longer = 0;
    int exponent;
    for (size_t i = 0; i < count; i++) {
        const double shifted = ldexp(frexp(a[i], &exponent), digits);
        longer += shifted < trunc(shifted) || shifted > trunc(shifted);
    }
    return longer;
}

static int ascending(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double measure_median_relative(const double *a, const double *b, size_t count, double least)
{
    double *apart = count ? malloc(count * sizeof *apart) : NULL;
    if (!apart) return (double)NAN;
    for (size_t i = 0; i < count; i++) {
        apart[i] = fabs(a[i] - b[i]) / fmax(fabs(b[i]), least);
        if (isnan(apart[i])) apart[i] = (double)INFINITY; /* sorted to the end */
    }
    qsort(apart, count, sizeof *apart, ascending);
    double median = apart[(count - 1) / 2];
    free(apart);
    return median;
}
