/*
 * Where a reader of WatchSteps stands, pure: which lines it has seen, so that after a lost connection it asks for the
 * rest and sees no line twice, and misses none.
 */
#ifndef GACC_CTL_STREAM_H
#define GACC_CTL_STREAM_H

#include <stdbool.h>
#include <stdint.h>

struct stream {
    uint64_t from;     /* as first asked for; 0: from now on */
    uint64_t last;     /* the last step whose line was seen; 0: none */
    uint64_t behind;   /* lines seen since that one, itself included */
    bool is_resuming;  /* the last step's line has not come again yet */
    uint64_t repeated; /* lines that came again, itself included */
};

/* What to ask for now; from here on, lines that were seen are told apart. */
uint64_t stream_begin(struct stream *stream);
/* The job began anew, as another process: nothing of it has been seen, all of it is wanted. */
void stream_reset(struct stream *stream);
/* A line of the answer, in its order: whether it has not been seen. `is_step`: it is a step's own. */
bool stream_take(struct stream *stream, uint64_t step, bool is_step);

#endif
