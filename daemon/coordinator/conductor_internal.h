/* What the parts of the conductor share: conductor.c listens, conductor_requests.c takes what signals and
 * operators ask for, conductor_decide.c decides, conductor_records.c and conductor_status.c tell,
 * conductor_standstill.c looks for ranks that wait for each other. */
#ifndef GACC_CONDUCTOR_INTERNAL_H
#define GACC_CONDUCTOR_INTERNAL_H

#include <limits.h>

#include "daemon/checkpoint/store.h"
#include "daemon/coordinator/conductor.h"
#include "daemon/coordinator/job_rules.h"
#include "daemon/core/requests.h"
#include "daemon/core/saving.h"
#include "daemon/core/warnings.h"
#include "daemon/job/live.h"

enum phase {
    PHASE_HELLOS,    /* awaiting a hello from every rank */
    PHASE_WELCOME,   /* all are in */
    PHASE_REPORTS,   /* awaiting reports of `step` */
    PHASE_DECISION,  /* all are in */
    PHASE_FINISHING, /* the last decision is out; awaiting step_done and finished */
    PHASE_OVER,      /* all have finished */
    PHASE_BROKEN,    /* the job cannot go on in order: nothing is awaited any more */
};

struct rank {
    Gacc__V1__Hello *hello; /* own copy */
    bool reported, stepped, finished, lost;
    double weight, next_weight; /* announced for the window under way, and for the one after it */
    uint32_t micro_batches, next_micro_batches;
    uint64_t parameters_checksum; /* in the last report; 0: not taken */
    bool evaluated;
    long double evaluation_loss_sum;
    double evaluation_weight, evaluation_seconds;
    uint64_t evaluation_sequences;
    double heard; /* when */
    Gacc__V1__State state;
    uint64_t state_step;
    uint32_t state_micro_batch;
    double state_since;  /* when it told so */
    double step_seconds; /* its own work in its last attempt */
};

#define LAST_STEPS 120                    /* that GetStatus tells of */
#define REQUESTS_SHOWN (SETTINGS_MAX + 4) /* by GetStatus, at most */

/* One step with its evaluation, all warnings, and two events of its own. */
#define RECORDS_MOST (2 + WARNINGS + 2)

/* The attempt whose decision is out and whose step_done are awaited. */
struct attempt {
    bool pending;
    uint32_t awaited;
    struct step_record record;
    uint32_t *accumulate;   /* [ranks] */
    Gacc__V1__Blame *blame; /* own copy, of the lowest rank that found something */
    uint32_t blame_rank;
    uint32_t warnings;    /* bits */
    bool nonfinite;       /* some rank's shard, or the sum over ranks, was not finite … */
    bool norm_overflowed; /* … or all are, and their norm is too large */
    bool evaluates;
    bool single_value; /* a set of BatchNorm's had one value a channel */
};

/* The job with other values. */
struct edition {
    Gacc__V1__JobSpec *job;       /* own */
    struct job_rules rules;       /* complete */
    float scale;                  /* S is set to; 0: it is not */
    struct job_settings settings; /* own: all that were ever set */
    protobuf_c_boolean *frozen;   /* own: of its groups, as the window has them */
    size_t frozen_count;
};

struct conductor {
    const Gacc__V1__JobSpec *job; /* as it is now: borrowed, or `edited` */
    struct job_rules rules;
    struct edition edited, pending; /* what was set and is in effect, and what will be; job NULL: nothing */
    uint32_t ranks;
    struct rank *rank;           /* [ranks] */
    struct rank_report *reports; /* [ranks] */

    enum phase phase;
    bool applied;     /* so was the last attempt */
    uint32_t awaited; /* messages of this phase */
    bool failed;
    struct error failure;
    bool failed_by_numerics;    /* blame of the last attempt may still complete the text … */
    size_t failure_length;      /* … from here on */
    struct error first_failure; /* reported by the lowest failing rank of the step */
    uint32_t first_failure_rank;

    /* The most that a rank has reported for the step. */
    uint32_t reduce_scatters;
    uint64_t reduce_scatter_bytes;

    uint64_t start; /* the step that this start goes on from; 0: none */
    uint64_t step;  /* whose reports are awaited; start: before the first */
    struct plan_position position;
    struct plan current, upcoming; /* of step, of step + 1 */
    bool has_upcoming;
    Gacc__V1__Window window; /* of step … */
    uint32_t retries;        /* … and how often it was run again */
    struct loss_scale scale;
    uint32_t nonfinite_in_a_row;
    double epoch_weight; /* of the current epoch so far */
    struct warnings warnings;

    struct saving saving;
    struct requests requests;
    bool is_saving;           /* a checkpoint is under way */
    bool opens_checkpoint;    /* the last decision began it */
    bool has_unsaved;         /* settings that the last checkpoint does not have */
    uint64_t saved_step;      /* behind which the last complete checkpoint of this start was made; 0: none */
    char asked_by[128];       /* "rank 1: interrupted by SIGTERM": who asked to stop */
    bool stopped;             /* the decision that stops the job is out … */
    bool stop_saved;          /* … and its checkpoint is complete */
    struct progress progress; /* of the last checkpoint that was asked for … */
    char save_name[STORE_NAME_MAX + 1], save_directory[PATH_MAX]; /* … its name and where it goes */
    Gacc__V1__Save save;

    uint64_t sequences_seen;
    uint64_t resumed_sequences; /* of the training data when the checkpoint was made; 0: none */
    struct step_counters counters;
    bool has_loss, has_validation;
    double loss, validation_loss;
    uint64_t validation_optimizer_steps;
    uint64_t evaluated_at; /* optimizer_steps; UINT64_MAX: not yet */
    double opened_at, decided_at;
    double moved;                           /* when a rank last said anything new */
    double attempt_seconds, attempt_tokens; /* smoothed, for the estimates of GetStatus */
    Gacc__V1__LastStep last[LAST_STEPS];    /* a ring of the last attempts … */
    uint64_t last_count;                    /* … of which there were so many */
    bool told_single_value;
    char culprit[512]; /* the last one named; empty: none yet */

    struct attempt attempt;
    struct record records[RECORDS_MOST];
    uint32_t record_count, record_next;
    char event_text[640];

    /* The messages given out. */
    Gacc__V1__Welcome welcome;
    Gacc__V1__Plan plan;
    uint32_t *shares; /* [ranks] */
    Gacc__V1__Decision decision;
    Gacc__V1__Farewell farewell;
    bool has_speaker; /* a farewell is out, or rank 0 has spoken */
    uint32_t speaker; /* the rank that prints why the job failed */
    Gacc__V1__Failure failure_message;
    Gacc__V1__Status status;
    Gacc__V1__LastStep *last_list[LAST_STEPS];
    char *request_list[REQUESTS_SHOWN];
    char setting_names[SETTINGS_MAX][80]; /* "set optimizer.lr", of those that are pending */
    size_t setting_count;
    Gacc__V1__RankStatus *rank_statuses;     /* [ranks] */
    Gacc__V1__RankStatus **rank_status_list; /* [ranks] */
    uint32_t *full_accumulate;               /* [ranks]: K in a full step */
};

#define CONDUCTOR_NORM_OVERFLOW "every element of the gradient is finite, but " /* … the rules' norm.words */

/* The first failure is the job's. */
void conductor_set_failure(struct conductor *conductor, const struct error *error);
/* The job ends here and now: no answer in turn is possible any more. The negated status of its failure, with the text
 * in *error (may be NULL). */
int conductor_break(struct conductor *conductor, const struct error *why, struct error *error);
/* The checkpoint of the boundary that is decided, for the ranks; NULL: they have nothing to write. */
Gacc__V1__Save *conductor_open_save(struct conductor *conductor, const struct boundary *boundary);
/* Something was set: no checkpoint has it yet. */
void conductor_note_unsaved(struct conductor *conductor);
/* Ends the text of a failure by numerics with the culprit, if one is known. */
void conductor_name_culprit(struct conductor *conductor);
/* What was set comes into effect, before the next window opens. */
void conductor_take_settings(struct conductor *conductor);
/* In the groups of rank 0's hello, for the record of the step whose window has been run: what was frozen in it. */
void conductor_note_frozen(struct conductor *conductor);
/* Where the job is paused and all reports are in: the next step's plan by a B that was set meanwhile. */
void conductor_replan(struct conductor *conductor);
void conductor_free_settings(struct conductor *conductor);
/* As the messages have it. */
Gacc__V1__Verdict conductor_verdict(enum verdict_kind kind);
/* For GetStatus. */
void conductor_keep_last(struct conductor *conductor, const struct step_record *record);
/* Turns the attempt whose step_done are in (or will not come) into records. */
void conductor_complete_attempt(struct conductor *conductor);

/* The model, where it has BatchNorm; NULL: it has none. */
static inline const Gacc__V1__ModelSection *conductor_batch_norm(const struct conductor *c)
{
    const Gacc__V1__ModelSection *model = c->job->model;
    return model && model->norm == GACC__V1__NORM__NORM_BATCH ? model : NULL;
}

#endif
