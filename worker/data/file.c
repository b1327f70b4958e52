/* Regular files, read by position: every failure becomes an error that names the file and the place. */
#include "worker/data/format.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_regular(const char *path, int *descriptor, struct stat *status, struct error *error)
{
    /* O_NONBLOCK: a FIFO must be refused, not waited for. */
    *descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*descriptor < 0) {
        bool ours = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == EIO;
        return error_set_errno(error, ours ? STATUS_IO : STATUS_MISSING, errno, "%s: cannot open", path);
    }
    if (fstat(*descriptor, status) < 0) {
        int number = errno;
        close(*descriptor);
        return error_set_errno(error, STATUS_IO, number, "%s: cannot stat", path);
    }
    if (!S_ISREG(status->st_mode)) {
        close(*descriptor);
        return error_set(error, STATUS_MISSING, "%s: %s, not a regular file", path,
                         S_ISDIR(status->st_mode) ? "a directory" : "a special file");
    }
    return 0;
}

int file_open(struct file *file, const char *path, struct error *error)
{
    struct stat status;
    *file = (struct file){.path = path, .descriptor = -1};
    int result = open_regular(path, &file->descriptor, &status, error);
    if (result < 0) {
        file->descriptor = -1;
        return result;
    }
    file->size = (uint64_t)status.st_size;
    file->device = status.st_dev;
    file->inode = status.st_ino;
    return 0;
}

static const struct {
    const char *by, *unpack;
    unsigned char begin[10];
    size_t length;
} packings[] = {
    {"gzip", "gunzip", "\x1F\x8B\x08", 3},
    {"xz", "unxz",
     "\xFD"
     "7zXZ",
     6}, /* with the NUL */
    {"zstd", "unzstd", "\x28\xB5\x2F\xFD", 4},
    {"bzip2", "bunzip2", "BZh91AY&SY", 10},
    {"zip", "unzip", "PK\3\4", 4},
};
enum { PACKINGS = sizeof packings / sizeof *packings };

int file_check_unpacked(const struct file *file, struct error *error)
{
    unsigned char begin[sizeof packings->begin] = {0};
    const size_t bytes = file->size < sizeof begin ? (size_t)file->size : sizeof begin;
    int result = file_read(file, 0, bytes, begin, error);
    for (size_t i = 0; i < PACKINGS && result == 0; i++)
        if (memcmp(begin, packings[i].begin, packings[i].length) == 0)
            result = error_set(error, STATUS_DATA, "%s: compressed by %s; %s it first", file->path, packings[i].by,
                               packings[i].unpack);
    return result;
}

int file_reopen(struct file *file, struct error *error)
{
    struct file again;
    int result = file_open(&again, file->path, error);
    if (result < 0) return result;
    if (again.device != file->device || again.inode != file->inode) {
        file_close(&again);
        return error_set(error, STATUS_DATA, "%s: replaced by another file since the job started", file->path);
    }
    file->descriptor = again.descriptor;
    return 0;
}

void file_close(struct file *file)
{
    if (file->descriptor >= 0) close(file->descriptor);
    file->descriptor = -1;
}

int file_read(const struct file *file, uint64_t offset, size_t bytes, void *to, struct error *error)
{
    size_t done = 0;
    while (done < bytes) {
        ssize_t got = pread(file->descriptor, (char *)to + done, bytes - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return error_set_errno(error, STATUS_IO, errno, "%s: cannot read at byte %" PRIu64, file->path,
                                   offset + done);
        if (got == 0)
            return error_set(error, STATUS_DATA,
                             "%s: ends at byte %" PRIu64 ", wanted %zu bytes from byte %" PRIu64 ": it had %" PRIu64
                             " bytes when the job started",
                             file->path, offset + done, bytes, offset, file->size);
        done += (size_t)got;
    }
    return 0;
}

int file_hold(struct open_files *held, struct file *file, const char *path, struct error *error)
{
    if (file->path && file->descriptor >= 0) return 0;
    struct file **slot = &held->opened[held->next];
    if (*slot) file_close(*slot);
    *slot = NULL;
    int result = file->path ? file_reopen(file, error) : file_open(file, path, error);
    if (result < 0) return result;
    *slot = file;
    held->next = (held->next + 1) % OPEN_FILES;
    return 0;
}

uint64_t file_next_data(const struct file *file, uint64_t offset)
{
    off_t data = lseek(file->descriptor, (off_t)offset, SEEK_DATA);
    if (data >= 0) return (uint64_t)data;
    /* ENXIO: only a hole follows. Anything else: a file system that does not know of holes. */
    return errno == ENXIO ? file->size : offset;
}
