/*
 * The memory of one micro-batch, for the files that run stages: model.c (a micro-batch), model_window.c (a window).
 */
#ifndef GACC_MODEL_MEMORY_H
#define GACC_MODEL_MEMORY_H

#include "worker/model.h"

struct activations {
    struct kernels *kernels;
    size_t rows;
    bool backward;
    void *arena;
    size_t bytes;
    void *scratch;
    void *gradient[2]; /* of the outputs of even and odd stages: a backward reads one and writes the other */
    const struct stage *in_shared; /* whose forward was the last to fill the `saved` that recomputed stages share */
    struct {
        void *out, *saved;
    } stages[];
};

#endif
