/*
 * manifest.json: what a checkpoint holds, and that it is complete, since it gets its name last. Everything but the
 * tensors' values is in it: counters, loss scale, position in the data, the effective job, and for every range of every
 * other file who wrote it and its checksum. It ends in a checksum of its own.
 */
#ifndef GACC_MANIFEST_H
#define GACC_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/coordinator/progress.h"
#include "daemon/job/live.h"
#include "proto/checksum.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

#define MANIFEST_NAME "manifest.json"
#define MANIFEST_VERSION 2 /* of 1 there are checkpoints, too: they have no checksum of the manifest */
#define MANIFEST_BYTES_MAX (256u << 20)
#define MANIFEST_FILE_NAME_MAX 63 /* optimizer-00000-of-00002.safetensors */

struct manifest_range {
    char file[MANIFEST_FILE_NAME_MAX + 1];
    uint64_t begin, end; /* bytes of the file */
    uint32_t rank;       /* that wrote it */
    uint8_t checksum[CHECKSUM_BYTES];
};

struct manifest {
    struct progress progress;
    uint32_t ranks;
    uint64_t parameters;
    char program[32], time[32];    /* the version of gaccd; UTC */
    Gacc__V1__JobSpec *job;        /* effective */
    struct job_settings settings;  /* that were set while it ran, and are in it */
    char *receipt;                 /* verify.json of the run directory, an object; NULL: there was none */
    struct manifest_range *ranges; /* file by file, each file's from its beginning to its end without a gap */
    size_t range_count;
};

/* As the file's text; free() it. NULL: out of memory. The ranges are put in their order. */
char *manifest_text(struct manifest *manifest, size_t *length);
/* Refuses with 65, naming `path` and what is wrong with it, whatever manifest_text cannot have written: other versions,
 * missing or impossible numbers, names with a slash, ranges that leave a gap or overlap, a job that is not the one of
 * its digest, a byte that is another. On success it is to be released by manifest_free. */
int manifest_parse(struct manifest *manifest, const char *text, size_t length, const char *path, struct error *error);
/* As manifest_parse, from DIRECTORY/manifest.json; 66 when there is none. */
int manifest_read(struct manifest *manifest, const char *directory, struct error *error);
void manifest_free(struct manifest *manifest);

/* The first range of the file behind that of ranges[index]; range_count: there is none. */
size_t manifest_next_file(const struct manifest *manifest, size_t index);

#endif
