/* gacc.v1.Control: what operators change. A call is answered when the boundary is known at which it takes effect; who
 * has gone by then is not answered, but what he asked for stands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/operations.h"

#define OPERATIONS_MAX 256 /* that wait for their boundary, or for a checkpoint */

static const char *const methods[] = {
    [REQUEST_CHECKPOINT] = "Checkpoint", [REQUEST_STOP] = "Stop",   [REQUEST_FINISH] = "Stop",
    [REQUEST_SET] = "SetParameters",     [REQUEST_PAUSE] = "Pause", [REQUEST_RESUME] = "Resume",
};

/* ---- answering ---- */

void operation_refuse(struct rpc_call *call, enum rpc_code code, const char *text)
{
    if (!call) return;
    rpc_call_set_user(call, NULL);
    rpc_call_finish(call, code, text);
    connection_wake(call);
}

static int send_answer(const struct operation *operation, Gacc__V1__Effect *effect)
{
    Gacc__V1__CheckpointReply checkpoint = GACC__V1__CHECKPOINT_REPLY__INIT;
    switch (operation->request) {
    case REQUEST_CHECKPOINT:
        checkpoint.effect = effect;
        checkpoint.name = (char *)operation->name;
        return control_send(operation->call, &checkpoint.base);
    case REQUEST_SET:
        return parameters_answer(operation, effect);
    default:
        return control_send(operation->call, &effect->base);
    }
}

static void answer(const struct operation *operation)
{
    if (!operation->call) return;
    Gacc__V1__Effect effect = GACC__V1__EFFECT__INIT;
    effect.step = operation->step;
    effect.optimizer_steps = operation->optimizer_steps;
    const int sent = send_answer(operation, &effect);
    operation_refuse(operation->call, sent ? RPC_RESOURCE_EXHAUSTED : RPC_OK,
                     sent ? "the answer does not fit the queue" : NULL);
}

static void record(struct coordinator *coordinator, const struct operation *operation, const char *refusal)
{
    if (coordinator->concluded) return; /* the log has its last line */
    const size_t count = operation->changes.count;
    struct control_change *changes = calloc(count + 1, sizeof *changes);
    for (size_t i = 0; i < count && changes; i++) {
        const struct job_change *change = &operation->changes.each[i];
        changes[i] = (struct control_change){change->key, change->was, change->now};
    }
    const struct control_record record = {
        .method = methods[operation->request],
        .by = operation->caller.by,
        .role = operation->caller.role,
        .at = operation->at,
        .step = operation->step,
        .optimizer_steps = operation->optimizer_steps,
        .refusal = refusal,
        .changes = changes,
        .change_count = changes ? count : 0,
    };
    coordinator_append(coordinator, control_line(&record));
    free(changes);
}

/* Its boundary is the one that was decided last. */
static void take_boundary(struct coordinator *coordinator, struct operation *operation)
{
    const struct step_counters *counters = conductor_boundary(coordinator->conductor);
    if (operation->request == REQUEST_CHECKPOINT) {
        const char *name;
        const struct progress *progress = conductor_progress(coordinator->conductor, &name);
        snprintf(operation->name, sizeof operation->name, "%s", name);
        counters = &progress->counters;
    }
    operation->is_at_boundary = true;
    operation->step = counters->step;
    operation->optimizer_steps = counters->optimizer_steps;
    record(coordinator, operation, NULL);
}

/* Forgets all that `settles` has answered, as it then says. */
static void settle(struct coordinator *coordinator,
                   bool (*settles)(struct coordinator *, struct operation *, const void *fact), const void *fact)
{
    for (struct operation **link = &coordinator->operations; *link;) {
        struct operation *operation = *link;
        if (!settles(coordinator, operation, fact)) {
            link = &operation->next;
            continue;
        }
        *link = operation->next;
        coordinator->operation_count--;
        job_changes_free(&operation->changes);
        free(operation);
    }
}

/* ---- what becomes of them ---- */

static bool in_vain(struct coordinator *coordinator, struct operation *operation, const void *why)
{
    if (!operation->is_at_boundary) record(coordinator, operation, why);
    operation_refuse(operation->call, RPC_ABORTED, why);
    return true;
}

static bool withdrawn(struct coordinator *coordinator, struct operation *operation, const void *why)
{
    return operation->request == REQUEST_PAUSE && !operation->is_at_boundary && in_vain(coordinator, operation, why);
}

static bool at_boundary(struct coordinator *coordinator, struct operation *operation, const void *fact)
{
    const struct conductor *conductor = coordinator->conductor;
    (void)fact;
    if (operation->is_at_boundary) return false;
    if (operation->request == REQUEST_CHECKPOINT && !conductor_opens_checkpoint(conductor)) return false;
    if (operation->request == REQUEST_PAUSE && conductor_will_pause(conductor)) return false;
    if (operation->request == REQUEST_PAUSE && !conductor_is_paused(conductor))
        return in_vain(coordinator, operation, "the job ends with the step that was under way");
    take_boundary(coordinator, operation);
    if (operation->wants_complete) return false;
    answer(operation);
    return true;
}

void operations_decided(struct coordinator *coordinator, const Gacc__V1__Decision *decision)
{
    if (!decision->failure) settle(coordinator, at_boundary, NULL); /* else operations_end tells all */
}

struct saved {
    const char *name, *why; /* why NULL: it is complete */
};

static bool of_saved(struct coordinator *coordinator, struct operation *operation, const void *fact)
{
    const struct saved *saved = fact;
    (void)coordinator;
    if (!operation->is_at_boundary || strcmp(operation->name, saved->name)) return false;
    if (saved->why)
        operation_refuse(operation->call, RPC_INTERNAL, saved->why);
    else
        answer(operation);
    return true;
}

void operations_saved(struct coordinator *coordinator, const char *name, const char *why)
{
    settle(coordinator, of_saved, &(struct saved){name, why});
}

void operations_end(struct coordinator *coordinator)
{
    struct end_record end;
    struct error why;
    conductor_end(coordinator->conductor, coordinator_now(), &end);
    error_set(&why, STATUS_UNAVAILABLE, "the job has ended before%s%.900s", end.reason ? ": " : "",
              end.reason ? end.reason : "");
    settle(coordinator, in_vain, why.text);
}

/* ---- asking ---- */

static bool await(struct coordinator *coordinator, const struct operation *operation)
{
    struct operation *kept = coordinator->operation_count < OPERATIONS_MAX ? malloc(sizeof *kept) : NULL;
    if (!kept) return false;
    *kept = *operation;
    kept->next = NULL;
    struct operation **link = &coordinator->operations;
    while (*link) link = &(*link)->next; /* answered in the order in which they came */
    *link = kept;
    coordinator->operation_count++;
    rpc_call_set_user(kept->call, kept);
    return true;
}

bool operation_open(struct coordinator *coordinator, struct operation *operation, struct rpc_call *call,
                    enum request request)
{
    const struct step_counters *counters = conductor_boundary(coordinator->conductor);
    *operation = (struct operation){.call = call,
                                    .request = request,
                                    .at = coordinator_unix_seconds(),
                                    .step = counters->step,
                                    .optimizer_steps = counters->optimizer_steps};
    caller_of(&operation->caller, call);
    if (coordinator->operation_count < OPERATIONS_MAX) return true;
    operation_refuse(call, RPC_RESOURCE_EXHAUSTED, "too many calls wait for the next boundary already");
    return false;
}

static enum rpc_code code_of(const struct error *why)
{
    if (why->status == STATUS_INTERNAL) return RPC_INTERNAL;
    return why->status == STATUS_JOB ? RPC_INVALID_ARGUMENT : RPC_FAILED_PRECONDITION;
}

void operation_begin(struct coordinator *coordinator, struct operation *operation, enum answer known,
                     const struct error *why)
{
    struct rpc_call *call = operation->call;
    if (known == ANSWER_REFUSED) {
        record(coordinator, operation, why->text);
        operation_refuse(call, code_of(why), why->text);
        job_changes_free(&operation->changes);
        return;
    }
    if (operation->request == REQUEST_RESUME && !conductor_is_paused(coordinator->conductor))
        settle(coordinator, withdrawn, "Resume came before the pause took effect");
    if (known != ANSWER_AT_BOUNDARY) take_boundary(coordinator, operation);
    const bool waits = known == ANSWER_AT_BOUNDARY || (operation->wants_complete && saver_is_busy(coordinator->saver));
    if (!waits) answer(operation);
    if (waits && !await(coordinator, operation))
        operation_refuse(call, RPC_RESOURCE_EXHAUSTED, "no memory to wait for the boundary, where it takes effect");
    if (!waits || !rpc_call_user(call)) job_changes_free(&operation->changes);
    if (known == ANSWER_END) coordinator_conclude(coordinator);
    workers_decide(coordinator); /* in a paused job it is done at once */
}

static void begin(struct coordinator *coordinator, struct rpc_call *call, enum request request, bool wants_complete)
{
    struct operation operation;
    struct error why;
    if (!operation_open(coordinator, &operation, call, request)) return;
    operation.wants_complete = wants_complete;
    const enum answer known = conductor_ask(coordinator->conductor, request, operation.caller.by, &why);
    operation_begin(coordinator, &operation, known, &why);
}

void operation_gone(struct rpc_call *call, void *context)
{
    (void)context;
    struct operation *operation = rpc_call_user(call);
    if (operation) operation->call = NULL;
}

void pause_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    Gacc__V1__PauseRequest *request =
        message_unpack(&gacc__v1__pause_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (request)
        begin(context, call, REQUEST_PAUSE, false);
    else
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a PauseRequest");
    if (request) gacc__v1__pause_request__free_unpacked(request, NULL);
}

void resume_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    Gacc__V1__ResumeRequest *request =
        message_unpack(&gacc__v1__resume_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (request)
        begin(context, call, REQUEST_RESUME, false);
    else
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a ResumeRequest");
    if (request) gacc__v1__resume_request__free_unpacked(request, NULL);
}

void checkpoint_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    Gacc__V1__CheckpointRequest *request =
        message_unpack(&gacc__v1__checkpoint_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (request)
        begin(context, call, REQUEST_CHECKPOINT, request->wait);
    else
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a CheckpointRequest");
    if (request) gacc__v1__checkpoint_request__free_unpacked(request, NULL);
}

void stop_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    Gacc__V1__StopRequest *request = message_unpack(&gacc__v1__stop_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (request)
        begin(context, call, request->finish ? REQUEST_FINISH : REQUEST_STOP, false);
    else
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a StopRequest");
    if (request) gacc__v1__stop_request__free_unpacked(request, NULL);
}
