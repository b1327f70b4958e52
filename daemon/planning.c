#include "daemon/planning.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/core/proposal.h"
#include "daemon/observe/json_writer.h"
#include "daemon/verify/control_local.h"
#include "proto/message.h"
#include "worker/memory.h"

/* Measured on ranks of tiny models: what is no buffer of ours, and what OpenBLAS packs the factors of a product into.
 */
#define PROCESS_BYTES (10u << 20)
#define THREAD_BYTES (7u << 20)
#define PROBE_ROUNDS 3

/* What a rank takes anonymously; the pages of programs and data files come on top, and others share them. */
uint64_t memory_rows(const struct session_memory *memory, uint32_t ranks, struct memory_row rows[MEMORY_ROWS])
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const uint64_t threads = cores > (long)ranks ? (uint64_t)cores / ranks : 1;
    const struct memory_row all[MEMORY_ROWS] = {
        {"parameters", "parameters", memory->parameters},
        {"gradients", "gradients", memory->gradients},
        {"shard", "gradient shard and master parameters", memory->shard},
        {"moments", "moments of the shard", memory->moments},
        {"activations", "activations of a micro-batch", memory->activations},
        {"window", "what is kept of a window that is run stage by stage", memory->window},
        {"data", "a micro-batch of data", memory->batch},
        {"checkpoint", "copies for a checkpoint, from the first on", memory->copies},
        {"communication", "MPI's own, while gradients are reduced", memory->reduction},
        {"process", "the process, MPI and BLAS", PROCESS_BYTES + threads * THREAD_BYTES},
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < MEMORY_ROWS; i++) sum += (rows[i] = all[i]).bytes;
    return sum;
}

/* ---- the limit ---- */

/* "80GiB", "512 MiB", "24GB", bytes. 64: it is none. */
static int parse_bytes(const char *text, uint64_t *bytes, struct error *error)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},      {"B", 1},        {"kB", 1e3},     {"KB", 1e3},     {"MB", 1e6},    {"GB", 1e9},
                 {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
    char *end;
    const double number = isdigit((unsigned char)*text) ? strtod(text, &end) : 0;
    if (number > 0) {
        while (*end == ' ') end++;
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            const double all = number * units[i].bytes;
            if (strcmp(end, units[i].name) || !(all >= 1 && all < 0x1p63)) continue;
            *bytes = (uint64_t)all;
            return 0;
        }
    }
    return error_set(error, STATUS_USAGE, "--memory %s: a size such as 80GiB is wanted", text);
}

/* MemAvailable of proc_meminfo(5). */
static int machine_memory(uint64_t *bytes, struct error *error)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    uint64_t kibibytes = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kibibytes) == 1) break;
    if (file) fclose(file);
    *bytes = kibibytes << 10;
    return kibibytes ? 0 : error_set(error, STATUS_UNAVAILABLE, "--memory is wanted: /proc/meminfo does not tell");
}

/* ---- proposals ---- */

struct planning {
    const struct planning_options *options;
    Gacc__V1__JobSpec *job;
    uint32_t ranks;
    uint64_t limit;
    struct proposal_rules rules;
    struct proposal proposals[PROPOSALS_MAX];
    double rates[PROPOSALS_MAX]; /* sequences a second of one rank, measured; 0: not */
    size_t count, chosen;
};

static void put(Gacc__V1__JobSpec *job, uint32_t context, bool recomputes, uint32_t micro)
{
    job->batch->micro = micro;
    if (context) job->model->context = context;
    job->recompute = recomputes ? GACC__V1__RECOMPUTE__RECOMPUTE_BLOCK : GACC__V1__RECOMPUTE__RECOMPUTE_NONE;
}

static uint64_t measure(void *with, uint32_t context, bool recomputes, uint32_t micro)
{
    const struct planning *planning = with;
    Gacc__V1__JobSpec *job = message_copy(&planning->job->base);
    struct session_memory memory;
    struct memory_row rows[MEMORY_ROWS];
    struct error unsaid;
    uint64_t bytes = UINT64_MAX;
    if (job) {
        put(job, context, recomputes, micro);
        if (!session_memory_of(job, planning->ranks, &memory, &unsaid))
            bytes = memory_rows(&memory, planning->ranks, rows);
        gacc__v1__job_spec__free_unpacked(job, NULL);
    }
    return bytes;
}

static void propose(struct planning *planning)
{
    const Gacc__V1__JobSpec *job = planning->job;
    const bool is_gpt = job->model->type == GACC__V1__MODEL_TYPE__MODEL_GPT;
    planning->rules = (struct proposal_rules){
        .global = job->batch->global,
        .ranks = planning->ranks,
        .smallest = job->batch->ramp_from ? job->batch->ramp_from : job->batch->global,
        .too_few = job_norms_micro_batches(job) ? 1 : 0,
        .context = is_gpt ? job->model->context : 0,
        .can_recompute = is_gpt,
        .limit = planning->limit,
        .measure = measure,
        .with = planning,
    };
    planning->count = proposals_find(&planning->rules, planning->proposals);
}

/* ---- the probe ---- */

/* One step of `job`, whose batch is `accumulate` micro-batches, by one rank. */
static int time_step(const Gacc__V1__JobSpec *job, uint32_t accumulate, double *seconds, struct error *error)
{
    struct comm *comm = NULL, *talk = NULL;
    struct control_local local = {0};
    struct session *session = NULL;
    struct trial_step step;
    struct trial_spec spec = {.job = job, .ranks = 1, .steps = 1};
    Gacc__V1__JobSpec *own = message_copy(&job->base);
    if (!own) return error_set(error, STATUS_INTERNAL, "out of memory for a job");
    own->batch->global = own->batch->micro * accumulate;
    own->batch->ramp_from = 0;
    own->evaluation->every = 0;
    spec.job = own;
    int status = comm_open_alone(&comm, error);
    if (!status) status = comm_duplicate(comm, &talk, error);
    if (!status) status = control_local_open(&local, &spec, own, talk, &step, error);
    if (!status) status = session_open(&session, own, comm, &local.control, NULL, error);
    const double began = seconds_now();
    if (!status) status = session_run(session, error);
    *seconds = seconds_now() - began;
    session_close(session);
    control_local_close(&local);
    comm_close(talk);
    comm_close(comm);
    gacc__v1__job_spec__free_unpacked(own, NULL);
    return status;
}

/* What one and three micro-batches differ by is the time of two: by the shortest of a few times each, since whatever
 * else the machine does adds to them. */
static int probe_one(struct planning *planning, size_t i, struct error *error)
{
    const struct proposal *proposal = &planning->proposals[i];
    double seconds, one = (double)INFINITY, three = (double)INFINITY;
    int status = 0;
    put(planning->job, proposal->context, proposal->recomputes, proposal->micro);
    for (int round = 0; round < PROBE_ROUNDS && !status; round++) {
        if ((status = time_step(planning->job, 1, &seconds, error))) break;
        one = fmin(one, seconds);
        if ((status = time_step(planning->job, 3, &seconds, error))) break;
        three = fmin(three, seconds);
    }
    /* Three cannot be faster than one; where noise says so, the step's own part is taken for half of it. */
    if (!status) planning->rates[i] = 2.0 * proposal->micro / fmax(three - one, three / 3);
    return status;
}

/* Three at most: with recomputation, without, and the first at half as many sequences. */
static int probe(struct planning *planning, struct error *error)
{
    if (proposal_with(&planning->rules, &planning->proposals[0], planning->proposals[0].micro / 2,
                      &planning->proposals[planning->count]))
        planning->count++;
    for (size_t i = 0; i < planning->count; i++) {
        int status = probe_one(planning, i, error);
        if (status) return status;
        if (planning->rates[i] > planning->rates[planning->chosen]) planning->chosen = i;
    }
    return 0;
}

/* ---- printing ---- */

static void print_rows(const struct memory_row *rows, uint64_t sum, uint32_t ranks)
{
    printf("Memory of a rank, of %" PRIu32 ", as the job is:\n", ranks);
    for (size_t i = 0; i < MEMORY_ROWS; i++) printf("  %10s  %s\n", memory_text(rows[i].bytes).text, rows[i].what);
    printf("  %10s  in all\n", memory_text(sum).text);
}

static void print_sets(const struct planning *planning, const struct proposal *proposal)
{
    printf("  --set batch.micro=%" PRIu32, proposal->micro);
    if (planning->rules.can_recompute) printf(" --set recompute=%s", proposal->recomputes ? "block" : "none");
    if (proposal->context != planning->rules.context) /* B stays, where the job has it as tokens, too */
        printf(" --set model.context=%" PRIu32 " --set batch.global=%" PRIu32, proposal->context,
               planning->rules.global);
    putchar('\n');
}

static void print_proposals(const struct planning *planning)
{
    printf("\nB %" PRIu32 " on %" PRIu32 " rank%s within %s each:\n", planning->rules.global, planning->ranks,
           planning->ranks == 1 ? "" : "s", memory_text(planning->limit).text);
    if (planning->count == 0) return;
    printf("  %7s  %9s  %6s  %6s  %10s%s\n", "context", "recompute", "b", "K", "memory",
           planning->options->probe ? "  sequences/s of a rank" : "");
    for (size_t i = 0; i < planning->count; i++) {
        const struct proposal *one = &planning->proposals[i];
        char context[16] = "-", rate[32] = "";
        if (one->context) snprintf(context, sizeof context, "%" PRIu32, one->context);
        if (planning->rates[i] > 0) snprintf(rate, sizeof rate, "  %.4g", planning->rates[i]);
        printf("%c %7s  %9s  %6" PRIu32 "  %6" PRIu32 "  %10s%s\n", i == planning->chosen ? '*' : ' ', context,
               one->recomputes ? "block" : "none", one->micro, one->accumulate, memory_text(one->bytes).text, rate);
    }
    printf("\n* is proposed:\n");
    print_sets(planning, &planning->proposals[planning->chosen]);
}

static void proposal_members(struct json_writer *json, const struct planning *planning, size_t i)
{
    const struct proposal *one = &planning->proposals[i];
    json_write_object(json, NULL);
    if (one->context) json_write_unsigned(json, "context", one->context);
    json_write_string(json, "recompute", one->recomputes ? "block" : "none");
    json_write_unsigned(json, "micro", one->micro);
    json_write_unsigned(json, "accumulate", one->accumulate);
    json_write_unsigned(json, "bytes", one->bytes);
    if (planning->rates[i] > 0) json_write_double(json, "sequences_per_second", planning->rates[i]);
    json_write_object_end(json);
}

static int print_json(const struct planning *planning, const struct memory_row *rows, uint64_t sum)
{
    struct json_writer json;
    char *text;
    size_t length;
    if (json_write_open(&json, &text, &length)) return -1;
    json_write_object(&json, NULL);
    json_write_unsigned(&json, "ranks", planning->ranks);
    json_write_unsigned(&json, "effective_batch", planning->rules.global);
    json_write_object(&json, "memory");
    for (size_t i = 0; i < MEMORY_ROWS; i++) json_write_unsigned(&json, rows[i].key, rows[i].bytes);
    json_write_unsigned(&json, "all", sum);
    json_write_object_end(&json);
    json_write_unsigned(&json, "limit", planning->limit);
    json_write_array(&json, "proposals");
    for (size_t i = 0; i < planning->count; i++) proposal_members(&json, planning, i);
    json_write_array_end(&json);
    if (planning->count)
        json_write_unsigned(&json, "proposed", planning->chosen);
    else
        json_write_null(&json, "proposed");
    json_write_object_end(&json);
    if (!json_write_close(&json, &text)) return -1;
    puts(text);
    free(text);
    return 0;
}

/* ---- the whole ---- */

static int plan(struct planning *planning, struct error *error)
{
    const struct planning_options *options = planning->options;
    struct session_memory memory;
    struct memory_row rows[MEMORY_ROWS];
    int status = options->memory ? parse_bytes(options->memory, &planning->limit, error)
                                 : machine_memory(&planning->limit, error);
    if (!status && !options->memory) planning->limit /= planning->ranks;
    if (!status) status = job_load(&planning->job, options->job_path, &options->overrides, stderr, error);
    if (!status) status = session_memory_of(planning->job, planning->ranks, &memory, error);
    if (status) return status;
    const uint64_t sum = memory_rows(&memory, planning->ranks, rows);
    propose(planning);
    if (options->probe && planning->count) status = probe(planning, error);
    if (status) return status;
    if (options->json) {
        if (print_json(planning, rows, sum)) return error_set(error, STATUS_INTERNAL, "out of memory");
    } else {
        print_rows(rows, sum, planning->ranks);
        print_proposals(planning);
    }
    if (fflush(stdout) || ferror(stdout)) return error_set_errno(error, STATUS_IO, errno, "standard output");
    if (planning->count) return 0;
    return error_set(error, STATUS_JOB,
                     "plan: nothing fits %s: not %s at a time%s; more ranks share less of the optimizer's state each, "
                     "a smaller model "
                     "takes less of everything",
                     memory_text(planning->limit).text, planning->rules.too_few ? "two sequences" : "one sequence",
                     planning->rules.context ? ", whatever the context" : "");
}

int planning_run(const struct planning_options *options)
{
    struct planning planning = {.options = options, .ranks = options->overrides.ranks};
    struct error error;
    int status = plan(&planning, &error);
    if (planning.job) gacc__v1__job_spec__free_unpacked(planning.job, NULL);
    if (status) fprintf(stderr, "gaccd: %s\n", error.text);
    return -status;
}
