/* Adapters added to the weights that they stand beside, for a file that needs none. */
#ifndef GACC_MERGE_H
#define GACC_MERGE_H

#include "worker/session_internal.h"

struct merge {
    const struct model *model;
    uint64_t first; /* of the canonical index: where adapters begin */
    wide *adapters; /* their values, of all ranks, the host's; NULL: there are none */
    enum dtype wide_type;
};

/* Room for the adapters' values. 70: there is none. */
int merge_open(struct merge *merge, const struct session *session, struct error *error);
/* All ranks together, each with its own master parameters as the host reads them. */
int merge_gather(struct merge *merge, const struct session *session, const void *master, struct error *error);
/* values [end − begin] of the canonical index, in the wide type: alpha/rank·B·A is added to what of it is adapted. */
void merge_add(const struct merge *merge, uint64_t begin, uint64_t end, wide *values);
void merge_close(struct merge *merge);

#endif
