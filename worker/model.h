/*
 * A model is a table of tensors and a list of stages over it. The session drives the stages; a model knows nothing of
 * ranks, scales, optimizers or steps: it turns one micro-batch and its loss seeds into a loss sum and gradients.
 */
#ifndef GACC_MODEL_H
#define GACC_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"
#include "worker/data/data.h"

enum tensor_init { TENSOR_ZEROS, TENSOR_ONES, TENSOR_NORMAL, TENSOR_UNIFORM };

/* One row of the table. Tensors lie one after the other, unpadded, in table order: [begin, begin + size) is the
 * tensor's range in the canonical index, in which initial values, checkpoints and exports count. Without the tensors
 * that are frozen it is the trained index, in which gradients, shards, moments and all that travels count; the frozen
 * ones lie in an index of their own. A tied tensor has one row. Adapters (models/linear.h) stand behind all others, so
 * that these lie where they do in the model without. */
struct tensor {
    char name[64];
    int dimensions;
    uint64_t shape[4];
    uint64_t begin, size; /* elements */
    bool fixed;           /* never trained: the model has adapters instead */
    bool statistic;       /* no parameter: running statistics, which every step that is applied moves; always frozen */
    bool frozen;          /* has no gradient; no optimizer changes it */
    uint64_t at;          /* where it begins in the trained index, or, frozen, in the frozen one */
    enum tensor_init init;
    double init_scale; /* NORMAL: standard deviation; UNIFORM: half width */
};

struct tensor_table {
    struct tensor *tensors;
    size_t count;
    uint64_t parameters; /* elements in all */
    uint64_t trained;    /* of those that are not frozen */
    size_t fixed;        /* tensors before the adapters'; 0: there are none */
};

/* NULL when there is none of that name. */
const struct tensor *tensor_find(const struct tensor_table *table, const char *name);

/* A micro-batch as kernels see it: its arrays in the backend's memory, shaped as in struct micro_batch. */
struct feed {
    size_t rows;
    const uint64_t *sequence;
    const double *weight;
    const wide *seed; /* S·averaging·w of each target of the row (tape: unused; forward only: unused) */
    const int32_t *tokens, *targets;
    const double *x, *y;
    const double *share;         /* of a penalty */
    const uint64_t *dropout_key; /* NULL: no dropout (evaluation) */
};

/* block: what batch->block was uploaded to; where memory is the host's, batch->block itself. */
struct feed feed_of(const struct micro_batch *batch, const void *block);

/* Who wants to know how far a pass is, to communicate beside it. Called between two stages, in the caller's thread. */
struct overlap {
    void *context;
    /* The kernels that follow read the parameters [begin, end) of the trained index. NULL: all are there. */
    void (*needs)(void *context, uint64_t begin, uint64_t end);
    /* No kernel that follows adds to the gradients of the trained index from `begin` on. NULL: never mind. */
    void (*complete)(void *context, uint64_t begin);
};

struct stage;
struct statistics; /* worker/statistics.h */

/* Of which rows a stage that needs statistics of a set takes them, in a pass. */
enum pass_sets {
    SETS_OWN,       /* the micro-batch's: nobody else is asked, and nothing passes through the host */
    SETS_OF_RANKS,  /* those of the micro-batches that the ranks are at */
    SETS_OF_WINDOW, /* the window's: set by model_run_window */
    SETS_RUNNING,   /* none: it goes by the running ones, and no row depends on another */
};

/* One micro-batch on its way through the stages. All memory but the batch's is the backend's. */
struct pass {
    struct kernels *kernels;
    const compute *parameters; /* [table.trained] */
    const compute *frozen;     /* [table.parameters − table.trained]; NULL: there are none */
    wide *gradients;           /* [table.trained], added to; NULL: forward only (evaluation) */
    const struct micro_batch *batch;
    struct feed feed;
    long double averaging; /* S·averaging factor without w: what tape multiplies Σ v·g by before rounding */
    double *loss_sum;      /* [1] += Σ w·ℓ, unscaled, in the unit of the batch's weights, by the last stage */
    struct statistics *statistics; /* of a model that has sets; what stages learn of them goes there */
    enum pass_sets sets;
    struct overlap overlap;
    /* Changes what a stage is recomputed with: the pass, and *in, which may become `out`, what the stage handed on.
     * NULL: what its forward had. Only a planted fault is here. */
    void (*recomputed_with)(struct pass *pass, const compute **in, const compute *out);
};

/* in: what the stage before wrote (NULL for the first); out: what this one hands on (NULL for the last); saved: memory
 * that lives until this stage's backward of the same micro-batch, which may write over it (forward only: until forward
 * returns). dout/din likewise for gradients of activations (din NULL for the first stage, dout NULL for the last).
 * recompute: what forward left in `saved`, bit by bit, once more from the same `in`; NULL: it is to be kept. */
struct stage_class {
    const char *name;
    bool works_on_host; /* its passes do work of their own on the host: they cannot be recorded and replayed */
    /* NULL: none. scratch is shared by all stages and holds nothing between calls. */
    size_t (*out_bytes)(const struct stage *, size_t rows);
    size_t (*saved_bytes)(const struct stage *, size_t rows);
    size_t (*scratch_bytes)(const struct stage *, size_t rows);
    void (*forward)(const struct stage *, struct pass *, const compute *in, compute *out, void *saved, void *scratch);
    void (*recompute)(const struct stage *, struct pass *, const compute *in, void *saved, void *scratch);
    void (*backward)(const struct stage *, struct pass *, compute *din, const compute *dout, const compute *in,
                     void *saved, void *scratch);

    /* A stage that must know statistics of a whole set of rows before it can go on, forward and backward; the driver
     * sees to it that the set is complete by then. NULL: it need not. */
    /* How many channels they are of, and which tensors are the running ones; either may be NULL. */
    size_t (*statistics)(const struct stage *, const struct tensor **mean, const struct tensor **variance);
    /* Adds the moments of `in` to those of the set. */
    void (*add_moments)(const struct stage *, struct pass *, const compute *in, void *scratch);
    /* Adds what the backward needs of these rows to the set's, and to the gradients of the stage's tensors. */
    void (*add_sums)(const struct stage *, struct pass *, const compute *dout, const compute *in, void *saved,
                     void *scratch);
};

struct stage {
    const struct stage_class *class;
    const struct model *model;
    unsigned index;                      /* e.g. the layer */
    size_t set;                          /* which of the model's sets, where it needs statistics */
    size_t first, count;                 /* its own rows of the tensor table; a tied tensor is the earliest stage's */
    size_t first_adapter, adapter_count; /* more of them */
    uint64_t begin, end;                 /* the trained ones among them, in the trained index */
    const void *parameters;              /* the class's own numbers (tensor rows and such), owned by the model */
};

struct model {
    const Gacc__V1__ModelSection *spec; /* borrowed from the job */
    enum dtype compute_type;
    struct tensor_table table;
    struct tensor_table zeros; /* written to exported files, filled with zeros; no parameters (gpt without bias) */
    struct stage *stages;      /* their ranges follow each other and cover the trained index */
    size_t stage_count;
    struct linear **linears; /* that may have an adapter, in the order of the stages (models/linear.h) */
    size_t linear_count;
    size_t set_count;     /* of stages that need statistics of sets of rows */
    size_t first_trained; /* the earliest stage with a tensor that is not frozen: no backward goes beyond it */
    bool recordable;      /* a pass is nothing but kernels */
    /* Stages that can recompute what they saved do so before their backward, and have one `saved` in turn. Whoever
     * opens the model may set it, before there are activations. */
    bool recomputes;
    uint64_t targets_per_sequence; /* context for language models, else 1 */
    void *own;                     /* the model's own memory, freed with it */
};

/* What it hands on. */
size_t stage_out_bytes(const struct stage *stage, size_t rows);
/* 0: it needs no statistics. */
size_t stage_channels(const struct stage *stage);

/* Builds the table and the stages; allocates nothing that depends on the number of parameters. */
int model_open(struct model **out, const Gacc__V1__ModelSection *spec, enum dtype compute_type, struct error *error);
void model_close(struct model *model);
/* Freezes the rows for which frozen[row] says so, as it does for all that are fixed, and trains the others: after
 * model_open, where all are trained, and before there are activations. At least one is left. */
void model_freeze(struct model *model, const bool *frozen);

/* Initial value of every element of the canonical range [begin, end), as double: the tensor's own initialiser by keyed
 * normals (seed, element), then init.values or init.file. The same for every N. Unknown names, wrong sizes or shapes, a
 * file that is not safetensors, what is no finite number of the wide type: 65/66/78 naming file and tensor. */
struct model_initial;
/* file: all of them from this safetensors file, whatever the job says; NULL: as the job says. threads: that make keyed
 * normals side by side, ≥ 1; no value depends on them. */
int model_initial_open(struct model_initial **out, const struct model *model, uint64_t seed, const char *file,
                       int threads, struct error *error);
int model_initial_read(struct model_initial *initial, uint64_t begin, uint64_t end, double *values,
                       struct error *error);
void model_initial_close(struct model_initial *initial);

/* Memory of the backend for one micro-batch of `rows` sequences: outputs and saved of every stage, scratch. To be
 * closed before the kernels are. */
struct activations;
int activations_open(struct activations **out, const struct model *model, struct kernels *kernels, size_t rows,
                     bool backward, struct error *error);
size_t activations_bytes(const struct activations *activations);
/* What they would take, without taking it. */
size_t activations_measure(const struct model *model, size_t rows, bool backward);
void activations_close(struct activations *activations);

/* A window that is run stage by stage, where a stage needs statistics of all of it: what enters such a stage is kept of
 * every micro-batch, and what lies between two of them is run once more on the way back. */
#define SETS_MAX 128 /* stages that need statistics; job keys allow fewer */
struct window_memory;
/* Room for `passes` micro-batches of `rows`. */
int window_memory_open(struct window_memory **out, const struct model *model, struct kernels *kernels, uint32_t passes,
                       size_t rows, struct error *error);
void window_memory_close(struct window_memory *memory);
uint32_t window_memory_passes(const struct window_memory *memory); /* 0 of NULL */
/* What it would take. */
uint64_t window_memory_measure(const struct model *model, uint32_t passes, size_t rows);

/* The micro-batches of one rank, 0 … count − 1, in any order and more than once. */
struct window_passes {
    uint32_t count;
    void *context;
    /* Makes the k-th pass; false: it is left out, now and whenever it is asked for. */
    bool (*open)(void *context, uint32_t k, struct pass *pass);
    /* The k-th has added its loss. */
    void (*done)(void *context, uint32_t k);
    /* Some gradients have been added to by one of them, which comes more than once; NULL: nobody wants to know. */
    void (*added)(void *context);
};
/* Forward and backward of all of them. Sets are completed over all ranks, each of which calls it, with as many passes
 * as it has; `statistics` is that of the passes. */
void model_run_window(const struct model *model, const struct window_passes *passes, struct statistics *statistics,
                      struct activations *activations, struct window_memory *memory);

/* What a rank does that has no micro-batch while others, with whom it completes sets, have one. */
void model_run_nothing(const struct model *model, struct statistics *statistics);

/* All stages forward, in order; then all backward, in reverse, once per forward. pass->batch->rows may be less than
 * `rows` above. Activations opened without backward take passes without gradients only; the others take both. */
void model_forward(const struct model *model, struct pass *pass, struct activations *activations);
void model_backward(const struct model *model, struct pass *pass, struct activations *activations);

#endif
