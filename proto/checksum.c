#include "proto/checksum.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

static_assert(sizeof(XXH128_canonical_t) == CHECKSUM_BYTES, "128 bits");

static XXH3_state_t *state_of(struct checksum *checksum)
{
    return (XXH3_state_t *)checksum;
}

struct checksum *checksum_begin(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state) XXH3_128bits_reset(state);
    return (struct checksum *)state;
}

void checksum_add(struct checksum *checksum, const void *bytes, size_t count)
{
    if (count > 0) XXH3_128bits_update(state_of(checksum), bytes, count);
}

void checksum_take(struct checksum *checksum, uint8_t value[CHECKSUM_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_of(checksum)));
    memcpy(value, canonical.digest, CHECKSUM_BYTES);
    XXH3_128bits_reset(state_of(checksum));
}

void checksum_end(struct checksum *checksum)
{
    XXH3_freeState(state_of(checksum));
}
