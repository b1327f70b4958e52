#include "daemon/coordinator/leftovers.h"

#include <errno.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/place.h"

static int remove_entry(const char *path, const struct stat *facts, int type, struct FTW *walk)
{
    (void)facts, (void)type, (void)walk;
    remove(path);
    return 0;
}

static void remove_tree(const char *path)
{
    if (path[0]) nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static void remove_shared_memory(const char *path, bool patience)
{
    const struct timespec pause = {.tv_nsec = 10000000};
    for (int i = 0; i < 50 && patience && path[0]; i++) {
        if (!rmdir(path) || errno != ENOTEMPTY) return;
        nanosleep(&pause, NULL);
    }
    remove_tree(path);
}

/* A file, and what is left of one that was not finished. */
static void remove_file(const char *path)
{
    char unfinished[4096 + 8];
    if (!path[0]) return;
    snprintf(unfinished, sizeof unfinished, "%s.tmp", path);
    unlink(unfinished);
    unlink(path);
}

void leftovers_remove(const struct leftovers *leftovers, bool patience)
{
    remove_file(leftovers->connection);
    remove_file(leftovers->lock);
    if (leftovers->socket[0]) unlink(leftovers->socket);
    if (leftovers->socket_directory[0]) rmdir(leftovers->socket_directory);
    remove_shared_memory(leftovers->shared_memory, patience);
}

void leftovers_remove_session(const struct leftovers *leftovers)
{
    if (!leftovers->session_directory[0] || !place_is_gone(leftovers->launcher)) return;
    remove_tree(leftovers->session_directory);
    char parent[sizeof leftovers->session_directory];
    snprintf(parent, sizeof parent, "%s", leftovers->session_directory);
    char *slash = strrchr(parent, '/');
    if (slash) *slash = '\0';
    rmdir(parent); /* stays while another job of the user has its session there */
}
