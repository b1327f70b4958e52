/* Settings of a running job: which keys it takes, under the rules of the job file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdbool.h>

#include "daemon/job/keys.h"
#include "daemon/job/live.h"
#include "scratch.h"

static const char base[] =
    "{job: {steps: 100}, model: {type: gpt, layers: 1, heads: 1, width: 8, context: 8},"
    "data: {format: bytes, train: \"${TEXT}\"}, batch: {global: 4, micro: 2}, precision: {compute: fp16},"
    "optimizer: {lr: 1e-3, clip_norm: 1, groups: [{match: \"*.bias\", lr: 3e-4}]}, schedule: {type: cosine, minimum: "
    "1e-5}}";

static int open_all(void **state)
{
    if (scratch_open(state)) return -1;
    char *text = scratch_file("text", "0123456789012345678901234567890123456789", 40);
    setenv("TEXT", text, 1);
    free(text);
    return 0;
}

static Gacc__V1__JobSpec *parse(const char *set)
{
    Gacc__V1__JobSpec *job;
    struct error error;
    const struct job_overrides overrides = {.sets = &set, .set_count = set ? 1 : 0};
    if (job_parse(&job, base, strlen(base), "job.yaml", &overrides, NULL, &error)) fail_msg("%s", error.text);
    return job;
}

/* "key was now\n" of each change, and the job; NULL when it is refused. */
static Gacc__V1__JobSpec *set(const Gacc__V1__JobSpec *job, const char *settings, char told[1024], float *scale,
                              struct error *error)
{
    struct job_settings list = {0};
    struct job_changes changes;
    Gacc__V1__JobSpec *now;
    char copy[1024], *rest = copy;
    snprintf(copy, sizeof copy, "%s", settings);
    for (char *word; (word = strtok_r(rest, " ", &rest));) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        assert_int_equal(job_settings_put(&list, word, equals + 1, error), 0);
    }
    told[0] = '\0';
    if (!job_set_live(&now, job, &list, 2, &changes, scale, error))
        for (size_t i = 0; i < changes.count; i++)
            snprintf(told + strlen(told), 1024 - strlen(told), "%s %s %s\n", changes.each[i].key,
                     changes.each[i].was ? changes.each[i].was : "-", changes.each[i].now ? changes.each[i].now : "-");
    job_changes_free(&changes);
    job_settings_free(&list);
    return now;
}

static void what_is_set_is_told(void **unused)
{
    (void)unused;
    static const char *const cases[][2] = {
        {"optimizer.lr=2e-3", "optimizer.lr 0.001 0.002\n"},
        {"optimizer.lr=0.001", "optimizer.lr 0.001 0.001\n"}, /* to what it is */
        {"optimizer.clip_norm=null", "optimizer.clip_norm 1 null\n"},
        {"optimizer.clip_norm=", "optimizer.clip_norm 1 null\n"},
        {"batch.global=8", "batch.global 4 8\n"},
        {"job.steps=50", "job.steps 100 50\nschedule.total 100 50\n"}, /* a schedule as long as the job stays so */
        {"job.steps=200 schedule.total=150", "job.steps 100 200\nschedule.total 100 150\n"},
        {"schedule.minimum=0", "schedule.minimum 1e-05 0\n"},
        {"checkpoint.every=7 checkpoint.keep=1 checkpoint.keep_every=70 checkpoint.async=false",
         "checkpoint.every 1000 7\ncheckpoint.keep 3 1\ncheckpoint.keep_every 0 70\ncheckpoint.async true false\n"},
        {"precision.loss_scale.interval=5 precision.loss_scale.maximum=1048576",
         "precision.loss_scale.interval 2000 5\nprecision.loss_scale.maximum null 1048576\n"},
        {"precision.loss_scale.on_overflow=retry", /* which has a key more */
         "precision.loss_scale.on_overflow skip retry\nprecision.loss_scale.retries - 8\n"},
        {"precision.loss_scale.retries=5 precision.loss_scale.on_overflow=retry",
         "precision.loss_scale.on_overflow skip retry\nprecision.loss_scale.retries - 5\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char told[1024];
        float scale;
        struct error error;
        Gacc__V1__JobSpec *job = parse(NULL), *now = set(job, cases[i][0], told, &scale, &error);
        if (!now) fail_msg("%s: %s", cases[i][0], error.text);
        assert_string_equal(told, cases[i][1]);
        assert_true(scale == 0);
        gacc__v1__job_spec__free_unpacked(job, NULL);
        gacc__v1__job_spec__free_unpacked(now, NULL);
    }
}

static void what_cannot_be_is_refused_by_name(void **unused)
{
    (void)unused;
    static const struct {
        const char *set, *words;
        enum status status;
        const char *job;
    } cases[] = {
        {"optimizer.lr=-1", "optimizer.lr: ", STATUS_JOB, NULL},
        {"optimizer.lr=\"1\"", "optimizer.lr: ", STATUS_JOB, NULL},
        {"optimizer.lr=fast", "optimizer.lr: ", STATUS_JOB, NULL},
        {"optimizer.lr=1e-6", "schedule.minimum: 1e-05 is above optimizer.lr 1e-06", STATUS_JOB, NULL},
        {"optimizer.lr=0", "optimizer.lr: is 0 while a group has 0.0003", STATUS_JOB, "schedule.minimum=0"},
        {"optimizer.clip_norm=0", "optimizer.clip_norm: ", STATUS_JOB, NULL},
        {"batch.global=1", "batch.micro: 2 is larger than batch.global 1", STATUS_JOB, NULL},
        {"batch.global=2", "batch.micro: 2 makes 1 micro-batch of batch.global 2, fewer than 2 ranks", STATUS_JOB,
         NULL},
        {"job.steps=0", "job.steps: ", STATUS_JOB, NULL},
        {"evaluation.every=3", "evaluation.every: needs data.validation", STATUS_JOB, NULL},
        {"schedule.warmup=101", "schedule.warmup: 101 is above schedule.total 100", STATUS_JOB, NULL},
        {"precision.loss_scale.growth=1", "precision.loss_scale.growth: ", STATUS_JOB, NULL},
        {"precision.loss_scale.current=0", "precision.loss_scale.current: ", STATUS_JOB, NULL},
        {"precision.loss_scale.current=1e39", "precision.loss_scale.current: ", STATUS_JOB, NULL},
        {"precision.loss_scale.current=1024", "precision.loss_scale.current: is above maximum", STATUS_JOB,
         "precision.loss_scale={maximum: 64, initial: 8}"},
        {"precision.loss_scale.current=8", "precision.loss_scale.current: precision.loss_scale.mode static",
         STATUS_UNAVAILABLE, "precision.loss_scale.mode=static"},
        {"precision.loss_scale.current=8", "precision.loss_scale.current: this job has no loss scale",
         STATUS_UNAVAILABLE, "precision.compute=bf16"},
        {"precision.loss_scale.interval=8", "precision.loss_scale.interval: does not apply", STATUS_UNAVAILABLE,
         "precision.compute=bf16"},
        {"precision.loss_scale.retries=5", "precision.loss_scale.retries: does not apply", STATUS_UNAVAILABLE, NULL},
        {"precision.loss_scale.on_overflow=try", "precision.loss_scale.on_overflow: try is not one of", STATUS_JOB,
         NULL},
        {"precision.loss_scale.initial=8", "precision.loss_scale.initial: cannot be changed", STATUS_UNAVAILABLE, NULL},
        {"optimizer.lr=\xff", "optimizer.lr: is not UTF-8", STATUS_JOB, NULL},
        {"batch.micro=1", "batch.micro: cannot be changed while the job runs", STATUS_UNAVAILABLE, NULL},
        {"model.width=16", "model.width: cannot be changed", STATUS_UNAVAILABLE, NULL},
        {"optimizer.groups=1", "optimizer.groups: cannot be changed", STATUS_UNAVAILABLE, NULL},
        {"optimizer={lr: 1}", "optimizer: cannot be changed", STATUS_UNAVAILABLE, NULL},
        {"job.steps=10", "job.tokens: would change from 800 to nothing", STATUS_UNAVAILABLE, "job.tokens=800"},
        {"optimizer.rl=1", "optimizer.rl: unknown key", STATUS_JOB, NULL},
        {"speed=1", "speed: unknown key", STATUS_JOB, NULL},
        {"batch.accumulate=4", "batch.accumulate: is derived: K and M follow", STATUS_JOB, NULL},
        {"K=4", "K: is derived", STATUS_JOB, NULL},
        {"batch.micro_batches=4", "batch.micro_batches: is derived", STATUS_JOB, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_settings list = {0};
        struct job_changes changes;
        struct error error = {0};
        float scale;
        char path[64];
        Gacc__V1__JobSpec *job = parse(cases[i].job), *now;
        snprintf(path, sizeof path, "%.*s", (int)strcspn(cases[i].set, "="), cases[i].set);
        job_settings_put(&list, path, cases[i].set + strlen(path) + 1, &error);
        assert_true(job_set_live(&now, job, &list, 2, &changes, &scale, &error) < 0);
        assert_null(now);
        if (strncmp(error.text, cases[i].words, strlen(cases[i].words)) || error.status != cases[i].status)
            fail_msg("%s: %d %s", cases[i].set, error.status, error.text);
        job_settings_free(&list);
        gacc__v1__job_spec__free_unpacked(job, NULL);
    }
}

/* Else the job could not be gone on with: a file that has both is refused. */
static void a_choice_takes_along_what_is_set_of_the_other(void **unused)
{
    (void)unused;
    static const struct {
        const char *job, *sets[3][2];
        size_t left;
    } cases[] = {
        {"precision.loss_scale.on_overflow=retry", {{"precision.loss_scale.retries", "5"}, {"job.steps", "9"}}, 2},
        {"precision.loss_scale.on_overflow=retry",
         {{"job.steps", "9"}, {"precision.loss_scale.on_overflow", "skip"}, {"precision.loss_scale.retries", "5"}},
         2},
        {NULL, {{"job.steps", "9"}, {"precision.loss_scale.retries", "5"}}, 1},
        {NULL, {{"precision.loss_scale.retries", "5"}, {"precision.loss_scale.on_overflow", "retry"}}, 2},
        {"precision.compute=bf16",
         {{"precision.loss_scale.retries", "5"}, {"precision.loss_scale.on_overflow", "retry"}},
         0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job_settings list = {0};
        struct job_changes changes = {0};
        struct error error;
        float scale;
        Gacc__V1__JobSpec *job = parse(cases[i].job), *now = NULL;
        for (size_t k = 0; k < 3 && cases[i].sets[k][0]; k++)
            assert_int_equal(job_settings_put(&list, cases[i].sets[k][0], cases[i].sets[k][1], &error), 0);
        assert_int_equal(job_settings_drop(&list, job, &error), 0);
        assert_int_equal(list.count, cases[i].left);
        if (list.count > 0 && job_set_live(&now, job, &list, 2, &changes, &scale, &error)) fail_msg("%s", error.text);
        if (now) gacc__v1__job_spec__free_unpacked(now, NULL);
        job_changes_free(&changes);
        job_settings_free(&list);
        gacc__v1__job_spec__free_unpacked(job, NULL);
    }
}

static void groups_keep_their_ratio_to_the_last_bit(void **unused)
{
    (void)unused;
    Gacc__V1__JobSpec *job = parse(NULL);
    const double ratio = job->optimizer->groups[0]->lr / job->optimizer->lr;
    for (int i = 1; i <= 50; i++) {
        char text[64], told[1024];
        float scale;
        struct error error;
        snprintf(text, sizeof text, "optimizer.lr=%.17g", 1e-3 * i / 7);
        Gacc__V1__JobSpec *now = set(job, text, told, &scale, &error);
        assert_non_null(now);
        assert_true(now->optimizer->groups[0]->lr_ratio == ratio);
        assert_true(now->optimizer->groups[0]->lr == ratio * now->optimizer->lr);
        gacc__v1__job_spec__free_unpacked(job, NULL);
        job = now;
    }
    gacc__v1__job_spec__free_unpacked(job, NULL);
}

/* The first one's of a list is live, by its index as in the file; the others follow it. */
static void further_optimizers_keep_their_ratio(void **unused)
{
    (void)unused;
    static const char list[] =
        "optimizer=[{name: a, match: wte.*, lr: 1e-3, clip_norm: 1}, {name: b, match: \"*\", type: sgd, "
        "lr: 4e-3, groups: [{match: \"*.bias\", lr: 2e-3}]}]";
    char told[1024];
    float scale;
    struct error error;
    Gacc__V1__JobSpec *job = parse(list),
                      *now = set(job, "optimizer.0.lr=5e-4 optimizer.0.clip_norm=2", told, &scale, &error);
    assert_non_null(now);
    assert_string_equal(told, "optimizer.0.lr 0.001 0.0005\noptimizer.0.clip_norm 1 2\n");
    assert_true(now->optimizer->lr == 5e-4 && now->optimizer->clip_norm == 2);
    assert_true(now->further_optimizers[0]->lr == 4 * 5e-4 && now->further_optimizers[0]->groups[0]->lr == 2 * 5e-4);
    gacc__v1__job_spec__free_unpacked(job, NULL);
    job = set(now, "optimizer.0.lr=1e-3 optimizer.0.clip_norm=2", told, &scale, &error);
    assert_non_null(job);
    assert_true(job->further_optimizers[0]->lr == 4e-3 && job->further_optimizers[0]->lr_ratio == 4);
    assert_string_equal(told, "optimizer.0.lr 0.0005 0.001\noptimizer.0.clip_norm 2 2\n");
    static const struct {
        const char *setting, *words;
        enum status status;
    } refused[] = {
        {"optimizer.1.lr=1",
         "optimizer.1.lr: cannot be changed while the job runs: the others of the list follow optimizer.0.lr",
         STATUS_UNAVAILABLE},
        {"optimizer.0.eps=1", "optimizer.0.eps: cannot be changed while the job runs", STATUS_UNAVAILABLE},
        {"optimizer.1=1", "optimizer.1: cannot be changed while the job runs", STATUS_UNAVAILABLE},
        {"optimizer.lr=1", "optimizer.lr: no element lr: a list's go by their index, from 0", STATUS_JOB},
        {"optimizer.3.lr=1", "optimizer.3.lr: no element 3: the list has 2", STATUS_JOB},
        {"optimizer.00.lr=1", "optimizer.00.lr: no element 00: a list's go by their index, from 0", STATUS_JOB},
        {"optimizer.0.learning_rate=1", "optimizer.0.learning_rate: unknown key; did you mean lr?", STATUS_JOB},
        {"optimizer.0.lr=-1", "optimizer.0.lr: -1 is too small", STATUS_JOB},
        {"optimizer.0.lr=0", "optimizer.0.lr: is 0 while another optimizer has 0.004", STATUS_JOB},
        {"optimizer.0.lr=1e-6", "schedule.minimum: 1e-05 is above optimizer.0.lr 1e-06", STATUS_JOB},
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(set(job, refused[i].setting, told, &scale, &error));
        if (strncmp(error.text, refused[i].words, strlen(refused[i].words)) || error.status != refused[i].status)
            fail_msg("%s: %d %s", refused[i].setting, error.status, error.text);
    }
    gacc__v1__job_spec__free_unpacked(now, NULL);
    gacc__v1__job_spec__free_unpacked(job, NULL);
}

/* By the path that a job file would have, whichever optimizer has it; told by that path. */
static void a_group_is_frozen_by_its_number(void **unused)
{
    (void)unused;
    static const char list[] =
        "optimizer=[{name: a, match: wte.*, lr: 1e-3}, {name: b, match: \"*\", lr: 4e-3, "
        "groups: [{match: h.*}, {match: \"*.bias\", frozen: true}, {match: ln*, frozen_from: 9}]}]";
    static const struct {
        const char *setting, *word;
        enum status status;
    } refused[] = {
        {"optimizer.1.groups.4.frozen=true", "no element 4: the list has 3", STATUS_JOB},
        {"optimizer.0.groups.0.frozen=true", "optimizer.0.groups.0.match: is missing", STATUS_JOB}, /* it has none */
        {"optimizer.groups.0.frozen=true", "no element groups", STATUS_JOB},
        {"optimizer.1.groups.0.frozen=1", "is not true or false", STATUS_JOB},
        {"optimizer.1.groups.*.frozen=true", "in place of *", STATUS_JOB},
        {"optimizer.1.groups.2.frozen=true", "follows its frozen_from", STATUS_UNAVAILABLE},
        {"optimizer.1.groups.0.lr=1", "cannot be changed while the job runs", STATUS_UNAVAILABLE},
    };
    char told[1024];
    float scale;
    struct error error;
    Gacc__V1__JobSpec *job = parse(list);
    Gacc__V1__JobSpec *now =
        set(job, "optimizer.1.groups.0.frozen=true optimizer.1.groups.1.frozen=false", told, &scale, &error);
    assert_non_null(now);
    assert_string_equal(told, "optimizer.1.groups.0.frozen false true\noptimizer.1.groups.1.frozen true false\n");
    assert_true(now->further_optimizers[0]->groups[0]->frozen && !now->further_optimizers[0]->groups[1]->frozen);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        assert_null(set(job, refused[i].setting, told, &scale, &error));
        assert_int_equal(error.status, refused[i].status);
        if (!strstr(error.text, refused[i].word)) fail_msg("%s: %s", refused[i].setting, error.text);
    }
    gacc__v1__job_spec__free_unpacked(now, NULL);
    gacc__v1__job_spec__free_unpacked(job, NULL);
}

static void the_present_scale_is_no_key_of_the_job(void **unused)
{
    (void)unused;
    char told[1024];
    float scale;
    struct error error;
    Gacc__V1__JobSpec *job = parse(NULL), *now = set(job, "precision.loss_scale.current=1024", told, &scale, &error),
                      *file;
    assert_non_null(now);
    assert_true(scale == 1024);
    assert_string_equal(told, "");
    const char *in_file = "precision.loss_scale.current=1";
    const struct job_overrides overrides = {.sets = &in_file, .set_count = 1};
    assert_true(job_parse(&file, base, strlen(base), "job.yaml", &overrides, NULL, &error) < 0);
    assert_non_null(strstr(error.text, "the scale of a running job"));
    gacc__v1__job_spec__free_unpacked(job, NULL);
    gacc__v1__job_spec__free_unpacked(now, NULL);
}

/* What GetConfig tells is what is taken, and told by that path; a file takes it as well, but for the present scale. */
static void taken(const char *optimizer, size_t groups)
{
    struct live_paths live;
    Gacc__V1__JobSpec *job = parse(optimizer);
    job_live_paths(job, &live);
    assert_int_equal(live.count, 22 + groups);
    for (size_t i = 0; i < live.count; i++) {
        char text[128], told[1024], *value = job_value_text(job, live.paths[i]);
        float scale;
        struct error error;
        snprintf(text, sizeof text, "%s=%s", live.paths[i], value ? value : "8");
        Gacc__V1__JobSpec *now = set(job, text, told, &scale, &error);
        if (!now) fail_msg("%s: %s", text, error.text);
        const bool is_scale = !strcmp(live.paths[i], LIVE_SCALE);
        if (!is_scale && (strncmp(told, live.paths[i], strlen(live.paths[i])) || told[strlen(live.paths[i])] != ' '))
            fail_msg("%s: told as %s", text, told);
        const char *const sets[] = {optimizer ? optimizer : text, text};
        const struct job_overrides overrides = {.sets = sets, .set_count = 2};
        Gacc__V1__JobSpec *file = NULL;
        if (!is_scale && job_parse(&file, base, strlen(base), "job.yaml", &overrides, NULL, &error))
            fail_msg("--set %s: %s", text, error.text);
        if (file) gacc__v1__job_spec__free_unpacked(file, NULL);
        gacc__v1__job_spec__free_unpacked(now, NULL);
        free(value);
    }
    gacc__v1__job_spec__free_unpacked(job, NULL);
}

static void every_path_that_is_live_is_taken(void **unused)
{
    (void)unused;
    taken(NULL, 1);
    taken("optimizer=[{name: a, match: wte.*, lr: 1e-3, groups: [{match: h.*}]}, {name: b, match: \"*\", lr: 4e-3, "
          "groups: [{match: h.*}, {match: ln*, frozen_from: 9}]}]",
          2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_set_is_told),
        cmocka_unit_test(what_cannot_be_is_refused_by_name),
        cmocka_unit_test(a_choice_takes_along_what_is_set_of_the_other),
        cmocka_unit_test(groups_keep_their_ratio_to_the_last_bit),
        cmocka_unit_test(further_optimizers_keep_their_ratio),
        cmocka_unit_test(a_group_is_frozen_by_its_number),
        cmocka_unit_test(the_present_scale_is_no_key_of_the_job),
        cmocka_unit_test(every_path_that_is_live_is_taken),
    };
    return cmocka_run_group_tests(tests, open_all, scratch_close);
}
