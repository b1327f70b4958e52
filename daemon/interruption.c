#include "daemon/interruption.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static struct {
    void (*taken)(void *context, const char *name);
    void *context;
    sigset_t signals;
} watch;

static void *wait_for_signal(void *unused)
{
    (void)unused;
    int number;
    while (sigwait(&watch.signals, &number)) {
    }
    char name[16];
    snprintf(name, sizeof name, "SIG%s", sigabbrev_np(number));
    watch.taken(watch.context, name);
    return NULL;
}

int interruption_watch(void (*taken)(void *context, const char *name), void *context, struct error *error)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};
    watch.taken = taken;
    watch.context = context;
    sigemptyset(&watch.signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct sigaction action; /* what is ignored would be taken, too, where it is blocked */
        if (!sigaction(numbers[i], NULL, &action) && action.sa_handler != SIG_IGN)
            sigaddset(&watch.signals, numbers[i]);
    }
    pthread_sigmask(SIG_BLOCK, &watch.signals, NULL);
    pthread_t thread;
    int number = pthread_create(&thread, NULL, wait_for_signal, NULL);
    if (number) return error_set_errno(error, STATUS_INTERNAL, number, "cannot start a thread");
    pthread_detach(thread);
    return 0;
}
