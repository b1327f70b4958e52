#include "daemon/verify/diagnosis.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A factor that is off by less is the factor: means of unequal micro-batches are not exactly K times too large. */
#define LEAST_TOLERANCE 0.1

/* Appends one explanation; symbol NULL: without a number. */
static void add(char *text, size_t size, const char *words, const char *symbol, double number)
{
    size_t length = strlen(text);
    const char *joint = length ? " or " : "";
    if (symbol)
        snprintf(text + length, size - length, "%s%s (%s = %g)", joint, words, symbol, number);
    else
        snprintf(text + length, size - length, "%s%s", joint, words);
}

static bool is_about(double ratio, double factor, double tolerance)
{
    return fabs(ratio / factor - 1) <= tolerance;
}

const char *diagnosis_of(const struct suspects *suspects, char *text, size_t size)
{
    const double k = suspects->per_rank, n = suspects->ranks, b = suspects->micro, s = suspects->loss_scale,
                 w = suspects->weight;
    const double m = n > 1 ? suspects->micro_batches : 0; /* of one rank alone it is K */
    const struct {
        double factor;
        const char *words, *symbol;
        double number;
    } table[] = {
        {k, "not divided by K", "K", k},
        {1 / k, "divided twice by K", "K", k},
        {m, "not divided by the number of micro-batches", "M", m},
        {1 / m, "divided twice by the number of micro-batches", "M", m},
        {n, "not averaged over ranks", "N", n},
        {1 / n, "averaged twice over ranks", "N", n},
        {s, "update from scaled gradients", "S", s},
        {1 / s, "clipped before unscale, or unscaled twice", "S", s},
        {b, "sum taken for mean", "b", b},
        {1 / b, "divided by b, whose mean it is already", "b", b},
        {w, "sum taken for mean", "W", w},
        {1 / w, "divided twice by the weight", "W", w},
    };
    const double tolerance = fmax(suspects->allowed_ratio, LEAST_TOLERANCE);
    text[0] = '\0';
    if (!isfinite(suspects->ratio)) {
        add(text, size, "a gradient that is not finite", NULL, 0);
        return text;
    }
    if (suspects->ratio == 0) {
        add(text, size, "no gradient at all", NULL, 0);
        return text;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (table[i].number > 0 && !is_about(table[i].factor, 1, tolerance) &&
            is_about(suspects->ratio, table[i].factor, tolerance))
            add(text, size, table[i].words, table[i].symbol, table[i].number);
    const double turned = 1 - suspects->allowed_ratio * suspects->allowed_ratio / 2;
    if (suspects->cosine < turned) add(text, size, "weights of targets differ", "cosine", suspects->cosine);
    return text;
}

static const struct {
    const char *name, *advice;
} stages[CHECK_STAGES] = {
    [CHECK_ACCUMULATION] =
        {"fp32 accumulation",
         "the averaging factor, the weights of targets, the reduction over ranks; the loss scale has "
         "no part in it"},
    [CHECK_BF16] = {"bf16", "what is rounded to the compute type on the way: accumulated gradients and master "
                            "parameters must not be"},
    [CHECK_FP16] = {"fp16 with a loss scale", "the order of unscale, clip and update, and overflows or underflows at "
                                              "this S"},
    [CHECK_SCALING] = {"the loss scale",
                       "where S is multiplied in and divided out: once each, and the S of the window"},
    [CHECK_CLIP] = {"the unit of the clip", "the norm before unscaling divided by the norm after it: it must be S"},
    [CHECK_SKIPS] = {"skipped steps", "what moves on a skip: nothing may but the loss scale, once"},
    [CHECK_OTHER] = {"communication and memory", "how often collectives are called in a window, and what grows with K"},
};

const char *stage_name(enum check_stage stage)
{
    return stages[stage].name;
}

const char *stage_advice(enum check_stage stage)
{
    return stages[stage].advice;
}
