#include "daemon/job/job.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/job/load.h"
#include "daemon/job/scalar.h"

const struct node *job_node(const struct loading *loading, const char *path)
{
    const struct node *node = loading->root, *next;
    do {
        size_t length = strcspn(path, ".");
        next = tree_child(node, path, length);
        if (next) node = next;
        path += length + (path[length] == '.');
    } while (next && *path);
    return node;
}

struct phrase optimizer_path(const struct loading *loading, size_t index, const char *path)
{
    const struct node *node = tree_find(loading->root, "optimizer");
    return key_path(node && node->kind == NODE_LIST, index, path);
}

void job_notice(const struct loading *loading, const char *format, ...)
{
    if (!loading->notices) return;
    va_list arguments;
    va_start(arguments, format);
    fputs(NOTICE_HEAD, loading->notices);
    vfprintf(loading->notices, format, arguments);
    fputc('\n', loading->notices);
    va_end(arguments);
}

/* Room for more, and never for JOB_BYTES_LIMIT at once: malloc keeps blocks of a size that it has seen freed, so rank
 * 0, which reads the file, would keep a megabyte of what a session frees once it is open, or not, by chance. */
static char *grow(char *text, size_t length, size_t *room)
{
    if (length < *room) return text;
    *room = *room ? 2 * *room : 4096;
    if (*room > JOB_BYTES_LIMIT) *room = JOB_BYTES_LIMIT + 1;
    char *larger = realloc(text, *room);
    if (!larger) free(text);
    return larger;
}

/* The whole file, at most JOB_BYTES_LIMIT. */
static int read_file(const char *path, char **out, size_t *length, struct error *error)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO that nobody writes to is empty */
    struct stat stat_of;
    if (file < 0) return error_set_errno(error, STATUS_MISSING, errno, "%s", path);
    fcntl(file, F_SETFL, O_RDONLY); /* what somebody does write is waited for */
    int status = 0;
    char *text = NULL;
    size_t room = 0;
    *length = 0;
    if (fstat(file, &stat_of) == 0 && S_ISDIR(stat_of.st_mode))
        status = error_set(error, STATUS_JOB, "%s: is a directory, not a job file", path);
    while (!status && *length <= JOB_BYTES_LIMIT) {
        if (!(text = grow(text, *length, &room))) {
            status = error_set(error, STATUS_INTERNAL, "out of memory");
            break;
        }
        ssize_t got = read(file, text + *length, room - *length);
        if (got == 0) break;
        if (got > 0)
            *length += (size_t)got;
        else if (errno != EINTR)
            status = error_set_errno(error, STATUS_MISSING, errno, "%s", path);
    }
    close(file);
    if (status) {
        free(text);
        return status;
    }
    *out = text;
    return 0;
}

/* Refuses what is no text, with the place of the first bad byte. */
static int check_text(const char *file, const char *text, size_t length, struct error *error)
{
    if (length > JOB_BYTES_LIMIT)
        return error_set(error, STATUS_JOB, "%s: is larger than %d bytes", file, JOB_BYTES_LIMIT);
    const char *fault = text_fault(text, length, false);
    if (!fault) return 0;
    unsigned line = 1, column = 1;
    for (const char *at = text; at < fault; at++) {
        column += ((unsigned char)*at & 0xc0) != 0x80;
        if (*at == '\n') line++, column = 1;
    }
    return error_set(error, STATUS_JOB, "%s:%u:%u: byte 0x%02x: the file is not UTF-8", file, line, column,
                     (unsigned char)*fault);
}

static int read_tree(struct loading *loading, const char *text, size_t length)
{
    int status = check_text(loading->file, text, length, loading->error);
    if (!status) status = tree_parse(&loading->root, text, length, &loading->source, loading->error);
    if (status) return status;
    if (!loading->root || scalar_is_null(loading->root))
        return error_set(loading->error, STATUS_JOB, "%s:1:1: is empty: there is no job in it", loading->file);
    if (loading->root->kind != NODE_MAPPING)
        return node_fail(loading->root, NULL, loading->error, "a job is a mapping of sections, this is a %s",
                         loading->root->kind == NODE_LIST ? "list" : "word");
    return 0;
}

/* As job.proto says: without what may differ between two runs of one job. */
int job_set_digest(Gacc__V1__JobSpec *job, struct error *error)
{
    Gacc__V1__JobSection section = *job->job;
    section.output = (char *)protobuf_c_empty_string;
    Gacc__V1__JobSpec bare = *job;
    bare.job = &section;
    bare.control = NULL;
    bare.checkpoint = NULL;
    bare.verify = GACC__V1__VERIFY__VERIFY_OFF;
    bare.digest = (ProtobufCBinaryData){0};
    size_t size = gacc__v1__job_spec__get_packed_size(&bare);
    uint8_t *packed = malloc(size + 1), *digest = malloc(SHA256_DIGEST_LENGTH);
    if (!packed || !digest) {
        free(packed);
        free(digest);
        return error_set(error, STATUS_INTERNAL, "out of memory");
    }
    gacc__v1__job_spec__pack(&bare, packed);
    SHA256(packed, size, digest);
    free(packed);
    free(job->digest.data);
    job->digest = (ProtobufCBinaryData){.len = SHA256_DIGEST_LENGTH, .data = digest};
    return 0;
}

static void clean_up(struct loading *loading)
{
    tree_free(loading->root);
    size_t count = loading->set_paths ? loading->overrides->set_count : 0;
    for (size_t i = 0; i < count; i++) free(loading->set_paths[i]);
    free((void *)loading->set_paths);
    free(loading->set_sources);
}

int job_parse(Gacc__V1__JobSpec **out, const char *text, size_t length, const char *name,
              const struct job_overrides *overrides, FILE *notices, struct error *error)
{
    struct loading loading = {
        .file = name,
        .overrides = overrides,
        .notices = notices,
        .error = error,
        .source = {.file = name},
        .default_source = {.file = "default"},
    };
    int status = read_tree(&loading, text, length);
    if (!status) status = job_override(&loading);
    if (!status) status = job_bind(&loading);
    if (!status) status = job_finish(&loading);
    if (!status) status = job_set_digest(loading.job, error);
    if (status && loading.job) gacc__v1__job_spec__free_unpacked(loading.job, NULL);
    *out = status ? NULL : loading.job;
    clean_up(&loading);
    return status;
}

int job_load(Gacc__V1__JobSpec **out, const char *path, const struct job_overrides *overrides, FILE *notices,
             struct error *error)
{
    char *text = NULL;
    size_t length = 0;
    *out = NULL;
    int status = read_file(path, &text, &length, error);
    if (status) return status;
    status = job_parse(out, text, length, path, overrides, notices, error);
    free(text);
    return status;
}
