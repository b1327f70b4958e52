#include "daemon/checkpoint/inspect.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/hex.h"
#include "worker/facts.h"

static void add_count(struct facts *facts, const char *key, uint64_t count)
{
    facts_add(facts, key, json_integer((json_int_t)count));
}

static void add_progress(struct facts *facts, const struct progress *progress)
{
    const struct step_counters *counters = &progress->counters;
    add_count(facts, "step", counters->step);
    add_count(facts, "optimizer_steps", counters->optimizer_steps);
    add_count(facts, "skipped_steps", counters->skipped_steps);
    add_count(facts, "empty_steps", counters->empty_steps);
    add_count(facts, "tokens_seen", counters->tokens_seen);
    if (progress->has_scaler) {
        facts_add(facts, "loss_scale", json_real((double)progress->scale.scale));
        add_count(facts, "growth_tracker", progress->scale.growth_tracker);
    }
    add_count(facts, "epoch", progress->position.epoch);
    add_count(facts, "first", progress->position.first); /* of the epoch's sequences, in the next step */
    add_count(facts, "train_sequences", progress->train_sequences);
    add_count(facts, "sequences_seen", progress->sequences_seen);
}

static void add_files(struct facts *facts, const struct manifest *manifest)
{
    struct facts files;
    facts_open(&files);
    for (size_t i = 0, next; i < manifest->range_count; i = next) {
        next = manifest_next_file(manifest, i);
        facts_add(&files, manifest->ranges[i].file,
                  json_sprintf("%llu bytes in %zu range%s", (unsigned long long)manifest->ranges[next - 1].end,
                               next - i, next - i == 1 ? "" : "s"));
    }
    facts->failed = facts->failed || files.failed;
    facts_add(facts, "files", files.object);
}

static void add_manifest(struct facts *facts, const char *directory, const struct manifest *manifest)
{
    char digest[65] = "";
    if (manifest->job->digest.len == 32) hex_write(manifest->job->digest.data, 32, digest);
    facts_add(facts, "path", json_string_nocheck(directory));
    facts_add(facts, "format", json_string("checkpoint"));
    facts_add(facts, "gaccd", json_string(manifest->program));
    facts_add(facts, "time", json_string(manifest->time));
    facts_add(facts, "job", json_string(manifest->job->job->name));
    facts_add(facts, "job_digest", json_string(digest));
    facts_add(facts, "verified", json_boolean(manifest->receipt));
    add_progress(facts, &manifest->progress);
    add_count(facts, "ranks", manifest->ranks);
    add_count(facts, "parameters", manifest->parameters);
    add_files(facts, manifest);
    facts_add(facts, "sound", json_true());
}

/* ---- what is no checkpoint ---- */

#define FOLDER "checkpoints"

/* What there is to inspect below a directory: "a, b". */
struct things {
    char text[2 * PATH_MAX];
    size_t used;
};

__attribute__((format(printf, 2, 3))) static void things_try(struct things *things, const char *format, ...)
{
    char path[PATH_MAX];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof path || access(path, R_OK)) return;
    if (things->used + (size_t)length + sizeof ", " > sizeof things->text) return;
    things->used += (size_t)sprintf(things->text + things->used, "%s%s", things->used ? ", " : "", path);
}

/* The run directory whose folder of checkpoints it is: RUN of RUN/checkpoints; false: it is none. */
static bool run_of_folder(const char *directory, char run[PATH_MAX])
{
    if (snprintf(run, PATH_MAX, "%s%s", strchr(directory, '/') ? "" : "./", directory) >= PATH_MAX) return false;
    char *slash = strrchr(run, '/');
    if (strcmp(slash + 1, FOLDER) != 0) return false;
    slash[slash == run] = '\0';
    return true;
}

static int refuse(const char *path, struct error *error)
{
    char directory[PATH_MAX], run[PATH_MAX], newest[STORE_NAME_MAX + 1];
    struct things things = {.used = 0};
    snprintf(directory, sizeof directory, "%s", path);
    for (size_t end = strlen(directory); end > 1 && directory[end - 1] == '/'; end--) directory[end - 1] = '\0';
    const bool is_folder = run_of_folder(directory, run);
    store_newest(is_folder ? run : directory, newest);
    if (*newest) things_try(&things, "%s%s/%s", directory, is_folder ? "" : "/" FOLDER, newest);
    static const char *const files[] = {"model.safetensors", "adapter_model.safetensors", "final/model.safetensors",
                                        "final/adapter/adapter_model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) things_try(&things, "%s/%s", directory, files[i]);
    return error_set(error, STATUS_MISSING, "%s: has no %s, so it is no whole checkpoint%s%s", path, MANIFEST_NAME,
                     things.used ? "; try " : "", things.text);
}

int checkpoint_inspect(const char *directory, bool as_json, FILE *to, struct error *error)
{
    struct manifest manifest;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", directory, MANIFEST_NAME) < (int)sizeof path && access(path, F_OK) &&
        errno == ENOENT)
        return refuse(directory, error);
    int status = manifest_read(&manifest, directory, error);
    if (status) return status;
    status = store_verify(directory, &manifest, error);
    if (!status) {
        struct facts facts;
        facts_open(&facts);
        add_manifest(&facts, directory, &manifest);
        status = facts_print(&facts, as_json, to, error);
        facts_close(&facts);
    }
    manifest_free(&manifest);
    return status;
}
