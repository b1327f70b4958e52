/* Any bytes as a job file, and what follows a NUL as one --set: refused with a text, or a job that prints and reads
 * back as itself. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static int parse(Gacc__V1__JobSpec **job, const char *text, size_t length, const char *set)
{
    struct job_overrides overrides = {.sets = &set, .set_count = set ? 1 : 0};
    struct error error = {0};
    int status = job_parse(job, text, length, "job.yaml", &overrides, NULL, &error);
    if (status == 0 && !job_is_whole(*job)) abort();
    if (status && (error.text[0] == '\0' || status != -(int)error.status || *job)) abort();
    return status;
}

static void check_round_trip(const Gacc__V1__JobSpec *job)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream || job_print(job, 1, stream) != 0 || fclose(stream) != 0) abort();
    Gacc__V1__JobSpec *again;
    if (parse(&again, text, length, NULL) != 0) abort();
    if (again->digest.len != job->digest.len || memcmp(again->digest.data, job->digest.data, job->digest.len) != 0)
        abort();
    gacc__v1__job_spec__free_unpacked(again, NULL);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    setenv("FILE", "/proc/self/exe", 1); /* a file that is there */
    const uint8_t *end = memchr(bytes, 0, size);
    size_t length = end ? (size_t)(end - bytes) : size;
    char *set = end ? strndup((const char *)end + 1, size - length - 1) : NULL;
    Gacc__V1__JobSpec *job;
    if (parse(&job, (const char *)bytes, length, set) == 0) {
        check_round_trip(job);
        gacc__v1__job_spec__free_unpacked(job, NULL);
    }
    free(set);
    return 0;
}
