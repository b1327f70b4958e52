/*
 * Trials that all of mpirun's ranks take part in: rank 0 decides which, the others follow until it is over. Between
 * trials they wait in a broadcast.
 */
#ifndef GACC_TOGETHER_H
#define GACC_TOGETHER_H

#include "daemon/verify/trial.h"

/* Rank 0: tells the others of the trial (spec->launcher) and runs it with them. As trial_run. */
int together_run(struct trial *trial, const struct trial_spec *spec, struct error *error);
/* Rank 0, at the end: the others' together_serve returns. */
void together_end(struct comm *comm);
/* The others: take part in what rank 0 says until it says that it is over. A trial that fails is no error here: rank 0
 * has it, too. */
int together_serve(struct comm *comm, const struct device *device, struct error *error);

#endif
