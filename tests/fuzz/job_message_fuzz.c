/* Any bytes as a packed JobSpec, as manifests hold them: not a whole job, or one that is compared with another one,
 * printed, and conducted. */
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/conductor.h"
#include "daemon/job/compare.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static const char text[] = "job: {steps: 9}\n"
                           "model: {type: gpt, layers: 1, heads: 1, width: 4, context: 4}\n"
                           "data: {format: bytes, train: /proc/self/exe}\n"
                           "batch: {global: 4, micro: 4}\n"
                           "precision: {compute: fp16}\n"
                           "optimizer: {lr: 1, groups: [{match: wte, lr: 0.5}]}\n";

static Gacc__V1__JobSpec *own_job(void)
{
    Gacc__V1__JobSpec *job;
    struct error error;
    if (job_parse(&job, text, sizeof text - 1, "job.yaml", NULL, NULL, &error) != 0) abort();
    return job;
}

/* As a resume does it: our own job, but for what the stored one settles. */
static void compare(const Gacc__V1__JobSpec *was)
{
    Gacc__V1__JobSpec *now = own_job();
    struct job_changes changes, left;
    struct error error = {0};
    if (job_compare(&changes, was, now, NULL, &error) != 0) abort();
    const int refused = job_changes_check(&changes, &error);
    if (refused && error.text[0] == '\0') abort();
    if (!refused) {
        if (job_changes_keep(&changes, was, now, &error) != 0) abort();
        if (job_compare(&left, was, now, NULL, &error) != 0 || job_changes_check(&left, &error) != 0) abort();
        for (size_t i = 0; i < left.count; i++)
            if (left.each[i].rule == CHANGE_KEPT) abort();
        job_changes_free(&left);
    }
    job_changes_free(&changes);
    gacc__v1__job_spec__free_unpacked(now, NULL);
}

static void print(const Gacc__V1__JobSpec *job)
{
    char *printed = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&printed, &length);
    if (!stream || job_print(job, 2, stream) != 0 || fclose(stream) != 0 || length == 0) abort();
    free(printed);
}

static void conduct(const Gacc__V1__JobSpec *job)
{
    struct conductor *conductor;
    struct error error = {0};
    Gacc__V1__Hello hello = GACC__V1__HELLO__INIT;
    Gacc__V1__Report report = GACC__V1__REPORT__INIT;
    if (conductor_open(&conductor, job, 1, 0, &error) != 0) {
        if (error.text[0] == '\0') abort();
        return;
    }
    hello.ranks = 1;
    hello.job_digest = job->digest;
    hello.train_sequences = 100;
    hello.validation_sequences = hello.targets_per_sequence = 1;
    if (conductor_hello(conductor, 0, &hello, 0, &error) == 1 && conductor_welcome(conductor, 0)->plan &&
        conductor_report(conductor, 0, &report, 0, &error) == 1 && !conductor_decide(conductor, 0))
        abort();
    conductor_close(conductor);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    struct error error;
    Gacc__V1__JobSpec *job = gacc__v1__job_spec__unpack(NULL, size, bytes);
    if (!job) return 0;
    if (job_is_whole(job)) {
        if (job_set_digest(job, &error) != 0) abort();
        compare(job);
        print(job);
        conduct(job);
    }
    gacc__v1__job_spec__free_unpacked(job, NULL);
    return 0;
}
