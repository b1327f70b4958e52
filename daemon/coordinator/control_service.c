/* gacc.v1.Control: what operators ask, and are told at once. */
#include <stdlib.h>
#include <unistd.h>

#include "daemon/coordinator/inside.h"

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
    Gacc__V1__GetStatusRequest *request =
        message_unpack(&gacc__v1__get_status_request__descriptor, length, bytes, REQUEST_BEYOND);
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
