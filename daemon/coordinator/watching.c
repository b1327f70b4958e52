#include "daemon/coordinator/watching.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/coordinator/inside.h"

#define PAGE_BYTES (64u << 10)   /* read at once; more for a longer line */
#define PAGES_AT_ONCE 8          /* turned for one watcher */
#define ROUND_MILLISECONDS 20    /* from one's beginning to the next: what comes meanwhile goes out in one write */
#define SLICE_NANOSECONDS 50000u /* for which those who are not served wait */
#define PAUSE_MILLISECONDS 1     /* between two slices: short bursts keep their place in a busy machine's queue */

struct watcher {
    struct rpc_call *call;
    uint64_t from;  /* step */
    uint64_t step;  /* of the last line that is a step's */
    bool all;       /* other lines are wanted, too */
    bool is_full;   /* there are lines that did not fit */
    int64_t offset; /* in log.jsonl, of the first line not looked at */
    struct watcher *next, **link;
};

/* ---- the log, page by page ---- */

/* The first line is longer than a page can be: up to its end. */
static void pass_over_line(struct page *page, int reader)
{
    const char *newline = NULL;
    ssize_t length = WATCHED_LINE_MAX;
    page->end = page->begin;
    page->length = 0;
    while (length > 0 && !newline) {
        page->end += length;
        length = pread(reader, page->text, WATCHED_LINE_MAX, page->end);
        newline = length > 0 ? memchr(page->text, '\n', (size_t)length) : NULL;
    }
    page->end = newline ? page->end + (newline - page->text) + 1 : page->begin;
}

static void turn_page(struct page *page, int reader, int64_t offset)
{
    static const size_t sizes[] = {PAGE_BYTES, WATCHED_LINE_MAX};
    page->begin = page->end = offset;
    page->length = 0;
    for (size_t i = 0; i < 2 && !page->length; i++) {
        const ssize_t length = pread(reader, page->text, sizes[i], offset);
        const char *last = length > 0 ? memrchr(page->text, '\n', (size_t)length) : NULL;
        page->length = last ? (size_t)(last - page->text) + 1 : 0;
        page->is_last = length < (ssize_t)sizes[i];
        if (page->is_last) break;
    }
    page->end = offset + (int64_t)page->length;
    if (!page->length && !page->is_last) pass_over_line(page, reader);
    for (char *at = page->text, *end = at + page->length; at < end; at++)
        if (*at == '\n') *at = '\0';
}

/* The page with the line there; NULL: the log ends there. */
static const struct page *page_at(struct coordinator *coordinator, int64_t offset)
{
    struct page *page = &coordinator->watching.page;
    if (offset >= page->begin && offset < page->end) return page;
    if (page->is_last && offset == page->end) return NULL;
    turn_page(page, coordinator->directory.reader, offset);
    return page->end > offset ? page : NULL;
}

/* The step of a line of the log; 0 when it is no step's and no evaluation's. observe/step_log.c writes these keys
 * first. */
static uint64_t step_of(const char *line)
{
    static const char *const beginnings[] = {"{\"type\":\"step\",\"step\":", "{\"type\":\"eval\",\"step\":"};
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings; i++)
        if (!strncmp(line, beginnings[i], strlen(beginnings[i])))
            return strtoull(line + strlen(beginnings[i]), NULL, 10);
    return 0;
}

/* ---- one watcher ---- */

static int send_line(struct watcher *watcher, const char *line)
{
    const uint64_t step = step_of(line);
    if (step) watcher->step = step;
    if ((!step && !watcher->all) || watcher->step < watcher->from) return 0;
    if (rpc_call_queued(watcher->call) >= WATCHED_QUEUE_BYTES) return -1;
    Gacc__V1__StepRecord record = GACC__V1__STEP_RECORD__INIT;
    record.step = watcher->step;
    record.json = (char *)line;
    return control_send(watcher->call, &record.base);
}

enum fed { FED_ALL, FED_FULL, FED_LONG }; /* FED_LONG: for this turn, and there may be more */

/* Queues what is there, as far as it fits. */
static enum fed feed(struct coordinator *coordinator, struct watcher *watcher)
{
    for (int pages = 0; pages < PAGES_AT_ONCE; pages++) {
        const struct page *page = page_at(coordinator, watcher->offset);
        if (!page) return FED_ALL;
        const char *line = page->text + (watcher->offset - page->begin), *end = page->text + page->length;
        for (; line < end; line += strlen(line) + 1) {
            if (!send_line(watcher, line)) continue;
            watcher->offset = page->begin + (line - page->text);
            return FED_FULL;
        }
        watcher->offset = page->end;
    }
    return FED_LONG;
}

static void set_full(struct watching *watching, struct watcher *watcher, bool is_full)
{
    if (watcher->is_full != is_full) watching->full += is_full ? 1 : -1u;
    watcher->is_full = is_full;
}

static void want_round(struct watching *watching, bool soon);

static void serve(struct coordinator *coordinator, struct watcher *watcher)
{
    const size_t before = rpc_call_queued(watcher->call);
    const enum fed fed = feed(coordinator, watcher);
    const bool is_over = fed == FED_ALL && coordinator->log_is_whole;
    set_full(&coordinator->watching, watcher, fed == FED_FULL);
    if (fed == FED_LONG) want_round(&coordinator->watching, true);
    if (is_over) rpc_call_finish(watcher->call, RPC_OK, NULL);
    if (is_over || rpc_call_queued(watcher->call) > before) connection_flush(watcher->call); /* may be its end */
}

/* ---- rounds ---- */

static void go_on(uv_timer_t *timer);

static void want_round(struct watching *watching, bool soon)
{
    watching->again = true;
    watching->soon |= soon;
    if (watching->is_under_way) return;
    const uint64_t now = uv_now(watching->next.loop);
    const uint64_t due = watching->began + (watching->soon ? PAUSE_MILLISECONDS : ROUND_MILLISECONDS);
    uv_timer_start(&watching->next, go_on, due > now ? due - now : 0, 0);
}

static void begin_round(struct watching *watching)
{
    watching->is_under_way = true;
    watching->again = watching->soon = false;
    watching->turn = watching->all;
    watching->began = uv_now(watching->next.loop);
}

static void go_on(uv_timer_t *timer)
{
    struct coordinator *coordinator = timer->data;
    struct watching *watching = &coordinator->watching;
    if (!watching->is_under_way) begin_round(watching);
    const uint64_t began = uv_hrtime();
    while (watching->turn && uv_hrtime() - began < SLICE_NANOSECONDS) {
        struct watcher *watcher = watching->turn;
        watching->turn = watcher->next;
        serve(coordinator, watcher);
    }
    watching->is_under_way = watching->turn;
    if (watching->is_under_way)
        uv_timer_start(timer, go_on, PAUSE_MILLISECONDS, 0);
    else if (watching->again)
        want_round(watching, false);
}

void watchers_feed(struct coordinator *coordinator)
{
    coordinator->watching.page.is_last = false;
    if (coordinator->watching.count) want_round(&coordinator->watching, false);
}

void watchers_have_room(void *context)
{
    struct coordinator *coordinator = context;
    if (!coordinator->watching.full) return;
    for (const struct watcher *watcher = coordinator->watching.all; watcher; watcher = watcher->next)
        if (watcher->is_full && !rpc_call_queued(watcher->call)) {
            want_round(&coordinator->watching, true);
            return;
        }
}

int watchers_open(struct coordinator *coordinator, struct error *error)
{
    struct watching *watching = &coordinator->watching;
    watching->page.text = malloc(WATCHED_LINE_MAX);
    if (!watching->page.text) return error_set(error, STATUS_INTERNAL, "out of memory");
    const int status = uv_timer_init(&coordinator->loop, &watching->next);
    if (status) return error_set(error, STATUS_INTERNAL, "the event loop: %s", uv_strerror(status));
    watching->next.data = coordinator;
    return 0;
}

void watchers_close(struct coordinator *coordinator)
{
    free(coordinator->watching.page.text);
}

/* ---- the call ---- */

static void begin(struct coordinator *coordinator, struct watcher *watcher, struct rpc_call *call,
                  const Gacc__V1__WatchStepsRequest *request)
{
    struct watching *watching = &coordinator->watching;
    watcher->call = call;
    watcher->from = watcher->step = request->from_step;
    watcher->all = request->all;
    watcher->offset =
        request->from_step ? coordinator->directory.start : lseek(coordinator->directory.reader, 0, SEEK_END);
    watcher->link = &watching->all;
    watcher->next = watching->all;
    if (watcher->next) watcher->next->link = &watcher->next;
    watching->all = watcher;
    watching->count++;
    rpc_call_set_user(call, watcher);
    watchers_feed(coordinator);
}

void watch_steps_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    Gacc__V1__WatchStepsRequest *request =
        message_unpack(&gacc__v1__watch_steps_request__descriptor, length, bytes, REQUEST_BEYOND);
    const bool is_free = coordinator->watching.count < WATCHERS_MAX;
    struct watcher *watcher = request && is_free ? calloc(1, sizeof *watcher) : NULL;
    if (watcher) {
        begin(coordinator, watcher, call, request);
    } else {
        rpc_call_finish(call, request ? RPC_RESOURCE_EXHAUSTED : RPC_INVALID_ARGUMENT,
                        request ? "too many watch already" : "not a WatchStepsRequest");
        connection_wake(call);
    }
    if (request) gacc__v1__watch_steps_request__free_unpacked(request, NULL);
}

void watch_steps_gone(struct rpc_call *call, void *context)
{
    struct coordinator *coordinator = context;
    struct watching *watching = &coordinator->watching;
    struct watcher *watcher = rpc_call_user(call);
    if (!watcher) return;
    if (watching->turn == watcher) watching->turn = watcher->next;
    set_full(watching, watcher, false);
    watching->count--;
    *watcher->link = watcher->next;
    if (watcher->next) watcher->next->link = watcher->link;
    free(watcher);
}
