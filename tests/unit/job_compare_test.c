/* A job that goes on from a checkpoint: what it may change, must not change, and changes only where --set says so. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/job/compare.h"
#include "scratch.h"

static const char base[] =
    "{job: {steps: 100, seed: 3}, model: {type: gpt, layers: 1, heads: 1, width: 8, context: 8, vocab: 256},"
    "data: {format: bytes, train: \"${TEXT}\"}, batch: {global: 4, micro: 2},"
    "precision: {compute: fp16}, optimizer: {lr: 1e-3, weight_decay: 0.1, clip_norm: 1,"
    "groups: [{match: \"*.bias\", weight_decay: 0}]}, schedule: {type: cosine}}";

static int open_all(void **state)
{
    if (scratch_open(state)) return -1;
    char *text = scratch_file("text", "0123456789012345678901234567890123456789", 40);
    setenv("TEXT", text, 1);
    free(text);
    text = scratch_file("other", "0123456789012345678901234567890123456789", 40);
    setenv("OTHER", text, 1);
    free(text);
    return 0;
}

static Gacc__V1__JobSpec *parse(const char *const *sets, size_t count)
{
    Gacc__V1__JobSpec *job;
    struct error error;
    const struct job_overrides overrides = {.sets = sets, .set_count = count};
    if (job_parse(&job, base, strlen(base), "job.yaml", &overrides, NULL, &error)) fail_msg("%s", error.text);
    return job;
}

/* What differs when the file says so (not the command line), each as "key rule"; and the error if it is refused. */
static void compare(const char *set, const char *named, char found[1024], struct error *error)
{
    struct job_changes changes;
    Gacc__V1__JobSpec *was = parse(NULL, 0), *now = parse(&set, set ? 1 : 0);
    const struct job_overrides overrides = {.sets = &named, .set_count = named ? 1 : 0};
    assert_int_equal(job_compare(&changes, was, now, &overrides, error), 0);
    found[0] = '\0';
    for (size_t i = 0; i < changes.count; i++)
        snprintf(found + strlen(found), 1024 - strlen(found), "%s %d\n", changes.each[i].key, changes.each[i].rule);
    error->status = STATUS_DONE;
    job_changes_check(&changes, error);
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(was, NULL);
    gacc__v1__job_spec__free_unpacked(now, NULL);
}

static void what_must_not_differ_is_refused_by_name(void **unused)
{
    (void)unused;
    static const char *const sets[][2] = {
        {"model.width=16", "model.width: 16 here, 8 in the checkpoint"},
        {"model.layers=2", "model.layers"},
        {"model.dropout=0.1", "model.dropout"},
        {"job.seed=4", "job.seed: 4 here, 3 in the checkpoint"},
        {"data.train=${OTHER}", "data.train"},
        {"data.order=sequential", "data.order"},
        {"data.format=u16",
         "data.format: u16 here, bytes in the checkpoint: "}, /* vocab is the same, by another rule */
        {"data.validation=0.25", "data.validation"},
        {"batch.global=8", "batch.global: 8 here, 4 in the checkpoint"},
        {"batch.tokens=64", "batch.global: 8 here, 4 in the checkpoint"},
        {"batch.weighting=sum", "batch.weighting"},
        {"batch.tail=drop", "batch.tail"},
        {"optimizer.type=sgd", "optimizer.type: sgd here, adamw in the checkpoint"},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char found[1024];
        struct error error;
        compare(sets[i][0], sets[i][0], found, &error); /* --set or not */
        assert_int_equal(error.status, STATUS_JOB);
        if (strncmp(error.text, sets[i][1], strlen(sets[i][1]))) fail_msg("%s: %s", sets[i][0], error.text);
    }
}

static void what_may_differ_is_listed(void **unused)
{
    (void)unused;
    static const char *const sets[][2] = {
        {"batch.micro=1", "batch.micro 0\n"},
        {"job.steps=200", "job.steps 0\n"},
        {"job.epochs=2", "job.steps 0\njob.epochs 0\n"},
        {"job.name=x", ""},
        {"job.output=x", ""},
        {"precision.nonfinite_stop_after=9", "precision.nonfinite_stop_after 0\n"},
        {"precision.loss_scale.profile=megatron", "precision.loss_scale.profile 0\n"},
        {"optimizer.clip_norm=2", "optimizer.clip_norm 0\n"},
        {"schedule.total=50", "schedule.total 0\n"},
        {"schedule.warmup=5", "schedule.warmup 0\n"},
        {"checkpoint.every=7", "checkpoint.every 0\n"},
        {"control.timeout=5", "control.timeout 0\n"},
        {"model.pad_vocab=64", "model.pad_vocab 0\n"},
        {"verify=required", "verify 0\n"},
    };
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        char found[1024];
        struct error error;
        compare(sets[i][0], NULL, found, &error);
        assert_int_equal(error.status, 0);
        if (!strstr(found, sets[i][1]) || (!sets[i][1][0] && found[0])) fail_msg("%s: %s", sets[i][0], found);
    }
    char found[1024];
    struct error error;
    compare("precision.compute=bf16", NULL, found, &error);
    assert_int_equal(error.status, 0);
    assert_non_null(strstr(found, "precision.compute 0\n"));
    assert_non_null(strstr(found, "precision.loss_scale.profile 0\n")); /* it is gone */
}

/* `set` is in the file now; with --set it would also be in `named`. */
static double kept(const char *set, const char *named, double (*value)(const Gacc__V1__JobSpec *))
{
    struct job_changes changes;
    struct error error;
    Gacc__V1__JobSpec *was = parse(NULL, 0), *now = parse(&set, 1);
    const struct job_overrides overrides = {.sets = &named, .set_count = named ? 1 : 0};
    assert_int_equal(job_compare(&changes, was, now, &overrides, &error), 0);
    assert_int_equal(job_changes_check(&changes, &error), 0);
    assert_int_equal(job_changes_keep(&changes, was, now, &error), 0);
    const double found = value(now);
    Gacc__V1__JobSpec *again = parse(&set, 1);
    const bool same = !memcmp(was->digest.data, now->digest.data, 32);
    const bool as_written = !memcmp(again->digest.data, now->digest.data, 32);
    assert_true(named ? as_written : same); /* the digest is that of the job as it runs */
    gacc__v1__job_spec__free_unpacked(again, NULL);
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(was, NULL);
    gacc__v1__job_spec__free_unpacked(now, NULL);
    return found;
}

static double lr(const Gacc__V1__JobSpec *job)
{
    return job->optimizer->lr;
}

static double group_lr(const Gacc__V1__JobSpec *job)
{
    return job->optimizer->groups[0]->lr;
}

static double beta2(const Gacc__V1__JobSpec *job)
{
    return job->optimizer->beta2;
}

static double weight_decay(const Gacc__V1__JobSpec *job)
{
    return job->optimizer->weight_decay;
}

static double groups(const Gacc__V1__JobSpec *job)
{
    return (double)job->optimizer->n_groups;
}

static void the_optimizer_stays_as_it_was_unless_set_names_it(void **unused)
{
    (void)unused;
    assert_true(kept("optimizer.lr=2e-3", NULL, lr) == 1e-3);
    assert_true(kept("optimizer.lr=2e-3", "optimizer.lr=2e-3", lr) == 2e-3);
    assert_true(kept("optimizer.lr=2e-3", "optimizer.lr=2e-3", group_lr) == 2e-3);
    assert_true(kept("optimizer.lr=2e-3", NULL, group_lr) == 1e-3);
    assert_true(kept("optimizer.betas=[0.9, 0.95]", NULL, beta2) == 0.999);
    assert_true(kept("optimizer.betas=[0.9, 0.95]", "optimizer.betas=[0.9, 0.95]", beta2) == 0.95);
    assert_true(kept("optimizer.weight_decay=0.2", NULL, weight_decay) == 0.1);
    assert_true(kept("optimizer.weight_decay=0.2", "optimizer.weight_decay=0.2", weight_decay) == 0.2);
    assert_true(kept("optimizer.groups=[]", NULL, groups) == 1);
    assert_true(kept("optimizer.groups=[]", "optimizer.groups=[]", groups) == 0);
}

#define LIST(lr, momentum)                     \
    "optimizer=[{name: a, match: h.*, lr: " lr \
    ", clip_norm: 1}, {name: b, match: \"*\", type: sgd, lr: 0.1, momentum: " momentum "}]"

static double further_momentum(const Gacc__V1__JobSpec *job)
{
    return job->further_optimizers[0]->momentum;
}

static double further_lr(const Gacc__V1__JobSpec *job)
{
    return job->further_optimizers[0]->lr;
}

/* Both jobs have a list. */
static double kept_of_list(const char *then, const char *now_set, const char *named,
                           double (*value)(const Gacc__V1__JobSpec *))
{
    struct job_changes changes;
    struct error error;
    Gacc__V1__JobSpec *was = parse(&then, 1), *now = parse(&now_set, 1);
    const struct job_overrides overrides = {.sets = &named, .set_count = named ? 1 : 0};
    assert_int_equal(job_compare(&changes, was, now, &overrides, &error), 0);
    double found = (double)NAN;
    if (!job_changes_check(&changes, &error)) {
        assert_int_equal(job_changes_keep(&changes, was, now, &error), 0);
        found = value(now);
    }
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(was, NULL);
    gacc__v1__job_spec__free_unpacked(now, NULL);
    return found;
}

static void every_optimizer_of_a_list_stays_as_it_was_unless_set_names_it(void **unused)
{
    (void)unused;
    const char *then = LIST("1e-3", "0.9"), *other = LIST("2e-3", "0.8");
    assert_true(kept_of_list(then, other, NULL, lr) == 1e-3);
    assert_true(kept_of_list(then, other, NULL, further_momentum) == 0.9);
    assert_true(kept_of_list(then, other, "optimizer.1.momentum=0.8", further_momentum) == 0.8);
    assert_true(kept_of_list(then, other, "optimizer.0.lr=2e-3", lr) == 2e-3);
    assert_true(kept_of_list(then, other, "optimizer.0.eps=1e-8", lr) == 1e-3);
    assert_true(kept_of_list(then, then, NULL, further_lr) == 0.1);
    static const char *const others[] = {
        "optimizer=[{name: a, match: h.*, lr: 1e-3}, {name: b, match: \"*\", lr: 0.1}]",
        "optimizer=[{name: a, match: w*, lr: 1e-3}, {name: b, match: \"*\", type: sgd, lr: 0.1}]",
        "optimizer=[{name: a, match: \"*\", lr: 1e-3}]", "optimizer.eps=1e-8"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(isnan(kept_of_list(then, others[i], others[i], lr))); /* refused, whatever is named */
}

/* As the file has them, so that --set of the key that is told is what changes it. */
static void what_differs_in_a_list_is_told_by_its_path(void **unused)
{
    (void)unused;
    struct job_changes changes;
    struct error error;
    const char *then = LIST("1e-3", "0.9"), *other = LIST("2e-3", "0.8");
    Gacc__V1__JobSpec *was = parse(&then, 1), *now = parse(&other, 1);
    assert_int_equal(job_compare(&changes, was, now, NULL, &error), 0);
    assert_int_equal(changes.count, 2);
    assert_string_equal(changes.each[0].key, "optimizer.0.lr");
    assert_string_equal(changes.each[1].key, "optimizer.1");
    assert_non_null(strstr(changes.each[1].now, "{name: \"b\", match: \"*\", type: sgd, lr: 0.1, "));
    assert_non_null(strstr(changes.each[1].now, "momentum: 0.8"));
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(now, NULL);
    now = parse(NULL, 0);
    assert_int_equal(job_compare(&changes, was, now, NULL, &error), 0);
    assert_int_equal(job_changes_check(&changes, &error), -STATUS_JOB);
    if (strncmp(error.text, "optimizer: not there here, {h.*: adamw, *: sgd} in", 50)) fail_msg("%s", error.text);
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(was, NULL);
    gacc__v1__job_spec__free_unpacked(now, NULL);
}

/* A setting is left where --set names it, by the same path, or a section around it. */
static void a_setting_of_a_list_is_named_by_its_path(void **unused)
{
    (void)unused;
    static const struct {
        const char *set, *path;
        bool is_named;
    } cases[] = {
        {"optimizer.0.lr=1", "optimizer.0.lr", true},
        {"optimizer.0.eps=1", "optimizer.0.lr", false},
        {"optimizer.1.lr=1", "optimizer.0.lr", true}, /* a rate: they are worked out together */
        {"optimizer.1.momentum=0", "optimizer.1.groups.0.frozen", false},
        {"optimizer.1.groups=[]", "optimizer.1.groups.0.frozen", true},
        {"optimizer=[]", "optimizer.1.groups.0.frozen", true},
        {"optimizer.0.groups.0.frozen=true", "optimizer.1.groups.0.frozen", false},
        {"batch.base=1", "optimizer.lr", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct job_overrides overrides = {.sets = &cases[i].set, .set_count = 1};
        if (job_is_named(&overrides, cases[i].path) != cases[i].is_named)
            fail_msg("%s, %s", cases[i].set, cases[i].path);
    }
}

static void the_same_job_differs_in_nothing(void **unused)
{
    (void)unused;
    char found[1024];
    struct error error;
    compare(NULL, NULL, found, &error);
    assert_string_equal(found, "");
    assert_int_equal(error.status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_must_not_differ_is_refused_by_name),
        cmocka_unit_test(what_may_differ_is_listed),
        cmocka_unit_test(the_optimizer_stays_as_it_was_unless_set_names_it),
        cmocka_unit_test(every_optimizer_of_a_list_stays_as_it_was_unless_set_names_it),
        cmocka_unit_test(what_differs_in_a_list_is_told_by_its_path),
        cmocka_unit_test(a_setting_of_a_list_is_named_by_its_path),
        cmocka_unit_test(the_same_job_differs_in_nothing),
    };
    return cmocka_run_group_tests(tests, open_all, scratch_close);
}
