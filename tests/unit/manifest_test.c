/* The manifest of a checkpoint: what is written is read back, anything else is refused; and the directories around it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <sys/stat.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/job/job.h"
#include "histories.h"
#include "scratch.h"

static const char tape[] = "job: {steps: 9}\n"
                           "model: {type: tape, size: 2}\n"
                           "data: {format: csv, train: \"${TEXT}\"}\n"
                           "batch: {global: 4, micro: 4}\n"
                           "precision: {compute: fp16}\n"
                           "optimizer: {type: sgd, lr: 1}\n";

static Gacc__V1__JobSpec *job;

static int open_all(void **state)
{
    struct error error;
    if (scratch_open(state)) return -1;
    char *text = scratch_file("text", "weight,g0,g1\n", 13);
    setenv("TEXT", text, 1);
    free(text);
    return job_parse(&job, tape, strlen(tape), "job.yaml", NULL, NULL, &error);
}

static int close_all(void **state)
{
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return scratch_close(state);
}

static void add_range(struct manifest *manifest, const char *file, uint64_t begin, uint64_t end, uint32_t rank)
{
    struct manifest_range *range = &manifest->ranges[manifest->range_count++];
    *range = (struct manifest_range){.begin = begin, .end = end, .rank = rank};
    snprintf(range->file, sizeof range->file, "%s", file);
    memset(range->checksum, (int)(begin + 1), CHECKSUM_BYTES);
}

/* In no order, as ranks report them. */
static void make_any(struct manifest *manifest, uint64_t *random)
{
    *manifest =
        (struct manifest){.ranks = 2, .parameters = 2, .program = "0.1.0", .time = "2026-01-02T03:04:05Z", .job = job};
    manifest->ranges = calloc(4, sizeof *manifest->ranges);
    add_range(manifest, "optimizer-00001-of-00002.safetensors", 0, 64, 1);
    add_range(manifest, "model.safetensors", 100, 200, 1);
    add_range(manifest, "model.safetensors", 0, 100, 0);
    struct progress *progress = &manifest->progress;
    struct step_counters *counters = &progress->counters;
    counters->optimizer_steps = counters->scheduler_steps = random_between(random, 0, 1000);
    counters->skipped_steps = random_between(random, 0, 10);
    counters->empty_steps = random_between(random, 0, 10);
    counters->step = counters->optimizer_steps + counters->skipped_steps + counters->empty_steps;
    counters->tokens_seen = random_between(random, 0, INT64_MAX);
    progress->nonfinite_in_a_row = (uint32_t)random_between(random, 0, 3);
    progress->has_scaler = random_chance(random, 0.5);
    if (progress->has_scaler)
        progress->scale = (struct loss_scale){.scale = (float)random_between(random, 1, 1 << 20) * 0x1.234568p-9F,
                                              .growth_tracker = (uint32_t)random_between(random, 0, 2000),
                                              .hysteresis_tracker = 2,
                                              .skips_at_minimum = 1};
    progress->train_sequences = random_between(random, 1, 1000);
    progress->position =
        (struct plan_position){random_between(random, 0, 9), random_between(random, 0, progress->train_sequences - 1)};
    progress->has_plan = random_chance(random, 0.7);
    if (progress->has_plan) progress->plan = (struct plan){progress->position.epoch, progress->position.first, 1, 1, 0};
    progress->sequences_seen = random_between(random, 0, 1000000);
    progress->epoch_weight = (double)random_between(random, 0, 1000) / 7;
    progress->was_evaluated = random_chance(random, 0.5);
    if (progress->was_evaluated) progress->evaluated_at = random_between(random, 0, 1000);
    progress->has_loss = random_chance(random, 0.5);
    if (progress->has_loss) progress->loss = (double)random_between(random, 0, 1000) / 3;
    progress->has_validation = random_chance(random, 0.5);
    if (progress->has_validation) {
        progress->validation_loss = (double)random_between(random, 0, 1000) / 3;
        progress->validation_optimizer_steps = random_between(random, 0, 1000);
    }
    const struct warnings_step step = {.applied = true, .clips = true, .clipped = true, .grew = true};
    for (uint64_t i = random_between(random, 0, 3 * WARNINGS_WINDOW); i > 0; i--) {
        struct warnings_step other = step;
        other.skipped = !(other.applied = random_chance(random, 0.7));
        warnings_update(&progress->warnings, &other);
    }
}

static void release(struct manifest *manifest)
{
    if (manifest->job == job) manifest->job = NULL;
    manifest_free(manifest);
}

/* Rings that hold the same attempts behave the same, wherever in their memory these lie. */
static void check_rings(const struct warnings_ring *one, const struct warnings_ring *other)
{
    char a[WARNINGS_WINDOW + 1], b[WARNINGS_WINDOW + 1];
    warnings_ring_write(one, a);
    warnings_ring_write(other, b);
    assert_string_equal(a, b);
    assert_int_equal(one->count, other->count);
    assert_memory_equal(one->sums, other->sums, sizeof one->sums);
}

static void what_is_written_is_read_back(void **unused)
{
    (void)unused;
    uint64_t random = 3;
    for (int i = 0; i < 300; i++) {
        struct manifest written, read;
        struct error error;
        size_t length;
        make_any(&written, &random);
        if (i % 2) job_settings_put(&written.settings, "optimizer.lr", "3e-4", &error);
        if (i % 3) job_settings_put(&written.settings, "optimizer.clip_norm", "null", &error);
        char *text = manifest_text(&written, &length);
        assert_non_null(text);
        if (manifest_parse(&read, text, length, "m", &error)) fail_msg("%s", error.text);
        assert_int_equal(read.settings.count, written.settings.count);
        for (size_t j = 0; j < read.settings.count; j++) {
            assert_string_equal(read.settings.each[j].path, written.settings.each[j].path);
            assert_string_equal(read.settings.each[j].value, written.settings.each[j].value);
        }
        const struct progress *a = &written.progress, *b = &read.progress;
        assert_memory_equal(&a->counters, &b->counters, sizeof a->counters);
        assert_memory_equal(&a->scale, &b->scale, sizeof a->scale);
        assert_memory_equal(&a->plan, &b->plan, sizeof a->plan);
        assert_memory_equal(&a->position, &b->position, sizeof a->position);
        assert_int_equal(a->has_plan, b->has_plan);
        assert_int_equal(a->has_scaler, b->has_scaler);
        assert_true(a->epoch_weight == b->epoch_weight && a->loss == b->loss &&
                    a->validation_loss == b->validation_loss);
        assert_int_equal(a->has_loss + 2 * a->has_validation + 4 * a->was_evaluated,
                         b->has_loss + 2 * b->has_validation + 4 * b->was_evaluated);
        assert_int_equal(a->evaluated_at, b->evaluated_at);
        assert_int_equal(a->sequences_seen, b->sequences_seen);
        assert_int_equal(a->train_sequences, b->train_sequences);
        check_rings(&a->warnings.attempts, &b->warnings.attempts);
        check_rings(&a->warnings.applied, &b->warnings.applied);
        assert_memory_equal(a->warnings.quiet, b->warnings.quiet, sizeof a->warnings.quiet);
        assert_memory_equal(read.job->digest.data, job->digest.data, 32);
        assert_int_equal(read.range_count, 3);
        assert_memory_equal(read.ranges, written.ranges, 3 * sizeof *read.ranges);
        free(text);
        release(&read);
        release(&written);
    }
}

/* A path of keys and indices in the object: a new value (JSON), or NULL to take it away. */
static void change(json_t *root, const char *path, const char *value)
{
    char copy[128], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root;
    for (char *word = strtok_r(copy, ".", &rest), *next; word; word = next) {
        next = strtok_r(NULL, ".", &rest);
        json_t *made = value && !next ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
        if (next)
            at = json_is_array(at) ? json_array_get(at, strtoul(word, NULL, 10)) : json_object_get(at, word);
        else if (json_is_array(at))
            json_array_set_new(at, strtoul(word, NULL, 10), made);
        else if (made)
            json_object_set_new(at, word, made);
        else
            json_object_del(at, word);
    }
}

static void anything_else_is_refused(void **unused)
{
    (void)unused;
    static const struct {
        const char *path, *value, *why;
    } cases[] = {
        {"format", "\"gaccd\"", "m: format: is not that of a checkpoint"},
        {"format", NULL, "m: format: is not that of a checkpoint"},
        {"version", "0", "m: version: 0, this gaccd reads up to 2"},
        {"version", "3", "m: version: 3, this gaccd reads up to 2"},
        {"version", "\"1\"", "m: version: is no number that can stand here"},
        {"time", NULL, "m: time: is missing"},
        {"gaccd", "\"0123456789012345678901234567890123456789\"", "m: gaccd: is too long"},
        {"step", NULL, "m: step: is missing"},
        {"step", "-1", "m: step: is no number that can stand here"},
        {"step", "1.5", "m: step: is no number that can stand here"},
        {"step", "123456", "m: step: applied, skipped and empty steps do not add up to it"},
        {"optimizer_steps", "9223372036854775807", "m: step: applied, skipped and empty steps do not add up to it"},
        {"scheduler_steps", "123456", "m: step: applied, skipped and empty steps do not add up to it"},
        {"nonfinite_in_a_row", "4294967296", "m: nonfinite_in_a_row: is no number that can stand here"},
        {"loss_scale", "3", "m: loss_scale: is no object"},
        {"loss_scale", NULL, "m: loss_scale: is missing"},
        {"loss_scale.scale", "0", "m: loss_scale.scale: is no loss scale"},
        {"loss_scale.scale", "-8", "m: loss_scale.scale: is no loss scale"},
        {"loss_scale.scale", "1e39", "m: loss_scale.scale: is no loss scale"},
        {"loss_scale.scale", "1.00000000001", "m: loss_scale.scale: is no loss scale"},
        {"loss_scale.scale", "null", "m: scale: is no number"},
        {"data", "null", "m: data: is null"},
        {"data.first", "1000000", "m: first: is no number that can stand here"},
        {"data.epoch_weight", "\"x\"", "m: epoch_weight: is no number"},
        {"plan.step", "1", "m: plan: is not that of the next step at this place in the data"},
        {"plan.count", "0", "m: plan: is not that of the next step at this place in the data"},
        {"plan.count", "100000", "m: plan: is not that of the next step at this place in the data"},
        {"loss", NULL, "m: loss: is missing"},
        {"warnings.attempts", "\"g\"", "m: warnings: is no account of the last steps"},
        {"warnings.quiet", "[]", "m: warnings: is no account of the last steps"},
        {"warnings.quiet.0", "-1", "m: warnings.quiet: holds an impossible number"},
        {"job_packed", NULL, "m: job_packed: is missing, or job_digest is"},
        {"job_packed", "\"00\"", "m: job_packed: is no job"},
        {"job_packed", "\"zz\"", "m: job_packed: is no job"},
        {"job_packed", "\"\"", "m: job_packed: is no job"},
        {"job_digest", "\"00\"", "m: job_digest: is not that of the job"},
        {"verify", "7", "m: verify: is no receipt"},
        {"files", NULL, "m: files: is missing"},
        {"files", "{}", "m: files: is missing"},
        {"files.0.file", "\"../model.safetensors\"", "m: files: holds a name that is none"},
        {"files.0.file", "\".\"", "m: files: holds a name that is none"},
        {"files.0.file", "\"\"", "m: files: holds a name that is none"},
        {"files.0.file", "\"manifest.json\"", "m: files: holds a name that is none"},
        {"files.0.file", "\"optimizer-00001-of-00002.safetensors\"", "stands there twice"},
        {"files.0.bytes", "201", "m: model.safetensors: its ranges are not the whole file"},
        {"files.0.ranges", "[]", "m: model.safetensors: its ranges are not the whole file"},
        {"files.0.ranges.0.begin", "1", "m: model.safetensors: its ranges do not follow one another"},
        {"files.0.ranges.1.begin", "99", "m: model.safetensors: its ranges do not follow one another"},
        {"files.0.ranges.1.begin", "101", "m: model.safetensors: its ranges do not follow one another"},
        {"files.0.ranges.1.end", "100", "m: model.safetensors: its ranges do not follow one another"},
        {"files.0.ranges.1.rank", "2", "m: model.safetensors: its ranges do not follow one another"},
        {"files.0.ranges.1.xxh3_128", "\"12\"", "m: xxh3_128: is no checksum"},
        {"tokens_seen", "7", "m: xxh3_128: is not the checksum of what was written before it"},
        {"xxh3_128", NULL, "m: xxh3_128: is not the checksum of what was written before it"},
    };
    uint64_t random = 5;
    struct manifest written, read;
    size_t length;
    do make_any(&written, &random);
    while (!written.progress.has_plan || !written.progress.has_scaler);
    char *text = manifest_text(&written, &length);
    release(&written);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        json_t *root = json_loadb(text, length, 0, NULL);
        change(root, cases[i].path, cases[i].value);
        char *changed = json_dumps(root, JSON_REAL_PRECISION(17));
        int status = manifest_parse(&read, changed, strlen(changed), "m", &error);
        if (status != -STATUS_DATA || !strstr(error.text, cases[i].why))
            fail_msg("%s = %s: %d %s", cases[i].path, cases[i].value, status, error.text);
        free(changed);
        json_decref(root);
    }
    for (size_t cut = 0; cut < length - 1; cut += 7) { /* whatever a crash would leave of it */
        struct error error;
        assert_int_equal(manifest_parse(&read, text, cut, "m", &error), -STATUS_DATA);
    }
    free(text);
}

/* A digit of a tracker, a letter of the job's text: most flipped bits leave a manifest that could have been written. */
static void every_bit_of_it_counts(void **unused)
{
    (void)unused;
    uint64_t random = 7;
    struct manifest written, read;
    struct error error;
    size_t length;
    make_any(&written, &random);
    job_settings_put(&written.settings, "optimizer.lr", "3e-4", &error);
    char *text = manifest_text(&written, &length);
    release(&written);
    for (size_t i = 0; i < length; i++) {
        const char bit = (char)(1 << random_between(&random, 0, 7));
        text[i] ^= bit;
        if (manifest_parse(&read, text, length, "m", &error) != -STATUS_DATA) fail_msg("byte %zu, bit %d", i, bit);
        text[i] ^= bit;
    }
    assert_int_equal(manifest_parse(&read, text, length, "m", &error), 0);
    manifest_free(&read);
    free(text);
}

/* Those of version 1 had no checksum. */
static void an_older_one_is_read(void **unused)
{
    (void)unused;
    uint64_t random = 7;
    struct manifest written, read;
    struct error error;
    size_t length;
    make_any(&written, &random);
    char *text = manifest_text(&written, &length);
    json_t *root = json_loadb(text, length, 0, NULL);
    change(root, "version", "1");
    change(root, "xxh3_128", NULL);
    char *older = json_dumps(root, JSON_REAL_PRECISION(17));
    if (manifest_parse(&read, older, strlen(older), "m", &error)) fail_msg("%s", error.text);
    assert_int_equal(read.progress.counters.step, written.progress.counters.step);
    release(&written);
    manifest_free(&read);
    json_decref(root);
    free(older);
    free(text);
}

/* ---- the store ---- */

static char *output; /* a run directory of this test */

static void make_output(const char *name)
{
    struct stat facts;
    if (asprintf(&output, "%s-%s", scratch, name) < 0 || mkdir(output, 0777)) fail();
    assert_int_equal(stat(output, &facts), 0);
}

static void drop_output(void)
{
    char *command;
    if (asprintf(&command, "rm -r %s", output) < 0 || system(command)) fail();
    free(command);
    free(output);
}

static void write_text(const char *name, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints", output);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/checkpoints/%s", output, name);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/checkpoints/%s/%s", output, name, file);
    FILE *stream = fopen(path, "w");
    if (!stream || fputs(text, stream) < 0 || fclose(stream)) fail();
}

static void commit(const char *name, const struct retention *retention)
{
    struct error error;
    struct checksum *checksum = checksum_begin();
    uint64_t random = 9;
    struct manifest manifest;
    make_any(&manifest, &random);
    manifest.range_count = 0;
    add_range(&manifest, "model.safetensors", 0, 5, 0);
    checksum_add(checksum, "hello", 5);
    checksum_take(checksum, manifest.ranges[0].checksum);
    checksum_end(checksum);
    write_text(name, "model.safetensors", "hello");
    if (store_commit(output, name, &manifest, &error)) fail_msg("%s", error.text);
    if (store_retain(output, retention, &error)) fail_msg("%s", error.text);
    release(&manifest);
}

static void check_list(const char *wanted)
{
    struct stored *list;
    size_t count;
    struct error error;
    char found[512] = "";
    assert_int_equal(store_list(output, &list, &count, &error), 0);
    for (size_t i = 0; i < count; i++) {
        strcat(found, list[i].name + strlen("step-"));
        strcat(found, list[i].complete ? " " : "? ");
    }
    assert_string_equal(found, wanted);
    free(list);
}

static void checkpoints_are_listed_kept_and_removed(void **unused)
{
    (void)unused;
    struct error error;
    make_output("store");
    check_list(""); /* there is no such directory */
    const struct retention two = {.keep = 2, .keep_every = 200};
    for (int i = 1; i <= 4; i++) {
        char name[STORE_NAME_MAX + 1];
        store_name(name, (uint64_t)(100 * i), 0, true);
        commit(name, &two);
    }
    commit("step-00000400-attempt-00000417", &two);
    check_list("00000200 00000400 00000400-attempt-00000417 ");
    write_text("step-00000500", "model.safetensors", "hel");
    write_text("step-500", "model.safetensors", "");
    write_text("step-00000501x", "model.safetensors", "");
    check_list("00000200 00000400 00000400-attempt-00000417 00000500? ");
    assert_int_equal(store_remove(output, "step-00000500", &error), 0);
    assert_int_equal(store_remove(output, "step-00000200", &error), 0);
    assert_int_equal(store_remove(output, "step-00000200", &error), 0); /* it is gone: nothing to do */
    assert_int_equal(store_set_aside(output, "step-00000400", "damaged", &error), 0);
    commit("step-00000400", &two);
    assert_int_equal(store_set_aside(output, "step-00000400", "damaged", &error), 0);
    check_list("00000400-attempt-00000417 ");
    char path[512], text[64] = "";
    snprintf(path, sizeof path, "%s/checkpoints/step-00000400.damaged-2/manifest.json", output);
    assert_int_equal(access(path, F_OK), 0);
    snprintf(path, sizeof path, "%s/checkpoints/latest", output);
    FILE *latest = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, latest));
    fclose(latest);
    assert_string_equal(text, "step-00000400\n");
    drop_output();
}

static void link_to(const char *name, const char *target)
{
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/%s", output, name);
    assert_int_equal(symlink(target, path), 0);
}

/* Somebody has moved one to another disk; a file has the name of one. */
static void links_and_files_of_that_name_go_as_well(void **unused)
{
    (void)unused;
    struct error error;
    const struct retention all = {0};
    make_output("links");
    commit("step-00000100", &all);
    commit("elsewhere", &all);
    link_to("step-00000200", "elsewhere");
    link_to("step-00000300", "step-00000100/manifest.json");
    check_list("00000100 00000200 00000300? ");
    if (store_remove(output, "step-00000200", &error)) fail_msg("%s", error.text);
    if (store_remove(output, "step-00000300", &error)) fail_msg("%s", error.text);
    check_list("00000100 ");
    char path[512];
    snprintf(path, sizeof path, "%s/checkpoints/elsewhere/model.safetensors", output);
    assert_int_not_equal(access(path, F_OK), 0); /* that is what it took room for */
    snprintf(path, sizeof path, "%s/checkpoints/elsewhere", output);
    assert_int_equal(rmdir(path), 0);
    drop_output();
}

/* No crash left it like this, so it is not for us to remove. */
static void what_cannot_be_looked_at_is_not_taken_for_incomplete(void **unused)
{
    (void)unused;
    make_output("loop");
    write_text("step-00000100", "model.safetensors", "hello");
    link_to("step-00000100/manifest.json", "manifest.json");
    check_list("00000100 ");
    drop_output();
}

static void every_byte_counts(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"hello", NULL},
        {"hellO", "model.safetensors: bytes 0 to 5 are not what was written (checksum)"},
        {"hell", "model.safetensors: has 4 bytes, 5 were written"},
        {"hello!", "model.safetensors: has 6 bytes, 5 were written"},
        {NULL, "model.safetensors: No such file"},
    };
    const struct retention all = {0};
    make_output("verify");
    commit("step-00000001", &all);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char directory[512], path[600];
        struct manifest manifest;
        struct error error = {0};
        snprintf(directory, sizeof directory, "%s/checkpoints/step-00000001", output);
        snprintf(path, sizeof path, "%s/model.safetensors", directory);
        if (cases[i].text)
            write_text("step-00000001", "model.safetensors", cases[i].text);
        else
            unlink(path);
        assert_int_equal(manifest_read(&manifest, directory, &error), 0);
        assert_int_equal(store_verify(directory, &manifest, &error), cases[i].why ? -STATUS_DATA : 0);
        if (cases[i].why && !strstr(error.text, cases[i].why)) fail_msg("%s", error.text);
        manifest_free(&manifest);
    }
    drop_output();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(anything_else_is_refused),
        cmocka_unit_test(every_bit_of_it_counts),
        cmocka_unit_test(an_older_one_is_read),
        cmocka_unit_test(checkpoints_are_listed_kept_and_removed),
        cmocka_unit_test(links_and_files_of_that_name_go_as_well),
        cmocka_unit_test(what_cannot_be_looked_at_is_not_taken_for_incomplete),
        cmocka_unit_test(every_byte_counts),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
