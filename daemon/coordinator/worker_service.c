/* gacc.v1.Workers: one stream per rank. Feeds the conductor what ranks say and sends all of them its answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/inside.h"

/* A call's user pointer is its rank + 1; NULL until its hello. */
static void *user_of_rank(uint32_t rank)
{
    return (void *)(uintptr_t)(rank + 1u);
}

/* The message is packed once and the same bytes go to every rank that `to` names (NULL: all that have joined). */
static void send_to(struct coordinator *coordinator, const Gacc__V1__CoordinatorMessage *message, struct rpc_call *to)
{
    size_t length = gacc__v1__coordinator_message__get_packed_size(message);
    uint8_t *bytes = malloc(length + 1);
    if (bytes) gacc__v1__coordinator_message__pack(message, bytes);
    for (uint32_t rank = 0; rank < coordinator->options->ranks; rank++) {
        struct rpc_call *call = coordinator->workers[rank];
        if (!call || (to && call != to)) continue;
        /* A rank that takes nothing any more is cancelled, and so lost. */
        if (!bytes || rpc_call_send(call, bytes, length)) rpc_call_cancel(call);
        connection_wake(call);
    }
    free(bytes);
}

static void send_welcome(struct coordinator *coordinator)
{
    const Gacc__V1__Welcome *welcome = conductor_welcome(coordinator->conductor, coordinator_now());
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_WELCOME;
    message.welcome = (Gacc__V1__Welcome *)welcome;
    send_to(coordinator, &message, NULL);
    coordinator_write_header(coordinator);
}

static void send_decision(struct coordinator *coordinator)
{
    const Gacc__V1__Decision *decision = conductor_decide(coordinator->conductor, coordinator_now());
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_DECISION;
    message.decision = (Gacc__V1__Decision *)decision;
    send_to(coordinator, &message, NULL);
    const bool is_boundary = decision->verdict != GACC__V1__VERDICT__VERDICT_RETRY;
    if (is_boundary) operations_decided(coordinator, decision);
    if (!conductor_opens_checkpoint(coordinator->conductor)) return;
    const char *name;
    const struct progress *progress = conductor_progress(coordinator->conductor, &name);
    struct header_record facts;
    conductor_header(coordinator->conductor, &facts);
    const struct saver_order order = {
        .name = name,
        .progress = progress,
        .parameters = facts.parameters,
        .job = conductor_job(coordinator->conductor),
        .settings = conductor_settings(coordinator->conductor),
        .retention = *conductor_retention(coordinator->conductor),
        .has_parts = decision->save == NULL,
        .awaits_records = conductor_awaits_records(coordinator->conductor),
    };
    saver_begin(coordinator->saver, &order);
}

void workers_decide(struct coordinator *coordinator)
{
    if (coordinator->concluded || !conductor_is_due(coordinator->conductor)) return;
    coordinator->decision_waits =
        saver_is_busy(coordinator->saver) && conductor_awaits_checkpoint(coordinator->conductor);
    if (!coordinator->decision_waits) send_decision(coordinator);
}

static void send_farewell(struct coordinator *coordinator, uint32_t rank)
{
    struct rpc_call *call = coordinator->workers[rank];
    Gacc__V1__CoordinatorMessage message = GACC__V1__COORDINATOR_MESSAGE__INIT;
    message.body_case = GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL;
    message.farewell = (Gacc__V1__Farewell *)conductor_farewell(coordinator->conductor, rank);
    send_to(coordinator, &message, call);
    rpc_call_finish(call, RPC_OK, NULL);
}

void workers_say_farewell(struct coordinator *coordinator)
{
    for (uint32_t rank = 0; rank < coordinator->options->ranks; rank++)
        if (coordinator->workers[rank]) send_farewell(coordinator, rank);
}

/* Why this hello is no rank's of this job; NULL when it is. */
static const char *refusal(const struct coordinator *coordinator, const struct rpc_call *call,
                           const Gacc__V1__Hello *hello)
{
    const ProtobufCBinaryData *digest = &coordinator->options->job->digest;
    if (hello->rank >= coordinator->options->ranks) return "there is no such rank";
    if (hello->ranks != coordinator->options->ranks) return "the number of ranks differs";
    if (hello->job_digest.len != digest->len || memcmp(hello->job_digest.data, digest->data, digest->len))
        return "the job differs";
    if (coordinator->workers[hello->rank]) return "this rank has joined already";
    if (!connection_claim(call)) return "another rank has joined through this connection";
    return NULL;
}

static void hello(struct coordinator *coordinator, struct rpc_call *call, const Gacc__V1__Hello *hello)
{
    const char *why = refusal(coordinator, call, hello);
    if (why) {
        struct error text; /* a rank has the job's secret, so it may know why */
        error_set(&text, STATUS_UNAVAILABLE, "as rank %u of %u, process %u on %.64s: %s", hello->rank, hello->ranks,
                  hello->pid, hello->host, why);
        audit_refused(coordinator, rpc_call_method(call)->path, connection_descriptor(call), NULL, text.text);
        rpc_call_finish(call, RPC_FAILED_PRECONDITION, why);
        connection_wake(call);
        return;
    }
    rpc_call_set_user(call, user_of_rank(hello->rank));
    coordinator->workers[hello->rank] = call;
    coordinator->silences[hello->rank] = (struct silence){0};
    coordinator->joined++;
    struct error error;
    int taken = conductor_hello(coordinator->conductor, hello->rank, hello, coordinator_now(), &error);
    if (coordinator->concluded)
        send_farewell(coordinator, hello->rank);
    else if (taken < 0)
        coordinator_conclude(coordinator);
    else if (taken == 1)
        send_welcome(coordinator);
    coordinator_heed_last_words(coordinator);
}

/* ---- silence ---- */

/* Milliseconds since rank was last heard, or, before it has joined, since this process began; only those in which this
 * process was awake. */
static uint64_t silent_for(const struct coordinator *coordinator, uint32_t rank)
{
    const struct rpc_call *call = coordinator->workers[rank];
    uint64_t since = call ? connection_heard(call) : coordinator->started;
    if (since < coordinator->awake_since) since = coordinator->awake_since;
    return uv_now(&coordinator->loop) - since;
}

double workers_seconds_silent(const struct coordinator *coordinator, uint32_t rank)
{
    return (double)silent_for(coordinator, rank) * 1e-3;
}

/* A process that was stopped, or on a machine that was, has heard nobody meanwhile: that is nobody's silence. */
static void notice_own_sleep(struct coordinator *coordinator)
{
    const uint64_t now = uv_now(&coordinator->loop), slept = now - coordinator->checked;
    coordinator->checked = now;
    if (slept < SILENCE_SPOKEN_OF) return;
    coordinator->awake_since = now;
    struct error text;
    error_set(&text, STATUS_DONE, "the coordinator was stopped for %.1f s", (double)slept * 1e-3);
    coordinator_warn(coordinator, "silence", conductor_boundary(coordinator->conductor)->step, text.text);
}

static void speak_of(struct coordinator *coordinator, uint32_t rank, const char *before, double seconds,
                     const char *behind)
{
    struct error text;
    error_set(&text, STATUS_DONE, "rank %u: %s %.3g s%s", rank, before, seconds, behind);
    coordinator_warn(coordinator, "silence", conductor_boundary(coordinator->conductor)->step, text.text);
}

static void look_at_silence(struct coordinator *coordinator, uint32_t rank)
{
    const double timeout = coordinator->options->job->control->timeout_seconds;
    struct silence *silence = &coordinator->silences[rank];
    const bool has_joined = coordinator->workers[rank];
    char why[96];
    switch (silence_update(silence, silent_for(coordinator, rank), (uint64_t)(timeout * 1e3))) {
    case SILENCE_NOTHING_NEW:
        break;
    case SILENCE_BEGINS:
        if (has_joined) speak_of(coordinator, rank, "silent for 2 s; lost after", timeout, " (control.timeout)");
        break;
    case SILENCE_ENDS:
        if (has_joined) speak_of(coordinator, rank, "heard again after", (double)silence->longest * 1e-3, "");
        break;
    case SILENCE_TOO_LONG:
        snprintf(why, sizeof why, "%s %g s (control.timeout)", has_joined ? "was silent for" : "has not joined within",
                 timeout);
        workers_lose(coordinator, rank, why);
        break;
    }
}

void workers_check_silence(struct coordinator *coordinator)
{
    bool any_silent = false;
    notice_own_sleep(coordinator);
    for (uint32_t rank = 0; rank < coordinator->options->ranks && !coordinator->concluded; rank++) {
        look_at_silence(coordinator, rank);
        any_silent |= coordinator->silences[rank].spoken_of;
    }
    /* What a silent rank was in when it was last heard means nothing. */
    if (any_silent || coordinator->concluded) return;
    const double awake_since = (double)coordinator->awake_since * 1e-3;
    const double timeout = coordinator->options->job->control->timeout_seconds;
    if (conductor_stands_still(coordinator->conductor, coordinator_now(), awake_since, timeout))
        coordinator_conclude(coordinator);
}

/* ---- what ranks say ---- */

/* Of the step that has ended, as far as there are any: its checkpoint waits for no more of them. */
static void take_records(struct coordinator *coordinator)
{
    const char *name;
    coordinator_write_records(coordinator);
    saver_recorded(coordinator->saver, conductor_progress(coordinator->conductor, &name));
}

static void take(struct coordinator *coordinator, uint32_t rank, const Gacc__V1__WorkerMessage *message)
{
    struct conductor *conductor = coordinator->conductor;
    const double now = coordinator_now();
    struct error error;
    char who[32];
    int taken = 0;
    /* The end of a silence is told before what follows from it, which may be the end of the job. */
    if (coordinator->silences[rank].spoken_of) look_at_silence(coordinator, rank);
    switch (message->body_case) {
    case GACC__V1__WORKER_MESSAGE__BODY_STATE:
        conductor_state(conductor, rank, message->state, now);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_REPORT:
        taken = conductor_report(conductor, rank, message->report, now, &error);
        if (taken == 1) workers_decide(coordinator);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_STEP_DONE:
        taken = conductor_step_done(conductor, rank, message->step_done, now, &error);
        if (taken == 1) {
            take_records(coordinator);
            coordinator_show_progress(coordinator);
        }
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_INTERRUPTED:
        snprintf(who, sizeof who, "rank %u", rank);
        taken = conductor_interrupted(conductor, who, message->interrupted, &error);
        if (taken == 0) workers_decide(coordinator);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_SAVED:
        if (saver_take(coordinator->saver, rank, message->saved, &error)) workers_lose(coordinator, rank, error.text);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_FINISHED:
        taken = conductor_finished(conductor, rank, message->finished, now, &error);
        if (taken == 1) {
            take_records(coordinator);
            coordinator_conclude_in_order(coordinator);
        }
        break;
    default:
        workers_lose(coordinator, rank, "sent a message that has no meaning here");
        break;
    }
    if (taken < 0) coordinator_conclude(coordinator);
}

void join_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    const uintptr_t user = (uintptr_t)rpc_call_user(call);
    Gacc__V1__WorkerMessage *message =
        message_unpack(&gacc__v1__worker_message__descriptor, length, bytes, WORKER_BEYOND);
    const bool is_hello = message && message->body_case == GACC__V1__WORKER_MESSAGE__BODY_HELLO;
    if (user && message && !is_hello) {
        if (!coordinator->concluded) take(coordinator, (uint32_t)(user - 1), message);
    } else if (!user && is_hello) {
        hello(coordinator, call, message->hello);
    } else { /* `gone` tells the conductor */
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "not a message that is expected here");
        connection_wake(call);
    }
    if (message) gacc__v1__worker_message__free_unpacked(message, NULL);
}

void join_gone(struct rpc_call *call, void *context)
{
    struct coordinator *coordinator = context;
    const uintptr_t user = (uintptr_t)rpc_call_user(call);
    if (!user) return;
    coordinator->workers[user - 1] = NULL;
    workers_lose(coordinator, (uint32_t)(user - 1), "its process ended, or its connection broke");
}

void workers_lose(struct coordinator *coordinator, uint32_t rank, const char *why)
{
    /* Its part of the checkpoint with which the job stops is on disk: what is left to do needs no rank. The records of
     * the step may be short of what this one had to tell. */
    if (saver_has_answers(coordinator->saver) && conductor_is_stopping(coordinator->conductor)) {
        take_records(coordinator);
        coordinator->conclusion_waits = true;
        return;
    }
    if (!coordinator->concluded && conductor_lost(coordinator->conductor, rank, why)) coordinator_conclude(coordinator);
}

bool workers_all_gone(const struct coordinator *coordinator)
{
    for (uint32_t rank = 0; rank < coordinator->options->ranks; rank++)
        if (coordinator->workers[rank]) return false;
    return true;
}
