/*
 * The checksum that a checkpoint carries for every range of its files: XXH3 of 128 bits (libxxhash), as fast as memory
 * is, so that the threads which write beside training cost next to nothing. It finds what a disk, a crash or a cut
 * file did, not what somebody forged.
 */
#ifndef GACC_CHECKSUM_H
#define GACC_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

#define CHECKSUM_BYTES 16

struct checksum;

/* NULL: out of memory. */
struct checksum *checksum_begin(void);
void checksum_add(struct checksum *checksum, const void *bytes, size_t count);
/* Of all bytes so far, in the canonical (big-endian) form of the library; and starts anew. */
void checksum_take(struct checksum *checksum, uint8_t value[CHECKSUM_BYTES]);
void checksum_end(struct checksum *checksum); /* NULL is allowed */

#endif
