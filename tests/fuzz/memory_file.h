/* Bytes as a file that data_open can open, without a file system. */
#ifndef GACC_TEST_MEMORY_FILE_H
#define GACC_TEST_MEMORY_FILE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static inline int memory_file(const uint8_t *bytes, size_t size, char path[32])
{
    int descriptor = memfd_create("fuzz", MFD_CLOEXEC);
    if (descriptor < 0 || write(descriptor, bytes, size) != (ssize_t)size) abort();
    snprintf(path, 32, "/proc/self/fd/%d", descriptor);
    return descriptor;
}

#endif
