/* gacc.v1.Control: SetParameters and GetConfig. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/operations.h"
#include "daemon/job/scalar.h"

/* ---- setting ---- */

static int take_settings(struct job_settings *asked, const Gacc__V1__SetParametersRequest *request, struct error *error)
{
    int status = 0;
    for (size_t i = 0; i < request->n_settings && !status; i++) {
        const Gacc__V1__Setting *setting = request->settings[i];
        for (size_t j = 0; j < asked->count; j++)
            if (!strcmp(asked->each[j].path, setting->path))
                return error_set(error, STATUS_JOB, "%.200s: is given twice", setting->path);
        if (i == SETTINGS_MAX)
            return error_set(error, STATUS_JOB, "at most %d settings are taken at a time", SETTINGS_MAX);
        status = job_settings_put(asked, setting->path, setting->value, error);
    }
    return status;
}

/* The job does not know the present scale, so that its change is not among the others yet. */
static int add_scale(struct job_changes *changes, float was, float now, struct error *error)
{
    if (now == 0) return 0;
    struct job_change *longer = realloc(changes->each, (changes->count + 1) * sizeof *longer);
    if (!longer) return error_set(error, STATUS_INTERNAL, "out of memory");
    changes->each = longer;
    struct job_change *change = &longer[changes->count];
    *change = (struct job_change){.row = LIVE_SCALE,
                                  .key = strdup(LIVE_SCALE),
                                  .was = strdup(decimal_of((double)was).text),
                                  .now = strdup(decimal_of((double)now).text)};
    changes->count++;
    return change->key && change->was && change->now ? 0 : error_set(error, STATUS_INTERNAL, "out of memory");
}

/* What was ever set, with what is set now, each as the job has it. */
static int add_settings(struct job_settings *all, const struct job_settings *asked, const Gacc__V1__JobSpec *job,
                        struct error *error)
{
    int status = 0;
    for (size_t i = 0; i < asked->count && !status; i++) {
        if (!strcmp(asked->each[i].path, LIVE_SCALE)) continue; /* a checkpoint has the scale itself */
        char *value = job_value_text(job, asked->each[i].path);
        status = job_settings_put(all, asked->each[i].path, value ? value : "", error);
        free(value);
    }
    if (!status) status = job_settings_drop(all, job, error); /* what a choice took along */
    if (!status && all->count > SETTINGS_MAX)                 /* the same command could not go on with them */
        status = error_set(error, STATUS_UNAVAILABLE, "more than %d keys would have been set while the job runs",
                           SETTINGS_MAX);
    return status;
}

static enum answer set(struct coordinator *coordinator, const Gacc__V1__SetParametersRequest *request,
                       struct job_changes *changes, struct error *why)
{
    struct conductor *conductor = coordinator->conductor;
    struct job_settings asked = {0}, all = {0};
    Gacc__V1__JobSpec *job = NULL;
    enum answer known = ANSWER_REFUSED;
    float scale;
    if (!take_settings(&asked, request, why) &&
        !job_set_live(&job, conductor_next_job(conductor), &asked, coordinator->options->ranks, changes, &scale, why) &&
        !add_scale(changes, conductor_next_scale(conductor), scale, why) &&
        !job_settings_copy(&all, conductor_next_settings(conductor), why) && !add_settings(&all, &asked, job, why))
        known = conductor_set(conductor, job, &all, changes, scale, why);
    if (known == ANSWER_REFUSED && job) gacc__v1__job_spec__free_unpacked(job, NULL);
    job_settings_free(&all);
    job_settings_free(&asked);
    return known;
}

void set_parameters_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    struct operation operation;
    struct error why;
    Gacc__V1__SetParametersRequest *request =
        message_unpack(&gacc__v1__set_parameters_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (!request) {
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a SetParametersRequest");
        return;
    }
    if (operation_open(coordinator, &operation, call, REQUEST_SET)) {
        operation.was_paused = conductor_is_paused(coordinator->conductor);
        const enum answer known = set(coordinator, request, &operation.changes, &why);
        operation_begin(coordinator, &operation, known, &why);
    }
    gacc__v1__set_parameters_request__free_unpacked(request, NULL);
}

int parameters_answer(const struct operation *operation, Gacc__V1__Effect *effect)
{
    const size_t count = operation->changes.count;
    Gacc__V1__SetParametersReply reply = GACC__V1__SET_PARAMETERS_REPLY__INIT;
    Gacc__V1__Effect later = *effect;
    later.step++;
    later.optimizer_steps++;
    Gacc__V1__Change *changes = calloc(count + 1, sizeof *changes);
    reply.changes = calloc(count + 1, sizeof *reply.changes);
    reply.effect = effect;
    for (size_t i = 0; i < count && changes && reply.changes; i++) {
        const struct job_change *change = &operation->changes.each[i];
        gacc__v1__change__init(reply.changes[reply.n_changes++] = &changes[i]);
        changes[i].path = change->key;
        if (change->was) changes[i].was = change->was;
        if (change->now) changes[i].now = change->now;
        if (job_is_live_later(change->key) && !operation->was_paused) changes[i].effect = &later;
    }
    const int sent = changes && reply.changes ? control_send(operation->call, &reply.base) : -1;
    free(changes);
    free(reply.changes);
    return sent;
}

/* ---- telling ---- */

static int send_config(struct coordinator *coordinator, struct rpc_call *call, char *yaml)
{
    const Gacc__V1__JobSpec *job = conductor_job(coordinator->conductor);
    const struct job_settings *settings = conductor_settings(coordinator->conductor);
    struct live_paths live;
    Gacc__V1__Config config = GACC__V1__CONFIG__INIT;
    Gacc__V1__Setting each[SETTINGS_MAX], *list[SETTINGS_MAX];
    config.yaml = yaml;
    job_live_paths(job, &live);
    config.n_live = live.count;
    config.live = (char **)live.paths;
    config.set = list;
    for (size_t i = 0; i < settings->count && i < SETTINGS_MAX; i++) {
        gacc__v1__setting__init(list[config.n_set++] = &each[i]);
        each[i].path = settings->each[i].path;
        each[i].value = settings->each[i].value;
    }
    return control_send(call, &config.base);
}

void get_config_message(struct rpc_call *call, const uint8_t *bytes, size_t length, void *context)
{
    struct coordinator *coordinator = context;
    Gacc__V1__GetConfigRequest *request =
        message_unpack(&gacc__v1__get_config_request__descriptor, length, bytes, REQUEST_BEYOND);
    if (!request) {
        operation_refuse(call, RPC_INVALID_ARGUMENT, "not a GetConfigRequest");
        return;
    }
    gacc__v1__get_config_request__free_unpacked(request, NULL);
    char *yaml = NULL;
    size_t size;
    FILE *stream = open_memstream(&yaml, &size);
    const bool printed =
        stream && !job_print(conductor_job(coordinator->conductor), coordinator->options->ranks, stream);
    const bool whole = stream && !fclose(stream) && printed;
    const int sent = whole ? send_config(coordinator, call, yaml) : -1;
    free(yaml);
    operation_refuse(call, sent ? RPC_RESOURCE_EXHAUSTED : RPC_OK, sent ? "the answer does not fit the queue" : NULL);
}
