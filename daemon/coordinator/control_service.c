/* gacc.v1.Control: what operators ask. Steps are read back from log.jsonl, however old or new they are. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/coordinator/inside.h"

struct watcher {
    struct rpc_call *call;
    uint64_t from;  /* step */
    uint64_t step;  /* of the last line that is a step's */
    bool all;       /* other lines are wanted, too */
    int64_t offset; /* in log.jsonl, of the first line not looked at */
    struct watcher *next, **link;
};

#define SCAN_BYTES (4u << 20) /* of the log per watcher and event-loop turn */

int control_send(struct rpc_call *call, const ProtobufCMessage *message)
{
    size_t length = protobuf_c_message_get_packed_size(message);
    uint8_t *bytes = malloc(length + 1);
    if (!bytes) return -1;
    protobuf_c_message_pack(message, bytes);
    int status = rpc_call_send(call, bytes, length);
    free(bytes);
    return status;
}

static void fill_checkpoint(struct coordinator *coordinator, Gacc__V1__Status *status)
{
    status->checkpoint_under_way = saver_is_busy(coordinator->saver);
    status->checkpoint = coordinator->newest;
    status->checkpoint_unix_seconds = coordinator->newest_unix_seconds;
    status->checkpoint_optimizer_steps = store_name_steps(coordinator->newest);
}

Gacc__V1__Status *coordinator_status(struct coordinator *coordinator)
{
    Gacc__V1__Status *status = conductor_status(coordinator->conductor, coordinator_now());
    status->pid = (uint32_t)getpid();
    status->started_unix_seconds = coordinator->started_unix_seconds;
    fill_checkpoint(coordinator, status);
    for (uint32_t rank = 0; rank < coordinator->options->ranks; rank++)
        status->ranks[rank]->seconds_since_heard = workers_seconds_silent(coordinator, rank);
    return status;
}

void get_status_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    Gacc__V1__GetStatusRequest *request = gacc__v1__get_status_request__unpack(NULL, length, bytes);
    if (request) {
        int sent = control_send(call, &coordinator_status(coordinator)->base);
        rpc_call_finish(call, sent ? RPC_RESOURCE_EXHAUSTED : RPC_OK,
                        sent ? "the answer does not fit the queue" : NULL);
        gacc__v1__get_status_request__free_unpacked(request, NULL);
    } else {
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "not a GetStatusRequest");
    }
    connection_wake(call);
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

static int send_step(struct watcher *watcher, char *line)
{
    const uint64_t step = step_of(line);
    if (step) watcher->step = step;
    if ((!step && !watcher->all) || watcher->step < watcher->from) return 0;
    Gacc__V1__StepRecord record = GACC__V1__STEP_RECORD__INIT;
    record.step = watcher->step;
    record.json = line;
    return control_send(watcher->call, &record.base);
}

enum fed { FED_ALL, FED_NO_ROOM, FED_MORE };

static enum fed feed(struct coordinator *coordinator, struct watcher *watcher)
{
    char *buffer = coordinator->line_buffer;
    for (size_t scanned = 0; scanned < SCAN_BYTES;) {
        ssize_t length = pread(coordinator->directory.reader, buffer, LINE_BUFFER_BYTES, watcher->offset);
        if (length <= 0) return FED_ALL;
        char *line = buffer, *end;
        for (; (end = memchr(line, '\n', (size_t)(buffer + length - line))); line = end + 1) {
            *end = '\0';
            if (send_step(watcher, line)) {
                watcher->offset += line - buffer;
                return FED_NO_ROOM;
            }
        }
        /* A line that fills the buffer is no step's, and goes to nobody. */
        const ssize_t used = line == buffer && length == LINE_BUFFER_BYTES ? length : line - buffer;
        if (used == 0) return FED_ALL;
        watcher->offset += used;
        scanned += (size_t)used;
    }
    return FED_MORE;
}

static void go_on(uv_idle_t *idle)
{
    uv_idle_stop(idle);
    watchers_feed(idle->data);
}

void watchers_feed(void *context)
{
    struct coordinator *coordinator = context;
    for (struct watcher *watcher = coordinator->watchers, *next; watcher; watcher = next) {
        next = watcher->next;
        enum fed fed = feed(coordinator, watcher);
        if (fed == FED_MORE) uv_idle_start(&coordinator->catch_up, go_on);
        if (fed == FED_ALL && coordinator->log_is_whole) rpc_call_finish(watcher->call, RPC_OK, NULL);
        connection_wake(watcher->call);
    }
}

void watch_steps_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    Gacc__V1__WatchStepsRequest *request = gacc__v1__watch_steps_request__unpack(NULL, length, bytes);
    uint32_t watchers = 0;
    for (const struct watcher *each = coordinator->watchers; each; each = each->next) watchers++;
    struct watcher *watcher = rpc_call_user(call) || watchers >= WATCHERS_MAX ? NULL : calloc(1, sizeof *watcher);
    if (request && watcher) {
        watcher->call = call;
        watcher->from = watcher->step = request->from_step;
        watcher->all = request->all;
        watcher->offset =
            request->from_step ? coordinator->directory.start : lseek(coordinator->directory.reader, 0, SEEK_END);
        watcher->link = &coordinator->watchers;
        watcher->next = coordinator->watchers;
        if (watcher->next) watcher->next->link = &watcher->next;
        coordinator->watchers = watcher;
        rpc_call_set_user(call, watcher);
        watchers_feed(coordinator);
    } else {
        free(watcher);
        rpc_call_finish(call, request ? RPC_RESOURCE_EXHAUSTED : RPC_INVALID_ARGUMENT,
                        request ? "too many watch already, or this call does" : "not a WatchStepsRequest");
        connection_wake(call);
    }
    if (request) gacc__v1__watch_steps_request__free_unpacked(request, NULL);
}

void watch_steps_gone(struct rpc_call *call, void *context)
{
    (void)context;
    struct watcher *watcher = rpc_call_user(call);
    if (!watcher) return;
    *watcher->link = watcher->next;
    if (watcher->next) watcher->next->link = watcher->link;
    free(watcher);
}
