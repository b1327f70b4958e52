/* gaccd: the command line. Subcommands and options are one table; what they do stands elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/checkpoint/inspect.h"
#include "daemon/command_line.h"
#include "daemon/job/job.h"
#include "daemon/launch.h"
#include "daemon/manual.h"
#include "daemon/place.h"
#include "daemon/planning.h"
#include "daemon/verification.h"
#include "worker/data/data.h"
#include "worker/memory.h"
#include "worker/session.h"

#define SETS_MAX 256

struct arguments {
    const char *sets[SETS_MAX];
    size_t set_count;
    const char *output, *resume, *device;
    long ranks;     /* -n; 0: not given */
    long sequences; /* 0: not given */
    const char *memory;
    bool probe, json, help, version;
    char **paths;
    int path_count;
};

static bool is_silent; /* only rank 0 talks about the command line, which is everyone's */

__attribute__((format(printf, 2, 3))) static int refuse(enum status status, const char *format, ...)
{
    struct error error;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error.text, sizeof error.text, format, arguments);
    va_end(arguments);
    if (!is_silent) fprintf(stderr, "gaccd: %s\n", error.text);
    return (int)status;
}

static int flush_output(void)
{
    if (!fflush(stdout) && !ferror(stdout)) return 0;
    return refuse(STATUS_IO, "standard output: %s", strerror(errno));
}

/* ---- the subcommands ---- */

static int take_device(const char *text, enum device_wanted *device)
{
    static const char *const names[] = {[DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *device = (enum device_wanted)i;
        if (!text || !strcmp(text, names[i])) return 0;
    }
    return refuse(STATUS_USAGE, "--device %s: auto, cpu or cuda is wanted", text);
}

static int command_run(const struct arguments *arguments)
{
    enum device_wanted device;
    int status = take_device(arguments->device, &device);
    if (status) return status;
    const struct launch_options options = {
        .job_path = arguments->paths[0],
        .overrides = {arguments->sets, arguments->set_count, arguments->output, 0},
        .resume = arguments->resume,
        .device = device,
    };
    return launch_run(&options);
}

/* As comments, like the head of the job. */
static void print_memory(const struct session_memory *memory, uint32_t ranks)
{
    struct memory_row rows[MEMORY_ROWS];
    const uint64_t all = memory_rows(memory, ranks ? ranks : 1, rows);
    printf("\n# Memory of a rank, of %u:\n", ranks ? ranks : 1);
    for (size_t i = 0; i < MEMORY_ROWS; i++) printf("#   %10s %s\n", memory_text(rows[i].bytes).text, rows[i].what);
    printf("#   %10s in all\n", memory_text(all).text);
}

/* Whose tensors they are. What is frozen without a pattern is so because it has adapters. */
static void print_group_name(const Gacc__V1__TensorGroup *group)
{
    if (*group->optimizer) printf("%s: ", group->optimizer);
    if (*group->match)
        printf("%s", group->match);
    else
        printf("%s", group->frozen ? "the base of model.lora" : "no pattern");
    if (group->frozen_until) printf(", frozen for %" PRIu64 " steps", group->frozen_until);
    if (group->frozen_from) printf(", frozen from step %" PRIu64 " on", group->frozen_from);
    putchar('\n');
}

static void print_groups(const Gacc__V1__JobSpec *job, Gacc__V1__TensorGroup *const *groups, size_t count)
{
    printf("\n# Groups of tensors:\n#   %8s %12s %10s %10s  %s\n", "tensors", "parameters", "lr", "decay", "of");
    for (size_t i = 0; i < count; i++) {
        const Gacc__V1__TensorGroup *group = groups[i];
        printf("#   %8" PRIu64 " %12" PRIu64, group->tensors, group->parameters);
        if (group->frozen)
            printf(" %10s %10s  ", "frozen", "");
        else
            printf(" %10.4g %10.4g  ", job->optimizer->lr * group->lr_ratio, group->weight_decay);
        print_group_name(group);
    }
}

static int command_check(const struct arguments *arguments)
{
    struct error error;
    Gacc__V1__JobSpec *job = NULL;
    const struct job_overrides overrides = {arguments->sets, arguments->set_count, arguments->output,
                                            (uint32_t)arguments->ranks};
    struct session_memory memory;
    Gacc__V1__TensorGroup **groups = NULL;
    size_t count;
    int status = job_load(&job, arguments->paths[0], &overrides, stderr, &error);
    if (!status) status = session_memory_of(job, overrides.ranks ? overrides.ranks : 1, &memory, &error);
    if (!status) status = session_groups_of(job, &groups, &count, &error);
    if (!status) {
        job_print(job, overrides.ranks, stdout);
        print_memory(&memory, overrides.ranks);
        print_groups(job, groups, count);
    }
    free((void *)groups);
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return status ? refuse(error.status, "%s", error.text) : flush_output();
}

static int command_plan(const struct arguments *arguments)
{
    const struct planning_options options = {
        .job_path = arguments->paths[0],
        .overrides = {arguments->sets, arguments->set_count, arguments->output,
                      arguments->ranks ? (uint32_t)arguments->ranks : 1},
        .memory = arguments->memory,
        .probe = arguments->probe,
        .json = arguments->json,
    };
    return planning_run(&options);
}

static int command_verify(const struct arguments *arguments)
{
    enum device_wanted device;
    int status = take_device(arguments->device, &device);
    if (status) return status;
    const struct verification_options options = {
        .job_path = arguments->paths[0],
        .overrides = {arguments->sets, arguments->set_count, arguments->output, 0},
        .sequences = (uint64_t)arguments->sequences,
        .json = arguments->json,
        .device = device,
    };
    return verification_run(&options);
}

static int command_inspect(const struct arguments *arguments)
{
    struct error error;
    const char *path = arguments->paths[0];
    struct stat facts;
    const bool is_directory = !stat(path, &facts) && S_ISDIR(facts.st_mode);
    int status = is_directory ? checkpoint_inspect(path, arguments->json, stdout, &error)
                              : data_inspect(path, arguments->json, stdout, &error);
    return status ? refuse(error.status, "%s", error.text) : flush_output();
}

static int command_help(const struct arguments *arguments);

/* ---- the table of subcommands and options ---- */

#define OPTION_SET                                                                             \
    {                                                                                          \
        "set", 's', false, "key.path=value", NULL, "override the job file; may be given again" \
    }
#define OPTION_OUTPUT                                                         \
    {                                                                         \
        "output", 'o', false, "DIR", "runs", "the run directory (job.output)" \
    }
#define OPTION_DEVICE                                                                             \
    {                                                                                             \
        "device", 'd', false, "auto|cpu|cuda", "auto|cpu|cuda",                                   \
            "what it runs on; auto, the default, is a GPU where every rank has one, else the CPU" \
    }

static const struct manual_option run_options[] = {
    OPTION_SET,
    OPTION_OUTPUT,
    {"resume", 'r', false, "auto|never|DIR", "runs",
     "go on from the newest checkpoint (auto, the default), begin anew (never), or go on from the checkpoint in DIR"},
    OPTION_DEVICE,
    {0},
};
static const struct manual_option check_options[] = {
    OPTION_SET,
    OPTION_OUTPUT,
    {NULL, 'n', false, "N", NULL, "the number of ranks that it is for"},
    {0},
};
static const struct manual_option plan_options[] = {
    OPTION_SET,
    {NULL, 'n', false, "N", NULL, "the number of ranks that it is for; 1 where it is not given"},
    {"memory", 'm', false, "SIZE", NULL,
     "of a rank, such as 80GiB; else what this machine has free, shared by the ranks"},
    {"probe", 'p', false, NULL, NULL, "measure three proposals here, and take the fastest"},
    {"json", 'j', false, NULL, NULL, "the same as JSON"},
    {0},
};
static const struct manual_option verify_options[] = {
    OPTION_SET,
    OPTION_OUTPUT,
    OPTION_DEVICE,
    {"sequences", 'q', false, "n", NULL, "the size of its batch"},
    {"json", 'j', false, NULL, NULL, "its findings as JSON"},
    {0},
};
static const struct manual_option inspect_options[] = {
    {"json", 'j', false, NULL, NULL, "the same as JSON"},
    {0},
};
static const struct manual_option general_options[] = {
    {"help", 'h', true, NULL, NULL, "more about a command"},
    {"version", 'v', false, NULL, NULL, "the version"},
    {0},
};

static const struct manual_command commands[] = {
    {"run", "JOB.yaml", "file", run_options, command_run, "train; the word may be left out; mpirun -n N for N ranks",
     "    mpirun -n N gaccd JOB.yaml --set optimizer.lr=3e-4\n\n"
     "A job that has finished, run again into the same directory, exits with 0 at once; one that ended in any other "
     "way goes on from "
     "its newest checkpoint. USR1 saves one; TERM, INT, HUP and USR2 save one and end with 75."},
    {"check", "JOB.yaml", "file", check_options, command_check,
     "print the effective job; -n N says what N ranks would do",
     "Every default is filled in; as comments M, K of each rank, tokens a step, the memory of a rank, and what tensors "
     "are "
     "updated by."},
    {"plan", "JOB.yaml", "file", plan_options, command_plan,
     "say what the job takes of memory, and which b, K and recomputation fit",
     "B stays as it is: what does not fit at once is accumulated. Proposed is the largest b without recomputation; "
     "with "
     "--probe whichever is fastest here. Where no b fits, a shorter context is. Exit status 78: nothing fits."},
    {"verify", "JOB.yaml", "file", verify_options, command_verify,
     "compare gradients and steps on the job's own model; 76: wrong",
     "It plants faults, too, and must catch each. A receipt is left in the run directory; the job key verify: required "
     "trains only "
     "with it."},
    {"inspect", "PATH", "file", inspect_options, command_inspect,
     "say what a data file or a checkpoint holds, and whether it is sound",
     "Of data: format, size, the range of ids or numbers, sequences, how often each label is there, and a warning "
     "where "
     "rows are sorted by it."},
    {"help", NULL, NULL, NULL, command_help, "print this", NULL},
    {"bench", NULL, NULL, NULL, NULL, NULL, NULL},
    {0},
};

static const struct manual_section sections[] = {
    {"Job file", "Strict YAML: deploy/docs/job-file.md has every key, with defaults and ranges. deploy/jobs has jobs "
                 "to start from."},
    {"Exit status", "    0   done\n"
                    "    64  command line\n"
                    "    65  bad data\n"
                    "    66  a file is missing\n"
                    "    69  cannot reach or bind\n"
                    "    70  internal, or a rank died\n"
                    "    74  reading or writing failed\n"
                    "    75  checkpoint saved, run it again\n"
                    "    76  numerics\n"
                    "    78  job file\n\n"
                    "mpirun returns the same unless it was itself signalled or a rank died by a signal; result.json is "
                    "authoritative. What "
                    "went wrong is one line on standard error. While a job runs, gaccctl asks and steers it."},
    {"Files", "    DIR/job.yaml          the effective job\n"
              "    DIR/log.jsonl         one JSON object a line: each step, evaluation, checkpoint, event\n"
              "    DIR/connection.json   where gaccctl finds the job, while it runs\n"
              "    DIR/result.json       how it ended\n"
              "    DIR/checkpoints       `latest` names the newest\n"
              "    DIR/final             the weights of a job that is done"},
    {0},
};

static const struct manual manual = {
    .program = "gaccd",
    .summary = "trains with gradient accumulation over MPI ranks",
    .usage = "[COMMAND] JOB.yaml [OPTION]…",
    .options = general_options,
    .commands = commands,
    .first_is_meant = true,
    .sections = sections,
};

static int command_help(const struct arguments *arguments)
{
    (void)arguments;
    manual_help(&manual, NULL, stdout);
    return flush_output();
}

/* ---- options ---- */

static int take_option(struct arguments *arguments, int option)
{
    char *end;
    switch (option) {
    case 's':
        if (arguments->set_count == SETS_MAX) return refuse(STATUS_USAGE, "--set: at most %d", SETS_MAX);
        arguments->sets[arguments->set_count++] = optarg;
        return 0;
    case 'o':
        arguments->output = optarg;
        return 0;
    case 'r':
        arguments->resume = optarg;
        return 0;
    case 'd':
        arguments->device = optarg;
        return 0;
    case 'j':
        arguments->json = true;
        return 0;
    case 'h':
        arguments->help = true;
        return 0;
    case 'v':
        arguments->version = true;
        return 0;
    case 'm':
        arguments->memory = optarg;
        return 0;
    case 'p':
        arguments->probe = true;
        return 0;
    case 'q':
        arguments->sequences = strtol(optarg, &end, 10);
        if (*end || arguments->sequences < 1 || arguments->sequences > 1000000)
            return refuse(STATUS_USAGE, "--sequences %s: a number of sequences is wanted", optarg);
        return 0;
    case 'n':
        arguments->ranks = strtol(optarg, &end, 10);
        if (*end || arguments->ranks < 1 || arguments->ranks > 1000000)
            return refuse(STATUS_USAGE, "-n %s: a number of ranks is wanted", optarg);
        return 0;
    }
    return 0;
}

/* Two words and none of them a command: a job file too many, or a command that there is not. */
static int refuse_words(const struct arguments *arguments)
{
    const char *first = arguments->paths[0];
    if (!access(first, F_OK)) return refuse(STATUS_USAGE, "run: one word too many: %s", arguments->paths[1]);
    struct error error;
    manual_no_command(&manual, first, &error);
    if (strchr(error.text, ';')) return refuse(STATUS_USAGE, "%s (gaccd help)", error.text);
    return refuse(STATUS_USAGE, "%s; gaccd run JOB.yaml trains (gaccd help)", error.text);
}

static int parse(const struct manual_command *command, bool is_named, int count, char **words,
                 struct arguments *arguments)
{
    struct manual_getopt getopt;
    manual_getopt(&manual, command, &getopt);
    opterr = 0;
    for (int option; (option = getopt_long(count, words, getopt.letters, getopt.options, NULL)) != -1;) {
        struct error error;
        if (option == '?' || option == ':') {
            option_fault(option, words, getopt.options, &error);
            return refuse(STATUS_USAGE, "%s (gaccd help)", error.text);
        }
        int status = take_option(arguments, option);
        if (status) return status;
    }
    if (arguments->help || arguments->version) return 0;
    arguments->paths = words + optind;
    arguments->path_count = count - optind;
    if (arguments->path_count == (command->operand ? 1 : 0)) return 0;
    if (arguments->path_count == 0)
        return refuse(STATUS_USAGE, "%s: %s is wanted (gaccd help)", command->name, command->operand);
    if (!is_named) return refuse_words(arguments);
    return refuse(STATUS_USAGE, "%s: one word too many: %s", command->name, arguments->paths[command->operand ? 1 : 0]);
}

/* Whatever is opened later must not become 0, 1 or 2: somebody would read or write it as such. */
static void open_standard_streams(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

static int act(int count, char **words)
{
    if (count < 2) return refuse(STATUS_USAGE, "a job file is wanted: gaccd JOB.yaml (gaccd help)");
    if (count == 3 && !strcmp(words[1], "--print") && manual_print(&manual, words[2], stdout)) return flush_output();
    const struct manual_command *command = manual_find(&manual, words[1]);
    const bool is_named = command != NULL;
    const int skipped = is_named ? 1 : 0; /* getopt takes the word before the options for the program's name */
    if (command) words[1] = words[0];
    struct arguments arguments = {0};
    if (command && !command->act) return refuse(STATUS_USAGE, "%s is not offered by this version", command->name);
    if (!command) command = &commands[0];
    int status = parse(command, is_named, count - skipped, words + skipped, &arguments);
    if (status) return status;
    if (arguments.version)
        puts("gaccd " GACC_VERSION);
    else if (arguments.help)
        manual_help(&manual, is_named ? command : NULL, stdout);
    else
        return command->act(&arguments);
    return flush_output();
}

int main(int count, char **words)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* verify's watch of the ranks goes on while the process ends */
    open_standard_streams();
    struct place place;
    struct error error;
    is_silent = !place_find(&place, &error) && place.rank != 0;
    int status = act(count, words);
    if (status && is_silent) launch_stay();
    return status;
}
