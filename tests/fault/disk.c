/*
 * A disk that stops, fails or forgets, under a program that does not know of it (LD_PRELOAD). It watches every call
 * that changes something under GACC_DISK (a directory), in all processes of a job together, and counts them in
 * GACC_DISK_STATE:
 *
 *     GACC_DISK_STOP=n         the n-th call and all later ones never happen: their threads wait for the end. What had
 * been made durable by then lies in GACC_DISK_STATE.d: INODE.data as of a file's last fsync, INODE.names as of a
 * directory's. GACC_DISK_FAIL=n:errno   the n-th call fails. errno 0: it writes one byte of what it was given, and says
 * so. GACC_DISK_FULL=name:line:lines   from the first write to a checkpoint of this name on none finds room, those
 * beside the checkpoints included, until something of it is removed. So that they meet, the line-th write to log.jsonl
 * waits for that first one, and that for the refusal of so many lines. GACC_DISK_TRACE=path   one line for each call:
 * its number, name, path.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Of all processes. */
struct shared {
    atomic_ulong calls;
    atomic_ulong stopped; /* threads that wait */
    atomic_ulong refused; /* writes beside the checkpoints, while it was full */
    atomic_ulong lines;   /* written to log.jsonl, or refused */
    _Atomic enum { ROOMY, FULL, CLEARED } room;
};

static struct {
    struct shared *shared;
    char root[PATH_MAX], durable[PATH_MAX], trace[PATH_MAX];
    char full[64];
    unsigned long stop, fail, line, lines;
    int number; /* of the failure */
} disk;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *root = getenv("GACC_DISK"), *state = getenv("GACC_DISK_STATE"), *word;
    if (!root || !state) return;
    int fd = REAL(open)(state, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || REAL(ftruncate)(fd, sizeof *disk.shared)) abort();
    disk.shared = mmap(NULL, sizeof *disk.shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    snprintf(disk.root, sizeof disk.root, "%s", root);
    snprintf(disk.durable, sizeof disk.durable, "%s.d", state);
    REAL(mkdir)(disk.durable, 0777);
    if ((word = getenv("GACC_DISK_STOP"))) disk.stop = strtoul(word, NULL, 10);
    if ((word = getenv("GACC_DISK_FULL"))) sscanf(word, "%63[^:]:%lu:%lu", disk.full, &disk.line, &disk.lines);
    if ((word = getenv("GACC_DISK_TRACE"))) snprintf(disk.trace, sizeof disk.trace, "%s", word);
    if ((word = getenv("GACC_DISK_FAIL"))) sscanf(word, "%lu:%d", &disk.fail, &disk.number);
}

static bool is_below(const char *path)
{
    return disk.shared && !strncmp(path, disk.root, strlen(disk.root));
}

static bool is_ours(const char *path)
{
    char full[2 * PATH_MAX], directory[PATH_MAX];
    if (!disk.shared || !path) return false;
    if (path[0] == '/')
        snprintf(full, sizeof full, "%s", path);
    else if (getcwd(directory, sizeof directory))
        snprintf(full, sizeof full, "%s/%s", directory, path);
    else
        return false;
    return is_below(full) && strstr(full, "/checkpoints");
}

static bool path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = disk.shared ? readlink(link, path, PATH_MAX - 1) : -1;
    if (length < 0) return false;
    path[length] = '\0';
    return true;
}

static void trace(unsigned long call, const char *name, const char *path)
{
    char line[PATH_MAX + 64];
    if (!disk.trace[0]) return;
    int length = snprintf(line, sizeof line, "%lu %s %s\n", call, name, path);
    int fd = REAL(open)(disk.trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || REAL(write)(fd, line, (size_t)length) < 0) abort();
    REAL(close)(fd);
}

enum fate { HAPPENS, FAILS, FALLS_SHORT };

static void wait_a_little(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* The disk is full from now on. */
static void fill(void)
{
    disk.shared->room = FULL;
    while (disk.shared->refused < disk.lines) wait_a_little();
}

/* Beside the checkpoints a full disk alone is in the way. */
static bool finds_room(const char *path)
{
    if (!disk.full[0] || !is_below(path)) return true;
    if (strstr(path, "/log.jsonl") && atomic_fetch_add(&disk.shared->lines, 1) + 1 == disk.line)
        while (disk.shared->room == ROOMY) wait_a_little();
    if (disk.shared->room != FULL) return true;
    atomic_fetch_add(&disk.shared->refused, 1);
    errno = ENOSPC;
    return false;
}

static enum fate meet(const char *name, const char *path)
{
    unsigned long call = atomic_fetch_add(&disk.shared->calls, 1) + 1;
    trace(call, name, path);
    if (disk.stop && call >= disk.stop) {
        atomic_fetch_add(&disk.shared->stopped, 1);
        for (;;) pause();
    }
    const bool writes = strstr(name, "write");
    if (writes && disk.full[0] && disk.shared->room == ROOMY && strstr(path, disk.full)) fill();
    if (!strcmp(name, "unlink") && disk.shared->room == FULL) disk.shared->room = CLEARED;
    if (writes && disk.shared->room == FULL) {
        errno = ENOSPC;
        return FAILS;
    }
    if (!disk.fail || call != disk.fail) return HAPPENS;
    errno = disk.number;
    return disk.number ? FAILS : FALLS_SHORT;
}

/* ---- what is durable ---- */

static void publish(const char *temporary, ino_t inode, const char *kind)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%lu.%s", disk.durable, (unsigned long)inode, kind);
    if (REAL(rename)(temporary, path)) abort();
}

static void remember(int fd)
{
    static atomic_ulong count;
    char temporary[PATH_MAX + 64], path[PATH_MAX], block[65536];
    struct stat facts;
    if (fstat(fd, &facts) || !path_of(fd, path)) abort();
    snprintf(temporary, sizeof temporary, "%s/%d-%lu.tmp", disk.durable, (int)getpid(), atomic_fetch_add(&count, 1));
    int to = REAL(open)(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (S_ISDIR(facts.st_mode)) {
        DIR *stream = opendir(path);
        for (struct dirent *entry; stream && (entry = readdir(stream));)
            if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
                dprintf(to, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
        if (stream) closedir(stream);
    } else {
        int from = REAL(open)(path, O_RDONLY | O_CLOEXEC);
        for (ssize_t got; (got = read(from, block, sizeof block)) > 0;)
            if (REAL(write)(to, block, (size_t)got) != got) abort();
        close(from);
    }
    REAL(close)(to);
    publish(temporary, facts.st_ino, S_ISDIR(facts.st_mode) ? "names" : "data");
}

/* ---- the calls ---- */

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (flags & O_CREAT && is_ours(path) && meet("open", path) == FAILS) return -1;
    return REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

ssize_t write(int fd, const void *bytes, size_t count)
{
    char path[PATH_MAX];
    enum fate fate = HAPPENS;
    if (count > 0 && path_of(fd, path)) fate = is_ours(path) ? meet("write", path) : finds_room(path) ? HAPPENS : FAILS;
    return fate == FAILS ? -1 : REAL(write)(fd, bytes, fate == FALLS_SHORT ? 1 : count);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset)
{
    char path[PATH_MAX];
    enum fate fate = path_of(fd, path) && is_ours(path) ? meet("pwrite", path) : HAPPENS;
    return fate == FAILS ? -1 : REAL(pwrite)(fd, bytes, fate == FALLS_SHORT ? 1 : count, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off_t offset) __attribute__((alias("pwrite")));

int ftruncate(int fd, off_t size)
{
    char path[PATH_MAX];
    if (path_of(fd, path) && is_ours(path) && meet("ftruncate", path) == FAILS) return -1;
    return REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off_t size) __attribute__((alias("ftruncate")));

int fsync(int fd)
{
    char path[PATH_MAX];
    if (path_of(fd, path) && is_below(path)) {
        if (is_ours(path) && meet("fsync", path) == FAILS) return -1;
        remember(fd);
    }
    return REAL(fsync)(fd);
}

int close(int fd)
{
    char path[PATH_MAX];
    bool fails = path_of(fd, path) && is_ours(path) && fcntl(fd, F_GETFL) & O_ACCMODE && meet("close", path) == FAILS;
    int number = errno;
    int result = REAL(close)(fd);
    if (fails) errno = number;
    return fails ? -1 : result;
}

/* What goes keeps its inode, which is what it is known by: another must not get that number. */
static int bury(const char *path)
{
    static atomic_ulong count;
    char grave[PATH_MAX + 64];
    snprintf(grave, sizeof grave, "%s/%d-%lu.gone", disk.durable, (int)getpid(), atomic_fetch_add(&count, 1));
    return REAL(rename)(path, grave);
}

static bool is_empty(const char *path)
{
    int entries = 0;
    DIR *stream = opendir(path);
    while (stream && readdir(stream)) entries++;
    if (stream) closedir(stream);
    return stream && entries == 2;
}

int mkdir(const char *path, mode_t mode)
{
    if (is_ours(path) && meet("mkdir", path) == FAILS) return -1;
    return REAL(mkdir)(path, mode);
}

int rename(const char *from, const char *to)
{
    if (is_ours(to)) {
        if (meet("rename", to) == FAILS) return -1;
        if (!access(to, F_OK)) bury(to);
    }
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    if (!is_ours(path)) return REAL(unlink)(path);
    return meet("unlink", path) == FAILS ? -1 : bury(path);
}

int rmdir(const char *path)
{
    if (!is_ours(path)) return REAL(rmdir)(path);
    if (meet("rmdir", path) == FAILS) return -1;
    return is_empty(path) ? bury(path) : REAL(rmdir)(path);
}
