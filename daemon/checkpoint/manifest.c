#include "daemon/checkpoint/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/hex.h"
#include "daemon/job/job.h"
#include "daemon/observe/json_writer.h"

#define FORMAT "gaccd checkpoint"
#define SEAL "xxh3_128" /* the last member: the checksum of all the text before it */
#define SEAL_BYTES (sizeof ",\"" SEAL "\":\"\"}\n" - 1 + 2 * CHECKSUM_BYTES)

/* The counters by name, for both directions. */
static const struct {
    const char *key;
    size_t offset;
} counter_keys[] = {
    {"step", offsetof(struct step_counters, step)},
    {"optimizer_steps", offsetof(struct step_counters, optimizer_steps)},
    {"skipped_steps", offsetof(struct step_counters, skipped_steps)},
    {"empty_steps", offsetof(struct step_counters, empty_steps)},
    {"scheduler_steps", offsetof(struct step_counters, scheduler_steps)},
    {"tokens_seen", offsetof(struct step_counters, tokens_seen)},
};
#define COUNTERS (sizeof counter_keys / sizeof *counter_keys)

/* What ends a manifest's text, behind its first `length` bytes; false when memory is short. */
static bool make_seal(const char *text, size_t length, char seal[SEAL_BYTES + 1])
{
    uint8_t value[CHECKSUM_BYTES];
    char digits[2 * CHECKSUM_BYTES + 1];
    struct checksum *checksum = checksum_begin();
    if (!checksum) return false;
    checksum_add(checksum, text, length);
    checksum_take(checksum, value);
    checksum_end(checksum);
    hex_write(value, sizeof value, digits);
    snprintf(seal, SEAL_BYTES + 1, ",\"" SEAL "\":\"%s\"}\n", digits);
    return true;
}

/* ---- writing ---- */

static void write_loss_scale(struct json_writer *json, const struct progress *progress)
{
    if (!progress->has_scaler) {
        json_write_null(json, "loss_scale");
        return;
    }
    json_write_object(json, "loss_scale");
    json_write_double(json, "scale", (double)progress->scale.scale);
    json_write_unsigned(json, "growth_tracker", progress->scale.growth_tracker);
    json_write_unsigned(json, "hysteresis_tracker", progress->scale.hysteresis_tracker);
    json_write_unsigned(json, "skips_at_minimum", progress->scale.skips_at_minimum);
    json_write_object_end(json);
}

static void write_position(struct json_writer *json, const struct progress *progress)
{
    json_write_object(json, "data");
    json_write_unsigned(json, "epoch", progress->position.epoch);
    json_write_unsigned(json, "first", progress->position.first);
    json_write_unsigned(json, "sequences_seen", progress->sequences_seen);
    json_write_double(json, "epoch_weight", progress->epoch_weight);
    json_write_unsigned(json, "train_sequences", progress->train_sequences);
    json_write_object_end(json);
    if (!progress->has_plan) {
        json_write_null(json, "plan");
        return;
    }
    json_write_object(json, "plan");
    json_write_unsigned(json, "step", progress->counters.step + 1);
    json_write_unsigned(json, "epoch", progress->plan.epoch);
    json_write_unsigned(json, "first", progress->plan.first);
    json_write_unsigned(json, "count", progress->plan.count);
    json_write_unsigned(json, "global", progress->plan.global);
    json_write_object_end(json);
}

static void write_losses(struct json_writer *json, const struct progress *progress)
{
    if (progress->has_loss)
        json_write_double(json, "loss", progress->loss);
    else
        json_write_null(json, "loss");
    if (!progress->was_evaluated && !progress->has_validation) {
        json_write_null(json, "evaluation");
        return;
    }
    json_write_object(json, "evaluation");
    if (progress->was_evaluated) json_write_unsigned(json, "begun_at", progress->evaluated_at);
    if (progress->has_validation) {
        json_write_double(json, "loss", progress->validation_loss);
        json_write_unsigned(json, "optimizer_steps", progress->validation_optimizer_steps);
    }
    json_write_object_end(json);
}

static void write_warnings(struct json_writer *json, const struct progress *progress)
{
    const struct warnings *warnings = &progress->warnings;
    char text[WARNINGS_WINDOW + 1];
    json_write_object(json, "warnings");
    warnings_ring_write(&warnings->attempts, text);
    json_write_string(json, "attempts", text);
    warnings_ring_write(&warnings->applied, text);
    json_write_string(json, "applied", text);
    json_write_array(json, "quiet");
    for (size_t i = 0; i < WARNINGS; i++) json_write_unsigned(json, NULL, warnings->quiet[i]);
    json_write_array_end(json);
    json_write_bool(json, "single_row", progress->told_single_value);
    json_write_object_end(json);
}

static bool write_job(struct json_writer *json, const Gacc__V1__JobSpec *job)
{
    char *text = NULL;
    size_t length, size = gacc__v1__job_spec__get_packed_size(job);
    FILE *stream = open_memstream(&text, &length);
    uint8_t *packed = malloc(size + 1);
    const bool printed = stream && packed && job_print(job, 0, stream) == 0;
    const bool whole = stream && !fclose(stream) && printed;
    if (whole) {
        json_write_hex(json, "job_digest", job->digest.data, job->digest.len);
        json_write_string(json, "job", text);
        gacc__v1__job_spec__pack(job, packed);
        json_write_hex(json, "job_packed", packed, size);
    }
    free(text);
    free(packed);
    return whole;
}

static void write_settings(struct json_writer *json, const struct job_settings *settings)
{
    json_write_array(json, "settings");
    for (size_t i = 0; i < settings->count; i++) {
        json_write_object(json, NULL);
        json_write_string(json, "path", settings->each[i].path);
        json_write_string(json, "value", settings->each[i].value);
        json_write_object_end(json);
    }
    json_write_array_end(json);
}

static void write_ranges(struct json_writer *json, const struct manifest *manifest)
{
    json_write_array(json, "files");
    for (size_t i = 0, next; i < manifest->range_count; i = next) {
        next = manifest_next_file(manifest, i);
        json_write_object(json, NULL);
        json_write_string(json, "file", manifest->ranges[i].file);
        json_write_unsigned(json, "bytes", manifest->ranges[next - 1].end);
        json_write_array(json, "ranges");
        for (size_t j = i; j < next; j++) {
            const struct manifest_range *range = &manifest->ranges[j];
            json_write_object(json, NULL);
            json_write_unsigned(json, "begin", range->begin);
            json_write_unsigned(json, "end", range->end);
            json_write_unsigned(json, "rank", range->rank);
            json_write_hex(json, "xxh3_128", range->checksum, CHECKSUM_BYTES);
            json_write_object_end(json);
        }
        json_write_array_end(json);
        json_write_object_end(json);
    }
    json_write_array_end(json);
}

static int by_place(const void *left, const void *right)
{
    const struct manifest_range *a = left, *b = right;
    const int names = strcmp(a->file, b->file);
    if (names) return names;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end < b->end ? -1 : a->end > b->end;
}

size_t manifest_next_file(const struct manifest *manifest, size_t index)
{
    const char *file = manifest->ranges[index].file;
    while (index < manifest->range_count && !strcmp(manifest->ranges[index].file, file)) index++;
    return index;
}

/* Into the open object; false when memory is short. */
static bool write_members(struct json_writer *json, const struct manifest *manifest)
{
    const struct progress *progress = &manifest->progress;
    json_write_string(json, "format", FORMAT);
    json_write_unsigned(json, "version", MANIFEST_VERSION);
    json_write_string(json, "gaccd", manifest->program);
    json_write_string(json, "time", manifest->time);
    for (size_t i = 0; i < COUNTERS; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&progress->counters + counter_keys[i].offset, sizeof value);
        json_write_unsigned(json, counter_keys[i].key, value);
    }
    json_write_unsigned(json, "nonfinite_in_a_row", progress->nonfinite_in_a_row);
    write_loss_scale(json, progress);
    write_position(json, progress);
    write_losses(json, progress);
    write_warnings(json, progress);
    json_write_unsigned(json, "ranks", manifest->ranks);
    json_write_unsigned(json, "parameters", manifest->parameters);
    if (!write_job(json, manifest->job)) return false;
    write_settings(json, &manifest->settings);
    json_write_string(json, "verify", manifest->receipt);
    write_ranges(json, manifest);
    return true;
}

char *manifest_text(struct manifest *manifest, size_t *length)
{
    struct json_writer json;
    char *text, seal[SEAL_BYTES + 1];
    if (manifest->range_count > 0) qsort(manifest->ranges, manifest->range_count, sizeof *manifest->ranges, by_place);
    if (json_write_open(&json, &text, length)) return NULL;
    json_write_object(&json, NULL);
    const bool whole = write_members(&json, manifest) && !fflush(json.to) && make_seal(text, *length, seal) &&
                       fputs(seal, json.to) >= 0;
    if (!json_write_close(&json, &text)) return NULL;
    if (whole) return text;
    free(text);
    return NULL;
}

/* ---- reading ---- */

/* Where a fault is found: what it is called, and what it holds. */
struct reading {
    const char *path;
    struct error *error;
};

static int refuse(const struct reading *reading, const char *key, const char *why)
{
    return error_set(reading->error, STATUS_DATA, "%s: %s: %s", reading->path, key, why);
}

static int take_number(const struct reading *reading, const json_t *object, const char *key, uint64_t most,
                       uint64_t *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_integer(found) || json_integer_value(found) < 0 || (uint64_t)json_integer_value(found) > most)
        return refuse(reading, key, found ? "is no number that can stand here" : "is missing");
    *value = (uint64_t)json_integer_value(found);
    return 0;
}

static int take_small(const struct reading *reading, const json_t *object, const char *key, uint32_t *value)
{
    uint64_t number;
    int status = take_number(reading, object, key, UINT32_MAX, &number);
    if (!status) *value = (uint32_t)number;
    return status;
}

static int take_real(const struct reading *reading, const json_t *object, const char *key, double *value)
{
    const json_t *found = json_object_get(object, key);
    if (!json_is_number(found)) return refuse(reading, key, found ? "is no number" : "is missing");
    *value = json_number_value(found);
    return isfinite(*value) ? 0 : refuse(reading, key, "is not finite");
}

static int take_text(const struct reading *reading, const json_t *object, const char *key, char *text, size_t size)
{
    const char *found = json_string_value(json_object_get(object, key));
    if (!found || strlen(found) >= size) return refuse(reading, key, found ? "is too long" : "is missing");
    memcpy(text, found, strlen(found) + 1);
    return 0;
}

/* *section NULL: it is null. */
static int take_section(const struct reading *reading, const json_t *object, const char *key, const json_t **section)
{
    *section = json_object_get(object, key);
    if (!*section) return refuse(reading, key, "is missing");
    if (json_is_null(*section)) *section = NULL;
    return !*section || json_is_object(*section) ? 0 : refuse(reading, key, "is no object");
}

static int read_counters(const struct reading *reading, const json_t *root, struct progress *progress)
{
    for (size_t i = 0; i < COUNTERS; i++) {
        uint64_t value;
        int status = take_number(reading, root, counter_keys[i].key, INT64_MAX, &value);
        if (status) return status;
        memcpy((char *)&progress->counters + counter_keys[i].offset, &value, sizeof value);
    }
    const struct step_counters *counters = &progress->counters;
    const bool adds_up =
        counters->optimizer_steps <= counters->step && counters->skipped_steps <= counters->step &&
        counters->empty_steps <= counters->step &&
        counters->optimizer_steps + counters->skipped_steps + counters->empty_steps == counters->step &&
        counters->scheduler_steps == counters->optimizer_steps;
    if (!adds_up) return refuse(reading, "step", "applied, skipped and empty steps do not add up to it");
    return take_small(reading, root, "nonfinite_in_a_row", &progress->nonfinite_in_a_row);
}

static int read_loss_scale(const struct reading *reading, const json_t *root, struct progress *progress)
{
    const json_t *section;
    double scale;
    int status = take_section(reading, root, "loss_scale", &section);
    if (status || !section) return status;
    progress->has_scaler = true;
    if ((status = take_real(reading, section, "scale", &scale)) ||
        (status = take_small(reading, section, "growth_tracker", &progress->scale.growth_tracker)) ||
        (status = take_small(reading, section, "hysteresis_tracker", &progress->scale.hysteresis_tracker)) ||
        (status = take_small(reading, section, "skips_at_minimum", &progress->scale.skips_at_minimum)))
        return status;
    progress->scale.scale = (float)scale;
    const bool usable = progress->scale.scale > 0 && isfinite(progress->scale.scale) &&
                        isfinite(1 / progress->scale.scale) && (double)progress->scale.scale == scale;
    return usable ? 0 : refuse(reading, "loss_scale.scale", "is no loss scale");
}

static int read_position(const struct reading *reading, const json_t *root, struct progress *progress)
{
    const json_t *data, *plan;
    uint64_t step;
    int status;
    if ((status = take_section(reading, root, "data", &data)) || (status = take_section(reading, root, "plan", &plan)))
        return status;
    if (!data) return refuse(reading, "data", "is null");
    if ((status = take_number(reading, data, "epoch", INT64_MAX, &progress->position.epoch)) ||
        (status = take_number(reading, data, "train_sequences", INT64_MAX, &progress->train_sequences)) ||
        (status = take_number(reading, data, "first", progress->train_sequences, &progress->position.first)) ||
        (status = take_number(reading, data, "sequences_seen", INT64_MAX, &progress->sequences_seen)) ||
        (status = take_real(reading, data, "epoch_weight", &progress->epoch_weight)) || !plan)
        return status;
    progress->has_plan = true;
    if ((status = take_number(reading, plan, "step", INT64_MAX, &step)) ||
        (status = take_number(reading, plan, "epoch", INT64_MAX, &progress->plan.epoch)) ||
        (status = take_number(reading, plan, "first", INT64_MAX, &progress->plan.first)) ||
        (status = take_small(reading, plan, "count", &progress->plan.count)))
        return status;
    if (json_object_get(plan, "global") && (status = take_small(reading, plan, "global", &progress->plan.global)))
        return status;
    const bool fits = step == progress->counters.step + 1 && progress->plan.epoch == progress->position.epoch &&
                      progress->plan.first == progress->position.first && progress->plan.count > 0 &&
                      progress->plan.count <= progress->train_sequences - progress->plan.first &&
                      (progress->plan.global == 0 || progress->plan.count <= progress->plan.global);
    return fits ? 0 : refuse(reading, "plan", "is not that of the next step at this place in the data");
}

static int read_losses(const struct reading *reading, const json_t *root, struct progress *progress)
{
    const json_t *evaluation, *loss = json_object_get(root, "loss");
    if (!loss) return refuse(reading, "loss", "is missing");
    progress->has_loss = json_is_number(loss);
    if (progress->has_loss) progress->loss = json_number_value(loss);
    int status = take_section(reading, root, "evaluation", &evaluation);
    if (status || !evaluation) return status;
    progress->was_evaluated = json_object_get(evaluation, "begun_at") != NULL;
    if (progress->was_evaluated)
        status = take_number(reading, evaluation, "begun_at", INT64_MAX, &progress->evaluated_at);
    const json_t *found = json_object_get(evaluation, "loss");
    if (status || !found) return status;
    progress->has_validation = true;
    progress->validation_loss = json_is_number(found) ? json_number_value(found) : (double)NAN;
    return take_number(reading, evaluation, "optimizer_steps", INT64_MAX, &progress->validation_optimizer_steps);
}

static int read_warnings(const struct reading *reading, const json_t *root, struct progress *progress)
{
    struct warnings *warnings = &progress->warnings;
    const json_t *section;
    int status = take_section(reading, root, "warnings", &section);
    if (status) return status;
    const char *attempts = json_string_value(json_object_get(section, "attempts"));
    const char *applied = json_string_value(json_object_get(section, "applied"));
    const json_t *quiet = json_object_get(section, "quiet");
    if (!attempts || !applied || !warnings_ring_read(&warnings->attempts, attempts) ||
        !warnings_ring_read(&warnings->applied, applied) || json_array_size(quiet) != WARNINGS)
        return refuse(reading, "warnings", "is no account of the last steps");
    for (size_t i = 0; i < WARNINGS; i++) {
        const json_int_t value = json_integer_value(json_array_get(quiet, i));
        if (value < 0 || value > UINT32_MAX) return refuse(reading, "warnings.quiet", "holds an impossible number");
        warnings->quiet[i] = (uint32_t)value;
    }
    progress->told_single_value = json_is_true(json_object_get(section, "single_row"));
    return 0;
}

static int read_job(const struct reading *reading, const json_t *root, struct manifest *manifest)
{
    const char *text = json_string_value(json_object_get(root, "job_packed"));
    const char *digest = json_string_value(json_object_get(root, "job_digest"));
    if (!text || !digest) return refuse(reading, "job_packed", "is missing, or job_digest is");
    const size_t size = strlen(text) / 2;
    uint8_t *packed = malloc(size + 1), stored[32];
    if (!packed) return error_set(reading->error, STATUS_INTERNAL, "%s: out of memory for its job", reading->path);
    if (hex_read(text, packed, size)) manifest->job = gacc__v1__job_spec__unpack(NULL, size, packed);
    free(packed);
    Gacc__V1__JobSpec *job = manifest->job;
    if (!job || !job_is_whole(job)) return refuse(reading, "job_packed", "is no job");
    int status = job_set_digest(job, reading->error);
    if (status) return status;
    if (!hex_read(digest, stored, sizeof stored) || memcmp(stored, job->digest.data, sizeof stored))
        return refuse(reading, "job_digest", "is not that of the job");
    return 0;
}

/* None in a checkpoint of an earlier version. */
static int read_settings(const struct reading *reading, const json_t *root, struct manifest *manifest)
{
    const json_t *list = json_object_get(root, "settings");
    if (list && (!json_is_array(list) || json_array_size(list) > SETTINGS_MAX))
        return refuse(reading, "settings", "is no list of them");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *path = json_string_value(json_object_get(entry, "path"));
        const char *value = json_string_value(json_object_get(entry, "value"));
        if (!path || !value) return refuse(reading, "settings", "holds one without path or value");
        int status = job_settings_put(&manifest->settings, path, value, reading->error);
        if (status) return status;
    }
    return 0;
}

static int read_range(const struct reading *reading, const json_t *entry, const char *file,
                      struct manifest_range *range)
{
    char checksum[2 * CHECKSUM_BYTES + 1];
    int status;
    if ((status = take_number(reading, entry, "begin", INT64_MAX, &range->begin)) ||
        (status = take_number(reading, entry, "end", INT64_MAX, &range->end)) ||
        (status = take_small(reading, entry, "rank", &range->rank)) ||
        (status = take_text(reading, entry, "xxh3_128", checksum, sizeof checksum)))
        return status;
    if (!hex_read(checksum, range->checksum, CHECKSUM_BYTES)) return refuse(reading, "xxh3_128", "is no checksum");
    memcpy(range->file, file, strlen(file) + 1);
    return 0;
}

/* Names that stay inside of the directory and are not the manifest's own. */
static bool is_file_name(const char *name)
{
    return name && *name && *name != '.' && strlen(name) <= MANIFEST_FILE_NAME_MAX && !strchr(name, '/') &&
           strncmp(name, MANIFEST_NAME, sizeof MANIFEST_NAME - 1);
}

static int read_file_entry(const struct reading *reading, const json_t *entry, struct manifest *manifest)
{
    const char *file = json_string_value(json_object_get(entry, "file"));
    const json_t *ranges = json_object_get(entry, "ranges");
    uint64_t bytes, at = 0;
    if (!is_file_name(file)) return refuse(reading, "files", "holds a name that is none");
    for (size_t i = 0; i < manifest->range_count; i++)
        if (!strcmp(manifest->ranges[i].file, file)) return refuse(reading, file, "stands there twice");
    int status = take_number(reading, entry, "bytes", INT64_MAX, &bytes);
    for (size_t i = 0; i < json_array_size(ranges) && !status; i++) {
        struct manifest_range *range = &manifest->ranges[manifest->range_count];
        status = read_range(reading, json_array_get(ranges, i), file, range);
        if (status) return status;
        if (range->begin != at || range->end <= range->begin || range->rank >= manifest->ranks)
            return refuse(reading, file, "its ranges do not follow one another");
        at = range->end;
        manifest->range_count++;
    }
    if (!status && (at != bytes || at == 0)) status = refuse(reading, file, "its ranges are not the whole file");
    return status;
}

static int read_files(const struct reading *reading, const json_t *root, struct manifest *manifest)
{
    const json_t *files = json_object_get(root, "files");
    size_t count = 0;
    if (!json_is_array(files)) return refuse(reading, "files", "is missing");
    for (size_t i = 0; i < json_array_size(files); i++)
        count += json_array_size(json_object_get(json_array_get(files, i), "ranges"));
    manifest->ranges = calloc(count + 1, sizeof *manifest->ranges);
    if (!manifest->ranges)
        return error_set(reading->error, STATUS_INTERNAL, "%s: out of memory for its files", reading->path);
    int status = 0;
    for (size_t i = 0; i < json_array_size(files) && !status; i++)
        status = read_file_entry(reading, json_array_get(files, i), manifest);
    return status;
}

static int read_receipt(const struct reading *reading, const json_t *root, struct manifest *manifest)
{
    const json_t *found = json_object_get(root, "verify");
    if (!found || json_is_null(found)) return 0;
    if (!json_is_string(found)) return refuse(reading, "verify", "is no receipt");
    manifest->receipt = strdup(json_string_value(found));
    return manifest->receipt ? 0 : error_set(reading->error, STATUS_INTERNAL, "%s: out of memory", reading->path);
}

static int check_seal(const struct reading *reading, const char *text, size_t length)
{
    char seal[SEAL_BYTES + 1];
    const size_t sealed = length < SEAL_BYTES ? length : length - SEAL_BYTES;
    if (!make_seal(text, sealed, seal))
        return error_set(reading->error, STATUS_INTERNAL, "%s: out of memory for its checksum", reading->path);
    if (length - sealed == SEAL_BYTES && !memcmp(text + sealed, seal, SEAL_BYTES)) return 0;
    return refuse(reading, SEAL, "is not the checksum of what was written before it");
}

static int read_members(const struct reading *reading, const json_t *root, struct manifest *manifest, uint64_t *version)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    if (!format || strcmp(format, FORMAT)) return refuse(reading, "format", "is not that of a checkpoint");
    int status = take_number(reading, root, "version", INT64_MAX, version);
    if (status) return status;
    if (*version < 1 || *version > MANIFEST_VERSION)
        return error_set(reading->error, STATUS_DATA, "%s: version: %" PRIu64 ", this gaccd reads up to %d",
                         reading->path, *version, MANIFEST_VERSION);
    struct progress *progress = &manifest->progress;
    if ((status = take_text(reading, root, "gaccd", manifest->program, sizeof manifest->program)) ||
        (status = take_text(reading, root, "time", manifest->time, sizeof manifest->time)) ||
        (status = read_counters(reading, root, progress)) || (status = read_loss_scale(reading, root, progress)) ||
        (status = read_position(reading, root, progress)) || (status = read_losses(reading, root, progress)) ||
        (status = read_warnings(reading, root, progress)) ||
        (status = take_small(reading, root, "ranks", &manifest->ranks)) ||
        (status = take_number(reading, root, "parameters", INT64_MAX, &manifest->parameters)) ||
        (status = read_job(reading, root, manifest)) || (status = read_settings(reading, root, manifest)) ||
        (status = read_receipt(reading, root, manifest)))
        return status;
    return read_files(reading, root, manifest);
}

int manifest_parse(struct manifest *manifest, const char *text, size_t length, const char *path, struct error *error)
{
    *manifest = (struct manifest){0};
    const struct reading reading = {path, error};
    json_error_t why;
    uint64_t version = 0;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &why);
    int status = root && json_is_object(root)
                     ? read_members(&reading, root, manifest, &version)
                     : error_set(error, STATUS_DATA, "%s: %s", path, root ? "is no object" : why.text);
    json_decref(root);
    if (!status && version > 1) status = check_seal(&reading, text, length);
    if (status) manifest_free(manifest);
    return status;
}

/* The whole of an open file; free() it. */
static int read_all(int fd, const char *path, char **text, size_t *length, struct error *error)
{
    struct stat facts;
    if (fstat(fd, &facts)) return error_set_errno(error, STATUS_IO, errno, "%s", path);
    if (!S_ISREG(facts.st_mode) || facts.st_size > (off_t)MANIFEST_BYTES_MAX)
        return error_set(error, STATUS_DATA, "%s: is no manifest", path);
    *length = 0;
    *text = malloc((size_t)facts.st_size + 1);
    if (!*text) return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    while (*length < (size_t)facts.st_size) {
        ssize_t got = read(fd, *text + *length, (size_t)facts.st_size - *length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_errno(error, STATUS_IO, errno, "%s", path);
        if (got == 0) break;
        *length += (size_t)got;
    }
    return 0;
}

int manifest_read(struct manifest *manifest, const char *directory, struct error *error)
{
    char path[PATH_MAX], *text = NULL;
    size_t length = 0;
    *manifest = (struct manifest){0};
    if (snprintf(path, sizeof path, "%s/%s", directory, MANIFEST_NAME) >= (int)sizeof path)
        return error_set(error, STATUS_IO, "%s: the path is too long", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_set_errno(error, STATUS_MISSING, errno, "%s", path);
    int status = read_all(fd, path, &text, &length, error);
    close(fd);
    if (!status) status = manifest_parse(manifest, text, length, path, error);
    free(text);
    return status;
}

void manifest_free(struct manifest *manifest)
{
    if (manifest->job) gacc__v1__job_spec__free_unpacked(manifest->job, NULL);
    job_settings_free(&manifest->settings);
    free(manifest->receipt);
    free(manifest->ranges);
    *manifest = (struct manifest){0};
}
