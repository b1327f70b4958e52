/*
 * The negative controls: mistakes that trainers are known to make, planted one by one into the real code on the user's
 * model, data and batch. The ordinary checks run on it, unchanged, until one fails. A check suite that lets one of them
 * pass proves nothing.
 */
#ifndef GACC_CONTROLS_H
#define GACC_CONTROLS_H

#include "daemon/verify/check.h"
#include "daemon/verify/suite.h"

extern const size_t controls_count;

/* Plants fault `index` of the table. `sound` is the suite that the job's own checks ran on. */
void control_run(size_t index, struct suite *sound, struct planted *planted);

#endif
