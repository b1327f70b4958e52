/*
 * The model as one safetensors file that all ranks write together: rank 0 makes it under a temporary name with its
 * final size, every rank puts its own pieces in place, and only when all of them are on disk does it get its name.
 * Adapters are merged on the way, or written alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker/memory.h"
#include "worker/merge.h"
#include "worker/model_file.h"
#include "worker/session_internal.h"

#define EXPORT_BLOCK (1u << 16) /* elements */
#define ROOM_SECONDS 10

struct export
{
    const char *path;
    char temporary[PATH_MAX];
    struct model_file file;
    struct merge merge;
    wide *block; /* [EXPORT_BLOCK] values on their way */
};

/* All ranks learn of the first rank (in rank order) that failed and fail with its text under its name; 0 when none did.
 */
static int agree(struct comm *comm, const struct error *own, struct error *error)
{
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        struct error word = *own;
        int result = comm_broadcast(comm, &word, sizeof word, rank, error);
        if (result) return result;
        if (word.status) return error_set(error, word.status, "rank %" PRIu32 ": %s", rank, word.text);
    }
    return 0;
}

static int lay_out(const struct session *session, enum model_content content, struct export *export,
                   struct error *error)
{
    void *block;
    if (snprintf(export->temporary, sizeof export->temporary, "%s.tmp", export->path) >= (int)sizeof export->temporary)
        return error_set(error, STATUS_IO, "%s: the name is too long", export->path);
    int result = model_file_lay_out(&export->file, session->model, content, session->wide_type, error);
    if (!result && content == MODEL_MERGED) result = merge_open(&export->merge, session, error);
    if (!result) result = memory_new(&block, EXPORT_BLOCK, dtype_size(session->wide_type), "a model on its way", error);
    if (!result) export->block = block;
    return result;
}

static void forget(struct export *export)
{
    model_file_close(&export->file);
    merge_close(&export->merge);
    free(export->block);
}

static int write_at(const struct export *export, int fd, const char *bytes, uint64_t count, uint64_t offset,
                    struct error *error)
{
    while (count > 0) {
        size_t part = count < 1u << 30 ? (size_t)count : 1u << 30;
        ssize_t done = pwrite(fd, bytes, part, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return error_set_errno(error, STATUS_IO, errno, "%s", export->temporary);
        bytes += done;
        offset += (uint64_t)done;
        count -= (uint64_t)done;
    }
    return 0;
}

/* Flushes and closes; the first error of either, unless there is one already. */
static int close_written(const struct export *export, int fd, int result, struct error *error)
{
    if (!result && fsync(fd)) result = error_set_errno(error, STATUS_IO, errno, "%s", export->temporary);
    if (close(fd) && !result) result = error_set_errno(error, STATUS_IO, errno, "%s", export->temporary);
    return result;
}

/* Where there is no room, a checkpoint that every rank has written to the end of its part may still go, because it
 * failed, or an older one behind it: the coordinator sees to that meanwhile. */
static int reserve(const struct session *session, int fd, off_t bytes)
{
    const struct timespec pause = {.tv_nsec = 20000000};
    const double end = seconds_now() + (session->checkpoint ? ROOM_SECONDS : 0);
    int number;
    while (((number = posix_fallocate(fd, 0, bytes)) == ENOSPC || number == EDQUOT) && seconds_now() < end)
        nanosleep(&pause, NULL);
    return number;
}

/* Rank 0: the file in its whole length, its space reserved, its header in place. */
static int create(const struct session *session, const struct export *export, struct error *error)
{
    int fd = open(export->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s", export->temporary);
    int result = 0;
    int reserved = reserve(session, fd, (off_t) export->file.bytes);
    if (reserved == EOPNOTSUPP || reserved == EINVAL) reserved = ftruncate(fd, (off_t) export->file.bytes) ? errno : 0;
    if (reserved) result = error_set_errno(error, STATUS_IO, reserved, "%s", export->temporary);
    if (!result) result = write_at(export, fd, export->file.header, export->file.header_bytes, 0, error);
    return close_written(export, fd, result, error);
}

static bool is_finite(const void *values, enum dtype type, uint64_t index)
{
    return type == DTYPE_FP64 ? isfinite(((const double *)values)[index]) : isfinite(((const float *)values)[index]);
}

/* A model with a weight that is not finite is no result: the tensor is named. */
static int check_block(const struct session *session, const struct export *export, struct range part,
                       struct error *error)
{
    for (uint64_t i = part.begin; i < part.end; i++) {
        if (is_finite(export->block, session->wide_type, i - part.begin)) continue;
        const struct tensor *tensor = session->model->table.tensors;
        while (i >= tensor->begin + tensor->size) tensor++;
        return error_set(error, STATUS_NUMERICS,
                         "%s: not written: tensor %s is not finite (element %" PRIu64 " of %" PRIu64 ")", export->path,
                         tensor->name, i - tensor->begin, tensor->size);
    }
    return 0;
}

/* `part` of a piece, from the canonical index. */
static int write_block(const struct session *session, const struct export *export, int fd, const struct piece *own,
                       const void *master, struct range part, struct error *error)
{
    const size_t size = dtype_size(session->wide_type);
    memcpy(export->block, element(master, own->at + (part.begin - own->begin), session->wide_type),
           (part.end - part.begin) * size);
    merge_add(&export->merge, part.begin, part.end, export->block);
    int result = check_block(session, export, part, error);
    return result ? result
                  : write_at(export, fd, export->block, (part.end - part.begin) * size,
                             export->file.header_bytes + (part.begin - export->file.holds.begin) * size, error);
}

static int write_own_pieces(const struct session *session, const struct export *export, const void *master,
                            struct error *error)
{
    int fd = open(export->temporary, O_WRONLY | O_CLOEXEC), result = 0;
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s", export->temporary);
    for (size_t i = 0; i < session->piece_count && !result; i++) {
        const struct piece *own = &session->pieces[i];
        struct range rest = range_of_both((struct range){own->begin, own->end}, export->file.holds);
        for (; rest.begin < rest.end && !result; rest.begin += EXPORT_BLOCK) {
            const uint64_t end = rest.end - rest.begin < EXPORT_BLOCK ? rest.end : rest.begin + EXPORT_BLOCK;
            result = write_block(session, export, fd, own, master, (struct range){rest.begin, end}, error);
        }
    }
    return close_written(export, fd, result, error);
}

/* Rank 0: the finished file takes its name, durably. */
static int publish(const struct export *export, struct error *error)
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", export->path);
    const char *folder = dirname(copy);
    if (rename(export->temporary, export->path)) return error_set_errno(error, STATUS_IO, errno, "%s", export->path);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return error_set_errno(error, STATUS_IO, errno, "%s", folder);
    int failed = fsync(fd) ? errno : 0;
    close(fd);
    return failed ? error_set_errno(error, STATUS_IO, failed, "%s", folder) : 0;
}

/* Each phase ends with all ranks agreeing that all of them got through it. */
static int write_in_phases(struct session *session, struct export *export, struct error *error)
{
    bool first = session->comm->rank == 0;
    struct error own = {0};
    const void *master;
    if (!session_read(session, BUFFER_MASTER, &master, &own) && first) create(session, export, &own);
    int result = agree(session->comm, &own, error);
    if (!result) result = merge_gather(&export->merge, session, master, error);
    if (result) return result;
    write_own_pieces(session, export, master, &own);
    result = agree(session->comm, &own, error);
    if (result) return result;
    if (first) publish(export, &own);
    return agree(session->comm, &own, error);
}

static int write_model(struct session *session, enum model_content content, const char *path, struct error *error)
{
    struct export export = {.path = path};
    struct error own = session->failure; /* of the last evaluation */
    if (!own.status) lay_out(session, content, &export, &own);
    int result = agree(session->comm, &own, error);
    if (!result) result = write_in_phases(session, &export, error);
    if (result && session->comm->rank == 0 && *export.temporary) unlink(export.temporary);
    forget(&export);
    return result;
}

int session_write_model(struct session *session, const char *path, struct error *error)
{
    return write_model(session, MODEL_MERGED, path, error);
}

int session_write_adapters(struct session *session, const char *path, struct error *error)
{
    return write_model(session, MODEL_ADAPTERS, path, error);
}
