#include "daemon/verify/fellows.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/verify/heartbeat.h"

#define EVERY_MILLISECONDS 250      /* or a quarter of the limit where that is shorter */
#define BEHIND_MICROSECONDS 2000000 /* who does not speak: the launcher ends the job before, where it can */

struct fellow {
    bool is_known, is_heard; /* ever; since the last look */
    uint64_t silent;         /* milliseconds, as far as this process was awake */
    struct silence silence;
};

struct watch {
    struct heartbeat *heartbeat;
    uint32_t rank, ranks;
    uint64_t limit, every; /* milliseconds */
    struct fellows_listener listener;
    struct fellow each[];
};

static uint64_t now_milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void listen_for(struct watch *watch, uint64_t milliseconds)
{
    const uint64_t end = now_milliseconds() + milliseconds;
    struct pollfd heard = {.fd = heartbeat_socket(watch->heartbeat), .events = POLLIN};
    for (uint64_t now; (now = now_milliseconds()) < end;) {
        if (poll(&heard, 1, (int)(end - now)) <= 0) continue;
        const int64_t from = heartbeat_hear(watch->heartbeat);
        if (from >= 0) watch->each[from].is_known = watch->each[from].is_heard = true;
    }
}

/* Returns whether this rank speaks for those that it hears: whoever is about to be spoken of does not. */
static bool look(struct watch *watch)
{
    const uint64_t quiet = (watch->limit < SILENCE_SPOKEN_OF ? watch->limit : SILENCE_SPOKEN_OF) / 2;
    bool speaks = true;
    for (uint32_t rank = 0; rank < watch->ranks; rank++) {
        struct fellow *fellow = &watch->each[rank];
        fellow->silent = fellow->is_heard || !fellow->is_known ? 0 : fellow->silent + watch->every;
        fellow->is_heard = false;
        if (rank < watch->rank && fellow->silent < quiet) speaks = false;
    }
    return speaks;
}

static void tell(struct watch *watch, uint32_t rank, bool speaks)
{
    struct fellow *fellow = &watch->each[rank];
    const enum silence_event event = silence_update(&fellow->silence, fellow->silent, watch->limit);
    const uint64_t since = event == SILENCE_ENDS ? fellow->silence.longest : fellow->silent;
    if (event == SILENCE_TOO_LONG && !speaks) usleep(BEHIND_MICROSECONDS);
    if (event == SILENCE_TOO_LONG || (event != SILENCE_NOTHING_NEW && speaks))
        watch->listener.told(watch->listener.context, event, rank, (double)since * 1e-3);
}

static void *watch_all(void *context)
{
    struct watch *watch = context;
    for (;;) {
        heartbeat_send(watch->heartbeat);
        listen_for(watch, watch->every);
        const bool speaks = look(watch);
        for (uint32_t rank = 0; rank < watch->ranks; rank++) tell(watch, rank, speaks);
    }
    return NULL;
}

int fellows_watch(struct comm *comm, double limit, const struct fellows_listener *listener, struct error *error)
{
    if (comm->ranks == 1) return 0;
    struct watch *watch = calloc(1, sizeof *watch + comm->ranks * sizeof *watch->each);
    if (!watch) return error_set(error, STATUS_INTERNAL, "out of memory for %u ranks", comm->ranks);
    watch->rank = comm->rank;
    watch->ranks = comm->ranks;
    watch->limit = (uint64_t)(limit * 1e3);
    watch->every = watch->limit / 4 < EVERY_MILLISECONDS ? watch->limit / 4 : EVERY_MILLISECONDS;
    watch->listener = *listener;
    int status = heartbeat_open(&watch->heartbeat, comm, error);
    pthread_t thread;
    const int number = status ? 0 : pthread_create(&thread, NULL, watch_all, watch);
    if (!status && !number) return pthread_detach(thread);
    if (number) status = error_set_errno(error, STATUS_INTERNAL, number, "cannot watch the other ranks");
    heartbeat_close(watch->heartbeat);
    free(watch);
    return status;
}
