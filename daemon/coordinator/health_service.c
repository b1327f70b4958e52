/* grpc.health.v1.Health: whether the job can be asked and steered, for it as a whole and by service. */
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/inside.h"
#include "proto/grpc/health/v1/health.pb-c.h"

typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving_status;
#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

struct health_watcher {
    struct rpc_call *call;
    bool known;          /* the service that it asked for */
    serving_status told; /* last */
    struct health_watcher *next, **link;
};

static bool is_known(const char *service)
{
    static const char *const services[] = {"", "gacc.v1.Control", "gacc.v1.Workers"};
    for (size_t i = 0; i < sizeof services / sizeof *services; i++)
        if (!strcmp(services[i], service)) return true;
    return false;
}

bool coordinator_is_serving(struct coordinator *coordinator)
{
    static const char *const not_serving[] = {"starting", "finishing", "failing"};
    if (coordinator->concluded) return false;
    const char *phase = conductor_phase(coordinator->conductor);
    for (size_t i = 0; i < sizeof not_serving / sizeof *not_serving; i++)
        if (!strcmp(phase, not_serving[i])) return false;
    return true;
}

static serving_status status_of(struct coordinator *coordinator, bool known)
{
    if (!known) return SERVICE_UNKNOWN;
    return coordinator_is_serving(coordinator) ? SERVING : NOT_SERVING;
}

static int tell(struct rpc_call *call, serving_status status)
{
    Grpc__Health__V1__HealthCheckResponse response = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    response.status = status;
    return control_send(call, &response.base);
}

void health_check_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    Grpc__Health__V1__HealthCheckRequest *request =
        message_unpack(&grpc__health__v1__health_check_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (!request)
        rpc_call_finish(call, RPC_INVALID_ARGUMENT, "not a HealthCheckRequest");
    else if (!is_known(request->service))
        rpc_call_finish(call, RPC_NOT_FOUND, "unknown service");
    else if (tell(call, status_of(context, true)))
        rpc_call_finish(call, RPC_RESOURCE_EXHAUSTED, "the answer does not fit the queue");
    else
        rpc_call_finish(call, RPC_OK, NULL);
    if (request) grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    connection_wake(call);
}

void health_watch_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    Grpc__Health__V1__HealthCheckRequest *request =
        message_unpack(&grpc__health__v1__health_check_request__descriptor, length, bytes, REQUEST_BEYOND);
    uint32_t count = 0;
    for (const struct health_watcher *each = coordinator->health_watchers; each; each = each->next) count++;
    struct health_watcher *watcher = request && count < WATCHERS_MAX ? calloc(1, sizeof *watcher) : NULL;
    if (watcher) {
        *watcher = (struct health_watcher){.call = call, .known = is_known(request->service)};
        watcher->link = &coordinator->health_watchers;
        watcher->next = coordinator->health_watchers;
        if (watcher->next) watcher->next->link = &watcher->next;
        coordinator->health_watchers = watcher;
        rpc_call_set_user(call, watcher);
        health_tell(coordinator);
    } else {
        rpc_call_finish(call, request ? RPC_RESOURCE_EXHAUSTED : RPC_INVALID_ARGUMENT,
                        request ? "too many watch already" : "not a HealthCheckRequest");
    }
    if (request) grpc__health__v1__health_check_request__free_unpacked(request, NULL);
    connection_wake(call);
}

void health_watch_gone(struct rpc_call *call, void *context)
{
    (void)context;
    struct health_watcher *watcher = rpc_call_user(call);
    if (!watcher) return;
    *watcher->link = watcher->next;
    if (watcher->next) watcher->next->link = watcher->link;
    free(watcher);
}

void health_tell(struct coordinator *coordinator)
{
    for (struct health_watcher *watcher = coordinator->health_watchers; watcher; watcher = watcher->next) {
        const serving_status status = status_of(coordinator, watcher->known);
        if (status != watcher->told && !tell(watcher->call, status)) watcher->told = status; /* else: the next time */
        if (coordinator->log_is_whole) rpc_call_finish(watcher->call, RPC_OK, NULL);
        connection_wake(watcher->call);
    }
}
