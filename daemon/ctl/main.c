/* gaccctl: asks a running job, and watches it. */
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/command_line.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/outcome.h"
#include "daemon/ctl/show.h"
#include "daemon/ctl/target.h"
#include "daemon/slip.h"

struct options {
    struct target_words target;
    unsigned long long from;
    bool json;
};

/* ---- the subcommands ---- */

struct printing {
    const struct options *options;
    int failed;
    unsigned long long rows;
};

static void on_status(void *context, const uint8_t *bytes, size_t length)
{
    struct printing *printing = context;
    Gacc__V1__Status *status = gacc__v1__status__unpack(NULL, length, bytes);
    if (!status) {
        printing->failed = 1;
        return;
    }
    (printing->options->json ? show_status_json : show_status)(status);
    gacc__v1__status__free_unpacked(status, NULL);
}

static int get_status(const struct target *target, const struct options *options, struct error *error)
{
    struct printing printing = {.options = options};
    const Gacc__V1__GetStatusRequest request = GACC__V1__GET_STATUS_REQUEST__INIT;
    struct client_call call = {.path = "/gacc.v1.Control/GetStatus", .message = on_status, .context = &printing};
    int status = client_call(target, &call, &request.base, CLIENT_SECONDS, error);
    if (!status && printing.failed)
        status = error_set(error, STATUS_UNAVAILABLE, "%s: no Status was answered", target->endpoint);
    return status;
}

static void on_record(void *context, const uint8_t *bytes, size_t length)
{
    struct printing *printing = context;
    Gacc__V1__StepRecord *record = gacc__v1__step_record__unpack(NULL, length, bytes);
    if (!record) return;
    if (printing->options->json)
        puts(record->json);
    else
        show_record(record, printing->rows++ % 40 == 0);
    fflush(stdout);
    gacc__v1__step_record__free_unpacked(record, NULL);
}

static int watch(const struct target *target, const struct options *options, struct error *error)
{
    struct printing printing = {.options = options};
    Gacc__V1__WatchStepsRequest request = GACC__V1__WATCH_STEPS_REQUEST__INIT;
    request.from_step = options->from;
    struct client_call call = {.path = "/gacc.v1.Control/WatchSteps", .message = on_record, .context = &printing};
    return client_call(target, &call, &request.base, 0, error);
}

static const struct subcommand {
    const char *name;
    int (*act)(const struct target *, const struct options *, struct error *); /* NULL: not offered by this version */
    const char *help;
} subcommands[] = {
    {"status", get_status, "where the job stands, and each rank"},
    {"watch", watch, "each step and evaluation as it is made, until the job ends; --from STEP begins earlier"},
    {"top", NULL, NULL},
    {"pause", NULL, NULL},
    {"resume", NULL, NULL},
    {"checkpoint", NULL, NULL},
    {"stop", NULL, NULL},
    {"set", NULL, NULL},
    {"config", NULL, NULL},
    {"health", NULL, NULL},
};
#define SUBCOMMANDS (sizeof subcommands / sizeof *subcommands)

static void help(FILE *to)
{
    fputs("gaccctl [--run DIR | --connect ADDRESS] COMMAND [--json]\n\n", to);
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        if (subcommands[i].act) fprintf(to, "  %-8s %s\n", subcommands[i].name, subcommands[i].help);
    fputs("\n  --run DIR          the run directory; without it, the newest below runs/\n"
          "  --connect ADDRESS  unix:PATH or HOST:PORT\n"
          "  --token-file PATH  for HOST:PORT: holds the job's token, or is its connection.json\n"
          "  --json             for programs; an error is {\"error\": …} there, and nothing on stderr\n",
          to);
}

/* ---- the command line ---- */

static const struct option long_options[] = {
    {"run", required_argument, NULL, 'r'},
    {"connect", required_argument, NULL, 'c'},
    {"token-file", required_argument, NULL, 't'},
    {"from", required_argument, NULL, 'f'},
    {"json", no_argument, NULL, 'j'},
    {"help", no_argument, NULL, 'h'},
    {"version", no_argument, NULL, 'v'},
    {NULL, 0, NULL, 0},
};

static int fail(const struct error *error, bool json)
{
    if (json)
        outcome_print_json(error);
    else
        fprintf(stderr, "gaccctl: %s\n", error->text);
    return (int)error->status;
}

static const struct subcommand *find(int count, char **words, struct error *error)
{
    const char *name = count ? words[0] : "";
    for (size_t i = 0; i < SUBCOMMANDS; i++) {
        if (strcmp(subcommands[i].name, name)) continue;
        if (!subcommands[i].act)
            error_set(error, STATUS_USAGE, "%s is not offered by this version", name);
        else if (count > 1)
            error_set(error, STATUS_USAGE, "%s: one word too many: %s", name, words[1]);
        else
            return &subcommands[i];
        return NULL;
    }
    struct nearest nearest = {.wrong = name};
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        if (subcommands[i].act) nearest_try(&nearest, subcommands[i].name);
    if (!count)
        error_set(error, STATUS_USAGE, "a command is wanted (gaccctl --help)");
    else if (nearest.word)
        error_set(error, STATUS_USAGE, "%s: no such command; did you mean %s? (gaccctl --help)", name, nearest.word);
    else
        error_set(error, STATUS_USAGE, "%s: no such command (gaccctl --help)", name);
    return NULL;
}

int main(int count, char **words)
{
    struct options options = {0};
    struct target target;
    struct error error;
    char *end;
    opterr = 0;
    for (int i = 1; i < count; i++) options.json |= !strcmp(words[i], "--json"); /* for what is wrong before it, too */
    for (int option; (option = getopt_long(count, words, ":h", long_options, NULL)) != -1;) {
        switch (option) {
        case 'r':
            options.target.run = optarg;
            break;
        case 'c':
            options.target.connect = optarg;
            break;
        case 't':
            options.target.token_file = optarg;
            break;
        case 'j':
            options.json = true;
            break;
        case 'f':
            options.from = strtoull(optarg, &end, 10);
            if (*end || optarg[0] < '1' || optarg[0] > '9') {
                error_set(&error, STATUS_USAGE, "--from %s: a step from 1 on is wanted", optarg);
                return fail(&error, options.json);
            }
            break;
        case 'h':
            help(stdout);
            return fflush(stdout) ? STATUS_IO : 0;
        case 'v':
            puts("gaccctl " GACC_VERSION);
            return fflush(stdout) ? STATUS_IO : 0;
        default:
            option_fault(option, words, long_options, &error);
            return fail(&error, options.json);
        }
    }
    const struct subcommand *subcommand = find(count - optind, words + optind, &error);
    if (!subcommand || target_find(&target, &options.target, &error) || subcommand->act(&target, &options, &error))
        return fail(&error, options.json);
    return 0;
}
