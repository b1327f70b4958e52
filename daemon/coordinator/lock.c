#include "daemon/coordinator/lock.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/coordinator/run_directory.h"

#define WATCHED_SECONDS 5 /* that many renewals would have come */
#define POLL_NANOSECONDS 100000000

static int path_of(char *path, const char *directory)
{
    return snprintf(path, PATH_MAX, "%s/%s", directory, LOCK_NAME) < PATH_MAX - 8 ? 0 : -1;
}

static void copy_text(char *to, size_t size, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, size, "%s", text ? text : "");
}

void lock_read(const char *directory, struct lock_holder *holder)
{
    char path[PATH_MAX];
    *holder = (struct lock_holder){0};
    int fd = path_of(path, directory) ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    json_t *object = json_loadfd(fd, 0, NULL);
    close(fd);
    copy_text(holder->host, sizeof holder->host, object, "host");
    copy_text(holder->boot, sizeof holder->boot, object, "boot");
    holder->pid = json_integer_value(json_object_get(object, "pid"));
    json_decref(object);
}

static void describe_self(struct lock_holder *self)
{
    *self = (struct lock_holder){.pid = getpid()};
    gethostname(self->host, sizeof self->host - 1);
    FILE *boot = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (boot && !fgets(self->boot, sizeof self->boot, boot)) self->boot[0] = '\0';
    if (boot) fclose(boot);
    self->boot[strcspn(self->boot, "\n")] = '\0';
}

/* Opened anew for each look, which is when a network file system asks its server. */
static bool read_renewal(const char *path, struct timespec *renewed)
{
    struct stat facts;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const bool there = fd >= 0 && !fstat(fd, &facts);
    if (there) *renewed = facts.st_mtim;
    if (fd >= 0) close(fd);
    return there;
}

static bool is_renewed(const char *path)
{
    const struct timespec pause = {.tv_nsec = POLL_NANOSECONDS};
    struct timespec first, now;
    if (!read_renewal(path, &first)) return false;
    for (long waited = 0; waited < WATCHED_SECONDS * 1000000000L; waited += POLL_NANOSECONDS) {
        nanosleep(&pause, NULL);
        if (!read_renewal(path, &now)) return false; /* its holder has ended */
        if (now.tv_sec != first.tv_sec || now.tv_nsec != first.tv_nsec) return true;
    }
    return false;
}

int lock_take(const char *directory, struct error *error)
{
    char path[PATH_MAX];
    struct lock_holder holder, self;
    if (path_of(path, directory)) return error_set(error, STATUS_IO, "job.output: the path is too long: %s", directory);
    lock_read(directory, &holder);
    describe_self(&self);
    if (holder.boot[0] && strcmp(holder.boot, self.boot) != 0 && is_renewed(path))
        return error_set(error, STATUS_UNAVAILABLE,
                         "job.output: another job (process %" PRId64 " on %s) is writing in %s", holder.pid,
                         holder.host, directory);
    json_t *object = json_pack("{ss sI ss}", "host", self.host, "pid", (json_int_t)self.pid, "boot", self.boot);
    char *text = object ? json_dumps(object, JSON_INDENT(2)) : NULL;
    json_decref(object);
    if (!text) return error_set(error, STATUS_INTERNAL, "%s: out of memory, or a host's name that is no UTF-8", path);
    struct error no_room;
    run_file_write(path, text, strlen(text), 0666, &no_room);
    free(text);
    return 0;
}

void lock_renew(const char *directory)
{
    char path[PATH_MAX];
    if (!path_of(path, directory)) utimensat(AT_FDCWD, path, NULL, 0);
}

void lock_clear(const char *directory, int64_t pid)
{
    char path[PATH_MAX], log[PATH_MAX], unfinished[PATH_MAX + 8];
    struct lock_holder holder;
    if (path_of(path, directory) || snprintf(log, sizeof log, "%s/log.jsonl", directory) >= PATH_MAX) return;
    int fd = open(log, O_RDWR | O_CLOEXEC);
    if (fd >= 0 && !flock(fd, LOCK_EX | LOCK_NB)) {
        lock_read(directory, &holder);
        if (holder.pid == pid) unlink(path);
        snprintf(unfinished, sizeof unfinished, "%s.tmp", path);
        unlink(unfinished);
    }
    if (fd >= 0) close(fd);
}
