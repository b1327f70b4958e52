/*
 * Faults to plant: for tests and for verify's negative controls, never reachable from a job file. A plant is a mistake
 * that a trainer can plausibly make; each is consulted at one place of the real code, at most once per micro-batch.
 */
#ifndef GACC_FAULTS_H
#define GACC_FAULTS_H

#include <stdbool.h>
#include <stdint.h>

enum plant {
    PLANT_NOTHING,
    /* What the loss of a target of weight w is multiplied by; right is S·w/W with token weighting. */
    PLANT_SUM_FOR_MEAN,       /* S·w */
    PLANT_NOT_DIVIDED_BY_K,   /* S·w/n_k: the means of micro-batches added up */
    PLANT_DIVIDED_BY_K_TWICE, /* once more by M' */
    PLANT_DIVIDED_BY_N_TWICE, /* once more by N */
    PLANT_RANK_MEANS,         /* S·w/(W_rank·N): the mean of the ranks' means */
    PLANT_MICRO_BATCH_MEANS,  /* S·w/(M'·n_k), whatever the weighting */
    /* What a micro-batch is. */
    PLANT_PADDING_COUNTED, /* rows of weight 0 and masked targets add loss and gradient: as if they weighed 1, as if
                              they were 0 */
    PLANT_PENALTY_IN_FULL, /* every micro-batch adds the penalty as if it were the only one */
    PLANT_DROPOUT_BY_ROW,  /* dropout is keyed by the row in the micro-batch, not by the sequence */
    PLANT_LAST_MICRO_BATCH_LOST,   /* the last one of every rank adds no gradient */
    PLANT_ACCUMULATOR_ROUNDED,     /* the gradient is kept in the compute type between micro-batches */
    PLANT_REDUCED_PER_MICRO_BATCH, /* a reduce-scatter more for each */
    /* How a block is recomputed. */
    PLANT_RECOMPUTED_WITHOUT_DROPOUT, /* nothing is dropped then */
    PLANT_RECOMPUTED_FROM_OUTPUT,     /* from what the block handed on, one block too far */
    /* What the verdict leads to. */
    PLANT_SKIP_APPLIES,   /* the update is made although the verdict is SKIP */
    PLANT_SKIPS_ALONE,    /* at SKIP only the ranks skip whose own shard is not finite */
    PLANT_NOT_UNSCALED,   /* the update takes the gradient as it was reduced */
    PLANT_UNSCALED_TWICE, /* divided by S² */
    PLANT_SKIP_MOVES_T,   /* AdamW's bias correction counts attempts */
    PLANT_GRADIENTS_KEPT, /* not cleared after the step */
};

/* All zero: none. */
struct faults {
    uint64_t data_error_at_step;       /* reading data of this step fails with 65 on `rank` */
    uint64_t parameter_write_at_step;  /* a parameter of `rank` changes inside the window of this step */
    uint64_t reduction_missed_at_step; /* `rank` leaves out the reduction of this step */
    uint64_t memory_lost_at_step;      /* `rank` has no memory for this step, and says so to nobody */
    uint32_t rank;
    bool self_check; /* not a fault: look for parameters that change inside a window (70 naming the tensor) */
    enum plant plant;
    /* Not a mistake but an event: the gradient of this micro-batch overflows, in fp16 already where activations'
     * gradients are stored (but for a penalised model, of which not all is in fp16). step 0: never. */
    struct {
        uint64_t step;        /* attempt */
        uint32_t micro_batch; /* global */
        double scale;         /* only in a window of this scale; 0: whatever it is */
    } overflow_at;
};

#endif
