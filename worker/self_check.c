/* Parameters are frozen inside a window: a checksum per tensor, taken before the first forward and compared before the
 * update. */
#include <inttypes.h>

#include "worker/session_internal.h"

/* FNV-1a (Fowler, Noll, Vo). */
static uint64_t checksum(const unsigned char *bytes, uint64_t count)
{
    uint64_t sum = UINT64_C(14695981039346656037);
    for (uint64_t i = 0; i < count; i++) sum = (sum ^ bytes[i]) * UINT64_C(1099511628211);
    return sum;
}

/* A sum for every tensor, one for the master parameters behind them. */
static int sum_up(struct session *session, uint64_t *sums, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    const void *parameters, *master;
    size_t size = dtype_size(session->compute_type);
    int result = session_read(session, BUFFER_PARAMETERS, &parameters, error);
    if (!result) result = session_read(session, BUFFER_MASTER, &master, error);
    if (result) return result;
    for (size_t i = 0; i < table->count; i++)
        sums[i] = checksum(element(parameters, table->tensors[i].begin, session->compute_type),
                           table->tensors[i].size * size);
    sums[table->count] = checksum(master, session->owned * dtype_size(session->wide_type));
    return 0;
}

int self_check_remember(struct session *session, struct error *error)
{
    return sum_up(session, session->checksums, error);
}

int self_check_compare(struct session *session, struct error *error)
{
    const struct tensor_table *table = &session->model->table;
    uint64_t *before = session->checksums, *now = before + table->count + 1;
    int result = sum_up(session, now, error);
    if (result) return result;
    for (size_t i = 0; i <= table->count; i++) {
        if (before[i] == now[i]) continue;
        if (i == table->count)
            return error_set(error, STATUS_INTERNAL,
                             "step %" PRIu64 ": the master parameters changed inside the accumulation window",
                             session->machine.step);
        return error_set(error, STATUS_INTERNAL, "step %" PRIu64 ": tensor %s changed inside the accumulation window",
                         session->machine.step, table->tensors[i].name);
    }
    return 0;
}
