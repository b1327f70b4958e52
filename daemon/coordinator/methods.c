/* What the coordinator serves, and who may call it: one table. */
#include "daemon/coordinator/inside.h"

/* The row says who may call; the connection's trust and the call's metadata who this is. */
static void admit(struct rpc_call *call, void *context)
{
    struct coordinator *coordinator = context;
    const struct rpc_method *method = rpc_call_method(call);
    const struct judgment judgment =
        guard_judge(&coordinator->guard, connection_trust(call), (enum role)method->role,
                    rpc_call_metadata(call, "authorization"), rpc_call_metadata(call, "gacc-secret-bin"));
    const bool is_rank = method->role == ROLE_WORKER;
    if (judgment.code == RPC_OK && coordinator->log_is_whole && !is_rank) {
        rpc_call_finish(call, RPC_UNAVAILABLE, "the job has ended");
        connection_wake(call);
        return;
    }
    if (judgment.code == RPC_OK) {
        connection_admit(call, is_rank);
        return;
    }
    audit_refused(coordinator, method->path, connection_descriptor(call), judgment.role, judgment.logged);
    rpc_call_finish(call, judgment.code, judgment.said);
    connection_wake(call);
}

/* A request of one message, answered with one or with a stream. */
#define ANSWER(PATH, ROLE, MESSAGE, GONE)                                                                         \
    {                                                                                                             \
        .path = (PATH), .role = (ROLE), .begin = admit, .message = (MESSAGE), .gone = (GONE), .one_message = true \
    }
/* Messages both ways. */
#define CONVERSE(PATH, ROLE, MESSAGE, END, GONE)                                                           \
    {                                                                                                      \
        .path = (PATH), .role = (ROLE), .begin = admit, .message = (MESSAGE), .end = (END), .gone = (GONE) \
    }

const struct rpc_method coordinator_methods[] = {
    CONVERSE("/gacc.v1.Workers/Join", ROLE_WORKER, join_message, NULL, join_gone),
    ANSWER("/gacc.v1.Control/GetStatus", ROLE_READ, get_status_message, NULL),
    ANSWER("/gacc.v1.Control/WatchSteps", ROLE_READ, watch_steps_message, watch_steps_gone),
    ANSWER("/gacc.v1.Control/GetConfig", ROLE_READ, get_config_message, NULL),
    ANSWER("/gacc.v1.Control/SetParameters", ROLE_CONTROL, set_parameters_message, operation_gone),
    ANSWER("/gacc.v1.Control/Pause", ROLE_CONTROL, pause_message, operation_gone),
    ANSWER("/gacc.v1.Control/Resume", ROLE_CONTROL, resume_message, operation_gone),
    ANSWER("/gacc.v1.Control/Checkpoint", ROLE_CONTROL, checkpoint_message, operation_gone),
    ANSWER("/gacc.v1.Control/Stop", ROLE_CONTROL, stop_message, operation_gone),
    ANSWER("/grpc.health.v1.Health/Check", ROLE_READ, health_check_message, NULL),
    ANSWER("/grpc.health.v1.Health/Watch", ROLE_READ, health_watch_message, health_watch_gone),
    CONVERSE("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", ROLE_READ, reflection_message, reflection_end,
             NULL),
    CONVERSE("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", ROLE_READ, reflection_message,
             reflection_end, NULL),
    {0},
};
