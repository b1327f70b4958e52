#include "daemon/checkpoint/inspect.h"

#include <inttypes.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/checkpoint/store.h"
#include "daemon/hex.h"

static void print_counters(const struct progress *progress, FILE *to)
{
    const struct step_counters *counters = &progress->counters;
    fprintf(to,
            "step: %" PRIu64 "\noptimizer_steps: %" PRIu64 "\nskipped_steps: %" PRIu64 "\nempty_steps: %" PRIu64
            "\ntokens_seen: %" PRIu64 "\n",
            counters->step, counters->optimizer_steps, counters->skipped_steps, counters->empty_steps,
            counters->tokens_seen);
    if (progress->has_scaler)
        fprintf(to, "loss_scale: %.9g\ngrowth_tracker: %" PRIu32 "\n", (double)progress->scale.scale,
                progress->scale.growth_tracker);
    fprintf(to,
            "epoch: %" PRIu64 "\nfirst: %" PRIu64 "  # of its %" PRIu64
            " sequences, in the next step\nsequences_seen: %" PRIu64 "\n",
            progress->position.epoch, progress->position.first, progress->train_sequences, progress->sequences_seen);
}

static void print_files(const struct manifest *manifest, FILE *to)
{
    fputs("files:\n", to);
    for (size_t i = 0, next; i < manifest->range_count; i = next) {
        next = manifest_next_file(manifest, i);
        fprintf(to, "  %s: %" PRIu64 " bytes in %zu range%s\n", manifest->ranges[i].file,
                manifest->ranges[next - 1].end, next - i, next - i == 1 ? "" : "s");
    }
}

int checkpoint_inspect(const char *directory, FILE *to, struct error *error)
{
    struct manifest manifest;
    int status = manifest_read(&manifest, directory, error);
    if (status) return status;
    char digest[65] = "";
    if (manifest.job->digest.len == 32) hex_write(manifest.job->digest.data, 32, digest);
    fprintf(to, "path: %s\nformat: checkpoint\ngaccd: %s\ntime: %s\n", directory, manifest.program, manifest.time);
    fprintf(to, "job: %s\njob_digest: %s\nverified: %s\n", manifest.job->job->name, digest,
            manifest.receipt ? "yes" : "no");
    print_counters(&manifest.progress, to);
    fprintf(to, "ranks: %" PRIu32 "\nparameters: %" PRIu64 "\n", manifest.ranks, manifest.parameters);
    print_files(&manifest, to);
    status = store_verify(directory, &manifest, error);
    if (!status) fputs("sound: yes\n", to);
    manifest_free(&manifest);
    return status;
}
