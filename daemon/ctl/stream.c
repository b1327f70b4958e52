#include "daemon/ctl/stream.h"

uint64_t stream_begin(struct stream *stream)
{
    stream->is_resuming = stream->last > 0;
    stream->repeated = 0;
    return stream->last ? stream->last : stream->from;
}

void stream_reset(struct stream *stream)
{
    *stream = (struct stream){.from = 1};
}

/* What comes before the line of the last step (a header, warnings before the first step) was seen, for asked for is
 * that step; so were as many lines from it on as came then. A step behind it ends that, should lines be missing. */
static bool is_repeated(struct stream *stream, uint64_t step, bool is_step)
{
    if (!stream->is_resuming) return false;
    if (step < stream->last) return true;
    if (is_step && step > stream->last) stream->is_resuming = false;
    if (!stream->is_resuming) return false;
    if (is_step || stream->repeated) stream->repeated++;
    if (stream->repeated == stream->behind) stream->is_resuming = false;
    return true;
}

bool stream_take(struct stream *stream, uint64_t step, bool is_step)
{
    if (is_repeated(stream, step, is_step)) return false;
    if (is_step) {
        stream->last = step;
        stream->behind = 0;
    }
    if (stream->last) stream->behind++;
    return true;
}
