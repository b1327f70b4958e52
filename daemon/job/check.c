#include "daemon/job/check.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct check_options {
    const char *file;
    uint32_t ranks; /* 0: not said */
    struct job_overrides overrides;
    const char **sets; /* overrides.sets, for filling */
};

static int read_ranks(const char *text, uint32_t *ranks, struct error *error)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long value = digits > 0 && digits < 10 && !text[digits] ? strtoul(text, NULL, 10) : 0;
    if (value == 0) return error_set(error, STATUS_USAGE, "-n %s: wants a number of ranks, from 1", text);
    *ranks = (uint32_t)value;
    return 0;
}

/* The value of an option "NAME VALUE" or "NAME=VALUE" at argv[*at], *at moved to its last word; NULL when it is
 * another. */
static const char *option_value(int argc, char **argv, int *at, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(argv[*at], name, length) != 0) return NULL;
    if (argv[*at][length] == '=') return argv[*at] + length + 1;
    return argv[*at][length] == '\0' && *at + 1 < argc ? argv[++*at] : NULL;
}

static int read_options(int argc, char **argv, struct check_options *options, struct error *error)
{
    for (int i = 1; i < argc; i++) {
        const char *value;
        int status = 0;
        if ((value = option_value(argc, argv, &i, "-n")))
            status = read_ranks(value, &options->ranks, error);
        else if ((value = option_value(argc, argv, &i, "--set")))
            options->sets[options->overrides.set_count++] = value;
        else if ((value = option_value(argc, argv, &i, "--output")))
            options->overrides.output = value;
        else if (argv[i][0] == '-' && argv[i][1])
            status = error_set(error, STATUS_USAGE, "check: %s: no such option, or it wants a value", argv[i]);
        else if (options->file)
            status =
                error_set(error, STATUS_USAGE, "check: %s: there is one job file already, %s", argv[i], options->file);
        else
            options->file = argv[i];
        if (status) return status;
    }
    if (!options->file) return error_set(error, STATUS_USAGE, "check: wants a job file: gaccd check JOB.yaml [-n N]");
    return 0;
}

static int check(const struct check_options *options, FILE *out, FILE *notices, struct error *error)
{
    Gacc__V1__JobSpec *job;
    int status = job_load(&job, options->file, &options->overrides, notices, error);
    if (status) return status;
    if (options->ranks) status = job_check_ranks(job, options->ranks, error);
    if (status) error_prefix(error, "%s", options->file);
    if (!status && job_print(job, options->ranks, out) != 0)
        status = error_set_errno(error, STATUS_IO, errno, "standard output");
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return status;
}

int job_check_command(int argc, char **argv, FILE *out, FILE *notices, struct error *error)
{
    struct check_options options = {.file = NULL};
    options.sets = calloc((size_t)argc + 1, sizeof *options.sets);
    if (!options.sets) return error_set(error, STATUS_INTERNAL, "out of memory");
    options.overrides.sets = options.sets;
    int status = read_options(argc, argv, &options, error);
    if (!status) status = check(&options, out, notices, error);
    free((void *)options.sets);
    return status;
}
