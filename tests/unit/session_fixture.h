/*
 * A whole small job in one process: N sessions as threads, and a coordinator of a few lines that is independent of the
 * real one. A test states a scenario, runs it, and reads what every rank reported and what its parameters were after
 * every attempt.
 */
#ifndef GACC_TEST_SESSION_FIXTURE_H
#define GACC_TEST_SESSION_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "tests/unit/comm_threads.h"
#include "tests/unit/scratch.h"
#include "worker/session.h"
#include "worker/session_internal.h"

#define ATTEMPTS_MAX 128
#define VALUES_MAX 8
#define TRACE_MAX 64

#define APPLY GACC__V1__VERDICT__VERDICT_APPLY
#define SKIP GACC__V1__VERDICT__VERDICT_SKIP
#define EMPTY GACC__V1__VERDICT__VERDICT_EMPTY
#define FAIL GACC__V1__VERDICT__VERDICT_FAIL

struct play;
struct actor;

/* Zero means the default that is named. */
struct scenario {
    const char *csv, *validation; /* NULL: no validation set */
    Gacc__V1__ModelType type;     /* tape */
    uint32_t size;                /* of tape, or inputs: 1 */
    bool bias;                    /* of linear, 0 at first unless initial_bias */
    double initial_bias;
    double initial[VALUES_MAX];    /* of "weight" */
    Gacc__V1__Compute compute;     /* fp32 */
    uint32_t ranks, global, micro; /* 1, 1, 1 */
    Gacc__V1__Weighting weighting; /* token */
    bool adamw;                    /* with betas 0.9 and 0.999, eps 1e-8: sgd */
    double lr;                     /* 1 */
    double momentum, weight_decay, clip;
    const Gacc__V1__ParameterGroup *group;                 /* one, or none */
    double scale;                                          /* 1: no scaler */
    double growth;                                         /* of the scale after every APPLY: 1 */
    double (*schedule)(uint64_t applied);                  /* lr always */
    uint64_t epochs, evaluate_every, evaluation_sequences; /* 1, never, all */
    uint64_t stop_after;                                   /* attempts; when the data end */
    const char *export;                                    /* file name for the final model */
    struct faults faults;
    const struct device *device; /* NULL: the CPU */
    bool unseen;                 /* nobody looks at the session before its end */
    uint64_t bucket_limit;       /* of the ranks' transport */
    /* For what the fields above do not say; NULL: nothing. */
    void (*adjust)(struct play *);                       /* the job, before the sessions open */
    void (*tamper)(struct play *, Gacc__V1__Decision *); /* a decision, before it is sent */
    void (*after_step)(struct actor *, uint64_t step);   /* in the rank's own thread */
};

/* What happened in one attempt. */
struct attempt {
    Gacc__V1__Verdict verdict;
    double scale, weight, lr, loss, norm_scaled, norm, coefficient;
    uint32_t micro_batches;
    uint64_t optimizer_steps; /* after it */
    struct rank_attempt {
        bool finite;
        uint32_t reduce_scatters, all_gathers, control;
        uint64_t parameters_checksum;
        uint64_t reduce_scatter_bytes, all_gather_bytes;
        double parameters[VALUES_MAX]; /* of the compute type, after it */
        double gradient_after;         /* Σ |g| of the uncleared buffer */
        char tensor[64], file[256];    /* blame */
        int micro_batch;               /* −1: none */
        uint64_t sequences[VALUES_MAX];
        size_t sequence_count;
        bool evaluated;
        double evaluation_loss, evaluation_weight;
        Gacc__V1__Seconds seconds;
    } ranks[THREADS_MAX];
};

struct rank_end {
    int result, export_result;
    struct error error;
    double master[VALUES_MAX], m[VALUES_MAX]; /* of the own shard */
    uint64_t digest;                          /* of parameters, own master parameters and moments */
    uint64_t owned;
    struct session_memory memory;
    struct {
        uint64_t step;
        Gacc__V1__State state;
    } trace[TRACE_MAX];
    size_t trace_count;
};

struct play {
    const struct scenario *scenario;
    Gacc__V1__JobSpec job;
    Gacc__V1__JobSection job_section;
    Gacc__V1__ModelSection model;
    Gacc__V1__DataSection data;
    Gacc__V1__BatchSection batch;
    Gacc__V1__PrecisionSection precision;
    Gacc__V1__OptimizerSection optimizer;
    Gacc__V1__ScheduleSection schedule;
    Gacc__V1__EvaluationSection evaluation;
    Gacc__V1__TensorValues values, bias_values, *values_list[2];
    Gacc__V1__ParameterGroup *groups[1];
    char *train, *validation, *train_list[1], *validation_list[1];
    char export[256];
    struct comm *group[THREADS_MAX];

    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t waiting;
    uint64_t round;
    Gacc__V1__Report reports[THREADS_MAX];
    Gacc__V1__Failure failures[THREADS_MAX];
    char texts[THREADS_MAX][256];
    uint8_t packed[4096];
    size_t packed_size;
    uint64_t sequences, position, epoch, plans, optimizer_steps;
    double scale;
    struct attempt *open; /* whose window is running */

    struct attempt attempts[ATTEMPTS_MAX]; /* [1…count] */
    uint64_t count;
    struct actor {
        struct control control;
        struct play *play;
        uint32_t rank;
        struct session *session;
    } actors[THREADS_MAX];
    struct rank_end ends[THREADS_MAX];
};

static inline double value_at(const void *buffer, enum dtype type, uint64_t index)
{
    switch (type) {
    case DTYPE_FP64:
        return ((const double *)buffer)[index];
    case DTYPE_FP32:
        return (double)((const float *)buffer)[index];
    case DTYPE_BF16: {
        uint32_t bits = (uint32_t)((const uint16_t *)buffer)[index] << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return (double)value;
    }
    case DTYPE_FP16: {
        uint16_t bits = ((const uint16_t *)buffer)[index];
        int exponent = bits >> 10 & 31, fraction = bits & 1023;
        double magnitude = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24); /* finite ones */
        return bits >> 15 ? -magnitude : magnitude;
    }
    }
    return 0;
}

/* --- the coordinator ----------------------------------------------------------------------------------------- */

/* The next global batch, sequential, flushed at the end of an epoch; false when the data are over. */
static inline bool play_plan(struct play *play, Gacc__V1__Plan *plan, uint32_t *shares)
{
    const struct scenario *scenario = play->scenario;
    if (play->position == play->sequences) play->position = 0, play->epoch++;
    if (play->epoch >= scenario->epochs || (scenario->stop_after && play->plans == scenario->stop_after)) return false;
    uint64_t left = play->sequences - play->position;
    gacc__v1__plan__init(plan);
    plan->step = ++play->plans;
    plan->epoch = play->epoch;
    plan->first = play->position;
    plan->count = (uint32_t)(left < scenario->global ? left : scenario->global);
    plan->micro = scenario->micro;
    plan->shares = shares;
    plan->n_shares = scenario->ranks;
    uint32_t all = (plan->count + plan->micro - 1) / plan->micro;
    for (uint32_t rank = 0; rank < scenario->ranks; rank++)
        shares[rank] = all / scenario->ranks + (rank < all % scenario->ranks);
    play->position += plan->count;
    return true;
}

static inline void play_judge(struct play *play, Gacc__V1__Decision *decision, Gacc__V1__Failure *failure)
{
    struct attempt *attempt = play->open;
    const struct scenario *scenario = play->scenario;
    double scaled = 0, unscaled = 0, loss = 0, weight = 0;
    uint32_t micro_batches = 0;
    bool finite = true;
    for (uint32_t rank = 0; rank < scenario->ranks; rank++) {
        const Gacc__V1__Report *report = &play->reports[rank];
        if (play->failures[rank].status && !decision->failure) {
            *failure = play->failures[rank];
            decision->failure = failure;
        }
        finite &= report->finite;
        scaled += report->sum_squares_scaled;
        unscaled += report->sum_squares;
        loss += ldexp(report->loss_sum, report->loss_exponent);
        weight += report->weight;
        micro_batches += report->micro_batches;
        attempt->ranks[rank].finite = report->finite;
        attempt->ranks[rank].reduce_scatters = report->reduce_scatters;
        attempt->ranks[rank].parameters_checksum = report->parameters_checksum;
        attempt->ranks[rank].reduce_scatter_bytes = report->reduce_scatter_bytes;
    }
    attempt->norm_scaled = sqrt(scaled);
    attempt->norm = sqrt(unscaled);
    double divisor = scenario->weighting == GACC__V1__WEIGHTING__WEIGHTING_TOKEN        ? weight
                     : scenario->weighting == GACC__V1__WEIGHTING__WEIGHTING_MICROBATCH ? micro_batches
                                                                                        : 1;
    attempt->loss = loss / divisor;
    attempt->verdict = decision->failure ? FAIL : weight == 0 ? EMPTY : finite ? APPLY : SKIP;
    double coefficient = scenario->clip > 0 ? scenario->clip / (attempt->norm + 1e-6) : 1;
    attempt->coefficient = coefficient < 1 ? coefficient : 1;
    if (attempt->verdict == APPLY) play->optimizer_steps++;
    if (attempt->verdict == APPLY) play->scale *= scenario->growth;
    if (attempt->verdict == SKIP && scenario->scale != 1) play->scale /= 2;
    attempt->optimizer_steps = play->optimizer_steps;
    decision->step = play->count;
    decision->verdict = attempt->verdict;
    decision->clip_coefficient = attempt->coefficient;
    decision->evaluate = attempt->verdict == APPLY && scenario->evaluate_every > 0 &&
                         play->optimizer_steps % scenario->evaluate_every == 0;
}

/* Opens the window whose plan went out before, if there is one, and plans the one after it. */
static inline void play_open_window(struct play *play, Gacc__V1__Decision *decision, Gacc__V1__Window *window)
{
    if (play->count == play->plans || decision->verdict == FAIL) return;
    struct attempt *attempt = play->open = &play->attempts[++play->count];
    for (uint32_t rank = 0; rank < play->scenario->ranks; rank++) {
        attempt->weight += play->reports[rank].next_weight;
        attempt->micro_batches += play->reports[rank].next_micro_batches;
    }
    attempt->scale = play->scale;
    attempt->lr = play->scenario->schedule ? play->scenario->schedule(play->optimizer_steps) : play->scenario->lr;
    gacc__v1__window__init(window);
    window->step = play->count;
    window->scale = attempt->scale;
    window->weight = attempt->weight;
    window->micro_batches = attempt->micro_batches;
    window->lr = attempt->lr;
    window->optimizer_steps = play->optimizer_steps;
    decision->next = window;
}

static inline void play_decide(struct play *play)
{
    Gacc__V1__Decision decision = GACC__V1__DECISION__INIT;
    Gacc__V1__Failure failure = GACC__V1__FAILURE__INIT;
    Gacc__V1__Window window;
    Gacc__V1__Plan plan;
    uint32_t shares[THREADS_MAX];
    if (play->open) play_judge(play, &decision, &failure);
    play_open_window(play, &decision, &window);
    if (decision.next && play_plan(play, &plan, shares)) decision.plan = &plan;
    if (play->scenario->tamper) play->scenario->tamper(play, &decision);
    play->packed_size = gacc__v1__decision__get_packed_size(&decision);
    if (play->packed_size > sizeof play->packed || play->count + 1 >= ATTEMPTS_MAX) abort();
    gacc__v1__decision__pack(&decision, play->packed);
}

/* Blocks until all ranks are here; the last one does the work. */
static inline void play_wait(struct play *play, void (*work)(struct play *))
{
    uint64_t round = play->round;
    if (++play->waiting == play->scenario->ranks) {
        if (work) work(play);
        play->waiting = 0;
        play->round++;
        pthread_cond_broadcast(&play->changed);
    }
    while (round == play->round) pthread_cond_wait(&play->changed, &play->lock);
}

static inline int play_hello(struct control *control, const Gacc__V1__Hello *hello, Gacc__V1__Welcome **welcome,
                             struct error *error)
{
    (void)error;
    struct play *play = ((struct actor *)control)->play;
    pthread_mutex_lock(&play->lock);
    if (!play->packed_size) {
        Gacc__V1__Welcome message = GACC__V1__WELCOME__INIT;
        Gacc__V1__Plan plan;
        uint32_t shares[THREADS_MAX];
        play->sequences = hello->train_sequences;
        if (play_plan(play, &plan, shares)) message.plan = &plan;
        play->packed_size = gacc__v1__welcome__pack(&message, play->packed);
    }
    *welcome = gacc__v1__welcome__unpack(NULL, play->packed_size, play->packed);
    play_wait(play, NULL);
    pthread_mutex_unlock(&play->lock);
    return 0;
}

static inline int play_report(struct control *control, const Gacc__V1__Report *report, Gacc__V1__Decision **decision,
                              struct error *error)
{
    (void)error;
    struct actor *actor = (struct actor *)control;
    struct play *play = actor->play;
    pthread_mutex_lock(&play->lock);
    play->reports[actor->rank] = *report;
    gacc__v1__failure__init(&play->failures[actor->rank]);
    if (report->failure) {
        snprintf(play->texts[actor->rank], sizeof play->texts[0], "%s", report->failure->text);
        play->failures[actor->rank].status = report->failure->status;
        play->failures[actor->rank].text = play->texts[actor->rank];
    }
    play_wait(play, play_decide);
    *decision = gacc__v1__decision__unpack(NULL, play->packed_size, play->packed);
    pthread_mutex_unlock(&play->lock);
    return 0;
}

static inline void play_note_blame(struct rank_attempt *note, const Gacc__V1__Blame *blame)
{
    snprintf(note->tensor, sizeof note->tensor, "%s", blame->tensor);
    if (blame->has_micro_batch) note->micro_batch = (int)blame->micro_batch;
    note->sequence_count = blame->n_sequences;
    for (size_t i = 0; i < blame->n_sequences && i < VALUES_MAX; i++) {
        note->sequences[i] = blame->sequences[i]->index;
        snprintf(note->file, sizeof note->file, "%s", blame->sequences[i]->file);
    }
}

/* Runs in the rank's own thread, between its steps: the session may be looked at. */
static inline int play_step_done(struct control *control, const Gacc__V1__StepDone *done, struct error *error)
{
    struct actor *actor = (struct actor *)control;
    struct session *session = actor->session;
    struct rank_attempt *note = &actor->play->attempts[done->step].ranks[actor->rank];
    note->all_gathers = done->all_gathers;
    note->all_gather_bytes = done->all_gather_bytes;
    note->control = done->control_collectives;
    note->seconds = *done->seconds;
    note->micro_batch = -1;
    if (done->blame) play_note_blame(note, done->blame);
    note->evaluated = done->evaluation != NULL;
    if (done->evaluation) {
        note->evaluation_loss = ldexp(done->evaluation->loss_sum, done->evaluation->loss_exponent);
        note->evaluation_weight = done->evaluation->weight;
    }
    struct session_view view;
    if (actor->play->scenario->unseen) return 0;
    if (session_look(session, &view, error)) abort();
    for (uint64_t i = 0; i < session->map.parameters; i++) {
        if (i < VALUES_MAX) note->parameters[i] = value_at(view.parameters, session->compute_type, i);
        note->gradient_after += fabs(value_at(view.gradients, session->wide_type, i));
    }
    if (actor->play->scenario->after_step) actor->play->scenario->after_step(actor, done->step);
    return 0;
}

static inline void play_state(struct control *control, uint64_t step, Gacc__V1__State state, uint32_t micro_batch)
{
    (void)micro_batch;
    struct actor *actor = (struct actor *)control;
    struct rank_end *end = &actor->play->ends[actor->rank];
    if (end->trace_count == TRACE_MAX) return;
    end->trace[end->trace_count].step = step;
    end->trace[end->trace_count++].state = state;
}

/* --- setting up ---------------------------------------------------------------------------------------------- */

static inline void play_fill_job(struct play *play)
{
    const struct scenario *scenario = play->scenario;
    gacc__v1__job_spec__init(&play->job);
    gacc__v1__job_section__init(&play->job_section);
    gacc__v1__model_section__init(&play->model);
    gacc__v1__data_section__init(&play->data);
    gacc__v1__batch_section__init(&play->batch);
    gacc__v1__precision_section__init(&play->precision);
    gacc__v1__optimizer_section__init(&play->optimizer);
    gacc__v1__schedule_section__init(&play->schedule);
    gacc__v1__evaluation_section__init(&play->evaluation);
    gacc__v1__tensor_values__init(&play->values);
    gacc__v1__tensor_values__init(&play->bias_values);
    play->job.job = &play->job_section;
    play->job.model = &play->model;
    play->job.data = &play->data;
    play->job.batch = &play->batch;
    play->job.precision = &play->precision;
    play->job.optimizer = &play->optimizer;
    play->job.schedule = &play->schedule;
    play->job.evaluation = &play->evaluation;

    play->job_section.seed = 1337;
    play->model.type = scenario->type;
    play->model.size = play->model.inputs = scenario->size;
    play->model.loss = GACC__V1__LOSS__LOSS_HALF_MSE;
    play->model.init_values = play->values_list;
    play->model.n_init_values = scenario->bias ? 2 : 1;
    play->model.bias = scenario->bias;
    play->bias_values.name = (char *)(uintptr_t) "bias";
    play->bias_values.values = (double *)(uintptr_t)&scenario->initial_bias;
    play->bias_values.n_values = 1;
    play->values_list[1] = &play->bias_values;
    play->values_list[0] = &play->values;
    play->values.name = (char *)(uintptr_t) "weight";
    play->values.values = (double *)(uintptr_t)scenario->initial;
    play->values.n_values = scenario->size;
    play->data.format = GACC__V1__DATA_FORMAT__FORMAT_CSV;
    play->data.order = GACC__V1__ORDER__ORDER_SEQUENTIAL;
    play->train_list[0] = play->train = scratch_file("train.csv", scenario->csv, strlen(scenario->csv));
    play->data.train = play->train_list;
    play->data.n_train = 1;
    if (scenario->validation) {
        play->validation = scratch_file("validation.csv", scenario->validation, strlen(scenario->validation));
        play->validation_list[0] = play->validation;
        play->data.validation = play->validation_list;
        play->data.n_validation = 1;
    }
    play->batch.global = scenario->global;
    play->batch.micro = scenario->micro;
    play->batch.weighting = scenario->weighting;
    play->precision.compute = scenario->compute;
    play->optimizer.type =
        scenario->adamw ? GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_ADAMW : GACC__V1__OPTIMIZER_TYPE__OPTIMIZER_SGD;
    play->optimizer.lr = scenario->lr;
    play->optimizer.beta1 = 0.9;
    play->optimizer.beta2 = 0.999;
    play->optimizer.eps = 1e-8;
    play->optimizer.momentum = scenario->momentum;
    play->optimizer.weight_decay = scenario->weight_decay;
    play->groups[0] = (Gacc__V1__ParameterGroup *)(uintptr_t)scenario->group;
    play->optimizer.groups = play->groups;
    play->optimizer.n_groups = scenario->group ? 1 : 0;
    play->evaluation.sequences = scenario->evaluation_sequences;
}

/* FNV-1a. */
static inline uint64_t play_digest(const struct session_view *view, bool readable)
{
    uint64_t sum = UINT64_C(14695981039346656037), shard = view->owned * dtype_size(view->wide_type);
    const struct {
        const void *at;
        uint64_t bytes;
    } spans[] = {{view->parameters, view->map->parameters * dtype_size(view->compute_type)},
                 {view->master, shard},
                 {view->m, view->m ? shard : 0},
                 {view->v, view->v ? shard : 0}};
    for (size_t s = 0; s < sizeof spans / sizeof *spans && readable; s++)
        for (uint64_t i = 0; i < spans[s].bytes; i++)
            sum = (sum ^ ((const unsigned char *)spans[s].at)[i]) * UINT64_C(1099511628211);
    return sum;
}

static inline void *play_rank(void *argument)
{
    struct actor *actor = argument;
    struct play *play = actor->play;
    struct rank_end *end = &play->ends[actor->rank];
    struct session *session;
    struct session_view view;
    struct session_options options = {.faults = play->scenario->faults, .device = play->scenario->device};
    end->result = session_open(&session, &play->job, play->group[actor->rank], &actor->control, &options, &end->error);
    if (end->result) return NULL; /* no collective was entered: every rank fails alike in these tests */
    actor->session = session;
    end->result = session_run(session, &end->error);
    if (!end->result && play->scenario->export)
        end->export_result = session_write_model(session, play->export, &end->error);
    end->owned = session->owned;
    session_memory(session, &end->memory);
    if (session_look(session, &view, NULL)) view.owned = 0; /* a device that failed */
    for (uint64_t i = 0; i < view.owned && i < VALUES_MAX; i++) {
        end->master[i] = value_at(view.master, session->wide_type, i);
        end->m[i] = view.m ? value_at(view.m, session->wide_type, i) : 0;
    }
    end->digest = play_digest(&view, view.owned > 0);
    session_close(session);
    return NULL;
}

static inline struct scenario play_defaults(const struct scenario *given)
{
    struct scenario scenario = *given;
    if (!scenario.type) scenario.type = GACC__V1__MODEL_TYPE__MODEL_TAPE;
    if (!scenario.size) scenario.size = 1;
    if (!scenario.ranks) scenario.ranks = 1;
    if (!scenario.global) scenario.global = 1;
    if (!scenario.micro) scenario.micro = 1;
    if (!(scenario.scale > 0)) scenario.scale = 1;
    if (!(scenario.growth > 0)) scenario.growth = 1;
    if (!(scenario.lr > 0)) scenario.lr = 1;
    if (!scenario.epochs) scenario.epochs = 1;
    return scenario;
}

/* Runs the scenario to its end. The result is freed with free(). */
static inline struct play *play_run(const struct scenario *given)
{
    struct play *play = calloc(1, sizeof *play);
    struct scenario scenario = play_defaults(given);
    play->scenario = &scenario;
    play->scale = scenario.scale;
    play_fill_job(play);
    if (scenario.adjust) scenario.adjust(play);
    if (scenario.export) snprintf(play->export, sizeof play->export, "%s/%s", scratch, scenario.export);
    comm_threads_open(play->group, scenario.ranks);
    for (uint32_t rank = 0; rank < scenario.ranks && scenario.bucket_limit; rank++)
        play->group[rank]->bucket_limit = scenario.bucket_limit;
    pthread_mutex_init(&play->lock, NULL);
    pthread_cond_init(&play->changed, NULL);
    void *arguments[THREADS_MAX];
    for (uint32_t rank = 0; rank < scenario.ranks; rank++) {
        play->actors[rank] = (struct actor){
            .control = {.hello = play_hello, .report = play_report, .step_done = play_step_done, .state = play_state},
            .play = play,
            .rank = rank,
        };
        arguments[rank] = &play->actors[rank];
    }
    run_ranks(scenario.ranks, play_rank, arguments);
    comm_threads_close(play->group, scenario.ranks);
    pthread_mutex_destroy(&play->lock);
    pthread_cond_destroy(&play->changed);
    free(play->train);
    free(play->validation);
    play->scenario = NULL;
    return play;
}

/* As play_run; fails the test when a rank did not end in order. */
static inline struct play *play_well(const struct scenario *scenario)
{
    struct play *play = play_run(scenario);
    uint32_t ranks = scenario->ranks ? scenario->ranks : 1;
    for (uint32_t rank = 0; rank < ranks; rank++)
        if (play->ends[rank].result || play->ends[rank].export_result)
            fail_msg("rank %u: %s", rank, play->ends[rank].error.text);
    return play;
}

static inline double last_parameter(const struct play *play, uint32_t rank, uint64_t index)
{
    return play->attempts[play->count].ranks[rank].parameters[index];
}

static inline void assert_near(double found, double wanted, double tolerance)
{
    if (!(fabs(found - wanted) <= tolerance)) fail_msg("%.9g, not %.9g ± %g", found, wanted, tolerance);
}

#endif
