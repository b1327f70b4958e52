/*
 * A rank's line to the coordinator: `struct control` over one gRPC stream (gacc.v1.Workers/Join). A thread of its own,
 * with all signals blocked, alone owns the socket and the stream; whoever calls leaves a message and takes the answer
 * through a one-slot mailbox. One thread at a time may call hello, report, step_done and finished; state and saved may
 * be called beside it.
 *
 * The coordinator hears from a rank at least once a second (a state, a ping), and a coordinator that does not answer a
 * ping within the timeout counts as gone.
 */
#ifndef GACC_CONTROL_CLIENT_H
#define GACC_CONTROL_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/session.h"

#define CONTROL_SECRET 32

struct control_client_events {
    /* The stream broke without a farewell. Called once, on the control thread, before a blocked caller returns
     * -STATUS_INTERNAL with the same text. Need not return. */
    void (*lost)(void *context, const struct error *error);
    /* A farewell nobody waited for: another process is gone. Called once, on the control thread, before a blocked
     * caller returns the farewell's negated status. Need not return. */
    void (*farewell)(void *context, const Gacc__V1__Farewell *farewell);
    /* Again and again, on the caller's thread, while it waits for an answer. May be NULL. */
    void (*idle)(void *context);
    void *context;
    /* The coordinator has not answered for so many seconds, told once each time; on the control thread. May be NULL. */
    void (*silent)(void *context, double seconds);
};

/* Where the coordinator is, and what the two know each other by. */
struct control_address {
    const char *addresses; /* unix:PATH, or tcp://HOST:PORT and others with commas, as control_connect takes them */
    const uint8_t *fingerprint; /* of its certificate, TLS_FINGERPRINT_BYTES; NULL: no TLS */
    const uint8_t *secret;      /* CONTROL_SECRET bytes */
};

/* timeout_seconds: for connecting, and for the coordinator's silence later. The events are copied; lost and farewell
 * are required. Fails with 69 when the coordinator cannot be reached. */
int control_client_open(struct control **out, const struct control_address *to, uint32_t rank, double timeout_seconds,
                        const struct control_client_events *events, struct error *error);
/* Whether the farewell that answered hello or finished told this rank to print. */
bool control_client_prints(const struct control *control);
/* Tells the coordinator of a signal that leaves the job its time: SIGUSR1, or the first one that asks this rank to
 * stop. Before this rank's hello SIGUSR1 waits for it, the other is not told. From any thread, beside the calls above.
 * False when it is not told and will not be. */
bool control_client_ask(struct control *control, const char *signal);
/* Tells the coordinator that this rank must end now, having been asked so `times` times; where it does not know the
 * rank yet, by `hello`, which has that failure. The event `farewell` follows. From any thread, beside the calls above.
 * False when there is nobody to tell any more. */
bool control_client_interrupt(struct control *control, const char *signal, uint32_t times,
                              const Gacc__V1__Hello *hello);
/* Ends the stream and the thread; not from one of the events. NULL is allowed. */
void control_client_close(struct control *control);

#endif
