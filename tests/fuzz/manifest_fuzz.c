/* Any bytes as a checkpoint's manifest: refused with a text, or one that is written and read back as itself and that a
 * job can go on from. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/checkpoint/manifest.h"
#include "daemon/coordinator/conductor.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void check_ranges(const struct manifest *manifest)
{
    for (size_t i = 0, next; i < manifest->range_count; i = next) {
        uint64_t end = 0;
        next = manifest_next_file(manifest, i);
        for (size_t j = i; j < next; end = manifest->ranges[j++].end)
            if (manifest->ranges[j].begin != end || manifest->ranges[j].rank >= manifest->ranks) abort();
        if (end == 0 || strchr(manifest->ranges[i].file, '/')) abort();
    }
}

static void check_round_trip(struct manifest *manifest)
{
    size_t length, length_again;
    struct manifest again;
    struct error error;
    char *text = manifest_text(manifest, &length);
    if (!text || manifest_parse(&again, text, length, "manifest.json", &error) != 0) abort();
    char *text_again = manifest_text(&again, &length_again);
    if (!text_again || length_again != length || memcmp(text, text_again, length) != 0) abort();
    manifest_free(&again);
    free(text);
    free(text_again);
}

/* As the coordinator does, with a job of its own: up to the first decision. */
static void go_on(const struct manifest *manifest)
{
    struct conductor *conductor;
    struct error error;
    struct end_record end;
    if (conductor_open(&conductor, manifest->job, 1, 0, &error) != 0) return;
    conductor_resume(conductor, &manifest->progress, NULL);
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    hello.ranks = 1;
    hello.job_digest = manifest->job->digest;
    hello.train_sequences = manifest->progress.train_sequences;
    hello.validation_sequences = hello.targets_per_sequence = 1;
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    report.step = manifest->progress.counters.step;
    if (conductor_hello(conductor, 0, &hello, 0, &error) == 1 && conductor_welcome(conductor, 0)->plan &&
        conductor_report(conductor, 0, &report, 0, &error) == 1)
        conductor_decide(conductor, 0);
    conductor_end(conductor, 0, &end);
    conductor_close(conductor);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct manifest manifest;
    struct error error = {0};
    int status = manifest_parse(&manifest, (const char *)bytes, size, "manifest.json", &error);
    if (status) {
        if (error.text[0] == '\0' || status != -STATUS_DATA || manifest.job || manifest.ranges) abort();
        return 0;
    }
    check_ranges(&manifest);
    check_round_trip(&manifest);
    go_on(&manifest);
    manifest_free(&manifest);
    return 0;
}
