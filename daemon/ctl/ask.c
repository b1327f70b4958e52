/* gaccctl's subcommands of one question and one answer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/ctl/arguments.h"
#include "daemon/ctl/client.h"
#include "daemon/ctl/outcome.h"
#include "daemon/ctl/show.h"
#include "proto/grpc/health/v1/health.pb-c.h"

/* ---- a call ---- */

#define TRIES 4

struct answer {
    const ProtobufCMessageDescriptor *kind;
    ProtobufCMessage *message; /* NULL: none came, or none of this kind */
};

static void on_message(void *context, const uint8_t *bytes, size_t length)
{
    struct answer *answer = context;
    if (!answer->message) answer->message = protobuf_c_message_unpack(answer->kind, NULL, length, bytes);
}

/* On a terminal, once it takes longer than a moment. */
static void say_waiting(bool *was_said)
{
    if (!*was_said && isatty(STDERR_FILENO)) fputs("gaccctl: waiting for the end of this step\n", stderr);
    *was_said = true;
}

static int converse(struct client *client, struct client_call *call, const ProtobufCMessage *request, int seconds,
                    struct error *error)
{
    const time_t began = time(NULL);
    bool was_said = false;
    int status = client_begin(client, call, request, error);
    while (!status && !call->over) {
        status = client_wait(client, -1, 500, error);
        const time_t waited = time(NULL) - began;
        if (seconds && waited > seconds && !call->over)
            return error_set(error, STATUS_UNAVAILABLE, "no answer within %d s: is the coordinator stopped?", seconds);
        if (!seconds && waited > 1 && !call->over) say_waiting(&was_said);
    }
    return status;
}

static int ask_once(const struct target *target, struct client_call *call, const ProtobufCMessage *request, int seconds,
                    struct error *error)
{
    struct client *client = NULL;
    call->was_refused = false;
    int status = client_open(&client, target, error);
    if (!status) status = converse(client, call, request, seconds, error);
    if (!status) status = outcome_of_call(target, call->code, call->text, error);
    client_close(client);
    return status;
}

/* seconds 0: as long as it takes. 0: *answer is the caller's to free. A connection that had to make room for others
 * before its call came is no failure yet. */
static int ask(const struct arguments *arguments, const char *path, const ProtobufCMessage *request, int seconds,
               const ProtobufCMessageDescriptor *kind, ProtobufCMessage **answered)
{
    struct answer answer = {.kind = kind};
    struct client_call call = {.path = path, .message = on_message, .context = &answer};
    struct error *error = arguments->error;
    int status = -STATUS_UNAVAILABLE;
    for (int tries = 0; tries == 0 || (status && call.was_refused && tries < TRIES); tries++)
        status = ask_once(arguments->target, &call, request, seconds, error);
    if (!status && !answer.message)
        status = error_set(error, STATUS_UNAVAILABLE, "%s: the answer is no %s", arguments->target->endpoint,
                           kind->short_name);
    if (status && answer.message) protobuf_c_message_free_unpacked(answer.message, NULL);
    *answered = status ? NULL : answer.message;
    return status;
}

/* ---- questions ---- */

int ask_status(const struct arguments *arguments)
{
    const Gacc__V1__GetStatusRequest request = GACC__V1__GET_STATUS_REQUEST__INIT;
    ProtobufCMessage *answer;
    int failure = ask(arguments, "/gacc.v1.Control/GetStatus", &request.base, CLIENT_SECONDS,
                      &gacc__v1__status__descriptor, &answer);
    if (failure) return failure;
    const Gacc__V1__Status *status = (const Gacc__V1__Status *)answer;
    if (arguments->json)
        show_json(show_status_json(status), 2);
    else
        show_status(status, (double)time(NULL));
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

static json_t *config_json(const Gacc__V1__Config *config)
{
    json_t *live = json_array(), *set = json_object(), *object = json_object();
    for (size_t i = 0; i < config->n_live; i++) json_array_append_new(live, show_string(config->live[i]));
    for (size_t i = 0; i < config->n_set; i++)
        json_object_set_new(set, config->set[i]->path, show_string(config->set[i]->value));
    json_object_set_new(object, "yaml", show_string(config->yaml));
    json_object_set_new(object, "live", live);
    json_object_set_new(object, "set", set);
    return object;
}

int ask_config(const struct arguments *arguments)
{
    const Gacc__V1__GetConfigRequest request = GACC__V1__GET_CONFIG_REQUEST__INIT;
    ProtobufCMessage *answer;
    int failure = ask(arguments, "/gacc.v1.Control/GetConfig", &request.base, CLIENT_SECONDS,
                      &gacc__v1__config__descriptor, &answer);
    if (failure) return failure;
    const Gacc__V1__Config *config = (const Gacc__V1__Config *)answer;
    if (arguments->json) {
        show_json(config_json(config), 2);
    } else if (arguments->live) {
        for (size_t i = 0; i < config->n_live; i++) puts(show_clean(config->live[i]));
    } else {
        fputs(config->yaml, stdout);
        if (config->n_set) puts("\n# Set while it ran:");
        for (size_t i = 0; i < config->n_set; i++)
            printf("#   %s=%s\n", show_clean(config->set[i]->path), show_clean(config->set[i]->value));
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

int ask_health(const struct arguments *arguments)
{
    const Grpc__Health__V1__HealthCheckRequest request =
        GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT; /* of all services */
    ProtobufCMessage *answer;
    int failure = ask(arguments, "/grpc.health.v1.Health/Check", &request.base, CLIENT_SECONDS,
                      &grpc__health__v1__health_check_response__descriptor, &answer);
    if (failure) return failure;
    const int status = (int)((const Grpc__Health__V1__HealthCheckResponse *)answer)->status;
    const char *state = show_name(&grpc__health__v1__health_check_response__serving_status__descriptor, status, 0);
    protobuf_c_message_free_unpacked(answer, NULL);
    if (status != GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING)
        return error_set(arguments->error, STATUS_REFUSED, "the job answers, and is %s", state);
    if (arguments->json)
        show_json(json_pack("{ss}", "status", state), 0);
    else
        puts(state);
    return 0;
}

/* ---- changes ---- */

static json_t *effect_json(const Gacc__V1__Effect *effect)
{
    json_t *object = json_object();
    json_object_set_new(object, "step", effect ? json_integer((json_int_t)effect->step) : json_null());
    json_object_set_new(object, "optimizer_steps",
                        effect ? json_integer((json_int_t)effect->optimizer_steps) : json_null());
    return object;
}

/* A call that is answered by its Effect: "VERB after step 120 (attempt 123)REST". */
static int change(const struct arguments *arguments, const char *path, const ProtobufCMessage *request,
                  const char *verb, const char *rest)
{
    ProtobufCMessage *answer;
    char text[64];
    int failure = ask(arguments, path, request, 0, &gacc__v1__effect__descriptor, &answer);
    if (failure) return failure;
    const Gacc__V1__Effect *effect = (const Gacc__V1__Effect *)answer;
    if (arguments->json)
        show_json(effect_json(effect), 0);
    else
        printf("%s %s%s\n", verb, show_effect(effect, text), rest);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

int ask_pause(const struct arguments *arguments)
{
    const Gacc__V1__PauseRequest request = GACC__V1__PAUSE_REQUEST__INIT;
    return change(arguments, "/gacc.v1.Control/Pause", &request.base, "paused", "; gaccctl resume goes on");
}

int ask_resume(const struct arguments *arguments)
{
    const Gacc__V1__ResumeRequest request = GACC__V1__RESUME_REQUEST__INIT;
    return change(arguments, "/gacc.v1.Control/Resume", &request.base, "goes on", "");
}

int ask_stop(const struct arguments *arguments)
{
    Gacc__V1__StopRequest request = GACC__V1__STOP_REQUEST__INIT;
    request.finish = arguments->finish;
    return change(arguments, "/gacc.v1.Control/Stop", &request.base, "stops",
                  arguments->finish ? ", as done: exit status 0"
                                    : ", with a checkpoint: exit status 75; the same gaccd command goes on from it");
}

int ask_checkpoint(const struct arguments *arguments)
{
    Gacc__V1__CheckpointRequest request = GACC__V1__CHECKPOINT_REQUEST__INIT;
    ProtobufCMessage *answer;
    char text[64];
    request.wait = arguments->wait;
    int failure = ask(arguments, "/gacc.v1.Control/Checkpoint", &request.base, 0,
                      &gacc__v1__checkpoint_reply__descriptor, &answer);
    if (failure) return failure;
    const Gacc__V1__CheckpointReply *reply = (const Gacc__V1__CheckpointReply *)answer;
    if (arguments->json) {
        json_t *object = effect_json(reply->effect);
        json_object_set_new(object, "name", show_string(reply->name));
        json_object_set_new(object, "complete", json_boolean(arguments->wait));
        show_json(object, 0);
    } else {
        printf("%s %s %s\n", show_clean(reply->name),
               arguments->wait ? "is complete, as it was" : "is written, as it is", show_effect(reply->effect, text));
    }
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}

static void show_changes(const Gacc__V1__SetParametersReply *reply)
{
    char text[64];
    for (size_t i = 0; i < reply->n_changes; i++) {
        const Gacc__V1__Change *each = reply->changes[i];
        printf("%s: %s → %s, %s\n", show_clean(each->path), show_value(each->was), show_value(each->now),
               show_effect(each->effect ? each->effect : reply->effect, text));
    }
}

static json_t *changes_json(const Gacc__V1__SetParametersReply *reply)
{
    json_t *changes = json_array(), *object = effect_json(reply->effect);
    for (size_t i = 0; i < reply->n_changes; i++) {
        const Gacc__V1__Change *each = reply->changes[i];
        json_t *row = effect_json(each->effect ? each->effect : reply->effect);
        json_object_set_new(row, "key", show_string(each->path));
        json_object_set_new(row, "was", each->was[0] ? show_string(each->was) : json_null());
        json_object_set_new(row, "now", each->now[0] ? show_string(each->now) : json_null());
        json_array_append_new(changes, row);
    }
    json_object_set_new(object, "changes", changes);
    return object;
}

#define SETTINGS_MAX 64

int ask_set(const struct arguments *arguments)
{
    Gacc__V1__SetParametersRequest request = GACC__V1__SET_PARAMETERS_REQUEST__INIT;
    Gacc__V1__Setting settings[SETTINGS_MAX], *pointers[SETTINGS_MAX];
    ProtobufCMessage *answer;
    if (arguments->operand_count > SETTINGS_MAX)
        return error_set(arguments->error, STATUS_USAGE, "set: at most %d settings at once", SETTINGS_MAX);
    for (int i = 0; i < arguments->operand_count; i++) {
        char *word = arguments->operands[i], *equals = strchr(word, '=');
        if (!equals || equals == word)
            return error_set(arguments->error, STATUS_USAGE, "set %s: key.path=value is wanted", word);
        *equals = '\0'; /* argv is ours */
        gacc__v1__setting__init(&settings[i]);
        settings[i].path = word;
        settings[i].value = equals + 1;
        pointers[i] = &settings[i];
    }
    request.settings = pointers;
    request.n_settings = (size_t)arguments->operand_count;
    int failure = ask(arguments, "/gacc.v1.Control/SetParameters", &request.base, 0,
                      &gacc__v1__set_parameters_reply__descriptor, &answer);
    if (failure) return failure;
    const Gacc__V1__SetParametersReply *reply = (const Gacc__V1__SetParametersReply *)answer;
    if (arguments->json)
        show_json(changes_json(reply), 0);
    else
        show_changes(reply);
    protobuf_c_message_free_unpacked(answer, NULL);
    return 0;
}
