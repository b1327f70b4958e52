/*
 * A rank's part of a checkpoint. The state is copied at the end of a step; a thread of its own writes the copy into its
 * ranges of files of known size, makes them durable, and tells the coordinator what it wrote, or why not.
 *
 *     model.safetensors                      master parameters, as an export has them; each rank its ranges
 *     optimizer-00001-of-00004.safetensors   rank 1's moments: tensors m.BEGIN-END and v.BEGIN-END over the canonical
 *                                            index, so that any number of ranks can take them up. Frozen parts have
 *                                            none; .since.T behind the name: they began T applied steps after the job
 */
#ifndef GACC_CHECKPOINT_H
#define GACC_CHECKPOINT_H

#include "proto/error.h"
#include "proto/gacc/v1/workers.pb-c.h"

struct session;
struct checkpoint; /* a writer with memory for the copies; made at the first Save, gone with checkpoint_forget */

#define CHECKPOINT_MODEL "model.safetensors"

/* Copies and begins to write. What goes wrong is told to the coordinator; 70: it cannot be. */
int checkpoint_begin(struct session *session, const Gacc__V1__Save *save, struct error *error);
/* Until what was begun is written and told. */
void checkpoint_wait(struct session *session);
/* The same, and the memory is given back; the next Save takes it anew. */
void checkpoint_forget(struct session *session);

/* restore.c: before the first step, the state becomes the checkpoint's, whatever number of ranks wrote it. */
int checkpoint_restore(struct session *session, const Gacc__V1__Restore *restore, struct error *error);

#endif
