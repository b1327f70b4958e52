#include "daemon/verify/report.h"

#include <inttypes.h>
#include <math.h>

#define NAME_WIDTH 40

/* ---- people ---- */

void report_head(const struct suite *suite, FILE *to)
{
    const struct variant split = variant_split(suite, GACC__V1__COMPUTE__COMPUTE_FP32, 1);
    const uint32_t m = variant_micro_batches(&split), last = split.sequences - (m - 1) * split.micro;
    fprintf(to, "probe: %" PRIu32 " sequences in %" PRIu32 " micro-batches of %" PRIu32, split.sequences, m,
            split.micro);
    if (last < split.micro) fprintf(to, ", the last of %" PRIu32, last);
    fprintf(to, "\n\n%-*s %10s %10s %10s %9s %9s\n", NAME_WIDTH, "check", "measured", "floor", "allowed", "ratio",
            "1-cosine");
}

/* Numbers that a check does not have are left blank. */
static void print_number(double number, int width, int digits, FILE *to)
{
    if (isnan(number))
        fprintf(to, " %*s", width, "");
    else
        fprintf(to, " %*.*g", width, digits, number);
}

void report_check(const struct check *check, FILE *to)
{
    if (check->skipped) {
        fprintf(to, "%-*s skipped: %s\n", NAME_WIDTH, check->name, check->note);
        fflush(to);
        return;
    }
    fprintf(to, "%-*s", NAME_WIDTH, check->name);
    print_number(check->measured, 10, 3, to);
    print_number(check->floor, 10, 3, to);
    print_number(check->allowed, 10, 3, to);
    print_number(check->ratio, 9, 6, to);
    print_number(isnan(check->cosine) ? check->cosine : fmax(1 - check->cosine, 0), 9, 2, to);
    fprintf(to, "  %s\n", check->pass ? "pass" : "FAIL");
    if (!check->pass && check->note[0]) fprintf(to, "    %s\n", check->note);
    fflush(to);
}

void report_controls_head(FILE *to)
{
    fprintf(to, "\n%-*s caught by\n", NAME_WIDTH, "planted fault");
}

void report_planted(const struct planted *planted, FILE *to)
{
    fprintf(to, "%-*s ", NAME_WIDTH, planted->fault);
    if (planted->skipped)
        fprintf(to, "skipped: %s\n", planted->note);
    else
        fprintf(to, "%s\n", planted->pass ? planted->caught_by : "NOT CAUGHT");
    fflush(to);
}

struct tally {
    size_t passed, failed, skipped;
};

static void count(struct tally *tally, bool pass, bool skipped)
{
    if (skipped)
        tally->skipped++;
    else if (pass)
        tally->passed++;
    else
        tally->failed++;
}

/* The stage that comes first in the order of the search. */
static void print_advice(const struct verification *verification, FILE *to)
{
    enum check_stage first = CHECK_STAGES;
    for (size_t i = 0; i < verification->check_count; i++) {
        const struct check *check = &verification->checks[i];
        if (!check->pass && !check->skipped && check->stage < first) first = check->stage;
    }
    if (first < CHECK_STAGES) fprintf(to, "look first at %s: %s\n", stage_name(first), stage_advice(first));
}

void report_end(const struct verification *verification, const char *receipt, FILE *to)
{
    struct tally checks = {0}, controls = {0};
    for (size_t i = 0; i < verification->check_count; i++)
        count(&checks, verification->checks[i].pass, verification->checks[i].skipped);
    for (size_t i = 0; i < verification->control_count; i++)
        count(&controls, verification->controls[i].pass, verification->controls[i].skipped);
    fputc('\n', to);
    print_advice(verification, to);
    fprintf(to, "%s: %zu checks passed, %zu failed, %zu skipped; %zu faults caught, %zu not, %zu skipped",
            verification->pass ? "verified" : "NOT VERIFIED", checks.passed, checks.failed, checks.skipped,
            controls.passed, controls.failed, controls.skipped);
    if (receipt) fprintf(to, "; receipt: %s", receipt);
    fputc('\n', to);
}

/* ---- programs ---- */

static void write_check(struct json_writer *json, const struct check *check)
{
    json_write_object(json, NULL);
    json_write_string(json, "name", check->name);
    json_write_double(json, "measured", check->measured);
    json_write_double(json, "allowed", check->allowed);
    json_write_bool(json, "pass", check->pass || check->skipped);
    json_write_bool(json, "skipped", check->skipped);
    json_write_double(json, "floor", check->floor);
    json_write_double(json, "ratio", check->ratio);
    json_write_double(json, "cosine", check->cosine);
    json_write_string(json, "stage", stage_name(check->stage));
    json_write_string(json, "note", check->note);
    json_write_object_end(json);
}

static void write_planted(struct json_writer *json, const struct planted *planted)
{
    json_write_object(json, NULL);
    json_write_string(json, "fault", planted->fault);
    json_write_string(json, "caught_by", planted->caught_by);
    json_write_bool(json, "pass", planted->pass || planted->skipped);
    json_write_bool(json, "skipped", planted->skipped);
    json_write_string(json, "note", planted->note);
    json_write_object_end(json);
}

void report_members(struct json_writer *json, const struct verification *verification)
{
    json_write_array(json, "checks");
    for (size_t i = 0; i < verification->check_count; i++) write_check(json, &verification->checks[i]);
    json_write_array_end(json);
    json_write_array(json, "negative_controls");
    for (size_t i = 0; i < verification->control_count; i++) write_planted(json, &verification->controls[i]);
    json_write_array_end(json);
    json_write_bool(json, "pass", verification->pass);
}
