/*
 * What a session is made of, for the files that are the session: session.c (open, run, close), session_memory.c,
 * window.c (micro-batches and their loss seeds), step.c (one optimizer step), look.c (its buffers as the host reads
 * them), blame.c, evaluate.c, export.c, self_check.c, checkpoint.c, restore.c (its part of a checkpoint).
 */
#ifndef GACC_SESSION_INTERNAL_H
#define GACC_SESSION_INTERNAL_H

#include "kernels/kernels.h"
#include "worker/checkpoint.h"
#include "worker/comm.h"
#include "worker/data/data.h"
#include "worker/layout.h"
#include "worker/model.h"
#include "worker/optimizer.h"
#include "worker/results.h"
#include "worker/session.h"
#include "worker/statistics.h"
#include "worker/step_state.h"

#define INITIAL_BLOCK (1u << 18) /* elements initialised at a time: long enough for many threads */

/* The large buffers. */
enum buffer {
    BUFFER_PARAMETERS,
    BUFFER_FROZEN,
    BUFFER_GRADIENTS,
    BUFFER_SHARD,
    BUFFER_MASTER,
    BUFFER_M,
    BUFFER_V,
    BUFFERS
};

/* How far the buckets of the flat buffers are. Reduced from the last to the first, gathered from the first to the last,
 * as backward and forward go over them. */
struct buckets {
    uint32_t reducing; /* those from here on are being reduced in this step, or were */
    uint32_t gathered; /* the gathers of those before are joined */
    struct error failure;
};

struct session {
    const Gacc__V1__JobSpec *job; /* borrowed, as control is, or `edited` */
    Gacc__V1__JobSpec *edited;    /* own: the job with groups as they were set; NULL: none was */
    struct comm *host;            /* borrowed: of the host's memory */
    struct comm *comm;            /* of the kernels' memory; `host` where that is the same, else our own */
    struct control *control;
    struct session_options options;

    struct model *model;
    struct data *train, *validation; /* validation: NULL without one */
    struct kernels *kernels;
    enum dtype compute_type, wide_type;

    struct layout layout;
    struct shard_map map;
    struct run *runs; /* of the own shard */
    size_t run_count;
    struct piece *pieces; /* of the own master parameters */
    size_t piece_count;
    uint64_t owned; /* elements of the own shard */
    uint64_t kept;  /* the same and those of the own part of the frozen index */

    /* in the kernels' memory */
    compute *parameters; /* [trained] */
    compute *frozen;     /* [parameters − trained], all of them on every rank: they do not travel */
    wide *gradients;     /* [trained] accumulated over the window; zero outside it */
    wide *shard;         /* [owned] gradient as reduced over ranks, still scaled */
    wide *master;        /* [kept] */
    void *shard_memory;  /* of both */
    struct optimizer optimizer;
    void *feed; /* the batch's block, or what it is uploaded to */
    struct activations *activations;
    struct statistics *statistics; /* NULL: the model has no sets */
    struct window_memory *window;  /* NULL: the window is not run stage by stage */
    struct results results;

    struct micro_batch *batch; /* capacity b */
    void *copies[BUFFERS];     /* look.c; NULL until they are looked at */

    struct buckets buckets;
    struct recording *recording; /* of a whole micro-batch; NULL: none yet */
    const double *recorded_loss; /* where it adds its loss */
    bool unrecordable;           /* the backend could not */
    uint64_t *checksums; /* [2 · (tensors + 1)] before and now, the last one of the master parameters; NULL unless
                            self_check */

    struct checkpoint *checkpoint; /* NULL until the first one is asked for */
    bool stopped;                  /* asked to, behind the last step */

    struct step_state machine;
    struct error failure; /* a local error (status ≠ 0) that the next report carries */
};

/* Micro-batches [first, first + count) of a step. */
struct share {
    uint32_t first, count;
};

/* A step under way. The session's, for the length of step_run. */
struct step {
    const Gacc__V1__Plan *plan, *next_plan; /* next_plan NULL: there will be no such step */
    const Gacc__V1__Window *window;
    struct share share;   /* own micro-batches */
    long double loss_sum; /* known with the check */
    double weight;
    uint32_t micro_batches;      /* own ones that hold weight */
    struct gradient_check check; /* of the own shard */
    Gacc__V1__Seconds seconds;
    double started;               /* seconds_now */
    Gacc__V1__Decision *decision; /* the caller's to free, NULL unless step_run got that far */
    bool applies;                 /* what the verdict means for this rank: it updates its shard … */
    bool gathers;                 /* … and takes part in the all-gather */
};

/* A sum of losses as a message carries it: returned·2^exponent. Its own range is wider than double's. */
double split_loss(long double sum, int32_t *exponent);

/* Element `index` of a buffer. */
static inline void *element(const void *buffer, uint64_t index, enum dtype type)
{
    return (char *)(uintptr_t)buffer + index * dtype_size(type);
}

/* --- session.c ----------------------------------------------------------------------------------------------- */

/* Enters a state and tells the control side. */
int session_enter(struct session *session, Gacc__V1__State state, struct error *error);
/* What the rank goes over, of its shard and of the canonical index: anew, where segments have changed. */
int session_list_parts(struct session *session, struct error *error);
/* Puts the values of [begin, begin + count) of the canonical index, count ≤ session_initial_block, where this rank
 * keeps them. */
int session_put(struct session *session, uint64_t begin, uint64_t count, const double *values, struct error *error);
/* Parameters and own shard, block by block: `read` has the values of a range of the canonical index. */
int session_fill(struct session *session,
                 int (*read)(void *context, uint64_t begin, uint64_t end, double *values, struct error *error),
                 void *context, struct error *error);
/* As when it was opened, for the step that follows so many applied ones: which tensors are trained, what is kept and
 * where. What was kept is gone. */
int session_reopen_layout(struct session *session, uint64_t steps, struct error *error);
/* Parameters and own shard, from a safetensors file or, where that is NULL, as the job begins. */
int session_initialise(struct session *session, const char *file, struct error *error);
/* Elements of it at a time, for which there is room in the backend's memory meanwhile: INITIAL_BLOCK at most. */
uint64_t session_initial_block(const struct session *session);
/* The validation sequences an evaluation goes over. */
uint64_t session_evaluation_sequences(const struct session *session);

/* precision.compute */
enum dtype session_compute_type(const Gacc__V1__JobSpec *job);
/* recompute: block */
bool session_recomputes(const Gacc__V1__JobSpec *job);

/* --- relayout.c ------------------------------------------------------------------------------------------------ */

/* Before the step of a window: other tensors are trained from here on, where the job says so, or the window, because it
 * was set. All ranks together. */
int session_follow_layout(struct session *session, const Gacc__V1__Window *window, struct error *error);

/* --- session_memory.c ---------------------------------------------------------------------------------------- */

/* Everything that is large, once map, layout, kernels and batch are open. */
int session_reserve(struct session *session, struct error *error);
void session_release(struct session *session);
/* Room for a window of so many own micro-batches that is run stage by stage. */
int session_window_room(struct session *session, uint32_t passes, struct error *error);

/* --- overlap.c ----------------------------------------------------------------------------------------------- */

/* Collectives of a step, bucket by bucket, beside the passes where the transport can. */
struct overlap overlap_first(struct session *session); /* for the pass that comes after an update: it joins gathers */
struct overlap overlap_last(struct session *session);  /* for the last of a window: it starts reductions */
/* Starts what is left of the step's reductions, and joins all of them. */
int overlap_reduce(struct session *session, struct error *error);
/* Starts the gathers of the updated parameters; overlap_settle joins them, and so does whoever reads them. */
int overlap_gather(struct session *session, struct error *error);
int overlap_settle(struct session *session, struct error *error);
/* A new step begins. */
void overlap_begin(struct session *session);

/* --- window.c ------------------------------------------------------------------------------------------------ */

/* Refuses (70) a plan that is not for these ranks, this micro-batch size or this data set. */
int window_check_plan(const struct session *session, const Gacc__V1__Plan *plan, struct error *error);
/* This rank's micro-batches of a plan that was checked. */
struct share window_share(const struct session *session, const Gacc__V1__Plan *plan);
/* Reads micro-batch `index` (global) of the plan into the session's batch. */
int window_read(struct session *session, const Gacc__V1__Plan *plan, uint32_t index, struct error *error);
/* The batch's pass over the model: its seeds are formed and it is sent to the kernels; gradients += with the backward.
 */
struct pass window_pass(struct session *session, const struct step *step);
/* The same of a batch for its loss alone. */
struct pass window_pass_forward(struct session *session);
/* Weight and non-empty micro-batches of the own share of a plan, without reading it; zero for NULL. */
void window_share_weight(const struct session *session, const Gacc__V1__Plan *plan, double *weight,
                         uint32_t *micro_batches);
void window_clear_gradients(struct session *session);

/* --- running.c ------------------------------------------------------------------------------------------------ */

/* The statistics of a model that has sets, and who is asked for theirs. */
int running_open(struct session *session, struct error *error);
/* The passes of training, of an evaluation, or of one micro-batch by itself. */
void running_in_training(const struct session *session, struct pass *pass);
void running_in_evaluation(const struct session *session, struct pass *pass);
/* The first error that sets met with since the step began. */
int running_check(const struct session *session, struct error *error);
/* Values of a range of the canonical index, as they are kept: those that are running statistics. */
void running_put(struct session *session, uint64_t begin, uint64_t count, const double *values);
/* The step was applied: they advance, on all ranks. */
int running_advance(struct session *session, struct error *error);
/* Micro-batches go through the model together, stage by stage. */
bool running_needs_window(const struct session *session);
/* This rank has no micro-batch while others may have one, of which sets are taken together. */
void running_stand_by(struct session *session);

/* --- step.c -------------------------------------------------------------------------------------------------- */

/* One optimizer step, EnterStep to ExitStep and evaluation. step holds plans and window; the decision that ended it is
 * left in step->decision. A FAIL decision is an error of its status. */
int step_run(struct session *session, struct step *step, struct error *error);

/* --- faults.c ------------------------------------------------------------------------------------------------- */

/* Each changes nothing unless its fault is planted, and is called from one place. */
int fault_in_data(const struct session *session, const Gacc__V1__Plan *plan, uint64_t sequence, struct error *error);
void fault_in_batch(struct session *session);
/* What the loss of the batch is divided by, and multiplied by. */
long double fault_in_divisor(const struct session *session, const struct step *step, long double divisor);
void fault_in_penalty(struct session *session, const struct step *step);
double fault_in_scale(const struct session *session, const struct step *step);
void fault_in_recomputation(const struct session *session, struct pass *pass);
bool fault_loses_backward(const struct session *session, const struct step *step);
int fault_in_accumulator(struct session *session, struct error *error);
int fault_after_micro_batch(struct session *session, const struct step *step, uint32_t k, struct error *error);
int fault_after_window(struct session *session, const struct step *step, struct error *error);
bool fault_misses_reduction(const struct session *session, const struct step *step);
int fault_in_memory(const struct session *session, const struct step *step, struct error *error);
void fault_in_verdict(const struct session *session, struct step *step);
void fault_in_update(const struct session *session, const struct step *step, struct optimizer_step *update);
bool fault_keeps_gradients(const struct session *session);

/* --- look.c -------------------------------------------------------------------------------------------------- */

/* A buffer for the host to read: itself where its memory is the host's, else a copy made now, which is good until the
 * next call. *out is NULL for moments that the optimizer does not have, and for frozen parameters where none are. */
int session_read(struct session *session, enum buffer which, const void **out, struct error *error);

/* --- blame.c, evaluate.c, self_check.c ----------------------------------------------------------------------- */

/* Where this rank's own part of a non-finite gradient came from, worked out from the still uncleared gradient and by
 * running its micro-batches again, one by one. Overwrites the gradients. NULL: this rank's own gradient is finite, or
 * memory is short. Freed with blame_free. */
Gacc__V1__Blame *blame_find(struct session *session, const struct step *step);
void blame_free(Gacc__V1__Blame *blame);

/* This rank's block of the validation set, forward only. False when there is none or when reading failed (then the
 * session's failure is set). */
bool evaluate(struct session *session, Gacc__V1__Evaluation *result);

/* Whether this job checks itself at all, and in the attempt under way. */
bool self_check_wanted(const struct session *session);
bool self_check_due(const struct session *session);
/* Parameters as they are now, and whether they still are: the second names the first tensor that changed. */
int self_check_remember(struct session *session, struct error *error);
int self_check_compare(struct session *session, struct error *error);
/* One number, not 0, for what was remembered: the same on all ranks that hold the same parameters. */
uint64_t self_check_parameters(const struct session *session);

#endif
