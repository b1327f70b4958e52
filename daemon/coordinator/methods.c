/* What the coordinator serves, and who may call it: one table. */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "daemon/coordinator/inside.h"

static bool has_token(const struct rpc_call *call, const char *token)
{
    static const char scheme[] = "Bearer ";
    const char *text = rpc_call_metadata(call, "authorization");
    if (!text || strncmp(text, scheme, sizeof scheme - 1)) return false;
    text += sizeof scheme - 1;
    return strlen(text) == strlen(token) && !CRYPTO_memcmp(text, token, strlen(token));
}

static bool has_secret(const struct rpc_call *call, const uint8_t secret[SECRET_BYTES])
{
    uint8_t bytes[64];
    const char *text = rpc_call_metadata(call, "gacc-secret-bin");
    char padded[64];
    /* base64 of 32 bytes: 43 characters, and one '=' that gRPC allows to leave out */
    if (!text || (strlen(text) != 43 && strlen(text) != 44)) return false;
    snprintf(padded, sizeof padded, "%.43s=", text);
    return EVP_DecodeBlock(bytes, (const unsigned char *)padded, 44) >= SECRET_BYTES &&
           !CRYPTO_memcmp(bytes, secret, SECRET_BYTES);
}

static void refuse(struct rpc_call *call, enum rpc_code code, const char *why)
{
    rpc_call_finish(call, code, why);
    connection_wake(call);
}

/* The row says who may call; the connection's trust and the call's metadata who this is. */
static void admit(struct rpc_call *call, void *context)
{
    const struct coordinator *coordinator = context;
    const enum trust trust = connection_trust(call);
    if (rpc_call_method(call)->role == ROLE_WORKER) {
        if (!has_secret(call, coordinator->secret))
            refuse(call, RPC_UNAUTHENTICATED, "gacc-secret-bin: not this job's");
        else
            connection_admit(call);
    } else if (trust == TRUST_WORKER) {
        refuse(call, RPC_UNIMPLEMENTED, "this address serves workers only");
    } else if (trust == TRUST_OPERATOR && !has_token(call, coordinator->token)) {
        refuse(call, RPC_UNAUTHENTICATED, "authorization: Bearer TOKEN is required; connection.json has the token");
    } else {
        connection_admit(call);
    }
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
