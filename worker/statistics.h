/*
 * The statistics that BatchNorm goes by. A set is what they are taken over together: a micro-batch, the micro-batches
 * that the ranks are at (sync), or the whole window of all ranks; its moments are joined from those of its parts in
 * double. The moments of a step, of all its sets together, move the running ones, once, where the step is applied.
 */
#ifndef GACC_STATISTICS_H
#define GACC_STATISTICS_H

#include "proto/error.h"
#include "worker/model.h"

/* Of each channel: over so many values their mean, and Σ (x − mean)². */
struct moments {
    double count;
    double *mean, *squares; /* [channels] */
};

/* As if `other`'s values were among `into`'s (Chan, Golub & LeVeque 1979). */
void moments_join(struct moments *into, const struct moments *other, size_t channels);

/* Of one stage that needs them. */
struct stage_statistics {
    const struct tensor *running_mean, *running_variance; /* [channels] */
    size_t channels;
    struct moments set;  /* of the set at hand */
    struct moments step; /* of all sets of the step: mean, squares one behind the other */
    double *own;         /* the same in the kernels' memory, of sets that passes are by themselves (SETS_OWN) */
    double *sums;        /* [2][channels] of the set at hand: Σ dy, Σ dy·n */
    double *part;        /* [2][channels] of some of its rows, on their way from the kernels' memory */
    double *running;     /* [2][channels] mean, variance: as the tensors have them */
    wide *narrowed;      /* [2][channels] mean, 1/√(variance + eps) of what is normalised by */
};

struct statistics {
    struct stage_statistics *stages; /* in the order of the model's */
    size_t count;
    enum dtype wide_type;
    double momentum;
    struct kernels *kernels;
    double *steps, *own; /* every stage's step, and own, one behind the other; where memory is the host's, the same */
    size_t steps_bytes;
    /* Puts every rank's `own` [count], in rank order, at `all` [ranks][count]. NULL: the rank has its sets for itself.
     */
    int (*gather)(void *context, const double *own, double *all, size_t count, struct error *error);
    void *context;
    uint32_t ranks;
    bool has_single;      /* a set of the step had one value a channel: nothing of it is left behind the norm */
    double *gathered;     /* [ranks][1 + 2·channels], of the largest stage */
    struct error failure; /* the first that gather returned */
};

/* Of a model that has stages which need them. ranks: of gather. */
int statistics_open(struct statistics **out, const struct model *model, struct kernels *kernels, uint32_t ranks,
                    struct error *error);
void statistics_close(struct statistics *statistics);
/* Bytes of it. */
size_t statistics_measure(const struct model *model, uint32_t ranks);

/* A step, or a set, begins. */
void statistics_begin(struct statistics *statistics);
void statistics_begin_set(struct stage_statistics *stage);
void statistics_begin_sums(struct stage_statistics *stage);
/* Some of the set's rows: `part` as batchnorm_moments has it, over `count` values a channel. */
void statistics_add(struct stage_statistics *stage, double count);
/* `part` as batchnorm_sums has it. */
void statistics_add_sums(struct stage_statistics *stage);
/* The set is complete on this rank: the other ranks' parts, where they have some, and the step's moments. */
void statistics_settle(struct statistics *statistics, struct stage_statistics *stage);
/* The same of a set that a pass is by itself, which has joined stage->own, with so many values a channel. */
void statistics_settle_own(struct statistics *statistics, struct stage_statistics *stage, double count);
/* The same of `sums`. */
void statistics_settle_sums(struct statistics *statistics, struct stage_statistics *stage);

/* A running value as its tensor keeps it: a job that resumes has the same. */
double statistics_as_kept(const struct statistics *statistics, double value);

/* What to normalise by, into `narrowed`: the set's moments or the running ones. */
void statistics_narrow(const struct statistics *statistics, struct stage_statistics *stage, bool running);

/* The step is applied: what passes were by themselves is waited for; running = (1 − momentum)·running +
 * momentum·step's, its variance unbiased; where a value is not finite, or there was none, they stay. `gather` (NULL:
 * none): of ranks that had sets for themselves. */
int statistics_advance(struct statistics *statistics,
                       int (*gather)(void *context, const double *own, double *all, size_t count, struct error *error),
                       struct error *error);

#endif
