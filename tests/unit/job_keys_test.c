/* The table of job keys asks the questions here: its own bounds, types and choices, for every row; jobs that print and
 * read back as themselves; files damaged at random; the manual. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/scalar.h"
#include "daemon/slip.h"
#include "scratch.h"

/* One job for every branch of the table. */
static const char *const jobs[] = {
    "job: {steps: 100, name: a b, seed: 7, output: \"out/${X}\"}\n"
    "model: {type: gpt, layers: 2, heads: 2, width: 8, context: 4, dropout: 0.1, tie: false}\n"
    "data: {format: bytes, train: \"${DATA}\", validation: 0.1}\n"
    "batch: {global: 12, micro: 5, lr_scaling: linear, base: 7}\n"
    "precision: {compute: fp16, loss_scale: {profile: deepspeed, consecutive_hysteresis: true, maximum: 1e9}}\n"
    "optimizer: {lr: 3e-4, clip_norm: 1, groups: [{match: \"*.bias\", lr: 0.1}, {match: wte.*, weight_decay: 0.3}]}\n"
    "schedule: {type: wsd, warmup: 3, decay: 20, minimum: 1e-5}\n"
    "evaluation: {every: 10, sequences: 3}\n"
    "control: {listen: \"unix:/tmp/a b\", workers: tcp://h:1, timeout: 250 ms}\n",

    "job: {tokens: 1000}\n"
    "model: {type: gpt, layers: 1, heads: 1, width: 8, context: 4, vocab: 65536, activation: gelu}\n"
    "data: {format: u16, train: [\"${DATA}\", \"${DATA}\"], validation: \"${DATA}\", order: sequential,\n"
    "       document_ends: [3]}\n"
    "batch: {tokens: 48, micro: 3, weighting: microbatch, tail: drop}\n"
    "precision: {compute: fp16, loss_scale: {mode: static, initial: 1024}}\n"
    "optimizer: {lr: 1, eps: 1e-6, betas: [0, 0.95]}\n"
    "schedule: {type: cosine, total: 40}\n"
    "control: {listen: tcp://h:1, tls: {certificate: \"${DATA}\", key: \"${DATA}\", client_authorities: "
    "\"${DATA}\"}}\n",

    "job: {epochs: 3}\n"
    "model: {type: mlp, inputs: 3, hidden: [4, 5], outputs: 2, activation: tanh, norm: layer, loss: cross_entropy,\n"
    "        init: {values: {layers.0.bias: [0.1, -2e-30, 1e+300, 3], \"x\\\"y\\\\z\": [1]}}}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 4, weighting: sum}\n"
    "precision: {compute: bf16}\n"
    "optimizer: {type: sgd, lr: 0.1, momentum: 0.9, weight_decay: 0.1}\n"
    "schedule: {type: linear}\n",

    "job: {steps: 1}\n"
    "model: {type: mlp, inputs: 3, hidden: [], outputs: 2, loss: cross_entropy}\n"
    "data: {format: idx, train: [\"${DATA}\", \"${DATA}\"], validation: \"${DATA}\",\n"
    "       labels: {train: [\"${DATA}\", \"${DATA}\"], validation: \"${DATA}\"}, mix: [2, 1],\n"
    "       mask: {train: [\"${DATA}\", \"${DATA}\"], validation: \"${DATA}\", values: [255, 9]}}\n"
    "batch: {global: 4, micro: 4}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: mlp, inputs: 3, hidden: [], outputs: 2}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 4}\n"
    "precision: {compute: fp16, loss_scale: {profile: megatron, hysteresis: 3, at_minimum: stop, on_overflow: retry}}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: mlp, inputs: 3, hidden: [4, 6], outputs: 2, norm: group, norm_groups: 2}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 4}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: mlp, inputs: 3, hidden: [4], outputs: 2, norm: batch, norm_stats: window, norm_momentum: 0.2}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 1}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: cnn, image: [1, 4, 6], channels: [2, 3], kernel: 5, pool: average, hidden: [5], outputs: 2}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 1}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: linear, inputs: 3, bias: false, init: {file: \"${DATA}\"}}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 4}\n"
    "precision: {compute: fp64}\n"
    "optimizer: {lr: 0.1}\n",

    "job: {steps: 1}\n"
    "model: {type: tape, size: 1}\n"
    "data: {format: csv, train: \"${DATA}\"}\n"
    "batch: {global: 4, micro: 1, ramp: {from: 2, steps: 3}}\n"
    "optimizer: {lr: 0.1}\n",
};
#define JOBS (sizeof jobs / sizeof *jobs)

static int parse(Gacc__V1__JobSpec **job, const char *text, const char *set, struct error *error)
{
    struct job_overrides overrides = {.sets = &set, .set_count = set ? 1 : 0};
    int status = job_parse(job, text, strlen(text), "job.yaml", &overrides, NULL, error);
    if (status == 0 && !job_is_whole(*job)) fail_msg("taken, but not whole, with %s:\n%s", set ? set : "nothing", text);
    return status;
}

static void release(Gacc__V1__JobSpec *job)
{
    if (job) gacc__v1__job_spec__free_unpacked(job, NULL);
}

/* The first job to which the row applies. */
static const char *job_of(const struct key *key)
{
    for (size_t i = 0; i < JOBS; i++) {
        Gacc__V1__JobSpec *job;
        struct error error;
        if (parse(&job, jobs[i], NULL, &error) != 0) fail_msg("job %zu: %s", i, error.text);
        bool applies = key_applies(key, job, NULL);
        bool has_group = key->section != IN_GROUP || job->optimizer->n_groups > 0;
        release(job);
        if (applies && has_group) return jobs[i];
    }
    fail_msg("no job above has %s; add one", key->path);
    return NULL;
}

/* The path with the first group's number for its star. */
static void concrete(char path[static 128], const struct key *key)
{
    const char *star = strchr(key->path, '*');
    if (star)
        snprintf(path, 128, "%.*s0%s", (int)(star - key->path), key->path, star + 1);
    else
        snprintf(path, 128, "%s", key->path);
}

/* Expects the value to be refused with 78 in words that begin with --set and the key, and hold `words`. */
static void refused(const struct key *key, const char *value, const char *words)
{
    char path[128], set[256], begin[160];
    concrete(path, key);
    snprintf(set, sizeof set, "%s=%s", path, value);
    snprintf(begin, sizeof begin, "--set %s: ", path);
    Gacc__V1__JobSpec *job;
    struct error error;
    int status = parse(&job, job_of(key), set, &error);
    if (status != -(int)STATUS_JOB || strncmp(error.text, begin, strlen(begin)) != 0 || !strstr(error.text, words))
        fail_msg("%s: status %d: %s; wanted: %s", set, status, status ? error.text : "accepted", words);
}

/* Expects that the value is read, or that only numbers of other keys are against it. */
static void in_range(const struct key *key, const char *value)
{
    char path[128], set[256];
    concrete(path, key);
    snprintf(set, sizeof set, "%s=%s", path, value);
    Gacc__V1__JobSpec *job;
    struct error error;
    int status = parse(&job, job_of(key), set, &error);
    bool against_it = strstr(error.text, ": must be ") || strstr(error.text, "is not a number") ||
                      strstr(error.text, "is not a whole number") || strstr(error.text, "is not one of");
    if (status && against_it) fail_msg("%s: %s", set, error.text);
    release(job);
}

static bool is_whole(const struct key *key)
{
    return key->type == KEY_U32 || key->type == KEY_U64 || key->type == KEY_U32_LIST;
}

static bool is_number(const struct key *key)
{
    return is_whole(key) || key->type == KEY_NUMBER || key->type == KEY_PAIR || key->type == KEY_SECONDS;
}

/* The number where the key's type has it. */
static const char *value_of(const struct key *key, const char *number)
{
    static char value[128];
    const char *form = key->type == KEY_PAIR ? "[0.5, %s]" : key->type == KEY_U32_LIST ? "[1, %s]" : "%s";
    const char *at = strchr(form, '%');
    snprintf(value, sizeof value, "%.*s%s%s", (int)(at - form), form, number, at + 2);
    return value;
}

static void every_number_keeps_its_bounds(void **state)
{
    (void)state;
    for (const struct key *key = keys; key < keys + key_count; key++) {
        if (!is_number(key)) continue;
        double below = is_whole(key) ? key->least - 1 : key->least != 0 ? key->least * 0.999 : -1e-300;
        refused(key, value_of(key, decimal_of(key->above ? key->least : below).text), "is too small: must be ");
        if (!key->above) in_range(key, value_of(key, decimal_of(key->least).text));
        if (key->most == 0) continue;
        double above = is_whole(key) ? key->most + 1 : key->most * 1.001;
        refused(key, value_of(key, decimal_of(key->below ? key->most : above).text), "is too large: must be ");
        if (!key->below) in_range(key, value_of(key, decimal_of(key->most).text));
    }
}

static void every_number_is_a_number(void **state)
{
    (void)state;
    for (const struct key *key = keys; key < keys + key_count; key++) {
        if (!is_number(key)) continue;
        refused(key, value_of(key, "\"1\""), "\"1\" in quotes is a text: write 1");
        refused(key, value_of(key, "banana"), "banana is not a ");
        refused(key, value_of(key, ".inf"), ".inf is not a finite number");
        refused(key, value_of(key, "1_0"), "1_0 is not a number: write 10");
        refused(key, value_of(key, "010"), "010 has leading zeros: write 10");
        refused(key, value_of(key, "0x10"), "0x10 is not decimal: write 16");
        refused(key, value_of(key, "yes"), "yes is not a ");
        refused(key, value_of(key, "{a: 1}"), "is a mapping where a ");
        if (!key->nullable) refused(key, value_of(key, "null"), "is empty where a ");
        if (is_whole(key)) refused(key, value_of(key, "1.5"), "1.5 is not a whole number");
        if (is_whole(key)) refused(key, value_of(key, "2e0"), "2e0 is not a whole number in digits: write 2");
    }
}

static void every_other_key_keeps_its_type(void **state)
{
    (void)state;
    for (const struct key *key = keys; key < keys + key_count; key++) {
        bool is_text =
            key->type == KEY_TEXT || key->type == KEY_PATH || key->type == KEY_ENDPOINT || key->type == KEY_PATHS;
        if (key->type == KEY_BOOL) refused(key, "1", "1 is not true or false");
        if (key->type == KEY_BOOL) refused(key, "\"true\"", "\"true\" in quotes is a text: write true");
        if (key->type == KEY_CHOICE) refused(key, "banana", "banana is not one of ");
        if (key->type == KEY_CHOICE) refused(key, "[]", "is a list; it is not one of ");
        if (is_text) refused(key, "12", "12 is a number where a text is wanted");
        if (is_text) refused(key, "{}", "is a mapping where a text is wanted");
        if (is_text) refused(key, "\"\"", "is an empty text");
        if (key->type == KEY_SECTION) refused(key, "3", "must be a mapping of keys, not a single value");
        if (key->type == KEY_GROUPS) refused(key, "3", "must be a list of mappings, not a single value");
        if (key->type == KEY_TENSORS) refused(key, "3", "must be a mapping of tensor names");
    }
}

/* What stands beside the choice in the job may have to go with it, so other keys may object, but not the choice's own.
 */
static void every_choice_is_taken_and_its_slips_mended(void **state)
{
    (void)state;
    for (const struct key *key = keys; key < keys + key_count; key++) {
        for (const struct choice *choice = key->choices; choice && choice->name; choice++) {
            in_range(key, choice->name);
            char slip[64], words[96];
            snprintf(slip, sizeof slip, "%sx", choice->name);
            snprintf(words, sizeof words, "did you mean %s?", choice->name);
            refused(key, slip, words);
        }
    }
}

static void every_key_is_suggested_for_its_slips(void **state)
{
    (void)state;
    for (const struct key *key = keys; key < keys + key_count; key++) {
        const char *leaf = strrchr(key->path, '.') ? strrchr(key->path, '.') + 1 : key->path;
        char slip[64], section[64], words[96];
        snprintf(slip, sizeof slip, "%sx", leaf);
        snprintf(section, sizeof section, "%.*s", leaf == key->path ? 0 : (int)(leaf - key->path - 1), key->path);
        snprintf(words, sizeof words, "; did you mean %s?", leaf);
        assert_string_equal(key_suggestion(section, slip).text, words);
    }
}

/* By the key's name in the section where it stands, else by its path. */
static void words_of_other_trainers_lead_to_the_key(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {"optimizer", "learning_rate", "; did you mean lr?"},
        {"optimizer.groups.*", "learning_rate", "; did you mean lr?"},
        {"", "learning_rate", "; did you mean optimizer.lr?"},
        {"optimizer", "max_grad_norm", "; did you mean clip_norm?"},
        {"", "gradient_clipping", "; did you mean optimizer.clip_norm?"},
        {"optimizer", "adam_beta2", "; did you mean betas?"},
        {"optimizer", "warmup_steps", "; did you mean schedule.warmup?"},
        {"schedule", "min_lr", "; did you mean minimum?"},
        {"schedule", "lr_decay_iters", "; did you mean total?"},
        {"batch", "train_batch_size", "; did you mean global?"},
        {"batch", "per_device_train_batch_size", "; did you mean micro?"},
        {"job", "max_iters", "; did you mean steps?"},
        {"model", "n_embd", "; did you mean width?"},
        {"model", "block_size", "; did you mean context?"},
        {"model", "gradient_checkpointing", "; did you mean recompute?"},
        {"model.lora", "r", "; did you mean rank?"},
        {"precision", "dtype", "; did you mean compute?"},
        {"precision.loss_scale", "growth_interval", "; did you mean interval?"},
        {"model", "x", "; there are type, layers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct phrase told = key_suggestion(cases[i][0], cases[i][1]);
        if (strncmp(told.text, cases[i][2], strlen(cases[i][2])) != 0)
            fail_msg("%s in %s%s", cases[i][1], cases[i][0], told.text);
    }
}

static void edit_distance_counts_letters(void **state)
{
    (void)state;
    assert_int_equal(edit_distance("", ""), 0);
    assert_int_equal(edit_distance("lr", ""), 2);
    assert_int_equal(edit_distance("gtp", "gpt"), 1);
    assert_int_equal(edit_distance("layer", "layers"), 1);
    assert_int_equal(edit_distance("kitten", "sitting"), 3);
}

/* The printed job; freed by the caller. */
static char *printed(const Gacc__V1__JobSpec *job, uint32_t ranks)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (!stream || job_print(job, ranks, stream) != 0 || fclose(stream) != 0) abort();
    return text;
}

static void same(const Gacc__V1__JobSpec *a, const Gacc__V1__JobSpec *b, const char *text)
{
    size_t size = gacc__v1__job_spec__get_packed_size(a);
    uint8_t *left = malloc(size), *right = malloc(size);
    if (gacc__v1__job_spec__get_packed_size(b) != size) fail_msg("reads back as another job:\n%s", text);
    gacc__v1__job_spec__pack(a, left);
    gacc__v1__job_spec__pack(b, right);
    if (memcmp(left, right, size) != 0) fail_msg("reads back as another job:\n%s", text);
    free(left);
    free(right);
}

static void round_trip(const char *text, const char *set)
{
    Gacc__V1__JobSpec *job, *again;
    struct error error;
    if (parse(&job, text, set, &error) != 0) return;
    char *first = printed(job, 1);
    if (parse(&again, first, NULL, &error) != 0) fail_msg("%s\n%s", error.text, first);
    same(job, again, first);
    char *second = printed(again, 1);
    assert_string_equal(first, second);
    free(first);
    free(second);
    release(job);
    release(again);
}

static void a_printed_job_reads_back_as_itself(void **state)
{
    (void)state;
    for (size_t i = 0; i < JOBS; i++) {
        Gacc__V1__JobSpec *job;
        struct error error;
        if (parse(&job, jobs[i], NULL, &error) != 0) fail_msg("job %zu: %s", i, error.text);
        release(job);
        round_trip(jobs[i], NULL);
        for (const struct key *key = keys; key < keys + key_count; key++) {
            char path[128], set[256];
            concrete(path, key);
            for (const struct choice *choice = key->choices; choice && choice->name; choice++) {
                snprintf(set, sizeof set, "%s=%s", path, choice->name);
                round_trip(jobs[i], set);
            }
            double values[] = {key->least, key->most, 1, 0.1, 1.0 / 3, 1e-300, 5e-324, 1e22, 1e15};
            for (size_t k = 0; is_number(key) && k < sizeof values / sizeof *values; k++) {
                snprintf(set, sizeof set, "%s=%s", path, value_of(key, decimal_of(values[k]).text));
                round_trip(jobs[i], set);
            }
        }
    }
}

static void odd_file_names_survive_printing(void **state)
{
    (void)state;
    static const char *const names[] = {"a[1].txt",    "${X}",          "$$",          "qu\"ote",
                                        "back\\slash", "sp ace # x: y", "é\u2192.txt", "*"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *path = scratch_file(names[i], "x", 1);
        setenv("ODD", path, 1);
        Gacc__V1__JobSpec *job;
        struct error error;
        if (parse(&job, jobs[5], "data.train=\"${ODD}\"", &error) != 0) fail_msg("%s", error.text);
        assert_string_equal(job->data->train[0], path);
        release(job);
        round_trip(jobs[5], "data.train=\"${ODD}\"");
        unlink(path);
        free(path);
    }
}

/* xorshift64* */
static uint64_t below(uint64_t *random, uint64_t count)
{
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return ((*random * UINT64_C(2685821657736338717)) >> 32) % count;
}

/* A byte changed, a byte gone, or a piece of another job put in. */
static void damage(char *text, size_t capacity, uint64_t *random)
{
    static const char telling[] = "{}[]:,&*!|>'\"%@`#-?0123456789.eE+_~$\n\t \\\x01\x80\xff";
    size_t length = strlen(text), at = below(random, length + 1);
    const char *other = jobs[below(random, JOBS)];
    size_t from = below(random, strlen(other)), piece = below(random, 12);
    switch (below(random, 3)) {
    case 0:
        if (at < length) text[at] = telling[below(random, sizeof telling - 1)];
        break;
    case 1:
        if (at < length) memmove(text + at, text + at + 1, length - at);
        break;
    default:
        if (strlen(other + from) < piece || length + piece + 1 > capacity) break;
        memmove(text + at + piece, text + at, length - at + 1);
        memcpy(text + at, other + from, piece);
    }
}

static void a_damaged_file_is_refused_with_a_place_or_is_a_job(void **state)
{
    (void)state;
    uint64_t random = 1337;
    for (unsigned i = 0; i < 6000; i++) {
        char text[4096];
        snprintf(text, sizeof text, "%s", jobs[below(&random, JOBS)]);
        for (uint64_t count = 1 + below(&random, 4); count > 0; count--) damage(text, sizeof text, &random);
        Gacc__V1__JobSpec *job;
        struct error error = {0};
        int status = parse(&job, text, NULL, &error);
        if (status == 0) round_trip(text, NULL);
        bool placed = strncmp(error.text, "job.yaml:", 9) == 0 && error.text[9] >= '1' && error.text[9] <= '9';
        bool known = status == 0 || status == -(int)STATUS_JOB || status == -(int)STATUS_MISSING;
        if (!known || (status != 0 && !placed)) fail_msg("%d %s\n%s", status, error.text, text);
        release(job);
    }
}

/* Room for the largest value of a key, or one that no job may have. */
static size_t field_of(const struct key *key)
{
    return key->type == KEY_CHOICE || key->type == KEY_U32 ? sizeof(uint32_t) : sizeof(double);
}

/* As a message may bring it: what no job file could say. */
static void a_job_with_a_value_that_no_file_could_give_is_not_whole(void **state)
{
    (void)state;
    static const double nan_or_more[] = {(double)NAN, -1e300, (double)INFINITY};
    static const uint64_t all = UINT64_MAX;
    size_t checked = 0;
    for (size_t i = 0; i < key_count; i++) {
        const struct key *key = &keys[i];
        const bool is_number = key->type == KEY_NUMBER || key->type == KEY_SECONDS || key->type == KEY_PAIR;
        const bool is_bounded = (key->type == KEY_U32 || key->type == KEY_U64) && key->most > 0 && key->most < 4e9;
        if (!(is_number || is_bounded || key->type == KEY_CHOICE) || key->section == IN_GROUP ||
            key->section == IN_ASIDE)
            continue;
        Gacc__V1__JobSpec *job;
        struct error error;
        if (parse(&job, job_of(key), NULL, &error) != 0) fail_msg("%s: %s", key->path, error.text);
        char *field = key_base(job, NULL, NULL, key->section);
        assert_non_null(field);
        field += key->offset;
        for (size_t bad = 0; bad < (is_number ? 3 : 1); bad++, checked++) {
            char kept[sizeof(double)];
            memcpy(kept, field, field_of(key));
            memcpy(field, is_number ? (const void *)&nan_or_more[bad] : &all, field_of(key));
            if (job_is_whole(job)) fail_msg("%s: whole with an impossible value (%zu)", key->path, bad);
            memcpy(field, kept, field_of(key));
            assert_true(job_is_whole(job));
        }
        release(job);
    }
    assert_true(checked > 50);
}

static void a_job_without_one_of_its_sections_is_not_whole(void **state)
{
    (void)state;
    Gacc__V1__JobSpec *job;
    struct error error;
    if (parse(&job, job_of(&keys[0]), NULL, &error) != 0) fail_msg("%s", error.text);
    void **sections[] = {(void **)&job->job,
                         (void **)&job->model,
                         (void **)&job->data,
                         (void **)&job->batch,
                         (void **)&job->precision,
                         (void **)&job->optimizer,
                         (void **)&job->schedule,
                         (void **)&job->evaluation,
                         (void **)&job->control,
                         (void **)&job->checkpoint,
                         (void **)&job->precision->loss_scale};
    Gacc__V1__LossScaleSection scale = GACC__V1__LOSS_SCALE_SECTION__INIT;
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        void *kept = *sections[i];
        *sections[i] = kept ? NULL : &scale; /* a loss scale without fp16 is one too many */
        assert_false(job_is_whole(job));
        *sections[i] = kept;
        assert_true(job_is_whole(job));
    }
    release(job);
}

/* Keys follow the section that they are in, so that the manual has them under its heading. */
static void every_key_stands_in_its_section(void **state)
{
    (void)state;
    const char *section = "";
    for (const struct key *key = keys; key < keys + key_count; key++) {
        const char *leaf = strrchr(key->path, '.');
        const bool is_section = key->type == KEY_SECTION || key->type == KEY_GROUPS;
        if (is_section) section = key->path;
        if (is_section || !leaf) continue;
        const size_t length = strlen(section);
        if (strncmp(key->path, section, length) != 0 || key->path[length] != '.' ||
            (leaf != key->path + length && key->section != IN_GROUP))
            fail_msg("%s stands in %s", key->path, section);
    }
}

/* deploy/docs/job-file.md is generated: GACC_WRITE_REFERENCE=1 job_keys_test writes it anew. */
static void the_manual_is_that_of_the_table(void **state)
{
    (void)state;
    char path[4096];
    snprintf(path, sizeof path, "%s/deploy/docs/job-file.md", GACC_SOURCE);
    FILE *file = getenv("GACC_WRITE_REFERENCE") ? fopen(path, "w") : NULL;
    if (file) {
        job_print_reference(file);
        fclose(file);
    }
    char *wanted = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&wanted, &size);
    job_print_reference(stream);
    fclose(stream);
    char *found = calloc(1, size + 2);
    file = fopen(path, "r");
    if (!file || !found) fail_msg("%s: cannot be read; GACC_WRITE_REFERENCE=1 job_keys_test writes it", path);
    size_t length = fread(found, 1, size + 1, file);
    fclose(file);
    if (length != size || memcmp(found, wanted, size) != 0)
        fail_msg("%s is not what the table of keys says; GACC_WRITE_REFERENCE=1 job_keys_test writes it anew", path);
    free(found);
    free(wanted);
}

static char *data_path;

static int open_files(void **state)
{
    if (scratch_open(state) != 0) return -1;
    data_path = scratch_file("data", "to be or not to be", 18);
    return setenv("DATA", data_path, 1) || setenv("X", "x", 1);
}

static int close_files(void **state)
{
    free(data_path);
    return scratch_close(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_keeps_its_bounds),
        cmocka_unit_test(every_number_is_a_number),
        cmocka_unit_test(every_other_key_keeps_its_type),
        cmocka_unit_test(every_choice_is_taken_and_its_slips_mended),
        cmocka_unit_test(every_key_is_suggested_for_its_slips),
        cmocka_unit_test(words_of_other_trainers_lead_to_the_key),
        cmocka_unit_test(edit_distance_counts_letters),
        cmocka_unit_test(a_printed_job_reads_back_as_itself),
        cmocka_unit_test(odd_file_names_survive_printing),
        cmocka_unit_test(a_damaged_file_is_refused_with_a_place_or_is_a_job),
        cmocka_unit_test(a_job_with_a_value_that_no_file_could_give_is_not_whole),
        cmocka_unit_test(a_job_without_one_of_its_sections_is_not_whole),
        cmocka_unit_test(every_key_stands_in_its_section),
        cmocka_unit_test(the_manual_is_that_of_the_table),
    };
    return cmocka_run_group_tests(tests, open_files, close_files);
}
