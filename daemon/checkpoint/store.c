#include "daemon/checkpoint/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/coordinator/run_directory.h"

#define FOLDER "checkpoints"
#define LATEST "latest"
#define BLOCK_BYTES (1u << 20)

/* ---- names ---- */

void store_name(char name[STORE_NAME_MAX + 1], uint64_t optimizer_steps, uint64_t attempt, bool was_applied)
{
    int length = snprintf(name, STORE_NAME_MAX + 1, "step-%08" PRIu64, optimizer_steps);
    if (!was_applied) snprintf(name + length, STORE_NAME_MAX + 1 - (size_t)length, "-attempt-%08" PRIu64, attempt);
}

static bool read_name(const char *name, struct stored *stored)
{
    char again[STORE_NAME_MAX + 1];
    *stored = (struct stored){0};
    if (sscanf(name, "step-%" SCNu64 "-attempt-%" SCNu64, &stored->optimizer_steps, &stored->attempt) < 1) return false;
    store_name(again, stored->optimizer_steps, stored->attempt, stored->attempt == 0);
    if (strcmp(again, name)) return false;
    memcpy(stored->name, again, sizeof again);
    return true;
}

uint64_t store_name_steps(const char *name)
{
    struct stored stored;
    return read_name(name, &stored) ? stored.optimizer_steps : 0;
}

static int join(char *path, const char *directory, const char *name, struct error *error)
{
    if (snprintf(path, PATH_MAX, "%s/%s", directory, name) < PATH_MAX - 8) return 0; /* a temporary name is longer */
    return error_set(error, STATUS_IO, "the path is too long: %s/%s", directory, name);
}

int store_path(char *path, const char *output, const char *name, struct error *error)
{
    char folder[PATH_MAX];
    int status = join(folder, output, FOLDER, error);
    return status ? status : join(path, folder, name, error);
}

/* ---- looking ---- */

static int by_age(const void *left, const void *right)
{
    const struct stored *a = left, *b = right;
    if (a->optimizer_steps != b->optimizer_steps) return a->optimizer_steps < b->optimizer_steps ? -1 : 1;
    return a->attempt < b->attempt ? -1 : a->attempt > b->attempt;
}

static int add(struct stored **list, size_t *count, const struct stored *stored, struct error *error)
{
    struct stored *longer = realloc(*list, (*count + 1) * sizeof **list);
    if (!longer) return error_set(error, STATUS_INTERNAL, "out of memory for a list of checkpoints");
    *list = longer;
    longer[(*count)++] = *stored;
    return 0;
}

int store_list(const char *output, struct stored **list, size_t *count, struct error *error)
{
    char folder[PATH_MAX], manifest[2 * PATH_MAX];
    *list = NULL;
    *count = 0;
    int status = join(folder, output, FOLDER, error);
    if (status) return status;
    DIR *stream = opendir(folder);
    if (!stream && errno == ENOENT) return 0;
    if (!stream) return error_set_errno(error, STATUS_IO, errno, "%s", folder);
    for (struct dirent *entry; !status && (entry = readdir(stream));) {
        struct stored stored;
        if (!read_name(entry->d_name, &stored)) continue;
        snprintf(manifest, sizeof manifest, "%s/%s/%s", folder, stored.name, MANIFEST_NAME);
        stored.complete = !access(manifest, F_OK) || (errno != ENOENT && errno != ENOTDIR);
        status = add(list, count, &stored, error);
    }
    closedir(stream);
    if (*count > 0) qsort(*list, *count, sizeof **list, by_age);
    return status;
}

void store_newest(const char *output, char name[STORE_NAME_MAX + 1])
{
    struct stored *list;
    size_t count;
    struct error unseen;
    name[0] = '\0';
    store_list(output, &list, &count, &unseen);
    for (size_t i = 0; i < count; i++)
        if (list[i].complete) memcpy(name, list[i].name, sizeof list[i].name);
    free(list);
}

double store_seconds(const char *output, const char *name)
{
    char manifest[2 * PATH_MAX];
    struct stat facts;
    snprintf(manifest, sizeof manifest, "%s/" FOLDER "/%s/%s", output, name, MANIFEST_NAME);
    if (!*name || stat(manifest, &facts)) return 0;
    return (double)facts.st_mtim.tv_sec + (double)facts.st_mtim.tv_nsec * 1e-9;
}

/* ---- writing ---- */

static int sync_directory(const char *path, struct error *error)
{
    return run_path_sync(path, O_DIRECTORY, error);
}

static int write_manifest(const char *directory, struct manifest *manifest, struct error *error)
{
    char path[PATH_MAX];
    size_t length;
    int status = join(path, directory, MANIFEST_NAME, error);
    if (status) return status;
    char *text = manifest_text(manifest, &length);
    if (!text) return error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    status = run_file_write(path, text, length, 0666, error);
    free(text);
    return status;
}

static int write_latest(const char *folder, const char *name, struct error *error)
{
    char path[PATH_MAX], line[STORE_NAME_MAX + 2];
    int status = join(path, folder, LATEST, error);
    const int length = snprintf(line, sizeof line, "%s\n", name);
    return status ? status : run_file_write(path, line, (size_t)length, 0666, error);
}

int store_commit(const char *output, const char *name, struct manifest *manifest, struct error *error)
{
    char folder[PATH_MAX], directory[PATH_MAX];
    int status;
    if ((status = join(folder, output, FOLDER, error)) || (status = join(directory, folder, name, error)) ||
        (status = sync_directory(directory, error)) || (status = write_manifest(directory, manifest, error)) ||
        (status = sync_directory(directory, error)) || (status = sync_directory(folder, error)) ||
        (status = sync_directory(output, error)) || (status = write_latest(folder, name, error)))
        return status;
    return sync_directory(folder, error);
}

/* ---- letting go ---- */

/* Of a link to a directory what it names, and the link; a file in a checkpoint's place goes, too. */
static int remove_entries(const char *directory, struct error *error)
{
    char path[2 * PATH_MAX];
    DIR *stream = opendir(directory);
    if (!stream && errno != ENOTDIR) return error_set_errno(error, STATUS_IO, errno, "%s", directory);
    for (struct dirent *entry; stream && (entry = readdir(stream));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        unlink(path); /* what stays keeps the directory, which says so */
    }
    if (stream) closedir(stream);
    if (!rmdir(directory) || (errno == ENOTDIR && !unlink(directory))) return 0;
    return error_set_errno(error, STATUS_IO, errno, "%s: cannot be removed", directory);
}

int store_remove(const char *output, const char *name, struct error *error)
{
    char directory[PATH_MAX], manifest[PATH_MAX];
    int status;
    if ((status = store_path(directory, output, name, error)) ||
        (status = join(manifest, directory, MANIFEST_NAME, error)))
        return status;
    if (!unlink(manifest)) {
        if ((status = sync_directory(directory, error))) return status;
    } else if (errno != ENOENT && errno != ENOTDIR) {
        return error_set_errno(error, STATUS_IO, errno, "%s: cannot be removed", manifest);
    }
    if (access(directory, F_OK) && errno == ENOENT) return 0;
    return remove_entries(directory, error);
}

int store_retain(const char *output, const struct retention *rules, struct error *error)
{
    struct stored *list;
    size_t count, complete = 0;
    int status = store_list(output, &list, &count, error);
    for (size_t i = 0; i < count; i++)
        if (list[i].complete) list[complete++] = list[i];
    uint64_t *steps = calloc(complete + 1, sizeof *steps);
    bool *goes = calloc(complete + 1, sizeof *goes);
    if (!status && (!steps || !goes)) status = error_set(error, STATUS_INTERNAL, "out of memory");
    if (!status) {
        for (size_t i = 0; i < complete; i++) steps[i] = list[i].optimizer_steps;
        retention_choose(rules, steps, complete, goes);
    }
    for (size_t i = 0; i < complete && !status; i++)
        if (goes[i]) status = store_remove(output, list[i].name, error);
    free(list);
    free(steps);
    free(goes);
    return status;
}

int store_set_aside(const char *output, const char *name, const char *suffix, struct error *error)
{
    char from[PATH_MAX], to[PATH_MAX + 64];
    int status = store_path(from, output, name, error);
    if (status) return status;
    for (unsigned i = 1; i < 10000; i++) {
        snprintf(to, sizeof to, i == 1 ? "%s.%s" : "%s.%s-%u", from, suffix, i);
        if (access(to, F_OK)) return rename(from, to) ? error_set_errno(error, STATUS_IO, errno, "%s", to) : 0;
    }
    return error_set(error, STATUS_IO, "%s: too many are set aside already", from);
}

/* ---- verifying ---- */

/* The range's checksum as the file has it now. */
static int sum_range(int fd, const char *path, const struct manifest_range *range, uint8_t *block,
                     struct checksum *checksum, struct error *error)
{
    for (uint64_t at = range->begin; at < range->end;) {
        const size_t wanted = range->end - at < BLOCK_BYTES ? (size_t)(range->end - at) : BLOCK_BYTES;
        ssize_t got = pread(fd, block, wanted, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return error_set_errno(error, STATUS_IO, errno, "%s: byte %" PRIu64, path, at);
        if (got == 0) return error_set(error, STATUS_DATA, "%s: ends at byte %" PRIu64, path, at);
        checksum_add(checksum, block, (size_t)got);
        at += (uint64_t)got;
    }
    uint8_t value[CHECKSUM_BYTES];
    checksum_take(checksum, value);
    if (!memcmp(value, range->checksum, CHECKSUM_BYTES)) return 0;
    return error_set(error, STATUS_DATA, "%s: bytes %" PRIu64 " to %" PRIu64 " are not what was written (checksum)",
                     path, range->begin, range->end);
}

static int verify_ranges(int fd, const char *path, const struct manifest_range *ranges, size_t count,
                         struct error *error)
{
    struct stat facts;
    const uint64_t wanted = ranges[count - 1].end;
    if (fstat(fd, &facts)) return error_set_errno(error, STATUS_IO, errno, "%s", path);
    if ((uint64_t)facts.st_size != wanted)
        return error_set(error, STATUS_DATA, "%s: has %lld bytes, %" PRIu64 " were written", path,
                         (long long)facts.st_size, wanted);
    uint8_t *block = malloc(BLOCK_BYTES);
    struct checksum *checksum = checksum_begin();
    int status = block && checksum ? 0 : error_set(error, STATUS_INTERNAL, "%s: out of memory", path);
    for (size_t i = 0; i < count && !status; i++) status = sum_range(fd, path, &ranges[i], block, checksum, error);
    free(block);
    checksum_end(checksum);
    return status;
}

int store_verify(const char *directory, const struct manifest *manifest, struct error *error)
{
    char path[PATH_MAX];
    int status = 0;
    for (size_t i = 0, next; i < manifest->range_count && !status; i = next) {
        next = manifest_next_file(manifest, i);
        if ((status = join(path, directory, manifest->ranges[i].file, error))) return status;
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) return error_set_errno(error, errno == ENOENT ? STATUS_DATA : STATUS_IO, errno, "%s", path);
        status = verify_ranges(fd, path, &manifest->ranges[i], next - i, error);
        close(fd);
    }
    return status;
}
