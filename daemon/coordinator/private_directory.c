#include "daemon/coordinator/private_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OTHERS_WRITE (S_IWGRP | S_IWOTH)

/* Through the descriptor of the directory itself, whatever becomes of its name meanwhile. */
static int check_parent(int directory, const char *path, struct error *error)
{
    struct stat parent;
    if (fstatat(directory, "..", &parent, 0)) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "%s/..", path);
    if (!(parent.st_mode & OTHERS_WRITE) || parent.st_mode & S_ISVTX) return 0;
    return error_set(error, STATUS_UNAVAILABLE,
                     "%s: others may rename it, for the directory it lies in is theirs to write and not sticky (mode "
                     "%04o); set XDG_RUNTIME_DIR to a directory of your own",
                     path, parent.st_mode & 07777u);
}

static int check(int directory, const char *path, struct error *error)
{
    struct stat facts;
    if (fstat(directory, &facts)) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "%s", path);
    if (!S_ISDIR(facts.st_mode)) {
        const char *what = S_ISLNK(facts.st_mode) ? "a symbolic link: name the directory itself" : "no directory";
        return error_set(error, STATUS_UNAVAILABLE, "%s: is %s", path, what);
    }
    if (facts.st_uid != geteuid())
        return error_set(error, STATUS_UNAVAILABLE, "%s: belongs to uid %u, not to you: choose a directory of your own",
                         path, (unsigned)facts.st_uid);
    if (facts.st_mode & OTHERS_WRITE)
        return error_set(error, STATUS_UNAVAILABLE, "%s: others may write there (mode %04o): chmod go-w %s", path,
                         facts.st_mode & 07777u, path);
    return check_parent(directory, path, error);
}

int private_directory_check(const char *path, struct error *error)
{
    const int directory = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (directory < 0) return error_set_errno(error, STATUS_UNAVAILABLE, errno, "%s", path);
    int status = check(directory, path, error);
    close(directory);
    return status;
}

int private_directory_make(const char *path, struct error *error)
{
    if (mkdir(path, 0700))
        return error_set_errno(error, STATUS_UNAVAILABLE, errno, "cannot make the directory %s", path);
    return private_directory_check(path, error);
}
