/* gaccd: the command line. Subcommands and options are tables; what they do stands elsewhere. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
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
#include "daemon/place.h"
#include "daemon/slip.h"
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
    bool json;
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
    const struct {
        const char *what;
        uint64_t bytes;
    } rows[] = {
        {"parameters", memory->parameters},
        {"gradients", memory->gradients},
        {"gradient shard and master parameters", memory->shard},
        {"moments of the shard", memory->moments},
        {"activations of a micro-batch", memory->activations},
        {"a micro-batch of data", memory->batch},
    };
    uint64_t all = 0;
    printf("\n# Memory of a rank, of %u:\n", ranks ? ranks : 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        printf("#   %10s %s\n", memory_text(rows[i].bytes).text, rows[i].what);
        all += rows[i].bytes;
    }
    printf("#   %10s in all\n", memory_text(all).text);
}

static int command_check(const struct arguments *arguments)
{
    struct error error;
    Gacc__V1__JobSpec *job = NULL;
    const struct job_overrides overrides = {arguments->sets, arguments->set_count, arguments->output,
                                            (uint32_t)arguments->ranks};
    struct session_memory memory;
    int status = job_load(&job, arguments->paths[0], &overrides, stderr, &error);
    if (!status) status = session_memory_of(job, overrides.ranks ? overrides.ranks : 1, &memory, &error);
    if (!status) {
        job_print(job, overrides.ranks, stdout);
        print_memory(&memory, overrides.ranks);
    }
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return status ? refuse(error.status, "%s", error.text) : flush_output();
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
    int status = is_directory ? checkpoint_inspect(path, stdout, &error) : data_inspect(path, stdout, &error);
    return status ? refuse(error.status, "%s", error.text) : flush_output();
}

static int command_help(const struct arguments *arguments);

enum option_set { OPTIONS_NONE, OPTIONS_JOB, OPTIONS_RUN, OPTIONS_VERIFY };

static const struct command {
    const char *name, *operand; /* operand NULL: none */
    enum option_set options;
    int (*act)(const struct arguments *); /* NULL: not offered by this version */
    const char *help;
} commands[] = {
    {"run", "JOB.yaml", OPTIONS_RUN, command_run, "train; the word may be left out; mpirun -n N for N ranks"},
    {"check", "JOB.yaml", OPTIONS_JOB, command_check, "print the effective job; -n N says what N ranks would do"},
    {"verify", "JOB.yaml", OPTIONS_VERIFY, command_verify,
     "compare gradients and steps on the job's own model; 76: wrong"},
    {"inspect", "PATH", OPTIONS_NONE, command_inspect,
     "say what a data file or a checkpoint holds, and whether it is sound"},
    {"help", NULL, OPTIONS_NONE, command_help, "print this"},
    {"plan", NULL, OPTIONS_NONE, NULL, NULL},
    {"bench", NULL, OPTIONS_NONE, NULL, NULL},
};
#define COMMANDS (sizeof commands / sizeof *commands)

static int command_help(const struct arguments *arguments)
{
    (void)arguments;
    puts("gaccd " GACC_VERSION ": trains with gradient accumulation over MPI ranks\n");
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].help)
            printf("  gaccd %-8s %-9s %s\n", commands[i].name, commands[i].operand ? commands[i].operand : "",
                   commands[i].help);
    puts("\n  --set key.path=value       override the job file; may be given again\n"
         "  --output DIR               the run directory (job.output)\n"
         "  --resume auto|never|DIR    go on from the newest checkpoint (default); begin anew; go on from the one in "
         "DIR\n"
         "  --device auto|cpu|cuda     auto: a GPU where every rank has one, else the CPU (default)\n"
         "  -n N                       check: the number of ranks\n"
         "  --sequences n, --json      verify: the size of its batch; its findings as JSON\n"
         "  --version                  print the version\n"
         "\nExit status: 0 done, 64 usage, 65 bad data, 66 missing input, 69 cannot reach or bind, 70 internal,\n"
         "74 input or output, 75 checkpoint saved, run it again, 76 numerics, 78 job file. While it runs: gaccctl.");
    return flush_output();
}

/* ---- options ---- */

static const struct option job_options[] = {
    {"set", required_argument, NULL, 's'},
    {"output", required_argument, NULL, 'o'},
    {NULL, 0, NULL, 0},
};
static const struct option run_options[] = {
    {"set", required_argument, NULL, 's'},
    {"output", required_argument, NULL, 'o'},
    {"resume", required_argument, NULL, 'r'},
    {"device", required_argument, NULL, 'd'},
    {NULL, 0, NULL, 0},
};
static const struct option verify_options[] = {
    {"set", required_argument, NULL, 's'},    {"output", required_argument, NULL, 'o'},
    {"device", required_argument, NULL, 'd'}, {"sequences", required_argument, NULL, 'q'},
    {"json", no_argument, NULL, 'j'},         {NULL, 0, NULL, 0},
};
static const struct option no_options[] = {{NULL, 0, NULL, 0}};

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
    struct nearest nearest = {.wrong = first};
    for (size_t i = 0; i < COMMANDS; i++)
        if (commands[i].act) nearest_try(&nearest, commands[i].name);
    if (nearest.word)
        return refuse(STATUS_USAGE, "%s: no such command; did you mean %s? (gaccd help)", first, nearest.word);
    return refuse(STATUS_USAGE, "%s: no such command; gaccd run JOB.yaml trains (gaccd help)", first);
}

static int parse(const struct command *command, bool is_named, int count, char **words, struct arguments *arguments)
{
    static const struct option *const sets[] = {[OPTIONS_NONE] = no_options,
                                                [OPTIONS_JOB] = job_options,
                                                [OPTIONS_RUN] = run_options,
                                                [OPTIONS_VERIFY] = verify_options};
    const struct option *options = sets[command->options];
    const char *letters = command->options == OPTIONS_JOB ? ":n:" : ":";
    opterr = 0;
    for (int option; (option = getopt_long(count, words, letters, options, NULL)) != -1;) {
        struct error error;
        if (option == '?' || option == ':') {
            option_fault(option, words, options, &error);
            return refuse(STATUS_USAGE, "%s (gaccd help)", error.text);
        }
        int status = take_option(arguments, option);
        if (status) return status;
    }
    arguments->paths = words + optind;
    arguments->path_count = count - optind;
    if (arguments->path_count == (command->operand ? 1 : 0)) return 0;
    if (arguments->path_count == 0)
        return refuse(STATUS_USAGE, "%s: %s is wanted (gaccd help)", command->name, command->operand);
    if (!is_named) return refuse_words(arguments);
    return refuse(STATUS_USAGE, "%s: one word too many: %s", command->name, arguments->paths[command->operand ? 1 : 0]);
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (!strcmp(commands[i].name, name)) return &commands[i];
    return NULL;
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
    if (!strcmp(words[1], "--version")) {
        puts("gaccd " GACC_VERSION);
        return flush_output();
    }
    const bool asks_help = !strcmp(words[1], "--help") || !strcmp(words[1], "-h");
    const struct command *command = find_command(asks_help ? "help" : words[1]);
    const bool is_named = command != NULL;
    const int skipped = is_named ? 1 : 0; /* getopt takes the word before the options for the program's name */
    if (command) words[1] = words[0];
    struct arguments arguments = {0};
    if (command && !command->act) return refuse(STATUS_USAGE, "%s is not offered by this version", command->name);
    if (!command) command = &commands[0];
    int status = parse(command, is_named, count - skipped, words + skipped, &arguments);
    return status ? status : command->act(&arguments);
}

int main(int count, char **words)
{
    open_standard_streams();
    struct place place;
    struct error error;
    is_silent = !place_find(&place, &error) && place.rank != 0;
    int status = act(count, words);
    if (status && is_silent) launch_stay();
    return status;
}
