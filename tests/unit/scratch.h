/* A directory of a test's own, and files in it; removed at the end. */
#ifndef GACC_TEST_SCRATCH_H
#define GACC_TEST_SCRATCH_H

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch[] = "/tmp/gacc-test-XXXXXX";

static int scratch_open(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int scratch_close(void **state)
{
    (void)state;
    DIR *directory = opendir(scratch);
    if (!directory) return -1;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (entry->d_name[0] != '.') unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    return rmdir(scratch);
}

/* The path of a file of that name with these bytes; freed by the caller. */
static inline char *scratch_file(const char *name, const void *bytes, size_t size)
{
    char *path;
    if (asprintf(&path, "%s/%s", scratch, name) < 0) abort();
    FILE *file = fopen(path, "wb");
    if (!file || (size > 0 && fwrite(bytes, size, 1, file) != 1) || fclose(file) != 0) abort();
    return path;
}

#endif
