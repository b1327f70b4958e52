/* Anything that a coordinator may say to a rank, in any order: the session runs the steps that it can, or refuses with
 * a text. */
#include <stdlib.h>
#include <string.h>

#include "memory_file.h"
#include "messages.h"
#include "worker/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { STEPS_MAX = 16, SIZE = 2 };

struct script {
    struct control control; /* first: a control is a script */
    struct messages messages;
    int steps;
};

static const char rows[] = "weight,g0,g1\n1,1,2\n1,3,4\n0,5,6\n1,7,-8\n1,9,10\n";

static struct script *script_of(struct control *control)
{
    return (struct script *)control;
}

/* The next message, if it is one of that kind. */
static void *answer(struct control *control, Gacc__V1__CoordinatorMessage__BodyCase wanted, struct error *error)
{
    struct one_message one;
    Gacc__V1__CoordinatorMessage *message = NULL;
    if (messages_next(&script_of(control)->messages, &one))
        message = gacc__v1__coordinator_message__unpack(NULL, one.size, one.bytes);
    void *body = NULL;
    if (message && message->body_case == wanted) {
        body = message->welcome; /* a union of pointers */
        message->body_case = GACC__V1__COORDINATOR_MESSAGE__BODY__NOT_SET;
    }
    if (message) gacc__v1__coordinator_message__free_unpacked(message, NULL);
    if (!body) error_set(error, STATUS_INTERNAL, "the coordinator is gone");
    return body;
}

static int hello(struct control *control, const Gacc__V1__Hello *hello, Gacc__V1__Welcome **welcome,
                 struct error *error)
{
    if (hello->ranks != 1) abort();
    *welcome = answer(control, GACC__V1__COORDINATOR_MESSAGE__BODY_WELCOME, error);
    return *welcome ? 0 : -(int)error->status;
}

/* No checkpoint: it would be written where the message says. */
static int report(struct control *control, const Gacc__V1__Report *report, Gacc__V1__Decision **decision,
                  struct error *error)
{
    (void)report;
    *decision = ++script_of(control)->steps > STEPS_MAX
                    ? NULL
                    : answer(control, GACC__V1__COORDINATOR_MESSAGE__BODY_DECISION, error);
    if (!*decision) return error_set(error, STATUS_INTERNAL, "the coordinator is gone");
    if ((*decision)->save) gacc__v1__save__free_unpacked((*decision)->save, NULL);
    (*decision)->save = NULL;
    return 0;
}

static int step_done(struct control *control, const Gacc__V1__StepDone *done, struct error *error)
{
    (void)control;
    (void)error;
    if (done->all_gathers > 1) abort();
    return 0;
}

static void state(struct control *control, uint64_t step, Gacc__V1__State state, uint32_t micro_batch)
{
    (void)control;
    (void)step;
    (void)micro_batch;
    if (!protobuf_c_enum_descriptor_get_value(&gacc__v1__state__descriptor, (int)state)) abort();
}

static int finished(struct control *control, const Gacc__V1__Finished *finished, Gacc__V1__Farewell **farewell,
                    struct error *error)
{
    (void)finished;
    *farewell = answer(control, GACC__V1__COORDINATOR_MESSAGE__BODY_FAREWELL, error);
    return *farewell ? 0 : -(int)error->status;
}

static void run(struct script *script, char *path)
{
    Gacc__V1__JobSpec job = GACC__V1__JOB_SPEC__INIT;
    Gacc__V1__JobSection section = GACC__V1__JOB_SECTION__INIT;
    Gacc__V1__ModelSection model = GACC__V1__MODEL_SECTION__INIT;
    Gacc__V1__DataSection data = GACC__V1__DATA_SECTION__INIT;
    Gacc__V1__BatchSection batch = GACC__V1__BATCH_SECTION__INIT;
    Gacc__V1__PrecisionSection precision = GACC__V1__PRECISION_SECTION__INIT;
    Gacc__V1__OptimizerSection optimizer = GACC__V1__OPTIMIZER_SECTION__INIT;
    Gacc__V1__EvaluationSection evaluation = GACC__V1__EVALUATION_SECTION__INIT;
    Gacc__V1__ControlSection control = GACC__V1__CONTROL_SECTION__INIT;
    model.type = GACC__V1__MODEL_TYPE__MODEL_TAPE;
    model.size = SIZE;
    data.format = GACC__V1__DATA_FORMAT__FORMAT_CSV;
    data.order = GACC__V1__ORDER__ORDER_SHUFFLED;
    data.train = data.validation = &path;
    data.n_train = data.n_validation = 1;
    batch.global = 4;
    batch.micro = 2;
    optimizer.type = GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW;
    optimizer.lr = 1;
    optimizer.eps = 1e-8;
    job.job = &section;
    job.model = &model;
    job.data = &data;
    job.batch = &batch;
    job.precision = &precision;
    job.optimizer = &optimizer;
    job.evaluation = &evaluation;
    job.control = &control;
    struct session *session;
    struct comm *comm;
    struct error error = {0};
    if (comm_open_alone(&comm, &error)) abort();
    comm->local_cores = 1; /* no thread but this one */
    if (session_open(&session, &job, comm, &script->control, NULL, &error)) abort();
    int result = session_run(session, &error);
    if (result && (error.text[0] == '\0' || result != -(int)error.status)) abort();
    session_close(session);
    comm_close(comm);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    char path[32];
    int descriptor = memory_file((const uint8_t *)rows, sizeof rows - 1, path);
    struct script script = {
        .control = {.hello = hello, .report = report, .step_done = step_done, .state = state, .finished = finished},
        .messages = {bytes, size}};
    run(&script, path);
    close(descriptor);
    return 0;
}
