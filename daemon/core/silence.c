#include "daemon/core/silence.h"

enum silence_event silence_update(struct silence *silence, uint64_t silent, uint64_t limit)
{
    if (silent >= limit) return SILENCE_TOO_LONG;
    const bool was_spoken_of = silence->spoken_of;
    silence->spoken_of = silent >= SILENCE_SPOKEN_OF;
    if (silence->spoken_of) silence->longest = silent;
    if (silence->spoken_of == was_spoken_of) return SILENCE_NOTHING_NEW;
    return silence->spoken_of ? SILENCE_BEGINS : SILENCE_ENDS;
}
