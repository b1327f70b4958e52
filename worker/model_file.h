/* How a model lies in a safetensors file that its ranks write together. */
#ifndef GACC_MODEL_FILE_H
#define GACC_MODEL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"
#include "worker/comm.h"
#include "worker/model.h"

enum model_content {
    MODEL_STATE,    /* all tensors */
    MODEL_MERGED,   /* all but the adapters', which are added to the weights beside them */
    MODEL_ADAPTERS, /* these alone, under the names that the peft library has for them */
};

struct model_file {
    char *header; /* [header_bytes] */
    size_t header_bytes;
    struct range holds; /* of the canonical index */
    uint64_t zeros_at;  /* where tensors begin that are zero and stay so; they reach to the end */
    uint64_t bytes;     /* of the whole file */
};

/* The table's tensors in table order, in the wide type, so that element i of the canonical index lies at
 * header_bytes + (i − holds.begin)·size; then the model's zeros, but for adapters alone. 70: out of memory. */
int model_file_lay_out(struct model_file *file, const struct model *model, enum model_content content,
                       enum dtype wide_type, struct error *error);
void model_file_close(struct model_file *file);

#endif
