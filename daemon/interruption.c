#include "daemon/interruption.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "daemon/place.h"

static struct {
    interruption_taken *taken;
    void *context;
    pid_t launcher;
    int signals, launcher_end; /* signalfd; pidfd, or -1 */
    atomic_bool told;          /* SIGTERM, by the launcher */
    bool warned;               /* SIGCONT, by the launcher */
    bool has_lost;             /* … because this rank had ended */
    uint32_t lost;
} watch;

/* A launcher that ended before there was a pidfd is not our parent any more. */
static bool launcher_is_gone(void)
{
    return watch.launcher && getppid() != watch.launcher;
}

/* Open MPI's mpirun continues all ranks before it tells them to end, for whatever reason: nobody but the one that is
 * the reason is gone then. False: that was all. */
static bool name_of(const struct signalfd_siginfo *taken, bool is_launchers, char name[32])
{
    const bool warns = taken->ssi_signo == SIGCONT, ends = taken->ssi_signo == SIGTERM && is_launchers;
    if ((warns && is_launchers) || (ends && !watch.warned)) {
        watch.warned = true;
        watch.has_lost = place_lost_rank(watch.launcher, &watch.lost);
    }
    watch.told |= ends;
    if (ends && watch.has_lost)
        snprintf(name, 32, "rank %" PRIu32 "'s end", watch.lost);
    else
        snprintf(name, 32, "SIG%s", sigabbrev_np((int)taken->ssi_signo));
    return !warns;
}

static void *wait_for_all(void *unused)
{
    (void)unused;
    struct pollfd ends[] = {{.fd = watch.signals, .events = POLLIN}, {.fd = watch.launcher_end, .events = POLLIN}};
    struct signalfd_siginfo taken;
    char name[32];
    while (!launcher_is_gone()) {
        if (poll(ends, 2, -1) <= 0 || !ends[0].revents) continue;
        if (read(watch.signals, &taken, sizeof taken) != sizeof taken) continue;
        const bool is_launchers = watch.launcher && (pid_t)taken.ssi_pid == watch.launcher;
        if (name_of(&taken, is_launchers, name)) watch.taken(watch.context, name, is_launchers);
    }
    watch.taken(watch.context, INTERRUPTION_LAUNCHER, true);
    return NULL;
}

bool interruption_is_launchers(void)
{
    return watch.told;
}

bool interruption_may_be_launchers(void)
{
    return watch.told || !watch.launcher;
}

int interruption_hold(pid_t launcher, struct error *error)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT};
    watch.launcher = launcher;
    watch.launcher_end = launcher ? pidfd_open(launcher, 0) : -1;
    sigset_t signals;
    sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action; /* what is ignored would be taken, too, where it is blocked */
        if (!sigaction(numbers[i], NULL, &action) && action.sa_handler != SIG_IGN) sigaddset(&signals, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    watch.signals = signalfd(-1, &signals, SFD_CLOEXEC);
    return watch.signals < 0 ? error_set_errno(error, STATUS_INTERNAL, errno, "cannot watch for signals") : 0;
}

int interruption_watch(interruption_taken *taken, void *context, struct error *error)
{
    watch.taken = taken;
    watch.context = context;
    pthread_t thread;
    int number = pthread_create(&thread, NULL, wait_for_all, NULL);
    if (number) return error_set_errno(error, STATUS_INTERNAL, number, "cannot start a thread");
    pthread_detach(thread);
    return 0;
}
