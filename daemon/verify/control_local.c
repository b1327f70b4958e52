#include "daemon/verify/control_local.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "daemon/core/schedule.h"
#include "proto/message.h"
#include "worker/comm_roll.h"

#define LETTER_MAX 8192 /* texts in messages are bounded by struct error, names by their tables */
#define NOW 0.0         /* a trial knows no time */

enum word { WORD_OUTCOME, WORD_HELLO, WORD_REPORT, WORD_STEP_DONE };

static const char *const words[] = {"the end of its part", "a hello", "a report", "the end of a step"};

/* What one rank broadcasts at a time. An outcome with a status carries the text of an error, without one nothing. */
struct letter {
    uint32_t word, status, size;
    bool follows; /* the error is that another rank went astray */
    uint8_t bytes[LETTER_MAX];
};

typedef int (*taker)(struct control_local *, uint32_t rank, const struct letter *, struct error *);

static struct control_local *local_of(struct control *control)
{
    return (struct control_local *)control;
}

/* --- exchanging ---------------------------------------------------------------------------------------------- */

static void write_outcome(struct letter *letter, int status, const char *text)
{
    letter->word = WORD_OUTCOME;
    letter->status = (uint32_t)status;
    letter->size = (uint32_t)strlen(text) + 1;
    memcpy(letter->bytes, text, letter->size);
}

static void write_message(struct letter *letter, enum word word, const ProtobufCMessage *message)
{
    size_t size = protobuf_c_message_get_packed_size(message);
    if (size > sizeof letter->bytes) {
        write_outcome(letter, STATUS_INTERNAL, "a message is too long to be sent");
        return;
    }
    letter->word = word;
    letter->status = 0;
    letter->size = (uint32_t)size;
    protobuf_c_message_pack(message, letter->bytes);
}

/* What all letters of an exchange say together of how things stand. */
struct standing {
    uint32_t failed, others; /* outcomes with a status; letters of another kind than one's own */
    bool follows;            /* all of the former are about a rank that went astray, and has not failed itself */
    uint32_t failed_rank;
    struct error failure; /* of the lowest failing rank */
};

static void note_standing(struct standing *standing, const struct letter *own, uint32_t rank,
                          const struct letter *letter)
{
    standing->others += letter->word != own->word;
    if (letter->word != WORD_OUTCOME || letter->status == 0) return;
    if (standing->failed > 0 && letter->follows && !standing->follows) return;
    if (standing->failed > 0 && standing->follows && !letter->follows) standing->failed = 0; /* that is why */
    if (standing->failed++ > 0) return;
    standing->follows = letter->follows;
    standing->failed_rank = rank;
    error_set(&standing->failure, (enum status)letter->status, "%s", (const char *)letter->bytes);
}

static int judge_standing(struct control_local *local, const struct standing *standing, const struct letter *own,
                          struct error *error)
{
    if (standing->others > 0) local->broken = true;
    if (standing->failed > 0) {
        *error = standing->failure;
        bool alike = standing->failed == local->comm->ranks;
        return alike ? -(int)error->status : error_prefix(error, "rank %" PRIu32, standing->failed_rank);
    }
    if (standing->others == 0) return 0;
    return error_set(error, STATUS_INTERNAL, "rank %" PRIu32 ": comes with %s, others with something else",
                     local->comm->rank, words[own->word]);
}

/* All ranks' letters in rank order, each given to `take` (may be NULL). All ranks go through all letters, whatever they
 * hold, so that a rank that has failed is heard and nobody waits for it. */
static int exchange(struct control_local *local, const struct letter *own, taker take, struct error *error)
{
    struct standing standing = {0};
    struct letter letter;
    int result = 0;
    for (uint32_t root = 0; root < local->comm->ranks; root++) {
        if (root == local->comm->rank) letter = *own;
        int lost = comm_broadcast(local->comm, &letter, sizeof letter, root, error);
        if (lost) {
            local->broken = !comm_is_astray(local->comm);
            return lost;
        }
        note_standing(&standing, own, root, &letter);
        if (take && result >= 0 && standing.failed == 0 && standing.others == 0)
            result = take(local, root, &letter, error);
    }
    int failed = judge_standing(local, &standing, own, error);
    return failed ? failed : result;
}

int control_local_agree(struct control_local *local, int result, const struct error *why, struct error *error)
{
    if (local->broken) { /* the exchange that broke told everyone why */
        if (result) *error = *why;
        return result;
    }
    struct letter letter = {.follows = comm_is_astray(local->comm)};
    write_outcome(&letter, result ? (int)why->status : 0, result ? why->text : "");
    int agreed;
    do agreed = exchange(local, &letter, NULL, error);
    while (agreed && comm_is_astray(local->comm)); /* they hear of it where they are, and come here */
    return agreed;
}

/* A message out of its letter, freed with protobuf_c_message_free_unpacked. */
static ProtobufCMessage *unpack(const ProtobufCMessageDescriptor *type, const struct letter *letter,
                                struct error *error)
{
    ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, letter->size, letter->bytes);
    if (!message) error_set(error, STATUS_INTERNAL, "out of memory for a message");
    return message;
}

/* What the conductor gives out is its own; the session wants one to free. */
static void *copy_of(const ProtobufCMessage *message, struct error *error)
{
    void *copy = message_copy(message);
    if (!copy) error_set(error, STATUS_INTERNAL, "out of memory for a message");
    return copy;
}

/* --- hello --------------------------------------------------------------------------------------------------- */

static int take_hello(struct control_local *local, uint32_t rank, const struct letter *letter, struct error *error)
{
    ProtobufCMessage *message = unpack(&gacc__v1__hello__descriptor, letter, error);
    if (!message) return -(int)STATUS_INTERNAL;
    int result = conductor_hello(local->conductor, rank, (Gacc__V1__Hello *)message, NOW, error);
    protobuf_c_message_free_unpacked(message, NULL);
    return result;
}

static int say_hello(struct control *control, const Gacc__V1__Hello *hello, Gacc__V1__Welcome **welcome,
                     struct error *error)
{
    struct control_local *local = local_of(control);
    struct letter letter;
    write_message(&letter, WORD_HELLO, &hello->base);
    int result = exchange(local, &letter, take_hello, error);
    if (result < 0) return result;
    result = job_rules_add_data(&local->rules, local->job, hello->train_sequences, hello->validation_sequences,
                                hello->targets_per_sequence, error);
    if (result) return result;
    *welcome = copy_of(&conductor_welcome(local->conductor, NOW)->base, error);
    return *welcome ? 0 : -(int)STATUS_INTERNAL;
}

/* --- what a decider may get wrong ---------------------------------------------------------------------------- */

/* Of the step that was decided. */
static void distort_verdict(struct control_local *local, Gacc__V1__Decision *decision)
{
    struct trial_step *step = &local->steps[decision->step - 1];
    bool applied = decision->verdict == GACC__V1__VERDICT__VERDICT_APPLY;
    double limit = local->rules.clip_norm;
    if (local->fault == DECISION_CLIPS_SCALED && applied && limit > 0)
        decision->clip_coefficient = fmin(1, limit / (sqrt(local->sum_squares_scaled) + CLIP_EPSILON));
    step->clip_coefficient = applied ? decision->clip_coefficient : (double)NAN;
    /* S after the update in the place of the window's: all that is divided by S is the update. */
    if (local->fault == DECISION_NEW_SCALE && applied && decision->next)
        decision->clip_coefficient *= step->loss_scale / decision->next->scale;
}

/* Of the window that opens. */
static void distort_window(struct control_local *local, Gacc__V1__Window *window, bool after_skip)
{
    double weight = window->weight;
    uint32_t micro_batches = window->micro_batches;
    if (local->fault == DECISION_STALE_WEIGHT && window->step > 1) {
        window->weight = local->weight;
        window->micro_batches = local->micro_batches;
    }
    local->weight = weight;
    local->micro_batches = micro_batches;
    if (after_skip && window->scale < local->scale)
        local->backed_off *= pow(local->rules.scale.backoff, local->comm->ranks - 1.0);
    local->scale = window->scale;
    if (local->fault == DECISION_BACKS_OFF_PER_RANK) window->scale *= local->backed_off;
    local->skips += after_skip;
    if (local->fault == DECISION_SCHEDULE_ON_SKIP)
        window->lr = schedule_lr(&local->rules.schedule, window->optimizer_steps + local->skips);
}

/* --- report → decision --------------------------------------------------------------------------------------- */

static int take_report(struct control_local *local, uint32_t rank, const struct letter *letter, struct error *error)
{
    ProtobufCMessage *message = unpack(&gacc__v1__report__descriptor, letter, error);
    if (!message) return -(int)STATUS_INTERNAL;
    const Gacc__V1__Report *report = (Gacc__V1__Report *)message;
    local->sum_squares_scaled += report->sum_squares_scaled;
    int result = conductor_report(local->conductor, rank, report, NOW, error);
    protobuf_c_message_free_unpacked(message, NULL);
    return result;
}

/* The last attempt has no next one, whatever the job would go on with. */
static void end_in_time(const struct control_local *local, Gacc__V1__Decision *decision)
{
    const bool again = decision->verdict == GACC__V1__VERDICT__VERDICT_RETRY;
    if (decision->step < local->attempts || !decision->next || again) return;
    gacc__v1__window__free_unpacked(decision->next, NULL);
    decision->next = NULL;
}

static int send_report(struct control *control, const Gacc__V1__Report *report, Gacc__V1__Decision **out,
                       struct error *error)
{
    struct control_local *local = local_of(control);
    struct letter letter;
    write_message(&letter, WORD_REPORT, &report->base);
    local->sum_squares_scaled = 0;
    int result = exchange(local, &letter, take_report, error);
    if (result < 0) return result;
    Gacc__V1__Decision *decision = copy_of(&conductor_decide(local->conductor, NOW)->base, error);
    if (!decision) return -(int)STATUS_INTERNAL;
    if (decision->step > 0) distort_verdict(local, decision);
    if (decision->next) distort_window(local, decision->next, decision->verdict == GACC__V1__VERDICT__VERDICT_SKIP);
    end_in_time(local, decision);
    if (decision->next) {
        struct trial_step *next = &local->steps[decision->next->step - 1];
        next->lr = decision->next->lr;
        next->loss_scale = decision->next->scale;
    }
    *out = decision;
    return 0;
}

/* --- the end of a step --------------------------------------------------------------------------------------- */

/* lr, loss_scale and clip_coefficient are there, as they were sent. */
static void keep_record(struct control_local *local, const struct step_record *record)
{
    struct trial_step *step = &local->steps[record->counters.step - 1];
    bool backed_off = local->fault == DECISION_BACKS_OFF_PER_RANK;
    uint64_t moved_by_skips = local->fault == DECISION_SCHEDULE_ON_SKIP ? record->counters.skipped_steps : 0;
    step->verdict = record->verdict;
    step->retries = record->retries;
    step->loss = record->loss;
    step->weight = record->weight;
    step->loss_scale_next = record->has_scaler ? record->loss_scale_next * (backed_off ? local->backed_off : 1) : 1;
    step->growth_tracker = record->growth_tracker;
    step->grad_norm_scaled = record->grad_norm_scaled;
    step->grad_norm = record->grad_norm;
    step->grad_norm_clipped = record->grad_norm * step->clip_coefficient;
    step->optimizer_steps = record->counters.optimizer_steps;
    step->skipped_steps = record->counters.skipped_steps;
    step->scheduler_steps = record->counters.scheduler_steps + moved_by_skips;
    step->reduce_scatters = record->reduce_scatters;
    step->all_gathers = record->all_gathers;
    step->control_collectives = record->control_collectives;
    step->reduce_scatter_bytes = record->reduce_scatter_bytes;
    step->all_gather_bytes = record->all_gather_bytes;
    local->step_count = record->counters.step;
}

static int take_step_done(struct control_local *local, uint32_t rank, const struct letter *letter, struct error *error)
{
    ProtobufCMessage *message = unpack(&gacc__v1__step_done__descriptor, letter, error);
    if (!message) return -(int)STATUS_INTERNAL;
    int result = conductor_step_done(local->conductor, rank, (Gacc__V1__StepDone *)message, NOW, error);
    struct record record;
    while (result == 1 && conductor_next_record(local->conductor, &record))
        if (record.type == RECORD_STEP) keep_record(local, &record.step);
    protobuf_c_message_free_unpacked(message, NULL);
    return result;
}

/* Without the sequences of its blame: they are as many as a micro-batch has. */
static int end_step(struct control *control, const Gacc__V1__StepDone *done, struct error *error)
{
    Gacc__V1__StepDone message = *done;
    Gacc__V1__Blame blame;
    if (done->blame) {
        blame = *done->blame;
        blame.n_sequences = 0;
        message.blame = &blame;
    }
    struct letter letter;
    write_message(&letter, WORD_STEP_DONE, &message.base);
    int result = exchange(local_of(control), &letter, take_step_done, error);
    return result < 0 ? result : 0;
}

static void no_state(struct control *control, uint64_t step, Gacc__V1__State state, uint32_t micro_batch)
{
    (void)control, (void)step, (void)state, (void)micro_batch;
}

/* A trial's job has no checkpoints. */
static int no_checkpoint(struct control *control, const Gacc__V1__Saved *saved, struct error *error)
{
    (void)control, (void)saved;
    return error_set(error, STATUS_INTERNAL, "a checkpoint in a trial");
}

/* There is no job to take leave of: a session's part ends with control_local_agree. */
static int take_leave(struct control *control, const Gacc__V1__Finished *finished, Gacc__V1__Farewell **farewell,
                      struct error *error)
{
    (void)control, (void)finished;
    static const Gacc__V1__Farewell nothing = GACC__V1__FAREWELL__INIT;
    *farewell = copy_of(&nothing.base, error);
    return *farewell ? 0 : -(int)STATUS_INTERNAL;
}

/* --- opening ------------------------------------------------------------------------------------------------- */

int control_local_open(struct control_local *local, const struct trial_spec *spec, const Gacc__V1__JobSpec *job,
                       struct comm *comm, struct trial_step *steps, struct error *error)
{
    *local = (struct control_local){
        .control = {.hello = say_hello,
                    .report = send_report,
                    .step_done = end_step,
                    .state = no_state,
                    .saved = no_checkpoint,
                    .finished = take_leave},
        .comm = comm,
        .job = job,
        .attempts = spec->steps,
        .steps = steps,
        .fault = spec->decision_fault,
        .backed_off = 1,
    };
    int result = job_rules_from_job(&local->rules, job, comm->ranks, error);
    return result ? result : conductor_open(&local->conductor, job, comm->ranks, NOW, error);
}

void control_local_close(struct control_local *local)
{
    conductor_close(local->conductor);
    local->conductor = NULL;
}
