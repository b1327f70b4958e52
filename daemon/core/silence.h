/*
 * What silence of a rank means, pure. Ranks send a heartbeat every second, or every quarter of control.timeout where
 * that is shorter; whoever has been silent for two seconds is spoken of, and lost at control.timeout.
 */
#ifndef GACC_SILENCE_H
#define GACC_SILENCE_H

#include <stdbool.h>
#include <stdint.h>

#define SILENCE_SPOKEN_OF 2000u /* milliseconds */

struct silence {
    bool spoken_of;
    uint64_t longest; /* milliseconds, while it is spoken of */
};

enum silence_event {
    SILENCE_NOTHING_NEW,
    SILENCE_BEGINS, /* it has been silent for SILENCE_SPOKEN_OF */
    SILENCE_ENDS,   /* it is heard again, after `longest` */
    SILENCE_TOO_LONG,
};

/* `silent`: milliseconds since the rank was last heard, in which this process was awake; limit: control.timeout. */
enum silence_event silence_update(struct silence *silence, uint64_t silent, uint64_t limit);

#endif
