/*
 * Those who watch the log (WatchSteps). Lines are read back from log.jsonl, however old or new they are, a page for all
 * who stand in it. Watchers come behind the ranks: they are served in rounds, a slice of time at once and a pause
 * behind it; whoever does not keep up gets more lines at once, or waits in the file.
 */
#ifndef GACC_WATCHING_H
#define GACC_WATCHING_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#define WATCHERS_MAX 64
#define WATCHED_LINE_MAX (1u << 20)      /* bytes; a longer line goes to nobody */
#define WATCHED_QUEUE_BYTES (256u << 10) /* unsent of one watcher, or one line */

struct watcher;

struct page {           /* of the log: whole lines, each ended by a zero in place of its newline */
    char *text;         /* [WATCHED_LINE_MAX] */
    int64_t begin, end; /* in the file */
    size_t length;      /* of text: end − begin, or 0 where the line is too long */
    bool is_last;       /* nothing whole lies behind it */
};

struct watching {
    struct watcher *all, *turn; /* turn: whose it is in the round under way */
    uint32_t count, full;       /* full: those with lines that did not fit */
    struct page page;
    uv_timer_t next;   /* slice of the round under way, or round */
    uint64_t began;    /* this round, or the last: uv_now */
    bool is_under_way; /* one is */
    bool again, soon;  /* there is something to do in the next one; that does not wait for more */
};

#endif
