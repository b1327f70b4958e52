#include "daemon/coordinator/saver.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/checkpoint/store.h"
#include "daemon/coordinator/run_directory.h"
#include "proto/message.h"

#define RECEIPT_BYTES_MAX (1u << 20)

enum stage { IDLE, WRITING, COMMITTING };

struct saver {
    uv_loop_t *loop;
    const Gacc__V1__JobSpec *job;
    uint32_t ranks;
    struct retention retention;
    struct saver_events events;

    enum stage stage;
    char name[STORE_NAME_MAX + 1];
    struct manifest manifest; /* of the checkpoint under way, or of the last one its ranges alone */
    bool has_parts;           /* complete it is already, whatever becomes of its new manifest */
    bool *answered;           /* [ranks] */
    uint32_t awaited, failed_rank;
    bool awaits_records;
    struct error failure; /* of the lowest rank that failed; status 0: none */
    struct checkpoint_record record;

    uv_work_t work;
    struct error outcome; /* of the work; status 0: committed */
    char complaint[512];
};

int saver_open(struct saver **out, uv_loop_t *loop, const Gacc__V1__JobSpec *job, uint32_t ranks,
               const struct saver_events *events, struct error *error)
{
    struct saver *saver = calloc(1, sizeof *saver);
    *out = saver;
    if (saver) saver->answered = calloc(ranks, sizeof *saver->answered);
    if (!saver || !saver->answered)
        return error_set(error, STATUS_INTERNAL, "out of memory for %" PRIu32 " ranks", ranks);
    saver->loop = loop;
    saver->job = job;
    saver->ranks = ranks;
    saver->events = *events;
    saver->work.data = saver;
    return 0;
}

static double now_seconds(void)
{
    return (double)uv_hrtime() * 1e-9;
}

/* ---- on a thread of the pool ---- */

/* The text of verify.json, if there is one; free() it. */
static char *read_receipt(const char *output)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/verify.json", output) >= (int)sizeof path) return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *text = fd < 0 ? NULL : malloc(RECEIPT_BYTES_MAX + 1);
    ssize_t length = text ? read(fd, text, RECEIPT_BYTES_MAX) : -1;
    if (fd >= 0) close(fd);
    if (length > 0) {
        text[length] = '\0';
        return text;
    }
    free(text);
    return NULL;
}

static int commit(struct saver *saver, struct error *error)
{
    const char *output = saver->job->job->output;
    struct manifest *manifest = &saver->manifest;
    const time_t seconds = time(NULL);
    struct tm utc;
    strftime(manifest->time, sizeof manifest->time, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    snprintf(manifest->program, sizeof manifest->program, "%s", GACC_VERSION);
    manifest->receipt = read_receipt(output);
    const int status = run_log_sync(output, error); /* a resume behind it does not write these lines again */
    return status ? status : store_commit(output, saver->name, manifest, error);
}

static void work(uv_work_t *request)
{
    struct saver *saver = request->data;
    const char *output = saver->job->job->output;
    const double began = now_seconds();
    struct error unwilling;
    saver->complaint[0] = '\0';
    saver->outcome = saver->failure;
    if (!saver->failure.status && !commit(saver, &saver->outcome)) saver->outcome.status = STATUS_DONE;
    int left = 0;
    if (!saver->outcome.status)
        left = store_retain(output, &saver->retention, &unwilling);
    else if (!saver->has_parts)
        left = store_remove(output, saver->name, &unwilling);
    if (left) snprintf(saver->complaint, sizeof saver->complaint, "%.500s", unwilling.text);
    saver->record.seconds.commit = now_seconds() - began;
}

/* ---- on the loop ---- */

/* The ranges stay: the manifest may be made anew. */
static void release(struct saver *saver)
{
    struct manifest *manifest = &saver->manifest;
    const struct manifest last = {.ranges = manifest->ranges, .range_count = manifest->range_count};
    manifest->ranges = NULL;
    manifest_free(manifest);
    *manifest = last;
    saver->stage = IDLE;
}

static void worked(uv_work_t *request, int status)
{
    struct saver *saver = request->data;
    (void)status; /* nobody cancels it */
    release(saver);
    saver->events.ended(saver->events.context, &saver->record, saver->outcome.status ? &saver->outcome : NULL,
                        saver->complaint);
}

static void begin_commit_if_ready(struct saver *saver)
{
    if (saver->awaited > 0 || saver->awaits_records) return;
    saver->stage = COMMITTING;
    uv_queue_work(saver->loop, &saver->work, work, worked);
}

static void count_bytes(struct saver *saver, const struct manifest_range *range)
{
    saver->record.bytes += range->end - range->begin;
}

static void open_manifest(struct saver *saver, const struct saver_order *order, struct error *error)
{
    struct manifest *manifest = &saver->manifest;
    const struct manifest last = *manifest;
    *manifest = (struct manifest){.progress = *order->progress,
                                  .ranks = saver->ranks,
                                  .parameters = order->parameters,
                                  .job = message_copy(&order->job->base)};
    if (order->has_parts) {
        manifest->ranges = last.ranges;
        manifest->range_count = last.range_count;
    } else {
        free(last.ranges);
    }
    if (!manifest->job || job_settings_copy(&manifest->settings, order->settings, error))
        error_set(error, STATUS_IO, "out of memory for its job");
}

void saver_begin(struct saver *saver, const struct saver_order *order)
{
    saver->awaited = order->has_parts ? 0 : saver->ranks;
    saver->awaits_records = order->awaits_records;
    saver->failure.status = STATUS_DONE;
    saver->retention = order->retention;
    saver->has_parts = order->has_parts;
    memset(saver->answered, 0, saver->ranks * sizeof *saver->answered);
    snprintf(saver->name, sizeof saver->name, "%s", order->name);
    open_manifest(saver, order, &saver->failure);
    saver->record = (struct checkpoint_record){.step = order->progress->counters.step,
                                               .optimizer_steps = order->progress->counters.optimizer_steps,
                                               .name = saver->name};
    for (size_t i = 0; i < saver->manifest.range_count; i++) count_bytes(saver, &saver->manifest.ranges[i]);
    saver->stage = WRITING;
    begin_commit_if_ready(saver);
}

/* Where memory is short the checkpoint fails as a whole. */
static void fail(struct saver *saver, uint32_t rank, enum status status, const char *text)
{
    if (saver->failure.status && saver->failed_rank <= rank) return;
    saver->failed_rank = rank;
    error_set(&saver->failure, status, "rank %" PRIu32 ": %.900s", rank, text);
}

static int add_ranges(struct saver *saver, uint32_t rank, const Gacc__V1__Saved *saved)
{
    struct manifest *manifest = &saver->manifest;
    struct manifest_range *longer =
        realloc(manifest->ranges, (manifest->range_count + saved->n_ranges + 1) * sizeof *longer);
    if (!longer) return -1;
    manifest->ranges = longer;
    for (size_t i = 0; i < saved->n_ranges; i++) {
        const Gacc__V1__WrittenRange *range = saved->ranges[i];
        if (range->checksum.len != CHECKSUM_BYTES || strlen(range->file) > MANIFEST_FILE_NAME_MAX) return -1;
        struct manifest_range *added = &longer[manifest->range_count++];
        *added = (struct manifest_range){.begin = range->begin, .end = range->end, .rank = rank};
        snprintf(added->file, sizeof added->file, "%s", range->file);
        memcpy(added->checksum, range->checksum.data, CHECKSUM_BYTES);
        count_bytes(saver, added);
    }
    return 0;
}

static void keep_larger(double *kept, double value)
{
    if (value > *kept) *kept = value;
}

int saver_take(struct saver *saver, uint32_t rank, const Gacc__V1__Saved *saved, struct error *error)
{
    if (saver->stage != WRITING || rank >= saver->ranks || saver->answered[rank] ||
        saved->optimizer_steps != saver->record.optimizer_steps)
        return error_set(error, STATUS_INTERNAL, "a checkpoint that nobody asked for");
    saver->answered[rank] = true;
    keep_larger(&saver->record.seconds.copy, saved->copy_seconds);
    keep_larger(&saver->record.seconds.write, saved->write_seconds);
    if (saved->failure)
        fail(saver, rank, saved->failure->status == STATUS_NUMERICS ? STATUS_NUMERICS : STATUS_IO,
             saved->failure->text);
    else if (add_ranges(saver, rank, saved))
        fail(saver, rank, STATUS_IO, "its account of what it wrote cannot be kept");
    saver->awaited--;
    begin_commit_if_ready(saver);
    return 0;
}

void saver_recorded(struct saver *saver, const struct progress *progress)
{
    if (saver->stage != WRITING || !saver->awaits_records) return;
    saver->awaits_records = false;
    saver->manifest.progress = *progress;
    begin_commit_if_ready(saver);
}

bool saver_is_busy(const struct saver *saver)
{
    return saver->stage != IDLE;
}

bool saver_has_answers(const struct saver *saver)
{
    return saver->stage != IDLE && saver->awaited == 0;
}

bool saver_is_committing(const struct saver *saver)
{
    return saver->stage == COMMITTING;
}

void saver_close(struct saver *saver)
{
    if (!saver) return;
    struct error unwilling; /* nobody is left to hear it; the next start tries again */
    if (saver->stage == WRITING && !saver->has_parts) store_remove(saver->job->job->output, saver->name, &unwilling);
    manifest_free(&saver->manifest);
    free(saver->answered);
    free(saver);
}
