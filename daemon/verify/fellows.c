#include "daemon/verify/fellows.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define LOOK_MILLISECONDS 250

struct fellow {
    pid_t process;    /* 0: on another host */
    uint64_t stopped; /* milliseconds, as far as this process was awake to see them */
    struct silence silence;
};

struct watch {
    uint32_t rank, ranks;
    uint64_t limit; /* milliseconds */
    struct fellows_listener listener;
    struct fellow each[];
};

static bool is_stopped(pid_t process)
{
    char path[64], name[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const bool is_known = fscanf(file, "%*d %63[^)]) %c", name, &state) == 2;
    fclose(file);
    return is_known && (state == 'T' || state == 't');
}

/* Returns whether no rank below this one is running. */
static bool look(struct watch *watch)
{
    bool is_first = true;
    for (uint32_t rank = 0; rank < watch->ranks; rank++) {
        struct fellow *fellow = &watch->each[rank];
        if (!fellow->process || rank == watch->rank) continue;
        fellow->stopped = is_stopped(fellow->process) ? fellow->stopped + LOOK_MILLISECONDS : 0;
        if (rank < watch->rank && !fellow->stopped) is_first = false;
    }
    return is_first;
}

static void tell(struct watch *watch, uint32_t rank, bool speaks)
{
    struct fellow *fellow = &watch->each[rank];
    const enum silence_event event = silence_update(&fellow->silence, fellow->stopped, watch->limit);
    const uint64_t since = event == SILENCE_ENDS ? fellow->silence.longest : fellow->stopped;
    if (speaks && event != SILENCE_NOTHING_NEW)
        watch->listener.told(watch->listener.context, event, rank, (double)since * 1e-3);
}

static void *watch_all(void *context)
{
    struct watch *watch = context;
    const struct timespec pause = {.tv_nsec = LOOK_MILLISECONDS * 1000000};
    for (;;) {
        nanosleep(&pause, NULL);
        const bool speaks = look(watch);
        for (uint32_t rank = 0; rank < watch->ranks; rank++) tell(watch, rank, speaks);
    }
    return NULL;
}

int fellows_watch(const struct place *place, double limit, const struct fellows_listener *listener, struct error *error)
{
    pid_t *processes = place->ranks > 1 ? place_processes(place, getppid()) : NULL;
    if (!processes) return 0;
    struct watch *watch = calloc(1, sizeof *watch + place->ranks * sizeof *watch->each);
    if (watch) {
        *watch = (struct watch){place->rank, place->ranks, (uint64_t)(limit * 1e3), *listener};
        for (uint32_t rank = 0; rank < place->ranks; rank++) watch->each[rank].process = processes[rank];
    }
    free(processes);
    pthread_t thread;
    const int number = watch ? pthread_create(&thread, NULL, watch_all, watch) : ENOMEM;
    if (!number) return pthread_detach(thread);
    free(watch);
    return error_set_errno(error, STATUS_INTERNAL, number, "cannot watch the other ranks");
}
