/* Which targets are not learned, from a file beside the data. */
#include <inttypes.h>

#include "worker/data/format.h"

int mask_read(const struct file *file, uint64_t first, size_t count, unsigned char *to, struct error *error)
{
    int result = file_read(file, first, count, to, error);
    for (size_t i = 0; i < count && result == 0; i++)
        if (to[i] > 1)
            result = error_set(error, STATUS_DATA, "%s: byte %" PRIu64 " is %u, wanted 0 (masked) or 1", file->path,
                               first + i, to[i]);
    return result;
}

int mask_check_size(const struct file *file, uint64_t count, const char *of, struct error *error)
{
    if (file->size == count) return 0;
    return error_set(error, STATUS_DATA, "%s: %" PRIu64 " bytes, but %s wants %" PRIu64 ", one each", file->path,
                     file->size, of, count);
}
