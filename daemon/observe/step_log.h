/*
 * log.jsonl: what a run leaves behind, one strict JSON object a line. The records are plain structs; functions turn
 * each into its line, and an append-only writer puts lines into the file. Non-finite numbers become null, with a count
 * beside them; doubles are written in the fewest digits that read back as the same bits, so two logs of the same run
 * are equal but for `seconds`.
 */
#ifndef GACC_STEP_LOG_H
#define GACC_STEP_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/core/verdict.h"
#include "daemon/job/live.h"
#include "proto/error.h"
#include "proto/gacc/v1/workers.pb-c.h"

/* After every attempt, and again at the end. */
struct step_counters {
    uint64_t step; /* attempts */
    uint64_t optimizer_steps, skipped_steps, empty_steps, scheduler_steps;
    uint64_t tokens_seen; /* targets of consumed data, masked ones included */
};

/* Once per start. Pointers are borrowed. */
struct header_record {
    const char *job;
    const uint8_t *job_digest;
    size_t job_digest_length;
    uint32_t effective_batch, micro_batch, ranks; /* B, b, N */
    const uint32_t *accumulate;                   /* [ranks]: K of each rank in a full step */
    uint64_t tokens_per_step;                     /* of a full step */
    uint64_t total_steps;                         /* applied optimizer steps */
    uint64_t train_sequences, validation_sequences, parameters, trained;
    Gacc__V1__TensorGroup *const *groups; /* [group_count] */
    size_t group_count;
    const Gacc__V1__ModelSection *batch_norm; /* the model, where it has BatchNorm; NULL: it has none */
    double lr;                                /* the optimizer's, which those of groups are multiples of */
    const char *device;
    const Gacc__V1__Memory *memory; /* of rank 0, which has the most; NULL: not known */
    char *const *versions;          /* "name version" */
    size_t version_count;
    char *const *notices; /* of rank 0: events behind the header */
    size_t notice_count;
    const char *resumed_from;            /* the checkpoint's directory; NULL: a fresh start */
    const struct step_counters *resumed; /* its counters; NULL as well */
    const struct header_change *changes; /* of the job, against that of the checkpoint */
    size_t change_count;
    const struct job_settings *settings; /* that were set while the job ran, and hold; NULL: none */
};

struct header_change {
    const char *key, *was, *now; /* as the job file has them; NULL: not there */
    bool kept;                   /* what was there holds: --set did not say otherwise */
};

/* Per attempt. Pointers are borrowed. */
struct step_record {
    struct step_counters counters;
    enum verdict_kind verdict;
    const char *reason;           /* NULL, or why the attempt was not applied */
    uint32_t retries;             /* how often its window was run again before */
    const Gacc__V1__Blame *blame; /* NULL, or what the first rank with a culprit found */
    uint32_t blame_rank;
    bool has_loss; /* an empty attempt has none, nor has one in which a rank failed */
    double loss, weight;
    uint32_t micro_batches; /* those that are not empty */
    uint64_t tokens;
    double lr;
    Gacc__V1__TensorGroup *const *groups; /* [group_count], as in the header; each has its lr where they are several */
    size_t group_count;
    bool has_scaler;
    double loss_scale, loss_scale_next;
    uint32_t growth_tracker;
    double grad_norm_scaled, grad_norm, grad_norm_clipped, clip_coefficient; /* null unless applied */
    uint32_t reduce_scatters, all_gathers, control_collectives;              /* calls of a rank */
    uint64_t reduce_scatter_bytes, all_gather_bytes;                         /* the most that a rank sent */
    bool has_statistics; /* the job has BatchNorm: collectives of its statistics, and their bytes */
    uint32_t statistics_collectives;
    uint64_t statistics_bytes;
    const uint32_t *accumulate; /* [ranks] */
    uint32_t ranks;
    struct {
        double step, data, compute, reduce, decision, update, gather; /* of the slowest rank, each on its own */
        double since_last_step; /* from the decision before this one, or from the welcome, to this one */
    } seconds;
};

struct eval_record {
    uint64_t step, optimizer_steps;
    double loss, weight;
    uint64_t sequences;
    double seconds;
};

/* A checkpoint that is complete. */
struct checkpoint_record {
    uint64_t step, optimizer_steps;
    const char *name; /* of its directory */
    uint64_t bytes;   /* in all files but the manifest */
    struct {
        double copy, write, commit; /* in which training stood still, of the slowest rank; then beside it */
    } seconds;
};

struct event_record {
    uint64_t step;
    const char *event; /* a name for programs: skip_rate, scale_at_minimum, … */
    const char *text;  /* a sentence for people */
};

struct control_change {
    const char *key, *was, *now; /* as the job file has them; NULL: not there */
};

/* A call that changes something, or was refused to. */
struct control_record {
    const char *method;             /* "Stop"; NULL: it did not come to a call */
    const char *by, *role;          /* caller.h; role NULL: none was shown */
    double at;                      /* unix seconds */
    uint64_t step, optimizer_steps; /* the boundary at which it took effect; refused: the last one before */
    const char *refusal;            /* NULL: accepted */
    const struct control_change *changes;
    size_t change_count;
    uint32_t count; /* refusals that this one stands for, with those of the second before; 0: it is no such line */
};

/* The last line of the log, and result.json. */
struct end_record {
    int exit;           /* 0 or an exit status of proto/error.h */
    const char *reason; /* NULL when exit is 0 */
    struct step_counters counters;
    uint64_t total_steps;
    bool has_loss;
    double loss; /* of the last step that had one */
    bool has_validation;
    double validation_loss;
    double seconds;         /* from the start of the coordinator */
    const char *checkpoint; /* the newest that is complete; NULL: none */
};

/* One line without its newline; free() it. NULL when memory is short. */
char *header_line(const struct header_record *record);
char *step_line(const struct step_record *record);
char *eval_line(const struct eval_record *record);
char *checkpoint_line(const struct checkpoint_record *record);
char *control_line(const struct control_record *record);
char *event_line(const struct event_record *record);
char *end_line(const struct end_record *record);
/* The same facts as end_line, as the contents of result.json. */
char *result_text(const struct end_record *record);

#define STEP_LOG_WAITING_MAX (16u << 20) /* bytes of lines, behind which one more may stand */

struct step_log {
    int fd;
    char path[4096];
    char *waiting; /* whole lines that are not in the file yet, the oldest first */
    size_t waiting_bytes, waiting_capacity;
    bool lost; /* a line for which there was no memory, or with too much waiting before it */
};

/* Opens PATH for appending, made if need be. A last line cut short by a crash is removed, so that every line stays an
 * object. */
int step_log_open(struct step_log *log, const char *path, struct error *error);
/* Puts the line (NULL: memory was short for it) behind those that wait, and writes them as step_log_catch_up does. */
int step_log_append(struct step_log *log, const char *line, struct error *error);
/* Writes what waits, as far as there is room for whole lines. 0: nothing waits any more. Negative: why something
 * does. */
int step_log_catch_up(struct step_log *log, struct error *error);
/* What still waits is lost. */
int step_log_close(struct step_log *log, struct error *error);

#endif
