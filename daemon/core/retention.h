/* Which checkpoints may go, pure. */
#ifndef GACC_RETENTION_H
#define GACC_RETENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct retention {
    uint32_t keep;       /* the newest so many stay; 0: all */
    uint64_t keep_every; /* those at its multiples stay, too; 0: none */
};

/* Complete checkpoints by their optimizer steps, oldest first. goes[i]: the i-th may be removed, now that the last one
 * is complete, which never goes. */
void retention_choose(const struct retention *rules, const uint64_t *optimizer_steps, size_t count, bool *goes);

#endif
