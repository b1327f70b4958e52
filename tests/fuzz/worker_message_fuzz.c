/* Anything that workers may say to the coordinator, in any order, to the mind that decides and to the one that gathers
 * checkpoints: each message is taken, or ends the job with a text; what comes out can be packed, written and shown. */
#include <stdlib.h>
#include <string.h>

#include "daemon/coordinator/conductor.h"
#include "daemon/coordinator/saver.h"
#include "messages.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

#define OUTPUT "/dev/null/no-directory" /* nothing can be written there */

enum { RANKS = 2 };

struct coordinator {
    struct conductor *conductor;
    struct saver *saver;
    bool over;
};

static Gacc__V1__JobSection section = GACC__V1__JOB_SECTION__INIT;
static Gacc__V1__BatchSection batch = GACC__V1__BATCH_SECTION__INIT;
static Gacc__V1__PrecisionSection precision = GACC__V1__PRECISION_SECTION__INIT;
static Gacc__V1__LossScaleSection scale = GACC__V1__LOSS_SCALE_SECTION__INIT;
static Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
static Gacc__V1__ScheduleSection schedule = GACC__V1__SCHEDULE_SECTION__INIT;
static Gacc__V1__EvaluationSection evaluation = GACC__V1__EVALUATION_SECTION__INIT;
static Gacc__V1__CheckpointSection checkpoint = GACC__V1__CHECKPOINT_SECTION__INIT;
static Gacc__V1__ControlSection control = GACC__V1__CONTROL_SECTION__INIT;

/* A step of four sequences in two micro-batches; every applied one is evaluated and saved. */
static Gacc__V1__JobSpec a_job(void)
{
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    section.name = (char *)(uintptr_t) "fuzz";
    section.output = (char *)(uintptr_t)OUTPUT;
    section.steps = 3;
    batch.global = 4;
    batch.micro = 2;
    precision.compute = GACC__V1__COMPUTE__COMPUTE_FP16;
    precision.loss_scale = &scale;
    scale.initial = scale.maximum = 8;
    scale.growth = 2;
    scale.backoff = 0.5;
    scale.interval = 2;
    scale.hysteresis = 1;
    scale.minimum = 4;
    scale.stop_after = 2;
    optimizer.lr = optimizer.clip_norm = 1;
    evaluation.every = checkpoint.every = 1;
    job.job = &section;
    job.batch = &batch;
    job.precision = &precision;
    job.optimizer = &optimizer;
    job.schedule = &schedule;
    job.evaluation = &evaluation;
    job.checkpoint = &checkpoint;
    job.control = &control;
    return job;
}

static void must_pack(const ProtobufCMessage *message)
{
    uint8_t *packed = malloc(protobuf_c_message_get_packed_size(message) + 1);
    if (!packed) abort();
    protobuf_c_message_pack(message, packed);
    free(packed);
}

static void saved(void *context, const struct checkpoint_record *record, const struct error *why, const char *complaint)
{
    const struct coordinator *coordinator = context;
    if (!why || record->name[0] == '\0' || !complaint) abort(); /* nothing can be written there */
    conductor_saved(coordinator->conductor, why);
}

/* The log's lines of what has happened. */
static void take_records(struct coordinator *coordinator)
{
    struct record record;
    while (conductor_next_record(coordinator->conductor, &record)) {
        if (record.type == RECORD_STEP && record.step.counters.step == 0) abort();
    }
}

static void decide(struct coordinator *coordinator, uv_loop_t *loop)
{
    if (saver_is_busy(coordinator->saver) && conductor_awaits_checkpoint(coordinator->conductor)) {
        if (!saver_is_committing(coordinator->saver)) {
            coordinator->over = true; /* it would wait for the ranks */
            return;
        }
        uv_run(loop, UV_RUN_DEFAULT);
    }
    const Gacc__V1__Decision *decision = conductor_decide(coordinator->conductor, 1);
    if (!decision) abort();
    must_pack(&decision->base);
    if (!conductor_opens_checkpoint(coordinator->conductor)) return;
    const char *name;
    const struct progress *progress = conductor_progress(coordinator->conductor, &name);
    const struct saver_order order = {
        .name = name,
        .progress = progress,
        .parameters = 2,
        .job = conductor_job(coordinator->conductor),
        .settings = conductor_settings(coordinator->conductor),
        .retention = *conductor_retention(coordinator->conductor),
        .has_parts = decision->save == NULL,
    };
    saver_begin(coordinator->saver, &order);
}

static void say_farewell(struct coordinator *coordinator)
{
    coordinator->over = true;
    for (uint32_t rank = 0; rank < RANKS; rank++) must_pack(&conductor_farewell(coordinator->conductor, rank)->base);
}

/* As worker_service.c does. */
static void take(struct coordinator *coordinator, uv_loop_t *loop, uint32_t rank,
                 const Gacc__V1__WorkerMessage *message)
{
    struct conductor *conductor = coordinator->conductor;
    struct error error = {0};
    int taken = 0;
    switch (message->body_case) {
    case GACC__V1__WORKER_MESSAGE__BODY_HELLO:
        taken = conductor_hello(conductor, rank, message->hello, 0, &error);
        if (taken == 1) must_pack(&conductor_welcome(conductor, 0)->base);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_STATE:
        conductor_state(conductor, rank, message->state, 0);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_REPORT:
        taken = conductor_report(conductor, rank, message->report, 0, &error);
        if (taken == 1) decide(coordinator, loop);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_STEP_DONE:
        taken = conductor_step_done(conductor, rank, message->step_done, 0, &error);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_INTERRUPTED:
        taken = conductor_interrupted(conductor, "rank 1", message->interrupted, &error);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_SAVED:
        if (saver_take(coordinator->saver, rank, message->saved, &error) && conductor_lost(conductor, rank, error.text))
            say_farewell(coordinator);
        break;
    case GACC__V1__WORKER_MESSAGE__BODY_FINISHED:
        taken = conductor_finished(conductor, rank, message->finished, 0, &error);
        if (taken == 1) say_farewell(coordinator);
        break;
    default:
        conductor_lost(conductor, rank, "sent a message that has no meaning here");
        break;
    }
    take_records(coordinator);
    if (taken >= 0) return;
    if (error.text[0] == '\0' || taken != -(int)error.status) abort();
    say_farewell(coordinator);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const Gacc__V1__JobSpec job = a_job();
    struct messages messages = {bytes, size};
    struct coordinator coordinator = {0};
    struct one_message one;
    struct error error;
    uv_loop_t loop;
    if (uv_loop_init(&loop) || conductor_open(&coordinator.conductor, &job, RANKS, 0, &error) ||
        saver_open(&coordinator.saver, &loop, &job, RANKS, &(struct saver_events){saved, &coordinator}, &error))
        abort();
    while (!coordinator.over && messages_next(&messages, &one)) {
        Gacc__V1__WorkerMessage *message = gacc__v1__worker_message__unpack(NULL, one.size, one.bytes);
        if (!message) continue;
        take(&coordinator, &loop, one.sender % RANKS, message);
        gacc__v1__worker_message__free_unpacked(message, NULL);
        must_pack(&conductor_status(coordinator.conductor, 1)->base);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
    struct end_record end;
    conductor_end(coordinator.conductor, 1, &end);
    saver_close(coordinator.saver);
    conductor_close(coordinator.conductor);
    if (uv_loop_close(&loop)) abort();
    return 0;
}
