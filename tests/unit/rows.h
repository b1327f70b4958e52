/* All rows of a data set as one micro-batch, for tests of formats. */
#ifndef GACC_ROWS_H
#define GACC_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "worker/data/data.h"

/* micro_batch_close frees it. */
static inline struct micro_batch *read_all(struct data *data, const struct data_shape *shape)
{
    struct micro_batch *batch;
    struct error error;
    assert_int_equal(micro_batch_open(&batch, shape, data_sequences(data), &error), 0);
    for (uint64_t i = 0; i < data_sequences(data); i++) assert_int_equal(data_read(data, i, batch, &error), 0);
    return batch;
}

#endif
